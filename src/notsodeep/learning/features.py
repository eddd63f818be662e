"""Kernel regression as linear regression: the features whose Gram matrix the kernel is in high dimension.

The kernel as ``spectra/linearised.py`` has it is, off the diagonal, the Gram matrix of the rows

    (l_a x,  sqrt(kappa) (psi + t_a/sqrt(p)),  e_a' root(E)/sqrt(p))

of a Gaussian mixture with p + 1 + K features. The last K of them are constant within a class; for a network that is
not centred they contain the constant feature. What the exact diagonal has in excess of that Gram matrix acts as a
ridge o_a, class by class.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from ..equivalents import coefficients
from ..errors import ConcentrationError, ConcentrationWarning, InvalidInputError, warn
from ..kernels.averages import PairAverages
from ..networks import Kernel, Network
from ..spectra.linearised import Linearised, by_classes, in_the_limit, nearest_semidefinite
from ..spectra.population import Array, Commuting, NonCommuting
from ..spectra.sources import Source


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Ridge regression on a Gaussian mixture, K classes; ``noise`` holds all covariances and all means."""

    noise: Commuting | NonCommuting
    counts: Array
    p: int
    offsets: Array
    """o_a, (K,): what the diagonal of the kernel adds to the ridge."""
    diagonal: float
    """Mean of the kernel over points with themselves: the unit of the ridge."""
    bend: float
    """D/2 of the kernel, averaged over pairs: the weight of (x . y)^2."""
    products: int = 0
    """How many features x_i x_j stand for themselves."""

    @property
    def ratios(self) -> Array:
        """n_a/p"""
        return self.counts / self.p


def linear_problem(
    network: Network,
    source: Source,
    kernel: Kernel,
    learning_rates: tuple[float, ...] | None = None,
    *,
    products: bool = True,
) -> LinearProblem:
    """The linear problem of a network as it is given, centred or not, on n points of a mixture.

    ``products`` lets the features x_i x_j that n points can learn stand for themselves, where the covariances have
    common eigenvectors; otherwise, as in the limit, (x . y)^2 is its mean over the pairs of each two classes.
    """
    norms, dots = source.norms, source.mean_gram / source.p
    k = PairAverages(network, kernel, norms, dots, source.norm_spread, source.dot_spread, learning_rates)
    _refuse_nothing(float(np.abs(k.own).max()), network, kernel)
    form = by_classes(source, k, k.mean)
    bend = 0.5 * float(source.shares @ k.curvature @ source.shares)
    squares = quadratic_features(source, bend, float(source.shares @ form.offsets)) if products else None
    if squares is None:
        return _problem(source, form, bend)
    form = by_classes(source, k, k.mean, k.flat)
    rest = replace(
        form,
        offsets=form.offsets - squares.weights @ squares.values,
        excess=form.excess - squares.mean_grams.sum(0),
    )
    return _problem(source, rest, bend, squares)


def limit_problem(network: Network, source: Source, kernel: Kernel) -> LinearProblem:
    """The linear problem of theory section 15 to the letter: the four numbers of the centred network at one tau0."""
    c = coefficients(network, math.sqrt(float(source.shares @ source.norms)), kernel)
    _refuse_nothing(c.diagonal, network, kernel)
    return _problem(source, in_the_limit(source, c), c.c3)


def _refuse_nothing(unit: float, network: Network, kernel: Kernel) -> None:
    if unit <= 0.0:
        raise InvalidInputError(f"the {kernel} of {network!r} is zero: there is nothing to learn with")


def _problem(source: Source, form: Linearised, bend: float, squares: Commuting | None = None) -> LinearProblem:
    """The rows l_a x, products of them if any, and two more joint eigenvalues: psi, one direction, and the classes."""
    noise = source.population.scaled(form.factors)
    noise = noise if squares is None else noise.plus(squares)
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
        offsets=np.maximum(form.offsets, 1e-12 * form.unit),
        diagonal=float(source.shares @ form.own),
        bend=bend,
        products=0 if squares is None else len(squares.weights),
    )


# ---- products of two features --------------------------------------------------------------------------


_NEEDED = 0.05  # strength of the strongest product, relative to the ridge, from which on products are features
# the largest eigenvalue over the mean; in flat spectra the sum of the squares is psi, which is there already
_STEEP = 4.0
_KEPT = 0.02  # of a single one
_DIRECTIONS = 160  # distinct eigenvalues whose products are looked at


def quadratic_features(source: Source, bend: float, ridge: float) -> Commuting | None:
    """The features x_i x_j of the term (x . y)^2 that n points can learn one by one; None where the limit will do.

    In the eigenvectors of the covariances sqrt(b) x_i^2 has the mean sqrt(b) c_i/p and the variance 2 b (c_i/p)^2 in a
    class with eigenvalues c_i, and sqrt(2 b) x_i x_j the mean 0 and the variance 2 b c_i c_j/p^2. Their means make up
    b T_ab/p, which is all that the limit keeps of them; with their variances the theory also holds for spectra that
    decay. All squares are kept, and the products that n points see against the ridge.
    """
    population, p = source.population, source.p
    if not isinstance(population, Commuting) or bend <= 0.0:
        return None
    gain = 2.0 * bend * source.n / (p**2 * ridge)
    pooled = population.values @ source.shares
    steep = float(pooled.max()) >= _STEEP * float(population.weights @ pooled)
    if not steep or gain * population.scale**2 < _NEEDED:
        return None
    squares = 2.0 * bend * population.values**2 / p
    grams = bend * population.weights[:, None, None] * population.values[:, :, None] * population.values[:, None, :]
    pairs, shares_of_p = _pairs(population, source.shares, p, gain)
    crossed = Commuting(
        population.ratios, 2.0 * bend / p * pairs, shares_of_p, np.zeros((len(pairs), *grams.shape[1:]))
    )
    return Commuting(population.ratios, squares, population.weights, grams).plus(crossed)


def _pairs(population: Commuting, shares: Array, p: int, gain: float) -> tuple[Array, Array]:
    """c_i c_j by class for the products of strong directions, (pairs, K), and how many there are of each, over p."""
    pooled = population.values @ shares
    order = np.argsort(-pooled, kind="stable")[:_DIRECTIONS]
    values, size, many = population.values[order], pooled[order], population.weights[order] * p
    i, j = np.triu_indices(len(order))
    count = np.where(i == j, 0.5 * many[i] * (many[i] - 1.0), many[i] * many[j])
    kept = (gain * size[i] * size[j] > _KEPT) & (count > 0.5)
    return values[i[kept]] * values[j[kept]], count[kept] / p


# ---- whether the mixture is high-dimensional enough: the test of what the theory takes as constant ---
# The equivalent replaces the term D (x . y)^2/2 of the kernel by its mean over pairs and counts the rest as ridge. For
# that, no feature x_i x_j may be learnt on its own, and the rest must be small as a matrix. The strongest feature
# belongs to the largest eigenvalue of the covariances: n points see it with the weight n D (||C||/p)^2. The random
# entries have the standard deviation D T/(sqrt(2) p), hence the norm sqrt(2 n) D T/p. Both are held against the ridge
# o_a + gamma. They vanish as p grows with n, unless the data has low effective rank, as images have.

Check = Literal["warn", "raise", "ignore"]
_WITHOUT, _WITH_PRODUCTS = 1.0, 5.0  # trusted where products x_i x_j are neglected, and where the strong ones are kept


@dataclass(frozen=True)
class Concentration:
    """The strength of what is neglected of (x . y)^2, relative to the ridge; the theory needs it small."""

    strength: float
    limit: float
    """Beyond it predictions were wrong by more than a point (docs/learning.md)."""

    @property
    def holds(self) -> bool:
        return self.strength <= self.limit

    def report(self, check: Check) -> None:
        """Warn or raise where the theory does not hold."""
        if check not in get_args(Check):
            raise InvalidInputError(f"check must be one of {get_args(Check)}, got {check!r}")
        if self.holds or check == "ignore":
            return
        message = (
            f"the mixture has too low an effective rank for this prediction: (x . y)^2 does not concentrate, what is "
            f"neglected of it is {self.strength:.3g} times the ridge (at most {self.limit:g} is trusted). Predicted "
            "accuracies may be wrong by points; use estimate_learning on data instead, a larger ridge, or an odd "
            "activation, which has no such term"
        )
        if check == "raise":
            raise ConcentrationError(message, self.strength)
        warn(message, ConcentrationWarning)


def concentration(problem: LinearProblem, source: Source, lift: float) -> Concentration:
    """The test for n points and the smallest ridge ``lift`` (of the kernel's own unit) that is asked for."""
    ridge = float(problem.offsets.mean()) + lift
    share = source.population.scale / source.p
    entries = float(source.shares @ source.T @ source.shares) / source.p
    strength = 2.0 * abs(problem.bend) / ridge * (source.n * share**2 + math.sqrt(2.0 * source.n) * entries)
    return Concentration(strength, _WITH_PRODUCTS if problem.products else _WITHOUT)
