"""From a kernel to the matrix whose law is computed: the limit of the theorems, or the same at finite p.

The limit (theory sections 4 and 8) expands the kernel at one typical pair of points, orthogonal and of norm tau0. At
finite p classes differ: norms by t_a/sqrt(p), inner products by mu_a . mu_b/p. Averages over the pairs of every two
classes instead (``kernels/averages.py``) have the same limit, and keep slopes A_ab and diagonals o_a that depend on the
classes.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..equivalents import Coefficients
from ..kernels.averages import PairAverages
from .population import Array, Commuting, Population, Sloped
from .sources import Source
from .spikes import LowRankPart

_LARGEST = 40_000  # joint eigenvalues times classes^3 up to which blocks keep their own slopes


def limit_form(source: Source, c: Coefficients) -> tuple[Population | None, LowRankPart]:
    """The matrix of theory section 8."""
    ratios, shift = source.counts / source.p, c.diagonal - c.tau0**2 * c.c1
    scale = c.c1 if c.c1 > 0 else 1.0
    part = LowRankPart(
        scale, shift, ratios, source.group, c.c3 / scale * source.T, source.t, c.c2 / scale, 2.0 * np.diag(source.T)
    )
    return (source.population if c.c1 > 0 else None), part


def finite_form(source: Source, c: Coefficients) -> tuple[Population | None, LowRankPart]:
    """The matrix with slopes and diagonals by class."""
    p, shares = source.p, source.counts / source.counts.sum()
    norms, dots = source.norms, source.mean_gram / p
    # slopes are those at the typical pair, the constants are averages over all pairs of two classes
    k = PairAverages(c.network, c.kernel, norms, dots)
    constants = PairAverages(c.network, c.kernel, norms, dots, source.norm_spread, source.dot_spread).mean
    slopes = nearest_semidefinite(k.slope)
    if float(np.diag(slopes).max()) <= 1e-12 * float(np.abs(k.own).max()):
        return limit_form(source, c)
    if not _affords_blocks(source, slopes):
        slopes = nearest_product(slopes)
    offsets = k.own - np.diag(constants) - np.diag(slopes) * (norms - np.diag(dots))
    kappa = float(shares @ k.whole.cross @ shares)
    kappa = kappa if kappa > 1e-12 * float(np.abs(k.own).max()) / float(shares @ norms) ** 2 else 0.0  # rounding
    pull = math.sqrt(p) * (k.whole.pull @ shares)  # seen by class a from the norms of all others
    excess = p * (constants - slopes * dots) - (np.outer(pull, pull) / kappa if kappa > 0 else 0.0)
    shift = float(shares @ offsets)
    population = _sloped(source, slopes, offsets - shift)
    part = LowRankPart(
        1.0,
        shift,
        source.counts / p,
        source.group,
        excess,
        pull / kappa if kappa > 0 else 0.0 * pull,
        kappa,
        p * source.norm_spread,
    )
    return population, part


def nearest_semidefinite(matrix: Array) -> Array:
    """The nearest positive semi-definite matrix to a symmetric one."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.clip(values, 0.0, None)) @ vectors.T


def _affords_blocks(source: Source, slopes: Array) -> bool:
    """Whether every pair of classes keeps its own slope.

    Not with p x p matrices, and not with more points than directions of noise: there the shifted zero stays one atom.
    """
    base = source.population
    if not isinstance(base, Commuting) or source.n >= source.rank:
        return False
    rows, classes = base.values.shape
    return rows * classes**3 <= _LARGEST


def nearest_product(matrix: Array) -> Array:
    """The nearest matrix l_a l_b to a positive semi-definite one."""
    values, vectors = np.linalg.eigh(matrix)
    return values[-1] * np.outer(vectors[:, -1], vectors[:, -1])


def _sloped(source: Source, slopes: Array, offsets: Array) -> Population:
    """Blocks scaled by class; slopes l_a l_b only rescale the covariances."""
    base = source.population
    if source.n >= source.rank:
        offsets = 0.0 * offsets
    factor = np.sqrt(np.diag(slopes))
    factor *= np.where(slopes[int(factor.argmax())] < 0, -1.0, 1.0)  # classes that the kernel sees with opposite signs
    if not np.allclose(slopes, np.outer(factor, factor), rtol=1e-12, atol=1e-15 * float(np.diag(slopes).max())):
        assert isinstance(base, Commuting)
        return Sloped(base.ratios, replace(base, offsets=offsets), slopes)
    return base.scaled(factor, offsets)
