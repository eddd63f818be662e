"""A kernel of a DEQ differentiated in its variances: exact slopes, as matrices of their own.

A slope is a function of two norms and an angle, as the kernel is; so a :class:`DEQSlope` stands where a DEQ does, and
tables and tiles serve it as they serve the kernel. All variances share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..networks import DEQ, Kernel, check_kernel

VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")


class DEQSlope(DEQ):
    """In the place of a DEQ: its matrices are the derivatives of one kernel of that DEQ, by the names of variances.

    Variances that are zero have none. ``tied``: sigma_b2 = 1 - sigma_a2 moves with sigma_a2.
    """

    __slots__ = ("kernel", "tied")
    kernel: Kernel
    tied: bool

    def __init__(self, deq: DEQ, kernel: Kernel = "ck", tied: bool = False) -> None:
        super().__init__(deq.activation, *deq.variances)
        check_kernel(self, kernel)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "tied", tied)

    @property
    def kinds(self) -> tuple[Any, ...]:
        """The variances that may move."""
        still = ("sigma_b2",) if self.tied else ()
        return tuple(n for n, v in zip(VARIANCES, self.variances, strict=True) if v > 0 and n not in still)

    @property
    def deq(self) -> DEQ:
        """The DEQ itself."""
        return DEQ(self.activation, *self.variances)

    def _content(self) -> tuple[Any, ...]:
        return (*super()._content(), self.kernel, self.tied)

    def __repr__(self) -> str:
        return f"slopes of the {self.kernel} of {super().__repr__()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DEQSlope, (self.deq, self.kernel, self.tied))


class _PerPair(DEQ):
    """A DEQ with one copy of its variances for every pair: the gradient of a sum is then the slope of every entry."""

    __slots__ = ("_numbers",)
    _numbers: tuple[float, float, float]

    def __init__(self, deq: DEQSlope, leaves: dict[str, Tensor]) -> None:
        parts: dict[str, Any] = {**dict(zip(VARIANCES, deq.variances, strict=True)), **leaves}
        if deq.tied:
            parts["sigma_b2"] = 1.0 - parts["sigma_a2"]
        for name, value in {"activation": deq.activation, "_numbers": deq.variances, **parts}.items():
            object.__setattr__(self, name, value)

    @property
    def variances(self) -> tuple[float, float, float]:
        return self._numbers


def slopes(
    deq: DEQSlope, pairs: Tensor, kernel: Callable[[DEQ, Kernel], Tensor], kinds: Sequence[Any]
) -> dict[Any, Tensor]:
    """The derivatives of every entry of ``kernel(deq, ...)``, a function of flat ``pairs`` entry by entry."""
    numbers = dict(zip(VARIANCES, deq.variances, strict=True))
    with torch.enable_grad():
        leaves = {name: torch.full_like(pairs, numbers[name]).requires_grad_() for name in kinds}
        total = kernel(_PerPair(deq, leaves), deq.kernel).sum()
        return dict(zip(kinds, torch.autograd.grad(total, list(leaves.values())), strict=True))
