"""Picard first, Anderson for what it does not finish."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from .anderson import Anderson

__all__ = ["Auto"]


@dataclass(slots=True)
class Auto:
    """Picard for ``patience`` steps, then Anderson.

    Random weights with sigma_a2 below 1/4 are done long before; trained weights may have a few eigenvalues near one,
    which is where Anderson pays.
    """

    patience: int = 20
    _steps: int = field(default=0, repr=False)
    _anderson: Anderson = field(default_factory=Anderson, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        self._steps += 1
        return image if self._steps <= self.patience else self._anderson.advance(z, image)

    def keep(self, rows: Tensor) -> None:
        self._anderson.keep(rows)
