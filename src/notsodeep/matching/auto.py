"""``family="auto"``: the cheapest activation whose network is far closer than the plain one, or else the closest."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.jets import DEGREE, KernelJet, index
from ..mixtures import GaussianMixture
from ..networks import DEQ, ENN
from .families import FAMILIES, Draft, Refusal
from .names import MatchKernel
from .target import Target, make_target, network_jets
from .verification import best_scalar, rough_norm

TEN_TIMES = 11.0
"""A twin shall be ten times closer than the plain network with its best scalar; the estimate is good to a tenth."""
_ROUNDING = 1e-9  # a smaller share is rounding: the plain network is exact
_LABELS = {"hard_tanh": "Hard-Tanh", "leaky_relu": "Leaky-ReLU", "skip": "a linear term", "hermite": "a polynomial"}


@dataclass(frozen=True)
class _Judged:
    draft: Draft
    distance: float
    gain: float


def choose(target: Target, with_rates: bool | None) -> Draft | Refusal:
    """The first candidate that is ten times closer than the plain network with its best scalar, else the closest."""
    return _chosen(target.deq.detached(), target.tau0, target.kernel, with_rates)


@functools.lru_cache(maxsize=64)
def _chosen(deq: DEQ, tau0: float, kernel: MatchKernel, with_rates: bool | None) -> Draft | Refusal:
    """Kept: it tries several families, and measures each."""
    target = make_target(deq, tau0, kernel)
    closeness = Closeness(target)
    judged: list[_Judged] = []
    refused: list[Refusal] = []
    for found in _candidates(target, with_rates):
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


def _candidates(target: Target, with_rates: bool | None) -> Iterator[Draft | Refusal]:
    """Cheapest first: Hard-Tanh or Leaky-ReLU before the DEQ's own activation before a polynomial."""
    if not target.odd:
        yield FAMILIES["leaky_relu"](target, with_rates)
        yield FAMILIES["hermite"](target, with_rates)
        return
    yield FAMILIES["hard_tanh"](target, with_rates)
    if with_rates is None and target.kernel == "ntk":
        yield FAMILIES["skip"](target, False)
        yield FAMILIES["skip"](target, True)
    else:
        yield FAMILIES["skip"](target, with_rates)
    yield FAMILIES["hermite"](target, with_rates)


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


# ---- how close a design will be ------------------------------------------------------------------------


Array = NDArray[Any]

_P, _N, _SEED = 1000, 400, 0
_EXACT = 1e-12  # a relative distance that is rounding


class Closeness:
    """Distances to one target, of twins and of the plain networks of each depth, before any kernel is computed.

    On points of nearly typical norm and nearly orthogonal, a kernel is its jet up to the third order. Summed on the
    mixture of the papers (p = 1000), jets give distances within a tenth of those of the exact kernels.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._truth = [_matrix(jet) for jet in target.jets]
        self._sizes = [rough_norm(K) for K in self._truth]
        self._plain: dict[int, list[float]] = {}

    def judge(self, network: ENN, rates: tuple[float, ...] | None) -> tuple[float, float]:
        """The largest relative distance over the kernels; how many times closer than the plain network with its best
        scalar, for the worst kernel."""
        own, plain = self._distances(network, rates), self._plain_distances(network.depth)
        return max(own), min(math.inf if d <= _EXACT else p / d for d, p in zip(own, plain, strict=True))

    def _distances(self, network: ENN, rates: tuple[float, ...] | None) -> list[float]:
        found = _matrices(self._target, network, rates)
        parts = zip(self._truth, found, self._sizes, strict=True)
        return [math.inf if K is None else rough_norm(truth - K) / size for truth, K, size in parts]

    def _plain_distances(self, depth: int) -> list[float]:
        if depth not in self._plain:
            network = ENN([self._target.deq.activation] * depth).centred(self._target.tau0)
            found = _matrices(self._target, network, None)
            parts = zip(self._truth, found, self._sizes, strict=True)
            self._plain[depth] = [
                math.inf if K is None else best_scalar(truth, K, rough=size).distance for truth, K, size in parts
            ]
        return self._plain[depth]


def _matrices(target: Target, network: ENN, rates: tuple[float, ...] | None) -> list[Tensor | None]:
    jets = network_jets(target, network, rates)
    found = [_matrix(jets[name]) for name in target.names]
    return [K if bool(torch.isfinite(K).all()) else None for K in found]


def _matrix(jet: KernelJet) -> Tensor:
    """The kernel on the sample: one product of norms' powers per power of the correlation."""
    powers, cosines = _sample()
    out = np.zeros_like(cosines)
    for k in range(DEGREE, -1, -1):
        weights = np.zeros((DEGREE + 1, DEGREE + 1))
        for i in range(DEGREE + 1 - k):
            for j in range(DEGREE + 1 - k - i):
                weights[i, j] = jet.cross[index(i, j, k)]
        out = out * cosines + powers @ weights @ powers.T
    np.fill_diagonal(out, powers @ jet.diagonal)
    return torch.from_numpy(out)


@functools.cache
def _sample() -> tuple[Array, Array]:
    """Powers of ||x||^2 / tau0^2 - 1, and x.y / tau0^2."""
    X, _ = GaussianMixture.two_class(_P).sample(_N, seed=_SEED)
    gram = X @ X.T
    gram /= gram.diagonal().mean()
    return np.vander(gram.diagonal() - 1.0, DEGREE + 1, increasing=True), gram
