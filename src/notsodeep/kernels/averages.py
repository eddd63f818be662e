"""What a kernel is on average between the points of two classes, and how it moves with norms and inner product.

    k(||x||^2, ||y||^2, x . y) = k_ab + k_x psi_x + k_y psi_y + kappa psi_x psi_y + A_ab (x . y) + ...

with psi = ||x||^2 - E||x||^2. At finite p the coefficients that matter are averages over the pairs of points, not
derivatives at one pair. For Gaussian fluctuations of variance v three nodes at 0 and +-h, the outer two with weight
v/(2 h^2), do both: sums are averages, and central differences are the averages of derivatives. h = sqrt(3 v) is exact
to fifth order; where v is nearly nothing h is larger, because differences need some room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..networks import Kernel, Network
from .pointwise import diagonal, pairwise

__all__ = ["NormPart", "PairAverages"]

Array = np.ndarray[Any, Any]

_NODES = np.array([-1.0, 0.0, 1.0])
_SLOPES = np.array([-0.5, 0.0, 0.5])  # over the step
_LEAST, _LARGEST = 1e-3, 0.5  # parts of a squared norm that a step may take


class PairAverages:
    """Averages over the pairs of each two classes, K x K.

    ``norms`` (K,) and ``dots`` (K, K) are the typical squared norms and inner products, ``norm_spread`` and
    ``dot_spread`` their variances.
    """

    def __init__(
        self,
        network: Network,
        kernel: Kernel,
        norms: Array,
        dots: Array,
        norm_spread: Array,
        dot_spread: Array,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        up = np.clip(np.sqrt(3.0 * norm_spread), _LEAST * norms, _LARGEST * norms)
        reach = np.sqrt(np.outer(norms - up, norms - up)) - np.abs(dots)
        wide = np.maximum(np.sqrt(3.0 * dot_spread), _LEAST * np.sqrt(np.outer(norms, norms)))
        step = np.minimum(wide, _LARGEST * np.maximum(reach, 0.0) + 1e-9)
        x = norms[:, None] + up[:, None] * _NODES[:, None, None, None, None]
        y = norms + up * _NODES[:, None, None, None]
        d = dots + step * _NODES[:, None, None]
        sx, sy, dot = (torch.from_numpy(v) for v in (x, y, d))
        values = pairwise(network, sx, sy, dot, (kernel,), learning_rates)[kernel].numpy()  # (x, y, d, K, K)
        share, moved = _share(norm_spread, up), _share(dot_spread, step)
        norm_weights, dot_weights = _weights(share), _weights(moved)
        means = (dot_weights * values).sum(2)
        slopes = np.einsum("d,xydab->xyab", _SLOPES, values) / step
        bends = np.einsum("d,xydab->xyab", [1.0, -2.0, 1.0], values)

        def average(part: Array) -> Array:
            whole: Array = (norm_weights[:, None, :, None] * norm_weights[:, None, :] * part).sum((0, 1))
            return whole

        def norm_part(part: Array) -> NormPart:
            pulls = (part * (_SLOPES[:, None, None] / up)).sum(1)
            cross = (pulls * (_SLOPES[:, None] / up)[:, :, None]).sum(0)
            return NormPart(average(part), (norm_weights[:, :, None] * pulls).sum(0), cross)

        self.mean = average(means)
        """E k"""
        self.slope = average(slopes)
        """E dk/d(x . y)"""
        self.curvature = average(bends) / step**2
        """E d^2 k/d(x . y)^2"""
        # what the rows themselves do not explain: k - A (x . y) as a function of the norms; zero for odd activations
        self.whole = norm_part(means - dots * slopes)
        """Of k - A x . y"""
        self.flat = norm_part(means - dots * slopes - 0.5 * moved * bends)
        """Of k - A x . y - D e^2/2"""
        own = diagonal(network, torch.from_numpy(norms + up * _NODES[:, None]), (kernel,), learning_rates)[kernel]
        self.own = (norm_weights * own.numpy()).sum(0)
        """E k(x, x), (K,)"""


@dataclass(frozen=True, eq=False)
class NormPart:
    """A function of the two norms, averaged over the pairs of each two classes, K x K."""

    mean: Array
    pull: Array
    """E df/d||y||^2"""
    cross: Array
    """E d^2 f/d||x||^2 d||y||^2"""


def _share(variance: Array, step: Array) -> Array:
    """v/h^2, at most what the full step has."""
    share: Array = np.minimum(variance / step**2, 1.0 / 3.0)
    return share


def _weights(share: Array) -> Array:
    return np.stack([0.5 * share, 1.0 - share, 0.5 * share])
