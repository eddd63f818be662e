"""One-dimensional Gaussian expectations, exact to rounding also at kinks and jumps.

Everything the theory needs of an activation phi at scale tau is one :class:`Moments` record; everything the
kernels need is a row of Hermite coefficients. Derivatives at kinks enter through their point masses, so
``E[phi'']`` of ReLU is right and no finite difference or division by tau is involved.

>>> from notsodeep import activation
>>> round(moments(activation("relu"), 1.0).mean, 10)
0.3989422804
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ._quadrature import ORDER, REACH, normal_density, normal_rule, uniform_reach
from .activations import Activation, ActivationLike, Affine, activation
from .activations.base import gaps
from .errors import ConvergenceError, InvalidInputError

__all__ = ["Moments", "expectation", "hermite_coefficients", "moments"]

_CHUNK = 1 << 22  # quadrature nodes held at once


@dataclass(frozen=True)
class Moments:
    """Gaussian moments of phi at scale tau, xi standard normal (theory: E1, E2, Q2, D2)."""

    mean: Any
    """E[phi(tau xi)]"""
    square: Any
    """E[phi(tau xi)^2]"""
    variance: Any
    """Var[phi(tau xi)], free of the cancellation in square - mean^2"""
    slope: Any
    """E1 = E[phi'(tau xi)]"""
    curvature: Any
    """E2 = E[phi''(tau xi)]"""
    slope_square: Any
    """D2 = E[phi'(tau xi)^2] (``inf`` if phi jumps)"""
    square_curvature: Any
    """Q2 = E[(phi^2)''(tau xi)]; d E[phi(sqrt(q) xi)^2] / dq = Q2 / 2"""


def expectation(
    function: Callable[[Tensor], Tensor], tau: Any, kinks: Sequence[float] = (), feature: float = 1.0
) -> Any:
    """E[f(tau xi)] for a function of float64 tensors; ``kinks`` are its rough points, ``feature`` its length scale.

    The result is compared with a finer rule, and :class:`ConvergenceError` is raised if they differ.

    >>> round(expectation(torch.abs, 2.0, kinks=(0.0,)), 12) == round(2 * math.sqrt(2 / math.pi), 12)
    True
    """
    if not (isinstance(feature, int | float) and 1e-4 <= feature < math.inf):
        raise InvalidInputError(f"feature must be a length of at least 1e-4, got {feature!r}")
    if not all(isinstance(k, int | float) and math.isfinite(k) for k in kinks):
        raise InvalidInputError(f"kinks must be finite numbers, got {tuple(kinks)!r}")
    scales, restore = _as_scales(tau)
    _check_resolved([function], scales, kinks, feature)
    return restore(_integrate(lambda x, _, weights: [(function(x) * weights).sum(-1)], scales, kinks, feature)[0])


def moments(phi: ActivationLike, tau: Any) -> Moments:
    """All moments of an activation at one or many scales (a number, an array or a tensor).

    >>> round(moments("tanh", 1.0).square, 10)
    0.3942944904
    """
    phi = activation(phi)
    if isinstance(tau, int | float):
        return _scalar_moments(phi, float(tau))
    scales, restore = _as_scales(tau)
    return Moments(*(restore(part) for part in _moments(phi, scales)))


def hermite_coefficients(phi: ActivationLike, q: Any, terms: int, derivative: bool = False) -> Any:
    """a_k(q) = E[phi(sqrt(q) xi) h_k(xi)], k < ``terms``: shape q.shape + (terms,); of phi' if ``derivative``.

    >>> a = hermite_coefficients("relu", 1.0, 3)
    >>> [round(float(c), 6) for c in a]
    [0.398942, 0.5, 0.282095]
    """
    phi = activation(phi)
    if isinstance(terms, bool) or not isinstance(terms, int | np.integer) or terms < 1:
        raise InvalidInputError(f"terms must be a whole number of at least 1, got {terms!r}")
    scales, restore = _as_scales(q, root=True)
    out = _coefficients(phi, scales, int(terms), derivative)
    return restore(_finite(_without_parity(out, phi, derivative), phi))


# ---- scales ----------------------------------------------------------------------------------------------


def _as_scales(tau: Any, root: bool = False) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Flat float64 scales, and the way back to the caller's type and shape."""
    given = tau if isinstance(tau, Tensor) else torch.as_tensor(np.array(tau, dtype=np.float64))
    flat = given.detach().to("cpu", torch.float64).reshape(-1)
    if not bool(torch.isfinite(flat).all()) or bool((flat < 0).any()):
        raise InvalidInputError(f"a scale must be finite and non-negative, got {tau!r}")

    def restore(values: Tensor) -> Any:
        shaped = values.detach().reshape(given.shape + values.shape[1:])
        if isinstance(tau, Tensor):
            return shaped.to(tau.device, tau.dtype if tau.is_floating_point() else torch.float64)
        return float(shaped) if shaped.ndim == 0 else shaped.numpy()

    return (flat.sqrt() if root else flat), restore


def _integrate(
    integrals: Callable[[Tensor, Tensor, Tensor], list[Tensor]], tau: Tensor, kinks: Sequence[float], feature: float
) -> list[Tensor]:
    """``integrals(x, x0, weights)`` over chunks of scales: x = tau xi, x0 the same for the limit tau -> 0+."""
    rows: list[list[Tensor]] = [[] for _ in integrals(*(torch.zeros(0, 1, dtype=torch.float64) for _ in range(3)))]
    if len(tau):
        for part in tau.split(max(1, _CHUNK // _node_count(tau, kinks, feature))):
            xi, weights = normal_rule(part, kinks, feature)
            for column, values in zip(rows, integrals(*_points(part, xi), weights), strict=True):
                column.append(values)
    out = [torch.cat(column) if column else torch.zeros(0, dtype=torch.float64) for column in rows]
    if not all(bool(torch.isfinite(column).all()) for column in out):
        raise ConvergenceError("a Gaussian expectation is not finite: the function grows too fast to be integrated")
    return out


def _points(tau: Tensor, xi: Tensor) -> tuple[Tensor, Tensor]:
    # at tau = 0 a value is phi(0), but a slope is the limit: half of each side at a kink in 0
    return tau[:, None] * xi, tau.clamp_min(1e-150)[:, None] * xi


def _check_resolved(
    functions: Sequence[Callable[[Tensor], Tensor]], tau: Tensor, kinks: Sequence[float], feature: float
) -> None:
    """Compare with a finer rule on the same panels: they agree only if every panel is resolved."""
    for part in tau.split(max(1, _CHUNK // max(1, _node_count(tau, kinks, feature)))):
        coarse, fine = (normal_rule(part, kinks, feature, order=order) for order in (ORDER, ORDER + 6))
        for f in functions:
            here, there = ((f(part[:, None] * xi) * weights).sum(-1) for xi, weights in (coarse, fine))
            size = (f(part[:, None] * fine[0]).abs() * fine[1]).sum(-1)
            bad = ~((here - there).abs() <= 1e-10 * size + 1e-290)
            if bool(bad.any()):
                where = int(bad.nonzero()[0])
                raise ConvergenceError(
                    f"a Gaussian expectation at scale {float(part[where]):.4g} is not resolved: two rules "
                    f"give {float(here[where]):.12g} and {float(there[where]):.12g}; "
                    "declare every kink, or give a smaller feature"
                )


def _node_count(tau: Tensor, kinks: Sequence[float], feature: float, terms: int = 0) -> int:
    return normal_rule(tau.max()[None], kinks, feature, terms)[0].shape[1] if len(tau) else 1


def _finite(values: Tensor, phi: Activation) -> Tensor:
    if not bool(torch.isfinite(values).all()):
        raise ConvergenceError(f"a Gaussian expectation of {phi!r} overflows at this scale")
    return values


# ---- moments ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _scalar_moments(phi: Activation, tau: float) -> Moments:
    scales, restore = _as_scales(tau)
    return Moments(*(restore(part) for part in _moments(phi, scales)))


def _moments(phi: Activation, tau: Tensor) -> list[Tensor]:
    """The fields of :class:`Moments` in order, each one number per scale."""
    phi = phi.canonical()
    exact = phi.closed_moments(tau)
    if exact is not None:
        return [_finite(part, phi) for part in exact]
    if isinstance(phi, Affine) and phi.skip == 0.0:
        return _affine_moments(phi, tau)
    mean, square, variance, slope, curvature, slope_square, square_curvature = _quadrature_moments(phi, tau)
    zero = torch.zeros_like(mean)
    if phi.parity == "odd":
        mean, variance, curvature = zero, square, zero
    elif phi.parity == "even":
        slope = zero
    return [mean, square, variance, slope, curvature, slope_square, square_curvature]


def _quadrature_moments(phi: Activation, tau: Tensor) -> list[Tensor]:
    def integrals(x: Tensor, x0: Tensor, weights: Tensor) -> list[Tensor]:
        value, slope, curvature = phi._value(x).detach(), phi._slope(x0).detach(), phi._curvature(x0).detach()
        mean, square, first, second, steep, curved = (
            (f * weights).sum(-1) for f in (value, value**2, slope, curvature, slope**2, value * curvature)
        )
        variance = ((value - mean[:, None]) ** 2 * weights).sum(-1)
        return [mean, square, variance, first, second, steep, 2.0 * (steep + curved)]

    if len(tau) and REACH * float(tau.max()) > uniform_reach(phi.feature):
        _check_resolved([phi._value, lambda x: phi._value(x) ** 2, phi._slope], tau, phi.kinks, phi.feature)
    mean, square, variance, slope, curvature, steep, squared = _integrate(integrals, tau, phi.kinks, phi.feature)
    if phi.kinks:
        values, slopes = (part.detach() for part in phi._sides())
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
    return [mean, square, variance, slope, curvature, steep, squared]


def _affine_moments(phi: Affine, tau: Tensor) -> list[Tensor]:
    """Of gain * base(scale x) + shift, from those of the base: no cancellation, however large the shift."""
    mean, _, variance, slope, curvature, slope_square, square_curvature = _moments(phi.base, phi.scale * tau)
    steepness = phi.gain * phi.scale
    mean, variance = phi.gain * mean + phi.shift, phi.gain**2 * variance
    bend = steepness * phi.scale * curvature
    squared = steepness**2 * square_curvature + 2.0 * phi.shift * bend
    return [mean, variance + mean**2, variance, steepness * slope, bend, steepness**2 * slope_square, squared]


# ---- Hermite coefficients --------------------------------------------------------------------------------


def _coefficients(phi: Activation, tau: Tensor, terms: int, derivative: bool) -> Tensor:
    phi = phi.canonical()
    exact = phi.closed_coefficients(tau, terms, derivative)
    if exact is not None:
        return exact
    if isinstance(phi, Affine):
        inner = _without_parity(_coefficients(phi.base, phi.scale * tau, terms, derivative), phi.base, derivative)
        out = phi.gain * (phi.scale * inner if derivative else inner)
        if derivative:
            out[:, 0] += phi.skip
            return out
        out[:, 0] += phi.shift
        if terms > 1:
            out[:, 1] += phi.skip * tau
        return out
    if derivative and not phi.continuous:
        raise InvalidInputError(f"{phi!r} jumps: its derivative has no Hermite coefficients; only the CK is defined")
    if len(tau) and REACH * float(tau.max()) > uniform_reach(phi.feature):
        _check_resolved([phi._slope if derivative else phi._value], tau, phi.kinks, phi.feature)
    function = phi._slope if derivative else phi._value
    return function_coefficients(function, tau.clamp_min(1e-150) if derivative else tau, phi.kinks, phi.feature, terms)


def function_coefficients(
    function: Callable[[Tensor], Tensor], tau: Tensor, kinks: Sequence[float], feature: float, terms: int
) -> Tensor:
    """E[f(tau xi) h_k(xi)], k < terms, for flat scales tau: shape (len(tau), terms)."""
    if len(tau) and set(kinks) <= {0.0}:  # one rule, and one table of Hermite polynomials, serves all scales
        xi, basis = _shared_basis(2.0 ** math.ceil(math.log2(max(float(tau.max()), 1e-3))), feature, terms)
        rows = [function(part[:, None] * xi).detach() @ basis for part in tau.split(max(1, _CHUNK // len(xi)))]
        return torch.cat(rows)
    rows = [torch.zeros(0, terms, dtype=torch.float64)]
    for part in tau.split(max(1, _CHUNK // (4 * _node_count(tau, kinks, feature, terms)))):
        nodes, weights = normal_rule(part, kinks, feature, terms)
        rows.append(project(function(part[:, None] * nodes).detach() * weights, nodes, terms))
    return torch.cat(rows)


def shared_rule(scale: float, feature: float) -> tuple[Tensor, Tensor]:
    """Nodes and weights for all scales up to ``scale`` at once, with a panel edge at zero."""
    xi, basis = _shared_basis(2.0 ** math.ceil(math.log2(max(scale, 1e-3))), feature, 1)
    return xi, basis[:, 0]


@functools.lru_cache(maxsize=8)
def _shared_basis(scale: float, feature: float, terms: int) -> tuple[Tensor, Tensor]:
    """Nodes for scales up to ``scale`` with a panel edge at zero, and the weighted h_k there: (N,) and (N, terms)."""
    xi, weights = (part[0] for part in normal_rule(torch.tensor([scale], dtype=torch.float64), (0.0,), feature, terms))
    columns = [torch.zeros_like(xi), weights]
    for k in range(terms - 1):
        columns.append((xi * columns[-1] - math.sqrt(k) * columns[-2]) / math.sqrt(k + 1))
    return xi, torch.stack(columns[1:], dim=1)


def _without_parity(coefficients: Tensor, phi: Activation, derivative: bool) -> Tensor:
    """Exact zeros where the symmetry of phi says so."""
    if phi.parity is not None:
        coefficients[:, int((phi.parity == "even") != derivative) :: 2] = 0.0
    return coefficients


def project(weighted: Tensor, xi: Tensor, terms: int) -> Tensor:
    """sum over nodes of weighted * h_k(xi), h_k by recurrence: shape (rows, terms)."""
    out = torch.empty(len(weighted), terms, dtype=weighted.dtype)
    before, here = torch.zeros_like(weighted), weighted
    for k in range(terms):
        out[:, k] = here.sum(-1)
        before, here = here, (xi * here - math.sqrt(k) * before) / math.sqrt(k + 1)
    return out
