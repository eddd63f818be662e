"""nsd.match: which network, how deep, and the certificate."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..activations import Activation, Linear
from ..errors import InfeasibleMatchError, InvalidInputError
from ..mixtures import MixtureStatistics
from ..networks import DEQ, ENN
from .certificates import MixtureCertificate
from .family import Family, solve_family
from .hard_tanh import conditioning, hard_tanh_layer, rates_for_both
from .leaky import LeakyDesign, one_layer, tangent_start, two_layer_start
from .names import MatchKernel
from .polynomial import HermiteDesign, as_quadratic, inner_start, outer_start, rated_start, single_start
from .skip import skip_layer
from .solver import Solution, solve
from .targets import FEASIBLE, Target, achieved, make_target, network_jets, residual_of
from .twin import Twin

Array = NDArray[Any]

HERMITE_DEGREE = 5
"""Three orders solve the equations; the fourth and fifth bring the next orders of the kernel within reach."""
ACCEPTED = 1e-9
_POOR = 2.5e-4  # next-order cost above which auto looks beyond Hard-Tanh for a CK
_ENOUGH = 1e-5  # next-order cost above which activations alone are a poor twin and learning rates are worth having


@dataclass(frozen=True)
class _Draft:
    """A finished design before its certificate."""

    network: ENN
    family: str
    conditioning: float
    reason: str
    rates: tuple[float, ...] | None = None


def match(
    deq: DEQ,
    statistics: MixtureStatistics | float,
    kernel: MatchKernel = "ck",
    family: str | Family = "auto",
    *,
    learning_rates: bool | None = None,
) -> Twin:
    """The shallow explicit network whose kernel equals the DEQ's on high-dimensional mixtures (theory, section 6).

    Parameters
    ----------
    deq : the DEQ; it is matched in its centred form, ``twin.deq``
    statistics : :class:`MixtureStatistics`, or the scale tau0 alone (root mean square norm of the inputs)
    kernel : ``"ck"``, ``"ntk"`` (all weights), ``"ntk_frozen"`` (input weights frozen) or ``"both"`` (CK and NTK)
    family : ``"auto"`` takes the shallowest network that matches and, among those, the cheapest activation (for odd
        activations unless ``"skip"`` is far closer in the next orders, as it is for NTKs);
        ``"hard_tanh"``, ``"skip"`` (the DEQ's own activation with a linear term, for odd ones), ``"leaky_relu"``,
        ``"quadratic"``, ``"hermite"``, or a :class:`Family` of your own
    learning_rates : may the twin carry per-layer learning rates to reach an NTK? ``None``: only where activations alone
        do not reach it, or only with a poor next order; ``False``: never; ``True``: always, for the NTKs of two layers.
        The CK's twin changes smoothly with the DEQ; an NTK's does once this choice is made, ``True`` or ``False``

    >>> import notsodeep as nsd
    >>> twin = nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0)
    >>> layer = twin.network.activations[0]
    >>> round(layer.a, 6), round(layer.c, 6), twin.residual < 1e-14
    (0.764297, 1.196485, True)
    """
    target = make_target(deq, statistics, kernel)
    if isinstance(family, Family):
        return _certify(target, _user(target, family))
    if family == "auto":
        return _certify(target, _automatic(target, learning_rates))
    if family not in _FAMILIES:
        raise InvalidInputError(f"family must be 'auto', one of {sorted(_FAMILIES)} or a Family, got {family!r}")
    return _certify(target, _FAMILIES[family](target, learning_rates))


def _certify(target: Target, draft: _Draft) -> Twin:
    got = achieved(target, draft.network, draft.rates)
    residual = residual_of(target, got)
    if not residual <= ACCEPTED:
        raise InfeasibleMatchError(
            f"the best network of the family {draft.family!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * residual:.3g} %. Use family='auto' or 'hermite'",
            residual=residual,
        )
    proof = MixtureCertificate(residual, target.tau0, target.numbers, got, min(draft.conditioning, sys.float_info.max))
    return Twin(target.deq, draft.network, target.kernel, draft.family, proof, draft.rates, draft.reason)


# ---- auto -----------------------------------------------------------------------------------------------------------


def _automatic(target: Target, learning_rates: bool | None) -> _Draft:
    """Depth by the theory; then the cheapest family that can: Hard-Tanh or Leaky-ReLU before a polynomial."""
    cheap = _hard_tanh if target.odd else _leaky_relu
    try:
        draft = cheap(target, learning_rates)
    except InfeasibleMatchError as error:
        others = _skip_if_it_can(target, learning_rates)
        try:
            others.append(_hermite(target, learning_rates))
        except InfeasibleMatchError:
            if not others:
                raise
        draft = min(others, key=lambda other: _next_orders(target, other))
        return replace(draft, reason=f"{draft.reason}; {_first_clause(error)}")
    if (
        not target.odd
        or target.even
        or draft.family == "linear"
        or (cost := _next_orders(target, draft)) <= _poor(target)
    ):
        return draft
    for closer in _skip_if_it_can(target, learning_rates):
        if _next_orders(target, closer) <= 0.1 * cost:
            why = "Hard-Tanh has the numbers too, but is far off in the next orders"
            return replace(closer, reason=f"{closer.reason}; {why}")
    return draft


def _skip_if_it_can(target: Target, learning_rates: bool | None) -> list[_Draft]:
    try:
        return [_skip(target, learning_rates)]
    except InfeasibleMatchError:
        return []


def _poor(target: Target) -> float:
    """Hard-Tanh is a good twin of the CK, except of a sine; with an NTK its kinks show."""
    return _ENOUGH if target.tangent else _POOR


def _next_orders(target: Target, draft: _Draft) -> float:
    """The cost of what the four numbers leave open."""
    beyond = target.beyond(network_jets(target, draft.network, draft.rates))
    return float(beyond @ beyond)


def _first_clause(error: Exception) -> str:
    return str(error).split(". Use ")[0].split(". Match ")[0]


def _depth_reason(target: Target) -> str:
    if target.odd:
        return "one layer: the centred activation is odd at this scale (c2 = c3 = 0)"
    rule = "c3/6" if target.names[-1] == "ntk" else "c3/2"
    if target.one_layer:
        return f"one layer: c2 = {rule}"
    _, c2, c3 = target.normalised[0]
    return f"two layers: one layer forces c2 = {rule}, the DEQ has c2/c3 = {c2 / max(c3, 1e-300):.6g}"


# ---- the families ---------------------------------------------------------------------------------------------------


def _hard_tanh(target: Target, learning_rates: bool | None) -> _Draft:
    layer = hard_tanh_layer(target)
    network = ENN([layer])
    name = "linear" if isinstance(layer, Linear) else "hard_tanh"
    kind = "a linear layer" if name == "linear" else "Hard-Tanh"
    reason = f"{_depth_reason(target)}; {kind} is the cheapest activation with these numbers"
    if target.kernel != "both":
        return _Draft(network, name, conditioning(layer, target), reason)
    rates = _both_rates(target, layer, learning_rates)
    return _Draft(network, name, conditioning(layer, target), reason, rates)


def _skip(target: Target, learning_rates: bool | None) -> _Draft:
    if target.kernel == "both":
        _need_rates(learning_rates)
    design = skip_layer(target, bool(learning_rates))
    if learning_rates is None and design.cost > _ENOUGH:
        rated = skip_layer(target, True)
        design = rated if rated.cost < 0.1 * design.cost else design
    reason = f"{_depth_reason(target)}; the DEQ's own activation with a linear term, its scale spent on the next orders"
    return _Draft(design.network, "skip", design.conditioning, reason, design.rates)


def _both_rates(target: Target, layer: Activation, learning_rates: bool | None) -> tuple[float, ...]:
    _need_rates(learning_rates)
    return rates_for_both(target, layer)


def _need_rates(learning_rates: bool | None) -> None:
    if learning_rates is False:
        raise InfeasibleMatchError(
            "one layer without learning rates has beta1 = 2 alpha1, a DEQ alpha1 (1 + 1/(1 - s2a E1^2)): CK and NTK "
            "together need them. Pass learning_rates=None"
        )


def _leaky_relu(target: Target, learning_rates: bool | None) -> _Draft:
    if target.kernel == "both":
        _refuse_both(target)
    reason = _depth_reason(target)
    if target.one_layer and not target.odd:
        design = LeakyDesign(1, target.size, even=target.even)
        return _finished(target, solve(target, design, one_layer(target)), "leaky_relu", reason)
    if target.kernel == "ck":
        solution = solve(target, LeakyDesign(2, target.size, even=target.even), two_layer_start(target))
        return _finished(
            target, solution, "leaky_relu", f"{reason}; Leaky-ReLU meets the rest because the DEQ is homogeneous"
        )
    if learning_rates is False:
        raise InfeasibleMatchError(
            "two Leaky-ReLU layers have three free numbers, an NTK asks four. Use family='hermite', or let "
            "learning_rates be"
        )
    ck = make_target(target.deq, target.tau0, "ck")
    design = LeakyDesign(2, target.size, True, target.even)
    # a curved layer 1 takes up to twice what the first order gives to W_2
    less = 1.0 - 2.0 * (1.0 - target.rates_at_first_order()[2] / (2.0 if target.kernel == "ntk_frozen" else 3.0))
    starts = [tangent_start(target, ck, readout) for readout in (None, less)]
    solution = _best([solve(target, design, start) for start in starts])
    return _finished(
        target, solution, "leaky_relu", f"{reason}; Leaky-ReLU reaches the NTK with one learning rate per matrix"
    )


def _quadratic(target: Target, learning_rates: bool | None) -> _Draft:
    if target.kernel == "both":
        _refuse_both(target)
    depth = 1 if target.one_layer else 2
    orders = ((1,),) if target.odd else ((1, 2),) * depth
    design = HermiteDesign(orders, target.size)
    start = single_start(target, 2) if depth == 1 else outer_start(target, 2)
    solution = solve(target, design, design.pack(start))
    if not solution.feasible:
        raise InfeasibleMatchError(
            f"quadratic layers ({depth} of them) have too few free numbers once the gauge is fixed: the best misses "
            f"by {100 * solution.residual:.3g} %. Use family='hermite': one more order solves it",
            residual=solution.residual,
        )
    draft = _finished(target, solution, "quadratic", _depth_reason(target))
    layers = [as_quadratic(phi) for phi in draft.network.activations]
    return _Draft(ENN(layers), "quadratic", draft.conditioning, draft.reason, draft.rates)


def _hermite(target: Target, learning_rates: bool | None) -> _Draft:
    if target.odd or (target.one_layer and target.kernel != "both"):
        return _hermite_single(target, learning_rates)
    if target.kernel == "both":
        _refuse_both(target)
    reason = f"{_depth_reason(target)}; two polynomial layers in the Hermite basis have the freedom"
    if not target.tangent or learning_rates is False:
        plain = _hermite_plain(target, len(_WARPS) + 2)
        if target.tangent and not plain.feasible:
            raise InfeasibleMatchError(
                f"activations alone miss the {target.kernel} of {target.deq!r} at tau0 = {target.tau0:.6g} by "
                f"{100 * plain.residual:.3g} %; per-layer learning rates reach it. Use learning_rates=None",
                residual=plain.residual,
            )
        return _finished(target, plain, "hermite", reason)
    alone = None if learning_rates else _hermite_plain(target, 1)
    if alone is not None and alone.feasible and alone.cost <= _ENOUGH:
        return _finished(target, alone, "hermite", reason)
    rated = _hermite_rated(target)
    if alone is not None and alone.feasible and not (rated.feasible and rated.cost < 0.1 * alone.cost):
        return _finished(target, alone, "hermite", reason)
    why = "worth having for the next order" if alone is not None and alone.feasible else "needed"
    return _finished(target, rated, "hermite", f"{reason}; learning rates are {why}")


def _hermite_single(target: Target, learning_rates: bool | None) -> _Draft:
    single = target if target.kernel != "both" else make_target(target.deq, target.tau0, "ck")
    orders = tuple(
        k for k in range(1, HERMITE_DEGREE + 1) if not (target.odd and k in (2, 4)) and not (target.even and k == 1)
    )
    design = HermiteDesign((orders,), single.size)
    found = [solve(single, design, design.pack([a])) for a in _variants(single_start(single, HERMITE_DEGREE))]
    draft = _finished(single, _best(found), "hermite", f"{_depth_reason(target)}; a polynomial reaches every ratio")
    if target.kernel != "both":
        return draft
    rates = _both_rates(target, draft.network.activations[0], learning_rates)
    return _Draft(draft.network, "hermite", draft.conditioning, draft.reason, rates)


def _variants(layers: Sequence[Array]) -> list[Array]:
    """The single layer's start, and the one with the other sign of its cubic term, at full size."""
    (a,) = layers
    flipped = a.copy()
    flipped[3::4] = -flipped[3::4]
    return [a, flipped]


_WARPS = ((2.0, 0.1), (3.0, -0.1), (4.0, 0.2))
"""More curvature and a cubic term in layer 1: starts away from the points where a coefficient's gradient vanishes."""


def _orders(target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    every = tuple(range(1, HERMITE_DEGREE + 1))
    return every, tuple(k for k in every if k % 2 == 0) if target.even else every


def _hermite_plain(target: Target, attempts: int) -> Solution:
    """Activations alone: the first start that leads to a good next order, else the best of two feasible ones."""
    design = HermiteDesign(_orders(target), target.size)
    found: list[Solution] = []
    for layers in _plain_starts(target)[:attempts]:
        found.append(solve(target, design, design.pack(layers)))
        if (found[-1].feasible and found[-1].cost <= _ENOUGH) or sum(s.feasible for s in found) >= 2:
            break
    return _best(found)


def _plain_starts(target: Target) -> list[list[Array]]:
    builders: list[Callable[[Target, int], list[Array]]] = [outer_start, inner_start]
    starts = [b(target, HERMITE_DEGREE) for b in (builders[::-1] if target.kernel == "ntk_frozen" else builders)]
    for factor, cubic in _WARPS:
        a, b = (layer.copy() for layer in starts[0])
        a[2] = factor * max(a[2], 0.05)
        a[3] += cubic
        b[3] += cubic * b[1]
        starts.append([a / np.linalg.norm(a), b])
    return starts


def _hermite_rated(target: Target) -> Solution:
    design = HermiteDesign(_orders(target), target.size, free_rates=True)
    found: list[Solution] = []
    for readout in (None, 0.999, 0.9999, 0.9):
        rates = target.rates_at_first_order(readout)
        found.append(solve(target, design, design.pack(rated_start(target, HERMITE_DEGREE), rates)))
        if found[-1].feasible:
            break
    return _best(found)


def _best(found: Sequence[Solution]) -> Solution:
    return min(found, key=lambda s: (not s.feasible, s.cost if s.feasible else s.residual))


def _finished(target: Target, solution: Solution, family: str, reason: str) -> _Draft:
    if not solution.feasible:
        raise InfeasibleMatchError(
            f"the best {family} network of {solution.design.depth} layers misses the numbers of {target.deq!r} "
            f"({target.kernel}, tau0 = {target.tau0:.6g}) by {100 * solution.residual:.3g} %",
            residual=solution.residual,
        )
    found = solution.design.rates(solution.z)
    rates = None if found is None else tuple(float(r) for r in found)
    if rates is not None and target.kernel == "ntk_frozen":
        rates = (0.0, *rates[1:])  # frozen input weights do not move
    network = ENN(solution.design.activations(solution.z, target.tau0))
    return _Draft(network, family, solution.conditioning, reason, rates)


def _refuse_both(target: Target) -> None:
    """CK and NTK together by two layers: c1, c2, c3 of both kernels fix the rates, and one comes out negative.

    With x, y the shares of layer 1 in c2 and c3 (x = y t, t = c3 / (2 c2)) and rho = beta2/alpha2 = 1/(1 - s2a E1^2),
    the six equations give r_2 y (t - 1) = 2 (rho - 1), r_1 = 1 - r_2 (1 - x), r_3 = 1 - r_2 (x + y)/2. All are
    non-negative for some y only if t >= 1 and (t - 1)/(t + 1) >= rho - 1 (or rho = 1, even activations).
    """
    ck, ntk = target.numbers
    excess = ntk.c2 / ck.c2 - 1.0
    ratio = ck.c3 / (2.0 * ck.c2)
    if excess <= FEASIBLE or (ratio - 1.0) / (ratio + 1.0) >= excess:
        return
    raise InfeasibleMatchError(
        f"no two-layer network has the CK and the NTK of {target.deq!r} together, whatever its activations and "
        f"learning rates: with t = c3/(2 c2) = {ratio:.6g}, rates that are not negative need (t - 1)/(t + 1) >= "
        f"beta2/alpha2 - 1; here {(ratio - 1.0) / (ratio + 1.0):.4g} < {excess:.4g}. Match 'ck' or 'ntk' alone; odd "
        "activations can have both"
    )


def _user(target: Target, family: Family) -> _Draft:
    solution = solve_family(target, family)
    if solution.residual > ACCEPTED:
        raise InfeasibleMatchError(
            f"the family {family.name!r} misses the numbers of {target.deq!r} ({target.kernel}, "
            f"tau0 = {target.tau0:.6g}) by {100 * solution.residual:.3g} % from {len(family.starts)} start(s). Add "
            "starts or parameters, or use family='auto'",
            residual=solution.residual,
        )
    return _Draft(solution.network, family.name, solution.conditioning, "the family you gave")


_FAMILIES: dict[str, Callable[[Target, bool | None], _Draft]] = {
    "hard_tanh": _hard_tanh,
    "leaky_relu": _leaky_relu,
    "quadratic": _quadratic,
    "hermite": _hermite,
    "skip": _skip,
}
