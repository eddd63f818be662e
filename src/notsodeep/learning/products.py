"""The features x_i x_j of the term (x . y)^2, where n points can learn them one by one.

In the eigenvectors of the covariances sqrt(b) x_i^2 has the mean sqrt(b) c_i/p and the variance 2 b (c_i/p)^2 in a
class with eigenvalues c_i, and sqrt(2 b) x_i x_j the mean 0 and the variance 2 b c_i c_j/p^2. Their means make up
b T_ab/p, which is all that the limit keeps of them; with their variances the theory also holds for spectra that decay.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..spectra.population import Array, Commuting
from ..spectra.sources import Source

__all__ = ["ProductFeatures", "quadratic_features"]

_NEEDED = 0.05  # strength of the strongest product, relative to the ridge, from which on products are features
_STEEP = (
    4.0  # the largest eigenvalue over the mean; in flat spectra the sum of the squares is psi, which is there already
)
_KEPT = 0.02  # of a single one
_DIRECTIONS = 160  # distinct eigenvalues whose products are looked at


@dataclass(frozen=True, eq=False)
class ProductFeatures:
    """More joint eigenvalues, as in ``Commuting``: variances (r, K), shares of p (r,), Gram matrices (r, K, K)."""

    values: Array
    weights: Array
    mean_grams: Array


def quadratic_features(source: Source, bend: float, ridge: float) -> ProductFeatures | None:
    """All squares, and the products that n points see against the ridge; None where the limit will do."""
    population, p = source.population, source.p
    if not isinstance(population, Commuting) or bend <= 0.0:
        return None
    gain = 2.0 * bend * source.n / (p**2 * ridge)
    pooled = population.values @ (source.counts / source.n)
    steep = float(pooled.max()) >= _STEEP * float(population.weights @ pooled)
    if not steep or gain * population.scale**2 < _NEEDED:
        return None
    squares = 2.0 * bend * population.values**2 / p
    grams = bend * population.weights[:, None, None] * population.values[:, :, None] * population.values[:, None, :]
    pairs, shares_of_p = _pairs(population, source.counts / source.n, p, gain)
    return ProductFeatures(
        np.concatenate([squares, 2.0 * bend / p * pairs]),
        np.concatenate([population.weights, shares_of_p]),
        np.concatenate([grams, np.zeros((len(pairs), *grams.shape[1:]))]),
    )


def _pairs(population: Commuting, shares: Array, p: int, gain: float) -> tuple[Array, Array]:
    """c_i c_j by class for the products of strong directions, (pairs, K), and how many there are of each, over p."""
    pooled = population.values @ shares
    order = np.argsort(-pooled, kind="stable")[:_DIRECTIONS]
    values, size, many = population.values[order], pooled[order], population.weights[order] * p
    i, j = np.triu_indices(len(order))
    count = np.where(i == j, 0.5 * many[i] * (many[i] - 1.0), many[i] * many[j])
    kept = (gain * size[i] * size[j] > _KEPT) & (count > 0.5)
    return values[i[kept]] * values[j[kept]], count[kept] / p
