"""What a kernel is on average between the points of two classes, and how it moves with norms and inner product.

At finite p the coefficients that matter are averages over the pairs of points, not derivatives at one pair. Norms and
inner products fluctuate like Gaussian variables of variance v: nodes at 0 and +-sqrt(3 v) average exactly to fifth
order. The derivatives at a pair come from the calculus in power series, without differences.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import isolation
from .._arrays import Array
from ..activations import Activation
from ..gaussian import hermite_coefficients
from ..networks import Kernel, Network, check_kernel
from ..networks.nodes import Divided, Domain, FixedPoint, KernelState, LayerMaps, NotOfferedError, equation, kernels_in
from ._limits import LIMITS
from .pointwise import diagonal, equilibrium, equilibrium_variance, mean_square, pairwise
from .power import Series

_BASIS = tuple((i, j, k) for i in range(2) for j in range(2) for k in range(3))
_LAST = max(map(sum, _BASIS))  # u v e^2: higher powers of what deviates from the pair vanish


@dataclass(frozen=True, eq=False)
class NormPart:
    """A function of the two norms, averaged over the pairs of each two classes, K x K."""

    mean: Array
    pull: Array  # E df/d||y||^2
    cross: Array  # E d^2 f/d||x||^2 d||y||^2


def _step(variance: Array | None, size: Array) -> Array:
    """sqrt(3 v), or none where all that fluctuates is rounding."""
    step = 0.0 * size if variance is None else np.sqrt(3.0 * variance)
    return np.where(step > 1e-9 * size, step, 0.0)


class PairAverages:
    """Averages over the pairs of each two classes, K x K.

    ``norms`` (K,) and ``dots`` (K, K) are the typical squared norms and inner products, ``norm_spread`` and
    ``dot_spread`` their variances; without them the kernel is expanded at the typical pairs.
    """

    def __init__(
        self,
        network: Network,
        kernel: Kernel,
        norms: Array,
        dots: Array,
        norm_spread: Array | None = None,
        dot_spread: Array | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        self._network, self._kernel, self._rates, self._dots = network.detached(), kernel, learning_rates, dots
        # a step takes at most half of a squared norm, or of the room that an inner product has
        up = np.minimum(_step(norm_spread, norms), 0.5 * norms)
        room = np.sqrt(np.outer(norms - up, norms - up)) - np.abs(dots)
        wide = _step(dot_spread, np.sqrt(np.outer(norms, norms)))
        step = np.minimum(wide, 0.5 * np.maximum(room, 0.0))
        spread = bool(up.any() or step.any())
        nodes: Array = np.array([-1.0, 0.0, 1.0]) if spread else np.zeros(1)
        self._weights: Array = np.array([1.0, 4.0, 1.0]) / 6.0 if spread else np.ones(1)
        x = norms[:, None] + up[:, None] * nodes[:, None, None, None, None]
        y = norms + up * nodes[:, None, None, None]
        self._at = np.broadcast_arrays(x, y, dots + step * nodes[:, None, None])  # (x, y, dot, K, K) each
        self._spread = step**2 / 3.0
        sx, sy, dot = (torch.from_numpy(np.ascontiguousarray(v)) for v in self._at)
        self.mean = self._average(
            pairwise(self._network, sx, sy, dot, (kernel,), learning_rates)[kernel].numpy()
        )  # E k
        own = diagonal(self._network, torch.from_numpy(norms + up * nodes[:, None]), (kernel,), learning_rates)[kernel]
        self.own: Array = self._weights @ own.numpy()  # E k(x, x), (K,)
        self._own_slope = (own[-1] - own[0]).numpy() / np.maximum(2.0 * up, 1e-300)

    def _average(self, values: Array) -> Array:
        w = self._weights
        return np.einsum("x,y,d,xyd...->...", w, w, w, values)

    @functools.cached_property
    def _at_nodes(self) -> Array:
        """All derivatives at the nodes: entry [..., i, j, k] by ||x||^2, ||y||^2 and x . y."""
        x, y, dot = self._at
        most = 0.98 * np.sqrt(x * y)  # the derivatives of kinks diverge between parallel points
        dot = np.clip(dot, -most, most)
        return kernel_derivatives(self._network, self._kernel, x, y, dot, self._rates)

    @functools.cached_property
    def _derivatives(self) -> Array:
        """E of all derivatives."""
        return self._average(self._at_nodes)

    @property
    def own_share(self) -> Array:
        """E[slope(q, q) (q - d)] - E[slope] E[q - d], (K,): a row and itself have one norm q, another pair has two."""
        x, _, dot = self._at
        same = np.einsum("iidaa,iidaa->ida", self._at_nodes[..., 0, 0, 1], x - dot)
        apart = np.einsum("aa,aa->a", self.slope, self._average(x - dot))
        return np.einsum("i,d,ida->a", self._weights, self._weights, same) - apart

    @property
    def by_norm(self) -> tuple[Array, Array]:
        """How the root of the slope of a class, in logarithms, and what its diagonal has beyond it grow with a norm."""
        k = self._derivatives.diagonal().transpose(3, 0, 1, 2)  # (K, i, j, k)
        rest = np.einsum("aa->a", self._average(self._at[0] - self._at[2]))
        slope, bend = k[:, 0, 0, 1], k[:, 1, 0, 1]
        steeper = np.divide(bend, slope, out=np.zeros_like(bend), where=np.abs(slope) > 1e-12 * np.abs(slope).max())
        return steeper, self._own_slope - 2.0 * k[:, 1, 0, 0] - slope - 2.0 * bend * rest

    @property
    def slope(self) -> Array:
        """E dk/d(x . y)."""
        return self._derivatives[..., 0, 0, 1]

    @property
    def curvature(self) -> Array:
        """E d^2 k/d(x . y)^2."""
        return self._derivatives[..., 0, 0, 2]

    # what the rows themselves do not explain: k - A (x . y) as a function of the norms; zero for odd activations

    @property
    def whole(self) -> NormPart:
        """The part of k - A x . y."""
        return self._norm_part(1.0, -self._dots, 0.0)

    @property
    def flat(self) -> NormPart:
        """The part of k - A x . y - D e^2/2."""
        return self._norm_part(1.0, -self._dots, -0.5 * self._spread)

    def _norm_part(self, *weights: Array | float) -> NormPart:
        """Average a sum of the kernel and its first two derivatives in x . y, with these weights."""
        d = self._derivatives
        parts = [sum(weight * d[..., i, j, k] for k, weight in enumerate(weights)) for i, j in ((0, 0), (0, 1), (1, 1))]
        parts[0] = parts[0] - d[..., 0, 0, 0] + self.mean  # exact also where the series of the derivatives ends early
        return NormPart(*(np.asarray(part) for part in parts))


# ---- derivatives at given pairs ---------------------------------------------------------------------------


@isolation()
def kernel_derivatives(
    network: Network,
    kernel: Kernel,
    sx: Array,
    sy: Array,
    dot: Array,
    learning_rates: Sequence[float] | None = None,
) -> Array:
    """Derivatives [..., i, j, k] by ||x||^2, ||y||^2 and x . y, (..., 2, 2, 3); the points must not be parallel."""
    check_kernel(network, kernel)
    sx, sy, dot = np.broadcast_arrays(sx, sy, dot)
    columns = [np.ravel(v).astype(float) for v in (sx, sy, dot)]
    expression = network.detached().expression(network.rates(learning_rates))
    count = max(1, len(columns[0]) * LIMITS.hermite_terms // LIMITS.held_numbers)
    parts = zip(*(np.array_split(column, count) for column in columns), strict=True)
    try:
        pieces = [_around(expression, kernel, x, y, d).c for x, y, d in parts]
    except NotOfferedError:
        return _by_interpolation(network, kernel, sx, sy, dot, learning_rates)
    found: Array = np.concatenate(pieces).reshape(*sx.shape, 2, 2, 3)
    return found * np.array([1.0, 1.0, 2.0])  # k! of Taylor's formula


def _by_interpolation(
    network: Network, kernel: Kernel, sx: Array, sy: Array, dot: Array, learning_rates: Sequence[float] | None
) -> Array:
    """Differentiate polynomials through 7 x 7 x 7 nearby pairs: units that see the norm have no Hermite series."""
    nodes = np.polynomial.chebyshev.chebpts1(7)
    root, near = np.sqrt(sx * sy), 0.05  # a polynomial of degree 6 on 5 % of the range errs by 1e-8
    steps = (near * sx, near * sy, np.minimum(near * root, 0.25 * ((1.0 - near) * root - np.abs(dot))))
    grids = np.meshgrid(nodes, nodes, nodes, indexing="ij")
    x, y, d = (
        torch.from_numpy(at[..., None, None, None] + step[..., None, None, None] * grid)
        for at, step, grid in zip((sx, sy, dot), steps, grids, strict=True)
    )
    values = pairwise(network, x, y, d, (kernel,), learning_rates)[kernel].numpy()
    powers = np.linalg.inv(np.vander(nodes, increasing=True))
    series = np.einsum("...xyd,ix,jy,kd->...ijk", values, powers[:2], powers[:2], powers[:3], optimize=True)
    i, j, k = np.meshgrid(range(2), range(2), range(3), indexing="ij")
    scale = steps[0][..., None, None, None] ** i * steps[1][..., None, None, None] ** j
    return series * np.array([1.0, 1.0, 2.0]) / (scale * steps[2][..., None, None, None] ** k)


def _around(expression: Sequence[Any], kernel: Kernel, sx: Array, sy: Array, dot: Array) -> _PairSeries:
    points = (sx, np.ones_like(sx)), (sy, np.ones_like(sy))
    inner = _PairSeries.of(dot, {(0, 0, 1): 1.0})
    return kernels_in(_Around(), expression, points, inner, (kernel,))[kernel]


Points = tuple[tuple[Array, Array], tuple[Array, Array]]


class _Around(Domain):
    """Power series around pairs; points are the variances with their slopes in the inputs' squared norms."""

    def layer(self, phi: Activation, points: Points) -> _Layer:
        return _Layer(phi, *points)

    def through(self, phi: Activation, points: Points) -> Points:
        square = functools.partial(mean_square, phi, "value")
        (x, dx), (y, dy) = (_with_rate(square, q) for q, _ in points)
        return (x, dx * points[0][1]), (y, dy * points[1][1])

    def normalised(self, points: Points) -> tuple[LayerMaps, Points]:
        """Return the map to correlations; the variances after it do not move."""
        (x, dx), (y, dy) = points
        root, left, right = np.sqrt(x * y), 0.5 * dx / x, 0.5 * dy / y
        moves = {(1, 0, 0): root * left, (0, 1, 0): root * right, (1, 1, 0): root * left * right}
        one = np.ones_like(x), np.zeros_like(x)
        return Divided(_PairSeries.of(root, moves)), (one, one)

    def settle(self, fixed: FixedPoint, state: KernelState) -> Points:
        (x, _), (y, _) = state.points
        grow = functools.partial(_with_rate, functools.partial(equilibrium_variance, fixed.network))
        return grow(x), grow(y)

    def solve(self, fixed: FixedPoint, cell: Any, points: Points, state: KernelState) -> _PairSeries:
        """Solve for the pair itself, then degree by degree."""
        (x, _), (y, _) = state.points
        pair = (torch.from_numpy(v) for v in (x, y, state.covariance.c[:, 0].copy()))
        covariance, drive = _PairSeries.of(equilibrium(fixed.network, *pair)[2].numpy()), fixed.drive(state.covariance)
        for _ in range(_PairSeries.doublings()):
            residual, rate = equation(cell, covariance, fixed.sigma_a2, drive)
            covariance = covariance - residual / rate
        return covariance


def _with_rate(function: Callable[[Tensor], Tensor], x: Array) -> tuple[Array, Array]:
    with torch.enable_grad():
        at = torch.from_numpy(x).requires_grad_(True)
        value = function(at)
        (rate,) = torch.autograd.grad(value.sum(), at)
    return value.detach().numpy(), rate.numpy()


class _PairSeries(Series):
    """Around many pairs: coefficients (pairs, monomials)."""

    bases = (_BASIS,)

    @staticmethod
    def of(constant: Array, others: dict[tuple[int, int, int], Any] | None = None) -> _PairSeries:
        c = np.zeros((len(constant), len(_BASIS)))
        c[:, 0] = constant
        for monomial, coefficient in (others or {}).items():
            c[:, _BASIS.index(monomial)] = coefficient
        return _PairSeries(c)


class _Layer(LayerMaps):
    """Expectations of one activation around pairs of variances, each with its slope in the squared norm of an input."""

    def __init__(self, phi: Activation, qx: tuple[Array, Array], qy: tuple[Array, Array]) -> None:
        self.phi, self.qx, self.qy = phi, qx, qy
        self.root = np.sqrt(qx[0] * qy[0])
        self._taylor: list[_PairSeries] | None = None

    def both(self, covariance: _PairSeries) -> tuple[_PairSeries, _PairSeries]:
        """(value, slope) by Taylor's formula around the correlation of the pair."""
        if self._taylor is None:  # the correlations of the pairs stay, whatever deviates from them
            self._taylor = _expanded(self.phi, self.qx, self.qy, covariance.c[:, 0] / self.root)
        taylor = self._taylor
        deviation = _PairSeries(covariance.c / self.root[:, None])
        deviation.c[:, 0] = 0.0
        value = slope = _PairSeries(np.zeros_like(covariance.c))
        for k in range(_LAST, -1, -1):
            value = value * deviation + taylor[k]
            slope = slope * deviation + (k + 1.0) * taylor[k + 1]
        return value, (1.0 / self.root[:, None]) * slope


def _expanded(phi: Activation, qx: tuple[Array, Array], qy: tuple[Array, Array], rho: Array) -> list[_PairSeries]:
    """The coefficients of (r - rho)^k in sum_m A_m(q_x) A_m(q_y) r^m, as series in u and v."""
    # powers of rho that count, times m^5 from five derivatives
    most = float(np.clip(np.abs(rho).max(), 1e-12, 1.0 - 1e-9))
    terms = min(LIMITS.hermite_terms, max(64, math.ceil(80.0 / -math.log(most))))
    (ax, bx), (ay, by) = _rows(phi, *qx, terms), _rows(phi, *qy, terms)
    products = {(0, 0): ax * ay, (1, 0): bx * ay, (0, 1): ax * by, (1, 1): bx * by}
    m = np.arange(terms)
    power, found = rho[:, None] ** m, []
    for k in range(_LAST + 2):
        weights = np.zeros_like(power)
        weights[:, k:] = power[:, : terms - k] * [math.comb(int(n), k) for n in m[k:]]
        series = {(i, j, 0): (weights * product).sum(1) for (i, j), product in products.items()}
        found.append(_PairSeries.of(series.pop((0, 0, 0)), series))
    return found


def _rows(phi: Activation, q: Array, rate: Array, terms: int) -> tuple[Array, Array]:
    """A_m at the variances q, and how it moves with the squared norm of the input."""
    a = np.asarray(hermite_coefficients(phi, q, terms + 2))
    m = np.arange(terms)
    moves = 0.5 * np.sqrt((m + 1.0) * (m + 2.0)) * a[:, 2:]
    return a[:, :-2], moves * (rate / q)[:, None]
