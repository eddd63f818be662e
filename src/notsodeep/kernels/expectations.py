"""E[phi(u) phi(v)] and E[phi'(u) phi'(v)] of one activation: exact on the whole domain, differentiable.

A :class:`Layer` is an activation together with the variances (qx, qy) of a batch of pairs. It answers for any
covariance ``lam`` of those pairs: by a closed form, by the kinks of a piecewise linear function, or by the strategies
of ``strategies.py``. Derivatives with respect to lam and the variances come from Price's theorem, so they are right
at rho = +-1 too.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch import Tensor

from ..activations import Activation
from ..activations.forms import ClosedForm, correlation
from ..gaussian import hermite_coefficients, normal_density
from . import plane
from ._limits import LIMITS
from .strategies import Lines, Part, VariancePairs, expectation, function_of

_RADIAL: dict[Part, Part] = {"value": "x_slope", "slope": "x_curvature"}  # x f'(x)


def layer_of(phi: Activation, qx: Tensor, qy: Tensor) -> Any:
    """The layer of an activation at a batch of variance pairs: its own if it brings one, else a :class:`Layer`."""
    own = phi.layer(qx, qy)
    return Layer(phi, qx, qy) if own is None else own


class Layer:
    """One activation at a batch of variance pairs (flat float64 CPU tensors of equal length)."""

    def __init__(self, phi: Activation, qx: Tensor, qy: Tensor) -> None:
        self.phi, self.qx, self.qy = phi, qx, qy
        self.variance_x = qx.detach().clamp_min(LIMITS.tiny_variance)
        self.variance_y = qy.detach().clamp_min(LIMITS.tiny_variance)

    @functools.cached_property
    def pairs(self) -> VariancePairs:
        """The pairs of variances, with the Hermite coefficients that are known there."""
        return VariancePairs(self.phi, self.variance_x, self.variance_y)

    @functools.cached_property
    def closed(self) -> ClosedForm | None:
        """The closed form, or ``None``."""
        return self.phi.closed_form()

    def subset(self, index: Tensor) -> Layer:
        """The pairs at ``index``, without gradients, sharing the series already computed."""
        part = Layer(self.phi, self.qx.detach()[index], self.qy.detach()[index])
        part.__dict__["pairs"] = self.pairs.subset(index)
        return part

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """E[phi(u) phi(v)] and E[phi'(u) phi'(v)], which is also its derivative in lam."""
        if self.tracks(lam):
            return _Pair.apply(self, self.qx, self.qy, lam)
        if self.closed is not None:
            return self.closed(self.qx, self.qy, lam)
        if self.phi.piecewise_linear:
            return self._linear_pieces(lam)
        return self.expectation("value", "value", lam), self.expectation("slope", "slope", lam)

    def value(self, lam: Tensor) -> Tensor:
        """E[phi(u) phi(v)]."""
        if self.tracks(lam) or self.closed is not None or self.phi.piecewise_linear:
            return self.both(lam)[0]
        return self.expectation("value", "value", lam)

    def tracks(self, lam: Tensor) -> bool:
        """Whether gradients are asked for, in this covariance or in the variances."""
        return torch.is_grad_enabled() and any(v.requires_grad for v in (lam, self.qx, self.qy))

    def expectation(self, f: Part, g: Part, lam: Tensor) -> Tensor:
        """E[f(u) g(v)] with its point masses; no gradient."""
        rho = correlation(self.variance_x, self.variance_y, lam)
        return expectation(self.pairs, f, g, rho) + self._masses(f, g, lam)

    # -- piecewise linear functions ------------------------------------------------------------------------
    @functools.cached_property
    def _linear_means(self) -> tuple[Tensor, Tensor]:
        """E[phi] and E[phi'] at the distinct variances."""
        value, slope = (hermite_coefficients(self.phi, self.pairs.distinct, 1, derivative=d) for d in (False, True))
        return value[:, 0], slope[:, 0]

    def _linear_pieces(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Values at lam = 0 plus the share of the kinks (Price's theorem)."""
        pairs, (mean, slope) = self.pairs, self._linear_means
        rho = correlation(self.variance_x, self.variance_y, lam)
        bends = self.phi.kinks, self.phi.slope_jumps()
        value, steep = plane.piecewise_linear(*bends, self.variance_x, self.variance_y, rho)
        product = slope[pairs.ix] * slope[pairs.iy]
        value, steep = mean[pairs.ix] * mean[pairs.iy] + lam * product + value, product + steep
        if bool(pairs.large.any()):
            large, far = pairs.subset(pairs.large), rho[pairs.large]
            value[pairs.large] = Lines().value(large, "value", "value", far)
            steep[pairs.large] = Lines().value(large, "slope", "slope", far)
        return value, steep

    # -- point masses of derivatives -----------------------------------------------------------------------
    def _masses(self, f: Part, g: Part, lam: Tensor) -> Tensor:
        """Contributions of the point masses that phi'' (and x phi'') carries at kinks."""
        heavy_f, heavy_g = _point_masses(self.phi, f), _point_masses(self.phi, g)
        total = torch.zeros_like(lam)
        for c, weight in heavy_f:
            total = total + weight * self._given(g, c, self.variance_x, self.variance_y, lam)
        for c, weight in heavy_g:
            total = total + weight * self._given(f, c, self.variance_y, self.variance_x, lam)
        for c, weight in heavy_f:
            for e, other in heavy_g:
                total = total + weight * other * _joint_density(c, e, self.variance_x, self.variance_y, lam)
        return total

    def _given(self, part: Part, c: float, q: Tensor, other: Tensor, lam: Tensor) -> Tensor:
        """p(u = c) E[part(v) | u = c]."""
        density = normal_density(torch.tensor(c, dtype=torch.float64), q.sqrt())
        spread = torch.sqrt((other - lam * lam / q).clamp_min(0.0))
        return density * plane.shifted_mean(function_of(self.phi, part), self.phi.panels(), lam * c / q, spread)

    # -- gradients -----------------------------------------------------------------------------------------
    def derivatives(self, part: Part, found: Tensor, along: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of E[f(u) f(v)] = ``found``, f = phi or phi', in qx, qy and lam; ``along``: E[f'(u) f'(v)].

        d/dq E[f(u) f(v)] at fixed lam = E[f''(u) f(v)] / 2 = (E[u f'(u) f(v)] - lam E[f'(u) f'(v)]) / (2 q).
        """
        if self.phi.homogeneity == 1.0:  # Euler: x phi'(x) = phi(x), and phi' does not change along a ray
            radial_x = radial_y = found if part == "value" else torch.zeros_like(lam)
        else:
            radial = _RADIAL[part]
            radial_x, radial_y = self.expectation(radial, part, lam), self.expectation(part, radial, lam)
        dead_x, dead_y = self.variance_x <= 2 * LIMITS.tiny_variance, self.variance_y <= 2 * LIMITS.tiny_variance
        in_x = ((radial_x - lam * along) / (2.0 * self.variance_x)).masked_fill(dead_x, 0.0)
        in_y = ((radial_y - lam * along) / (2.0 * self.variance_y)).masked_fill(dead_y, 0.0)
        return in_x, in_y, along.masked_fill(dead_x | dead_y, 0.0) if part == "slope" else along


class _Pair(torch.autograd.Function):
    """(value, slope) with first derivatives by Price's theorem."""

    @staticmethod
    def forward(ctx: Any, layer: Layer, qx: Tensor, qy: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        found = layer.both(lam)
        ctx.layer = layer
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(lam, *found)
        return found

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        lam, value, slope = ctx.saved_tensors
        total: list[Tensor] = []
        for part, found, grad in zip(_RADIAL, (value, slope), grads, strict=True):
            if grad is not None:
                along = slope if part == "value" else ctx.layer.expectation("curvature", "curvature", lam)
                parts = [grad * d for d in ctx.layer.derivatives(part, found, along, lam)]
                total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        return None, *(total or (None,) * 3)


def _point_masses(phi: Activation, part: Part) -> list[tuple[float, float]]:
    """Where this derivative has a point mass, and how heavy: phi'' at bends, phi' at jumps."""
    if part == "value":
        return []
    masses = phi.slope_jumps() if part in ("curvature", "x_curvature") else phi.value_jumps()
    radial = part.startswith("x_")
    pairs = zip(phi.kinks, masses, strict=True)
    return [(c, d * (c if radial else 1.0)) for c, d in pairs if d and (c or not radial)]


def _joint_density(c: float, e: float, qx: Tensor, qy: Tensor, lam: Tensor) -> Tensor:
    """Density of (u, v) at (c, e); zero on the degenerate line, where the kernel has a cone point.

    At rho = +-1 the slope kernel of an activation with kinks has no derivative in lam; the symmetric choice, zero,
    makes gradients of duplicates follow the diagonal.
    """
    sx, sy, rho = qx.sqrt(), qy.sqrt(), correlation(qx, qy, lam)
    room = (1.0 - rho) * (1.0 + rho)
    density = plane.bell(c / sx, e / sy, rho, room) / (2.0 * math.pi * sx * sy * room.sqrt())
    return torch.where(room > 1e-14, density, torch.zeros_like(density))
