"""Homogeneous DEQs by ordinary units f(w.x - t |x|): how many units have which threshold is a linear programme.

The kernel of the layer is |x| |y| sum_t mu_t k_t(rho), mu_t >= 0; gated units bring |x| |y| rho k_t'(rho), as tangent
kernels have it. The largest error over all angles is a maximum of linear functions of mu. On a cell of angles of length
h the error is at most its larger endpoint value plus h^2/8 sup|e''| (or h/2 sup|e'|): a rigorous supremum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import ndtr

from ...errors import ConvergenceError
from ...kernels import diagonal, pairwise
from ...kernels.pointwise import equilibrium
from ...networks import DEQ, Kernel, is_tangent
from ...networks.nodes import Precomputed, at_equilibrium
from ...units import Thresholds
from ...units.thresholds import threshold_profiles
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from .bound import LayerDesign

Array = NDArray[np.float64]
_Interval = tuple[Array, Array]


@dataclass(frozen=True)
class Shares:
    """A solution of the linear programme, relative to the diagonal."""

    thresholds: Array
    weights: Array
    gated: NDArray[np.bool_]
    error: float


def design(deq: DEQ, kernel: Kernel, tol: float) -> LayerDesign:
    """The smallest thresholds within ``tol``, or the best there are."""
    arc, tried = _Arc(deq, kernel), []
    for reach, count in ((1.6, 33), (2.5, 41), (3.5, 57)):  # thresholds in [-reach, reach]
        tried.append(_shares(arc, np.linspace(-reach, reach, count)))
        if tried[-1].error <= tol / (1.0 + 4.0 * LIMITS.threshold_slack):
            break
    best = min(tried, key=lambda shares: shares.error)
    weights = (arc.diagonal(kernel) * best.weights).tolist()
    layer = Thresholds(tuple(best.thresholds.tolist()), tuple(weights), arc.leak, int(best.gated.sum()))
    proof = _certify(arc, best)
    reason = f"ordinary units with {len(weights)} thresholds proportional to |x|"
    return LayerDesign(layer, proof, (Tried(1, proof.bound, "thresholds"),), reason)


def _shares(arc: _Arc, thresholds: Array) -> Shares:
    """The shares of the units and, for a tangent kernel, of gated ones."""
    rho = np.cos(np.linspace(0.0, np.pi, 321))
    wanted = arc.profile(rho, arc.kernel)
    value, slope = threshold_profiles(rho, thresholds, arc.leak)
    gated = np.zeros(len(thresholds), dtype=bool)
    rows = value
    if is_tangent(arc.kernel):
        rows, gated = np.concatenate([value, rho * slope]), np.concatenate([gated, ~gated])
        thresholds = np.tile(thresholds, 2)
    weights, _ = _programme(rows, wanted)
    large = np.flatnonzero(weights * rows[:, 0] > 1e-7)  # without smaller shares of the diagonal the others adapt
    weights, error = _programme(rows[large], wanted)
    alive = weights > 0.0
    return Shares(thresholds[large[alive]], weights[alive], gated[large[alive]], error)


def _programme(rows: Array, wanted: Array) -> tuple[Array, float]:
    """Shares mu >= 0 with the least largest |rows' mu - wanted|."""
    columns = (rows / rows[:, :1]).T  # of diagonal one
    unit = float(np.abs(wanted).max())
    level = np.ones((len(wanted), 1))
    inequality = np.block([[columns, -level], [-columns, -level]])
    side, cost = np.concatenate([wanted, -wanted]) / unit, np.append(np.zeros(len(rows)), 1.0)
    for accuracy in (1e-10, 1e-9, 1e-7):  # the solver gives up now and then where it is asked for all digits
        options = {"primal_feasibility_tolerance": accuracy, "dual_feasibility_tolerance": accuracy}
        solved = linprog(cost, A_ub=inequality, b_ub=side, method="highs", options=options)
        if solved.x is not None:
            mu = np.maximum(solved.x[:-1] * unit, 0.0)
            return mu / rows[:, 0], float(np.abs(columns @ mu - wanted).max())
    raise ConvergenceError("the linear programme of the thresholds was not solved")


# ---- the certificate: a supremum over all angles ---------------------------------------------------------


def _certify(arc: _Arc, shares: Shares) -> Supremum:
    """Bound the error of the layer for every angle, on a grid that is refined until the cells add little to it."""
    cells, most_cells, slack = 4096, 1 << 17, LIMITS.threshold_slack
    while True:
        angle = np.linspace(0.0, math.pi, cells + 1)
        rho = np.cos(angle)
        value, slope = threshold_profiles(rho, shares.thresholds.tolist(), arc.leak)
        profile = shares.weights @ np.where(shares.gated[:, None], rho * slope, value)
        error = np.abs(arc.profile(rho, arc.kernel) - profile)
        between = (arc.bounds(rho) + _unit_bounds(angle, arc.leak, shares)).excess()
        bound = float(np.max(np.maximum(error[:-1], error[1:]) + between)) + 1e-12  # rounding of terms of order one
        worst = int(np.argmax(error))
        sampled = float(error[worst])
        if bound - sampled <= slack * bound or cells >= most_cells or sampled < 1e-11:
            return Supremum(bound, sampled, float(rho[worst]))
        gap = (bound - sampled) / (0.6 * slack * bound)
        cells = min(most_cells, cells * 2 ** max(1, math.ceil(0.5 * math.log2(gap))))


@dataclass(frozen=True)
class _Bounds:
    """Cellwise bounds on |f|, |f'|, |f''| in the angle: numbers of the calculus of kernels."""

    value: Array
    first: Array
    second: Array

    def __add__(self, other: _Bounds) -> _Bounds:
        return _Bounds(self.value + other.value, self.first + other.first, self.second + other.second)

    def __mul__(self, other: _Bounds) -> _Bounds:
        return _Bounds(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + 2.0 * self.first * other.first + self.value * other.second,
        )

    def __rmul__(self, factor: float) -> _Bounds:
        return _Bounds(factor * self.value, factor * self.first, factor * self.second)

    def __rsub__(self, number: float) -> _Bounds:
        """Bounds on 1 / (number - f), stored as the inverse because only quotients of such gaps are needed."""
        least = number - self.value
        return _Bounds(1.0 / least, self.first / least**2, self.second / least**2 + 2.0 * self.first**2 / least**3)

    def __truediv__(self, inverse: _Bounds) -> _Bounds:
        return self * inverse

    def excess(self) -> Array:
        """How much a function with these derivatives can exceed its values at the ends of each cell."""
        h = math.pi / len(self.first)
        return np.minimum(0.5 * h * self.first, 0.125 * h * h * self.second)


def _unit_bounds(angle: Array, leak: float, shares: Shares) -> _Bounds:
    """Bounds on the derivatives of the layer's kernel in the angle, cell by cell; none on its value."""
    high = angle[1:]
    first, second = np.zeros(len(high)), np.zeros(len(high))
    for t, weight, gated in zip(*(v.tolist() for v in (shares.thresholds, shares.weights, shares.gated)), strict=True):
        own = _derivatives(t, leak, high)[gated]
        first += weight * own[0]
        second += weight * own[1]
    return _Bounds(np.full_like(first, np.inf), first, second)


def _derivatives(t: float, leak: float, high: Array) -> tuple[Sequence[Array | float], Sequence[Array | float]]:
    """(first, second) of k_t and of rho k_t' on cells that end at the angles ``high``.

    With P = k_t' <= P(xi > t) and e = exp(-t^2/(1 + cos a)) <= exp(-t^2/2) at the angle a: k_t'' = sin(a) e / (2 pi)
    - P cos(a), (rho P)' = -P sin(a) - cos(a) e / (2 pi), (rho P)'' = -P cos(a) + sin(a) e / pi - cos(a) e' / (2 pi)
    and |e'| <= min(t^2 tan(a/2)/(1 + cos a), 0.58/|t|).
    """
    up, jump = float(ndtr(-t)), (1.0 - leak) ** 2
    most = abs(leak**2 + 2.0 * leak * (1.0 - leak) * up) + jump * up  # of |k_t'|
    bell = jump * math.exp(-0.5 * t * t) / (2.0 * math.pi)
    near = np.maximum(1.0 + np.cos(high), 1e-300)
    steep = np.minimum(t * t * np.tan(np.minimum(0.5 * high, 1.57)) / near, 0.58 / max(abs(t), 1e-12))
    return (most, most + bell), (most + bell, most + 2.0 * bell + jump * steep / (2.0 * math.pi))


# ---- the DEQ as a function of the angle ------------------------------------------------------------------


@dataclass(frozen=True)
class _Arc:
    """A kernel of a homogeneous DEQ, at inputs of norm one.

    Up to a gain, a layer a x (x > 0), b x (x < 0) acts on correlations as r -> r + c d(r) with d(cos t) = (sin t -
    t cos t) / pi, of slope 1 - c t / pi, where c = (a - b)^2 / (a^2 + b^2) in [0, 2] is its bend. The DEQ solves
    r = rho + h d(r), h = s c / (1 - s), s = sigma_a2 (a^2 + b^2) / 2 < 1, and applies its layer to the solution.
    """

    deq: DEQ
    kernel: Kernel

    @property
    def bend(self) -> float:
        """0 for a linear layer, 1 for ReLU, 2 for the absolute value."""
        a, b = self._slopes()
        return (a - b) ** 2 / (a * a + b * b)

    @property
    def leak(self) -> float:
        """The leaky ReLU of this bend, (1 - leak)^2 / (1 + leak^2): the DEQ's own, up to a gain and a reflection."""
        bend = self.bend
        return 0.0 if abs(bend - 1.0) < 1e-12 else (1.0 - math.sqrt(bend * (2.0 - bend))) / (1.0 - bend)

    def _slopes(self) -> tuple[float, float]:
        phi = self.deq.activation
        return float(phi(np.array(1.0))), -float(phi(np.array(-1.0)))

    def diagonal(self, kernel: Kernel) -> float:
        """The kernel of an input of norm one with itself."""
        return float(diagonal(self.deq, torch.ones(1, dtype=torch.float64), (kernel,), check=False)[kernel])

    def profile(self, rho: Array, kernel: Kernel) -> Array:
        """k(x, y) / sqrt(k(x, x) k(y, y)) of inputs of this cosine."""
        one = torch.ones(len(rho), dtype=torch.float64)
        values = pairwise(self.deq, one, one, torch.from_numpy(rho), (kernel,), check=False)[kernel]
        return np.asarray(values) / self.diagonal(kernel)

    def bounds(self, rho: Array) -> _Bounds:
        """Bounds on the profile in every cell of angles whose ends have these cosines."""
        one = torch.ones(len(rho), dtype=torch.float64)
        variance, _, covariance = equilibrium(self.deq, one, one, torch.from_numpy(rho))
        half, flat, slant = 0.5 * math.pi / (len(rho) - 1), np.ones(len(rho) - 1), self.bend / math.pi
        # the angle of the equilibrium, and that after the layer, move by at most as much as that of the inputs
        low, high = _cell_range(np.asarray(covariance / variance), half)
        after = _cell_range(self.profile(rho, "ck"), half)
        steepest = np.maximum(np.abs(1.0 - slant * low), np.abs(1.0 - slant * high))
        a, b = self._slopes()
        feedback = 0.5 * self.deq.variances[0] * (a * a + b * b)
        step = feedback * self.bend / (1.0 - feedback)
        bending = _bending(step, low, high) if step > 0 else 0.0 * low
        inner = _Bounds(flat, _sine(low, high)[0], flat)  # |r''| <= 1, because (1 + h sin t/pi) / (1 + h t/pi) <= 1
        value = _Bounds(flat, _sine(*after)[0], steepest + slant * _sine(low, high)[0])
        layer = Precomputed(value, _Bounds(steepest, slant * flat, slant * bending))
        # 1 - s k' >= 1 - s > 0 for every correlation, so that there is nothing to check
        conjugate, tangents = at_equilibrium(layer, inner, feedback, (self.kernel,) if is_tangent(self.kernel) else ())
        return self.diagonal("ck") / self.diagonal(self.kernel) * tangents.get(self.kernel, conjugate)


def _bending(h: float, low: Array, high: Array) -> Array:
    """A bound on |psi''|, psi in [low, high] the angle of the equilibrium for inputs of angle t.

    sin(psi) g psi'' = cos t - (cos(psi) g + (h/pi) sin(psi)) psi'^2 with g = 1 + h psi/pi; near zero, where sin(psi) is
    small, Cauchy's estimates are used instead.
    """
    angle = np.linspace(0.0, math.pi, len(low) + 1)
    cosine, near = np.cos(angle), 0.3
    t_sine, t_least = _sine(angle[:-1], angle[1:])
    sine, least = _sine(low, high)
    g = (1.0 + h * low / math.pi, 1.0 + h * high / math.pi)
    with np.errstate(divide="ignore", invalid="ignore"):
        speed = _square((t_least, t_sine), least * g[0], sine * g[1])
        inner = _product((np.cos(high), np.cos(low)), g)
        pull = _product((inner[0] + h / math.pi * least, inner[1] + h / math.pi * sine), speed)
        far = np.maximum(np.abs(cosine[:-1] - pull[0]), np.abs(cosine[1:] - pull[1])) / (least * g[0])
    far = np.where(np.isfinite(far), far, np.inf)
    return np.where(high <= near, _near_bending(h, near), far)


def _near_bending(h: float, near: float) -> float:
    """A bound on |t''| for u <= near, sin(t/2) = sin(u/2) m(u), m = sqrt(1 + h w(u)), w = d(cos u) / (1 - cos u).

    w is analytic with |w| <= 0.4963 on |u| <= 1.5 and w(0) = 0, hence |w(u)| <= 0.331 |u|, |w'| <= 0.4963, |w''| <=
    0.9926.
    """
    w0, w1, w2 = 0.331 * near, 0.4963, 0.9926
    most = math.sqrt(1.0 + h * w0)
    m1, m2 = 0.5 * h * w1, 0.5 * h * w2 + 0.25 * (h * w1) ** 2
    s0 = math.sin(0.5 * near)
    s = s0 * most
    if s >= 0.95:
        return math.inf
    first, second = 0.5 * most + s0 * m1, 0.25 * s0 * most + m1 + s0 * m2
    room = 1.0 - s * s
    return 2.0 * second / math.sqrt(room) + 2.0 * s * first**2 / room**1.5


def _cell_range(cosines: Array, half: float) -> _Interval:
    """The range on each cell of an angle t with |t'| <= 1, from its cosines at the cell's ends."""
    angle = np.arccos(np.clip(cosines, -1.0, 1.0))
    low, high = np.minimum(angle[:-1], angle[1:]) - half, np.maximum(angle[:-1], angle[1:]) + half
    return np.maximum(low, 0.0), np.minimum(high, math.pi)


def _sine(low: Array, high: Array) -> tuple[Array, Array]:
    """(largest, smallest) sine on [low, high] within [0, pi]."""
    a, b = np.sin(low), np.sin(high)
    above = np.where((low < 0.5 * math.pi) & (high > 0.5 * math.pi), 1.0, np.maximum(a, b))
    return above, np.maximum(np.minimum(a, b), 0.0)


def _product(x: _Interval, y: _Interval) -> _Interval:
    corners = np.stack([x[0] * y[0], x[0] * y[1], x[1] * y[0], x[1] * y[1]])
    return corners.min(0), corners.max(0)


def _square(top: _Interval, least: Array, most: Array) -> _Interval:
    """(top / bottom)^2 for top >= 0 and bottom in [least, most], never above 1 because angles do not expand."""
    upper = np.minimum(np.where(least > 0, top[1] / np.where(least > 0, least, 1.0), 1.0), 1.0)
    return np.minimum((top[0] / np.maximum(most, 1e-300)) ** 2, upper**2), upper**2
