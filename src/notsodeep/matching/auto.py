"""``family="auto"``: the cheapest activation whose network is far closer than the plain one, or else the closest."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import eigsh

from ..equivalents import best_scalar
from ..kernels.jets import DEGREE, KernelJet, monomials
from ..mixtures import GaussianMixture
from ..networks import ENN, Kernel
from .families import FAMILIES, Draft, Refusal
from .target import Target, network_jets

TEN_TIMES = 11.0
"""A twin shall be ten times closer than the plain network with its best scalar; the estimate tends to be high."""
_ROUNDING = 1e-9  # a smaller share is rounding: the plain network is exact
_LABELS = {"hard_tanh": "Hard-Tanh", "leaky_relu": "Leaky-ReLU", "skip": "a linear term", "hermite": "a polynomial"}


@dataclass(frozen=True)
class _Judged:
    draft: Draft
    distance: float
    gain: float


def choose(target: Target, with_rates: bool | None) -> Draft | Refusal:
    """The first candidate that is ten times closer than the plain network with its best scalar, else the closest."""
    return _chosen(replace(target, deq=target.deq.detached()), with_rates)


@functools.lru_cache(maxsize=64)
def _chosen(target: Target, with_rates: bool | None) -> Draft | Refusal:
    """Kept: it tries several families, and measures each."""
    closeness = Closeness(target)
    judged: list[_Judged] = []
    refused: list[Refusal] = []
    for found in _candidates(target, with_rates):
        if isinstance(found, Refusal):
            refused.append(found)
            continue
        judged.append(_Judged(found, *closeness.judge(found)))
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
    mixture of the papers (p = 1000), and seen in the few directions in which such sums are large, jets give distances
    within 15 % of those of the exact kernels.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._truth = [_matrix(jet) for jet in target.jets]
        self._plain: dict[int, list[float]] = {}

    def judge(self, draft: Draft) -> tuple[float, float]:
        """The largest relative distance over the kernels; how many times closer than the plain network with its best
        scalar, for the worst kernel."""
        jets = network_jets(self._target, draft.network, draft.rates) if draft.jets is None else draft.jets
        own = self._distances(jets, lambda truth, K: float(np.linalg.norm(truth - K, 2) / np.linalg.norm(truth, 2)))
        depth = draft.network.depth
        if depth not in self._plain:
            plain = ENN([self._target.deq.activation] * depth).centred(self._target.tau0)
            jets = network_jets(self._target, plain)
            self._plain[depth] = self._distances(jets, lambda *pair: best_scalar(*pair).distance)
        pairs = zip(own, self._plain[depth], strict=True)
        return max(own), min(math.inf if d <= _EXACT else p / d for d, p in pairs)

    def _distances(self, jets: dict[Kernel, KernelJet], distance: Callable[[Array, Array], float]) -> list[float]:
        pairs = zip(self._truth, (_matrix(jets[name]) for name in self._target.names), strict=True)
        return [distance(truth, K) if np.isfinite(K).all() else math.inf for truth, K in pairs]


def _matrix(jet: KernelJet) -> Array:
    """The kernel on the sample, in the directions of :func:`_forms`."""
    return np.tensordot(jet.c, _forms(), 1)


@functools.cache
def _forms() -> Array:
    """Every monomial of a jet off the diagonal of the sample, then every power on it, each in the directions that
    count: (forms, directions, directions)."""
    X, _ = GaussianMixture.two_class(_P).sample(_N, seed=_SEED)
    cosines = X @ X.T
    cosines /= cosines.diagonal().mean()
    norms = np.vander(cosines.diagonal() - 1.0, DEGREE + 1, increasing=True)
    directions = _directions(cosines, norms)
    sides = [directions * power[:, None] for power in norms.T]
    np.fill_diagonal(cosines, 0.0)
    apart = [cosines**k for k in range(DEGREE + 1)]
    np.fill_diagonal(apart[0], 0.0)
    return np.array([sides[i].T @ apart[k] @ sides[j] for i, j, k in monomials()] + [sides[0].T @ s for s in sides])


def _directions(cosines: Array, norms: Array) -> Array:
    """Where sums over the sample are large: powers of the norm, with either end of the spectrum as well, and the points
    of the outermost norms. Within 4 % they have the distances of all points, for every design tried."""
    _, ends = eigsh(cosines, k=5, which="BE", v0=np.ones(len(cosines)), tol=1e-3)
    spread = [ends * power[:, None] for power in norms.T[:DEGREE]]
    outermost = np.eye(len(norms))[:, [norms[:, 1].argmin(), norms[:, 1].argmax()]]
    found = np.concatenate([norms, *spread, outermost], axis=1)
    return np.linalg.qr(found / np.linalg.norm(found, axis=0))[0]
