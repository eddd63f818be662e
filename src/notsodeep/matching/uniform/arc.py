"""Homogeneous networks in one variable: the arc-cosine calculus.

Up to a gain, a layer a x (x > 0), b x (x < 0) acts on correlations as r -> r + c d(r) with d(cos t) = (sin t - t cos
t) / pi and bend c = (a - b)^2 / (a^2 + b^2) in [0, 2]: an *explicit Euler step* of length c along the field d. A
homogeneous DEQ is the *implicit* Euler step r = rho + h d(r), h = s c0 / (1 - s), s = sigma_a2 (a^2 + b^2) / 2,
followed by the explicit step c0. The whole theory of the uniform twin (docs/uniform.md) is this sentence.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..._fixed_point import newton
from ...activations import Activation, LeakyReLU
from ...errors import ConvergenceError, InvalidInputError
from ...networks import DEQ, ENN

Array = NDArray[np.float64]
KINDS = ("ck", "ntk", "ntk_frozen")


def drift(r: Array, angle: Array) -> Array:
    """d(r) = (sin t - t cos t) / pi at r = cos t: what ReLU adds to a correlation; d'(r) = -t / pi."""
    return (np.sqrt((1.0 - r) * (1.0 + r)) - angle * r) / math.pi


def step(r: Array, angle: Array, c: float) -> tuple[Array, Array]:
    """One layer of bend c: the new correlation and its angle."""
    r = np.clip(r + c * drift(r, angle), -1.0, 1.0)
    return r, np.arccos(r)


@functools.lru_cache(maxsize=16)
def grid(cells: int) -> tuple[Array, Array]:
    """Equidistant angles on [0, pi] and their cosines; the kernels are analytic in the angle, not in the
    correlation."""
    angle = np.linspace(0.0, math.pi, cells + 1)
    cosine = np.cos(angle)
    cosine.setflags(write=False)
    angle.setflags(write=False)
    return angle, cosine


def slopes(phi: Activation) -> tuple[float, float]:
    """(a, b) with phi(x) = a x for x > 0 and b x for x < 0; refuses activations that are not of this kind."""
    if phi.homogeneity != 1.0:
        raise InvalidInputError(f"{phi!r} is not positively homogeneous of degree one")
    return float(phi(np.array(1.0))), -float(phi(np.array(-1.0)))


@dataclass(frozen=True)
class HomogeneousDEQ:
    """A homogeneous DEQ reduced to its three numbers."""

    feedback: float
    """s = sigma_a2 (a^2 + b^2) / 2, in [0, 1): the diagonal gain of one application; the kernel exists below 1"""
    bend: float
    """c0 = (a - b)^2 / (a^2 + b^2), in [0, 2]: 0 linear, 1 ReLU, 2 absolute value"""
    gain: float
    """k_ck(x, x) / ||x||^2"""

    @staticmethod
    def of(deq: DEQ) -> HomogeneousDEQ:
        (a, b), (sigma_a2, sigma_b2, _) = slopes(deq.activation), deq.variances
        power = 0.5 * (a * a + b * b)
        feedback = sigma_a2 * power
        deq.check_driven()
        if power == 0.0:
            raise InvalidInputError(f"{deq!r} has a vanishing kernel; there is nothing to match")
        if feedback >= 1.0:
            raise InvalidInputError(
                f"{deq!r} has no infinite-width kernel: sigma_a2 (a^2 + b^2)/2 = {feedback:.6g} must be below 1, "
                f"that is sigma_a2 < {1.0 / power:.6g} for this activation"
            )
        return HomogeneousDEQ(feedback, (a - b) ** 2 / (2.0 * power), power * sigma_b2 / (1.0 - feedback))

    @property
    def step(self) -> float:
        """h = s c0 / (1 - s): the length of the implicit Euler step."""
        return self.feedback * self.bend / (1.0 - self.feedback)

    def diagonal(self, kind: str) -> float:
        """k(x, x) / ||x||^2 of a kernel."""
        s = self.feedback
        return self.gain * {"ck": 1.0, "ntk": 1.0 + 1.0 / (1.0 - s), "ntk_frozen": 1.0 / (1.0 - s)}[kind]

    def equilibrium(self, rho: Array) -> tuple[Array, Array]:
        """(r, t): the solution of r = rho + h d(r), and its angle t = arccos r; the residual rises with slope >= 1."""
        h, given = self.step, torch.from_numpy(np.clip(rho, -1.0, 1.0))

        def equation(r: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
            t, source = torch.acos(r), given if which is None else given[which]
            moved = torch.from_numpy(drift(r.numpy(), t.numpy()))
            return r - source - h * moved, 1.0 + (h / math.pi) * t

        one = torch.ones_like(given)
        found = newton(equation, given, given, one, one)
        if not found.converged:
            raise ConvergenceError(
                f"the correlations of a homogeneous DEQ of step {h:.6g} did not converge: residual {found.residual:.1e}"
            )
        r = found.value.numpy().clip(-1.0, 1.0)
        return r, np.arccos(r)

    def profile(self, rho: Array, kind: str) -> Array:
        """k(x, y) / sqrt(k(x, x) k(y, y)) as a function of the correlation rho of x and y."""
        r, t = self.equilibrium(rho)
        return self.profile_at(r, t, kind)

    def profile_at(self, r: Array, t: Array, kind: str) -> Array:
        value = r + self.bend * drift(r, t)
        if kind == "ck":
            return value
        slope = 1.0 - self.bend * t / math.pi
        s = self.feedback
        if kind == "ntk":
            return (value + r * slope / (1.0 - s * slope)) * ((1.0 - s) / (2.0 - s))
        return value * (1.0 - s) / (1.0 - s * slope)


def terms(rho: Array, angle: Array, bends: Array, kind: str) -> Array:
    """The functions that the twin's kernel is a positive combination of: shape (count, len(rho)).

    ``ck``: the last layer's correlation. NTK: for every trained weight matrix W_1 ... W_L, readout (in this order) the
    correlation that enters it times the slopes of the layers above it; ``ntk_frozen`` leaves W_1 out.
    """
    r, t = rho, angle
    entering, steepness = [r], []
    for c in bends:
        steepness.append(1.0 - c * t / math.pi)
        r, t = step(r, t, c)
        entering.append(r)
    if kind == "ck":
        return r[None]
    rows, product = [r], np.ones_like(r)
    for level in range(len(bends) - 1, -1 if kind == "ntk" else 0, -1):
        product = product * steepness[level]
        rows.append(entering[level] * product)
    return np.stack(rows[::-1])


def layers(bends: Array, gain: float) -> ENN:
    """Leaky-ReLU layers with the given bends; all keep norms, the last one carries the gain (the gauge)."""
    power = [1.0] * (len(bends) - 1) + [gain]
    out = []
    for c, s in zip(bends, power, strict=True):
        total, gap = math.sqrt(2.0 * s * (2.0 - c)), math.sqrt(2.0 * s * c)
        out.append(LeakyReLU(slope=0.5 * (total - gap), gain=0.5 * (total + gap)))
    return ENN(out)
