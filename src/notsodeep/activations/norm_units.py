"""Layers whose units see the norm of their input as well as their pre-activation (theory, section 13)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Activation, differentiate


@dataclass(frozen=True)
class How:
    """How a layer is evaluated."""

    scale: float = 1.0
    """Both arguments are still to be times this."""
    gain: float = 1.0
    """The units are times this."""
    compiled: bool = False
    """By loops in C++, on the CPU, where they can be built."""
    overwrite: bool = False
    """``before`` may be overwritten where it is not needed for derivatives."""


PLAIN = How()


class NormUnits(Activation):
    """Abstract. A layer of units psi_i(w_i.x, |x|), which is no elementwise function."""

    elementwise: ClassVar[bool] = False

    @property
    def slope_range(self) -> tuple[float, float]:
        return (-float("inf"), float("inf"))

    def table(self, like: Tensor, width: int) -> Tensor:
        """The constants of a layer of this width, with the dtype and on the device of ``like``."""
        raise NotImplementedError

    def units(self, before: Tensor, inputs: Tensor, table: Tensor | None = None, how: How = PLAIN) -> Tensor:
        """The layer: ``before`` = W x (..., width), ``inputs`` = x (..., p)."""
        raise NotImplementedError

    def at_norm(self, x: Any, norm: float) -> Any:
        before = torch.as_tensor(x, dtype=torch.float64).unsqueeze(-1)
        return self.units(before, torch.full_like(before, norm)).squeeze(-1).numpy()

    def unit_slopes(self, before: Tensor, inputs: Tensor) -> Tensor:
        return differentiate(lambda b: self.units(b, inputs), before)

    def _value(self, x: Tensor) -> Tensor:
        raise ActivationError(
            f"{type(self).__name__} units see the norm of their input, so they are no function of the pre-activation "
            "alone; use units(W x, x)"
        )


def row_norms(inputs: Tensor) -> Tensor:
    """|x| of the last dimension."""
    return torch.linalg.vector_norm(inputs, dim=-1)


def doubled(x: Tensor) -> Tensor:
    """In double precision, on devices that have it."""
    return x if x.device.type == "mps" else x.double()
