"""A kernel of two squared norms and an inner product, expanded at the typical pair of each pair of classes.

    k(||x||^2, ||y||^2, x . y) = k_ab + k_x psi_x + k_y psi_y + kappa psi_x psi_y + A_ab (x . y) + ...

with psi = ||x||^2 - E||x||^2. At finite p the coefficients that matter are averages over the pairs of points, not
derivatives at one pair. For Gaussian fluctuations of variance v three nodes at 0 and +-sqrt(3 v) with weights 2/3 and
1/6 do both: sums are averages, and central differences are the averages of derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..spectra.population import Array

__all__ = ["Expansion", "NormPart"]

_NODES = (-1.0, 0.0, 1.0)
_WEIGHTS = np.array([1.0, 4.0, 1.0]) / 6.0
_SLOPES = np.array([-0.5, 0.0, 0.5])  # over the step
_LARGEST = 0.5  # part of a squared norm that a step may take


class Expansion:
    """Averages over the pairs of each two classes, K x K.

    ``kernel`` takes squared norms and inner products, ``own`` squared norms. ``norms`` (K,) and ``dots`` (K, K) are
    the typical ones, ``norm_spread`` and ``dot_spread`` their variances.
    """

    def __init__(
        self,
        kernel: Callable[[Array, Array, Array], Array],
        own: Callable[[Array], Array],
        norms: Array,
        dots: Array,
        norm_spread: Array,
        dot_spread: Array,
    ) -> None:
        up = np.minimum(np.sqrt(3.0 * norm_spread), _LARGEST * norms)
        reach = np.sqrt(np.outer(norms - up, norms - up)) - np.abs(dots)
        step = np.minimum(np.sqrt(3.0 * dot_spread), _LARGEST * np.maximum(reach, 0.0) + 1e-9)
        x = norms[:, None] + up[:, None] * np.array(_NODES)[:, None, None, None, None]
        y = norms[None, :] + up[None, :] * np.array(_NODES)[:, None, None, None]
        d = dots + step * np.array(_NODES)[:, None, None]
        values = kernel(*np.broadcast_arrays(x, y, d))  # (x, y, d, K, K)
        rise = _SLOPES[:, None, None] / up  # (node, 1, K): a difference over the step of the class in columns
        self.mean = _average(_average(_average(values)))
        """E k"""
        slopes = np.einsum("d,xydab->xyab", _SLOPES, values) / step
        self.slope = _average(_average(slopes))
        """E dk/d(x . y)"""
        self.curvature = _average(_average(np.einsum("d,xydab->xyab", [1.0, -2.0, 1.0], values))) / step**2
        """E d^2 k/d(x . y)^2"""
        # what the rows themselves do not explain: k - A (x . y) as a function of the norms; zero for odd activations
        rest = np.einsum("d,xydab->xyab", _WEIGHTS, values) - dots * slopes
        self.whole = _norm_part(rest, rise)
        """Of k - A x . y"""
        bends = np.einsum("d,xydab->xyab", [0.5, -1.0, 0.5], values)  # times E e^2/step^2 = 1/3: the mean of the square
        self.flat = _norm_part(rest - bends / 3.0, rise)
        """Of k - A x . y - D e^2/2"""
        nodes = norms + up * np.array(_NODES)[:, None]
        self.own = _WEIGHTS @ own(nodes.ravel()).reshape(nodes.shape)
        """E k(x, x), (K,)"""


@dataclass(frozen=True, eq=False)
class NormPart:
    """A function of the two norms, averaged over the pairs of each two classes, K x K."""

    mean: Array
    pull: Array
    """E df/d||y||^2"""
    cross: Array
    """E d^2 f/d||x||^2 d||y||^2"""


def _norm_part(values: Array, rise: Array) -> NormPart:
    pulls = (values * rise).sum(1)
    return NormPart(_average(_average(values)), _average(pulls), (pulls * np.swapaxes(rise, 1, 2)).sum(0))


def _average(values: Array) -> Array:
    average: Array = np.tensordot(_WEIGHTS, values, axes=1)
    return average
