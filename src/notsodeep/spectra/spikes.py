"""Isolated eigenvalues of the equivalent matrix, and what their eigenvectors know of the classes.

The equivalent is c I + alpha1 W W' + U B U' with U = [J/sqrt(p), W M, psi] (theory section 8), and B is invertible. An
eigenvalue z outside the bulk has an eigenvector u = -Q(z) U y, where y solves (B^(-1) + H(z)) y = 0, H = U' Q U. Times
alpha1, with z' = (z - c)/alpha1, that symmetric matrix is

    N(z') = [[diag(c_a g_a), I, 0], [I, -(alpha3/alpha1) T - M'RM, -t], [0, -t', alpha1/alpha2 + sum_a 2 c_a g_a T_aa]].

H increases with z, so every eigenvalue of N increases through a gap and has at most one zero there: counting negative
eigenvalues at both ends finds all isolated eigenvalues, with multiplicity. Since U'u = B^(-1) y and ||u||^2 = y' H'(z) y,
the squared projection of u/||u|| on the indicator j_a/sqrt(n_a) is y_{2a}^2 / (c_a y' (alpha1 H)'(z') y).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import BarycentricInterpolator
from scipy.optimize import brentq

from .population import Array, Commuting
from .realaxis import Gap

__all__ = ["LowRankPart", "Spike", "isolated", "without_noise"]

_DENSE_NODES = 18


@dataclass(frozen=True)
class Spike:
    """One isolated eigenvalue."""

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
    """What the equivalent adds to the noise Gram matrix, in the coordinate z'."""

    c1: float
    c2: float
    c3: float
    shift: float
    ratios: Array
    """n_a/p of the L classes."""
    group: Array
    """Index of each class among the distinct covariances of the bulk."""
    t: Array
    T: Array

    @property
    def _norms(self) -> Array:
        """Class weights of psi' Q psi."""
        return 2.0 * self.ratios * np.diag(self.T)

    def matrix(self, g: Array, form: Array) -> Array:
        """N at a real solution g of the bulk, with form = M'RM."""
        classes = len(self.ratios)
        own = g[self.group]
        size = 2 * classes + (self.c2 > 0)
        out = np.zeros((size, size))
        first, second = slice(0, classes), slice(classes, 2 * classes)
        out[first, first] = np.diag(self.ratios * own)
        out[first, second] = out[second, first] = np.eye(classes)
        out[second, second] = -self.c3 / self.c1 * self.T - form
        if self.c2 > 0:
            out[second, -1] = out[-1, second] = -self.t
            out[-1, -1] = self.c1 / self.c2 + self._norms @ own
        return out

    def growth(self, g_slope: Array, form_slope: Array) -> Array:
        """Derivative of N with respect to z'."""
        own = g_slope[self.group]
        blocks = [np.diag(self.ratios * own), -form_slope]
        size = 2 * len(own) + (self.c2 > 0)
        out = np.zeros((size, size))
        out[: len(own), : len(own)], out[len(own) : 2 * len(own), len(own) : 2 * len(own)] = blocks
        if self.c2 > 0:
            out[-1, -1] = self._norms @ own
        return out

    def spike(self, z: float, vectors: Array, growth: Array) -> Spike:
        """The record of the eigenspace spanned by U-coefficients ``vectors``."""
        classes = len(self.ratios)
        gram = vectors.T @ growth @ vectors
        basis = vectors @ np.linalg.inv(np.linalg.cholesky(gram)).T  # orthonormal eigenvectors u
        second = basis[classes : 2 * classes]
        alignments = (second**2).sum(axis=1) / self.ratios
        norms = 0.0
        if self.c2 > 0:
            along = -self.t @ second + self.c1 / self.c2 * basis[-1]
            norms = float((along**2).sum() / self._norms.sum())
        value = self.shift + self.c1 * z
        return Spike(value, vectors.shape[1], tuple(float(a) for a in alignments), norms)


Track = Callable[[float], tuple[Array, float, Array]]
"""From log|u| to (g, z', M'RM) in one gap."""


def isolated(gap: Gap, part: LowRankPart) -> list[Spike]:
    """All isolated eigenvalues of the equivalent in one gap of the bulk."""
    ends = _ends(gap, part)
    if ends is None:
        return []
    low, high, first, last = ends
    track = _track(gap, low, high)
    sign = 1.0 if gap.inside.u > 0 else -1.0

    def branch(position: float, k: int) -> float:
        g, _, form = track(sign * position)
        return float(np.linalg.eigvalsh(part.matrix(g, form))[k])

    # positions sign * log|u| increase with z, so that every branch increases
    roots = []
    for k in range(last, first):
        if branch(low, k) < 0.0 < branch(high, k):
            roots.append(brentq(branch, low, high, args=(k,), xtol=1e-13, rtol=1e-13))
    return [_record(track, sign, group, part) for group in _grouped(sorted(roots))]


def _grouped(roots: list[float]) -> list[list[float]]:
    groups: list[list[float]] = []
    for root in roots:
        if groups and root - groups[-1][-1] < 1e-8 * max(1.0, abs(root)):
            groups[-1].append(root)
        else:
            groups.append([root])
    return groups


def _ends(gap: Gap, part: LowRankPart) -> tuple[float, float, int, int] | None:
    """Positions of both ends and the negative eigenvalues of N there; None when no eigenvalue crosses zero."""
    positive = gap.inside.u > 0

    def count(u: float) -> int:
        state = gap.solve(u)
        form = gap.curve.population.mean_form(state.g)
        return int((np.linalg.eigvalsh(part.matrix(state.g, form)) < 0).sum())

    low = gap.left.u if gap.left is not None else None
    high = gap.right.u if gap.right is not None else None
    tiny = 1e-7 * gap.curve.population.scale
    at_infinity = len(part.ratios)  # N tends to [[0-, I], [I, negative]] plus a positive corner
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
    for _ in range(60):
        if count(u) == target:
            return u
        u *= 3.0
    return u


def _track(gap: Gap, low: float, high: float) -> Track:
    """Exact for commuting covariances; for dense ones interpolated, because every exact state costs inverses."""
    sign = math.copysign(1.0, gap.inside.u)
    population = gap.curve.population

    def exact(log_u: float) -> tuple[Array, float, Array]:
        state = gap.solve(sign * math.exp(log_u))
        return state.g, state.z, population.mean_form(state.g)

    if isinstance(population, Commuting):
        return exact
    angles = (np.arange(_DENSE_NODES) + 0.5) * np.pi / _DENSE_NODES
    positions = 0.5 * (low + high) - 0.5 * (high - low) * np.cos(angles)
    samples = [exact(sign * position) for position in positions]
    stacked = np.stack([np.concatenate([g, [z], form.ravel()]) for g, z, form in samples])
    inner = BarycentricInterpolator(sign * positions, stacked)
    groups, classes = len(samples[0][0]), samples[0][2].shape[0]

    def interpolated(log_u: float) -> tuple[Array, float, Array]:
        row = inner(log_u)
        return row[:groups], float(row[groups]), row[groups + 1 :].reshape(classes, classes)

    return interpolated


def _record(track: Track, sign: float, roots: list[float], part: LowRankPart) -> Spike:
    position = sign * float(np.mean(roots))
    g, z, form = track(position)
    values, vectors = np.linalg.eigh(part.matrix(g, form))
    order = np.argsort(np.abs(values))[: len(roots)]
    step = 1e-5
    (g0, z0, form0), (g1, z1, form1) = track(position - step), track(position + step)
    growth = part.growth((g1 - g0) / (z1 - z0), (form1 - form0) / (z1 - z0))
    return part.spike(z, vectors[:, order], growth)


def without_noise(part: LowRankPart) -> list[Spike]:
    """The case alpha1 = 0: the equivalent is c I plus a matrix of rank at most L + 1."""
    root = np.sqrt(np.append(part.ratios, part._norms.sum()))  # U'U for U = [J/sqrt(p), psi]
    corner = np.append(part.t, 1.0)
    inner = part.c2 * np.outer(corner, corner)
    inner[:-1, :-1] += part.c3 * part.T
    values, vectors = np.linalg.eigh(root[:, None] * inner * root)
    out = []
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value) > 1e-12 * max(1.0, float(np.abs(values).max())):
            squares = vector**2
            out.append(Spike(part.shift + float(value), 1, tuple(squares[:-1].tolist()), float(squares[-1])))
    return out
