"""Traces and forms of A^(-1), A = I + sum_a (n_a/p) g_a Sigma_a: what covariances alone contribute to the resolvent.

``forms`` are sandwiched between the class means m_a. Points g have shape (N, K); pairs of points are index arrays i
and j, and with ``conjugate`` the second point is the complex conjugate of point j.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ..spectra.population import Array, Commuting, Dense


class Bulk(Protocol):
    """Answers about N points; every array begins with the axis of the points or pairs asked for."""

    def traces(self) -> Array:
        """tr(Sigma_a A^(-1))/p, (N, K)."""

    def means(self) -> Array:
        """m_a' A^(-1) m_c, (N, K, K)."""

    def couplings(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        """tr(Sigma_a A_i^(-1) Sigma_c A_j^(-1))/p, (pairs, K, K)."""

    def forms(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        """m_a' A_i^(-1) Sigma_b A_j^(-1) m_c, (pairs, K for b, K, K)."""

    def bent(self, weights: Array, i: Array, j: Array, conjugate: bool = False) -> Array:
        """tr(W m' A_i^(-1) Sigma_a A_j^(-1) Sigma_c A_i^(-1) m), (pairs, K, K), for symmetric W (pairs, K, K)."""


def bulk_at(noise: Commuting | Dense, g: Array) -> Bulk:
    """The bulk at the points g."""
    return _Matrices(noise, g) if isinstance(noise, Dense) else _Spectrum(noise, g)


@dataclass(frozen=True, eq=False)
class _Spectrum:
    """Common eigenvectors: sums over joint eigenvalues."""

    noise: Commuting
    g: Array

    @cached_property
    def inverse(self) -> Array:
        return 1.0 / (1.0 + self.g @ (self.noise.values * self.noise.ratios).T)

    @property
    def _grams(self) -> Array:
        return self.noise.mean_grams.reshape(len(self.noise.weights), -1)

    def _square(self, flat: Array) -> Array:
        classes = self.g.shape[1]
        return flat.reshape(len(flat), -1, classes, classes)

    def traces(self) -> Array:
        return (self.noise.weights * self.inverse) @ self.noise.values

    def means(self) -> Array:
        return self._square(self.inverse @ self._grams)[:, 0]

    def couplings(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        both = self.inverse[i] * second_of(self.inverse[j], conjugate)
        return self._square((self.noise.weights * both) @ self.noise.products)[:, 0]

    def forms(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        within = (self.noise.values[:, :, None] * self._grams[:, None, :]).reshape(len(self._grams), -1)
        return self._square((self.inverse[i] * second_of(self.inverse[j], conjugate)) @ within)

    def bent(self, weights: Array, i: Array, j: Array, conjugate: bool = False) -> Array:
        along = weights.reshape(len(weights), -1) @ self._grams.T
        both = self.inverse[i] ** 2 * second_of(self.inverse[j], conjugate)
        return self._square((along * both) @ self.noise.products)[:, 0]


@dataclass(frozen=True, eq=False)
class _Matrices:
    """No common eigenvectors: q x q inverses, one for every point, and a spectrum for the other directions."""

    noise: Dense
    g: Array

    @cached_property
    def outside(self) -> _Spectrum:
        return _Spectrum(self.noise.outside, self.g)

    @cached_property
    def inverses(self) -> list[Array]:
        return [self.noise.inverse(row) for row in self.g]

    @cached_property
    def _thin(self) -> list[Array]:
        """A^(-1) m, (q, K)."""
        return [inverse @ self.noise.means for inverse in self.inverses]

    @cached_property
    def _turned(self) -> list[Array]:
        """Sigma_a A^(-1) m, (K, q, K)."""
        return [self.noise.covariances @ thin for thin in self._thin]

    @cached_property
    def _flat(self) -> list[Array]:
        """A^(-1) Sigma_a by rows, (K, q^2); single precision suffices where there are many (a contour)."""
        kind = np.complex64 if np.iscomplexobj(self.g) else np.float64
        return [_products(inverse, self.noise.covariances, kind) for inverse in self.inverses]

    def traces(self) -> Array:
        own = [self.noise.inner_traces(inverse) for inverse in self.inverses]
        return np.stack(own) + self.outside.traces()

    def means(self) -> Array:
        return np.stack([self.noise.means.T @ thin for thin in self._thin]) + self.outside.means()

    def couplings(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        own = [_crossed(self._flat[k], self._flat[m], conjugate) for k, m in zip(i, j, strict=True)]
        return np.stack(own) / self.noise.dimension + self.outside.couplings(i, j, conjugate)

    def forms(self, i: Array, j: Array, conjugate: bool = False) -> Array:
        own = [self._thin[k].T @ second_of(self._turned[m], conjugate) for k, m in zip(i, j, strict=True)]
        return np.stack(own) + self.outside.forms(i, j, conjugate)

    def bent(self, weights: Array, i: Array, j: Array, conjugate: bool = False) -> Array:
        own = [self._bent(w, k, m, conjugate) for w, k, m in zip(weights, i, j, strict=True)]
        return np.stack(own) + self.outside.bent(weights, i, j, conjugate)

    def _bent(self, weight: Array, k: int, m: int, conjugate: bool) -> Array:
        left = self._turned[k]
        right = second_of(self.inverses[m], conjugate) @ (left @ weight)
        return left.reshape(len(left), -1) @ right.reshape(len(left), -1).T


def second_of(values: Array, conjugate: bool) -> Array:
    """What belongs to the second point of a pair."""
    return values.conj() if conjugate else values


def _products(inverse: Array, covariances: Array, kind: type) -> Array:
    out: Array = np.empty((len(covariances), inverse.size), dtype=kind)
    for row, c in zip(out, covariances, strict=True):
        product = inverse.real @ c + 1j * (inverse.imag @ c) if np.iscomplexobj(inverse) else inverse @ c
        row[:] = product.ravel()
    return out


def _crossed(first: Array, second: Array, conjugate: bool) -> Array:
    """tr(F_a S_c) for rows F_a and S_c that are q x q matrices: rows of the one against columns of the other."""
    size = round(first.shape[1] ** 0.5)
    columns = np.stack([row.reshape(size, size).T.ravel() for row in second_of(second, conjugate)])
    crossed: Array = first @ columns.T
    return crossed.astype(np.complex128) if np.iscomplexobj(crossed) else crossed
