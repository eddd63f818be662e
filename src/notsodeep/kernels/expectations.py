"""E[f(u) g(v)] for f, g among phi, phi', phi'' of one activation: exact on the whole domain, differentiable.

A :class:`Layer` is an activation together with the variances (qx, qy) of a batch of pairs. It answers for any
covariance ``lam`` of those pairs, and picks per entry the first method that is certain to be exact: a closed form;
a Hermite series whose truncation is bounded by Parseval's identity; two-dimensional quadrature. Derivatives with
respect to lam and the variances come from Price's theorem, so they are right at rho = +-1 too.
"""

from __future__ import annotations

import functools
import math
from typing import Any, Literal

import torch
from torch import Tensor

from ..activations import Activation
from ..activations.forms import ClosedForm, correlation
from ..gaussian import function_coefficients, hermite_coefficients, means, normal_density
from . import plane
from .settled import Settled, settled_pair

Part = Literal["value", "slope", "curvature", "x_slope", "x_curvature"]
_RADIAL: dict[Part, Part] = {"value": "x_slope", "slope": "x_curvature"}  # x f'(x)
_TERMS = (32, 128, 512, 2048)
_CLOSE = 0.9  # correlations above this
_NOISE = 2e-15  # rounding hides anything smaller in Parseval's identity
_TOLERANCE = 4e-15
_FEW_TERMS = 512  # where more would be needed, functions that have settled are split instead
_BEYOND = 0.25  # of the distance at which a function has settled
_BEYOND_BENDS = 8.0  # straight pieces have their own integral, which loses digits as the square of this
_KEEP = 1 << 23
_AT_ONCE = 1 << 15  # a series of fewer terms in all is summed by its powers: calls would cost more than the arithmetic
_TINY = 1e-290  # variances below this are their own limit


def layer_of(phi: Activation, qx: Tensor, qy: Tensor) -> Any:
    """The layer of an activation at a batch of variance pairs: its own if it brings one, else a :class:`Layer`."""
    own = phi.layer(qx, qy)
    return Layer(phi, qx, qy) if own is None else own


class Layer:
    """One activation at a batch of variance pairs (flat float64 CPU tensors of equal length)."""

    def __init__(self, phi: Activation, qx: Tensor, qy: Tensor) -> None:
        self.phi = phi
        self.qx, self.qy = qx, qy
        self.variance_x = qx.detach().clamp_min(_TINY)
        self.variance_y = qy.detach().clamp_min(_TINY)
        self._series: dict[tuple[Part, int], tuple[Tensor, Tensor]] = {}
        self._terms: dict[tuple[Part, Part, int], Tensor] = {}

    def subset(self, index: Tensor) -> Layer:
        """The pairs at ``index``, without gradients, sharing the series already computed."""
        part = Layer(self.phi, self.qx.detach()[index], self.qy.detach()[index])
        values, ix, iy = self._unique
        part.__dict__["_unique"] = (values, ix[index], iy[index])
        part._series = self._series
        part._terms = {key: products[:, index] for key, products in self._terms.items()}
        return part

    # -- public ------------------------------------------------------------------------------------------
    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """E[phi(u) phi(v)] and E[phi'(u) phi'(v)], which is also its derivative in lam."""
        if self.tracks(lam):
            return _Pair.apply(self, self.qx, self.qy, lam)
        if self.closed is not None:
            return self.closed(self.qx, self.qy, lam)
        if self.bends is not None:
            return self._linear_pieces(lam)
        return self.raw("value", "value", lam), self.raw("slope", "slope", lam)

    def value(self, lam: Tensor) -> Tensor:
        """E[phi(u) phi(v)]."""
        if self.tracks(lam) or self.closed is not None or self.bends is not None:
            return self.both(lam)[0]
        return self.raw("value", "value", lam)

    def tracks(self, lam: Tensor) -> bool:
        """Whether gradients are asked for, in this covariance or in the variances."""
        return torch.is_grad_enabled() and any(v.requires_grad for v in (lam, self.qx, self.qy))

    # -- methods -----------------------------------------------------------------------------------------
    @functools.cached_property
    def closed(self) -> ClosedForm | None:
        """The closed form, or ``None``."""
        return self.phi.closed_form()

    @functools.cached_property
    def bends(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Kinks and slope jumps of a piecewise linear activation, or ``None``."""
        return (self.phi.kinks, self.phi.slope_jumps()) if self.phi.piecewise_linear else None

    @functools.cached_property
    def _unique(self) -> tuple[Tensor, Tensor, Tensor]:
        values, inverse = torch.unique(torch.cat([self.variance_x, self.variance_y]), return_inverse=True)
        return values, inverse[: len(self.variance_x)], inverse[len(self.variance_x) :]

    def _coefficients(self, part: Part, terms: int) -> tuple[Tensor, Tensor]:
        """Hermite coefficients at the distinct variances, and what Parseval says is missing from them."""
        key = (part, terms)
        if key not in self._series:
            q = self._unique[0]
            coefficients = _part_coefficients(self.phi, part, q, terms)
            found = (coefficients**2).sum(-1)
            total = found if self.phi.polynomial() is not None else self._total(part)
            self._series[key] = coefficients, torch.maximum(total - found, _NOISE * total)
        return self._series[key]

    def _total(self, part: Part) -> Tensor:
        """E[f^2] at the distinct variances."""
        if (part, 0) not in self._series:
            function = _function(self.phi, part)
            (total,) = means(lambda x: (function(x) ** 2,), self._unique[0].sqrt(), self.phi.panels())
            self._series[part, 0] = total, total
        return self._series[part, 0][0]

    def _products(self, f: Part, g: Part, terms: int) -> Tensor:
        """a_k(qx) b_k(qy), kept while a Newton iteration asks for the same pairs again and again: (terms, pairs)."""
        key = (f, g, terms)
        if key in self._terms:
            return self._terms[key]
        _, ix, iy = self._unique
        products = self._coefficients(f, terms)[0].T[:, ix] * self._coefficients(g, terms)[0].T[:, iy]
        if products.numel() <= _KEEP:
            self._terms[key] = products
        return products

    def raw(self, f: Part, g: Part, lam: Tensor) -> Tensor:
        """E[f(u) g(v)] with its point masses; no gradient. Falls through series to quadrature entry by entry."""
        qx, qy = self.variance_x, self.variance_y
        rho = correlation(qx, qy, lam)
        out = torch.empty_like(lam)
        pending = torch.ones_like(lam, dtype=torch.bool)
        _, ix, iy = self._unique
        polynomial = degree_of(self.phi)
        large = self._large
        # where no correlation is small a kinked function, whose coefficients fall slowly, needs many
        few = bool(self.phi.kinks) and float(rho.abs().min()) > _CLOSE
        for terms in _TERMS[2 * few :] if polynomial is None else (polynomial + 3,):
            if terms > _FEW_TERMS and bool(large[pending].all()):
                break
            a, miss_a = self._coefficients(f, terms)
            b, miss_b = self._coefficients(g, terms)
            # roots first: products of two squares overflow at scales that are allowed
            scale = (a**2).sum(-1).sqrt()[ix] * (b**2).sum(-1).sqrt()[iy] + 1e-300
            error = rho.abs() ** terms * miss_a.sqrt()[ix] * miss_b.sqrt()[iy]
            sure = pending & (error <= _TOLERANCE * scale) if polynomial is None else pending
            if bool(sure.all()):
                return _power_sum(self._products(f, g, terms), rho) + self._masses(f, g, lam)
            if bool(sure.any()):
                out[sure] = _power_sum(a.T[:, ix[sure]] * b.T[:, iy[sure]], rho[sure])
                pending = pending & ~sure
            if not bool(pending.any()):
                break
        thin = plane.is_ridge(self.phi.panels(), qx, qy, rho) if bool(pending.any()) else pending
        methods = (self._ridge, pending & thin), (self._settled, pending & ~thin & large), (self._quadrature, pending)
        for method, mask in methods:
            mask = mask & pending
            if bool(mask.any()):
                distinct, inverse = _distinct(qx[mask], qy[mask], rho[mask])
                out[mask] = method(f, g, *distinct)[inverse]
                pending = pending & ~mask
        return out + self._masses(f, g, lam)

    @functools.cached_property
    def _large(self) -> Tensor:
        """The pairs whose scales are beyond all features of a function that settles."""
        tails = self.phi.tails()
        if tails is None:
            return torch.zeros_like(self.variance_x, dtype=torch.bool)
        beyond = _BEYOND if self.bends is None else _BEYOND_BENDS
        return torch.minimum(self.variance_x, self.variance_y).sqrt() > beyond * tails.reach

    def _settled(self, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        return settled_pair(self._split(f), self._split(g), qx, qy, rho)

    @functools.lru_cache(maxsize=8)  # noqa: B019  # a handful of parts; the layer is short-lived
    def _split(self, part: Part) -> Settled:
        tails = self.phi.tails()
        assert tails is not None
        return Settled.of(part, _function(self.phi, part), tails, self.phi.panels(), self.phi.parity)

    def _quadrature(self, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        phi = self.phi
        left, right = _function(phi, f), _function(phi, g)
        rule = plane.polar if set(phi.kinks) <= {0.0} else plane.conditional
        return rule(left, right, phi.panels(), qx, qy, rho)

    def _ridge(self, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        return plane.ridge(_function(self.phi, f), _function(self.phi, g), self.phi.panels(), qx, qy, rho)

    def _linear_pieces(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Piecewise linear phi: values at lam = 0 plus the kinks' share (Price's theorem)."""
        assert self.bends is not None
        q, ix, iy = self._unique
        if ("value", 1) not in self._series:  # kept for all steps of an iteration
            self._series["value", 1] = _linear_means(self.phi, q)
        mean, slope = self._series["value", 1]
        rho = correlation(self.variance_x, self.variance_y, lam)
        value, steep = plane.piecewise_linear(*self.bends, self.variance_x, self.variance_y, rho)
        product = slope[ix] * slope[iy]
        value, steep = mean[ix] * mean[iy] + lam * product + value, product + steep
        large = self._large
        if bool(large.any()):
            pairs, inverse = _distinct(self.variance_x[large], self.variance_y[large], rho[large])
            value[large] = self._settled("value", "value", *pairs)[inverse]
            steep[large] = self._settled("slope", "slope", *pairs)[inverse]
        return value, steep

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
        mean = plane.shifted_mean(_function(self.phi, part), self.phi.panels(), lam * c / q, spread)
        return density * mean

    # -- gradients ---------------------------------------------------------------------------------------
    def derivatives(self, part: Part, found: Tensor, along: Tensor, lam: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of E[f(u) f(v)] = ``found``, f = phi or phi', in qx, qy and lam; ``along``: E[f'(u) f'(v)].

        d/dq E[f(u) f(v)] at fixed lam = E[f''(u) f(v)] / 2 = (E[u f'(u) f(v)] - lam E[f'(u) f'(v)]) / (2 q).
        """
        if self.phi.homogeneity == 1.0:  # Euler: x phi'(x) = phi(x), and phi' does not change along a ray
            radial_x = radial_y = found if part == "value" else torch.zeros_like(lam)
        else:
            radial_x, radial_y = self.raw(_RADIAL[part], part, lam), self.raw(part, _RADIAL[part], lam)
        dead_x, dead_y = self.variance_x <= 2 * _TINY, self.variance_y <= 2 * _TINY
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
                along = slope if part == "value" else ctx.layer.raw("curvature", "curvature", lam)
                parts = [grad * d for d in ctx.layer.derivatives(part, found, along, lam)]
                total = [a + b for a, b in zip(total, parts, strict=True)] if total else parts
        return None, *(total or (None,) * 3)


def _distinct(qx: Tensor, qy: Tensor, rho: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs that differ, as rows (qx, qy, rho) of columns, and which of them each one is.

    Quadrature is dear, and points often only look different: of equal norms, on one line, beside a bias.
    """
    distinct, inverse = torch.unique(torch.stack([qx, qy, rho]), dim=1, return_inverse=True)
    return distinct, inverse


# ---- pieces ----------------------------------------------------------------------------------------------


def _function(phi: Activation, part: Part) -> plane.Function:
    table: dict[str, plane.Function] = {
        "value": phi,
        "slope": phi.derivative,
        "curvature": phi.second_derivative,
        "x_slope": lambda x: x * phi.derivative(x),
        "x_curvature": lambda x: x * phi.second_derivative(x),
    }
    return table[part]


def _point_masses(phi: Activation, part: Part) -> list[tuple[float, float]]:
    """Where this derivative has a point mass, and how heavy: phi'' at bends, phi' at jumps."""
    if part == "value":
        return []
    masses = phi.slope_jumps() if part in ("curvature", "x_curvature") else phi.value_jumps()
    radial = part.startswith("x_")
    pairs = zip(phi.kinks, masses, strict=True)
    return [(c, d * (c if radial else 1.0)) for c, d in pairs if d and (c or not radial)]


def degree_of(phi: Activation) -> int | None:
    """The degree of a polynomial activation."""
    exact = phi.polynomial()
    return None if exact is None else exact.degree


def _part_coefficients(phi: Activation, part: Part, q: Tensor, terms: int) -> Tensor:
    exact = phi.polynomial()
    if part == "value" or (part == "slope" and phi.continuous):
        return hermite_coefficients(phi, q, terms, derivative=part == "slope")
    if part == "curvature" and exact is not None:  # a rule of finite range would cut the tails of a high degree
        return hermite_coefficients(exact.derived(), q, terms, derivative=True)
    if (part == "x_slope" and phi.continuous) or (part == "x_curvature" and exact is not None):
        inner = _part_coefficients(phi, "slope" if part == "x_slope" else "curvature", q, terms + 1)
        return _times_variable(inner) * q.sqrt()[:, None]
    return function_coefficients(_function(phi, part), q.sqrt(), phi.panels(), terms)


def _times_variable(inner: Tensor) -> Tensor:
    """The coefficients of x f(x), one fewer than those of f: x h_k = sqrt(k+1) h_(k+1) + sqrt(k) h_(k-1)."""
    root = torch.arange(inner.shape[1], dtype=torch.float64).sqrt()
    out = root[1:] * inner[:, 1:]
    out[:, 1:] += root[1:-1] * inner[:, :-2]
    return out


def _power_sum(terms: Tensor, rho: Tensor) -> Tensor:
    """sum_k terms[k] rho^k; what cannot matter at these rho is left out."""
    top, size = float(rho.abs().max()), terms.abs()
    # beside the pair's own: batches mix scales
    size = size.div_(size.amax(0).clamp_min(1e-300)).amax(1) * top ** torch.arange(len(terms), dtype=torch.float64)
    largest = float(size.max())
    keep = int((size >= 1e-18 * largest).nonzero().max()) + 1 if 0 < largest < math.inf else len(terms)
    if keep * len(rho) <= _AT_ONCE:
        powers = torch.cat([torch.ones_like(rho)[None], rho.expand(keep - 1, -1)]).cumprod(0)
        return (terms[:keep] * powers).sum(0)
    out = terms[keep - 1].clone()
    for k in range(keep - 2, -1, -1):
        out.mul_(rho).add_(terms[k])
    return out


def _linear_means(phi: Activation, q: Tensor) -> tuple[Tensor, Tensor]:
    coefficients = hermite_coefficients(phi, q, 1)[:, 0]
    return coefficients, hermite_coefficients(phi, q, 1, derivative=True)[:, 0]


def _joint_density(c: float, e: float, qx: Tensor, qy: Tensor, lam: Tensor) -> Tensor:
    """Density of (u, v) at (c, e); zero on the degenerate line, where the kernel has a cone point.

    At rho = +-1 the slope kernel of an activation with kinks has no derivative in lam; the symmetric choice, zero,
    makes gradients of duplicates follow the diagonal.
    """
    sx, sy, rho = qx.sqrt(), qy.sqrt(), correlation(qx, qy, lam)
    room = (1.0 - rho) * (1.0 + rho)
    alive = room > 1e-14
    density = plane.bell(c / sx, e / sy, rho, room) / (2.0 * math.pi * sx * sy * room.sqrt())
    return torch.where(alive, density, torch.zeros_like(density))
