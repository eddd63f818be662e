"""Products of two features, which the kernel's term (x . y)^2 adds to the rows, and whether what is left is small.

docs/learning.md has their means and variances. In a flat spectrum the sum of squares is the squared norm, which is a
feature already: it gets more weight, and the other products have no means. In a steep spectrum the strong squares tell
the classes one by one. The spectrum of a kernel and what it learns take the same features and the same test.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..errors import ConcentrationWarning, warn
from ..kernels.averages import PairAverages
from .linearised import Linearised, by_classes, nearest_semidefinite, norm_feature, product_factors
from .population import LIMITS, Array, Commuting
from .sources import Source


def with_products(
    source: Source, k: PairAverages, form: Linearised, constants: Array
) -> tuple[Linearised, Commuting | None]:
    """Return the kernel without its products, and these; none where eigenvectors differ.

    Products with a mean, mu_a x, are rows again, with the weights that slopes l_a l_b leave out: they differ in sign
    between classes, so they are features of their own.
    """
    population, curvature = source.population, 0.5 * k.curvature
    if not isinstance(population, Commuting):
        return form, None
    again = _zero_mean(population, population.values * np.maximum(form.leftover, 0.0), population.weights)
    if float(source.shares @ curvature @ source.shares) <= 0.0:
        return form, again
    bend = product_factors(nearest_semidefinite(curvature))  # b, with b_a b_b near the curvatures
    if not is_steep(source):
        return _with_trace(source, form, bend), again.plus(_flat_products(source, population, bend))
    squares = _steep_products(source, population, bend, float(source.shares @ form.offsets))
    flat = by_classes(source, k, constants, k.flat)
    return replace(flat, excess=flat.excess - squares.mean_grams.sum(0)), again.plus(squares)


def is_steep(source: Source) -> bool:
    """Say whether single squares x_i^2 are features of their own."""
    population = source.population
    if not isinstance(population, Commuting):
        return False
    pooled = population.values @ source.shares
    return float(pooled.max()) >= LIMITS.steep * float(population.weights @ pooled)


def _flat_products(source: Source, population: Commuting, bend: Array) -> Commuting:
    """Return all products but the sum of the squares; near eigenvalues are one where there are many."""
    order = np.argsort(population.values @ source.shares, kind="stable")
    groups = np.array_split(order, min(len(order), LIMITS.directions))
    many = np.array([population.weights[g].sum() for g in groups]) * source.p
    values = np.stack([population.weights[g] @ population.values[g] / population.weights[g].sum() for g in groups])
    i, j = np.triu_indices(len(groups))
    count = np.where(i == j, 0.5 * many[i] * (many[i] + 1.0), many[i] * many[j])
    count *= 1.0 - 1.0 / count.sum()
    return _zero_mean(population, 2.0 * bend**2 / source.p * values[i] * values[j], count / source.p)


def _with_trace(source: Source, form: Linearised, bend: Array) -> Linearised:
    """Give the norm feature the weight of the sum of the squares, b_a b_b ||x||^2 ||y||^2/p."""
    p = source.p
    cross = form.kappa * np.outer(form.seen, form.seen) + np.outer(bend, bend) / p
    pull = form.kappa * np.outer(form.direction, form.seen) / math.sqrt(p) + np.outer(bend * source.norms, bend) / p
    kappa, seen, direction = norm_feature(cross, pull, source.shares)
    grown = replace(form, kappa=kappa, seen=seen, direction=math.sqrt(p) * direction)
    before, after = (f.kappa * np.outer(f.direction, f.direction) for f in (form, grown))
    less = (grown.kappa * grown.variances - form.kappa * form.variances) / p
    return replace(grown, excess=form.excess + before - after, offsets=form.offsets - less)


def _steep_products(source: Source, population: Commuting, bend: Array, ridge: float) -> Commuting:
    """Return all squares, with their means, and the products that n points see against the ridge."""
    p, pooled = source.p, population.values @ source.shares
    squares, sized = 2.0 * bend**2 * population.values**2 / p, bend * population.values
    grams = population.weights[:, None, None] * sized[:, :, None] * sized[:, None, :]
    order = np.argsort(-pooled, kind="stable")[: LIMITS.directions]
    values, size, many = population.values[order], pooled[order], population.weights[order] * p
    i, j = np.triu_indices(len(order))
    count = np.where(i == j, 0.5 * many[i] * (many[i] - 1.0), many[i] * many[j])
    weight = float(source.shares @ bend**2)
    seen = 2.0 * weight * source.n / p**2 * size[i] * size[j]
    strong = (seen > LIMITS.weakest * ridge) & (count > 0.5)  # the ridge of a network may be zero
    products = _zero_mean(population, 2.0 * bend**2 / p * (values[i] * values[j])[strong], count[strong] / p)
    return Commuting(population.ratios, squares, population.weights, grams).plus(products)


def _zero_mean(population: Commuting, values: Array, weights: Array) -> Commuting:
    return Commuting(population.ratios, values, weights, np.zeros((len(values), *population.mean_grams.shape[1:])))


# ---- whether the mixture is high-dimensional enough ------------------------------------------------------
# n points see the strongest product x_i x_j with the weight n D (||C||/p)^2, and the random entries of D (x . y)^2/2
# have the norm sqrt(2 n) D T/p. Both are held against the ridge o_a + gamma; with a low effective rank they stay.


@dataclass(frozen=True)
class Concentration:
    """Whether norms and inner products of the data concentrate, as predictions require."""

    strength: float
    """Strength of the quadratic features relative to the ridge."""
    limit: float
    """The strength beyond which errors were off by several percent (docs/learning.md)."""
    norm_spread: float
    """Relative variance of the squared norms; 0.1 is the most that is trusted."""

    @property
    def holds(self) -> bool:
        """Whether the prediction is reliable."""
        return self.strength <= self.limit and self.norm_spread <= LIMITS.norm_spread

    def report(self, what: str) -> None:
        """Warn where the prediction is not reliable, and say what follows."""
        if not self.holds:
            warn(
                "the mixture has too low an effective rank for this prediction: the strength of (x . y)^2 is "
                f"{self.strength:.3g} times the ridge (at most {self.limit:g} is trusted), and the relative variance "
                f"of ||x||^2 is {self.norm_spread:.2g} (at most {LIMITS.norm_spread:g}). {what}",
                ConcentrationWarning,
            )


def concentration(
    source: Source, form: Linearised, curvature: float, offset: float, ridge: float = 0.0, *, steep: bool = False
) -> Concentration:
    """Hold what the mean curvature D/2 adds against the kernel's own offset and a ridge, in the kernel's own unit.

    ``steep`` says that the strong products of a steep spectrum are features. A kernel without curvature and offset is
    that of a linear network, which no norm disturbs.
    """
    limit = LIMITS.trusted_steep if steep else LIMITS.trusted
    share, entries = source.population.scale / source.p, float(source.shares @ source.T @ source.shares) / source.p
    neglected = 2.0 * abs(curvature) * (source.n * share**2 + math.sqrt(2.0 * source.n) * entries)
    spread = float((source.norm_spread / source.norms**2).max()) if neglected + offset > 1e-9 * form.unit else 0.0
    return Concentration(neglected / max(offset + ridge, 1e-300), limit, spread)
