"""One Hard-Tanh layer a clip(x, -c, c) for odd activations: one scalar equation for z = c / tau0.

With P = P(|xi| < z) and M = E[clip(xi, -z, z)^2]: E1 = a P, E[sigma'^2] = a^2 P, E[sigma^2] = a^2 tau0^2 M. Hence

    CK and frozen NTK:  c1 tau0^2 / diagonal = P^2 / M,         from 2/pi (z -> 0) to 1 (z -> inf);
    NTK:                c1 tau0^2 / diagonal = 2 P^2 / (P + M),  from 0 to 1.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import erf, erfc

from ...activations import Activation, HardTanh, Linear
from ...gaussian import moments
from ...networks import ENN
from ..target import FEASIBLE, Target
from .draft import Draft, Refusal, depth_reason, need_rates

Array = NDArray[Any]

_LINEAR = 1e-14  # closer to 1 than this, the ratio is 1 to rounding and the layer is linear


def hard_tanh(target: Target, with_rates: bool | None) -> Draft | Refusal:
    """The layer, with learning rates where CK and NTK are asked for together."""
    layer = need_rates(target, with_rates) or _layer(target)
    if isinstance(layer, Refusal):
        return layer
    name, kind = ("linear", "a linear layer") if isinstance(layer, Linear) else ("hard_tanh", "Hard-Tanh")
    reason = f"{depth_reason(target)}; {kind} is the cheapest activation with these numbers"
    return add_ntk_rates(target, Draft(ENN([layer]), name, conditioning(layer, target), reason))


def shape_numbers(z: float) -> tuple[float, float]:
    """(P, M) at z."""
    inside = float(erf(z / math.sqrt(2.0)))
    density = math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z)
    return inside, inside - z * density + z * z * float(erfc(z / math.sqrt(2.0)))


def linear_layer(target: Target) -> Linear | None:
    """The whole layer where the DEQ is linear to rounding."""
    if target.normalised[0][0] < 1.0 - _LINEAR:
        return None
    return Linear(_slope(target))


def _slope(target: Target) -> float:
    """E[sigma'] of the one layer that has c1."""
    return math.sqrt(target.numbers[0].c1 / (2.0 if target.names[0] == "ntk" else 1.0))


def _layer(target: Target) -> Activation | Refusal:
    """The layer, or the inequality which fails."""
    full = target.names[0] == "ntk"
    ratio, t2, t3 = target.normalised[0]
    if not target.odd:
        return Refusal(
            f"Hard-Tanh is odd, so its c2 and c3 vanish; the DEQ has c2 tau0^4/diagonal = {t2:.4g} and "
            f"c3 tau0^4/diagonal = {t3:.4g}",
            "Use family='auto'",
            max(t2, t3),
        )
    if (linear := linear_layer(target)) is not None:
        return linear

    def gap(z: float) -> float:
        inside, square = shape_numbers(z)
        return (2.0 * inside**2 / (inside + square) if full else inside**2 / square) - ratio

    low, high = 1e-7, 40.0
    if gap(low) > FEASIBLE * ratio:
        return _too_low(ratio, full)
    if gap(high) <= 0.0:  # linear to rounding
        return Linear(_slope(target))
    z = float(brentq(gap, low, high, xtol=1e-15, rtol=8.9e-16)) if gap(low) < 0.0 else low
    return HardTanh(a=_slope(target) / shape_numbers(z)[0], c=z * target.tau0)


def _too_low(ratio: float, full: bool) -> Refusal:
    least = 0.0 if full else 2.0 / math.pi
    missed = "too close to 0 to be resolved" if full else f"below by {least - ratio:.3g}"
    return Refusal(
        f"one Hard-Tanh layer needs c1 tau0^2/diagonal in [{'0' if full else '2/pi'}, 1] = [{least:.6f}, 1]; "
        f"the DEQ has {ratio:.6g}, {missed}",
        "Use family='hermite', whose single odd layer reaches all of (0, 1]",
        (least - ratio) / max(ratio, 1e-300),
    )


def conditioning(layer: Activation, target: Target) -> float:
    """Condition number of (log c1, log diagonal) as functions of (log a, log c); 1 for a linear layer."""
    if not isinstance(layer, HardTanh):
        return 1.0
    z = layer.c / target.tau0
    inside, square = shape_numbers(z)
    by_inside, by_square = math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z), 2.0 * z * float(erfc(z / math.sqrt(2.0)))
    share = float(target.names[0] == "ntk")  # the NTK adds E[sigma'^2] to the diagonal
    second = z * (share * by_inside + by_square) / (share * inside + square)
    return float(np.linalg.cond([[2.0, 2.0 * z * by_inside / inside], [2.0, second]]))


def add_ntk_rates(target: Target, draft: Draft | Refusal) -> Draft | Refusal:
    """The single layer of a CK with rates (W_1, readout) that add the NTK, where both are asked for."""
    if isinstance(draft, Refusal) or target.kernel != "both" or draft.network.depth > 1:
        return draft
    (layer,) = draft.network.activations
    m = moments(layer, target.tau0)
    first, readout = split_rates(target, np.array(m.square), target.tau0**2 * np.array(m.slope_square))
    if not (first >= 0.0 and readout >= 0.0):
        return Refusal(
            f"CK and NTK together need learning rates {first:.4g} (W_1) and {readout:.4g} (readout) with "
            f"{layer!r}: one of them is negative",
            "Match 'ck' or 'ntk' alone",
        )
    return replace(draft, rates=(float(first), float(readout)), jets=None)


def split_rates(target: Target, square: Array, slope_square: Array) -> tuple[Array, Array]:
    """Of layers with E[sigma^2] and tau0^2 E[sigma'^2]: two linear equations for rho_1 and rho_2.

    c1: rho_1 + rho_2 = beta1 / alpha1; diagonal: rho_1 tau0^2 E[sigma'^2] + rho_2 E[sigma^2] = kappa^2.
    """
    ck, ntk = target.numbers
    total = ntk.c1 / ck.c1 if ck.c1 > 0 else 2.0
    steep = slope_square - square
    linear = np.abs(steep) <= 1e-12 * square  # both terms are proportional, any split will do
    first = np.where(linear, 0.5 * total, (ntk.diagonal - total * square) / np.where(linear, 1.0, steep))
    return first, total - first
