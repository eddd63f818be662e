"""What is to be matched: the orders g_k(s, t) of a kernel on a range of norms, as polynomials in the norms.

The polynomials are in log s where the range does not begin at zero: kernels are analytic in a sector around the
positive norms, and the logarithm makes a strip of it, whatever the range. The norms are its Chebyshev points;
everything between them is interpolated. Interpolating a kernel in both norms is interpolating its feature map, so the
interpolant is itself a sum of positive semi-definite orders, and the whole argument of theory, section 13, holds for it
exactly. What interpolation costs is ``interpolation`` (``measuring.py``).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ..._chebyshev import to_coefficients
from ...activations.norm_units import NormUnits
from ...kernels import diagonal, pairwise
from ...kernels.series import norm_series, on_circle
from ...networks import ENN, Kernel, Network

Array = NDArray[np.float64]
_COSINES = 129
_FALLING = "between the norms that were computed, Chebyshev coefficients go on falling as the last ones do"
_HALF_WAY = "between the norms that were computed, interpolation is at most twice as far off as half way"
_BEYOND = _HALF_WAY + ", and the orders that were not computed leave no more there"
_PIVOTS = 16  # norms that carry a smooth kernel and show what units miss
_RANK = 12  # directions that any order may need
NOISE = 1e-15  # directions below this share of the largest are rounding
_CELLS = 48  # per node, of the grid on which suprema are taken


@dataclass(frozen=True)
class Smoothness:
    """The feature map is at most ``size`` on the ellipse of parameter ``rho`` around the range of log norms."""

    rho: float
    size: float

    def interpolation(self, degree: int, diagonal: float) -> float:
        """Bound on the error of the interpolated kernel, relative to a diagonal of at least ``diagonal``."""
        off = 4.0 * self.size * self.rho**-degree / (self.rho - 1.0) / math.sqrt(diagonal)
        return 2.0 * off + off**2


@dataclass(frozen=True)
class KernelOrders:
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
    smoothness: Smoothness | None = None
    """What is known of the kernel at complex norms; ``None`` where nothing is."""
    beside: NormUnits | None = None
    """Units that carry a part of the kernel; ``orders`` are then what they leave, and need not be positive."""
    shared: Array | None = None
    """Sum over the orders of |g_k|, their positive and their negative part, where units carry the rest: (N, N)."""

    @property
    def terms(self) -> int:
        return len(self.orders)

    @property
    def left(self) -> Array:
        """What the kinds have to share out at rho = 1: (N, N)."""
        return self.total if self.shared is None else self.shared

    @property
    def degree(self) -> int:
        """Of the interpolants, in each norm."""
        return len(self.nodes) - 1

    @property
    def logarithmic(self) -> bool:
        """Whether the polynomials are in log s."""
        return 0.0 < self.low < self.high

    def deficit(self, parts: Array) -> Array:
        """k - k_twin at the nodes for rho = 1, with everything that was left out of the series: (N, N)."""
        flat = parts.transpose(1, 0, 2).reshape(len(self.nodes), -1)
        return np.asarray(self.left - flat @ flat.T)

    @functools.cached_property
    def features(self) -> Array:
        """F_k with F_k F_k' = g_k at the nodes: (K, N, rank)."""
        if self.smoothness is not None:
            return roots_of(self.orders[:, :, pivots(len(self.nodes))])[:, :, -_RANK:]
        values, vectors = np.linalg.eigh(self.orders)
        return vectors[:, :, -_RANK:] * np.sqrt(np.maximum(values[:, -_RANK:], 0.0))[:, None, :]

    def at(self, cells: int) -> tuple[Array, Array]:
        """Norms at equidistant Chebyshev angles, and the matrix that interpolates there from the nodes."""
        angle = np.pi * np.arange(cells + 1) / cells
        basis = np.cos(np.outer(angle, np.arange(len(self.nodes))))
        return norms_at(np.cos(angle), self.low, self.high), basis @ to_coefficients(len(self.nodes))

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
        """What lies beyond the interpolants, relative to the diagonal: proven, or estimated where it cannot be."""
        if len(self.nodes) == 1:
            return 0.0
        if self.smoothness is not None:
            return self.smoothness.interpolation(self.degree, float(self.diagonal.min()))
        if self.beside is not None:
            return self._beside_half_way(self.beside)
        return self._half_way() if self.kinked else self._falling()

    @property
    def kinked(self) -> bool:
        return self.network.kinked

    @property
    def assumes(self) -> str:
        """What ``interpolation`` takes for granted; empty where it is proven."""
        if self.smoothness is not None or len(self.nodes) == 1:
            return ""
        if self.beside is not None:
            return _BEYOND
        return _HALF_WAY if self.kinked else _FALLING

    def _half_way(self) -> float:
        """Twice the largest error of the interpolants half way between the nodes: of all orders, for norms that are
        equal, neighbours, or at the ends, at many cosines; and of the diagonal."""
        s, rows, i, j = self._pairs()
        size = len(self.orders)
        g = norm_series(self.network, s[i], s[j], self.kernel, 2 * size, oversampling=1, damped=True)[:, :size]
        between = np.einsum("pa,kab,pb->pk", rows[i], self.orders, rows[j], optimize=True)
        diagonal = quadratic(rows, self.total)
        off = (g / (s[i] * s[j])[:, None] ** self.power - between) / np.sqrt(diagonal[i] * diagonal[j])[:, None]
        cosines = np.cos(np.linspace(0.0, np.pi, _COSINES))
        whole = parallel(self.network, self.kernel, s, s) / s ** (2 * self.power)
        return 2.0 * max(
            float(np.abs(off @ cosines ** np.arange(size)[:, None]).max()), float(np.abs(whole / diagonal - 1.0).max())
        )

    def _pairs(self) -> tuple[Array, Array, NDArray[np.intp], NDArray[np.intp]]:
        """Norms half way between the nodes, the rows that interpolate there, and pairs of them."""
        s, rows = self.at(len(self.nodes))
        s, rows = s[s > 0.0], rows[s > 0.0]
        each = np.arange(len(s))
        j = np.concatenate([each, np.minimum(each + 1, each[-1]), 0 * each, 0 * each + each[-1]])
        return s, rows, np.tile(each, 4), j

    def _beside_half_way(self, beside: NormUnits) -> float:
        """Twice what the interpolants and the units beside them lack of the whole kernel, at the same pairs."""
        s, rows, i, j = self._pairs()
        ends = np.array([0.0, 0.01, 0.03, 0.1])  # high orders count at small angles
        cosines = np.cos(np.concatenate([ends, np.linspace(0.2, np.pi - 0.2, 9), np.pi - ends]))
        sx, sy = torch.from_numpy(s[i]), torch.from_numpy(s[j])
        at = ((sx**2)[:, None], (sy**2)[:, None], (sx * sy)[:, None] * torch.from_numpy(cosines))
        whole = pairwise(self.network, *at, (self.kernel,), check=False)[self.kernel]
        carried = pairwise(ENN([beside]), *at, check=False)["ck"]
        between = np.einsum("pa,kab,pb->pk", rows[i], self.orders, rows[j], optimize=True)
        lacking = (whole - carried).numpy() / (s[i] * s[j])[:, None] ** self.power
        diagonal = quadratic(rows, self.total)
        off = lacking - between @ cosines ** np.arange(self.terms)[:, None]
        return 2.0 * float((np.abs(off) / np.sqrt(diagonal[i] * diagonal[j])[:, None]).max())

    def _falling(self) -> float:
        """The Chebyshev coefficients of all orders fall geometrically in both norms; the rest is taken to be at most
        four times what they sum up to if they go on falling as the last four did against the four before."""
        m = to_coefficients(len(self.nodes))
        size = np.abs(m @ self.orders @ m.T).sum((0, 1))
        before, last = size[-8:-4].max(), size[-4:].max()
        rate = min(max((last / max(before, 1e-300)) ** 0.25, 0.05), 0.97)
        return float(4.0 * 2.0 * last * rate / (1.0 - rate) / self.diagonal.min())


def quadratic(rows: Array, matrix: Array) -> Array:
    """rows_a' matrix rows_a for every row."""
    return np.einsum("ai,ai->a", rows @ matrix, rows)


def norms_at(x: Array, low: float, high: float) -> Array:
    """The norms at positions x in [-1, 1]."""
    if 0.0 < low < high:
        return np.exp(0.5 * (math.log(high) + math.log(low)) + 0.5 * (math.log(high) - math.log(low)) * x)
    return 0.5 * (high + low) + 0.5 * (high - low) * x


def parallel(network: Network, kernel: Kernel, s: Array, t: Array) -> Array:
    """k(s, t, 1), with all orders.

    The Hermite series of kinks do not end. What they lack on the diagonal is known, and added as an order of rank one.
    """
    found = on_circle(network, s, t, kernel, 1)[:, 0].real
    if not network.kinked:
        return found
    norms, which = np.unique(np.concatenate([s, t]), return_inverse=True)
    exact = diagonal(network, torch.from_numpy(norms**2), (kernel,), check=False)[kernel].numpy()
    lacking = np.sqrt(np.maximum(exact - on_circle(network, norms, norms, kernel, 1)[:, 0].real, 0.0))
    left, right = np.split(lacking[which], 2)
    return np.asarray(found + left * right)


def pivots(count: int) -> NDArray[np.intp]:
    """A few of so many nodes, spread as they are."""
    return np.unique(np.linspace(0, count - 1, _PIVOTS).round().astype(np.intp))


def roots_of(columns: Array) -> Array:
    """F_k projected on what it is at the pivots (Nystroem), from the columns of g_k there; the largest last.

    A smooth kernel has no more than that, to rounding. What it has beyond counts as left out.
    """
    at = columns[:, pivots(columns.shape[1])]
    values, vectors = np.linalg.eigh(at)
    keep = values > NOISE * values.max()
    return columns @ (vectors * (keep / np.sqrt(np.where(keep, values, 1.0)))[:, None, :])
