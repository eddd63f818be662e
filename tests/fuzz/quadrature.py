"""Kernels by nested Gauss-Legendre rules on panels that end at kinks: exact to rounding at every scale and angle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import notsodeep as nsd
from notsodeep.activations import Activation

Array = NDArray[Any]
Covariance = tuple[float, float, float]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(14)
_END = 9.0  # standard deviations
_EVEN = np.arange(-_END, _END + 0.5)


def expected(phi: Activation, at: Covariance, slopes: bool = False) -> float:
    """E[phi(u) phi(v)], or that of the slopes, for variances and a covariance."""
    qx, qy, lam = (np.longdouble(one) for one in at)
    function = phi.derivative if slopes else phi
    sx, sy = math.sqrt(qx), math.sqrt(qy)
    if sx * sy == 0.0:
        return _mean(function, _marks(phi, sx), sx) * _mean(function, _marks(phi, sy), sy)
    rho = max(-1.0, min(1.0, float(lam / sx / sy)))
    root = math.sqrt(max(0.0, 1.0 - lam / qx * (lam / qy)))
    corners = _marks(phi, sy, corners=True) / (rho * sy) if rho else np.zeros(0)
    widths = root / abs(rho) * 2.0 ** np.arange(-2.0, 5.0) if rho else np.zeros(0)
    smoothed = (corners[:, None] + np.concatenate([-widths, [0.0], widths])).ravel()
    t, weights = _rule(np.concatenate([_marks(phi, sx) / sx, _marks(phi, sy) / sy, smoothed]))
    if root == 0.0:
        return float(weights @ (np.asarray(function(sx * t)) * np.asarray(function(rho * sy * t))))
    means = np.empty_like(t)
    for part in np.array_split(np.arange(len(t)), max(1, len(t) // 300)):
        ends = (_marks(phi, sy) / sy - rho * t[part, None]) / root
        s, inner = _rule(ends)
        means[part] = (inner * np.asarray(function(sy * (rho * t[part, None] + root * s)))).sum(-1)
    return float(weights @ (np.asarray(function(sx * t)) * means))


def _mean(function: Callable[[Array], Any], marks: Array, scale: float) -> float:
    t, weights = _rule(marks / scale if scale else np.zeros(0))
    return float(weights @ np.asarray(function(scale * t)))


def _marks(phi: Activation, scale: float, corners: bool = False) -> Array:
    """Pre-activations where panels end: at kinks, and closer and closer to them and to zero."""
    at = np.array([0.0, *phi.kinks])
    if corners:
        return at
    steps = 2.0 ** np.arange(-3.0, math.log2(max(2.0, 10.0 * scale)) + 1.0)
    return (at[:, None] + np.concatenate([-steps, [0.0], steps])).ravel()


def _rule(ends: Array) -> tuple[Array, Array]:
    """Points and weights of a standard normal variable, with panels between ``ends``; rows of ends have their own."""
    even = np.broadcast_to(_EVEN, (*ends.shape[:-1], len(_EVEN)))
    edges = np.sort(np.concatenate([np.clip(ends, -_END, _END), even], -1), -1)
    middle, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges, axis=-1)
    t = (middle[..., None] + half[..., None] * _NODES).reshape(*ends.shape[:-1], -1)
    weights = (half[..., None] * _WEIGHTS).reshape(t.shape)
    return t, weights * np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)


def residuals(network: Any, s: Covariance, found: dict[str, Covariance]) -> dict[str, float]:
    """How far kernels of one pair (own, own, both) are from what the recursion makes of them, on their own scale.

    A DEQ's covariances are ``sigma_a2`` times its conjugate kernel, as it was found, and what drives it.
    """
    implicit, ck = isinstance(network, nsd.DEQ), found["ck"]
    feedback = network.sigma_a2 if implicit else 0.0
    before = s
    if implicit:
        before = tuple(feedback * g + network.sigma_b2 * one + network.sigma_c2 for g, one in zip(ck, s, strict=True))
    root = math.sqrt(before[0]) * math.sqrt(before[1]) if implicit and network.normalise else 1.0
    at = (1.0, 1.0, before[2] / root) if root != 1.0 else before
    states, slope, tangent = [at], 1.0 / root, 0.0 if implicit else s[2]
    with_slopes = "ntk" in found
    for k, phi in enumerate(network.activations):
        here = states[-1]
        after = tuple(expected(phi, one) for one in ((here[0],) * 3, (here[1],) * 3, here))
        if with_slopes:
            dot = expected(phi, here, slopes=True)
            slope *= dot
            tangent = (tangent + (here[2] if k else 0.0)) * dot
        states.append(after)  # type: ignore[arg-type]
    value = states[-1][2]
    off = {"ck": abs(value - ck[2]) / math.sqrt(states[-1][0] * states[-1][1])}
    if "ntk" in found:
        if implicit:
            theta = (before[2] + feedback * tangent) / (1.0 - feedback * slope)
            tangent += theta * slope
        scale = math.sqrt(found["ntk"][0] * found["ntk"][1])
        off["ntk"] = abs(value + tangent - found["ntk"][2]) / scale
    return off


def resolves(network: Any, s: Covariance, found: Covariance) -> bool:
    """Whether panels that grow away from kinks and zero resolve all layers: not fast waves, nor high powers."""
    most = float(max(s[:2]))
    if isinstance(network, nsd.DEQ):
        most = network.sigma_a2 * max(found[:2]) + network.sigma_b2 * most + network.sigma_c2
    for phi in network.activations:
        exact, name = phi.polynomial(), repr(phi).lower()
        degree = 1 if exact is None else exact.degree
        waves = any(word in name for word in ("sin", "cos", "callable 4"))
        if (
            degree > 6
            or degree * np.log10(max(most, 1.0)) > 100.0
            or (waves and not most * getattr(phi, "scale", 1.0) ** 2 < 100.0)
        ):
            return False
        most = 10.0 if waves else 1e3 * max(most, 1.0) ** degree
    # far inside the range of numbers, so that products of variances are numbers
    return most < 1e100 and float(min(s[:2])) > 1e-100
