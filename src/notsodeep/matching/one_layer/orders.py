"""What is to be matched: the orders g_k(s, t) of a kernel on a range of norms, as polynomials in the norms.

The polynomials are in log s where the range does not begin at zero; the norms are its Chebyshev points. Interpolating a
kernel in both norms is interpolating its feature map, so the interpolant is itself a sum of positive semi-definite
orders. For smooth kernels the error of interpolation is bounded by a theorem (docs/one_layer.md, "The certificate").
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ..._arrays import Array
from ..._chebyshev import nodes as chebyshev_nodes
from ..._chebyshev import to_coefficients
from ..._progress import track
from ...activations import Parity
from ...kernels import diagonal
from ...kernels.conjugate import conjugate_square
from ...kernels.series import norm_series, on_circle, series_radius
from ...networks import Kernel, Network
from .._limits import LIMITS

_HALF_WAY = "between the norms that were computed, interpolation is at most twice as far off as half way"
_ENDED = "series at complex norms have ended where twelve terms in a row are a millionth of the sum"
NOISE = 1e-15  # directions below this share of the largest are rounding


@dataclass(frozen=True)
class Smoothness:
    """The feature map is at most ``size`` on the ellipse of parameter ``rho`` around the range of log norms."""

    rho: float
    size: float

    def interpolation(self, degree: int, diagonal: float) -> float:
        """Bound on the error of the interpolated kernel, relative to a diagonal of at least ``diagonal``."""
        if diagonal <= 0.0:
            return math.inf
        off = 4.0 * self.size * self.rho**-degree / (self.rho - 1.0) / math.sqrt(diagonal)
        return 2.0 * off + off**2


@dataclass(frozen=True)
class KernelOrders:
    """A kernel on norms in [low, high], divided by (s t)^power."""

    network: Network
    kernel: Kernel
    low: float
    high: float
    power: int  # 1 if the kernel vanishes at the origin: then like the squared norm, so that errors stay relative there
    nodes: Array
    orders: Array  # g_k(s_i, s_j) / (s_i s_j)^power: (K, N, N)
    total: Array  # k(s_i, s_j, 1) / (s_i s_j)^power, with all orders: (N, N)
    aliased: float  # bound on what the Fourier transform mixed into the orders, relative to the diagonal
    smoothness: Smoothness | None = None  # what is known of the kernel at complex norms; ``None`` where nothing is

    @property
    def degree(self) -> int:
        """The degree of the interpolants in each norm."""
        return len(self.nodes) - 1

    @property
    def logarithmic(self) -> bool:
        """Whether the polynomials are in log s."""
        return 0.0 < self.low < self.high

    def deficit(self, parts: Array) -> Array:
        """Return the difference k - k_twin at the nodes for rho = 1, with all that the series leaves out: (N, N)."""
        flat = parts.transpose(1, 0, 2).reshape(len(self.nodes), -1)
        return np.asarray(self.total - flat @ flat.T)

    @functools.cached_property
    def features(self) -> Array:
        """F_k with F_k F_k' = g_k at the nodes: (K, N, rank)."""
        if self.smoothness is not None:
            return roots_of(self.orders[:, :, pivots(len(self.nodes))])[:, :, -LIMITS.rank :]
        values, vectors = np.linalg.eigh(self.orders)
        return (vectors * np.sqrt(np.maximum(values, 0.0))[:, None, :])[:, :, -LIMITS.rank :]

    def at(self, cells: int) -> tuple[Array, Array]:
        """Return norms at equidistant Chebyshev angles, and the matrix that interpolates there from the nodes."""
        return self._at_angles(np.pi * np.arange(cells + 1) / cells)

    def _at_angles(self, angle: Array) -> tuple[Array, Array]:
        basis = np.cos(np.outer(angle, np.arange(len(self.nodes))))
        return norms_at(np.cos(angle), self.low, self.high), basis @ to_coefficients(len(self.nodes))

    @functools.cached_property
    def grid(self) -> tuple[Array, Array]:
        """The grid on which suprema are bounded."""
        return self.at(LIMITS.grid_cells * len(self.nodes))

    @functools.cached_property
    def diagonal(self) -> Array:
        """k(s, s, 1) / s^(2 power) on the grid."""
        return quadratic(self.grid[1], self.total)

    @functools.cached_property
    def least(self) -> Array:
        """A lower bound of the diagonal in every cell of the grid."""
        low = cell_least(self.diagonal, 2 * self.degree)
        return low if low.min() > 0.0 else self.floor(len(low))

    @functools.cached_property
    def interpolation(self) -> float:
        """What lies beyond the interpolants, relative to the diagonal: by a theorem, or estimated."""
        if len(self.nodes) == 1:
            return 0.0
        if self.smoothness is not None:
            return self.smoothness.interpolation(self.degree, float(self.floor(4 * len(self.nodes)).min()))
        return self._half_way()

    def floor(self, cells: int) -> Array:
        """Bound the diagonal from below in every one of these cells, from cells within them as fine as it takes.

        Over a long range of norms the diagonal is small at one end beside its maximum, to which the slack is relative.
        """
        for finer in (1, 4, 16, 64):
            values = quadratic(self.at(finer * cells)[1], self.total)
            low = cell_least(values, 2 * self.degree).reshape(cells, finer).min(1)
            if low.min() > 0.5 * values.min():
                break
        return low

    @property
    def assumes(self) -> str:
        """What ``interpolation`` takes for granted; one norm needs none."""
        if len(self.nodes) == 1:
            return ""
        return _HALF_WAY if self.smoothness is None else _ENDED

    def _half_way(self) -> float:
        """Return twice the largest error of the interpolants half way between the nodes.

        It is taken over all orders, for norms that are equal, neighbours, or at the ends, at many cosines. Before the
        first node of a range that begins at zero there is no half way: any scale may lie there, so many are looked at.
        """
        angles = np.pi * np.arange(len(self.nodes) + 1) / len(self.nodes)
        if self.low == 0.0:
            angles = np.append(angles[:-1], np.pi - angles[1] * 0.5 ** np.arange(2, 12))
        s, rows = self._at_angles(angles)
        each, size = np.arange(len(s)), len(self.orders)
        i = np.tile(each, 4)
        j = np.concatenate([each, np.minimum(each + 1, each[-1]), 0 * each, 0 * each + each[-1]])
        g = norm_series(self.network, s[i], s[j], self.kernel, 2 * size, oversampling=1, damped=True)[:, :size]
        between = np.einsum("pa,kab,pb->pk", rows[i], self.orders, rows[j], optimize=True)
        diagonal = quadratic(rows, self.total)
        off = (g / (s[i] * s[j])[:, None] ** self.power - between) / np.sqrt(diagonal[i] * diagonal[j])[:, None]
        cosines = np.cos(np.linspace(0.0, np.pi, 129))
        whole = parallel(self.network, self.kernel, s, s) / s ** (2 * self.power)
        return 2.0 * max(
            float(np.abs(off @ cosines ** np.arange(size)[:, None]).max()), float(np.abs(whole / diagonal - 1.0).max())
        )


def parity_of(sizes: Array) -> Parity | None:
    """Return the parity of a kernel in the cosine, from the sizes of its orders: odd activations have odd kernels."""
    odd, even = (bool(sizes[start::2].max() <= 1e-13 * sizes.max()) for start in (0, 1))
    return "odd" if odd else "even" if even else None


def quadratic(rows: Array, matrix: Array) -> Array:
    """Return rows_a' matrix rows_a for every row."""
    return np.einsum("ai,ai->a", rows @ matrix, rows)


def grid_slack(degree: int, cells: int) -> float:
    """Return how much of its maximum norm a polynomial may exceed the larger end of a cell of angles (Bernstein)."""
    return (degree * np.pi / cells) ** 2 / 8.0


def grid_excess(slack: float) -> float:
    """Return how much a polynomial of this slack may exceed its maximum on the grid, as a share of that."""
    return slack / (1.0 - slack) if slack < 1.0 else float("inf")


def cell_least(values: Array, degree: int) -> Array:
    """Bound a polynomial from below in every cell."""
    return np.minimum(values[1:], values[:-1]) - grid_excess(grid_slack(degree, len(values) - 1)) * values.max()


def norms_at(x: Array, low: float, high: float) -> Array:
    """Return the norms at positions x in [-1, 1]."""
    if 0.0 < low < high:
        return np.exp(0.5 * (math.log(high) + math.log(low)) + 0.5 * (math.log(high) - math.log(low)) * x)
    return 0.5 * (high + low) + 0.5 * (high - low) * x


def parallel(network: Network, kernel: Kernel, s: Array, t: Array) -> Array:
    """Return k(s, t, 1), with all orders.

    The Hermite series of kinks do not end, and those of smooth activations not always within the orders that are taken
    (norms above ten). What they lack on the diagonal is known, and added as an order of rank one.
    """
    known = on_circle(network, s, t, kernel, 1)[:, 0].real
    norms, which = np.unique(np.concatenate([s, t]), return_inverse=True)
    left, right = np.split(np.sqrt(_lacking(network, kernel, norms))[which], 2)
    return np.asarray(known + left * right)


def _lacking(network: Network, kernel: Kernel, norms: Array) -> Array:
    """Return what the Hermite series that are taken lack of the diagonal."""
    exact = diagonal(network, torch.from_numpy(norms**2), (kernel,), check=False)[kernel].numpy()
    return np.asarray(np.maximum(exact - on_circle(network, norms, norms, kernel, 1)[:, 0].real, 0.0))


def pivots(count: int) -> NDArray[np.intp]:
    """Return a few of so many nodes, spread as they are."""
    return np.unique(np.linspace(0, count - 1, LIMITS.pivots).round().astype(np.intp))


def roots_of(columns: Array) -> Array:
    """Return F_k projected on what it is at the pivots (Nystroem), from the columns of g_k there; the largest last.

    A smooth kernel has no more than that, to rounding. What it has beyond counts as left out.
    """
    at = columns[:, pivots(columns.shape[1])]
    values, vectors = np.linalg.eigh(at)
    keep = values > NOISE * values.max()
    return columns @ (vectors * (keep / np.sqrt(np.where(keep, values, 1.0)))[:, None, :])


# ---- how a kernel is measured ----------------------------------------------------------------------------------


def measure(network: Network, kernel: Kernel, norms: tuple[float, float], tol: float) -> KernelOrders:
    """Measure a kernel on a range of norms, resolved to a small share of ``tol`` where rounding allows."""
    low, high = norms
    power = int(vanishes_at_zero(network))
    share = max(LIMITS.resolution * tol, 1e-12)  # rounding ends the decay of the coefficients
    terms, _ = resolved(network, kernel, high, LIMITS.resolution * tol)
    if high <= low:
        return sample(network, kernel, low, high, power, terms, 1)
    # kernels at unequal norms are exact where no Hermite coefficients are left out
    exact = _lacking(network, kernel, np.array([high]))[0] <= 1e-13 * parallel(network, kernel, *[np.array([high])] * 2)
    smooth = _continued(network, kernel, low, high, power) if exact else None
    if smooth is not None:
        s = norms_at(np.linspace(-1.0, 1.0, 9), low, high)
        rough = float((parallel(network, kernel, s, s) / s ** (2 * power)).min())  # it only decides how many nodes
        for count in (*range(10, 32, 2), 36, 42, 50, 60, 68, 76, 84, 92, 100, 112):
            # more than thirty nodes cost much: there interpolation may take three times more
            if smooth.interpolation(count - 1, rough) <= (share if count <= 30 else 3.0 * share):
                return sample(network, kernel, low, high, power, terms, count, smooth)
    tried, counts = [], (27, 40) if network.kinked else (12, 18, 27, 40)
    for count in track(counts, len(counts), f"the {kernel} at pairs of norms"):
        tried.append(sample(network, kernel, low, high, power, terms, count))
        if tried[-1].interpolation <= share:
            break
    return min(tried, key=lambda target: target.interpolation)


def sketch(network: Network, kernel: Kernel, norms: tuple[float, float]) -> KernelOrders:
    """Measure the first orders alone at a few norms."""
    rough = sample(network, kernel, *norms, int(vanishes_at_zero(network)), 96, 12)
    return replace(rough, total=rough.orders.sum(0))


def resolved(network: Network, kernel: Kernel, high: float, share: float) -> tuple[int, float]:
    """Count the orders that leave less than ``share`` of the diagonal at the largest norm, where most are needed.

    The second number is the share that as many orders as are ever taken leave there: no bound is below it.
    """
    for count in (96, 256, 512):
        g = np.maximum(norm_series(network, [high], [high], kernel, count, oversampling=2)[0], 0.0)
        total = float(parallel(network, kernel, np.array([high]), np.array([high]))[0])
        enough = np.flatnonzero(total - np.cumsum(g) <= share * total)
        if len(enough):
            return max(int(enough[0]) + 1, 6), 0.0
    return count, 1.0 - float(g.sum()) / total


def sample(
    network: Network,
    kernel: Kernel,
    low: float,
    high: float,
    power: int,
    terms: int,
    count: int,
    smooth: Smoothness | None = None,
) -> KernelOrders:
    """Compute the orders at so many nodes."""
    nodes = norms_at(chebyshev_nodes(count), low, high)
    orders, total = np.zeros((terms, count, count)), np.empty((count, count))
    i, j = np.triu_indices(count)
    total[i, j] = total[j, i] = parallel(network, kernel, nodes[i], nodes[j]) / (nodes[i] * nodes[j]) ** power
    few = np.arange(count) if smooth is None else pivots(count)
    known = (i == j) | np.isin(i, few) | np.isin(j, few)
    i, j, size = i[known], j[known], 2 * terms
    g = norm_series(network, nodes[i], nodes[j], kernel, size, oversampling=1, damped=True)
    g /= (nodes[i] * nodes[j])[:, None] ** power
    orders[:, i, j] = orders[:, j, i] = g[:, :terms].T
    if len(few) < count:
        roots = roots_of(orders[:, :, few])
        orders = roots @ roots.transpose(0, 2, 1)
    mixed = _aliased(np.diag(total), g[i == j], series_radius(network, size, damped=True) ** size)
    return KernelOrders(network, kernel, low, high, power, nodes, orders, total, mixed, smooth)


def _aliased(ends: Array, sampled: Array, damping: float) -> float:
    """Bound what orders m >= M add to the first ones, into which a transform of size M mixes them, and its rounding.

    All M computed orders sum up to k(s, s, 1) less (1 - damping^j) of the orders m, so these sum up to at most what is
    missing / (1 - damping). Between the nodes a feature map is at most Lebesgue's constant times larger. Only the first
    half of the orders is used.
    """
    missing = np.maximum(ends - sampled.sum(1), 0.0) / (1.0 - damping)
    lebesgue = 1.0 + 2.0 / math.pi * math.log(len(ends) + 1.0)
    size = sampled.shape[1]
    noise = 2.0**-52 * (damping ** -(np.arange(size // 2) / size)).sum()
    return float(lebesgue**2 * (damping * (missing / ends).max() + noise))


def vanishes_at_zero(network: Network) -> bool:
    """Say whether the kernel is zero at the origin."""
    return not network.biased and all(abs(float(phi(np.zeros(1))[0])) <= 1e-300 for phi in network.activations)


# ---- smoothness in the norm -----------------------------------------------------------------------------------


def _continued(network: Network, kernel: Kernel, low: float, high: float, power: int) -> Smoothness | None:
    """Find the largest sector to which F(s) / s^power continues; ``None``: kinks, or a range that begins at zero."""
    if not 0.0 < low < high or network.kinked:
        return None
    centre, half = 0.5 * (math.log(high) + math.log(low)), 0.5 * (math.log(high) - math.log(low))
    for angle in (0.72, 0.6, 0.46, 0.34, 0.24):  # half the opening of the sector in which the ellipse lies
        rho = min(angle / half + math.hypot(1.0, angle / half), 64.0)
        size = _largest(network, kernel, centre, half, rho, power)
        if math.isfinite(size):
            return Smoothness(rho, size)
    return None


def _largest(network: Network, kernel: Kernel, centre: float, half: float, rho: float, power: int) -> float:
    """Bound |F(z) / z^power| on an ellipse by discs that cover it; infinite where there is no bound."""
    discs, parts = 32, 4  # over the upper half of the ellipse; where a disc has no bound, four smaller ones are tried
    step, most = math.pi / discs, 0.0
    place = step * (np.arange(discs) + 0.5)
    for level in range(3):
        turn = rho * np.exp(1j * place)
        z = np.exp(centre + 0.5 * half * (turn + 1.0 / turn))
        if level == 0 and not np.isfinite(conjugate_square(network, z, kernel)).all():
            break
        radius = 0.25 * half * (rho + 1.0 / rho) * step  # the speed of the ellipse is at most twice that / step
        squares = conjugate_square(network, z, kernel, radius) / (np.abs(z) * math.exp(-radius)) ** (2 * power)
        without = ~np.isfinite(squares)
        most = max(most, float(squares[~without].max(initial=0.0)))
        if not without.any():
            return math.sqrt(most)
        step /= parts
        place = (place[without][:, None] + step * (np.arange(parts) - 0.5 * (parts - 1))).ravel()
    return math.inf
