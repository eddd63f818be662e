"""The probability that a Gaussian vector of scores is nearest to each target.

A point is given the class whose target is nearest to its scores s: the largest of s . y_c - ||y_c||^2/2, which for
the default targets is the largest score. Two classes need one normal integral. For more, the probability of each
orthant is integrated one variable after the other (Genz), the outer ones on a lattice with a fixed generator.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr, ndtri

from ..spectra.population import Array

__all__ = ["confusions"]

_POINTS = 2048
_EDGE = 1e-16


def confusions(means: Array, covariances: Array, targets: Array) -> tuple[Array, float]:
    """P(class c is chosen | class b), (N, K, K), and an estimate of its largest error.

    ``means`` (N, K, outputs) and ``covariances`` (N, K, outputs, outputs) of the scores, ``targets`` (K, outputs).
    """
    levels = means @ targets.T - 0.5 * (targets**2).sum(1)
    spreads = targets @ covariances @ targets.T
    classes = len(targets)
    if classes == 2:
        return _two(levels, spreads), 0.0
    sums = [np.stack([_orthant(*_margins(levels, spreads, c), half) for c in range(classes)], -1) for half in (0, 1)]
    found = 0.5 * (sums[0] + sums[1])
    error = 0.5 * float(np.abs(sums[0] - sums[1]).max())
    total = found.sum(-1, keepdims=True)
    return found / total, max(error, float(np.abs(total - 1.0).max()))


def _two(levels: Array, spreads: Array) -> Array:
    gap = levels[..., 0] - levels[..., 1]
    variance = spreads[..., 0, 0] + spreads[..., 1, 1] - 2.0 * spreads[..., 0, 1]
    first = ndtr(gap / np.sqrt(np.maximum(variance, 1e-300)))
    return np.stack([first, 1.0 - first], axis=-1)


def _margins(levels: Array, spreads: Array, c: int) -> tuple[Array, Array]:
    """Mean and covariance of the lead of class c over each other class."""
    others = [k for k in range(levels.shape[-1]) if k != c]
    mean = levels[..., c, None] - levels[..., others]
    across = spreads[..., c, others]
    inner = spreads[..., others, :][..., others]
    return mean, inner - across[..., None, :] - across[..., :, None] + spreads[..., c, c, None, None]


def _orthant(mean: Array, covariance: Array, half: int) -> Array:
    """P(all entries > 0) of N(mean, covariance), the hardest condition first."""
    scale = np.sqrt(np.maximum(np.einsum("...kk->...k", covariance), 1e-300))
    order = np.argsort(mean / scale, axis=-1)
    mean = np.take_along_axis(mean / scale, order, -1)
    scaled = covariance / (scale[..., :, None] * scale[..., None, :])
    scaled = np.take_along_axis(np.take_along_axis(scaled, order[..., :, None], -2), order[..., None, :], -1)
    size = mean.shape[-1]
    factor = np.linalg.cholesky(scaled + 1e-11 * np.eye(size))
    return _sequential(mean, factor, _lattice(size - 1, half))


def _sequential(mean: Array, factor: Array, points: Array) -> Array:
    """E over the lattice of the product of conditional probabilities; mean (..., k), factor (..., k, k)."""
    draws = np.zeros((*mean.shape[:-1], len(points), mean.shape[-1]))
    weight = np.ones((*mean.shape[:-1], len(points)))
    for k in range(mean.shape[-1]):
        drift = mean[..., k, None] + (draws[..., :k] @ factor[..., k, :k, None])[..., 0]
        inside = ndtr(drift / factor[..., k, k, None])
        weight *= inside
        if k < mean.shape[-1] - 1:
            # the variable is above -drift: a uniform share of the upper tail of mass `inside`
            draws[..., k] = -ndtri(np.clip(points[:, k] * inside, _EDGE, 1.0 - _EDGE))
    average: Array = weight.mean(-1)
    return average


def _lattice(dimension: int, half: int) -> Array:
    """Half of a Kronecker lattice by the roots of primes, folded: periodic integrands lose the edge error."""
    primes = np.array([2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71][:dimension])
    if len(primes) < dimension:  # beyond twenty classes: the sequence of the generalised golden ratio
        primes = _golden(dimension)
    steps = np.arange(half * _POINTS, (half + 1) * _POINTS)[:, None] + 0.5
    return np.abs(2.0 * ((steps * np.sqrt(primes)) % 1.0) - 1.0)


def _golden(dimension: int) -> Array:
    ratio = 2.0
    for _ in range(60):
        ratio = (1.0 + ratio) ** (1.0 / (dimension + 1))
    return (1.0 / ratio ** np.arange(1, dimension + 1)) ** 2
