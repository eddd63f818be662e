"""The moments of an activation that the theory speaks of, at one or many scales."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from ..activations import Activation, ActivationLike, Affine, activation
from ..activations.base import gaps
from .rule import as_scales, beyond, check_ends, finite, normal_density, portions


@dataclass(frozen=True)
class Moments:
    """The Gaussian moments of phi at scale tau, where xi is standard normal (theory: E1, E2, Q2, D2)."""

    mean: Any  # E[phi(tau xi)]
    square: Any  # E[phi(tau xi)^2]
    variance: Any  # Var[phi(tau xi)], without the cancellation in square - mean^2
    slope: Any  # E1 = E[phi'(tau xi)]
    curvature: Any  # E2 = E[phi''(tau xi)]
    slope_square: Any  # D2 = E[phi'(tau xi)^2], infinite if phi jumps
    square_curvature: Any  # Q2 = E[(phi^2)''(tau xi)]; d E[phi(sqrt(q) xi)^2] / dq = Q2 / 2


@checked
def moments(phi: ActivationLike, tau: Any) -> Moments:
    """Return the Gaussian moments of an activation at one or many scales.

    >>> round(moments("tanh", 1.0).square, 10)
    0.3942944904
    """
    phi = activation(phi)
    scales, restore = as_scales(tau)
    return Moments(*(restore(part) for part in _moments(phi, scales)))


def _moments(phi: Activation, tau: Tensor) -> list[Tensor]:
    """Return the fields of :class:`Moments` in order, each one number per scale."""
    phi = phi.canonical()
    exact = phi.closed_moments(tau)
    if exact is not None:
        return [*finite(torch.stack(exact), phi)]
    if isinstance(phi, Affine) and phi.skip == 0.0:
        return _affine_moments(phi, tau)
    mean, square, variance, slope, curvature, steep, squared = _integrals(phi, tau)
    if phi.kinks:
        values, slopes = (part.detach() for part in phi.sides())
        # a jump of f at c adds [f] p(c) to E[f'] and [f'] p(c) + [f] c p(c) / tau^2 to E[f''], p the density of tau xi
        c = torch.tensor(phi.kinks, dtype=torch.float64)
        density = normal_density(c, tau[:, None])
        pull = c / tau.clamp_min(1e-150)[:, None] ** 2 * density
        jump, bend, jump2, bend2 = (
            torch.tensor(gaps(sides), dtype=torch.float64)
            for sides in (values, slopes, values**2, 2.0 * values * slopes)
        )
        slope = slope + density @ jump
        curvature = curvature + density @ bend + pull @ jump
        squared = squared + density @ bend2 + pull @ jump2
        if bool(jump.any()):
            steep = torch.full_like(steep, math.inf)
    zero = torch.zeros_like(mean)
    if phi.parity == "odd":
        mean, variance, curvature = zero, square, zero
    elif phi.parity == "even":
        slope = zero
    return [mean, square, variance, slope, curvature, steep, squared]


def _integrals(phi: Activation, tau: Tensor) -> Tensor:
    """Return the moments without what kinks add: (7, scales)."""
    rows = [torch.zeros(7, 0, dtype=torch.float64)]
    for part, xi, weights in portions(tau, phi.panels()):
        # at tau = 0 a value is phi(0), but a slope is the limit: half of each side at a kink in 0
        x0 = part.clamp_min(1e-150)[:, None] * xi
        value, slope, curvature = phi(part[:, None] * xi), phi.derivative(x0), phi.second_derivative(x0)
        parts = torch.stack([value, value**2, slope, curvature, slope**2, value * curvature]).detach() * weights
        mean, square, first, second, steep, curved = parts.sum(-1)
        check_ends(beyond(parts[1], xi), square, part)
        variance = ((value.detach() - mean[:, None]) ** 2 * weights).sum(-1)
        rows.append(torch.stack([mean, square, variance, first, second, steep, 2.0 * (steep + curved)]))
    return finite(torch.cat(rows, dim=1), phi)


def _affine_moments(phi: Affine, tau: Tensor) -> list[Tensor]:
    """Return the moments of gain * base(scale x) + shift from those of the base: a large shift cancels nothing."""
    mean, _, variance, slope, curvature, slope_square, square_curvature = _moments(phi.base, phi.scale * tau)
    steepness = phi.gain * phi.scale
    mean, variance = phi.gain * mean + phi.shift, phi.gain**2 * variance
    bend = steepness * phi.scale * curvature
    squared = steepness**2 * square_curvature + 2.0 * phi.shift * bend
    return [mean, variance + mean**2, variance, steepness * slope, bend, steepness**2 * slope_square, squared]
