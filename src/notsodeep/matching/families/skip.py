"""One layer a phi(b x) + d x for odd activations: the DEQ's own activation, scaled, and a linear term.

With psi(x) = phi(b x), m = E[psi'], v = Var[psi] - (m tau0)^2 and w = E[psi'^2] - m^2 at the scale tau0 (what is left
of psi and psi' without their linear parts), learning rates r_1 of W_1 and r_2 of the readout, the layer has

    c1 = (r_1 + r_2) (a m + d)^2,     diagonal = c1 tau0^2 + a^2 (r_2 v + r_1 tau0^2 w),

so that a and d are closed forms for every b, and every target can be met. The scale b (and, for an NTK, the ratio of
the rates) is free and is spent on the next orders: a search in one dimension or two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from ...gaussian import moments
from ...networks import ENN
from ..target import FEASIBLE, Target, network_jets
from .draft import Draft, Refusal, depth_reason, need_rates
from .hard_tanh import linear_layer, rates_for_both
from .hermite import ENOUGH

__all__ = ["SkipDesign", "skip"]

_RANGE = math.log(8.0)  # of log b, to either side of the scale at which the DEQ uses its activation
_GRID = 17
_LARGEST = 1e3  # the nonlinear term's slope over that of the layer
_TAME = 1e-8  # weight of the cancellation; the next orders of a good design cost 1e-7


@dataclass(frozen=True)
class SkipDesign:
    """A layer that meets the equations, with the cost of its next orders."""

    network: ENN
    rates: tuple[float, ...] | None
    cost: float
    conditioning: float
    cancellation: float
    """The squared size of the nonlinear term over that of the output: large if the two terms nearly cancel."""


def skip(target: Target, learning_rates: bool | None) -> Draft | Refusal:
    """The best scale; with learning rates where they are asked for or worth having."""
    refused = need_rates(target, learning_rates) or _unfit(target)
    if refused is not None:
        return refused
    design = _best(target, bool(learning_rates))
    if learning_rates is None and design is not None and target.kernel == "ntk" and design.cost > ENOUGH:
        rated = _best(target, True)
        design = rated if rated is not None and rated.cost < 0.1 * design.cost else design
    if design is None:
        return _no_scale(target)
    reason = f"{depth_reason(target)}; the DEQ's own activation with a linear term, its scale spent on the next orders"
    return Draft(design.network, "skip", design.conditioning, reason, design.rates)


def _unfit(target: Target) -> Refusal | None:
    if not target.odd:
        _, t2, t3 = target.normalised[0]
        return Refusal(
            f"one layer of the DEQ's own activation with a linear term has c2 = c3 = 0; the DEQ has "
            f"c2 tau0^4/diagonal = {t2:.4g} and c3 tau0^4/diagonal = {t3:.4g}",
            "Use family='auto'",
            max(t2, t3),
        )
    if target.even:
        return Refusal(
            f"the DEQ has no linear part at tau0 = {target.tau0:.6g} (c1 = 0), nothing for a linear term to match",
            "Use family='hermite'",
        )
    return None


def _no_scale(target: Target) -> Refusal:
    if target.kernel == "both":
        return Refusal(
            f"CK and NTK of {target.deq!r} together need learning rates of which one is negative, at every scale "
            "of its own activation",
            "Match 'ck' or 'ntk' alone",
        )
    return Refusal(
        f"{target.deq.activation!r} is odd at the scale of these data only, not when its input is scaled",
        "Use family='hermite'",
    )


def _best(target: Target, free_rates: bool) -> SkipDesign | None:
    """With ``free_rates`` the best ratio of learning rates as well, where an NTK has one."""
    if (linear := linear_layer(target)) is not None:
        return _finished(target, ENN([linear]), None, 1.0, 0.0)
    grid = np.linspace(-_RANGE, _RANGE, _GRID)
    costs = [_cost(target, float(z)) for z in grid]
    if not math.isfinite(min(costs)):
        return None
    at = int(np.argmin(costs))
    around = (grid[max(at - 1, 0)], grid[min(at + 1, _GRID - 1)])
    best = float(minimize_scalar(lambda z: _cost(target, z), bounds=around, options={"xatol": 1e-7}).x)
    share = 0.5
    if free_rates and target.kernel == "ntk":
        best, share = _with_rates(target, best)
    return _design(target, best, share)


def _with_rates(target: Target, z: float) -> tuple[float, float]:
    """The logarithm of the scale and the share of W_1 in the rates."""
    options = {"xatol": 1e-7, "fatol": 1e-10, "initial_simplex": [[z, 0.0], [z + 0.1, 0.0], [z, -0.3]]}
    found = minimize(
        lambda v: math.log(_cost(target, float(v[0]), _share(v[1])) + 1e-20),
        [z, 0.0],
        method="Nelder-Mead",
        options=options,
    )
    return float(np.clip(found.x[0], -_RANGE, _RANGE)), _share(found.x[1])


def _share(logit: float) -> float:
    return 1.0 / (1.0 + math.exp(-float(logit)))


def _cost(target: Target, z: float, share: float = 0.5) -> float:
    """Of the next orders; of designs that are equally good the one whose terms do not cancel."""
    found = _design(target, float(np.clip(z, -_RANGE, _RANGE)), share)
    return math.inf if found is None else found.cost + _TAME * found.cancellation


def _design(target: Target, z: float, share: float) -> SkipDesign | None:
    """The layer of a scale; ``None`` where phi is linear there, or CK and NTK together ask for a negative rate."""
    number, tau, phi = target.numbers[0], target.tau0, target.deq.activation
    full = target.names[0] == "ntk"
    first, readout = (2.0 * share, 2.0 * (1.0 - share)) if full else (0.0, 1.0)
    scale = math.exp(z) * float(number.tau_star or tau) / tau
    psi = phi.affine(scale=scale)
    m = moments(psi, tau)
    curved = readout * (m.variance - (m.slope * tau) ** 2) + first * tau**2 * (m.slope_square - m.slope**2)
    steep = math.sqrt(number.c1 / (first + readout))
    if not curved > 1e-9 * (first + readout) * (m.slope * tau) ** 2:  # less than that is lost to rounding
        return None
    gain = math.sqrt(max(number.diagonal - number.c1 * tau**2, 0.0) / curved)
    if gain * abs(m.slope) > _LARGEST * steep:  # a difference of large terms, whose digits are lost
        return None
    layer = phi.affine(gain=gain, scale=scale, skip=steep - gain * m.slope)
    rates = (first, readout) if full and share != 0.5 else None
    condition = _condition(gain * m.slope / steep, gain**2 * curved / number.diagonal)
    # the layer is a part along x, of slope steep, and what is left of psi without its own
    size = (steep * tau) ** 2 + gain**2 * (m.variance - (m.slope * tau) ** 2)
    return _finished(target, ENN([layer]).centred(tau), rates, condition, gain**2 * m.variance / size)


def _condition(linear: float, bent: float) -> float:
    """Of (log c1, log diagonal) by (log a, d / (a m + d)); ``bent`` is the nonlinear part of the diagonal."""
    return float(np.linalg.cond([[2.0 * linear, 2.0], [2.0 * bent + 2.0 * linear * (1.0 - bent), 2.0 * (1.0 - bent)]]))


def _finished(
    target: Target, network: ENN, rates: tuple[float, ...] | None, condition: float, cancellation: float
) -> SkipDesign | None:
    if target.kernel == "both":
        both = rates_for_both(target, network.activations[0])
        if isinstance(both, Refusal):
            return None
        rates = both
    jets = network_jets(target, network, rates)
    beyond = target.beyond(jets)
    met = float(np.abs(target.equations(jets)).max()) <= 1e3 * FEASIBLE
    return SkipDesign(network, rates, float(beyond @ beyond) if met else math.inf, condition, cancellation)
