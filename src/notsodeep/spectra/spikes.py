"""Isolated eigenvalues of the equivalent matrix, and what their eigenvectors know of the classes.

The matrix is c I + W W' + U B U'. An eigenvalue c + z' outside the bulk makes a small matrix N(z') singular, which
theory section 8 derives. Every eigenvalue of N increases through a gap and has at most one zero there: counting
negative ones at both ends of the gap finds all isolated eigenvalues, with multiplicity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import brentq

from .population import Array
from .realaxis import Gap

if TYPE_CHECKING:
    from .linearised import Linearised


@dataclass(frozen=True)
class Spike:
    """One isolated eigenvalue, with what its eigenvectors know of the classes."""

    value: float
    multiplicity: int
    alignments: tuple[float, ...]
    """Squared projection of each class indicator j_a/sqrt(n_a) on the eigenspace, between 0 and 1."""
    norm_alignment: float
    """Squared projection of the direction psi of the norm fluctuations."""

    @property
    def class_alignment(self) -> float:
        """Share of the eigenspace that lies in the span of the class indicators: 1 means pure class structure."""
        return sum(self.alignments) / self.multiplicity

    def __str__(self) -> str:
        classes = ", ".join(f"{a:.3f}" for a in self.alignments)
        times = f" (x{self.multiplicity})" if self.multiplicity > 1 else ""
        return f"{self.value:.6g}{times}: classes [{classes}], norms {self.norm_alignment:.3f}"


@dataclass(frozen=True, eq=False)
class LowRankPart:
    """What the kernel matrix adds to the noise Gram matrix, in the coordinate z'."""

    shift: float  # c
    ratios: Array  # n_a/p of the L classes
    form: Linearised  # with E, t, kappa and v of the L classes
    width: float = 0.0  # Standard deviation of c by the norms of the rows

    def scales(self, g: Array) -> Array:
        """Return D with D N D free of units: the blocks of N are of the order of g, 1 and 1/g."""
        root = np.sqrt(np.abs(g))
        return np.concatenate([1.0 / root, root, [1.0] if self.form.kappa > 0 else []])

    def matrix(self, g: Array, form: Array) -> Array:
        """Return D N D at a real solution g of the bulk, with form = M'RM: singular where N is, with the same signs.

        The last row and column of N are multiplied by sqrt(kappa); where kappa is zero there are none.
        """
        weight = 1.0 + self.form.kappa * float((self.ratios * self.form.variances) @ g)
        side = -math.sqrt(max(self.form.kappa, 0.0)) * self.form.direction
        N = self._bordered(np.diag(self.ratios * g), np.eye(len(g)), -self.form.excess - form, side, weight)
        scales = self.scales(g)
        return scales[:, None] * N * scales

    def growth(self, g_slope: Array, form_slope: Array) -> Array:
        """Return the derivative of N with respect to z'."""
        weight = self.form.kappa * float((self.ratios * self.form.variances) @ g_slope)
        nothing = np.zeros_like(form_slope)
        return self._bordered(np.diag(self.ratios * g_slope), nothing, -form_slope, nothing[0], weight)

    def _bordered(self, first: Array, cross: Array, second: Array, side: Array, weight: float) -> Array:
        empty = np.zeros((len(side), 1))
        whole = np.block([[first, cross, empty], [cross, second, side[:, None]], [empty.T, side[None], weight]])
        return whole if self.form.kappa > 0 else whole[:-1, :-1]

    def spike(self, z: float, vectors: Array, growth: Array) -> Spike:
        """Return the record of the eigenspace spanned by U-coefficients ``vectors``."""
        classes = len(self.ratios)
        gram = vectors.T @ growth @ vectors
        basis = vectors @ np.linalg.inv(np.linalg.cholesky(gram)).T  # orthonormal eigenvectors u
        second = basis[classes : 2 * classes]
        alignments = (second**2).sum(axis=1) / self.ratios
        norms = 0.0
        if self.form.kappa > 0:
            along = -self.form.direction @ second + basis[-1] / math.sqrt(self.form.kappa)
            norms = float((along**2).sum() / (self.ratios @ self.form.variances))
        return Spike(self.shift + z, vectors.shape[1], tuple(float(a) for a in alignments), norms)


def isolated(gap: Gap, low_rank: LowRankPart) -> list[Spike]:
    """Find all isolated eigenvalues in one gap of the bulk: one for every branch that crosses zero."""
    eigenvalues: dict[float, Array] = {}  # a state depends, by rounding, on the states before: ask once

    def branches(z: float) -> Array:
        """Return the eigenvalues of N at z in increasing order."""
        if z not in eigenvalues:
            g = gap.solve(z).g
            form = gap.population.at(g[None]).means()[0]
            eigenvalues[z] = np.linalg.eigvalsh(low_rank.matrix(g, form))
        return eigenvalues[z]

    def count(z: float) -> int:
        return int((branches(z) < 0).sum())

    low, high = _ends(gap, count, len(low_rank.ratios))
    roots: Any = []
    for k in range(count(high), count(low)):
        if branches(low)[k] < 0.0 < branches(high)[k]:
            roots.append(brentq(lambda z, k: float(branches(z)[k]), low, high, (k,), 1e-300, 1e-13, 1000))
    roots = np.sort(roots)
    apart = np.flatnonzero(np.diff(roots) >= 1e-8 * np.abs(roots[1:])) + 1
    return [_record(gap, equal, low_rank) for equal in np.split(roots, apart) if len(equal)]


def _ends(gap: Gap, count: Callable[[float], int], at_infinity: int) -> tuple[float, float]:
    """Return where to look: beside the edges, beside an atom at zero, and beyond all eigenvalues.

    At infinity N tends to [[0-, I], [I, negative]] plus a positive corner.
    """
    (low, high), tiny = (state.z for state in gap.ends), 1e-7 * gap.population.scale
    if gap.low == 0.0:
        low = min(tiny, 0.01 * gap.high)
    if gap.high == 0.0:
        high = -tiny
    for _ in range(200):
        if gap.low == -math.inf and count(low) != at_infinity:
            low = 3.0 * min(low, -gap.population.scale)
        elif gap.high == math.inf and count(high) != at_infinity:
            high = 3.0 * max(high, gap.population.scale)
        else:
            break
    return low, high


def _record(gap: Gap, roots: Array, low_rank: LowRankPart) -> Spike:
    """Return the isolated eigenvalue at these positions, improved by one step of Newton's method."""
    state, population = gap.solve(float(np.mean(roots))), gap.population
    g = state.g
    at, ratios = population.at(g[None]), population.ratios
    values, vectors = np.linalg.eigh(low_rank.matrix(g, at.means()[0]))
    order = np.argsort(np.abs(values))[: len(roots)]
    growth = low_rank.growth(state.slope, -np.tensordot(ratios * state.slope, at.forms()[0], axes=1))
    null = low_rank.scales(g)[:, None] * vectors[:, order]
    off = values[order] / ((growth @ null) * null).sum(axis=0)
    return low_rank.spike(state.z - float(off.mean()), null, growth)
