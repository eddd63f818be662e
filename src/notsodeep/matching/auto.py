"""``family="auto"``: the cheapest activation whose network is far closer than the plain one, or else the closest."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ..networks import DEQ
from .closeness import Closeness
from .families import FAMILIES, Draft, Refusal
from .names import MatchKernel
from .target import Target, make_target

__all__ = ["choose"]

TEN_TIMES = 11.0
"""A twin shall be ten times closer than the plain network with its best scalar; the estimate is good to a tenth."""
_ROUNDING = 1e-9  # a smaller share is rounding: the plain network is exact
_LABELS = {"hard_tanh": "Hard-Tanh", "leaky_relu": "Leaky-ReLU", "skip": "a linear term", "hermite": "a polynomial"}


@dataclass(frozen=True)
class _Judged:
    draft: Draft
    distance: float
    gain: float


def choose(target: Target, learning_rates: bool | None) -> Draft | Refusal:
    """The first candidate that is ten times closer than the plain network with its best scalar, else the closest."""
    return _chosen(target.deq.detached(), target.tau0, target.kernel, learning_rates)


@functools.lru_cache(maxsize=64)
def _chosen(deq: DEQ, tau0: float, kernel: MatchKernel, learning_rates: bool | None) -> Draft | Refusal:
    """Kept: it tries several families, and measures each."""
    target = make_target(deq, tau0, kernel)
    closeness = Closeness(target)
    judged: list[_Judged] = []
    refused: list[Refusal] = []
    for found in _candidates(target, learning_rates):
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        judged.append(_Judged(found, *closeness.judge(found.network, found.rates)))
        if judged[-1].gain >= TEN_TIMES:
            break
    if not judged:
        return refused[-1]
    best = min(judged, key=lambda j: j.distance)
    return replace(best.draft, reason="; ".join([best.draft.reason, *_remarks(best, judged, refused)]))


def _candidates(target: Target, learning_rates: bool | None) -> Iterator[Draft | Refusal]:
    """Cheapest first: Hard-Tanh or Leaky-ReLU before the DEQ's own activation before a polynomial."""
    if not target.odd:
        yield FAMILIES["leaky_relu"](target, learning_rates)
        yield FAMILIES["hermite"](target, learning_rates)
        return
    yield FAMILIES["hard_tanh"](target, learning_rates)
    if learning_rates is None and target.kernel == "ntk":
        yield FAMILIES["skip"](target, False)
        yield FAMILIES["skip"](target, True)
    else:
        yield FAMILIES["skip"](target, learning_rates)
    yield FAMILIES["hermite"](target, learning_rates)


def _remarks(best: _Judged, judged: list[_Judged], refused: list[Refusal]) -> list[str]:
    """Why nothing cheaper was taken, and how much is gained where that is little."""
    passed = {j.draft.family: j for j in judged if j.draft.family != best.draft.family}
    unit = max(best.distance, 1e-300)
    out = [
        f"{_LABELS.get(family, family)} has the numbers too, but is {j.distance / unit:.2g} times farther off"
        for family, j in passed.items()
    ]
    if not out and refused:
        out.append(refused[0].why)
    if best.gain >= TEN_TIMES:
        return out
    if best.gain < _ROUNDING:
        return [*out, "the plain network times a scalar has the kernel itself: no gain here"]
    if best.gain < 1.0:
        return [*out, f"the plain network times its best scalar is {1.0 / best.gain:.2g} times closer: no gain here"]
    return [
        *out,
        f"not ten times closer than the plain network times its best scalar, but about {best.gain:.2g} times: "
        "little is gained here",
    ]
