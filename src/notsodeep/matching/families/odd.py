"""One layer for odd activations: Hard-Tanh, a clip(x, -c, c); and the DEQ's own with a linear term, a phi(b x) + d x.

Hard-Tanh, z = c / tau0, P = P(|xi| < z), M = E[clip(xi, -z, z)^2]: E1 = a P, E[sigma'^2] = a^2 P, E[sigma^2] = a^2
tau0^2 M. Hence c1 tau0^2 / diagonal is P^2 / M for the CK and the frozen NTK, from 2/pi (z -> 0) to 1 (z -> inf), and
2 P^2 / (P + M) for the NTK, from 0 to 1: one scalar equation for z.

Own activation, psi(x) = phi(b x), m = E[psi'], v and w what is left of E[psi^2] and E[psi'^2] without the linear parts,
rates r_1, r_2 of W_1 and the readout: c1 = (r_1 + r_2) (a m + d)^2, diagonal = c1 tau0^2 + a^2 (r_2 v + r_1 tau0^2 w).
So a and d are closed forms, and the scale b and the ratio of the rates are spent on the next orders.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import erf, erfc

from ..._arrays import Array
from ...activations import HardTanh, Linear
from ...kernels.jets import TERMS, explicit_jets, layers_of
from ...networks import ENN
from .._limits import LIMITS
from ..solver import Draft, refusal
from ..target import Target


def hard_tanh(target: Target) -> Draft:
    """Design the Hard-Tanh layer, or a linear one where the DEQ is linear."""
    full = target.kernel == "ntk"
    ratio = target.normalised[0]
    _check_odd(target, "Hard-Tanh")
    reason = f"{target.depth_reason}; {{}} is the cheapest activation with these numbers"
    if (linear := linear_layer(target)) is not None:
        return Draft(ENN([linear]), "linear", reason.format("a linear layer"))

    def gap(z: float) -> float:
        inside, square = _shape_numbers(z)
        return (2.0 * inside**2 / (inside + square) if full else inside**2 / square) - ratio

    low, high = 1e-7, 40.0
    if gap(low) > LIMITS.feasible * ratio:
        least = 0.0 if full else 2.0 / math.pi
        raise refusal(
            f"one Hard-Tanh layer needs c1 tau0^2/diagonal in [{'0' if full else '2/pi'}, 1] = [{least:.6f}, 1]; "
            f"the DEQ has {ratio:.6g}, {'too near 0' if full else f'below by {least - ratio:.3g}'}",
            "Use family='hermite', whose single odd layer reaches all of (0, 1]",
            (least - ratio) / max(ratio, 1e-300),
        )
    if gap(high) <= 0.0:  # linear to rounding
        return Draft(ENN([Linear(_slope(target))]), "linear", reason.format("a linear layer"))
    z = float(brentq(gap, low, high, xtol=1e-15, rtol=8.9e-16)) if gap(low) < 0.0 else low
    layer = HardTanh(a=_slope(target) / _shape_numbers(z)[0], c=z * target.tau0)
    return Draft(ENN([layer]), "hard_tanh", reason.format("Hard-Tanh"))


def _check_odd(target: Target, layer: str) -> None:
    _, t2, t3 = target.normalised
    if not target.odd:
        told = f"c2 tau0^4/diagonal = {t2:.4g} and c3 tau0^4/diagonal = {t3:.4g}"
        raise refusal(f"{layer} is odd, so its c2 and c3 vanish; the DEQ has {told}", residual=max(t2, t3))


def linear_layer(target: Target) -> Linear | None:
    """Return the whole layer where the DEQ is linear to rounding."""
    return Linear(_slope(target)) if target.normalised[0] >= 1.0 - 1e-14 else None


def _slope(target: Target) -> float:
    """Return E[sigma'] of the one layer that has c1."""
    return math.sqrt(target.numbers.c1 / (2.0 if target.kernel == "ntk" else 1.0))


def _shape_numbers(z: float) -> tuple[float, float]:
    """Return (P, M) of the Hard-Tanh layer at z."""
    inside = float(erf(z / math.sqrt(2.0)))
    density = math.sqrt(2.0 / math.pi) * math.exp(-0.5 * z * z)
    return inside, inside - z * density + z * z * float(erfc(z / math.sqrt(2.0)))


# ---- the activation itself -------------------------------------------------------------------------------------


def skip(target: Target) -> Draft:
    """Find the best scale; with learning rates where they lower the cost of the next orders ten times."""
    reason = f"{target.depth_reason}; the DEQ's own activation with a linear term, its scale spent on the next orders"
    if (linear := linear_layer(target)) is not None:
        return Draft(ENN([linear]), "skip", reason)
    _check_odd(target, "a layer of family='skip'")
    if target.even:
        raise refusal(
            f"the DEQ has no linear part at tau0 = {target.tau0:.6g} (c1 = 0), nothing for a linear term to match",
            "Use family='hermite'",
        )
    best = best_layer(target)
    if best is None:
        raise refusal(
            f"{target.deq.activation!r} is odd at the scale of these data only, not when its input is scaled",
            "Use family='hermite'",
        )
    if target.kernel == "ntk" and best.costs[0] > LIMITS.near_next_order:
        rated = best_layer(target, free_rates=True)
        best = rated if rated is not None and rated.costs[0] < 0.1 * best.costs[0] else best
    gain, scale, line = (float(part[0]) for part in (best.gain, best.scale, best.line))
    network = ENN([target.deq.activation.affine(gain=gain, scale=scale, skip=line)]).centred(target.tau0)
    rates = None if best.rates is None else tuple(float(r) for r in best.rates[0])
    return Draft(network, "skip", reason, rates)


FAMILIES = {"hard_tanh": hard_tanh, "skip": skip}


@dataclass(frozen=True)
class _Layers:
    """Layers that meet the equations, one per row; infinite costs where there is none."""

    scale: Array
    gain: Array
    line: Array  # the linear term
    rates: Array | None
    costs: Array
    """The cost of the next orders; of designs that are equally good the one whose terms do not cancel is cheaper."""


def best_layer(target: Target, *, free_rates: bool = False) -> _Layers | None:
    """Find the best scale and, with ``free_rates``, the best ratio of the learning rates of an NTK."""
    grid = np.linspace(-LIMITS.skip_range, LIMITS.skip_range, 17)
    costs = _layers(target, grid, 0.0 * grid).costs
    if not np.isfinite(costs).any():
        return None
    best = _descend(target, grid[[np.argmin(costs)]])
    if free_rates:
        best = _descend(target, np.append(best, 0.0))
    return _layers(target, best[:1], best[1:] if len(best) > 1 else 0.0 * best)


def _descend(target: Target, at: Array) -> Array:
    """Minimise the cost over the logarithm of the scale, and over the logit of the share of W_1 if it has a start.

    The best point of a grid of nine points a side is the centre of the next, a finer one unless it was at the edge.
    """
    offsets = np.stack(np.meshgrid(*[np.arange(-4.0, 5.0)] * len(at)), axis=-1).reshape(-1, len(at))
    spacing, least = 0.1, np.inf
    while spacing > 1e-8:
        points = at + spacing * offsets
        costs = _layers(target, points[:, 0], points[:, 1] if len(at) > 1 else 0.0 * points[:, 0]).costs
        best = int(np.argmin(costs))
        if not costs[best] < least or np.abs(offsets[best]).max() < 4.0:
            spacing *= 0.4
        if costs[best] < least:
            at, least = points[best], float(costs[best])
    return at


def _layers(target: Target, z: Array, logits: Array) -> _Layers:
    """Return layers of some scales and shares of W_1 in the rates: none where phi is linear or large terms cancel."""
    number, tau, phi = target.numbers, target.tau0, target.deq.activation
    full, share = target.kernel == "ntk", 1.0 / (1.0 + np.exp(-logits))
    first, readout = (2.0 * share, 2.0 * (1.0 - share)) if full else (0.0 * share, 1.0 + 0.0 * share)
    scale = np.exp(np.clip(z, -LIMITS.skip_range, LIMITS.skip_range)) * float(number.tau_star or tau) / tau
    base = layers_of(phi, scale * tau, TERMS + 2)
    along = base.hermite[:, 1]  # tau times the slope of phi(scale x)
    bent = base.square[:, 0] - along**2
    curved = readout * bent + first * (base.slope_square[:, 0] - along**2)
    steep = tau * np.sqrt(number.c1 / (first + readout))
    good = curved > 1e-9 * (first + readout) * along**2  # less than that is lost to rounding
    gain = np.sqrt(max(number.diagonal - number.c1 * tau**2, 0.0) / np.where(good, curved, 1.0))
    good &= gain * np.abs(along) <= 1e3 * steep  # else a difference of large terms, whose digits are lost
    line = steep - gain * along
    rates = np.stack([first, readout], axis=-1) if full else None
    jet = explicit_jets([base.with_line(gain, line)], rates, (target.kernel,))[target.kernel]
    good &= np.abs(target.equations(jet)).max(-1) <= 1e3 * LIMITS.feasible
    # the layer is a part along x, of slope steep, and what is left of phi without its own
    cancelled = gain**2 * base.square[:, 0] / (steep**2 + gain**2 * bent)
    # the next orders of a good design cost 1e-7: cancellation decides among equals only
    costs = np.where(good, target.cost(jet) + 1e-8 * cancelled, np.inf)
    equal = full and bool((share == 0.5).all())
    return _Layers(scale, gain, line / tau, None if equal else rates, costs)
