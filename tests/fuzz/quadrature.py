"""Kernels by nested Gauss-Legendre rules on panels that end at kinks: exact to rounding at every scale and angle."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

import notsodeep as nsd
from helpers import ulps
from notsodeep.activations import Activation

Array = NDArray[Any]
Covariance = tuple[float, float, float]
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(14)
_END = 9.0  # standard deviations


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


def rule_at(phi: Activation, scale: float) -> tuple[Array, Array]:
    """Points t and weights of E[f(scale t)], f made of powers of phi, which may be a polynomial."""
    return _rule(_marks(phi, scale) / scale, reach=14.0)


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


def _rule(ends: Array, reach: float = _END) -> tuple[Array, Array]:
    """Points and weights of a standard normal variable, with panels between ``ends``; rows of ends have their own."""
    even = np.broadcast_to(np.arange(-reach, reach + 0.5), (*ends.shape[:-1], int(2.0 * reach) + 1))
    edges = np.sort(np.concatenate([np.clip(ends, -reach, reach), even], -1), -1)
    middle, half = 0.5 * (edges[..., 1:] + edges[..., :-1]), 0.5 * np.diff(edges, axis=-1)
    t = (middle[..., None] + half[..., None] * _NODES).reshape(*ends.shape[:-1], -1)
    weights = (half[..., None] * _WEIGHTS).reshape(t.shape)
    return t, weights * np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)


def residuals(network: Any, s: Covariance, found: dict[str, Covariance], rates: Any = None) -> dict[str, float]:
    """How far kernels of one pair (own, own, both) are from what the recursion makes of them, on their own scale."""
    made = recursion(network, s, found["ck"], rates, slopes=len(found) > 1)
    return {k: abs(made[k] - there[2]) / math.sqrt(there[0] * there[1]) for k, there in found.items()}


def recursion(
    network: Any, s: Covariance, ck: Covariance | None = None, rates: Any = None, slopes: bool = True
) -> dict[str, float]:
    """The kernels of one pair by the equations; those of a DEQ at its conjugate kernel, as it was found.

    ``rates`` are the learning rates of an ENN. Covariances before a DEQ's cell are ``sigma_a2`` times its conjugate
    kernel and what drives it; the readout of a pre-activation sees just these.
    """
    if not isinstance(network, nsd.DEQ):
        first, *inner, last = rates or (1.0,) * (len(network.activations) + 1)
        values, slope, inside = _through(network.activations, s, [0.0, *inner], slopes)
        trained = last * values[2] + inside
        return {"ck": values[2], "ntk": trained + first * s[2] * slope, "ntk_frozen": trained}
    assert ck is not None
    feedback, drive = network.sigma_a2, _drive(network, s)
    seen = network.readout == "pre-activation"
    before = ck if seen else _sums(feedback, ck, drive)
    root = math.sqrt(before[0]) * math.sqrt(before[1]) if network.normalise else 1.0
    at = (1.0, 1.0, before[2] / root) if network.normalise else before
    values, slope, inside = _through(network.activations, at, [0.0, *(1.0,) * len(network.activations)], slopes)
    slope, trained = slope / root, values[2] + inside
    theta = (before[2] + feedback * inside) / (1.0 - feedback * slope)
    found = {"ck": values[2], "ntk": trained + theta * slope, "ntk_frozen": trained / (1.0 - feedback * slope)}
    return {k: feedback * v + drive[2] if seen else v for k, v in found.items()}


def equilibrium(deq: Any, s: Covariance) -> Covariance | None:
    """The conjugate kernel of one pair (own, own, both) by plain iteration from none, if that comes to an end."""
    drive, found = _drive(deq, s), (0.0, 0.0, 0.0)
    for _ in range(400):
        at = before = _sums(deq.sigma_a2, found, drive)
        if deq.normalise:
            at = (1.0, 1.0, before[2] / math.sqrt(before[0]) / math.sqrt(before[1]))
        after, _, _ = _through(deq.activations, at, [0.0] * (1 + len(deq.activations)), False)
        moved = max(abs(a - b) for a, b in zip(after, found, strict=True))
        found = after
        if moved <= ulps(1) * max(after[:2]):
            return before if deq.readout == "pre-activation" else after
    return None


def _drive(deq: Any, s: Covariance) -> Covariance:
    return tuple(deq.sigma_b2 * one + deq.sigma_c2 for one in s)  # type: ignore[return-value]


def _sums(feedback: float, ck: Covariance, drive: Covariance) -> Covariance:
    return tuple(feedback * g + one for g, one in zip(ck, drive, strict=True))  # type: ignore[return-value]


def _through(
    layers: Sequence[Activation], at: Covariance, rates: Sequence[float], slopes: bool
) -> tuple[Covariance, float, float]:
    """Covariances behind layers, the derivative of the last one, and the tangents of weights at these rates."""
    slope, inside = 1.0, 0.0
    for rate, phi in zip(rates, layers, strict=False):
        if slopes:
            dot = expected(phi, at, slopes=True)
            slope, inside = slope * dot, (inside + rate * at[2]) * dot
        at = (expected(phi, (at[0],) * 3), expected(phi, (at[1],) * 3), expected(phi, at))  # type: ignore[arg-type]
    return at, slope, inside


def resolves(network: Any, s: Covariance, found: Covariance) -> bool:
    """Whether panels that grow away from kinks and zero resolve all layers: not fast waves, nor high powers."""
    most = float(max(s[:2]))
    if isinstance(network, nsd.DEQ):
        most = network.sigma_a2 * max(found[:2]) + network.sigma_b2 * most + network.sigma_c2
    for phi in network.activations:
        exact, name = phi.polynomial(), repr(phi).lower()
        degree = 1 if exact is None else exact.degree
        waves = 3.0 if "callable 4" in name else 1.0 if any(word in name for word in ("sin", "cos")) else 0.0
        if (
            degree > 6
            or degree * np.log10(max(most, 1.0)) > 100.0
            or (waves and not most * (waves * getattr(phi, "scale", 1.0)) ** 2 < 100.0)
        ):
            return False
        most = 10.0 if waves else 1e3 * max(most, 1.0) ** degree
    # far inside the range of numbers, so that products of variances are numbers
    return most < 1e100 and float(min(s[:2])) > 1e-100
