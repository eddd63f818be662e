"""Isolated eigenvalues of the equivalent matrix, and what their eigenvectors know of the classes.

The matrix is c I + W W' + U B U' with U = [J/sqrt(p), W M, psi] and B = [[M'M + E + kappa t t', I, kappa t],
[I, 0, 0], [kappa t', 0, kappa]], which is invertible; in theory section 8, W and M belong to the rows sqrt(alpha1) x,
E = alpha3 T and kappa = alpha2. An eigenvalue z = c + z' outside the bulk has an eigenvector u = -Q(z') U y, where y
solves (B^(-1) + H(z')) y = 0 and H = U' Q U. That symmetric matrix is

    N(z') = [[diag(c_a g_a), I, 0], [I, -E - M'RM, -t], [0, -t', 1/kappa + sum_a c_a g_a v_a]],  v_a = p Var psi_i.

H increases with z', so every eigenvalue of N increases through a gap and has at most one zero there: counting negative
eigenvalues at both ends finds all isolated eigenvalues, with multiplicity. Since U'u = B^(-1) y and ||u||^2 =
y' H'(z') y, the squared projection of u/||u|| on the indicator j_a/sqrt(n_a) is y_{2a}^2 / (c_a y' H'(z') y).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from .population import Array
from .realaxis import Gap, State


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

    shift: float
    """c"""
    ratios: Array
    """n_a/p of the L classes."""
    excess: Array
    """E, shape (L, L)."""
    direction: Array
    """t, shape (L,)."""
    kappa: float
    """Weight of the norm fluctuations; zero when the kernel does not see them."""
    variances: Array
    """v_a = p Var psi_i, shape (L,)."""

    def scales(self, g: Array) -> Array:
        """D with D N D free of units: the blocks of N are of the order of g, 1 and 1/g."""
        root = np.sqrt(np.abs(g))
        return np.concatenate([1.0 / root, root, [math.sqrt(self.kappa)] if self.kappa > 0 else []])

    def matrix(self, g: Array, form: Array) -> Array:
        """D N D at a real solution g of the bulk, with form = M'RM; it is singular where N is, with the same signs."""
        own = g
        weight = float((self.ratios * self.variances) @ own)
        corner = np.array([[1.0 / self.kappa + weight]]) if self.kappa > 0 else None
        N = self._blocks(np.diag(self.ratios * own), np.eye(len(own)), -self.excess - form, -self.direction, corner)
        scales = self.scales(g)
        return scales[:, None] * N * scales

    def growth(self, g_slope: Array, form_slope: Array) -> Array:
        """Derivative of N with respect to z'."""
        own = g_slope
        corner = np.array([[(self.ratios * self.variances) @ own]]) if self.kappa > 0 else None
        nothing = np.zeros((len(own), len(own)))
        return self._blocks(np.diag(self.ratios * own), nothing, -form_slope, nothing[0], corner)

    @staticmethod
    def _blocks(first: Array, cross: Array, second: Array, side: Array, corner: Array | None) -> Array:
        if corner is None:
            return np.block([[first, cross], [cross, second]])
        empty = np.zeros((len(side), 1))
        rows = [[first, cross, empty], [cross, second, side[:, None]], [empty.T, side[None], corner]]
        return np.block(rows)

    def spike(self, z: float, vectors: Array, growth: Array) -> Spike:
        """The record of the eigenspace spanned by U-coefficients ``vectors``."""
        classes = len(self.ratios)
        gram = vectors.T @ growth @ vectors
        basis = vectors @ np.linalg.inv(np.linalg.cholesky(gram)).T  # orthonormal eigenvectors u
        second = basis[classes : 2 * classes]
        alignments = (second**2).sum(axis=1) / self.ratios
        norms = 0.0
        if self.kappa > 0:
            along = -self.direction @ second + basis[-1] / self.kappa
            norms = float((along**2).sum() / (self.ratios @ self.variances))
        return Spike(self.shift + z, vectors.shape[1], tuple(float(a) for a in alignments), norms)


Ends = tuple[float, float, int, int]


def isolated(gap: Gap, part: LowRankPart) -> list[Spike]:
    """Find all isolated eigenvalues in one gap of the bulk: one for every branch that crosses zero."""
    ends = _ends(gap, part)
    if ends is None:
        return []
    low, high, first, last = ends
    branches = _Branches(gap, part)
    roots = []
    for k in range(last, first):
        at = functools.partial(branches.at, k)
        if at(low) < 0.0 < at(high):
            roots.append(brentq(at, low, high, xtol=1e-13, rtol=1e-13))
    return [_record(gap, group, part) for group in _grouped(sorted(roots))]


class _Branches:
    """The eigenvalues of N in a gap, at positions sign(u) log|u|, which increase with z: every branch increases."""

    def __init__(self, gap: Gap, part: LowRankPart) -> None:
        self.gap, self.part = gap, part
        self.found: dict[float, Array] = {}  # a state at an edge depends, by rounding, on the states before: ask once

    def at(self, k: int, position: float) -> float:
        if position not in self.found:
            state = _state(self.gap, position)
            form = self.gap.curve.population.mean_form(state.g)
            self.found[position] = np.linalg.eigvalsh(self.part.matrix(state.g, form))
        return float(self.found[position][k])


def _state(gap: Gap, position: float) -> State:
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


def _ends(gap: Gap, part: LowRankPart) -> Ends | None:
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
    for _ in range(200):
        if count(u) == target:
            return u
        u *= 3.0
    return u


def _record(gap: Gap, roots: list[float], part: LowRankPart) -> Spike:
    """Return the isolated eigenvalue at these positions, improved by one step of Newton's method."""
    state = _state(gap, float(np.mean(roots)))
    g, population = state.g, gap.curve.population
    at, ratios = population.at(g[None]), population.ratios
    slope = np.linalg.solve(np.diag(1.0 / g**2) - at.couplings()[0] * ratios, np.ones(len(g)))  # dg/dz'
    values, vectors = np.linalg.eigh(part.matrix(g, at.means()[0]))
    order = np.argsort(np.abs(values))[: len(roots)]
    growth = part.growth(slope, -np.tensordot(ratios * slope, at.forms()[0], axes=1))
    null = part.scales(g)[:, None] * vectors[:, order]
    off = values[order] / ((growth @ null) * null).sum(axis=0)
    return part.spike(state.z - float(off.mean()), null, growth)


def without_noise(part: LowRankPart) -> list[Spike]:
    """The case of a kernel that does not see W W': here c I + U B U' with U = [J/sqrt(p), psi]."""
    root = np.sqrt(np.append(part.ratios, part.ratios @ part.variances))  # U'U is diagonal
    corner = np.append(part.direction, 1.0)
    inner = part.kappa * np.outer(corner, corner)
    inner[:-1, :-1] += part.excess
    values, vectors = np.linalg.eigh(root[:, None] * inner * root)
    out = []
    for value, vector in zip(values, vectors.T, strict=True):
        if abs(value) > 1e-12 * max(1.0, float(np.abs(values).max())):
            squares = vector**2
            out.append(Spike(part.shift + float(value), 1, tuple(squares[:-1].tolist()), float(squares[-1])))
    return out
