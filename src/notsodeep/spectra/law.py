"""The predicted spectrum of a kernel matrix in high dimension, without sampling (theory section 8).

Its matrix is noise and a part of low rank, in the limit of the theorems or at finite p.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from .._arguments import checked
from .._arrays import as_numbers
from .._words import Drawn, as_html
from ..equivalents import Coefficients, coefficients
from ..errors import ConvergenceError, InvalidInputError
from ..kernels.averages import PairAverages
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import Kernel, Network
from .bulk import NoiseLaw, noise_law
from .linearised import Linearised, by_classes, in_the_limit
from .population import LIMITS, Array, Commuting, Population
from .products import Concentration, concentration, is_steep, with_products
from .sources import Source, source_of
from .spikes import LowRankPart, Spike, isolated


@dataclass(frozen=True)
class Atom:
    """An eigenvalue with positive mass, which is the shifted zero of the Gram matrix."""

    value: float
    mass: float
    width: float = 0.0
    """Standard deviation of the eigenvalues that it stands for, by the norms of the rows; zero in the limit."""


@dataclass(frozen=True, eq=False, repr=False)
class SpectralLaw(Drawn):
    """The limiting law of the eigenvalues of a kernel matrix on n points, with its isolated eigenvalues.

    The bulk and the atom have total mass one; isolated eigenvalues are few and carry no mass.
    """

    network: Network
    """The network whose kernel has this law: the one that was given, or the centred one in the limit."""
    coefficients: Coefficients
    """Of the centred network, at the scale tau0 of the data (E||x||^2 with the class means, unless given)."""
    n: int
    p: int
    concentration: Concentration
    """Whether the data is high-dimensional enough, as a number."""
    _low_rank: LowRankPart
    _noise: NoiseLaw
    """Law of the noise Gram matrix."""

    @property
    def kernel(self) -> Kernel:
        """The kernel that the law describes."""
        return self.coefficients.kernel

    @property
    def support(self) -> list[tuple[float, float]]:
        """Intervals of the bulk, in increasing order; atoms are listed in :attr:`atoms`."""
        return [(self._low_rank.shift + b.low, self._low_rank.shift + b.high) for b in self._noise.bulks]

    @property
    def masses(self) -> list[float]:
        """Mass of each interval of the support."""
        return [b.mass for b in self._noise.bulks]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The shifted zero with its mass, when n exceeds the rank of the noise."""
        return (Atom(self._low_rank.shift, self._noise.zero, self._low_rank.width),) if self._noise.zero > 0 else ()

    def density(self, x: Any) -> Array:
        """Return the density of the bulk at x, a number or an array; atoms have none."""
        points = _points(x) - self._low_rank.shift
        return np.sum([bulk.density(points) for bulk in self._noise.bulks], axis=0)

    def cdf(self, x: Any) -> Array:
        """Return the share of eigenvalues up to x, a number or an array; atoms are included."""
        points = _points(x) - self._low_rank.shift
        parts = [bulk.cdf(points) for bulk in self._noise.bulks]
        return np.minimum(np.sum(parts, axis=0) + np.where(points >= 0.0, self._noise.zero, 0.0), 1.0)

    @cached_property
    def spikes(self) -> tuple[Spike, ...]:
        """Isolated eigenvalues in increasing order; computed on first use."""
        with _solvable():
            spikes = [spike for gap in self._noise.gaps for spike in isolated(gap, self._low_rank)]
        return tuple(sorted(spikes, key=lambda s: s.value))

    def __repr__(self) -> str:
        bulks = ", ".join(f"[{a:.4g}, {b:.4g}]" for a, b in self.support)
        atoms = "".join(f", atom {a.mass:.4g} at {a.value:.4g}" for a in self.atoms)
        return f"SpectralLaw({self.kernel}, n={self.n}, p={self.p}, support=[{bulks}]{atoms})"

    def _repr_html_(self) -> str:
        heading, *lines = self.summary().splitlines()
        return as_html(heading, [(kind, text) for kind, text in (line.split(maxsplit=1) for line in lines)])

    def summary(self) -> str:
        """Return a table of bulks, atoms and isolated eigenvalues, as text."""
        lines = [f"{self.kernel} of {self.network!r}, n = {self.n}, p = {self.p}"]
        for atom in self.atoms:
            lines.append(f"  atom    {atom.value:.6g} ± {atom.width:.1g}   mass {atom.mass:.4f}")
        for (low, high), mass in zip(self.support, self.masses, strict=True):
            lines.append(f"  bulk    [{low:.6g}, {high:.6g}]   mass {mass:.4f}")
        lines += [f"  spike   {spike}" for spike in self.spikes]
        return "\n".join(lines)


@checked
def spectral_law(
    network: Network,
    mixture: GaussianMixture | MixtureStatistics,
    n: int | None = None,
    kernel: Kernel = "ck",
    *,
    refined: bool = True,
) -> SpectralLaw:
    """Predict the eigenvalues of a network's kernel on n points of a mixture, without sampling.

    The network is used as given; :meth:`DEQ.centred` returns the centred one, as in the theorems. If the effective rank
    of the mixture is too low, a ``ConcentrationWarning`` is issued.

    Parameters
    ----------
    network : DEQ or ENN
        The network, centred or not.
    mixture : GaussianMixture or MixtureStatistics
        Source of the points; the rows of statistics give the class covariances.
    n : int, optional
        Number of points; that of the statistics unless given.
    kernel : "ck", "ntk" or "ntk_frozen"
        Which kernel.
    refined : bool
        ``True`` expands the kernel at the typical pair of each two classes, which at finite p is nearer to exact
        kernels. ``False`` is the limit, the law of :func:`notsodeep.equivalent`, of the centred network.

    Returns
    -------
    SpectralLaw
        With ``.support``, ``.density(x)``, ``.cdf(x)``, ``.atoms`` and ``.spikes``.

    Raises
    ------
    InvalidInputError
        If the kernel does not see the Gram matrix of the rows, as for even activations.
    ConvergenceError
        If covariances are so badly scaled that the equations cannot be solved.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> centred = nsd.DEQ("relu", sigma_a2=0.2).centred(tau0=1.1)
    >>> law = nsd.spectral_law(centred, nsd.GaussianMixture.two_class(1000), n=800)
    >>> [(round(a, 3), round(b, 3)) for a, b in law.support]
    [(0.09, 0.975)]
    >>> [round(s.value, 2) for s in law.spikes]
    [6.09, 6.41]
    """
    source = source_of(mixture, n)
    return law_of(source, network, coefficients(network, source.tau0, kernel), refined)


def law_of(source: Source, network: Network, four: Coefficients, refined: bool) -> SpectralLaw:
    """Solve for the law of a network on a source of points; ``four`` are its numbers."""
    noise, low_rank, test = _finite_form(source, network, four) if refined else _limit_form(source, four)
    test.report("Eigenvalues may be off by several percent; compare with a kernel matrix of sampled rows")
    with _solvable():
        bulk = noise_law(noise)
    return SpectralLaw(network if refined else four.network, four, source.n, source.p, test, low_rank, bulk)


@contextlib.contextmanager
def _solvable() -> Iterator[None]:
    """Report singular equations, which are those of covariances of hopeless scales."""
    try:
        yield
    except np.linalg.LinAlgError as error:
        raise ConvergenceError(
            f"the equations of the spectrum are singular ({error}); the covariances may be badly scaled or degenerate: "
            "check their eigenvalues"
        ) from error


def _points(x: Any) -> Array:
    points: Array = as_numbers(x, "x").detach().cpu().numpy().astype(np.float64)
    if np.isnan(points).any():
        raise InvalidInputError("expected numbers, got NaN")
    return points


# ---- the matrix whose law is computed ------------------------------------------------------------------------

Form = tuple[Population, LowRankPart, Concentration]


def _limit_form(source: Source, c: Coefficients) -> Form:
    """Build the matrix of theory section 8, that of the centred network."""
    form = in_the_limit(source, c)
    _check_seen(form, c.network, c)
    test = concentration(source, form, c.c3, float(form.offsets.mean()))
    return source.population.scaled(form.factors), _low_rank(source, form, form.offsets), test


def _finite_form(source: Source, network: Network, c: Coefficients) -> Form:
    """Build the matrix with slopes and diagonals by class, of the network as it is given.

    With more points than directions of noise, products of two features fill what would be an atom.
    """
    norms, dots = source.norms, source.mean_gram / source.p
    # slopes are those at the typical pair, the constants are averages over all pairs of two classes
    k = PairAverages(network, c.kernel, norms, dots)
    over_pairs = PairAverages(network, c.kernel, norms, dots, source.norm_spread, source.dot_spread)
    form = by_classes(source, k, over_pairs.mean, products=not _slopes_by_pair(source))
    _check_seen(form, network, c)
    held, products = float(form.offsets.mean()), None
    of_products: Array = np.zeros(len(norms))
    if source.n >= source.rank:
        grown, products = with_products(source, k, form, over_pairs.mean)
        of_products = of_products if products is None else products.weights @ products.values
        form, products = (grown, products) if of_products.max() > LIMITS.rounding * form.unit else (form, None)
    width = float(source.shares @ (np.sqrt(source.norm_spread) * np.abs(over_pairs.by_norm[1])))
    low_rank = replace(_low_rank(source, form, form.offsets - of_products), width=width)
    noise = _noise(source, form, products, form.offsets - of_products - low_rank.shift)
    curvature, steep = 0.5 * float(source.shares @ k.curvature @ source.shares), products is not None
    steep = steep and is_steep(source)
    held -= steep * float(of_products.mean())
    return noise, low_rank, concentration(source, form, curvature, held, steep=steep)


def _check_seen(form: Linearised, network: Network, c: Coefficients) -> None:
    if float(np.diag(form.slopes).max()) <= LIMITS.rounding * form.unit:
        raise InvalidInputError(
            f"the {c.kernel} of {network!r} does not see inner products (c1 = {c.c1:.3g}), so it has no bulk; its "
            "equivalent has few eigenvalues: nsd.equivalent(network, statistics).eigenvalues()"
        )


def _low_rank(source: Source, form: Linearised, offsets: Array) -> LowRankPart:
    return LowRankPart(float(source.shares @ offsets), source.counts / source.p, form)


def _slopes_by_pair(source: Source) -> bool:
    """Say whether every pair of classes has a slope of its own.

    Not with p x p matrices, and not with more points than directions of noise: there the shifted zero stays one atom.
    """
    base = source.population
    if not isinstance(base, Commuting) or source.n >= source.rank:
        return False
    rows, classes = base.values.shape
    return rows * classes**3 <= LIMITS.block_work


def _noise(source: Source, form: Linearised, products: Commuting | None, offsets: Array) -> Population:
    """Scale the blocks by class; slopes l_a l_b only rescale the covariances."""
    base, slopes, factors = source.population, form.slopes, form.factors
    if products is not None:
        # a class with more points than directions has an atom, which an offset would move away from zero
        seen = products.weights[:, None] * products.values > LIMITS.narrow * form.unit
        filled = source.counts < source.rank + source.p * (products.weights @ seen)
        return base.scaled(factors, offsets * filled.all()).plus(products)
    if source.n >= source.rank:
        offsets = 0.0 * offsets
    if not np.allclose(slopes, np.outer(factors, factors), rtol=1e-12, atol=1e-15 * float(np.diag(slopes).max())):
        assert isinstance(base, Commuting)
        return replace(base, offsets=offsets).sloped(slopes)
    return base.scaled(factors, offsets)
