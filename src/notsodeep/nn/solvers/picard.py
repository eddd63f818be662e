"""Picard iteration z <- f(z)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["Picard"]


@dataclass(slots=True)
class Picard:
    """z <- f(z).

    Among methods that combine iterates linearly nothing is quicker for random weights: the eigenvalues of the
    Jacobian fill a disc around zero (circular law), and on such a disc x^k is the best polynomial of degree k.
    """

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        return image

    def keep(self, rows: Tensor) -> None:
        """Nothing is remembered."""
