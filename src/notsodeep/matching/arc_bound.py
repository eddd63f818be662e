"""A rigorous supremum over all angles for homogeneous networks.

On a cell of length h the error is at most its larger endpoint value plus h^2/8 sup|e''| (or h/2 sup|e'|). The
derivatives are those in the angle of the inputs, and are bounded cell by cell (docs/uniform.md, "The certificate"):

- a layer moves angles by at most as much as its input moves (feature maps of unit speed), so |t_l'| <= 1 for every
level;
- the correlation r_l = cos t_l has |r_l''| <= |k'| |r_(l-1)''| + (c_l / pi) sin t_(l-1);
- the angle t_l itself, which enters the NTK, has |t_l''| <= |t_(l-1)''| + sup|psi''|, psi the layer's map of angles.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..kernels.recursion import LayerMaps, explicit, implicit
from ..networks import Kernel, is_tangent
from .arc import Array, Bend, HomogeneousDEQ, grid, terms
from .certificates import Proof

ROUNDING = 1e-12  # of sums and products of terms of order one, and of the solution of the DEQ's equation
_NEAR = 0.3  # below this angle psi'' is bounded by Cauchy's estimates, above it by interval arithmetic


@dataclass(frozen=True)
class Bounds:
    """Cellwise bounds on |f|, |f'|, |f''| in the angle: numbers of the calculus of kernels."""

    value: Array
    first: Array
    second: Array

    def __add__(self, other: Bounds) -> Bounds:
        return Bounds(self.value + other.value, self.first + other.first, self.second + other.second)

    def __mul__(self, other: Bounds) -> Bounds:
        return Bounds(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + 2.0 * self.first * other.first + self.value * other.second,
        )

    def __rmul__(self, factor: float) -> Bounds:
        return Bounds(factor * self.value, factor * self.first, factor * self.second)

    def __rsub__(self, number: float) -> GapBounds:
        return GapBounds(number - self.value, self.first, self.second)

    def __truediv__(self, gap: GapBounds) -> Bounds:
        return self * gap.inverse


@dataclass(frozen=True)
class GapBounds:
    """A positive function: how small it is at least, and bounds on its derivatives."""

    least: Array
    first: Array
    second: Array

    @property
    def inverse(self) -> Bounds:
        least = self.least
        return Bounds(1.0 / least, self.first / least**2, self.second / least**2 + 2.0 * self.first**2 / least**3)


@dataclass(frozen=True)
class CorrelationBounds(Bounds):
    """Bounds on a correlation r = cos t, and what else is known of t on every cell."""

    nodes: Array
    """r at the ends of the cells."""
    low: Array
    high: Array
    """The range of t."""
    bending: Array
    """Bound on |t''|."""

    @staticmethod
    def inputs(cells: int) -> CorrelationBounds:
        angle, cosine = grid(cells)
        one, (low, high) = np.ones(cells), (angle[:-1], angle[1:])
        return CorrelationBounds(one, _sine_above(low, high), one, cosine, low, high, np.zeros(cells))

    @staticmethod
    def equilibrium(deq: HomogeneousDEQ, nodes: Array) -> CorrelationBounds:
        """The DEQ's own correlation: |r''| <= 1, because (1 + h sin t/pi) / (1 + h t/pi) <= 1."""
        low, high = cell_range(np.arccos(nodes))
        one = np.ones_like(low)
        bending = _equilibrium_bending(deq.step, low, high) if deq.step > 0 else np.zeros_like(low)
        return CorrelationBounds(one, _sine_above(low, high), one, nodes, low, high, bending)


def cell_range(angle: Array) -> tuple[Array, Array]:
    """Range on each cell of a function with |t'| <= 1, from its values at the cell's ends."""
    half = 0.5 * math.pi / (len(angle) - 1)
    low = np.minimum(angle[:-1], angle[1:]) - half
    high = np.maximum(angle[:-1], angle[1:]) + half
    return np.maximum(low, 0.0), np.minimum(high, math.pi)


class BoundedBend(LayerMaps):
    """A layer of bend c on levels; ``last``: nothing follows that would ask how the angle bends."""

    def __init__(self, c: float, last: bool) -> None:
        self.c, self.last = c, last

    def value(self, level: CorrelationBounds) -> CorrelationBounds:
        """The next level."""
        nodes = Bend(self.c).value(level.nodes)
        low, high = cell_range(np.arccos(nodes))
        second = _slope_above(level, self.c) * level.second + self.c / math.pi * _sine_above(level.low, level.high)
        extra = 0.0 if self.last or self.c <= 0 else _layer_bending(level, low, high, self.c)
        first = _sine_above(low, high)
        return CorrelationBounds(np.ones_like(low), first, second, nodes, low, high, level.bending + extra)

    def both(self, level: CorrelationBounds) -> tuple[CorrelationBounds, Bounds]:
        """The next level, and 1 - c t / pi, the layer's derivative kernel."""
        slant = self.c / math.pi
        slope = Bounds(_slope_above(level, self.c), np.full_like(level.low, slant), slant * level.bending)
        return self.value(level), slope


# ---- derivative bounds of the two kernels ----------------------------------------------------------------


def ck_curvature(deq: HomogeneousDEQ, bends: Array, weight: float) -> float:
    """sup|e''| for the CK in closed form: 1 + c0/pi for the DEQ and 1 + sum(c)/pi for the twin."""
    return 1.0 + deq.bend / math.pi + weight * (1.0 + float(np.sum(bends)) / math.pi)


def deq_bounds(deq: HomogeneousDEQ, nodes: Array, kind: Kernel) -> Bounds:
    """Bounds for the kernel relative to its diagonal; ``nodes``: its equilibrium at the ends of the cells."""
    level, layer = CorrelationBounds.equilibrium(deq, nodes), BoundedBend(deq.bend, last=True)
    found = implicit(level, layer, deq.feedback, (kind,), lambda gap: None)[kind]  # 1 - s k' >= 1 - s > 0
    return deq.gain / deq.diagonal(kind) * found


def twin_bounds(bends: Array, weights: Array, cells: int, kind: Kernel) -> Bounds:
    """Bounds for sum_j weights_j terms_j, the weights in the order of :func:`arc.terms`."""
    stack = [BoundedBend(float(c), last=i == len(bends)) for i, c in enumerate(bends, 1)]
    own = [float(w) for w in weights]
    # a CK has no rates of its own, and a frozen input weight has none that counts
    rates = [0.0] * (len(bends) + 1 - len(own)) + own
    found = explicit(CorrelationBounds.inputs(cells), stack, rates, (kind,))[kind]
    return found if is_tangent(kind) else own[-1] * found


# ---- |psi''| ---------------------------------------------------------------------------------------------


def _layer_bending(level: CorrelationBounds, low: Array, high: Array, c: float) -> Array:
    """sup|psi''|, sin(psi) psi'' = cos t (1 - c t/pi) - (c/pi) sin t - cos(psi) psi'^2, psi' = sin t (1 - c t/pi) /
    sin(psi)."""
    t_low, t_high = level.low, level.high
    sine, least = _sine(low, high)
    t_sine, t_least = _sine(t_low, t_high)
    slope = (1.0 - c * t_high / math.pi, 1.0 - c * t_low / math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = _square(_product((t_least, t_sine), slope), least, sine)
        top = _product((np.cos(t_high), np.cos(t_low)), slope)
        pull = _product((np.cos(high), np.cos(low)), speed)
        above = top[1] - c / math.pi * t_least - pull[0]
        below = top[0] - c / math.pi * t_sine - pull[1]
        far = np.maximum(np.abs(above), np.abs(below)) / least
    far = np.where(np.isfinite(far), far, np.inf)
    return np.where(t_high <= _NEAR, _near_bending(-c), far)


def _equilibrium_bending(h: float, low: Array, high: Array) -> Array:
    """The same for the implicit step: sin(psi) g psi'' = cos t - (cos(psi) g + (h/pi) sin(psi)) psi'^2, g = 1 + h
    psi/pi."""
    angle, cosine = grid(len(low))
    t_sine, t_least = _sine(angle[:-1], angle[1:])
    sine, least = _sine(low, high)
    g = (1.0 + h * low / math.pi, 1.0 + h * high / math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = _square((t_least, t_sine), least * g[0], sine * g[1])
        inner = _product((np.cos(high), np.cos(low)), g)
        pull = _product((inner[0] + h / math.pi * least, inner[1] + h / math.pi * sine), speed)
        far = np.maximum(np.abs(cosine[:-1] - pull[0]), np.abs(cosine[1:] - pull[1])) / (least * g[0])
    far = np.where(np.isfinite(far), far, np.inf)
    return np.where(high <= _NEAR, _near_bending(h), far)


def _near_bending(kappa: float) -> float:
    """sup|t''| below _NEAR for sin(t/2) = sin(u/2) m(u), m = sqrt(1 + kappa w(u)), w = d(cos u) / (1 - cos u).

    w is analytic with |w| <= 0.4963 on |u| <= 1.5 and w(0) = 0, hence |w(u)| <= 0.331 |u|, |w'| <= 0.4963, |w''| <=
    0.9926.
    """
    w0, w1, w2 = 0.331 * _NEAR, 0.4963, 0.9926
    size = abs(kappa)
    most, least = math.sqrt(1.0 + size * w0), math.sqrt(max(1.0 - size * w0, 0.25)) if kappa < 0 else 1.0
    m1 = size * w1 / (2.0 * least)
    m2 = size * w2 / (2.0 * least) + (size * w1) ** 2 / (4.0 * least**3)
    s0 = math.sin(0.5 * _NEAR)
    s = s0 * (most if kappa > 0 else 1.0)
    if s >= 0.95:
        return math.inf
    top = most if kappa > 0 else 1.0
    first = 0.5 * top + s0 * m1
    second = 0.25 * s0 * top + m1 + s0 * m2
    room = 1.0 - s * s
    return 2.0 * second / math.sqrt(room) + 2.0 * s * first**2 / room**1.5


# ---- intervals -------------------------------------------------------------------------------------------

_Interval = tuple[Array, Array]


def _sine(low: Array, high: Array) -> tuple[Array, Array]:
    """(largest, smallest) sine on [low, high] within [0, pi]."""
    a, b = np.sin(low), np.sin(high)
    return _sine_above(low, high), np.maximum(np.minimum(a, b), 0.0)


def _sine_above(low: Array, high: Array) -> Array:
    return np.where((low < 0.5 * math.pi) & (high > 0.5 * math.pi), 1.0, np.maximum(np.sin(low), np.sin(high)))


def _slope_above(level: CorrelationBounds, c: float) -> Array:
    return np.maximum(np.abs(1.0 - c * level.low / math.pi), np.abs(1.0 - c * level.high / math.pi))


def _product(x: _Interval, y: _Interval) -> _Interval:
    corners = np.stack([x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1]])
    return corners.min(0), corners.max(0)


def _square(top: _Interval, least: Array, most: Array) -> _Interval:
    """(top / bottom)^2 for bottom in [least, most], never above 1 because angles do not expand."""
    size = np.maximum(np.abs(top[0]), np.abs(top[1]))
    small = np.where(top[0] * top[1] <= 0, 0.0, np.minimum(np.abs(top[0]), np.abs(top[1])))
    upper = np.minimum(np.where(least > 0, size / np.where(least > 0, least, 1.0), 1.0), 1.0)
    return np.minimum((small / np.maximum(most, 1e-300)) ** 2, upper**2), upper**2


# ---- the certificate -------------------------------------------------------------------------------------


def certify(
    deq: HomogeneousDEQ, bends: Array, weights: Array, kind: Kernel, *, cells: int = 2048, relative: float = 0.05
) -> Proof:
    """sup over all correlations of |k_deq - k_twin| / sqrt(k_deq(x, x) k_deq(y, y)), of plain layers."""

    def between(nodes: Array) -> Array | float:
        h = math.pi / (len(nodes) - 1)
        if not is_tangent(kind):
            return 0.125 * h * h * ck_curvature(deq, bends, float(weights[0]))
        return within(deq_bounds(deq, nodes, kind) + twin_bounds(bends, weights, len(nodes) - 1, kind))

    # an angle enters slopes with c / pi <= 2 / pi, in every layer of DEQ and twin
    rounding = (len(bends) + 2) * (2.0 + float(np.sum(weights)))
    return supremum(
        deq, kind, lambda rho: weights @ terms(rho, bends, kind), between, rounding, cells=cells, relative=relative
    )


def supremum(
    deq: HomogeneousDEQ,
    kind: Kernel,
    twin: Callable[[Array], Array],
    between: Callable[[Array], Array | float],
    rounding: float = 0.0,
    *,
    cells: int,
    relative: float,
    most_cells: int = 1 << 17,
) -> Proof:
    """Of |k_deq - twin| relative to the diagonal, over all correlations.

    ``between``: from the DEQ's own correlations at the ends of the cells, how much the error can exceed its values
    there inside each cell. The grid is refined until that is below ``relative`` of the bound. An angle is read off its
    cosine with an error of up to eps / sin(t), which counts ``rounding`` times.
    """
    while True:
        _, rho = grid(cells)
        r = _on_grid(deq, cells)
        error = np.abs(deq.profile_at(r, kind) - twin(rho))
        lost = ROUNDING + rounding * float(np.finfo(float).eps) / math.sin(math.pi / cells)
        bound = float(np.max(np.maximum(error[:-1], error[1:]) + between(r))) + lost
        worst = int(np.argmax(error))
        sampled = float(error[worst])
        if bound - sampled <= relative * bound or cells >= most_cells or sampled < 1e-11:
            return Proof(bound, sampled, float(rho[worst]))
        gap = (bound - sampled) / (0.6 * relative * bound)
        cells = min(most_cells, cells * 2 ** max(1, math.ceil(0.5 * math.log2(gap))))


@functools.lru_cache(maxsize=16)
def _on_grid(deq: HomogeneousDEQ, cells: int) -> Array:
    """Kept: every design for a DEQ is held against it, on the same few grids."""
    return deq.equilibrium(grid(cells)[1])


def within(total: Bounds) -> Array:
    """How much a function with these derivatives can exceed its values at the ends of each cell."""
    h = math.pi / len(total.first)
    return np.minimum(0.5 * h * total.first, 0.125 * h * h * total.second)
