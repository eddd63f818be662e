"""Homogeneous DEQs in one variable, the angle: their kernels, and a rigorous supremum over all angles.

Up to a gain, a layer a x (x > 0), b x (x < 0) acts on correlations as r -> r + c d(r) with d(cos t) = (sin t - t cos
t) / pi and bend c = (a - b)^2 / (a^2 + b^2) in [0, 2]. A homogeneous DEQ solves r = rho + h d(r), h = s c0 / (1 - s),
s = sigma_a2 (a^2 + b^2) / 2, and applies its layer c0 to the solution.

On a cell of length h the error is at most its larger endpoint value plus h^2/8 sup|e''| (or h/2 sup|e'|). For the DEQ
these derivatives in the angle of the inputs are bounded cell by cell: the angle t of its equilibrium moves by at most
as much as that of the inputs (feature maps of unit speed), its correlation has |r''| <= 1, and |t''|, which enters the
NTKs, is bounded by interval arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._fixed_point import newton
from ...activations import Activation
from ...errors import ConvergenceError, InvalidInputError
from ...kernels.recursion import LayerMaps, Precomputed, equation, implicit
from ...networks import DEQ, Kernel, Readout
from ..certificates import Proof

Array = NDArray[np.float64]


class Bend(LayerMaps):
    """A layer of bend c on correlations r = cos t of unit variances: r + c d(r), with slope 1 - c t / pi."""

    def __init__(self, c: float) -> None:
        self.c = c

    def both(self, r: Array) -> tuple[Array, Array]:
        t, share = np.arccos(r), self.c / math.pi
        value = np.clip(r + share * (np.sqrt((1.0 - r) * (1.0 + r)) - t * r), -1.0, 1.0)
        return value, 1.0 - share * t


@dataclass(frozen=True)
class HomogeneousDEQ:
    """A homogeneous DEQ reduced to its three numbers."""

    feedback: float
    """s = sigma_a2 (a^2 + b^2) / 2, in [0, 1): the diagonal gain of one application; the kernel exists below 1"""
    bend: float
    """c0 = (a - b)^2 / (a^2 + b^2), in [0, 2]: 0 linear, 1 ReLU, 2 absolute value"""
    gain: float
    """k_ck(x, x) / ||x||^2"""
    readout: Readout = "activation"

    @staticmethod
    def of(deq: DEQ) -> HomogeneousDEQ:
        (a, b), (sigma_a2, sigma_b2, _) = _slopes(deq.activation), deq.variances
        power = 0.5 * (a * a + b * b)
        feedback = sigma_a2 * power
        if power == 0.0:
            raise InvalidInputError(f"{deq!r} has a vanishing kernel; there is nothing to match")
        if feedback >= 1.0:
            raise InvalidInputError(
                f"{deq!r} has no infinite-width kernel: sigma_a2 (a^2 + b^2)/2 = {feedback:.6g} must be below 1, "
                f"that is sigma_a2 < {1.0 / power:.6g} for this activation"
            )
        scale = (power if deq.readout == "activation" else 1.0) * sigma_b2 / (1.0 - feedback)
        return HomogeneousDEQ(feedback, (a - b) ** 2 / (2.0 * power), scale, deq.readout)

    @property
    def step(self) -> float:
        """The length h = s c0 / (1 - s) of the implicit step."""
        return self.feedback * self.bend / (1.0 - self.feedback)

    def diagonal(self, kernel: Kernel) -> float:
        """k(x, x) / ||x||^2 of a kernel."""
        return self.gain * self._largest(kernel)

    def _largest(self, kernel: Kernel) -> float:
        """The kernel at correlation one, where the layer and its slope are one, in units of the CK."""
        return float(self._kernel(np.ones(1), Bend(self.bend), kernel)[0])

    def equilibrium(self, rho: Array) -> Array:
        """The solution of r = s (r + c0 d(r)) + (1 - s) rho, that is r = rho + h d(r)."""
        s, layer, given = self.feedback, Bend(self.bend), torch.from_numpy(np.clip(rho, -1.0, 1.0))

        def rest(r: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
            source = given if which is None else given[which]
            left, rate = equation(layer, r.numpy(), s, (1.0 - s) * source.numpy())
            return torch.from_numpy(left / (1.0 - s)), torch.from_numpy(rate / (1.0 - s))

        one = torch.ones_like(given)
        found = newton(rest, given, given, one, one)
        if not found.converged:
            raise ConvergenceError(
                f"the correlations of a homogeneous DEQ of step {self.step:.6g} did not converge: "
                f"residual {found.residual:.1e}"
            )
        return found.value.numpy().clip(-1.0, 1.0)

    def profile(self, r: Array, kernel: Kernel) -> Array:
        """k(x, y) / sqrt(k(x, x) k(y, y)) from the correlation r of the pre-activations."""
        return np.asarray(self._kernel(r, Bend(self.bend), kernel)) / self._largest(kernel)

    def bounds(self, nodes: Array, kernel: Kernel) -> Bounds:
        """Bounds on the profile in every cell, from the equilibrium ``nodes`` at the ends of the cells."""
        half, angle, one = 0.5 * math.pi / (len(nodes) - 1), np.arccos(nodes), np.ones(len(nodes) - 1)
        # |t'| <= 1: the ranges of the angle of the equilibrium, and of that after the layer
        low, high = _cell_range(angle, half)
        steepest = np.maximum(np.abs(1.0 - self.bend * low / math.pi), np.abs(1.0 - self.bend * high / math.pi))
        slant = self.bend / math.pi
        bending = _bending(self.step, low, high) if self.step > 0 else np.zeros_like(low)
        inner = Bounds(one, _sine(low, high)[0], one)  # |r''| <= 1, because (1 + h sin t/pi) / (1 + h t/pi) <= 1
        after = _cell_range(np.arccos(Bend(self.bend).value(nodes)), half)
        value = Bounds(one, _sine(*after)[0], steepest + slant * _sine(low, high)[0])
        layer = Precomputed(value, Bounds(steepest, slant * one, slant * bending))
        return 1.0 / self._largest(kernel) * self._kernel(inner, layer, kernel)

    def _kernel(self, covariance: Any, layer: Any, kernel: Kernel) -> Any:
        return implicit(covariance, layer, self.feedback, (kernel,), lambda gap: None, self.readout)[kernel]


def _slopes(phi: Activation) -> tuple[float, float]:
    """(a, b) with phi(x) = a x for x > 0 and b x for x < 0; refuses activations that are not of this kind."""
    if phi.homogeneity != 1.0:
        raise InvalidInputError(f"{phi!r} is not positively homogeneous of degree one")
    return float(phi(np.array(1.0))), -float(phi(np.array(-1.0)))


# ---- bounds on functions of the angle, cell by cell --------------------------------------------------------


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

    def __rsub__(self, number: float) -> Bounds:
        """Bounds on 1 / (number - f), kept as the inverse because only quotients of such gaps are needed."""
        least = number - self.value
        return Bounds(1.0 / least, self.first / least**2, self.second / least**2 + 2.0 * self.first**2 / least**3)

    def __truediv__(self, inverse: Bounds) -> Bounds:
        return self * inverse

    def excess(self) -> Array:
        """How much a function with these derivatives can exceed its values at the ends of each cell."""
        h = math.pi / len(self.first)
        return np.minimum(0.5 * h * self.first, 0.125 * h * h * self.second)


def supremum(
    deq: HomogeneousDEQ, kernel: Kernel, twin: Callable[[Array], Array], bounds: Callable[[Array], Bounds], slack: float
) -> Proof:
    """Bound |k_deq - twin| relative to the diagonal, over all correlations.

    ``bounds`` are those on the twin's kernel in the cells of a grid of angles. The grid is refined until the bound
    exceeds the largest error on it by no more than a share ``slack``.
    """
    cells, most_cells = 4096, 1 << 17
    while True:
        angle = np.linspace(0.0, math.pi, cells + 1)
        rho = np.cos(angle)
        r = deq.equilibrium(rho)
        error = np.abs(deq.profile(r, kernel) - twin(rho))
        between = (deq.bounds(r, kernel) + bounds(angle)).excess()
        bound = float(np.max(np.maximum(error[:-1], error[1:]) + between)) + 1e-12  # rounding of terms of order one
        worst = int(np.argmax(error))
        sampled = float(error[worst])
        if bound - sampled <= slack * bound or cells >= most_cells or sampled < 1e-11:
            return Proof(bound, sampled, float(rho[worst]))
        gap = (bound - sampled) / (0.6 * slack * bound)
        cells = min(most_cells, cells * 2 ** max(1, math.ceil(0.5 * math.log2(gap))))


# ---- how the angle of the equilibrium bends ----------------------------------------------------------------

_Interval = tuple[Array, Array]


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


def _cell_range(angle: Array, half: float) -> _Interval:
    """The range on each cell of a function with |t'| <= 1, from its values at the cell's ends."""
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
