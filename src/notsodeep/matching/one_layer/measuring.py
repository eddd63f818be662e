"""How a target is measured: so many orders and norms as its tolerance asks for, by a theorem where it is smooth.

The feature map F of the kernel along a ray is analytic in a sector around the positive norms (``kernels.conjugate``),
hence in the variable log s in a strip around the range. If it is bounded by M on the Bernstein ellipse of parameter
rho, its interpolant of degree n in Chebyshev points is off by at most 4 M rho^(-n) / (rho - 1) anywhere in the range;
this holds for maps into a Hilbert space as it does for functions. With that, relative to the least |F(s)|, called e,

    |k(s, t, .) - k_N(s, t, .)| <= (2 e + e^2) sqrt(k(s, s, 1) k(t, t, 1))    for all cosines at once.

M is the largest of the bounds on discs that cover the ellipse.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..._chebyshev import nodes as chebyshev_nodes
from ...kernels.conjugate import conjugate_square
from ...kernels.series import norm_series, series_radius
from ...networks import DEQ, Kernel, Network
from .target import Array, KernelOrders, Smoothness, norms_at, parallel, pivots, roots_of

_NODES = (*range(10, 32, 2), 36, 42, 50, 60, 68, 76, 84, 92, 100, 112)
_CHEAP, _DEAR = 30, 3.0  # with more nodes than this, interpolation may take so many times more
_SPARSE = (12, 18, 27, 40)  # where each number has to be tried
_PROBES = (96, 256, 512)
_SKETCHED = 12
_SHARE = 1e-3  # of the tolerance: what truncation may take
_APART = 1e-3  # and what interpolation may
_LEAST = 1e-12  # rounding ends the decay of the coefficients
_DISCS = 32  # that cover the upper half of an ellipse
_PARTS, _LEVELS = 4, 3  # where a disc has no bound, smaller ones are tried
_ANGLES = (0.72, 0.6, 0.46, 0.34, 0.24)  # half openings of the sector in which the ellipse lies


def measure(network: Network, kernel: Kernel, norms: tuple[float, float], tol: float) -> KernelOrders:
    """The target on a range of norms, resolved to a small share of ``tol`` where rounding allows."""
    low, high = norms
    power = int(_vanishes_at_zero(network))
    share = max(_APART * tol, _LEAST)
    terms = _resolved(network, kernel, high, _SHARE * tol)
    if high <= low:
        return _sample(network, kernel, low, high, power, terms, 1, None)
    smooth = _continued(network, kernel, low, high, power)
    if smooth is not None:
        rough = _sample_diagonal(network, kernel, low, high, power)
        for count in _NODES:
            if smooth.interpolation(count - 1, rough) <= (share if count <= _CHEAP else _DEAR * share):
                return _sample(network, kernel, low, high, power, terms, count, smooth)
    best, kinked = None, network.kinked
    for count in _SPARSE[2:] if kinked else _SPARSE:
        target = _sample(network, kernel, low, high, power, terms, count, None)
        best = target if best is None or target.interpolation < best.interpolation else best
        if best.interpolation <= share:
            break
    assert best is not None
    return best


def sketch(network: Network, kernel: Kernel, norms: tuple[float, float]) -> KernelOrders:
    """The first orders alone at a few norms."""
    found = _sample(network, kernel, *norms, int(_vanishes_at_zero(network)), _PROBES[0], _SKETCHED, None)
    return replace(found, total=found.orders.sum(0))


def _resolved(network: Network, kernel: Kernel, high: float, share: float) -> int:
    """How many orders leave less than ``share`` of the diagonal at the largest norm, where the series is longest."""
    for count in _PROBES:
        g = np.maximum(norm_series(network, [high], [high], kernel, count, oversampling=2)[0], 0.0)
        total = float(parallel(network, kernel, np.array([high]), np.array([high]))[0])
        enough = np.flatnonzero(total - np.cumsum(g) <= share * total)
        if len(enough):
            return max(int(enough[0]) + 1, 6)
    return count


def _sample_diagonal(network: Network, kernel: Kernel, low: float, high: float, power: int) -> float:
    """The least k(s, s, 1) / s^(2 power), roughly: it only decides how many nodes are taken."""
    s = norms_at(np.linspace(-1.0, 1.0, 9), low, high)
    return float((parallel(network, kernel, s, s) / s ** (2 * power)).min())


def _sample(
    network: Network,
    kernel: Kernel,
    low: float,
    high: float,
    power: int,
    terms: int,
    count: int,
    smooth: Smoothness | None,
) -> KernelOrders:
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
    """Of orders m >= M that a transform of size M mixes into the first ones, damped by at least ``damping``.

    All M computed orders sum up to k(s, s, 1) less (1 - damping^j) of the orders m, so these sum up to at most what is
    missing / (1 - damping). Between the nodes a feature map is at most Lebesgue's constant times larger.
    """
    missing = np.maximum(ends - sampled.sum(1), 0.0) / (1.0 - damping)
    lebesgue = 1.0 + 2.0 / math.pi * math.log(len(ends) + 1.0)
    return float(damping * lebesgue**2 * (missing / ends).max())


def _vanishes_at_zero(network: Network) -> bool:
    """Whether the kernel is zero at the origin."""
    if isinstance(network, DEQ) and network.variances[2] > 0.0:
        return False
    return all(math.isclose(float(phi(np.zeros(1))[0]), 0.0, abs_tol=1e-300) for phi in network.activations)


# ---- smoothness in the norm -----------------------------------------------------------------------------------


def _continued(network: Network, kernel: Kernel, low: float, high: float, power: int) -> Smoothness | None:
    """The largest sector to which F(s) / s^power continues, or ``None``: kinks, or a range that begins at zero."""
    if not 0.0 < low < high or network.kinked:
        return None
    centre, half = 0.5 * (math.log(high) + math.log(low)), 0.5 * (math.log(high) - math.log(low))
    for angle in _ANGLES:
        rho = min(angle / half + math.hypot(1.0, angle / half), 64.0)
        size = _largest(network, kernel, centre, half, rho, power)
        if math.isfinite(size):
            return Smoothness(rho, size)
    return None


def _largest(network: Network, kernel: Kernel, centre: float, half: float, rho: float, power: int) -> float:
    """A bound of |F(z) / z^power| on an ellipse, from discs that cover it; infinite where there is none."""
    step, most = math.pi / _DISCS, 0.0
    place = step * (np.arange(_DISCS) + 0.5)
    for level in range(_LEVELS):
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
        step /= _PARTS
        place = (place[without][:, None] + step * (np.arange(_PARTS) - 0.5 * (_PARTS - 1))).ravel()
    return math.inf
