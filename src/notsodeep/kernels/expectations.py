"""E[phi(u) phi(v)] and E[phi'(u) phi'(v)] of one activation: exact on the whole domain, differentiable.

A :class:`Layer` answers for any covariance of a batch of pairs: by a closed form, by the kinks of a piecewise linear
function, by Hermite series whose truncation is bounded by Parseval's identity, or by quadrature. Derivatives come from
Price's theorem, so they are right at rho = +-1 too.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..activations import Activation
from ..activations.forms import correlation
from ..gaussian import function_coefficients, hermite_coefficients, means, normal_density
from ._limits import LIMITS
from .gradients import first_order
from .linear import Breaks, bell, piece_means
from .smoothing import Part, function_of, pair_means, smoothed


def expectations(layer: Layer, f: Sequence[Part], g: Sequence[Part], rho: Tensor) -> Tensor:
    """E[f(u) g(v)] of parts in turn at correlations ``rho``, without point masses, (parts, pairs).

    Each pair takes the first series that is exact, the others a quadrature; for a polynomial one series is.
    """
    out, left = torch.empty(len(f), len(rho), dtype=rho.dtype), torch.arange(len(rho))
    for terms in _lengths(layer):
        sure = torch.stack([_series_holds(terms, layer, *pair, rho) for pair in zip(f, g, strict=True)]).all(0)
        if bool(sure.any()):
            some = layer if bool(sure.all()) else layer.subset(sure)
            found = [_series(some, *pair, terms, rho[sure]) for pair in zip(f, g, strict=True)]
            out[:, left[sure]] = torch.stack(found)
            left, layer, rho = left[~sure], layer.subset(~sure), rho[~sure]
        if not len(left):
            return out
    # pairs often only look different: of equal norms, on one line, beside a bias
    given = torch.stack([layer.variance_x, layer.variance_y, rho])
    distinct, inverse = torch.unique(given, dim=1, return_inverse=True)
    out[:, left] = pair_means(layer.phi, f, g, *distinct)[:, inverse]
    return out


def _lengths(layer: Layer) -> tuple[int, ...]:
    """Return how many terms the series may have that are tried in turn."""
    phi, exact = layer.phi, layer.phi.polynomial()
    if exact is not None:
        return (exact.degree + 3,)
    if smoothed(phi).closed:  # quadrature is quicker than coefficients for a few pairs
        return (32, 128, 512) if len(layer.qx) >= LIMITS.pairs_of_a_scale * len(layer.places[0]) else ()
    return (32, 128, 512, 2048) if set(phi.kinks) <= {0.0} else (32, 128)  # each scale would need a rule of its own


def _series_holds(terms: int, layer: Layer, f: Part, g: Part, rho: Tensor) -> Tensor:
    """Which pairs a Hermite series of so many terms serves, sum_k a_k(qx) b_k(qy) rho^k."""
    # the coefficients of kinked functions fall slowly; beyond its features a function has none that fall
    hopeless = terms < 512 and bool(layer.phi.kinks) and float(rho.abs().min()) > 0.9
    if hopeless or (terms > 512 and bool(layer.large.all())):
        return torch.zeros_like(rho, dtype=torch.bool)
    (a, miss_a), (b, miss_b), (_, ix, iy) = layer.coefficients(f, terms), layer.coefficients(g, terms), layer.places
    # roots first: products of two squares overflow at scales that are allowed
    scale = (a**2).sum(-1).sqrt()[ix] * (b**2).sum(-1).sqrt()[iy] + 1e-300
    return rho.abs() ** terms * miss_a.sqrt()[ix] * miss_b.sqrt()[iy] / scale <= LIMITS.tolerance


# ---- Hermite coefficients of the parts -------------------------------------------------------------------


def _part_coefficients(phi: Activation, part: Part, q: Tensor, terms: int) -> Tensor:
    exact = phi.polynomial()
    if part == "value" or (part == "slope" and phi.continuous):
        return hermite_coefficients(phi, q, terms, derivative=part == "slope")
    if part == "curvature" and exact is not None:  # a rule of finite range would cut the tails of a high degree
        return hermite_coefficients(exact.derived(), q, terms, derivative=True)
    if (part == "x_slope" and phi.continuous) or (part == "x_curvature" and exact is not None):
        inner = _part_coefficients(phi, "slope" if part == "x_slope" else "curvature", q, terms + 1)
        # x h_k = sqrt(k+1) h_(k+1) + sqrt(k) h_(k-1)
        root = torch.arange(inner.shape[1], dtype=torch.float64).sqrt()
        out = root[1:] * inner[:, 1:]
        out[:, 1:] += root[1:-1] * inner[:, :-2]
        return out * q.sqrt()[:, None]
    return function_coefficients(function_of(phi, part), q.sqrt(), phi.panels(), terms)


def _series(layer: Layer, f: Part, g: Part, terms: int, rho: Tensor) -> Tensor:
    """Sum the series of all pairs, as many at a time as fit into memory."""
    parts = torch.arange(len(rho)).split(max(1, LIMITS.terms_at_once // terms))
    if len(parts) == 1:
        return _power_sum(layer.products(f, g, terms), rho)
    return torch.cat([_power_sum(layer.subset(part).products(f, g, terms), rho[part]) for part in parts])


def _power_sum(terms: Tensor, rho: Tensor) -> Tensor:
    """Sum terms[k] rho^k over k, without the orders that cannot matter at these rho."""
    top, size = float(rho.abs().max()), terms.abs()
    # beside the pair's own: batches mix scales
    size = size.div_(size.amax(0).clamp_min(1e-300)).amax(1) * top ** torch.arange(len(terms), dtype=torch.float64)
    largest = float(size.max())
    keep = int((size >= 1e-18 * largest).nonzero().max()) + 1 if 0 < largest < math.inf else len(terms)
    if keep * len(rho) <= 1 << 15:  # calls of a loop would cost more than the arithmetic
        powers = torch.cat([torch.ones_like(rho)[None], rho.expand(keep - 1, -1)]).cumprod(0)
        return (terms[:keep] * powers).sum(0)
    out = terms[keep - 1].clone()
    for k in range(keep - 2, -1, -1):
        out.mul_(rho).add_(terms[k])
    return out


BOTH: tuple[Part, Part] = ("value", "slope")
_RADIAL: dict[Part, Part] = {"value": "x_slope", "slope": "x_curvature"}  # x f'(x)


class Layer:
    """One activation at a batch of variance pairs (flat float64 CPU tensors of equal length)."""

    def __init__(self, phi: Activation, qx: Tensor, qy: Tensor) -> None:
        self.phi, self.qx, self.qy, self.closed, self.mixed = phi, qx, qy, phi.closed_form(), phi.mixed_form()
        self.variance_x = qx.detach().clamp_min(LIMITS.tiny_variance)
        self.variance_y = qy.detach().clamp_min(LIMITS.tiny_variance)
        self._series: dict[tuple[Part, int], tuple[Tensor, Tensor]] = {}
        self._totals: dict[Part, Tensor] = {}
        self._terms: dict[tuple[Part, Part, int], Tensor] = {}

    @functools.cached_property
    def places(self) -> tuple[Tensor, Tensor, Tensor]:
        """The distinct variances, and which of them each pair has."""
        values, inverse = torch.unique(torch.cat([self.variance_x, self.variance_y]), return_inverse=True)
        return values, inverse[: len(self.qx)], inverse[len(self.qx) :]

    @functools.cached_property
    def large(self) -> Tensor:
        """Which pairs have scales beyond all features of a function that settles on straight lines."""
        tails = self.phi.tails()
        if tails is None:
            return torch.zeros_like(self.variance_x, dtype=torch.bool)
        x, y = self.variance_x.sqrt(), self.variance_y.sqrt()
        if self.pieces is not None:  # their closed form loses digits as the product of the scales
            product = LIMITS.linear_product if self.phi.piecewise_linear else LIMITS.square_product
            return x.clamp_min(tails.reach) * y.clamp_min(tails.reach) > product * tails.reach**2
        return torch.minimum(x, y) > 0.25 * tails.reach

    def subset(self, which: Tensor) -> Layer:
        """Select some of the pairs, without gradients; they share the series that are known."""
        part = Layer(self.phi, self.qx.detach()[which], self.qy.detach()[which])
        values, ix, iy = self.places
        part.__dict__["places"] = values, ix[which], iy[which]
        part._series, part._totals = self._series, self._totals
        part._terms = {key: products[:, which] for key, products in self._terms.items()}
        return part

    # -- Hermite coefficients ------------------------------------------------------------------------------
    def coefficients(self, part: Part, terms: int) -> tuple[Tensor, Tensor]:
        """Hermite coefficients at the distinct variances, and what Parseval's identity says is missing from them."""
        key = (part, terms)
        if key not in self._series:
            coefficients = _part_coefficients(self.phi, part, self.places[0], terms)
            total = found = (coefficients**2).sum(-1)
            if self.phi.polynomial() is None:
                if part not in self._totals:  # E[f^2] at the distinct variances
                    f, tau = function_of(self.phi, part), self.places[0].sqrt()
                    (self._totals[part],) = means(lambda x: (f(x) ** 2,), tau, self.phi.panels())
                total = self._totals[part]
            self._series[key] = coefficients, torch.maximum(total - found, LIMITS.noise * total)
        return self._series[key]

    def products(self, f: Part, g: Part, terms: int) -> Tensor:
        """a_k(qx) b_k(qy) as (terms, pairs); stored, because a Newton iteration asks for the pairs again and again."""
        key, (_, ix, iy) = (f, g, terms), self.places
        if key in self._terms:
            return self._terms[key]
        products = self.coefficients(f, terms)[0].T[:, ix] * self.coefficients(g, terms)[0].T[:, iy]
        self._terms[key] = products
        return products

    # -- expectations --------------------------------------------------------------------------------------
    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """E[phi(u) phi(v)] and E[phi'(u) phi'(v)], which is also its derivative in lam."""
        if self.tracks(lam):
            return _Pair.apply(self, self.qx, self.qy, lam)
        if self.closed is not None:
            return self.closed(self.qx, self.qy, lam)
        if self.pieces is not None:
            return self._in_pieces(self.pieces, lam)
        # small variances have short series, and products of variances must be numbers
        if self.mixed is not None and LIMITS.mixed_variance < float(torch.maximum(self.qx, self.qy).max()) < 1e150:
            return self.mixed(self.variance_x, self.variance_y, lam)
        value, slope = expectations(self, BOTH, BOTH, correlation(self.variance_x, self.variance_y, lam))
        return value, slope + self._masses("slope", "slope", lam)

    def value(self, lam: Tensor) -> Tensor:
        """E[phi(u) phi(v)]."""
        if self.tracks(lam) or any(form is not None for form in (self.closed, self.pieces, self.mixed)):
            return self.both(lam)[0]
        return self.expectation("value", "value", lam)

    def tracks(self, lam: Tensor) -> bool:
        """Whether gradients are asked for, in this covariance or in the variances."""
        return torch.is_grad_enabled() and any(v.requires_grad for v in (lam, self.qx, self.qy))

    def expectation(self, f: Part, g: Part, lam: Tensor) -> Tensor:
        """E[f(u) g(v)] with its point masses; no gradient."""
        rho = correlation(self.variance_x, self.variance_y, lam)
        return expectations(self, (f,), (g,), rho)[0] + self._masses(f, g, lam)

    # -- lines and parabolas -------------------------------------------------------------------------------
    @functools.cached_property
    def pieces(self) -> tuple[tuple[float, ...], Breaks] | None:
        """Value, slope and curvature at zero and the breaks of a continuous function of lines and parabolas."""
        phi, origin = self.phi, torch.tensor(-1e-300, dtype=torch.float64)
        breaks = phi.breaks
        if phi.piecewise_linear:
            breaks = tuple((c, (0.0, jump)) for c, jump in zip(phi.kinks, phi.slope_jumps(), strict=True))
        if breaks is None or not phi.continuous or any(len(jumps) > 3 for _, jumps in breaks):
            return None
        return tuple(float(f(origin)) for f in (phi, phi.derivative, phi.second_derivative)), breaks

    def _in_pieces(self, pieces: tuple[tuple[float, ...], Breaks], lam: Tensor) -> tuple[Tensor, Tensor]:
        large, rho = self.large, correlation(self.variance_x, self.variance_y, lam)
        value, slope = piece_means(*pieces, self.variance_x, self.variance_y, lam, rho)
        if bool(large.any()):
            part, far = self.subset(large), rho[large]
            value[large], slope[large] = pair_means(self.phi, BOTH, BOTH, part.variance_x, part.variance_y, far)
        return value, slope

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
        return density * smoothed(self.phi).at((part,), lam * c / q, spread)[0]

    # -- gradients -----------------------------------------------------------------------------------------
    def curvatures(self, value: Tensor, lam: Tensor) -> Tensor:
        """E[phi''(u) phi''(v)], where E[phi(u) phi(v)] = ``value``."""
        return value if self.phi.is_wave else self.expectation("curvature", "curvature", lam)

    def derivatives(self, part: Part, found: Tensor, along: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Derivatives of E[f(u) f(v)] = ``found``, f = phi or phi', in qx, qy and lam; ``along``: E[f'(u) f'(v)]."""
        # in q at fixed lam E[f''(u) f(v)] / 2 = (E[u f'(u) f(v)] - lam E[f'(u) f'(v)]) / (2 q)
        if self.phi.is_wave:  # f'' = -f
            return -0.5 * found, -0.5 * found, along
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
    @first_order
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        lam, value, slope = ctx.saved_tensors
        total: list[Tensor] = []
        for part, found, grad in zip(_RADIAL, (value, slope), grads, strict=True):
            if grad is not None:
                along = slope if part == "value" else ctx.layer.curvatures(value, lam)
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
    """Density of (u, v) at (c, e); zero at rho = +-1, so that gradients of duplicates follow the diagonal."""
    sx, sy, rho = qx.sqrt(), qy.sqrt(), correlation(qx, qy, lam)
    room = (1.0 - rho) * (1.0 + rho)
    density = bell(c / sx, e / sy, rho, room) / (2.0 * math.pi * sx * sy * room.sqrt())
    return torch.where(room > 1e-14, density, torch.zeros_like(density))
