"""Covariances as the bulk sees them: traces of the deterministic equivalent of the p x p resolvent.

With g_a the Stieltjes transform of the noise Gram matrix on class a (its mean diagonal there), c_a = n_a/p and
R(g) = (I + sum_b c_b g_b C_b)^(-1), the fixed point of theory section 8 reads, for every class a,

    z = o_a - 1/g_a + tr(C_a R(g))/p,

because Qt = -R/z and 1 + delta_a = -1/(z g_a); o_a = 0 there, while a matrix W W' + diag(o_a) has offsets. Three
populations answer the same questions about R: ``Commuting`` from the joint spectrum (closed sums), ``Dense`` from
p x p inverses, ``Sloped`` for a Gram matrix whose blocks are scaled class by class.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]

_CHUNK = 2_000_000  # entries of a temporary array


class Population(Protocol):
    """What the solvers ask of the covariances; ``g`` has one row per point z and one column per class."""

    @property
    def ratios(self) -> Array:
        """c_a = n_a/p, shape (K,)."""

    @property
    def scale(self) -> float:
        """max_a ||C_a||."""

    @property
    def tolerance(self) -> float:
        """Mass that the interpolated density may miss."""

    @property
    def last_step(self) -> float:
        """Relative size of a Newton step after which no other is needed."""

    def traces(self, g: Array) -> Array:
        """o_a + tr(C_a R)/p, shape (N, K)."""

    def traces_and_couplings(self, g: Array) -> tuple[Array, Array]:
        """The traces, and tr(C_a R C_b R)/p, shape (N, K, K)."""

    def negative_share(self, g: Array) -> float:
        """Share of negative eigenvalues of R(g)^(-1) at one real g, shape (K,)."""

    def mean_form(self, g: Array) -> Array:
        """M' R M at one real g."""

    def surrogate(self) -> Commuting | Sloped:
        """A cheap population with nearby solutions, for starting values; itself where it is cheap."""


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
    tolerance: float = 1e-11
    last_step: float = 1e-13

    @property
    def scale(self) -> float:
        return float(self.values.max())

    def _denominators(self, g: Array) -> Iterator[tuple[slice, Array]]:
        step = max(1, _CHUNK // len(self.weights))
        weighted = (self.values * self.ratios).T
        for start in range(0, len(g), step):
            part = slice(start, start + step)
            yield part, 1.0 + g[part] @ weighted

    def traces(self, g: Array) -> Array:
        out = np.empty_like(g)
        for part, den in self._denominators(g):
            out[part] = (self.weights / den) @ self.values + self.offsets
        return out

    @cached_property
    def products(self) -> Array:
        """Of the joint eigenvalues of every two classes, (r, K K)."""
        return (self.values[:, :, None] * self.values[:, None, :]).reshape(len(self.weights), -1)

    def traces_and_couplings(self, g: Array) -> tuple[Array, Array]:
        classes = self.values.shape[1]
        traces = np.empty_like(g)
        couplings = np.empty((len(g), classes, classes), dtype=g.dtype)
        for part, den in self._denominators(g):
            inverse = self.weights / den
            traces[part] = inverse @ self.values + self.offsets
            couplings[part] = ((inverse / den) @ self.products).reshape(-1, classes, classes)
        return traces, couplings

    def negative_share(self, g: Array) -> float:
        den = 1.0 + self.values @ (self.ratios * g)
        return float(self.weights[den < 0].sum())

    def mean_form(self, g: Array) -> Array:
        den = 1.0 + self.values @ (self.ratios * g)
        return np.einsum("r,rab->ab", 1.0 / den, self.mean_grams)

    def surrogate(self) -> Commuting:
        return self


@dataclass(frozen=True, eq=False)
class Dense:
    """Covariances without common eigenvectors, (K, q, q), on q of the p directions; ``outside`` describes the others.

    ``dimension`` is p and ``means`` (q, L) are the class means on the q directions.
    """

    ratios: Array
    covariances: Array
    dimension: int
    means: Array
    outside: Commuting
    scale: float
    tolerance: float = 2e-5
    last_step: float = 1e-4  # Newton squares it; one more step would cost K matrix products

    def inverse(self, g: Array) -> Array:
        """R at one g, (q, q)."""
        size = self.covariances.shape[1]
        matrix = _real_times(self.covariances.reshape(len(g), -1).T, self.ratios * g).reshape(size, size)
        matrix[np.diag_indices(size)] += 1.0
        return np.linalg.inv(matrix)

    def traces(self, g: Array) -> Array:
        return np.stack([self.inner_traces(self.inverse(row)) for row in g]) + self.outside.traces(g)

    def traces_and_couplings(self, g: Array) -> tuple[Array, Array]:
        inverses = [self.inverse(row) for row in g]
        traces, couplings = self.outside.traces_and_couplings(g)
        traces = traces + np.stack([self.inner_traces(r) for r in inverses])
        return traces, couplings + np.stack([self._couplings(r) for r in inverses])

    def inner_traces(self, inverse: Array) -> Array:
        """tr(C_a R)/p over the q directions, (K,)."""
        return _real_times(self.covariances.reshape(len(self.ratios), -1), inverse.ravel()) / self.dimension

    def _couplings(self, inverse: Array) -> Array:
        # float32 is enough: this is only ever the Jacobian of a Newton step, whose residual stays in float64
        classes, size = self.covariances.shape[:2]
        parts = [inverse.real, inverse.imag] if np.iscomplexobj(inverse) else [inverse]
        product = np.concatenate(parts).astype(np.float32) @ self._single  # (2q, K q): real part above imaginary part
        pieces = [half.reshape(size, classes, size) for half in np.split(product, len(parts))]
        left = [piece.transpose(1, 0, 2).reshape(classes, -1) for piece in pieces]
        right = [piece.transpose(1, 2, 0).reshape(classes, -1) for piece in pieces]
        couplings: Array = left[0] @ right[0].T
        if len(parts) == 2:
            couplings = couplings - left[1] @ right[1].T + 1j * (left[0] @ right[1].T + left[1] @ right[0].T)
        return couplings.astype(inverse.dtype) / self.dimension

    @cached_property
    def _single(self) -> Array:
        size = self.covariances.shape[1]
        return np.ascontiguousarray(self.covariances.transpose(1, 0, 2)).astype(np.float32).reshape(size, -1)

    def negative_share(self, g: Array) -> float:
        size = self.covariances.shape[1]
        matrix = np.eye(size) + np.tensordot(self.ratios * g, self.covariances, axes=1)
        return float((np.linalg.eigvalsh(matrix) < 0).sum()) / self.dimension + self.outside.negative_share(g)

    def mean_form(self, g: Array) -> Array:
        return self.means.T @ self.inverse(g) @ self.means + self.outside.mean_form(g)

    def surrogate(self) -> Commuting:
        """Only the diagonals in the eigenbasis of sum_b c_b C_b."""
        pooled = np.tensordot(self.ratios, self.covariances, axes=1)
        vectors = np.linalg.eigh(pooled)[1]
        diagonals = np.einsum("ki,akl,li->ia", vectors, self.covariances, vectors, optimize=True)
        rows, classes = len(diagonals), self.means.shape[1]
        return Commuting(
            self.ratios,
            np.concatenate([diagonals, self.outside.values]),
            np.concatenate([np.full(rows, 1.0 / self.dimension), self.outside.weights]),
            np.concatenate([np.zeros((rows, classes, classes)), self.outside.mean_grams]),
            self.outside.offsets,
        )


def _real_times(matrix: Array, vector: Array) -> Array:
    """A real matrix times a real or complex vector, without a complex copy of the matrix."""
    if np.iscomplexobj(vector):
        return matrix @ vector.real + 1j * (matrix @ vector.imag)
    return matrix @ vector


@dataclass(frozen=True, eq=False)
class Sloped:
    """W W' with the block of classes a and b multiplied by ``slopes`` A_ab, a positive semi-definite matrix.

    With A = L L' it is the Gram matrix of the rows w_i (x) l_a, so class a has covariance C_a (x) l_a l_a'. For each
    row e of joint eigenvalues the inverse is only needed through P = A (I + diag(c g e) A)^(-1), a K x K matrix.
    """

    base: Commuting
    slopes: Array
    tolerance: float = 1e-11
    last_step: float = 1e-13

    @property
    def ratios(self) -> Array:
        return self.base.ratios

    @property
    def scale(self) -> float:
        return self.base.scale * float(np.diag(self.slopes).max())

    def _forms(self, g: Array) -> Iterator[tuple[slice, Array]]:
        """P for a slice of the points: (points, rows, K, K)."""
        rows, classes = self.base.values.shape
        weighted = self.base.values * self.base.ratios
        step = max(1, _CHUNK // (rows * classes**2))
        for start in range(0, len(g), step):
            part = slice(start, start + step)
            scaled = (g[part, None, :] * weighted)[..., None] * self.slopes
            # A (I + D A)^(-1) is symmetric, so it equals (I + A D)^(-1) A
            yield part, np.linalg.solve(np.eye(classes) + np.swapaxes(scaled, -1, -2), self.slopes + 0.0 * scaled)

    def traces(self, g: Array) -> Array:
        return self.traces_and_couplings(g)[0]

    def traces_and_couplings(self, g: Array) -> tuple[Array, Array]:
        base, classes = self.base, g.shape[1]
        traces = np.empty_like(g)
        couplings = np.empty((len(g), classes, classes), dtype=g.dtype)
        for part, form in self._forms(g):
            own = np.einsum("nraa->nra", form)
            traces[part] = np.einsum("r,ra,nra->na", base.weights, base.values, own) + base.offsets
            couplings[part] = np.einsum("r,ra,rb,nrab->nab", base.weights, base.values, base.values, form**2)
        return traces, couplings

    def negative_share(self, g: Array) -> float:
        root = np.linalg.eigh(self.slopes)
        half = root.eigenvectors * np.sqrt(np.clip(root.eigenvalues, 0.0, None))
        middle = (self.base.values * self.base.ratios * g)[:, :, None] * half
        counts = (np.linalg.eigvalsh(np.eye(len(g)) + half.T @ middle) < 0).sum(axis=1)
        return float(self.base.weights @ counts)

    def mean_form(self, g: Array) -> Array:
        ((_, form),) = self._forms(g[None])
        return (form[0] * self.base.mean_grams).sum(axis=0)

    def surrogate(self) -> Sloped:
        return self
