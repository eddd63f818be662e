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

from ._quadrature import normal_density, normal_rule
from .activations import Activation, ActivationLike, Affine, Cos, Hermite, Quadratic, Sin, activation
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
    slope: Any
    """E1 = E[phi'(tau xi)]"""
    curvature: Any
    """E2 = E[phi''(tau xi)]"""
    slope_square: Any
    """D2 = E[phi'(tau xi)^2] (``inf`` if phi jumps)"""
    square_curvature: Any
    """Q2 = E[(phi^2)''(tau xi)]; d E[phi(sqrt(q) xi)^2] / dq = Q2 / 2"""

    @property
    def variance(self) -> Any:
        """Var[phi(tau xi)]"""
        return self.square - self.mean**2


def expectation(
    function: Callable[[Tensor], Tensor], tau: Any, kinks: Sequence[float] = (), feature: float = 1.0
) -> Any:
    """E[f(tau xi)] for a function of float64 tensors; ``kinks`` are its rough points, ``feature`` its length scale.

    >>> round(expectation(torch.abs, 2.0, kinks=(0.0,)), 12) == round(2 * math.sqrt(2 / math.pi), 12)
    True
    """
    scales, restore = _as_scales(tau)
    return restore(_integrate([function], scales, kinks, feature)[0])


def moments(phi: ActivationLike, tau: Any) -> Moments:
    """All moments of an activation at one or many scales (a number, an array or a tensor)."""
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
    if terms < 1:
        raise InvalidInputError(f"terms must be at least 1, got {terms}")
    scales, restore = _as_scales(q, root=True)
    return restore(_coefficients(phi, scales, terms, derivative))


# ---- scales ----------------------------------------------------------------------------------------------


def _as_scales(tau: Any, root: bool = False) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Flat float64 scales, and the way back to the caller's type and shape."""
    given = tau if isinstance(tau, Tensor) else torch.as_tensor(np.asarray(tau, dtype=np.float64))
    flat = given.detach().to("cpu", torch.float64).reshape(-1)
    if not bool(torch.isfinite(flat).all()) or bool((flat < 0).any()):
        raise InvalidInputError(f"a scale must be finite and non-negative, got {tau!r}")

    def restore(values: Tensor) -> Any:
        shaped = values.reshape(given.shape + values.shape[1:])
        if isinstance(tau, Tensor):
            return shaped.to(tau.device, tau.dtype)
        return float(shaped) if shaped.ndim == 0 else shaped.numpy()

    return (flat.sqrt() if root else flat), restore


def _integrate(
    functions: Sequence[Callable[[Tensor], Tensor]], tau: Tensor, kinks: Sequence[float], feature: float
) -> list[Tensor]:
    rows: list[list[Tensor]] = []
    size = max(1, _CHUNK // _node_count(tau, kinks, feature))
    for part in tau.split(size):
        xi, weights = normal_rule(part, kinks, feature)
        x = part[:, None] * xi
        rows.append([(f(x) * weights).sum(-1) for f in functions])
    out = [torch.cat(column) for column in zip(*rows, strict=True)]
    if not all(bool(torch.isfinite(column).all()) for column in out):
        raise ConvergenceError("a Gaussian expectation is not finite: the function grows too fast to be integrated")
    return out


def _node_count(tau: Tensor, kinks: Sequence[float], feature: float) -> int:
    return normal_rule(tau.max()[None], kinks, feature)[0].shape[1]


# ---- moments ---------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=4096)
def _scalar_moments(phi: Activation, tau: float) -> Moments:
    scales, restore = _as_scales(tau)
    return Moments(*(restore(part) for part in _moments(phi, scales)))


def _moments(phi: Activation, tau: Tensor) -> list[Tensor]:
    exact = _polynomial(phi)
    if exact is not None:
        return _polynomial_moments(exact, tau)

    def curved(x: Tensor) -> Tensor:
        return phi._value(x) * phi._curvature(x)

    def squared(x: Tensor) -> Tensor:
        return phi._value(x) ** 2

    def steep(x: Tensor) -> Tensor:
        return phi._slope(x) ** 2

    columns = _integrate([phi._value, squared, phi._slope, phi._curvature, steep, curved], tau, phi.kinks, phi.feature)
    mean, square, slope, curvature, slope_square, value_curvature = columns
    square_curvature = 2.0 * (slope_square + value_curvature)
    for c in phi.kinks:
        # a jump of f at c adds [f] p(c) to E[f'] and [f'] p(c) + [f] c p(c) / tau^2 to E[f''], p the density of tau xi
        density = normal_density(torch.tensor(c, dtype=torch.float64), tau)
        pull = c / tau.clamp_min(1e-150) ** 2 * density
        sides = torch.tensor([np.nextafter(c, -np.inf), np.nextafter(c, np.inf)], dtype=torch.float64)
        value, steepness = phi._value(sides), phi._slope(sides)
        jump = _jump(value)
        slope = slope + jump * density
        curvature = curvature + _jump(steepness) * density + jump * pull
        square_curvature = square_curvature + _jump(2.0 * value * steepness) * density + _jump(value**2) * pull
    if not phi.continuous:
        slope_square = torch.full_like(slope_square, math.inf)
    return [mean, square, slope, curvature, slope_square, square_curvature]


def _jump(sides: Tensor) -> float:
    below, above = sides.tolist()
    return 0.0 if abs(above - below) <= 1e-12 * (1.0 + abs(above)) else above - below


# ---- Hermite coefficients --------------------------------------------------------------------------------


def _coefficients(phi: Activation, tau: Tensor, terms: int, derivative: bool) -> Tensor:
    if isinstance(phi, Affine):
        inner = _coefficients(phi.base, phi.scale * tau, terms, derivative)
        out = phi.gain * (phi.scale * inner if derivative else inner)
        if derivative:
            out[:, 0] += phi.skip
            return out
        out[:, 0] += phi.shift
        if terms > 1:
            out[:, 1] += phi.skip * tau
        return out
    exact = _polynomial(phi)
    if exact is not None:
        return _rescaled_hermite(exact.derived() if derivative else exact, tau, terms)
    if isinstance(phi, Sin | Cos):
        return _wave_coefficients(quarter=int(isinstance(phi, Cos)) + int(derivative), tau=tau, terms=terms)
    if derivative and not phi.continuous:
        raise InvalidInputError(f"{phi!r} jumps: its derivative has no Hermite coefficients; only the CK is defined")
    function = phi._slope if derivative else phi._value
    rows = []
    for part in tau.split(max(1, _CHUNK // (4 * _node_count(tau, phi.kinks, phi.feature)))):
        xi, weights = normal_rule(part, phi.kinks, phi.feature)
        rows.append(_project(function(part[:, None] * xi) * weights, xi, terms))
    return torch.cat(rows)


def _project(weighted: Tensor, xi: Tensor, terms: int) -> Tensor:
    """sum over nodes of weighted * h_k(xi), h_k by recurrence: shape (rows, terms)."""
    out = torch.empty(len(weighted), terms, dtype=weighted.dtype)
    before, here = torch.zeros_like(weighted), weighted
    for k in range(terms):
        out[:, k] = here.sum(-1)
        before, here = here, (xi * here - math.sqrt(k) * before) / math.sqrt(k + 1)
    return out


def _polynomial(phi: Activation) -> Hermite | None:
    """The activation as a Hermite polynomial of unit scale family, where it is one."""
    if isinstance(phi, Hermite):
        return phi
    if isinstance(phi, Quadratic):
        return Hermite((phi.a + phi.c, phi.b, phi.a * math.sqrt(2.0)))
    if isinstance(phi, Affine):
        base = _polynomial(phi.base)
        if base is None:
            return None
        scale = base.scale / phi.scale
        coefficients = [phi.gain * c for c in base.coefficients] + [0.0] * max(0, 2 - len(base.coefficients))
        coefficients[0] += phi.shift
        coefficients[1] += phi.skip * scale
        return Hermite(tuple(coefficients), scale)
    return None


def _rescaled_hermite(phi: Hermite, tau: Tensor, terms: int) -> Tensor:
    """Coefficients of phi(tau xi) in h_j(xi), from h_k(s x) = sum_m s^(k-2m) ((s^2-1)/2)^m sqrt(k!/(k-2m)!)/m! h_(k-2m)."""
    s = tau / phi.scale
    out = torch.zeros(len(tau), terms, dtype=torch.float64)
    for k, c in enumerate(phi.coefficients):
        if c == 0.0:
            continue
        for m in range(k // 2 + 1):
            j = k - 2 * m
            if j < terms:
                factor = math.exp(0.5 * (math.lgamma(k + 1) - math.lgamma(j + 1)) - math.lgamma(m + 1))
                out[:, j] += c * factor * s**j * (0.5 * (s * s - 1.0)) ** m
    return out


def _polynomial_moments(phi: Hermite, tau: Tensor) -> list[Tensor]:
    terms = phi.degree + 1
    value = _rescaled_hermite(phi, tau, terms)
    slope = _rescaled_hermite(phi.derived(), tau, terms)
    curvature = _rescaled_hermite(phi.derived().derived(), tau, terms)
    slope_square = (slope**2).sum(-1)
    square_curvature = 2.0 * (slope_square + (value * curvature).sum(-1))
    return [value[:, 0], (value**2).sum(-1), slope[:, 0], curvature[:, 0], slope_square, square_curvature]


def _wave_coefficients(quarter: int, tau: Tensor, terms: int) -> Tensor:
    """E[sin(tau xi + quarter pi/2) h_k(xi)] = sin((k + quarter) pi/2) tau^k exp(-tau^2/2) / sqrt(k!)."""
    k = torch.arange(terms, dtype=torch.float64)
    sign = torch.tensor([(0.0, 1.0, 0.0, -1.0)[(j + quarter) % 4] for j in range(terms)], dtype=torch.float64)
    log_size = k * torch.log(tau.clamp_min(1e-150))[:, None] - 0.5 * tau[:, None] ** 2 - 0.5 * torch.lgamma(k + 1.0)
    return sign * torch.exp(log_size)
