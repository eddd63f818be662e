"""One layer a phi(b x) + d x for odd activations: the DEQ's own activation, scaled, and a linear term.

With psi(x) = phi(b x), m = E[psi'], v and w what is left of E[psi^2] and E[psi'^2] without the linear parts, and rates
r_1 of W_1 and r_2 of the readout: c1 = (r_1 + r_2) (a m + d)^2, diagonal = c1 tau0^2 + a^2 (r_2 v + r_1 tau0^2 w). So a
and d are closed forms, and the scale b and the ratio of the rates are spent on the next orders.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.jets import TERMS, explicit_jets, layers_of
from ...networks import ENN
from .._limits import LIMITS
from ..solver import Draft, Refusal
from ..target import Target
from .hard_tanh import linear_layer

Array = NDArray[Any]


def skip(target: Target) -> Draft | Refusal:
    """The best scale; with learning rates where they lower the cost of the next orders ten times."""
    reason = f"{target.depth_reason}; the DEQ's own activation with a linear term, its scale spent on the next orders"
    if (linear := linear_layer(target)) is not None:
        return Draft(ENN([linear]), "skip", reason)
    if not target.odd:
        _, t2, t3 = target.normalised
        return Refusal(
            f"one layer of the DEQ's own activation with a linear term has c2 = c3 = 0; the DEQ has "
            f"c2 tau0^4/diagonal = {t2:.4g} and c3 tau0^4/diagonal = {t3:.4g}",
            residual=max(t2, t3),
        )
    if target.even:
        return Refusal(
            f"the DEQ has no linear part at tau0 = {target.tau0:.6g} (c1 = 0), nothing for a linear term to match",
            "Use family='hermite'",
        )
    best = best_layer(target)
    if best is None:
        return Refusal(
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


FAMILIES = {"skip": skip}


@dataclass(frozen=True)
class _Layers:
    """Layers that meet the equations, one per row; infinite costs where there is none."""

    scale: Array
    gain: Array
    line: Array
    """The linear term."""
    rates: Array | None
    costs: Array
    """The cost of the next orders; of designs that are equally good the one whose terms do not cancel is cheaper."""


def best_layer(target: Target, *, free_rates: bool = False) -> _Layers | None:
    """The best scale and, with ``free_rates``, the best ratio of the learning rates of an NTK."""
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
    """The layers of some scales and shares of W_1 in the rates: none where phi is linear or large terms cancel."""
    number, tau, phi = target.numbers, target.tau0, target.deq.activation
    full, share = target.kernel == "ntk", 1.0 / (1.0 + np.exp(-logits))
    first, readout = (2.0 * share, 2.0 * (1.0 - share)) if full else (0.0 * share, 1.0 + 0.0 * share)
    scale = np.exp(np.clip(z, -LIMITS.skip_range, LIMITS.skip_range)) * float(number.tau_star or tau) / tau
    base = layers_of(phi, scale * tau, TERMS + 2)
    along = base.hermite[:, 1]  # tau times the slope of phi(scale x)
    rest = base.square[:, 0] - along**2
    curved = readout * rest + first * (base.slope_square[:, 0] - along**2)
    steep = tau * np.sqrt(number.c1 / (first + readout))
    good = curved > 1e-9 * (first + readout) * along**2  # less than that is lost to rounding
    gain = np.sqrt(max(number.diagonal - number.c1 * tau**2, 0.0) / np.where(good, curved, 1.0))
    good &= gain * np.abs(along) <= 1e3 * steep  # else a difference of large terms, whose digits are lost
    line = steep - gain * along
    rates = np.stack([first, readout], axis=-1) if full else None
    jet = explicit_jets([base.with_line(gain, line)], rates, (target.kernel,))[target.kernel]
    good &= np.abs(target.equations(jet)).max(-1) <= 1e3 * LIMITS.feasible
    # the layer is a part along x, of slope steep, and what is left of phi without its own
    cancelled = gain**2 * base.square[:, 0] / (steep**2 + gain**2 * rest)
    # the next orders of a good design cost 1e-7: cancellation decides among equals only
    costs = np.where(good, target.cost(jet) + 1e-8 * cancelled, np.inf)
    equal = full and bool((share == 0.5).all())
    return _Layers(scale, gain, line / tau, None if equal else rates, costs)
