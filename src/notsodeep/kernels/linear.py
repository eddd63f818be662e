"""Gaussian expectations of pairs of functions that consist of lines and parabolas, in closed form (Owen's T function).

A function is the parabola around zero, v + s x + k x^2 / 2, plus outward powers of the distance beyond each break.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from scipy.special import owens_t
from torch import Tensor

from ..activations.forms import density, upper

Breaks = Sequence[tuple[float, Sequence[float]]]


def piece_means(
    centre: Sequence[float], breaks: Breaks, qx: Tensor, qy: Tensor, lam: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """E[phi phi] and E[phi' phi'], from value, slope and curvature at zero and the jumps of phi, phi', phi'' at breaks.

    Phi must be continuous.
    """
    v, s, k = centre
    sx, sy = qx.sqrt(), qy.sqrt()
    value = v * v + 0.5 * v * k * (qx + qy) + s * s * lam + 0.25 * k * k * (qx * qy + 2.0 * lam * lam)
    slope = s * s + k * k * lam
    for q, tau in ((qx, sy), (qy, sx)):  # the parabola of one side with what the other has beyond breaks
        rest = _beyond(breaks, tau)
        value = value + (v + 0.5 * k * q) * rest[0] + s * lam * rest[1] + 0.5 * k * lam * lam * rest[2]
        slope = slope + s * rest[1] + k * lam * rest[2]
    known: dict[tuple[float, float, float], list[list[Tensor]]] = {}
    for (c, left), (e, right) in itertools.product(breaks, repeat=2):
        # outwards on both sides: only the sign of the correlation knows of theirs
        sign = math.copysign(1.0, c) * math.copysign(1.0, e)
        if (abs(c), abs(e), sign) not in known:
            orders = max(len(left), len(right))
            known[abs(c), abs(e), sign] = _outwards(abs(c) / sx, abs(e) / sy, sign * rho, orders)
        m = known[abs(c), abs(e), sign]
        for (a, x), (b, y) in itertools.product(_powers(c, left), _powers(e, right)):
            scale = x * y / (math.factorial(a) * math.factorial(b))
            below = scale * sx ** (a - 1) * sy ** (b - 1)
            value = value + below * sx * sy * m[a][b]
            slope = slope + sign * a * b * below * m[a - 1][b - 1]
    return value, slope


def _powers(place: float, jumps: Sequence[float]) -> list[tuple[int, float]]:
    """The orders of the outward powers at a break and their factors, which are jumps but for their signs."""
    return [(a, math.copysign(1.0, place) ** (a + 1) * jump) for a, jump in enumerate(jumps) if jump]


def _beyond(breaks: Breaks, tau: Tensor) -> list[Tensor]:
    """E[f(tau xi)] of the outward powers, and of their first and second derivatives, point masses included."""
    out = [torch.zeros_like(tau) for _ in range(3)]
    known: dict[float, tuple[Tensor, ...]] = {}
    for place, jumps in breaks:
        if abs(place) not in known:
            h = (abs(place) / tau).clamp_max(1e150)
            up, bump = upper(h), density(h)
            first = bump - h * up
            known[abs(place)] = up, tau * first, 0.5 * tau * tau * (up - h * first), bump / tau
        *means, mass = known[abs(place)]
        for a, factor in _powers(place, jumps):
            for k in range(a + 1):
                out[k] = out[k] + math.copysign(1.0, place) ** k * factor * means[a - k]
            if a == 1:
                out[2] = out[2] + factor * mass
    return out


def _outwards(h: Tensor, k: Tensor, rho: Tensor, orders: int) -> list[list[Tensor]]:
    """E[(X - h)_+^a (Y - k)_+^b] for h, k >= 0 and a, b < ``orders``, two or three."""
    h, k = h.clamp_min(1e-150), k.clamp_min(1e-150)
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho)).clamp_min(1e-16)
    given_h, given_k = ((b - a + (1.0 - rho) * a) / spread for a, b in ((h, k), (k, h)))  # exact near rho = 1
    wedges = [torch.from_numpy(owens_t(z.numpy(), (g / z).numpy())) for z, g in ((h, given_h), (k, given_k))]
    up_h, up_k = upper(h), upper(k)
    joint = 0.5 * (up_h + up_k) - wedges[0] - wedges[1]  # Owen (1956)
    joint = torch.minimum(joint.clamp_min(0.0), torch.minimum(up_h, up_k))
    # E[X f] = E[df/dX] + rho E[df/dY], again and again; at the edges, one variable given the other
    edges = [(density(z), g, upper(g)) for z, g in ((h, given_h), (k, given_k))]
    (on_h, beside_h), (on_k, beside_k) = ((d * up, d * spread * (density(g) - g * up)) for d, g, up in edges)
    x, y = on_h + rho * on_k - h * joint, on_k + rho * on_h - k * joint
    both = beside_h + rho * joint - h * y
    if orders == 2:
        return [[joint, y], [x, both]]
    xx, yy = joint + rho * beside_k - h * x, joint + rho * beside_h - k * y
    xxy, xyy = y + rho * x - h * both, x + rho * y - k * both
    return [[joint, y, yy], [x, both, xyy], [xx, xxy, xx + 2.0 * rho * both - k * xxy]]


def bell(a: Tensor, b: Tensor, rho: Tensor, room: Tensor) -> Tensor:
    """exp(-(a^2 - 2 a b rho + b^2) / (2 room)), room = 1 - rho^2, without cancellation on either side."""
    plus = (a - b) ** 2 / (2.0 * room) + a * b / (1.0 + rho)
    minus = (a + b) ** 2 / (2.0 * room) - a * b / (1.0 - rho)
    return torch.exp(-torch.where(rho >= 0, plus, minus))
