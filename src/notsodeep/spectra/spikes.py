"""Isolated eigenvalues of the equivalent matrix, and what their eigenvectors know of the classes.

The matrix is c I + W W' + U B U'. An eigenvalue c + z' outside the bulk makes a small matrix N(z') singular, which
theory section 8 derives. Every eigenvalue of N increases through a gap and has at most one zero there: counting
negative ones at both ends of the gap finds all isolated eigenvalues, with multiplicity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.optimize import brentq

from .population import Array
from .realaxis import Gap, State

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
    ends = _ends(gap, low_rank)
    if ends is None:
        return []
    low, high, first, last = ends

    eigenvalues: dict[float, Array] = {}  # a state at an edge depends, by rounding, on the states before: ask once

    def branch(position: float, k: int) -> float:
        if position not in eigenvalues:
            eigenvalues[position] = _eigenvalues(low_rank, _state(gap, position), gap)
        return float(eigenvalues[position][k])

    roots = []
    for k in range(last, first):
        if branch(low, k) < 0.0 < branch(high, k):
            roots.append(brentq(branch, low, high, args=(k,), xtol=1e-13, rtol=1e-13))
    return [_record(gap, group, low_rank) for group in _grouped(sorted(roots))]


def _eigenvalues(low_rank: LowRankPart, state: State, gap: Gap) -> Array:
    """Return the eigenvalues of N in increasing order."""
    return np.linalg.eigvalsh(low_rank.matrix(state.g, gap.curve.population.at(state.g[None]).means()[0]))


def _state(gap: Gap, position: float) -> State:
    """Return the state at a position sign(u) log|u|, which increases with z: so does every eigenvalue of N."""
    sign = math.copysign(1.0, gap.inside.u)
    return gap.solve(sign * math.exp(sign * position))


def _grouped(roots: list[float]) -> list[list[float]]:
    groups: list[list[float]] = []
    for root in roots:
        if groups and root - groups[-1][-1] < 1e-8 * max(1.0, abs(root)):
            groups[-1].append(root)
        else:
            groups.append([root])
    return groups


def _ends(gap: Gap, low_rank: LowRankPart) -> tuple[float, float, int, int] | None:
    """Return positions of both ends and the negative eigenvalues of N there; None when no eigenvalue crosses zero."""
    positive = gap.inside.u > 0

    def count(u: float) -> int:
        return int((_eigenvalues(low_rank, gap.solve(u), gap) < 0).sum())

    low, high = (None if end is None else end.u for end in (gap.left, gap.right))
    tiny = 1e-7 * gap.curve.population.scale
    at_infinity = len(low_rank.ratios)  # N tends to [[0-, I], [I, negative]] plus a positive corner
    if low is None:
        low = tiny if positive else _far_end(gap, high if high is not None else -tiny, count, at_infinity)
    if high is None:
        high = _far_end(gap, low, count, at_infinity) if positive else -tiny
    first, last = count(low), count(high)
    if first <= last:
        return None
    sign = 1.0 if positive else -1.0
    return sign * math.log(abs(low)), sign * math.log(abs(high)), first, last


def _far_end(gap: Gap, u: float, count: Callable[[float], int], target: int) -> float:
    u = 2.0 * math.copysign(max(abs(u), gap.curve.population.scale), u)
    for _ in range(200):
        if count(u) == target:
            return u
        u *= 3.0
    return u


def _record(gap: Gap, roots: list[float], low_rank: LowRankPart) -> Spike:
    """Return the isolated eigenvalue at these positions, improved by one step of Newton's method."""
    state = _state(gap, float(np.mean(roots)))
    g, population = state.g, gap.curve.population
    at, ratios = population.at(g[None]), population.ratios
    slope = np.linalg.solve(np.diag(1.0 / g**2) - at.couplings()[0] * ratios, np.ones(len(g)))  # dg/dz'
    values, vectors = np.linalg.eigh(low_rank.matrix(g, at.means()[0]))
    order = np.argsort(np.abs(values))[: len(roots)]
    growth = low_rank.growth(slope, -np.tensordot(ratios * slope, at.forms()[0], axes=1))
    null = low_rank.scales(g)[:, None] * vectors[:, order]
    off = values[order] / ((growth @ null) * null).sum(axis=0)
    return low_rank.spike(state.z - float(off.mean()), null, growth)
