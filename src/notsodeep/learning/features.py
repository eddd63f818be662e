"""Kernel regression as linear regression: the features whose Gram matrix the kernel is in high dimension.

Off the diagonal the kernel (``spectra/linearised.py``) is the Gram matrix of the rows (l_a x, sqrt(kappa) (r_a psi +
t_a/sqrt(p)), e_a' root(E)/sqrt(p)) of a Gaussian mixture; the last K features are constant within a class. What the
exact diagonal has in excess acts as a ridge o_a. Products x_i x_j that n points can see are features as well.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from ..equivalents import coefficients
from ..errors import InvalidInputError
from ..kernels.averages import PairAverages
from ..matching import Twin
from ..networks import Kernel, Network
from ..spectra.linearised import Linearised, by_classes, in_the_limit, nearest_semidefinite
from ..spectra.population import Array, Commuting, Population
from ..spectra.products import Concentration, concentration, is_steep, with_products
from ..spectra.sources import Source


@dataclass(frozen=True)
class Limits:
    """Tuning numbers of predicted learning."""

    mean_directions: int = 200  # directions of the means up to which rows and norms are correlated, as matrices
    lattice: int = 4096  # points of an orthant probability: an error of 1e-4 for ten classes
    drift: float = 0.2  # standard deviation of a learning curve's exponent beyond the data: set on MNIST and digits
    peak: float = 0.9  # nearness of a double-descent peak that counts as one: it is continued to some percent
    fewest: int = 16  # rows of the smallest subset of an estimate
    subsets: int = 4  # of each size, over which an estimate is averaged
    last: int = 5  # sizes of a curve through which its continuation is drawn
    turns: int = 8  # steps from a real ridge to a complex one of the same size
    contour: int = 16  # nodes of gradient flow's contour: 1 - exp(-tK) is off by at most 2e-7
    doubt: float = 0.01  # the order 1/p^2 of the relative error, above which a prediction warns


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class LongerRows:
    """The features of rows whose squared norm is one standard deviation above the mean of their class."""

    values: Array  # Joint eigenvalues, (r, K)
    plain: Array  # The same if slope and diagonal of the kernel did not move with the norm, (r, K)
    offsets: Array  # What o_a has more, (K,)


@dataclass(frozen=True, eq=False)
class LinearProblem:
    """Ridge regression on a Gaussian mixture, K classes; ``noise`` holds all covariances and all means."""

    noise: Population
    counts: Array
    p: int
    offsets: Array  # o_a, (K,): what the diagonal of the kernel adds to the ridge
    diagonal: float  # Mean of the kernel over points with themselves: the unit of the ridge
    concentration: Callable[[float], Concentration]  # The test of a ridge, in the kernel's own unit
    products: int  # Rows of the joint spectrum that are products
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
    form = by_classes(source, k, k.mean)
    grown, products = with_products(source, k, form, k.mean)
    curvature = 0.5 * float(source.shares @ k.curvature @ source.shares)
    problem = _problem(source, _without_norms(source, grown), curvature, products)
    if not isinstance(source.population, Commuting):
        return problem
    return replace(problem, longer=_longer(source, source.population, k, _without_norms(source, form), problem))


def _longer(
    source: Source, population: Commuting, k: PairAverages, form: Linearised, problem: LinearProblem
) -> LongerRows:
    noise = problem.noise.surrogate()
    assert isinstance(noise, Commuting)
    sigma, more, values = np.sqrt(source.norm_spread), k.by_norm[1], noise.values
    rows = len(population.weights)
    first = rows + isinstance(problem.noise, Commuting)  # without matrices the norm comes before the products
    linear, nonlinear = slice(rows), slice(first, first + problem.products)
    seen = form.offsets > 1e-9 * form.unit
    swell = np.where(seen, sigma * more / np.where(seen, form.offsets, 1.0), 0.0)
    plain = values.copy()
    plain[linear] *= 1.0 + 2.0 * population.values / (source.p * sigma)  # E[x_j^2 | norm]
    longer = plain.copy()
    longer[linear] *= (1.0 + sigma * form.growth) ** 2
    longer[nonlinear] *= 1.0 + swell
    return LongerRows(longer, plain, problem.offsets * swell)


def check_twin(twin: Twin, kernel: Kernel) -> None:
    """Refuse a twin that matches another kernel than the one asked for."""
    if twin.kernel != kernel:
        raise InvalidInputError(f"this twin matches kernel={twin.kernel!r}, got kernel={kernel!r}")


def limit_problem(network: Network, source: Source, kernel: Kernel) -> LinearProblem:
    """Return the linear problem of theory section 15: the four numbers of the centred network at one tau0."""
    c = coefficients(network, math.sqrt(float(source.shares @ source.norms)), kernel)
    _refuse_zero(c.diagonal, network, kernel)
    return _problem(source, in_the_limit(source, c), c.c3, None)


def _refuse_zero(unit: float, network: Network, kernel: Kernel) -> None:
    if unit <= 0.0:
        raise InvalidInputError(f"the {kernel} of {network!r} is zero: there is nothing to learn with")


def _without_norms(source: Source, form: Linearised) -> Linearised:
    """Take the diagonal of the norm feature out of the ridge."""
    return replace(form, offsets=form.offsets - form.kappa * form.variances / source.p)


def _problem(source: Source, form: Linearised, curvature: float, products: Commuting | None) -> LinearProblem:
    """Join the rows l_a x, products of them if any, the norms, and the classes, whose features have no noise."""
    noise, of_products = _rows_and_norms(source, form), np.zeros(len(source.counts))
    if products is not None:
        noise, of_products = noise.plus(products), products.weights @ products.values
    classes = _direction(noise, 0.0 * of_products, nearest_semidefinite(form.excess), 0.0)
    # rounding must not make a kernel that is all Gram matrix (a linear network) indefinite
    offsets = np.maximum(form.offsets - of_products, 1e-12 * form.unit)
    steep = products is not None and is_steep(source)
    held = float((offsets if steep else offsets + of_products.mean()).mean())
    return LinearProblem(
        noise=noise.plus(classes),
        counts=source.counts.astype(np.float64),
        p=source.p,
        offsets=offsets,
        diagonal=float(source.shares @ form.diagonal),
        concentration=functools.partial(concentration, source, form, curvature, held, steep=steep),
        products=0 if products is None else len(products.weights),
    )


def _rows_and_norms(source: Source, form: Linearised) -> Population:
    """Join the rows l(||x||^2) x and the feature of the norm, which are correlated where there are means.

    With x = (mu + w)/sqrt(p) the squared norm fluctuates by psi = psi_0 + 2 mu . w/p, where psi_0 and w are not
    correlated. So the noise of the rows is l (w + r psi mu), r = l'/l, and that of the norm sqrt(kappa p) psi.
    """
    base, p = source.population.around_means(source.p), source.p
    gains = math.sqrt(form.kappa) * form.seen
    many = base.means.shape[2] > LIMITS.mean_directions and isinstance(source.population, Commuting)
    if form.growth is None or many:
        gram = form.kappa * np.outer(form.direction, form.direction)
        norm = _direction(base, form.kappa * form.variances, gram, 1.0 / p)
        return source.population.scaled(form.factors).plus(norm)
    covariances = []
    for C, mu, slope, r, f, T in zip(
        base.covariances[:, 0], base.means[0, 0].T, form.factors, form.growth, gains, np.diag(source.T), strict=True
    ):
        through = np.vstack([slope * (np.eye(len(mu)) + 2.0 * r / p * np.outer(mu, mu)), 2.0 * f / math.sqrt(p) * mu])
        alone = np.append(slope * r / math.sqrt(p) * mu, f)
        covariances.append(through @ C @ through.T + 2.0 * T * np.outer(alone, alone))
    means = np.vstack([base.means[0, 0] * form.factors, math.sqrt(form.kappa) * form.direction])
    outside = base.outside.scaled(form.factors)
    return replace(base, covariances=np.stack(covariances)[:, None], means=means[None, None], outside=outside)


def _direction(like: Population, values: Array, gram: Array, weight: float) -> Commuting:
    return Commuting(like.ratios, values[None], np.array([weight]), gram[None])
