"""What is to be matched: the orders g_k(s, t) of a kernel on a range of norms, as polynomials in the two norms.

The norms are Chebyshev points s_1 ... s_N; everything between them is interpolated. Interpolating a kernel in both
norms is interpolating its feature map, so the interpolant is itself a sum of positive semi-definite orders, and the
whole argument of theory, section 13, holds for it exactly. What interpolation costs is ``interpolation``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...kernels.circle import norm_series, on_circle
from ...networks import DEQ, Kernel, Network

Array = NDArray[np.float64]
_NODES = (16, 24, 36, 54)
_PROBES = (96, 256, 512)
_SHARE = 1e-3  # of the tolerance: what truncation and interpolation may each take
_LEAST = 1e-12  # rounding ends the decay of the coefficients
_CELLS = 48  # per node, of the grid on which suprema are taken


@dataclass(frozen=True)
class Target:
    """A kernel on norms in [low, high], divided by (s t)^power."""

    network: Network
    kernel: Kernel
    low: float
    high: float
    power: int
    """1 if the kernel vanishes at the origin: then like the squared norm, so that errors stay relative there."""
    nodes: Array
    orders: Array
    """g_k(s_i, s_j) / (s_i s_j)^power: (K, N, N)."""
    total: Array
    """k(s_i, s_j, 1) / (s_i s_j)^power, with all orders: (N, N)."""
    aliased: float
    """Bound on what the Fourier transform mixed into the orders, relative to the diagonal."""

    @property
    def terms(self) -> int:
        return len(self.orders)

    @property
    def degree(self) -> int:
        """Of the interpolants, in each norm."""
        return len(self.nodes) - 1

    @functools.cached_property
    def features(self) -> Array:
        """F_k with F_k F_k' = g_k at the nodes: (K, N, rank)."""
        values, vectors = np.linalg.eigh(self.orders)
        rank = min(len(self.nodes), 12)
        values, vectors = values[:, -rank:], vectors[:, :, -rank:]
        return vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :]

    @functools.cached_property
    def to_coefficients(self) -> Array:
        """From values at the nodes to Chebyshev coefficients in the norm."""
        n = len(self.nodes)
        if n == 1:
            return np.ones((1, 1))
        k = np.arange(n)
        matrix = 2.0 / n * np.cos(np.pi * np.outer(k, k + 0.5) / n)
        matrix[0] *= 0.5
        return matrix

    def at(self, cells: int) -> tuple[Array, Array]:
        """Norms at equidistant Chebyshev angles, and the matrix that interpolates there from the nodes."""
        angle = np.pi * np.arange(cells + 1) / cells
        basis = np.cos(np.outer(angle, np.arange(len(self.nodes))))
        return 0.5 * (self.high + self.low) + 0.5 * (self.high - self.low) * np.cos(angle), basis @ self.to_coefficients

    @functools.cached_property
    def grid(self) -> tuple[Array, Array]:
        """The grid on which suprema are bounded."""
        return self.at(_CELLS * len(self.nodes))

    @functools.cached_property
    def diagonal(self) -> Array:
        """k(s, s, 1) / s^(2 power) on the grid."""
        return quadratic(self.grid[1], self.total)

    @functools.cached_property
    def interpolation(self) -> float:
        """What lies beyond the interpolants, relative to the diagonal: the Chebyshev coefficients of all orders fall
        geometrically in both norms, and the rest is at most four times the geometric continuation of the last four."""
        if len(self.nodes) == 1:
            return 0.0
        m = self.to_coefficients
        size = np.abs(m @ self.orders @ m.T).sum((0, 1))
        last = size[-4:]
        rate = min(max((last[-1] / max(last[0], 1e-300)) ** (1.0 / 3.0), 0.05), 0.97)
        return float(4.0 * 2.0 * last.max() * rate**2 / (1.0 - rate) / self.diagonal.min())


def quadratic(rows: Array, matrix: Array) -> Array:
    """rows_a' matrix rows_a for every row."""
    return np.einsum("ai,ai->a", rows @ matrix, rows)


def measure(network: Network, kernel: Kernel, norms: tuple[float, float], tol: float) -> Target:
    """The target on a range of norms, resolved to a small share of ``tol`` where rounding allows."""
    low, high = norms
    terms, aliased = _resolved(network, kernel, high, _SHARE * tol)
    best = None
    for count in _NODES:
        target = _sample(network, kernel, low, high, terms, count, aliased)
        best = target if best is None or target.interpolation < best.interpolation else best
        if best.interpolation <= max(_SHARE * tol, _LEAST):
            break
    assert best is not None
    return best


def _resolved(network: Network, kernel: Kernel, high: float, share: float) -> tuple[int, float]:
    """How many orders leave less than ``share`` of the diagonal at the largest norm, where the series is longest."""
    for count in _PROBES:
        g = np.maximum(norm_series(network, [high], [high], kernel, count, oversampling=2)[0], 0.0)
        total = float(on_circle(network, np.array([high]), np.array([high]), kernel, 2)[0, 0].real)
        left = np.maximum(total - np.cumsum(g), 0.0) / total
        enough = np.flatnonzero(left <= share)
        if len(enough) and 2 * enough[0] < count:
            break
    terms = int(enough[0]) + 1 if len(enough) else count
    terms = max(terms, 6)
    return terms, float(left[min(2 * terms, count) - 1]) if 2 * terms <= count else float(left[-1])


def _sample(
    network: Network, kernel: Kernel, low: float, high: float, terms: int, count: int, aliased: float
) -> Target:
    if high <= low:
        count = 1
    x = np.cos(np.pi * (np.arange(count) + 0.5) / count)
    nodes = 0.5 * (high + low) + 0.5 * (high - low) * x
    power = int(vanishes_at_zero(network))
    i, j = np.triu_indices(count)
    scale = (nodes[i] * nodes[j]) ** power
    g = norm_series(network, nodes[i], nodes[j], kernel, terms, oversampling=2) / scale[:, None]
    ends = on_circle(network, nodes[i], nodes[j], kernel, 2)[:, 0].real / scale
    orders, total = np.empty((terms, count, count)), np.empty((count, count))
    orders[:, i, j] = orders[:, j, i] = g.T
    total[i, j] = total[j, i] = ends
    return Target(network, kernel, low, high, power, nodes, orders, total, aliased)


def vanishes_at_zero(network: Network) -> bool:
    """Whether the kernel is zero at the origin."""
    if isinstance(network, DEQ) and network.variances[2] > 0.0:
        return False
    return all(math.isclose(float(phi(np.zeros(1))[0]), 0.0, abs_tol=1e-300) for phi in network.activations)
