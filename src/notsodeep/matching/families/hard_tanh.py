"""One Hard-Tanh layer a clip(x, -c, c) for odd activations: one scalar equation for z = c / tau0.

With P = P(|xi| < z) and M = E[clip(xi, -z, z)^2]: E1 = a P, E[sigma'^2] = a^2 P, E[sigma^2] = a^2 tau0^2 M. Hence
c1 tau0^2 / diagonal is P^2 / M for the CK and the frozen NTK, from 2/pi (z -> 0) to 1 (z -> inf), and
2 P^2 / (P + M) for the NTK, from 0 to 1.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import erf, erfc

from ...activations import Activation, HardTanh, Linear
from ...networks import ENN
from .._limits import LIMITS
from ..solver import Draft, Refusal
from ..target import Target


def hard_tanh(target: Target) -> Draft | Refusal:
    """The Hard-Tanh layer, or a linear one where the DEQ is linear."""
    layer = _layer(target)
    if isinstance(layer, Refusal):
        return layer
    name, kind = ("linear", "a linear layer") if isinstance(layer, Linear) else ("hard_tanh", "Hard-Tanh")
    return Draft(ENN([layer]), name, f"{target.depth_reason}; {kind} is the cheapest activation with these numbers")


FAMILIES = {"hard_tanh": hard_tanh}


def linear_layer(target: Target) -> Linear | None:
    """The whole layer where the DEQ is linear to rounding."""
    return Linear(_slope(target)) if target.normalised[0] >= 1.0 - 1e-14 else None


def _slope(target: Target) -> float:
    """E[sigma'] of the one layer that has c1."""
    return math.sqrt(target.numbers.c1 / (2.0 if target.kernel == "ntk" else 1.0))


def _shape_numbers(z: float) -> tuple[float, float]:
    """(P, M) at z."""
    inside = float(erf(z / math.sqrt(2.0)))
    density = math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z)
    return inside, inside - z * density + z * z * float(erfc(z / math.sqrt(2.0)))


def _layer(target: Target) -> Activation | Refusal:
    """The layer, or the inequality which fails."""
    full = target.kernel == "ntk"
    ratio, t2, t3 = target.normalised
    if not target.odd:
        return Refusal(
            f"Hard-Tanh is odd, so its c2 and c3 vanish; the DEQ has c2 tau0^4/diagonal = {t2:.4g} and "
            f"c3 tau0^4/diagonal = {t3:.4g}",
            residual=max(t2, t3),
        )
    if (linear := linear_layer(target)) is not None:
        return linear

    def gap(z: float) -> float:
        inside, square = _shape_numbers(z)
        return (2.0 * inside**2 / (inside + square) if full else inside**2 / square) - ratio

    low, high = 1e-7, 40.0
    if gap(low) > LIMITS.feasible * ratio:
        least = 0.0 if full else 2.0 / math.pi
        return Refusal(
            f"one Hard-Tanh layer needs c1 tau0^2/diagonal in [{'0' if full else '2/pi'}, 1] = [{least:.6f}, 1]; "
            f"the DEQ has {ratio:.6g}, {'too near 0' if full else f'below by {least - ratio:.3g}'}",
            "Use family='hermite', whose single odd layer reaches all of (0, 1]",
            (least - ratio) / max(ratio, 1e-300),
        )
    if gap(high) <= 0.0:  # linear to rounding
        return Linear(_slope(target))
    z = float(brentq(gap, low, high, xtol=1e-15, rtol=8.9e-16)) if gap(low) < 0.0 else low
    return HardTanh(a=_slope(target) / _shape_numbers(z)[0], c=z * target.tau0)
