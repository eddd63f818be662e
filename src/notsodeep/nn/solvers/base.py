"""What an equilibrium solver has to offer."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

__all__ = ["Solver"]


class Solver(Protocol):
    """The state of one fixed-point iteration; tensors are (..., m), every row its own problem."""

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        """The next iterate, from an iterate and its image f(z)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Forget every row but these (an index into the leading dimension)."""
        ...
