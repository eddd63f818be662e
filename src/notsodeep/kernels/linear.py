"""What the kinks of piecewise linear functions add to Gaussian expectations, in closed form (Owen's T function)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from scipy.special import owens_t
from torch import Tensor

from ..activations.forms import density, upper


def kink_shares(
    kinks: Sequence[float], bends: Sequence[float], qx: Tensor, qy: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """What the kinks add to E[phi phi] and E[phi' phi'] beyond their values at rho = 0 (and the linear term)."""
    sx, sy = qx.sqrt(), qy.sqrt()
    total, slope, known = torch.zeros_like(rho), torch.zeros_like(rho), {}
    for (c, d), (e, f) in itertools.product(zip(kinks, bends, strict=True), repeat=2):
        # (x - c)_+ and (c - x)_+ differ by a line, so that both kinks may count from zero outwards
        sign = math.copysign(1.0, c) * math.copysign(1.0, e)
        if (abs(c), abs(e), sign) not in known:
            known[abs(c), abs(e), sign] = _outwards(abs(c) / sx, abs(e) / sy, sign * rho)
        value, steep = known[abs(c), abs(e), sign]
        total, slope = total + d * f * value, slope + d * f * sign * steep
    return sx * sy * total, slope


def _outwards(h: Tensor, k: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """E[(X - h)_+ (Y - k)_+] and P(X > h, Y > k) for h, k >= 0, less what they are to first (zeroth) order in rho."""
    h, k = h.clamp_min(1e-150), k.clamp_min(1e-150)
    spread = torch.sqrt((1.0 - rho) * (1.0 + rho)).clamp_min(1e-16)
    given_h, given_k = ((b - a + (1.0 - rho) * a) / spread for a, b in ((h, k), (k, h)))  # exact near rho = 1
    wedges = [torch.from_numpy(owens_t(z.numpy(), (g / z).numpy())) for z, g in ((h, given_h), (k, given_k))]
    joint = 0.5 * (upper(h) + upper(k)) - wedges[0] - wedges[1]  # Owen (1956)
    joint = torch.minimum(joint.clamp_min(0.0), upper(torch.maximum(h, k)))
    # E[X f] = E[df/dX] + rho E[df/dY], twice
    mean = density(k) * upper(given_k) + rho * density(h) * upper(given_h) - k * joint
    both = density(h) * spread * excess(given_h) + rho * joint - h * mean
    return both - excess(h) * excess(k) - rho * upper(h) * upper(k), joint - upper(h) * upper(k)


def excess(z: Tensor) -> Tensor:
    """E[(X - z)_+]."""
    return density(z) - z * upper(z)


def bell(a: Tensor, b: Tensor, rho: Tensor, room: Tensor) -> Tensor:
    """exp(-(a^2 - 2 a b rho + b^2) / (2 room)), room = 1 - rho^2, without cancellation on either side."""
    plus = (a - b) ** 2 / (2.0 * room) + a * b / (1.0 + rho)
    minus = (a + b) ** 2 / (2.0 * room) - a * b / (1.0 - rho)
    return torch.exp(-torch.where(rho >= 0, plus, minus))
