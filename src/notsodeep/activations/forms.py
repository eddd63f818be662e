"""Closed Gaussian forms of E[phi(u) phi(v)] and E[phi'(u) phi'(v)], (u, v) ~ N(0, [[qx, lam], [lam, qy]]).

They hold for every admissible covariance, duplicates and opposite points included: the determinant is formed from the
correlation, which is clamped, never as a difference of large products.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Dual = tuple[Tensor, Tensor]
ClosedForm = Callable[[Tensor, Tensor, Tensor], Dual]
Smoothed = tuple[Tensor, Tensor, Tensor]
Function = Callable[[Tensor], Tensor]


def correlation(qx: Tensor, qy: Tensor, lam: Tensor) -> Tensor:
    """Return lam / sqrt(qx qy) in [-1, 1]; zero where either variance vanishes."""
    rx, ry = torch.sqrt(qx), torch.sqrt(qy)
    alive = (rx > 0) & (ry > 0)
    # two divisions: the product of two tiny roots is not a normal number; the order of the points must not matter
    rho = lam / torch.where(alive, torch.maximum(rx, ry), 1.0) / torch.where(alive, torch.minimum(rx, ry), 1.0)
    # within rounding of +-1 it is +-1: an angle is the root of the distance, so that one unit would become 1e-8
    rho = torch.where(1.0 - rho.abs() <= 2.0 * torch.finfo(torch.float64).eps, torch.sign(rho), rho)
    return torch.where(alive, rho, torch.zeros_like(rho))


def arc_cosine(a: float, b: float, qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Return the pair of a x for x > 0 and b x for x < 0: arc-cosine kernels of degrees 1 and 0 (Cho, Saul, 2009)."""
    if a == b:
        return a * b * lam, torch.full_like(lam, a * b)
    value, slope = arc_profile(a, b, correlation(qx, qy, lam))
    return torch.sqrt(qx) * torch.sqrt(qy) * value, slope


def arc_profile(a: float, b: float, rho: Tensor) -> Dual:
    """Return the pair of :func:`arc_cosine` at unit variances, for correlations, real or in the complex unit disc."""
    angle = math.pi - torch.acos(rho)  # pi minus the angle between the points
    bend = torch.sqrt((1.0 - rho) * (1.0 + rho)) + angle * rho
    share = angle / math.pi
    return (a - b) ** 2 / (2.0 * math.pi) * bend + a * b * rho, 0.5 * (a * a + b * b) * share + a * b * (1.0 - share)


def arc_sine(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Return the pair of erf: the arcsine kernel (Williams, 1997)."""
    rho = correlation(qx, qy, lam)
    wx, wy = 1.0 + 2.0 * qx, 1.0 + 2.0 * qy
    rx, ry = torch.sqrt(wx), torch.sqrt(wy)
    # room = wx wy - 4 lam^2, over wx wy: a sum of positive terms
    gap = (2.0 * qx / wx) * (2.0 * qy / wy) * (1.0 - rho) * (1.0 + rho)
    room = 1.0 / wx + (2.0 * qx / wx) / wy + gap
    value = 2.0 / math.pi * torch.atan2(2.0 * (lam / rx) / ry, torch.sqrt(room))
    return value, 4.0 / math.pi / (rx * ry * torch.sqrt(room))


def gelu_pair(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Return the pair of x Phi(x), integrated by parts, with A = E[Phi Phi], B = E[p p], p the normal density."""
    rho = correlation(qx, qy, lam)
    lam = rho * torch.sqrt(qx) * torch.sqrt(qy)
    wx, wy = 1.0 + qx, 1.0 + qy
    rx, ry = torch.sqrt(wx), torch.sqrt(wy)
    gap = (qx / wx) * (qy / wy) * (1.0 - rho) * (1.0 + rho)  # (qx qy - lam^2) / (wx wy)
    det = 1.0 / wx + (qx / wx) / wy + gap  # (wx wy - lam^2) / (wx wy)
    ratio = (lam / rx) / ry
    a = 0.25 + torch.atan2(ratio, torch.sqrt(det)) / (2.0 * math.pi)
    b = 1.0 / (2.0 * math.pi * torch.sqrt(det))  # B sqrt(wx wy)
    inverse = 1.0 / wx + 1.0 / wy
    value = lam * a + rx * (ry * (b * (gap + ratio * ratio * inverse)))  # b may be as large as rx
    return value, a + ratio * b * (inverse + 1.0 / wx / wy / det)


def wave_pair(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    """Return E[sin(u) sin(v)] and E[cos(u) cos(v)]."""
    rho = correlation(qx, qy, lam)
    return wave_means(torch.sqrt(qx), torch.sqrt(qy), 1.0 - rho, 1.0 + rho)


def wave_means(rx: Tensor, ry: Tensor, below: Tensor, above: Tensor) -> Dual:
    """The same from the deviations of both, 1 - rho and 1 + rho."""
    lam = 0.5 * (above - below) * rx * ry
    # (qx + qy) / 2 -+ lam = ((rx -+ ry)^2) / 2 + (1 -+ rho) rx ry, without cancellation
    plus = torch.exp(-0.5 * (rx - ry) ** 2 - below * rx * ry)
    minus = torch.exp(-0.5 * (rx - ry) ** 2 - above * rx * ry)
    # sinh for small arguments, where the difference of exponentials would cancel
    small = torch.sinh(lam.clamp(-0.5, 0.5)) * torch.exp(-0.5 * (rx * rx + ry * ry))
    return torch.where(lam.abs() < 0.5, small, 0.5 * (plus - minus)), 0.5 * (plus + minus)


# ---- functions at mean + noise xi: E[phi], E[phi'] and E[phi''], the last two without point masses ---------------


def density(z: Tensor) -> Tensor:
    """Return the standard normal density."""
    return torch.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)


def upper(z: Tensor) -> Tensor:
    """Return P(X > z)."""
    return 0.5 * torch.erfc(z / math.sqrt(2.0))


def smoothed_elu(alpha: float, mean: Tensor, noise: Tensor) -> Smoothed:
    """Smooth ELU: E[exp(x) 1(x < 0)] = exp(mean + noise^2 / 2) P(xi > mean / noise + noise), scaled where tiny."""
    z = mean / noise
    end, bell, down = z + noise, density(z), upper(z)
    growth, share = torch.expm1((mean + 0.5 * noise * noise).clamp_max(0.0)), upper(end)
    scaled = math.sqrt(0.5 * math.pi) * bell * torch.special.erfcx(end.clamp_min(0.0) / math.sqrt(2.0))
    decay = torch.where(end < 0.0, growth * share + share, scaled)
    below = torch.where(end < 0.0, growth * share + (share - down), scaled - down)
    # the ends: where the step is no longer a rounding error of what it changes, and where the density is none
    short = ((noise < 0.02) & (z > -9.0) & (z < 38.0)).nonzero().squeeze(1)
    if len(short):
        below[short] = math.sqrt(0.5 * math.pi) * bell[short] * _erfc_step(z[short], noise[short])
    return mean * upper(-z) + noise * bell + alpha * below, upper(-z) + alpha * decay, alpha * decay


def _erfc_step(z: Tensor, step: Tensor) -> Tensor:
    """Return what erfcx(z / sqrt(2)) gains in a small step, by Taylor's formula: a difference would cancel."""
    before = torch.special.erfcx(z / math.sqrt(2.0))
    here = z * before - math.sqrt(2.0 / math.pi)
    power = step
    total = power * here
    for k in range(1, 11):
        before, here = here, z * here + k * before
        power = power * step / (k + 1.0)
        total = torch.addcmul(total, power, here)
    return total


def smoothed_pieces(
    centre: Sequence[float], breaks: Sequence[tuple[float, Sequence[float]]], mean: Tensor, noise: Tensor
) -> Smoothed:
    """Smooth parabolas and lines that meet at breaks, from value, slope and curvature at zero outwards."""
    value, slope, curvature = centre
    out = [value + slope * mean + 0.5 * curvature * (mean * mean + noise * noise), slope + curvature * mean]
    out += [torch.full_like(mean, curvature)]
    for place, jumps in breaks:
        side = math.copysign(1.0, place)
        beyond = side * (mean - place)
        up, bump = upper(-beyond / noise), noise * density(beyond / noise)
        first = torch.addcmul(bump, beyond, up)
        powers = up, first, 0.5 * (beyond * first + noise * noise * up)
        for order, jump in enumerate(jumps):
            for k in range(order + 1):
                out[k] = out[k] + side ** (order - k + 1) * jump * powers[order - k]
    return out[0], out[1], out[2]
