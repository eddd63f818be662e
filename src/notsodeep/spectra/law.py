"""The predicted spectrum of a kernel matrix in high dimension, without sampling (theory section 8)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._arguments import checked
from .._arrays import as_numbers
from ..equivalents import Coefficients, coefficients
from ..errors import ConvergenceError, InvalidInputError
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import Kernel, Network
from .bulk import NoiseLaw, noise_law
from .linearised import finite_form, limit_form
from .population import Array
from .sources import source_of
from .spikes import LowRankPart, Spike, isolated, without_noise


@dataclass(frozen=True)
class Atom:
    """An eigenvalue with positive mass: the shifted zero of the Gram matrix."""

    value: float
    mass: float


@dataclass(frozen=True, eq=False, repr=False)
class SpectralLaw:
    """Limiting law of the eigenvalues of a kernel matrix on n points, with its isolated eigenvalues.

    The bulk and the atom have total mass one; isolated eigenvalues are O(1) in number and carry no mass.
    """

    coefficients: Coefficients
    """Of the centred network, at the scale tau0 of the data (E||x||^2 with the class means, unless given)."""
    n: int
    p: int
    refined: bool
    """Whether slopes and diagonals depend on the classes, as at finite p, or are those of the limit."""
    _part: LowRankPart
    _noise: NoiseLaw
    """Law of the noise Gram matrix; all of it at zero when the kernel does not see it (c1 = 0)."""

    @property
    def kernel(self) -> Kernel:
        return self.coefficients.kernel

    @property
    def _shift(self) -> float:
        return self._part.shift

    @property
    def support(self) -> list[tuple[float, float]]:
        """Intervals of the bulk, in increasing order; atoms are listed in :attr:`atoms`."""
        return [(self._shift + b.low, self._shift + b.high) for b in self._noise.bulks]

    @property
    def masses(self) -> list[float]:
        """Mass of each interval of the support."""
        return [b.mass for b in self._noise.bulks]

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """The shifted zero with its mass, when n exceeds the rank of the noise."""
        return (Atom(self._shift, self._noise.zero),) if self._noise.zero > 0 else ()

    def density(self, x: Any) -> Array:
        """Density of the bulk at x (atoms have none); same shape as x."""
        points = _points(x)
        out = np.zeros_like(points)
        for bulk in self._noise.bulks:
            out += bulk.density(points - self._shift)
        return out

    def cdf(self, x: Any) -> Array:
        """Share of eigenvalues up to x, atoms included."""
        points = _points(x)
        out = np.zeros_like(points)
        for atom in self.atoms:
            out += np.where(points >= atom.value, atom.mass, 0.0)
        for bulk in self._noise.bulks:
            out += bulk.cdf(points - self._shift)
        return np.minimum(out, 1.0)

    def quantile(self, u: Any) -> Array:
        """The smallest x with cdf(x) >= u, for 0 <= u <= 1."""
        shares = _points(u)
        if ((shares < 0) | (shares > 1)).any():
            raise InvalidInputError("quantiles are asked at shares between 0 and 1")
        out = np.full_like(shares, self._shift)
        below = 0.0 if not self.atoms else self.atoms[0].mass  # the noise is not negative: zero comes first
        last = len(self.masses) - 1
        for i, bulk in enumerate(self._noise.bulks):
            here = ((shares > below) | (below == 0.0)) & ((shares <= below + bulk.mass) | (i == last))
            out[here] = self._shift + bulk.quantile(shares[here] - below)
            below += bulk.mass
        return out

    @cached_property
    def spikes(self) -> tuple[Spike, ...]:
        """Isolated eigenvalues in increasing order; computed on first use."""
        found = [] if self._noise.bulks else without_noise(self._part)
        with _solvable():
            for gap in self._noise.gaps:
                found += isolated(gap, self._part)
        return tuple(sorted(found, key=lambda s: s.value))

    def __repr__(self) -> str:
        bulks = ", ".join(f"[{a:.4g}, {b:.4g}]" for a, b in self.support)
        atoms = "".join(f", atom {a.mass:.4g} at {a.value:.4g}" for a in self.atoms)
        return f"SpectralLaw({self.kernel}, n={self.n}, p={self.p}, support=[{bulks}]{atoms})"

    def summary(self) -> str:
        """A table of bulks, atoms and isolated eigenvalues."""
        lines = [f"{self.kernel} of {self.coefficients.network!r}, n = {self.n}, p = {self.p}"]
        for atom in self.atoms:
            lines.append(f"  atom    {atom.value:.6g}   mass {atom.mass:.4f}")
        for (low, high), mass in zip(self.support, self.masses, strict=True):
            lines.append(f"  bulk    [{low:.6g}, {high:.6g}]   mass {mass:.4f}")
        lines += [f"  spike   {spike}" for spike in self.spikes]
        return "\n".join(lines)


@checked
def spectral_law(
    network: Network,
    mixture: GaussianMixture | MixtureStatistics | Array,
    n: int | None = None,
    kernel: Kernel = "ck",
    *,
    tau0: float | None = None,
    refined: bool = True,
) -> SpectralLaw:
    """The law of the eigenvalues of a network's kernel on n points of a mixture.

    Parameters
    ----------
    network : DEQ or ENN; the law speaks of the centred network ``law.coefficients.network``
    mixture : a ``GaussianMixture``; or ``MixtureStatistics``, whose rows then give the class covariances; or the p
        eigenvalues of one covariance
    n : number of points (that of the statistics unless given)
    kernel : "ck", "ntk" or "ntk_frozen"
    tau0 : scale of the data; by default tau0^2 = E||x||^2 with the class means, which at finite p is nearer to exact
        kernels than tr C0/p
    refined : expand the kernel at the typical pair of each pair of classes (default), which at finite p is nearer to
        exact kernels and has the same limit; ``False`` gives the law of :func:`notsodeep.equivalent`, the limit itself

    >>> import notsodeep as nsd
    >>> law = nsd.spectral_law(nsd.DEQ("relu", sigma_a2=0.2), nsd.GaussianMixture.two_class(1000), n=800)
    >>> [(round(a, 3), round(b, 3)) for a, b in law.support]
    [(0.09, 0.975)]
    >>> [round(s.value, 2) for s in law.spikes]
    [6.09, 6.4]
    """
    source = source_of(mixture, n, merge=not refined)
    four = coefficients(network, source.tau0 if tau0 is None else tau0, kernel)
    population, part = (finite_form if refined else limit_form)(source, four)
    with _solvable():
        noise = NoiseLaw((), (), 1.0) if population is None else noise_law(population, int(population.ratios.argmax()))
    return SpectralLaw(four, source.n, source.p, refined, part, noise)


@contextlib.contextmanager
def _solvable() -> Iterator[None]:
    """Equations that turn out singular are those of covariances of hopeless scales."""
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
