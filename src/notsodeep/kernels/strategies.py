"""Ways to E[f(u) g(v)] for centred normal pairs (u, v), each exact on a domain of its own.

:func:`expectation` tries them in order, pair by pair: a Hermite series whose truncation is bounded by Parseval's
identity, and quadratures for what no short series reaches. Every strategy bounds its own relative error.
"""

from __future__ import annotations

import functools
import math
from typing import Literal, Protocol

import torch
from torch import Tensor

from ..activations import Activation
from ..gaussian import function_coefficients, hermite_coefficients, means
from . import plane
from ._limits import LIMITS
from .settled import Settled, settled_pair

Part = Literal["value", "slope", "curvature", "x_slope", "x_curvature"]
"""phi, phi', phi'', x phi', x phi''."""


def function_of(phi: Activation, part: Part) -> plane.Function:
    """Return the function that a part stands for."""
    table: dict[str, plane.Function] = {
        "value": phi,
        "slope": phi.derivative,
        "curvature": phi.second_derivative,
        "x_slope": lambda x: x * phi.derivative(x),
        "x_curvature": lambda x: x * phi.second_derivative(x),
    }
    return table[part]


class VariancePairs:
    """One activation at a batch of variance pairs (flat float64 CPU tensors), with its Hermite coefficients."""

    def __init__(self, phi: Activation, qx: Tensor, qy: Tensor, unique: tuple[Tensor, Tensor, Tensor] | None = None):
        self.phi, self.qx, self.qy = phi, qx, qy
        if unique is None:
            values, inverse = torch.unique(torch.cat([qx, qy]), return_inverse=True)
            unique = values, inverse[: len(qx)], inverse[len(qx) :]
        self.distinct, self.ix, self.iy = unique
        self._series: dict[tuple[Part, int], tuple[Tensor, Tensor]] = {}
        self._terms: dict[tuple[Part, Part, int], Tensor] = {}

    def subset(self, which: Tensor) -> VariancePairs:
        """Some of the pairs, which share the coefficients that are known."""
        unique = self.distinct, self.ix[which], self.iy[which]
        part = VariancePairs(self.phi, self.qx[which], self.qy[which], unique)
        part._series = self._series
        part._terms = {key: products[:, which] for key, products in self._terms.items()}
        return part

    def coefficients(self, part: Part, terms: int) -> tuple[Tensor, Tensor]:
        """Hermite coefficients at the distinct variances, and what Parseval's identity says is missing from them."""
        key = (part, terms)
        if key not in self._series:
            coefficients = _part_coefficients(self.phi, part, self.distinct, terms)
            found = (coefficients**2).sum(-1)
            total = found if self.phi.polynomial() is not None else self._total(part)
            self._series[key] = coefficients, torch.maximum(total - found, LIMITS.noise * total)
        return self._series[key]

    def _total(self, part: Part) -> Tensor:
        """E[f^2] at the distinct variances."""
        if (part, 0) not in self._series:
            function = function_of(self.phi, part)
            (total,) = means(lambda x: (function(x) ** 2,), self.distinct.sqrt(), self.phi.panels())
            self._series[part, 0] = total, total
        return self._series[part, 0][0]

    def products(self, f: Part, g: Part, terms: int) -> Tensor:
        """a_k(qx) b_k(qy) as (terms, pairs); stored, because a Newton iteration asks for the pairs again and again."""
        key = (f, g, terms)
        if key in self._terms:
            return self._terms[key]
        a, b = self.coefficients(f, terms)[0], self.coefficients(g, terms)[0]
        products = a.T[:, self.ix] * b.T[:, self.iy]
        if products.numel() <= 1 << 23:  # 64 megabytes
            self._terms[key] = products
        return products

    @functools.cached_property
    def large(self) -> Tensor:
        """Which pairs have scales beyond all features of a function that settles on straight lines."""
        tails = self.phi.tails()
        if tails is None:
            return torch.zeros_like(self.qx, dtype=torch.bool)
        # piecewise linear functions have an integral of their own, which loses digits as the square of the scale
        beyond = 8.0 if self.phi.piecewise_linear else 0.25
        return torch.minimum(self.qx, self.qy).sqrt() > beyond * tails.reach


def expectation(pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] at correlations ``rho``, without point masses: each pair by the first strategy that is exact."""
    out, left = torch.empty_like(rho), torch.arange(len(rho))
    for strategy in strategies_of(pairs.phi):
        sure = strategy.error(pairs, f, g, rho) <= LIMITS.tolerance
        if bool(sure.all()) and len(left) == len(out):
            return strategy.value(pairs, f, g, rho)
        if bool(sure.any()):
            out[left[sure]] = strategy.value(pairs.subset(sure), f, g, rho[sure])
            left, pairs, rho = left[~sure], pairs.subset(~sure), rho[~sure]
        if not len(left):
            break
    return out


# ---- the strategies --------------------------------------------------------------------------------------


class Strategy(Protocol):
    """One way to E[f(u) g(v)]."""

    def error(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        """A bound of the relative error for every pair; infinite outside the domain."""

    def value(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        """The expectations."""


def strategies_of(phi: Activation) -> tuple[Strategy, ...]:
    """The strategies in the order of their cost; for a polynomial one series is exact."""
    exact = phi.polynomial()
    return STRATEGIES if exact is None else (HermiteSeries(exact.degree + 3),)


class HermiteSeries(Strategy):
    """sum_k a_k(qx) b_k(qy) rho^k with a given number of terms."""

    def __init__(self, terms: int) -> None:
        self.terms = terms

    def error(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        # the coefficients of kinked functions fall slowly; beyond its features a function is split instead
        hopeless = self.terms < 512 and bool(pairs.phi.kinks) and float(rho.abs().min()) > 0.9
        if hopeless or (self.terms > 512 and bool(pairs.large.all())):
            return torch.full_like(rho, math.inf)
        (a, miss_a), (b, miss_b) = (pairs.coefficients(part, self.terms) for part in (f, g))
        # roots first: products of two squares overflow at scales that are allowed
        scale = (a**2).sum(-1).sqrt()[pairs.ix] * (b**2).sum(-1).sqrt()[pairs.iy] + 1e-300
        return rho.abs() ** self.terms * miss_a.sqrt()[pairs.ix] * miss_b.sqrt()[pairs.iy] / scale

    def value(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        return _power_sum(pairs.products(f, g, self.terms), rho)


class Quadrature(Strategy):
    """A rule of quadrature, exact to rounding, on the pairs for which it is meant."""

    def domain(self, pairs: VariancePairs, rho: Tensor) -> Tensor:
        """Which pairs it is meant for."""
        return torch.ones_like(rho, dtype=torch.bool)

    def rule(self, phi: Activation, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        """The integrals."""
        rule = plane.polar if set(phi.kinks) <= {0.0} else plane.conditional
        return rule(function_of(phi, f), function_of(phi, g), phi.panels(), qx, qy, rho)

    def error(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        return torch.where(self.domain(pairs, rho), 0.0, math.inf)

    def value(self, pairs: VariancePairs, f: Part, g: Part, rho: Tensor) -> Tensor:
        # pairs often only look different: of equal norms, on one line, beside a bias
        distinct, inverse = torch.unique(torch.stack([pairs.qx, pairs.qy, rho]), dim=1, return_inverse=True)
        return self.rule(pairs.phi, f, g, *distinct)[inverse]


class Ridge(Quadrature):
    """Panels in one variable and a short rule in the other, which hardly varies given the first: near rho = +-1."""

    def domain(self, pairs: VariancePairs, rho: Tensor) -> Tensor:
        return plane.is_ridge(pairs.phi.panels(), pairs.qx, pairs.qy, rho)

    def rule(self, phi: Activation, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        return plane.ridge(function_of(phi, f), function_of(phi, g), phi.panels(), qx, qy, rho)


class Lines(Quadrature):
    """A function beyond all its features: two straight lines, and a rest within a bounded distance of zero."""

    def domain(self, pairs: VariancePairs, rho: Tensor) -> Tensor:
        return pairs.large

    def rule(self, phi: Activation, f: Part, g: Part, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
        tails, panels = phi.tails(), phi.panels()
        assert tails is not None
        first, second = (Settled(part, function_of(phi, part), tails, panels) for part in (f, g))
        return settled_pair(first, second, qx, qy, rho)


STRATEGIES = (*(HermiteSeries(terms) for terms in (32, 128, 512, 2048)), Ridge(), Lines(), Quadrature())


# ---- Hermite coefficients of the parts -------------------------------------------------------------------


def _part_coefficients(phi: Activation, part: Part, q: Tensor, terms: int) -> Tensor:
    exact = phi.polynomial()
    if part == "value" or (part == "slope" and phi.continuous):
        return hermite_coefficients(phi, q, terms, derivative=part == "slope")
    if part == "curvature" and exact is not None:  # a rule of finite range would cut the tails of a high degree
        return hermite_coefficients(exact.derived(), q, terms, derivative=True)
    if (part == "x_slope" and phi.continuous) or (part == "x_curvature" and exact is not None):
        inner = _part_coefficients(phi, "slope" if part == "x_slope" else "curvature", q, terms + 1)
        return _times_variable(inner) * q.sqrt()[:, None]
    return function_coefficients(function_of(phi, part), q.sqrt(), phi.panels(), terms)


def _times_variable(inner: Tensor) -> Tensor:
    """The coefficients of x f(x), one fewer than those of f: x h_k = sqrt(k+1) h_(k+1) + sqrt(k) h_(k-1)."""
    root = torch.arange(inner.shape[1], dtype=torch.float64).sqrt()
    out = root[1:] * inner[:, 1:]
    out[:, 1:] += root[1:-1] * inner[:, :-2]
    return out


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
