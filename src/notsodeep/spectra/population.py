"""Covariances as the bulk sees them: traces and forms of R(g) = (I + sum_b c_b g_b C_b)^(-1), with c_b = n_b/p.

The fixed point of theory section 8 reads z = o_a - 1/g_a + tr(C_a R(g))/p for every class a, where o_a is a class's
offset on the diagonal; learning (section 15) has the same equation at z = -ridge. ``Commuting`` answers from the joint
spectrum; ``Blocks`` inverts matrices: one for covariances without common eigenvectors, small ones for a Gram matrix
whose blocks are scaled class by class.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from .._arrays import Array


@dataclass(frozen=True)
class Limits:
    """Tuning numbers of the spectra."""

    rounding: float = 1e-12  # terms and eigenvalues below this share of the largest are rounding errors
    entries: int = 2_000_000  # entries of a temporary array: 16 MB in float64
    matrix_side: int = 6000  # largest p for p x p matrices: one takes 288 MB
    block_work: int = 40_000  # joint eigenvalues times classes^3 up to which every pair of classes has its own slope
    nodes: int = 16  # Chebyshev nodes of a panel: its series ends at 1e-11 for a smooth density
    halvings: int = 30  # of a panel, beside singularities of the density
    panels: int = 1024  # of one bulk at a time: a law with many bulks has some dozens

    steep: float = 4.0  # largest eigenvalue over the mean, from which on each square x_i^2 is a feature by itself
    weakest: float = 0.02  # strength of a product in a steep spectrum, relative to the ridge, below which it is ridge
    narrow: float = 1e-6  # products that add less than this share of the diagonal leave atoms as narrow as they are
    directions: int = 160  # eigenvalues whose products are looked at: 13,000 pairs
    trusted: float = 1.0  # strength of (x . y)^2 relative to the ridge: up to it no bias beyond that of the size
    trusted_steep: float = 5.0  # the limit where the strong products of a steep spectrum are features
    norm_spread: float = 0.1  # relative variance of ||x||^2: beyond it the error is off by 5 % for odd activations too


LIMITS = Limits()


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of points; with ``conjugate`` the second of each is the complex conjugate of that point."""

    first: Array | slice
    second: Array | slice
    conjugate: bool = False

    def one(self, values: Array) -> Array:
        """Take, from what belongs to all points, the values of the first in each pair."""
        return values[self.first]

    def two(self, values: Array) -> Array:
        """Take the values of the second in each pair."""
        return self.seconded(values[self.second])

    def seconded(self, values: Array) -> Array:
        """Conjugate what belongs to the second points, where that is asked for."""
        return values.conj() if self.conjugate else values


SAME = Pairs(slice(None), slice(None))
"""Every point with itself."""


# ---- common eigenvectors: sums over joint eigenvalues --------------------------------------------------


@dataclass(frozen=True, eq=False)
class Commuting:
    """Covariances with common eigenvectors.

    ``values`` (r, K) are the joint eigenvalues, ``weights`` (r,) the share of p that each row stands for,
    ``mean_grams`` (r, L, L) the Gram matrix of the L class means projected on the eigenspace of each row, and
    ``offsets`` (K,) the o_a.
    """

    ratios: Array
    values: Array
    weights: Array
    mean_grams: Array
    offsets: Array | float = 0.0
    tolerance: float = 1e-11  # mass that the interpolated density may miss
    last_step: float = 1e-13  # relative size of a Newton step after which no other is needed

    @property
    def scale(self) -> float:
        """max_a ||C_a||."""
        return float(self.values.max(initial=0.0))

    @property
    def entries(self) -> int:
        """The numbers that one point needs at once."""
        return len(self.weights)

    def at(self, g: Array) -> CommutingAt:
        """Return R at N points g, (N, K); all that it gives begins with the axis of the points, or of pairs."""
        return CommutingAt(self, 1.0 / (1.0 + g @ (self.values * self.ratios).T))

    @cached_property
    def products(self) -> Array:
        """Products of the joint eigenvalues of every two classes, (r, K, K)."""
        return self.values[:, :, None] * self.values[:, None, :]

    @cached_property
    def within(self) -> tuple[Array, Array]:
        """The rows that have means, and their Gram matrices times the eigenvalue of each class, (rows, K, L, L)."""
        rows = np.flatnonzero(self.mean_grams.any(axis=(1, 2)))
        return rows, self.values[rows, :, None, None] * self.mean_grams[rows, None]

    def negative_share(self, g: Array) -> float:
        """Return the share of negative eigenvalues of R(g)^(-1) at one real g, shape (K,)."""
        den = 1.0 + self.values @ (self.ratios * g)
        return float(self.weights[den < 0].sum())

    def surrogate(self) -> Commuting:
        """Return a cheap population with nearby solutions, for starting values: itself."""
        return self

    def scaled(self, factor: Array, offsets: Array | float = 0.0) -> Commuting:
        """Return the population of the rows l_a x, with the factors l_a of the classes."""
        grams = self.mean_grams * np.outer(factor, factor)
        return replace(self, values=self.values * factor**2, mean_grams=grams, offsets=offsets)

    def sloped(self, slopes: Array) -> Blocks:
        """Return W W' with the block of classes a and b multiplied by ``slopes`` A_ab, positive semi-definite.

        With A = L L' it is the Gram matrix of the rows w_i (x) l_a, so class a has covariance C_a (x) l_a l_a'.
        """
        rows = _root(slopes)
        covariances = self.values.T[:, :, None, None] * (rows[:, :, None] * rows[:, None, :])[:, None]
        means = np.einsum("ras,aq->rsqa", _root(self.mean_grams), rows)
        empty = slice(0)
        outside = replace(
            self, values=self.values[empty], weights=self.weights[empty], mean_grams=self.mean_grams[empty]
        )
        return Blocks(self.ratios, covariances, self.weights, means, outside, self.tolerance, self.last_step)

    def around_means(self, p: int) -> Blocks:
        """Return the same population with a matrix on the span of the means, whose directions follow the rows."""
        rows = self.within[0]
        bases = _root(self.mean_grams[rows])
        live = (bases**2).sum(1) > LIMITS.rounding * (bases**2).sum((1, 2), keepdims=True)[:, 0]
        where, means = np.repeat(rows, live.sum(1)), np.swapaxes(bases, 1, 2)[live]
        weights = self.weights - np.bincount(where, minlength=len(self.weights)) / p
        outside = replace(self, weights=weights, mean_grams=0.0 * self.mean_grams)
        inside = self.values[where].T[:, :, None] * np.eye(len(where))
        return Blocks(self.ratios, inside[:, None], np.full(1, 1.0 / p), means[None, None], outside)

    def plus(self, other: Commuting) -> Commuting:
        """Return the direct sum with more directions."""
        return replace(
            self,
            values=np.concatenate([self.values, other.values]),
            weights=np.concatenate([self.weights, other.weights]),
            mean_grams=np.concatenate([self.mean_grams, other.mean_grams]),
        )


def _root(matrices: Array) -> Array:
    """Return L with L L' = A, for positive semi-definite matrices A."""
    values, vectors = np.linalg.eigh(matrices)
    return vectors * np.sqrt(np.clip(values, 0.0, None))[..., None, :]


@dataclass(frozen=True, eq=False)
class CommutingAt:
    """R of a commuting population, by its eigenvalues (N, r)."""

    of: Commuting
    inverse: Array

    def traces(self) -> Array:
        """Return o_a + tr(C_a R)/p, (N, K)."""
        return (self.of.weights * self.inverse) @ self.of.values + self.of.offsets

    def means(self) -> Array:
        """Return m_a' R m_b with the L class means, (N, L, L)."""
        rows = self.of.within[0]
        return np.tensordot(self.inverse[:, rows], self.of.mean_grams[rows], axes=1)

    def couplings(self, pairs: Pairs = SAME) -> Array:
        """Return tr(C_a R_i C_b R_j)/p, (pairs, K, K)."""
        return np.tensordot(self.of.weights * self._both(pairs), self.of.products, axes=1)

    def forms(self, pairs: Pairs = SAME) -> Array:
        """Return m_a' R_i C_b R_j m_c, (pairs, K for b, L, L)."""
        rows, within = self.of.within
        return np.tensordot(self._both(pairs)[:, rows], within, axes=1)

    def bent(self, weights: Array, pairs: Pairs) -> Array:
        """Return tr(W m' R_i C_a R_j C_b R_i m), (pairs, K, K), for symmetric W (pairs, L, L)."""
        rows = self.of.within[0]
        along = np.tensordot(weights, self.of.mean_grams[rows], axes=((1, 2), (1, 2)))
        inverses = (self._both(pairs) * pairs.one(self.inverse))[:, rows]
        return np.tensordot(along * inverses, self.of.products[rows], axes=1)

    def _both(self, pairs: Pairs) -> Array:
        return pairs.one(self.inverse) * pairs.two(self.inverse)


# ---- no common eigenvectors: inverses of q x q blocks, and a joint spectrum for the other directions --------


@dataclass(frozen=True, eq=False)
class Blocks:
    """Covariances that are matrices on blocks of q directions; ``outside`` describes all other directions.

    ``covariances`` (K, r, q, q) hold those of r blocks, ``weights`` (r,) how often each of them is there, relative to
    p, and ``means`` (r, s, q, L) the L class means on s copies of each.
    """

    ratios: Array
    covariances: Array
    weights: Array
    means: Array
    outside: Commuting
    tolerance: float = 2e-5
    last_step: float = 1e-4  # Newton squares it; one more step would cost K products of large matrices

    @cached_property
    def scale(self) -> float:
        """max_a ||C_a||."""
        return max(self.outside.scale, float(np.linalg.eigvalsh(self.covariances).max()))

    @property
    def entries(self) -> int:
        """The numbers that one point needs at once."""
        return self.covariances.size

    def at(self, g: Array) -> BlocksAt:
        """Return R at N points g, (N, K); all that it gives begins with the axis of the points, or of pairs."""
        return BlocksAt(self, [np.linalg.inv(self._matrices(row)) for row in g], self.outside.at(g))

    def _matrices(self, g: Array) -> Array:
        """Return R(g)^(-1) at one point."""
        _, *shape = self.covariances.shape
        matrices = _real_times(self.covariances.reshape(len(g), -1).T, self.ratios * g).reshape(shape)
        return matrices + np.eye(shape[-1])

    def negative_share(self, g: Array) -> float:
        """Return the share of negative eigenvalues of R(g)^(-1) at one real g, shape (K,)."""
        counts = (np.linalg.eigvalsh(self._matrices(g)) < 0).sum(axis=1)
        return float(self.weights @ counts) + self.outside.negative_share(g)

    def surrogate(self) -> Commuting:
        """Return only the diagonals, and the means, in the eigenbasis of sum_b c_b C_b."""
        vectors = np.linalg.eigh(np.tensordot(self.ratios, self.covariances, axes=1))[1]
        diagonals = np.einsum("rki,arkl,rli->ria", vectors, self.covariances, vectors, optimize=True)
        means = np.einsum("rki,rska->risa", vectors, self.means)
        grams = np.swapaxes(means, 2, 3) @ means
        (r, q, K), classes = diagonals.shape, means.shape[-1]
        weights, shape = np.repeat(self.weights, q), (r * q, classes, classes)
        return self.outside.plus(Commuting(self.ratios, diagonals.reshape(r * q, K), weights, grams.reshape(shape)))

    def scaled(self, factor: Array, offsets: Array | float = 0.0) -> Blocks:
        """Return the population of the rows l_a x, with the factors l_a of the classes."""
        return replace(
            self,
            covariances=self.covariances * factor[:, None, None, None] ** 2,
            means=self.means * factor,
            outside=self.outside.scaled(factor, offsets),
        )

    def around_means(self, p: int) -> Blocks:
        """Return itself."""
        return self

    def plus(self, other: Commuting) -> Blocks:
        """Return the population with more directions outside."""
        return replace(self, outside=self.outside.plus(other))


@dataclass(frozen=True, eq=False)
class BlocksAt:
    """What :class:`CommutingAt` gives, from the inverses (r, q, q) of the blocks at every point."""

    of: Blocks
    inverses: list[Array]
    outside: CommutingAt

    def traces(self) -> Array:
        rows = self.of.covariances.reshape(len(self.of.ratios), -1)
        weights = self.of.weights[:, None, None]
        dense = [_real_times(rows, (weights * inverse).ravel()) for inverse in self.inverses]
        return np.stack(dense) + self.outside.traces()

    def means(self) -> Array:
        means = self.of.means.reshape(-1, self.of.means.shape[-1]).T
        return np.stack([means @ thin.reshape(means.shape[::-1]) for thin in self._thin]) + self.outside.means()

    def couplings(self, pairs: Pairs = SAME) -> Array:
        dense = []
        for i, j in self._listed(pairs):  # tr(F_a S_b) of the blocks of F and S, (K, r, q, q)
            one, two = self._swept[i], np.swapaxes(pairs.seconded(self._swept[j]), -1, -2)
            dense.append(one.reshape(len(one), -1) @ two.reshape(len(two), -1).T)
        return np.stack(dense) + self.outside.couplings(pairs)

    def forms(self, pairs: Pairs = SAME) -> Array:
        classes = self.of.means.shape[-1]
        dense = [
            self._thin[i].reshape(-1, classes).T
            @ pairs.seconded(self._turned[j]).reshape(len(self.of.ratios), -1, classes)
            for i, j in self._listed(pairs)
        ]
        return np.stack(dense) + self.outside.forms(pairs)

    def bent(self, weights: Array, pairs: Pairs) -> Array:
        dense = []
        for weight, (i, j) in zip(weights, self._listed(pairs), strict=True):
            left = self._turned[i]
            right = pairs.seconded(self.inverses[j])[:, None] @ (left @ weight)
            dense.append(left.reshape(len(left), -1) @ right.reshape(len(left), -1).T)
        return np.stack(dense) + self.outside.bent(weights, pairs)

    def _listed(self, pairs: Pairs) -> list[tuple[int, int]]:
        every = np.arange(len(self.inverses))
        return list(zip(every[pairs.first], every[pairs.second], strict=True))

    @cached_property
    def _thin(self) -> list[Array]:
        """R m, (r, s, q, L)."""
        return [inverse[:, None] @ self.of.means for inverse in self.inverses]

    @cached_property
    def _turned(self) -> list[Array]:
        """C_a R m, (K, r, s, q, L)."""
        return [self.of.covariances[:, :, None] @ thin for thin in self._thin]

    @cached_property
    def _swept(self) -> list[Array]:
        """R C_a times the root of the weights, (K, r, q, q)."""
        root = np.sqrt(self.of.weights)[:, None, None]
        return [(root * inverse) @ self.of.covariances for inverse in self.inverses]


def _real_times(matrix: Array, vector: Array) -> Array:
    """Return a real matrix times a real or complex vector, without a complex copy of the matrix."""
    if np.iscomplexobj(vector):
        return matrix @ vector.real + 1j * (matrix @ vector.imag)
    return matrix @ vector


Population = Commuting | Blocks


def reach(population: Population) -> float:
    """Return a bound of the support, but for offsets."""
    return population.scale * (1.0 + float(np.sqrt(population.ratios.sum()))) ** 2


def traces_and_slopes(population: Population, g: Array) -> tuple[Array, Array]:
    """Return traces at points g, (N, K), and how they fall with each g_b: c_b tr(C_a R C_b R)/p, (N, K, K)."""
    step = max(1, LIMITS.entries // population.entries)
    parts = (population.at(g[start : start + step]) for start in range(0, len(g), step))
    traces, couplings = zip(*((part.traces(), part.couplings()) for part in parts), strict=True)
    return np.concatenate(traces), np.concatenate(couplings) * population.ratios


# ---- the fixed point by Newton's method: one loop for the bulk, for its gaps and for learning ------------------

Answers = Callable[[Array], tuple[Array, Array]]
"""From g (N, K) to the traces and how they fall with every g_b, as :func:`traces_and_slopes`."""


def newton(
    answers: Answers, z: Array, u: Array, last: float, *, inside: bool = False, steps: int = 40
) -> tuple[Array, Array]:
    """Solve z = u + traces(-1/u) for u = -1/g, (N, K), from ``u``; all points at once, converged ones leave.

    A point has converged after a step of size ``last`` relative to |u|, or, if solutions ``inside`` the bulk are asked
    for, relative to Im u, which then stays positive. Returns the solutions, and which of them have converged.
    """
    u, done = u.copy(), np.zeros(len(u), dtype=bool)
    for _ in range(steps):
        active = np.flatnonzero(~done)
        if not len(active):
            break
        now = u[active]
        traces, slopes = answers(-1.0 / now)
        residual = now + traces - z[active]
        system = np.eye(now.shape[1]) - slopes / now[:, None, :] ** 2
        step = -np.linalg.solve(system, residual[..., None])[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            # short of zero, and of the real axis
            reach = np.abs(now) / np.abs(step)
            if inside:
                reach = np.minimum(reach, np.where(step.imag < 0, -now.imag / step.imag, np.inf))
        u[active] = now + step * np.minimum(1.0, 0.9 * reach.min(axis=1))[:, None]
        size = np.abs(step) / (now.imag if inside else np.abs(now))
        rounding = np.abs(residual) < 2e-15 * (np.abs(traces) + np.abs(now))
        done[active] = (size.max(axis=1) < last) | rounding.all(axis=1) | (inside & ~_upright(u[active]))
    return u, done & (_upright(u) if inside else np.isfinite(u).all(axis=1))


def _upright(u: Array) -> Array:
    """Say which points lie inside the support, and not too close to an edge to tell."""
    return np.asarray((u.imag > 1e-9 * np.abs(u)).all(axis=1))


def solve_inside(population: Population, z: Array, g: Array, steps: int = 40) -> tuple[Array, Array]:
    """Find the solutions with Im g > 0, unique on the real axis, from g (N, K) nearby; and which of them are reliable.

    A point where Im g collapses lies outside the support; it is not reliable, and g is the last iterate.
    """
    last = 100.0 * population.tolerance  # Newton's method squares it
    u, good = newton(
        functools.partial(traces_and_slopes, population), z[:, None], -1.0 / g, last, inside=True, steps=steps
    )
    return -1.0 / u, good


def start_inside(population: Population, x: Array) -> tuple[Array, Array]:
    """Find solutions at the real points x from nothing, by a descent from far above the axis."""
    heights = 1j * reach(population) * 10.0 ** -np.arange(9.0)
    g = np.repeat(-1.0 / (x + heights[0])[:, None], len(population.ratios), axis=1)
    for height in heights:
        g, _ = solve_inside(population, x + height, g, steps=12)
    return solve_inside(population, x, g)
