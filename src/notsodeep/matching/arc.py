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

from .._fixed_point import newton
from ..activations import Activation, LeakyReLU
from ..errors import ConvergenceError, InvalidInputError
from ..kernels.recursion import LayerMaps, equation, explicit, implicit
from ..networks import DEQ, ENN, Kernel, first_trained

Array = NDArray[np.float64]


class Bend(LayerMaps):
    """A layer of bend c on correlations r = cos t of unit variances: r + c d(r), with slope 1 - c t / pi."""

    def __init__(self, c: float) -> None:
        self.c = c

    def both(self, r: Array) -> tuple[Array, Array]:
        t, share = np.arccos(r), self.c / math.pi
        value = np.clip(r + share * (np.sqrt((1.0 - r) * (1.0 + r)) - t * r), -1.0, 1.0)
        return value, 1.0 - share * t


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

    def diagonal(self, kind: Kernel) -> float:
        """k(x, x) / ||x||^2 of a kernel."""
        return self.gain * self._largest(kind)

    def _largest(self, kind: Kernel) -> float:
        """The kernel at correlation one, where the layer and its slope are one, in units of the CK."""
        return float(implicit(np.ones(1), Bend(self.bend), self.feedback, (kind,), _no_check)[kind][0])

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

    def profile(self, rho: Array, kind: Kernel) -> Array:
        """k(x, y) / sqrt(k(x, x) k(y, y)) as a function of the correlation rho of x and y."""
        return self.profile_at(self.equilibrium(rho), kind)

    def profile_at(self, r: Array, kind: Kernel) -> Array:
        """The same from the correlation r of the pre-activations."""
        return np.asarray(implicit(r, Bend(self.bend), self.feedback, (kind,), _no_check)[kind]) / self._largest(kind)


def _no_check(gap: Array) -> None:
    """1 - s k' >= 1 - s > 0 for every correlation."""


def terms(rho: Array, bends: Array, kind: Kernel) -> Array:
    """The functions that the twin's kernel is a positive combination of: shape (count, len(rho)).

    ``ck``: the last layer's correlation. NTK: for every trained weight matrix W_1 ... W_L, readout (in this order) the
    correlation that enters it times the slopes of the layers above it; ``ntk_frozen`` leaves W_1 out. The recursion is
    linear in the rates, so columns of an identity give the terms.
    """
    rates = list(np.eye(len(bends) + 1)[:, :, None])
    found = np.asarray(explicit(rho, [Bend(c) for c in bends], rates, (kind,))[kind]).reshape(-1, len(rho))
    return found[first_trained(kind, len(bends)) - len(bends) - 1 :]


def layers(bends: Array, gain: float) -> ENN:
    """Leaky-ReLU layers with the given bends; all keep norms, the last one carries the gain (the gauge)."""
    power = [1.0] * (len(bends) - 1) + [gain]
    out = []
    for c, s in zip(bends, power, strict=True):
        total, gap = math.sqrt(2.0 * s * (2.0 - c)), math.sqrt(2.0 * s * c)
        out.append(LeakyReLU(slope=0.5 * (total - gap), gain=0.5 * (total + gap)))
    return ENN(out)
