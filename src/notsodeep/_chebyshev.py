"""Chebyshev interpolation: nodes, the transform to coefficients, and functions evaluated at few points for many."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from numpy.typing import NDArray

Array = NDArray[np.float64]


def nodes(size: int, low: Any = -1.0, high: Any = 1.0) -> Array:
    """Chebyshev points of the first kind in [low, high], increasing, without the ends."""
    return 0.5 * (high + low) + 0.5 * (high - low) * chebyshev.chebpts1(size)


@functools.lru_cache(maxsize=64)
def to_coefficients(size: int) -> Array:
    """The matrix from values at the nodes to Chebyshev coefficients."""
    angles = np.pi * (np.arange(size)[::-1] + 0.5) / size
    matrix = 2.0 / size * np.cos(np.outer(np.arange(size), angles))
    matrix[0] *= 0.5
    matrix.setflags(write=False)
    return matrix


def interpolated(function: Callable[[Array], Array], points: Array, tolerance: float, degree: int) -> Array:
    """``function``, (N,) -> (N, ...), at many points; from fewer nodes where their last coefficients are small."""
    low, high = float(points.min()), float(points.max())
    while 2 * degree < len(points) and high > low:
        found = np.tensordot(to_coefficients(degree + 1), function(nodes(degree + 1, low, high)), axes=1)
        if np.abs(found[-4:]).max() <= tolerance * np.abs(found).max():
            basis = chebyshev.chebvander((2.0 * points - (high + low)) / (high - low), degree)
            return np.tensordot(basis, found, axes=1)
        degree *= 2
    return function(points)
