"""Probabilities from decision values: one temperature, fitted on leave-one-out predictions."""

from __future__ import annotations

import math

import numpy as np
import scipy.optimize
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax

__all__ = ["probabilities", "temperature"]

Array = NDArray[np.float64]
_LARGEST = 6.0  # log of the largest temperature; where classes are separated the likelihood has no maximum


def temperature(scores: Array, codes: NDArray[np.int64], weights: Array) -> float:
    """The t > 0 that maximises the weighted likelihood of softmax(t scores); convex in t, hence one root to find.

    >>> round(temperature(np.array([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), np.array([0, 0, 1]), np.ones(3)), 6)
    0.693147
    """

    def slope(log_t: float) -> float:
        p = softmax(math.exp(log_t) * scores, axis=1)
        gained = scores[np.arange(len(codes)), codes] - (p * scores).sum(1)
        return float(weights @ gained)

    if slope(_LARGEST) >= 0.0:
        return math.exp(_LARGEST)
    if slope(-_LARGEST) <= 0.0:
        return math.exp(-_LARGEST)
    return math.exp(scipy.optimize.brentq(slope, -_LARGEST, _LARGEST, xtol=1e-13))


def probabilities(scores: Array, t: float) -> Array:
    """softmax(t scores)."""
    return np.exp(log_softmax(t * scores, axis=1))
