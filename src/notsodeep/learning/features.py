"""Kernel regression as linear regression: the features whose Gram matrix the kernel is in high dimension.

Off the diagonal the kernel (``spectra/linearised.py``) is the Gram matrix of the rows (l_a x, sqrt(kappa) (psi +
t_a/sqrt(p)), e_a' root(E)/sqrt(p)) of a Gaussian mixture; the last K features are constant within a class. What the
exact diagonal has in excess acts as a ridge o_a. Products x_i x_j that n points can see are features as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..equivalents import coefficients
from ..errors import ConcentrationWarning, InvalidInputError, warn
from ..kernels.averages import PairAverages
from ..matching import Twin
from ..networks import Kernel, Network
from ..spectra.linearised import Linearised, by_classes, in_the_limit, nearest_semidefinite
from ..spectra.population import Array, Commuting, NonCommuting
from ..spectra.sources import Source


@dataclass(frozen=True)
class Limits:
    """Tuning numbers of predicted learning."""

    steep: float = 4.0  # largest eigenvalue over the mean, from which on each square x_i^2 is a feature of its own
    weakest: float = 0.02  # strength of a product in a steep spectrum, relative to the ridge, below which it is ridge
    directions: int = 160  # eigenvalues whose products are looked at: 13,000 pairs
    trusted: float = 1.0  # strength of (x . y)^2 relative to the ridge: up to it no bias beyond that of the size
    trusted_steep: float = 5.0  # the limit where the strong products of a steep spectrum are features
    norm_spread: float = 0.1  # relative variance of ||x||^2: beyond it the error is off by 5 % for odd activations too
    lattice: int = 4096  # points of an orthant probability: an error of 1e-4 for ten classes
    drift: float = 0.2  # standard deviation of a learning curve's exponent beyond the data: set on MNIST and digits
    fewest: int = 16  # rows of the smallest subset of an estimate


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class LongerRows:
    """The features of rows whose squared norm is one standard deviation above the mean of their class."""

    values: Array  # Joint eigenvalues, (r, K)
    plain: Array  # The same if slope and diagonal of the kernel did not move with the norm, (r, K)
    means: Array  # What the means are multiplied by, (r, K)
    offsets: Array  # What o_a has more, (K,)


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Ridge regression on a Gaussian mixture, K classes; ``noise`` holds all covariances and all means."""

    noise: Commuting | NonCommuting
    counts: Array
    p: int
    offsets: Array  # o_a, (K,): what the diagonal of the kernel adds to the ridge
    diagonal: float  # Mean of the kernel over points with themselves: the unit of the ridge
    neglected: float  # Strength of what (x . y)^2 adds beyond the features, times the ridge.
    trusted: float  # The largest strength at which predictions are reliable
    norm_spread: float  # Largest variance of ||x||^2 within a class, relative to its mean squared
    hidden: float = 0.0  # What the products add to the ridge in that comparison
    longer: LongerRows | None = None  # For joint spectra

    @property
    def ratios(self) -> Array:
        """The n_a/p."""
        return self.counts / self.p


def linear_problem(
    network: Network, source: Source, kernel: Kernel, learning_rates: tuple[float, ...] | None = None
) -> LinearProblem:
    """Return the linear problem of a network as it is given, centred or not, on n points of a mixture."""
    norms, dots = source.norms, source.mean_gram / source.p
    k = PairAverages(network, kernel, norms, dots, source.norm_spread, source.dot_spread, learning_rates)
    _refuse_zero(float(np.abs(k.own).max()), network, kernel)
    bend = 0.5 * float(source.shares @ k.curvature @ source.shares)
    form = _without_norms(source, by_classes(source, k, k.mean))
    if not isinstance(source.population, Commuting):
        return _problem(source, form, bend)
    problem = _with_products(source, source.population, k, form, bend)
    return replace(problem, longer=_longer(source, source.population, k, form, problem))


def _with_products(
    source: Source, population: Commuting, k: PairAverages, form: Linearised, bend: float
) -> LinearProblem:
    if bend <= 0.0:
        return _problem(source, form, bend)
    pooled = population.values @ source.shares
    if float(pooled.max()) >= LIMITS.steep * float(population.weights @ pooled):
        squares = _steep_products(source, population, bend, float(source.shares @ form.offsets))
        rest = _without_norms(source, by_classes(source, k, k.mean, k.flat))
        rest = replace(rest, excess=rest.excess - squares.mean_grams.sum(0))
        return _problem(source, rest, bend, squares, trusted=LIMITS.trusted_steep)
    return _problem(source, _with_trace(source, form, bend), bend, _flat_products(source, population, bend))


def _longer(
    source: Source, population: Commuting, k: PairAverages, form: Linearised, problem: LinearProblem
) -> LongerRows:
    assert isinstance(problem.noise, Commuting)
    sigma, (steeper, more), values = np.sqrt(source.norm_spread), k.by_norm, problem.noise.values
    linear, nonlinear = slice(len(population.weights)), slice(len(population.weights), -2)  # the last are the heads
    seen = form.offsets > 1e-9 * form.unit
    swell = np.where(seen, sigma * more / np.where(seen, form.offsets, 1.0), 0.0)
    plain, means = values.copy(), np.ones_like(values)
    plain[linear] *= 1.0 + 2.0 * population.values / (source.p * sigma)  # E[x_j^2 | norm]
    means[linear] *= 1.0 + sigma * steeper
    longer = plain * means**2
    longer[nonlinear] *= 1.0 + swell
    return LongerRows(longer, plain, means, problem.offsets * swell)


def check_twin(twin: Twin, kernel: Kernel) -> None:
    """Refuse a twin that matches another kernel than the one asked for."""
    if twin.kernel != kernel:
        raise InvalidInputError(f"this twin matches kernel={twin.kernel!r}, got kernel={kernel!r}")


def limit_problem(network: Network, source: Source, kernel: Kernel) -> LinearProblem:
    """Return the linear problem of theory section 15: the four numbers of the centred network at one tau0."""
    c = coefficients(network, math.sqrt(float(source.shares @ source.norms)), kernel)
    _refuse_zero(c.diagonal, network, kernel)
    return _problem(source, in_the_limit(source, c), c.c3)


def _refuse_zero(unit: float, network: Network, kernel: Kernel) -> None:
    if unit <= 0.0:
        raise InvalidInputError(f"the {kernel} of {network!r} is zero: there is nothing to learn with")


def _without_norms(source: Source, form: Linearised) -> Linearised:
    """Take the diagonal of the norm feature out of the ridge."""
    return replace(form, offsets=form.offsets - form.kappa * source.norm_spread)


def _problem(
    source: Source, form: Linearised, bend: float, products: Commuting | None = None, trusted: float = LIMITS.trusted
) -> LinearProblem:
    """Join the rows l_a x, products of them if any, and two more joint eigenvalues: the norms and the classes."""
    noise, own = source.population.scaled(form.factors), np.zeros(len(source.counts))
    if products is not None:
        noise, own = noise.plus(products), products.weights @ products.values
    spread = form.kappa * form.variances
    heads = Commuting(
        ratios=noise.ratios,
        values=np.stack([spread, np.zeros_like(spread)]),  # the features of the classes are without noise
        weights=np.array([1.0 / source.p, 0.0]),
        mean_grams=np.stack([form.kappa * np.outer(form.direction, form.direction), nearest_semidefinite(form.excess)]),
    )
    return LinearProblem(
        noise=noise.plus(heads),
        counts=source.counts.astype(np.float64),
        p=source.p,
        # rounding must not make a kernel that is all Gram matrix (a linear network) indefinite
        offsets=np.maximum(form.offsets - own, 1e-12 * form.unit),
        diagonal=float(source.shares @ form.own),
        neglected=_neglected(source, bend),
        trusted=trusted,
        norm_spread=float((source.norm_spread / source.norms**2).max()),
        hidden=0.0 if trusted == LIMITS.trusted_steep else float(own.mean()),
    )


# ---- products of two features --------------------------------------------------------------------------
# docs/learning.md has their means and variances. In a flat spectrum the sum of squares is the squared norm, which is
# a feature already: it gets b/p more weight, and the other products have no means. In a steep spectrum the strong
# squares tell the classes one by one.


def _flat_products(source: Source, population: Commuting, bend: float) -> Commuting:
    """Return all products but the sum of the squares; near eigenvalues are one where there are many."""
    order = np.argsort(population.values @ source.shares, kind="stable")
    groups = np.array_split(order, min(len(order), LIMITS.directions))
    many = np.array([population.weights[g].sum() for g in groups]) * source.p
    values = np.stack([population.weights[g] @ population.values[g] / population.weights[g].sum() for g in groups])
    i, j = np.triu_indices(len(groups))
    count = np.where(i == j, 0.5 * many[i] * (many[i] + 1.0), many[i] * many[j])
    count *= 1.0 - 1.0 / count.sum()
    return _zero_mean(population, 2.0 * bend / source.p * values[i] * values[j], count / source.p)


def _with_trace(source: Source, form: Linearised, bend: float) -> Linearised:
    """Give the norm feature the weight b/p of the sum of the squares, b (||x||^2 ||y||^2)/p."""
    extra = bend / source.p
    kappa = form.kappa + extra
    direction = (form.kappa * form.direction + extra * math.sqrt(source.p) * source.norms) / kappa
    before, after = (k * np.outer(t, t) for k, t in ((form.kappa, form.direction), (kappa, direction)))
    excess = form.excess + before - after
    offsets = form.offsets - extra * source.norm_spread
    return replace(form, kappa=kappa, direction=direction, excess=excess, offsets=offsets)


def _steep_products(source: Source, population: Commuting, bend: float, ridge: float) -> Commuting:
    """Return all squares, with their means, and the products that n points see against the ridge."""
    p, pooled = source.p, population.values @ source.shares
    squares = 2.0 * bend * population.values**2 / p
    grams = bend * population.weights[:, None, None] * population.values[:, :, None] * population.values[:, None, :]
    order = np.argsort(-pooled, kind="stable")[: LIMITS.directions]
    values, size, many = population.values[order], pooled[order], population.weights[order] * p
    i, j = np.triu_indices(len(order))
    count = np.where(i == j, 0.5 * many[i] * (many[i] - 1.0), many[i] * many[j])
    strong = (2.0 * bend * source.n / (p**2 * ridge) * size[i] * size[j] > LIMITS.weakest) & (count > 0.5)
    products = _zero_mean(population, 2.0 * bend / p * (values[i] * values[j])[strong], count[strong] / p)
    return Commuting(population.ratios, squares, population.weights, grams).plus(products)


def _zero_mean(population: Commuting, values: Array, weights: Array) -> Commuting:
    return Commuting(population.ratios, values, weights, np.zeros((len(values), *population.mean_grams.shape[1:])))


# ---- whether the mixture is high-dimensional enough ------------------------------------------------------
# n points see the strongest product x_i x_j with the weight n D (||C||/p)^2, and the random entries of D (x . y)^2/2
# have the norm sqrt(2 n) D T/p. Both are held against the ridge o_a + gamma; with a low effective rank they stay.


@dataclass(frozen=True)
class Concentration:
    """Whether norms and inner products of the data concentrate, as predictions need it."""

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

    def report(self) -> None:
        """Warn where the prediction is not reliable."""
        if not self.holds:
            warn(
                "the mixture has too low an effective rank for this prediction: the strength of (x . y)^2 is "
                f"{self.strength:.3g} times the ridge (at most {self.limit:g} is trusted), and the relative variance "
                f"of ||x||^2 is {self.norm_spread:.2g} (at most {LIMITS.norm_spread:g}). Errors may be off by "
                "several percent and accuracies by points; use estimate_learning on data instead, or a larger ridge",
                ConcentrationWarning,
            )


def _neglected(source: Source, bend: float) -> float:
    share = source.population.scale / source.p
    entries = float(source.shares @ source.T @ source.shares) / source.p
    return 2.0 * abs(bend) * (source.n * share**2 + math.sqrt(2.0 * source.n) * entries)


def concentration(problem: LinearProblem, ridge: float) -> Concentration:
    """Test the smallest ridge, in the kernel's own unit, that is asked for."""
    total = float(problem.offsets.mean()) + problem.hidden + ridge
    return Concentration(problem.neglected / total, problem.trusted, problem.norm_spread)
