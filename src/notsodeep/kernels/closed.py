"""Closed forms of E[phi(u) phi(v)] and E[phi'(u) phi'(v)] for (u, v) ~ N(0, [[qx, lam], [lam, qy]]).

Each entry of the table returns both expectations; they hold for every admissible covariance, duplicates and
opposite points included. Derivatives are taken elsewhere by Price's theorem, so nothing here need be
differentiable where an arc cosine is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..activations import GELU, Activation, Cos, Erf, LeakyReLU, Linear, PiecewiseLinear, ReLU, Sin

Dual = tuple[Tensor, Tensor]
ClosedForm = Callable[[Tensor, Tensor, Tensor], Dual]


def correlation(qx: Tensor, qy: Tensor, lam: Tensor) -> Tensor:
    """lam / sqrt(qx qy) in [-1, 1]; zero where either variance vanishes."""
    scale = torch.sqrt(qx) * torch.sqrt(qy)
    return torch.where(scale > 0, lam / scale.clamp_min(1e-300), torch.zeros_like(scale)).clamp(-1.0, 1.0)


def two_slopes(phi: Activation) -> tuple[float, float] | None:
    """(a, b) if phi(x) = a x for x > 0 and b x for x < 0."""
    if isinstance(phi, ReLU):
        return (1.0, 0.0)
    if isinstance(phi, LeakyReLU):
        return (phi.gain, phi.slope)
    if isinstance(phi, Linear):
        return (phi.slope, phi.slope)
    if isinstance(phi, PiecewiseLinear) and phi.homogeneity == 1.0:
        return (phi.slopes[-1], phi.slopes[0])
    return None


def closed_form(phi: Activation) -> ClosedForm | None:
    """The closed form for this activation, or ``None``."""
    slopes = two_slopes(phi)
    if slopes is not None:
        a, b = slopes
        return lambda qx, qy, lam: _leaky(a, b, qx, qy, lam)
    return _SMOOTH.get(type(phi))


def _leaky(a: float, b: float, qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Arc-cosine kernels of degree one and zero (Cho and Saul, 2009) for two slopes; theory section 7b."""
    if a == b:
        return a * b * lam, torch.full_like(lam, a * b)
    rho = correlation(qx, qy, lam)
    angle = math.pi - torch.acos(rho)  # pi minus the angle between the points
    bend = torch.sqrt((1.0 - rho) * (1.0 + rho)) + angle * rho
    value = torch.sqrt(qx) * torch.sqrt(qy) * ((a - b) ** 2 / (2.0 * math.pi) * bend + a * b * rho)
    share = angle / math.pi
    return value, 0.5 * (a * a + b * b) * share + a * b * (1.0 - share)


def _erf(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Arcsine kernel (Williams, 1997)."""
    room = (1.0 + 2.0 * qx) * (1.0 + 2.0 * qy)
    value = 2.0 / math.pi * torch.asin(2.0 * lam / torch.sqrt(room))
    return value, 4.0 / math.pi / torch.sqrt(room - 4.0 * lam * lam)


def _gelu(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """By Gaussian integration by parts, with A = E[Phi Phi], B = E[p p], p the normal density."""
    wx, wy = 1.0 + qx, 1.0 + qy
    det = wx * wy - lam * lam
    a = 0.25 + torch.asin(lam / torch.sqrt(wx * wy)) / (2.0 * math.pi)
    b = 1.0 / (2.0 * math.pi * torch.sqrt(det))
    inverse = 1.0 / wx + 1.0 / wy
    return lam * a + b * (qx * qy + lam * lam * (inverse - 1.0)), a + lam * b * (inverse + 1.0 / det)


def _sin(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    decay = 0.5 * (qx + qy)
    plus, minus = torch.exp(lam - decay), torch.exp(-lam - decay)
    # sinh for small arguments, where the difference of exponentials would cancel
    odd = torch.where(lam.abs() < 0.5, torch.sinh(lam.clamp(-0.5, 0.5)) * torch.exp(-decay), 0.5 * (plus - minus))
    return odd, 0.5 * (plus + minus)


def _cos(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    odd, even = _sin(qx, qy, lam)
    return even, odd


_SMOOTH: dict[type[Activation], ClosedForm] = {Erf: _erf, GELU: _gelu, Sin: _sin, Cos: _cos}
