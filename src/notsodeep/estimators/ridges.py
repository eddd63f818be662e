"""The ridge: a number relative to the mean diagonal of the kernel, or the best one by leave-one-out."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InvalidInputError

__all__ = ["GRID", "best_ridge", "check_ridge"]

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))
"""The ridges that ``ridge="loo"`` tries, relative to the mean diagonal: four to a decade."""


def check_ridge(ridge: Any) -> float | None:
    """A positive number, or None for ``"loo"``."""
    if isinstance(ridge, str) and ridge == "loo":
        return None
    if isinstance(ridge, bool) or not isinstance(ridge, int | float | np.integer | np.floating):
        raise InvalidInputError(f"ridge must be a positive number or 'loo', got {ridge!r}")
    if not (math.isfinite(ridge) and ridge > 0):
        raise InvalidInputError(f"ridge must be positive and finite (relative to the mean diagonal), got {ridge!r}")
    return float(ridge)


def best_ridge(left_out_at: Callable[[float], Tensor], targets: Tensor, weights: Tensor) -> float:
    """The ridge of the grid with the least mean squared leave-one-out error."""
    losses = [float((weights * (left_out_at(r) - targets).square().sum(1)).sum()) for r in GRID]
    return GRID[int(np.argmin(losses))]
