"""From a kernel to a Gram matrix and a diagonal, in the limit of the theorems or at finite p.

The limit (theory sections 4 and 8) expands the kernel at one typical pair of points. At finite p, averages over the
pairs of every two classes (``kernels/averages.py``) give slopes A_ab and diagonals o_a that depend on the classes. The
eigenvalues of the result are the law, and regression on its features is how the kernel learns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..equivalents import Coefficients
from ..kernels.averages import NormPart, PairAverages
from .population import LIMITS, Array
from .sources import Source


@dataclass(frozen=True, eq=False)
class Linearised:
    """The kernel as a Gram matrix of features and a diagonal.

    For points i and j of classes a and b it is A_ab x_i . x_j + kappa (r_a psi_i + t_a/sqrt(p)) (r_b psi_j +
    t_b/sqrt(p)) + E_ab/p, and o_a more where i = j. In the limit all r_a are one.
    """

    diagonal: Array  # E k(x, x), shape (K,)
    slopes: Array  # A, shape (K, K), positive semi-definite
    offsets: Array  # o, shape (K,)
    kappa: float  # Weight of the norm fluctuations; zero when the kernel does not see them
    direction: Array  # t, shape (K,)
    excess: Array  # E, shape (K, K)
    seen: Array  # r, shape (K,): how strongly a class shows its norms
    leftover: Array  # What the slopes of a class have beyond products l_a l_b, shape (K,)
    growth: Array | None  # How the root of the slope grows with the squared norm, in logarithms, (K,); None: not at all
    spread: Array  # p Var psi_i, shape (K,)

    @property
    def variances(self) -> Array:
        """v_a = p Var(r_a psi_i), (K,)."""
        return self.spread * self.seen**2

    @property
    def unit(self) -> float:
        """The largest diagonal."""
        return float(np.abs(self.diagonal).max())

    @property
    def factors(self) -> Array:
        """l_a, if the slopes are products l_a l_b; classes may be seen with opposite signs."""
        factors = np.sqrt(np.diag(self.slopes))
        return factors * np.where(self.slopes[int(factors.argmax())] < 0, -1.0, 1.0)


def in_the_limit(source: Source, c: Coefficients) -> Linearised:
    """Take the four numbers of the theorems for all classes."""
    one = np.ones(len(source.counts))
    return Linearised(
        diagonal=c.diagonal * one,
        slopes=c.c1 * np.outer(one, one),
        offsets=(c.diagonal - c.tau0**2 * c.c1) * one,
        kappa=c.c2,
        direction=source.t,
        excess=c.c3 * source.T,
        seen=one,
        leftover=0.0 * one,
        growth=None,
        spread=2.0 * np.diag(source.T),
    )


def by_classes(
    source: Source, k: PairAverages, constants: Array, norm_part: NormPart | None = None, *, products: bool = True
) -> Linearised:
    """Take the averages over each two classes; ``constants`` are those of the kernel itself.

    ``norm_part`` is what moves with the norms, by default all but A_ab x . y; ``products`` asks for slopes l_a l_b.
    """
    p, shares, norms, dots = source.p, source.shares, source.norms, source.mean_gram / source.p
    norm_part = k.whole if norm_part is None else norm_part
    nearest = nearest_semidefinite(k.slope)
    slopes = np.outer(factors := product_factors(nearest), factors) if products else nearest
    kappa, seen, direction = norm_feature(norm_part.cross, norm_part.pull, shares)
    if kappa <= LIMITS.rounding * float(np.abs(k.own).max()) / float(shares @ norms) ** 2:
        kappa, direction = 0.0, 0.0 * direction
    direction = math.sqrt(p) * direction
    return Linearised(
        diagonal=k.own,
        slopes=slopes,
        offsets=k.own - np.diag(constants) - np.diag(slopes) * (norms - np.diag(dots)) - k.own_share,
        kappa=kappa,
        direction=direction,
        excess=p * (constants - slopes * dots) - kappa * np.outer(direction, direction),
        seen=seen,
        leftover=np.diag(nearest - slopes),
        growth=k.by_norm[0],
        spread=p * source.norm_spread,
    )


def norm_feature(cross: Array, pull: Array, shares: Array) -> tuple[float, Array, Array]:
    """Return kappa, r_a and h_a such that kappa r_a r_b is near ``cross``, and kappa h_a r_b near ``pull``, (K, K)."""
    gains = product_factors(nearest_semidefinite(cross))
    kappa = float(shares @ gains**2)
    seen = gains / math.sqrt(kappa) if kappa > 0 else np.ones_like(gains)
    return kappa, seen, pull @ (shares * seen) / (kappa if kappa > 0 else 1.0)


def product_factors(matrix: Array) -> Array:
    """Return l with l_a l_b nearest to a positive semi-definite matrix; most of l is positive."""
    values, vectors = np.linalg.eigh(matrix)
    factors = math.sqrt(max(values[-1], 0.0)) * vectors[:, -1]
    return factors if factors.sum() >= 0 else -factors


def nearest_semidefinite(matrix: Array) -> Array:
    """Return the positive semi-definite matrix nearest to a symmetric one."""
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    return (vectors * np.clip(values, 0.0, None)) @ vectors.T
