"""How close a design will be, before any kernel is computed: the jets, summed on the papers' mixture.

On points of nearly typical norm and nearly orthogonal, a kernel is its jet up to the third order. On the mixture of the
papers (p = 1000) the distances found so are within a tenth of those of the exact kernels, for twins as for plain
networks. This is what ``family="auto"`` decides by, beside the price of the activations.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..kernels.jets import DEGREE, KernelJet, index
from ..mixtures import GaussianMixture
from ..networks import ENN
from .target import Target, network_jets
from .verification import best_scalar, spectral_norm

__all__ = ["Closeness"]

Array = NDArray[Any]

_P, _N, _SEED = 1000, 400, 0
_EXACT = 1e-12  # a relative distance that is rounding


class Closeness:
    """Distances to one target, of twins and of the plain networks of each depth."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._truth = [_matrix(jet) for jet in target.jets]
        self._sizes = [spectral_norm(K) for K in self._truth]
        self._plain: dict[int, list[float]] = {}

    def judge(self, network: ENN, rates: tuple[float, ...] | None) -> tuple[float, float]:
        """The largest relative distance over the kernels; how many times closer than the plain network with its best
        scalar, for the worst kernel."""
        own, plain = self._distances(network, rates), self._plain_distances(network.depth)
        return max(own), min(math.inf if d <= _EXACT else p / d for d, p in zip(own, plain, strict=True))

    def _distances(self, network: ENN, rates: tuple[float, ...] | None) -> list[float]:
        found = _matrices(self._target, network, rates)
        parts = zip(self._truth, found, self._sizes, strict=True)
        return [math.inf if K is None else spectral_norm(truth - K) / size for truth, K, size in parts]

    def _plain_distances(self, depth: int) -> list[float]:
        if depth not in self._plain:
            network = ENN([self._target.deq.activation] * depth).centred(self._target.tau0)
            found = _matrices(self._target, network, None)
            parts = zip(self._truth, found, strict=True)
            self._plain[depth] = [
                math.inf if K is None else best_scalar(truth, K, rough=True).distance for truth, K in parts
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
