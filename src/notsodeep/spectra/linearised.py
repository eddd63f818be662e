"""From a kernel to a Gram matrix and a diagonal, in the limit of the theorems or at finite p.

The limit (theory sections 4 and 8) expands the kernel at one typical pair of points. At finite p, averages over the
pairs of every two classes (``kernels/averages.py``) give slopes A_ab and diagonals o_a that depend on the classes. The
eigenvalues of the result are the law, and regression on its features is how the kernel learns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..equivalents import Coefficients
from ..errors import InvalidInputError
from ..kernels.averages import NormPart, PairAverages
from .population import LIMITS, Array, Commuting, Population, Sloped
from .sources import Source
from .spikes import LowRankPart


@dataclass(frozen=True, eq=False)
class Linearised:
    """The kernel as a Gram matrix of features and a diagonal.

    For points i and j of classes a and b it is A_ab x_i . x_j + kappa (psi_i + t_a/sqrt(p)) (psi_j + t_b/sqrt(p))
    + E_ab/p, and o_a more where i = j.
    """

    own: Array  # E k(x, x), shape (K,)
    slopes: Array  # A, shape (K, K), positive semi-definite
    offsets: Array  # o, shape (K,)
    kappa: float  # Weight of the norm fluctuations; zero when the kernel does not see them
    direction: Array  # t, shape (K,)
    excess: Array  # E, shape (K, K)
    variances: Array  # v_a = p Var psi_i, shape (K,)

    @property
    def unit(self) -> float:
        """The largest diagonal."""
        return float(np.abs(self.own).max())

    @property
    def factors(self) -> Array:
        """l_a, if the slopes are products l_a l_b; classes may be seen with opposite signs."""
        factors = np.sqrt(np.diag(self.slopes))
        return factors * np.where(self.slopes[int(factors.argmax())] < 0, -1.0, 1.0)


def in_the_limit(source: Source, c: Coefficients) -> Linearised:
    """Take the four numbers of the theorems for all classes."""
    one = np.ones(len(source.counts))
    return Linearised(
        own=c.diagonal * one,
        slopes=c.c1 * np.outer(one, one),
        offsets=(c.diagonal - c.tau0**2 * c.c1) * one,
        kappa=c.c2,
        direction=source.t,
        excess=c.c3 * source.T,
        variances=2.0 * np.diag(source.T),
    )


def by_classes(
    source: Source, k: PairAverages, constants: Array, part: NormPart | None = None, *, products: bool = True
) -> Linearised:
    """Take the averages over each two classes; ``constants`` are those of the kernel itself.

    ``part`` is what moves with the norms, by default all but A_ab x . y; ``products`` asks for slopes l_a l_b.
    """
    p, shares, norms, dots = source.p, source.shares, source.norms, source.mean_gram / source.p
    part = k.whole if part is None else part
    slopes = nearest_semidefinite(k.slope)
    slopes = _nearest_product(slopes) if products else slopes
    kappa = float(shares @ part.cross @ shares)
    kappa = kappa if kappa > LIMITS.rounding * float(np.abs(k.own).max()) / float(shares @ norms) ** 2 else 0.0
    pull = math.sqrt(p) * (part.pull @ shares)  # seen by class a from the norms of all others
    direction = pull / kappa if kappa > 0 else 0.0 * pull
    return Linearised(
        own=k.own,
        slopes=slopes,
        offsets=k.own - np.diag(constants) - np.diag(slopes) * (norms - np.diag(dots)) - k.own_share,
        kappa=kappa,
        direction=direction,
        excess=p * (constants - slopes * dots) - kappa * np.outer(direction, direction),
        variances=p * source.norm_spread,
    )


def nearest_semidefinite(matrix: Array) -> Array:
    """Return the positive semi-definite matrix nearest to a symmetric one."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.clip(values, 0.0, None)) @ vectors.T


def _nearest_product(matrix: Array) -> Array:
    """Return the matrix l_a l_b nearest to a positive semi-definite one."""
    values, vectors = np.linalg.eigh(matrix)
    return values[-1] * np.outer(vectors[:, -1], vectors[:, -1])


# ---- the matrix whose law is computed: noise and what is of low rank ------------------------------------


def limit_form(source: Source, c: Coefficients) -> tuple[Population, LowRankPart]:
    """Build the matrix of theory section 8."""
    form = in_the_limit(source, c)
    _check_seen(form, c)
    return source.population.scaled(form.factors), _low_rank(source, form)


def finite_form(source: Source, c: Coefficients) -> tuple[Population, LowRankPart]:
    """Build the matrix with slopes and diagonals by class."""
    norms, dots = source.norms, source.mean_gram / source.p
    # slopes are those at the typical pair, the constants are averages over all pairs of two classes
    k = PairAverages(c.network, c.kernel, norms, dots)
    constants = PairAverages(c.network, c.kernel, norms, dots, source.norm_spread, source.dot_spread).mean
    form = by_classes(source, k, constants, products=not _has_own_slopes(source))
    _check_seen(form, c)
    part = _low_rank(source, form)
    return _noise(source, form, form.offsets - part.shift), part


def _check_seen(form: Linearised, c: Coefficients) -> None:
    if float(np.diag(form.slopes).max()) <= LIMITS.rounding * form.unit:
        raise InvalidInputError(
            f"the {c.kernel} of {c.network!r} does not see inner products (c1 = {c.c1:.3g}), so it has no bulk; its "
            "equivalent has few eigenvalues: nsd.equivalent(network, statistics).eigenvalues()"
        )


def _low_rank(source: Source, form: Linearised) -> LowRankPart:
    return LowRankPart(float(source.shares @ form.offsets), source.counts / source.p, form)


def _has_own_slopes(source: Source) -> bool:
    """Say whether every pair of classes has its own slope.

    Not with p x p matrices, and not with more points than directions of noise: there the shifted zero stays one atom.
    """
    base = source.population
    if not isinstance(base, Commuting) or source.n >= source.rank:
        return False
    rows, classes = base.values.shape
    return rows * classes**3 <= LIMITS.block_work


def _noise(source: Source, form: Linearised, offsets: Array) -> Population:
    """Scale the blocks by class; slopes l_a l_b only rescale the covariances."""
    base, slopes, factors = source.population, form.slopes, form.factors
    if source.n >= source.rank:
        offsets = 0.0 * offsets
    if not np.allclose(slopes, np.outer(factors, factors), rtol=1e-12, atol=1e-15 * float(np.diag(slopes).max())):
        assert isinstance(base, Commuting)
        return Sloped(base.ratios, replace(base, offsets=offsets), slopes)
    return base.scaled(factors, offsets)
