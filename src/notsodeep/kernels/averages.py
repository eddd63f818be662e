"""What a kernel is on average between the points of two classes, and how it moves with norms and inner product.

    k(||x||^2, ||y||^2, x . y) = k_ab + k_x psi_x + k_y psi_y + kappa psi_x psi_y + A_ab (x . y) + ...

with psi = ||x||^2 - E||x||^2. At finite p the coefficients that matter are averages over the pairs of points, not
derivatives at one pair. Norms and inner products fluctuate like Gaussian variables of variance v: three nodes at 0 and
+-sqrt(3 v), the outer two with weight 1/6, average the kernel and its derivatives exactly to fifth order.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..networks import Kernel, Network
from .derivatives import kernel_derivatives
from .pointwise import diagonal, pairwise

Array = np.ndarray[Any, Any]

_NODES = np.array([-1.0, 0.0, 1.0])
_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
_ROUNDING = 1e-9
_NEAREST = 0.98  # cosine beyond which derivatives are taken there: those of kinks diverge between parallel points
_LARGEST = 0.5  # part of a squared norm, or of the room an inner product has, that a step may take


@dataclass(frozen=True, eq=False)
class NormPart:
    """A function of the two norms, averaged over the pairs of each two classes, K x K."""

    mean: Array
    pull: Array
    """E df/d||y||^2"""
    cross: Array
    """E d^2 f/d||x||^2 d||y||^2"""


def _step(variance: Array | None, size: Array) -> Array:
    """sqrt(3 v), or none where all that fluctuates is rounding."""
    step = 0.0 * size if variance is None else np.sqrt(3.0 * variance)
    return np.where(step > _ROUNDING * size, step, 0.0)


class PairAverages:
    """Averages over the pairs of each two classes, K x K.

    ``norms`` (K,) and ``dots`` (K, K) are the typical squared norms and inner products, ``norm_spread`` and
    ``dot_spread`` their variances; without them the kernel is expanded at the typical pairs.
    """

    def __init__(
        self,
        network: Network,
        kernel: Kernel,
        norms: Array,
        dots: Array,
        norm_spread: Array | None = None,
        dot_spread: Array | None = None,
        learning_rates: Sequence[float] | None = None,
    ) -> None:
        self._network, self._kernel, self._rates, self._dots = network, kernel, learning_rates, dots
        up = np.minimum(_step(norm_spread, norms), _LARGEST * norms)
        room = np.sqrt(np.outer(norms - up, norms - up)) - np.abs(dots)
        wide = _step(dot_spread, np.sqrt(np.outer(norms, norms)))
        step = np.minimum(wide, _LARGEST * np.maximum(room, 0.0))
        spread = bool(up.any() or step.any())
        nodes: Array = _NODES if spread else np.zeros(1)
        self._weights: Array = _WEIGHTS if spread else np.ones(1)
        x = norms[:, None] + up[:, None] * nodes[:, None, None, None, None]
        y = norms + up * nodes[:, None, None, None]
        self._at = np.broadcast_arrays(x, y, dots + step * nodes[:, None, None])  # (x, y, dot, K, K) each
        self._spread = step**2 / 3.0
        sx, sy, dot = (torch.from_numpy(np.ascontiguousarray(v)) for v in self._at)
        self.mean = self._average(pairwise(network, sx, sy, dot, (kernel,), learning_rates)[kernel].numpy())
        """E k"""
        own = diagonal(network, torch.from_numpy(norms + up * nodes[:, None]), (kernel,), learning_rates)[kernel]
        self.own: Array = self._weights @ own.numpy()
        """E k(x, x), (K,)"""

    def _average(self, values: Array) -> Array:
        w = self._weights
        return np.einsum("x,y,d,xyd...->...", w, w, w, values)

    @functools.cached_property
    def _derivatives(self) -> Array:
        """E of all derivatives: entry [..., i, j, k] by ||x||^2, ||y||^2 and x . y."""
        x, y, dot = self._at
        most = _NEAREST * np.sqrt(x * y)
        dot = np.clip(dot, -most, most)
        return self._average(kernel_derivatives(self._network, self._kernel, x, y, dot, self._rates))

    @property
    def slope(self) -> Array:
        """E dk/d(x . y)"""
        return self._derivatives[..., 0, 0, 1]

    @property
    def curvature(self) -> Array:
        """E d^2 k/d(x . y)^2"""
        return self._derivatives[..., 0, 0, 2]

    # what the rows themselves do not explain: k - A (x . y) as a function of the norms; zero for odd activations

    @property
    def whole(self) -> NormPart:
        """Of k - A x . y"""
        return self._norm_part(1.0, -self._dots, 0.0)

    @property
    def flat(self) -> NormPart:
        """Of k - A x . y - D e^2/2"""
        return self._norm_part(1.0, -self._dots, -0.5 * self._spread)

    def _norm_part(self, *weights: Array | float) -> NormPart:
        """Of a sum of the kernel and its first two derivatives in x . y, with these weights."""
        d = self._derivatives
        parts = [sum(weight * d[..., i, j, k] for k, weight in enumerate(weights)) for i, j in ((0, 0), (0, 1), (1, 1))]
        parts[0] = parts[0] - d[..., 0, 0, 0] + self.mean  # exact also where the series of the derivatives ends early
        return NormPart(*(np.asarray(part) for part in parts))
