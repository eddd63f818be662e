"""Polynomial twins: one layer or two in the Hermite basis, with or without learning rates; and the quadratic ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...networks import ENN
from ..solver import Solution, best_of, solve
from ..target import Target, make_target
from .draft import Draft, Refusal, depth_reason, finished, need_rates, refuse_both
from .hard_tanh import rates_for_both
from .polynomial import HermiteDesign, as_quadratic, inner_start, outer_start, rated_start, single_start

Array = NDArray[Any]

DEGREE = 5
"""Three orders solve the equations; the fourth and fifth bring the next orders of the kernel within reach."""
ENOUGH = 1e-5
"""Next-order cost above which activations alone are a poor twin and learning rates are worth having."""
_WARPS = ((2.0, 0.1), (3.0, -0.1), (4.0, 0.2))
"""More curvature and a cubic term in layer 1: starts away from the points where a coefficient's gradient vanishes."""


def quadratic(target: Target, learning_rates: bool | None) -> Draft | Refusal:
    """Layers a x^2 + b x + c, as many as the theory asks for."""
    refused = need_rates(target, learning_rates) if target.odd else refuse_both(target)
    if refused is not None:
        return refused
    single = make_target(target.deq, target.tau0, "ck") if target.odd and target.kernel == "both" else target
    depth = 1 if single.one_layer else 2
    orders = ((1,),) if single.odd else ((1, 2),) * depth
    design = HermiteDesign(orders, single.size)
    start = single_start(single, 2) if depth == 1 else outer_start(single, 2)
    solution = solve(single, design, design.pack(start))
    if not solution.feasible:
        return Refusal(
            f"quadratic layers ({depth} of them) have too few free numbers once the gauge is fixed: the best misses "
            f"by {100 * solution.residual:.3g} %",
            "Use family='hermite': one more order solves it",
            solution.residual,
        )
    draft = _with_rates(target, finished(single, solution, "quadratic", depth_reason(target)))
    if isinstance(draft, Refusal):
        return draft
    return replace(draft, network=ENN([as_quadratic(phi) for phi in draft.network.activations]))


def hermite(target: Target, learning_rates: bool | None) -> Draft | Refusal:
    """One polynomial layer where one will do, else two."""
    if target.odd or (target.one_layer and target.kernel != "both"):
        return need_rates(target, learning_rates) or _single(target)
    refused = refuse_both(target)
    if refused is not None:
        return refused
    reason = f"{depth_reason(target)}; two polynomial layers in the Hermite basis have the freedom"
    if not target.tangent or learning_rates is False:
        return _alone(target, reason)
    alone = None if learning_rates else _plain(target, 1)
    if alone is not None and alone.feasible and alone.cost <= ENOUGH:
        return finished(target, alone, "hermite", reason)
    rated = _rated(target)
    if alone is not None and alone.feasible and not (rated.feasible and rated.cost < 0.1 * alone.cost):
        return finished(target, alone, "hermite", reason)
    why = "worth having for the next order" if alone is not None and alone.feasible else "needed"
    return finished(target, rated, "hermite", f"{reason}; learning rates are {why}")


def _alone(target: Target, reason: str) -> Draft | Refusal:
    plain = _plain(target, len(_WARPS) + 2)
    if not target.tangent or plain.feasible:
        return finished(target, plain, "hermite", reason)
    return Refusal(
        f"activations alone miss the {target.kernel} of {target.deq!r} at tau0 = {target.tau0:.6g} by "
        f"{100 * plain.residual:.3g} %; per-layer learning rates reach it",
        "Use learning_rates=None",
        plain.residual,
    )


def _single(target: Target) -> Draft | Refusal:
    single = target if target.kernel != "both" else make_target(target.deq, target.tau0, "ck")
    orders = tuple(k for k in range(1, DEGREE + 1) if not (target.odd and k in (2, 4)) and not (target.even and k == 1))
    design = HermiteDesign((orders,), single.size)
    found = _first_good(single, design, [[a] for a in _variants(single_start(single, DEGREE))])
    reason = f"{depth_reason(target)}; a polynomial reaches every ratio"
    return _with_rates(target, finished(single, found, "hermite", reason))


def _with_rates(target: Target, draft: Draft | Refusal) -> Draft | Refusal:
    """The single layer of a CK with the rates that add the NTK, where both are asked for."""
    if isinstance(draft, Refusal) or target.kernel != "both" or draft.network.depth > 1:
        return draft
    rates = rates_for_both(target, draft.network.activations[0])
    return rates if isinstance(rates, Refusal) else replace(draft, rates=rates)


def _variants(layers: Sequence[Array]) -> list[Array]:
    """The single layer's start, and the one with the other sign of its cubic term, at full size."""
    (a,) = layers
    flipped = a.copy()
    flipped[3::4] = -flipped[3::4]
    return [a, flipped]


def _orders(target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    every = tuple(range(1, DEGREE + 1))
    return every, tuple(k for k in every if k % 2 == 0) if target.even else every


def _plain(target: Target, attempts: int) -> Solution:
    """Activations alone."""
    return _first_good(target, HermiteDesign(_orders(target), target.size), _plain_starts(target)[:attempts])


def _first_good(target: Target, design: HermiteDesign, starts: Sequence[Sequence[Array]]) -> Solution:
    """From the first start that leads to a good next order, else the best of two feasible ones."""
    found: list[Solution] = []
    for layers in starts:
        found.append(solve(target, design, design.pack(layers)))
        if (found[-1].feasible and found[-1].cost <= ENOUGH) or sum(s.feasible for s in found) >= 2:
            break
    return best_of(found)


def _plain_starts(target: Target) -> list[list[Array]]:
    builders: list[Callable[[Target, int], list[Array]]] = [outer_start, inner_start]
    starts = [b(target, DEGREE) for b in (builders[::-1] if target.kernel == "ntk_frozen" else builders)]
    for factor, cubic in _WARPS:
        a, b = (layer.copy() for layer in starts[0])
        a[2] = factor * max(a[2], 0.05)
        a[3] += cubic
        b[3] += cubic * b[1]
        starts.append([a / np.linalg.norm(a), b])
    return starts


def _rated(target: Target) -> Solution:
    design = HermiteDesign(_orders(target), target.size, free_rates=True)
    found: list[Solution] = []
    for readout in (None, 0.999, 0.9999, 0.9):
        rates = target.rates_at_first_order(readout)
        found.append(solve(target, design, design.pack(rated_start(target, DEGREE), rates)))
        if found[-1].feasible:
            break
    return best_of(found)
