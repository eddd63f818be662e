"""One layer a phi(b x) + d x for odd activations: the DEQ's own activation, scaled, and a linear term.

With psi(x) = phi(b x), m = E[psi'], v = Var[psi] - (m tau0)^2 and w = E[psi'^2] - m^2 at the scale tau0 (what is left
of psi and psi' without their linear parts), learning rates r_1 of W_1 and r_2 of the readout, the layer has

    c1 = (r_1 + r_2) (a m + d)^2,     diagonal = c1 tau0^2 + a^2 (r_2 v + r_1 tau0^2 w),

so that a and d are closed forms for every b, and every target can be met. The scale b (and, for an NTK, the ratio of
the rates) is free and is spent on the next orders: a search in one dimension or two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...kernels.jets import TERMS, KernelJet, explicit_jets, layers_of
from ...networks import ENN, Kernel
from ..target import FEASIBLE, Target
from .draft import Draft, Refusal, depth_reason, need_rates
from .hard_tanh import add_ntk_rates, linear_layer, split_rates
from .hermite import ENOUGH

Array = NDArray[Any]

_RANGE = math.log(8.0)  # of log b, to either side of the scale at which the DEQ uses its activation
_GRID = 17
_LARGEST = 1e3  # the nonlinear term's slope over that of the layer
_DIFFERENCE = 1e-4  # of logarithms
_STEPS, _STILL, _LONGEST = 60, 1e-6, 0.5  # of the descent
_LIMITS = np.array([[-_RANGE, -np.inf], [_RANGE, np.inf]])
_TAME = 1e-8  # weight of the cancellation; the next orders of a good design cost 1e-7


def skip(target: Target, with_rates: bool | None) -> Draft | Refusal:
    """The best scale; with learning rates where they are asked for or worth having."""
    refused = need_rates(target, with_rates) or _unfit(target)
    if refused is not None:
        return refused
    reason = f"{depth_reason(target)}; the DEQ's own activation with a linear term, its scale spent on the next orders"
    if (linear := linear_layer(target)) is not None:
        return add_ntk_rates(target, Draft(ENN([linear]), "skip", 1.0, reason))
    best = _best(target, bool(with_rates))
    if with_rates is None and best is not None and target.kernel == "ntk" and best.costs[0] > ENOUGH:
        rated = _best(target, True)
        best = rated if rated is not None and rated.costs[0] < 0.1 * best.costs[0] else best
    return _no_scale(target) if best is None else best.draft(target, reason)


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


@dataclass(frozen=True)
class _Layers:
    """Layers that meet the equations, one per row; infinite costs where there is none."""

    scale: Array
    gain: Array
    line: Array
    """The linear term."""
    rates: Array | None
    linear: Array
    """The part of the slope that the nonlinear term has."""
    bent: Array
    """The nonlinear part of the diagonal."""
    jets: dict[Kernel, KernelJet]
    costs: Array
    """Of the next orders; of designs that are equally good the one whose terms do not cancel."""

    def draft(self, target: Target, reason: str) -> Draft:
        gain, scale, line = (float(part[0]) for part in (self.gain, self.scale, self.line))
        network = ENN([target.deq.activation.affine(gain=gain, scale=scale, skip=line)]).centred(target.tau0)
        # (log c1, log diagonal) by (log a, d / (a m + d))
        linear, bent = 2.0 * float(self.linear[0]), float(self.bent[0])
        condition = np.linalg.cond([[linear, 2.0], [2.0 * bent + linear * (1.0 - bent), 2.0 * (1.0 - bent)]])
        rates = None if self.rates is None else tuple(float(r) for r in self.rates[0])
        jets = {name: KernelJet(jet.c[0]) for name, jet in self.jets.items()}
        return Draft(network, "skip", float(condition), reason, rates, jets)


def _best(target: Target, free_rates: bool) -> _Layers | None:
    """With ``free_rates`` the best ratio of learning rates as well, where an NTK has one."""
    grid = np.linspace(-_RANGE, _RANGE, _GRID)
    costs = _layers(target, grid, 0.0 * grid).costs
    if not np.isfinite(costs).any():
        return None
    start = [float(grid[np.argmin(costs)])]
    best = _descend(target, start)
    if free_rates and target.kernel == "ntk":
        best = _descend(target, [best[0], 0.0])
    return _layers(target, best[:1], best[1:] if len(best) > 1 else 0.0 * best)


def _descend(target: Target, start: Sequence[float]) -> Array:
    """The logarithm of the scale, and the logit of the share of W_1 in the rates if a start is given for it.

    Newton's method on the cost, with the sizes of its curvatures, and shorter steps where one does not descend.
    """
    at, count = np.array(start), len(start)
    sides = _DIFFERENCE * np.concatenate([np.eye(count), -np.eye(count), np.ones((1, count)), -np.ones((1, count))])

    def costs(point: Array) -> tuple[float, Array]:
        points = np.concatenate([[point], point + sides])
        here, *beside = _layers(target, points[:, 0], points[:, 1] if count > 1 else 0.0 * points[:, 0]).costs
        return here, np.array(beside)

    here, beside = costs(at)
    for _ in range(_STEPS):
        step = _newton_step(here, beside)
        while np.abs(step).max() > _STILL:
            ahead = np.clip(at + step, *_LIMITS[:, :count])
            there, around = costs(ahead)
            if there < here:
                break
            step *= 0.25
        else:  # its error is of the order of its square
            return np.clip(at + step, *_LIMITS[:, :count])
        at, here, beside = ahead, there, around
    return at


def _newton_step(here: float, beside: Array) -> Array:
    """From the costs at a point and at its neighbours along the axes and along the diagonal."""
    count = len(beside) // 2 - 1
    if not np.isfinite(beside).all():  # at the edge of what is possible it ends
        return np.zeros(count)
    ahead, behind = beside[:count], beside[count : 2 * count]
    gradient = (ahead - behind) / (2.0 * _DIFFERENCE)
    curved = ahead + behind - 2.0 * here
    mixed = 0.5 * (beside[2 * count :].sum() - 2.0 * here - curved.sum())
    hessian = (np.diag(curved) + mixed * (1.0 - np.eye(count))) / _DIFFERENCE**2
    values, vectors = np.linalg.eigh(hessian)
    step = -vectors @ (vectors.T @ gradient / np.maximum(np.abs(values), 1e-300))
    return np.asarray(step * min(1.0, _LONGEST / max(float(np.abs(step).max()), 1e-300)))


def _layers(target: Target, z: Array, logits: Array) -> _Layers:
    """The layers of some scales and shares of W_1 in the rates.

    There is none where phi is linear, where large terms cancel, or where CK and NTK together ask for a negative rate.
    """
    number, tau, phi = target.numbers[0], target.tau0, target.deq.activation
    full, share = target.names[0] == "ntk", 1.0 / (1.0 + np.exp(-logits))
    first, readout = (2.0 * share, 2.0 * (1.0 - share)) if full else (0.0 * share, 1.0 + 0.0 * share)
    scale = np.exp(np.clip(z, -_RANGE, _RANGE)) * float(number.tau_star or tau) / tau
    base = layers_of(phi, scale * tau, TERMS + 2)
    along = base.hermite[:, 1]  # tau times the slope of phi(scale x)
    rest = base.square[:, 0] - along**2
    curved = readout * rest + first * (base.slope_square[:, 0] - along**2)
    steep = tau * np.sqrt(number.c1 / (first + readout))
    good = curved > 1e-9 * (first + readout) * along**2  # less than that is lost to rounding
    gain = np.sqrt(max(number.diagonal - number.c1 * tau**2, 0.0) / np.where(good, curved, 1.0))
    good &= gain * np.abs(along) <= _LARGEST * steep  # else a difference of large terms, whose digits are lost
    line = steep - gain * along
    layer = base.with_line(gain, line)
    rates = np.stack([first, readout], axis=-1) if full else None
    if target.kernel == "both":
        rates = np.stack(split_rates(target, layer.square[:, 0], layer.slope_square[:, 0]), axis=-1)
        good &= (rates >= 0.0).all(-1)
    jets = explicit_jets([layer], rates, target.names)
    good &= np.abs(target.equations(jets)).max(-1) <= 1e3 * FEASIBLE
    # the layer is a part along x, of slope steep, and what is left of phi without its own
    cancelled = gain**2 * base.square[:, 0] / (steep**2 + gain**2 * rest)
    costs = np.where(good, (target.beyond(jets) ** 2).sum(-1) + _TAME * cancelled, np.inf)
    even = rates is not None and full and bool((share == 0.5).all())
    bent = gain**2 * curved / number.diagonal
    return _Layers(scale, gain, line / tau, None if even else rates, gain * along / steep, bent, jets, costs)
