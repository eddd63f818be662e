"""Kernels of a DEQ differentiated in one of its variances: exact slopes, as matrices of their own.

A slope is a function of two norms and an angle, as the kernel is; so a :class:`DEQSlope` stands where a DEQ does, and
tables and tiles serve it as they serve the kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..networks import DEQ, Kernel

__all__ = ["VARIANCES", "DEQSlope", "slopes"]

VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")


class DEQSlope(DEQ):
    """In the place of a DEQ: its "kernels" are the derivatives of that DEQ's kernels in one variance.

    ``tied``: sigma_b2 = 1 - sigma_a2 moves with sigma_a2.
    """

    __slots__ = ("name", "tied")
    name: str
    tied: bool

    def __init__(self, deq: DEQ, name: str, tied: bool = False) -> None:
        if name not in VARIANCES:
            raise InvalidInputError(f"a DEQ has the variances {VARIANCES}, got {name!r}")
        super().__init__(deq.activation, *deq.variances)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "tied", bool(tied and name == "sigma_a2"))

    @property
    def deq(self) -> DEQ:
        """The DEQ itself."""
        return DEQ(self.activation, *self.variances)

    @property
    def homogeneous(self) -> bool:
        """As the DEQ's kernels; but the first bias is seen by short inputs more than by long ones."""
        return super().homogeneous and self.name != "sigma_c2"

    def _content(self) -> tuple[Any, ...]:
        return (*super()._content(), self.name, self.tied)

    def __repr__(self) -> str:
        return f"d/d{self.name} of {super().__repr__()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DEQSlope, (self.deq, self.name, self.tied))


class _PerPair(DEQ):
    """A DEQ with one copy of its variances for every pair: the gradient of a sum is then the slope of every entry."""

    __slots__ = ("_numbers",)
    _numbers: tuple[float, float, float]

    def __init__(self, deq: DEQSlope, leaf: Tensor) -> None:
        parts: dict[str, Any] = {**dict(zip(VARIANCES, deq.variances, strict=True)), deq.name: leaf}
        if deq.tied:
            parts["sigma_b2"] = 1.0 - leaf
        for name, value in {"activation": deq.activation, "_numbers": deq.variances, **parts}.items():
            object.__setattr__(self, name, value)

    @property
    def variances(self) -> tuple[float, float, float]:
        return self._numbers


def slopes(
    deq: DEQSlope, pairs: Tensor, kernels: Callable[[DEQ], Mapping[Kernel, Tensor]], kinds: Sequence[Kernel]
) -> dict[Kernel, Tensor]:
    """The derivative of every entry of ``kernels(deq)``, a function of flat ``pairs`` entry by entry."""
    with torch.enable_grad():
        leaf = torch.full_like(pairs, deq.variances[VARIANCES.index(deq.name)]).requires_grad_()
        found = kernels(_PerPair(deq, leaf))
        return {kind: _gradient(found[kind], leaf, kind != kinds[-1]) for kind in kinds}


def _gradient(values: Tensor, leaf: Tensor, again: bool) -> Tensor:
    (slope,) = torch.autograd.grad(values.sum(), leaf, retain_graph=again)
    return slope
