"""Ordinary units with thresholds proportional to the norm of the input (theory, section 13).

A unit is f(w.x - t |x|), f a leaky ReLU: an ordinary unit on the lifted input (x, |x|). With u = w.x/|x| and
v = w.y/|y| jointly normal of correlation rho, P = P(u > t, v > t), and Q = P(xi > t sqrt((1 - rho)/(1 + rho))),

    E[relu(u - t) relu(v - t)] = (rho + t^2) P - 2 t n(t) Q + sqrt(1 - rho^2) exp(-t^2/(1 + rho)) / (2 pi),

n the normal density; its derivative in rho is P (Price), and that of P is the bivariate density at (t, t).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.special import ndtr, owens_t
from torch import Tensor

from .._arrays import Array
from ..errors import ActivationError
from .norm_units import NormUnits


def threshold_table(
    like: Tensor, width: int, thresholds: tuple[float, ...], weights: tuple[float, ...], edges: tuple[float, ...]
) -> Tensor:
    """Return the threshold and the gain of every unit; ``edges`` are cumulative shares of the units: (2, width)."""
    counts = torch.tensor([round(width * edge) for edge in edges]).diff()
    gains = (width * torch.tensor(weights, dtype=torch.float64) / counts.clamp_min(1)).sqrt()
    columns = torch.stack([torch.tensor(thresholds, dtype=torch.float64), gains])
    return columns.repeat_interleave(counts, dim=1).to(like)


def threshold_units(before: Tensor, x: Tensor, table: Tensor, leak: float) -> Tensor:
    """Return units f(w.x - t |x|), f a leaky ReLU: ordinary units whose thresholds grow with the norm of x."""
    thresholds, gains = table
    above = torch.addcmul(before, torch.linalg.vector_norm(x, dim=-1, keepdim=True), thresholds, value=-1.0)
    return torch.nn.functional.leaky_relu(above, leak) * gains


@dataclass(frozen=True, repr=False)
class Thresholds(NormUnits):
    """A layer of units f(w.x - t |x|) with E[psi(x) psi(y)] = |x| |y| sum_t weights_t k_t(rho).

    f(z) = z for z > 0 and ``leak`` z below. A threshold has units in proportion to its share of the diagonal, so that
    every unit counts; a gain makes up for the rest, and for the rounding of their number.
    """

    thresholds: tuple[float, ...]
    weights: tuple[float, ...]
    leak: float = 0.0
    name: ClassVar[str] = "thresholds"
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    homogeneity: ClassVar[float] = 1.0
    continuous: ClassVar[bool] = True
    functions: ClassVar = (threshold_table, threshold_units)

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.thresholds) > 4096:  # a kernel holds all of them for each of thousands of entries
            raise ActivationError(f"Thresholds takes at most 4096 thresholds, got {len(self.thresholds)}")
        if len(self.thresholds) != len(self.weights) or not self.weights or min(self.weights) <= 0.0:
            raise ActivationError(
                f"Thresholds takes one positive weight per threshold, got {self.thresholds} and {self.weights}"
            )
        if not -1.0 <= self.leak <= 1.0:
            raise ActivationError(f"Thresholds: leak must be in [-1, 1], got {self.leak}")

    def __repr__(self) -> str:
        listing = ", ".join(f"{t:.4g}" for t in self.thresholds)
        leaky = f", leak={self.leak:.4g}" if self.leak else ""
        return f"Thresholds(relu(w.x - t|x|), t = {listing}{leaky})"

    @property
    def shares(self) -> tuple[float, ...]:
        """The share of the units that has each threshold."""
        diagonal = threshold_profiles(np.ones(1), self.thresholds, self.leak)[0][:, 0] * np.asarray(self.weights)
        return tuple((diagonal / diagonal.sum()).tolist())

    def densities(self, rho: Array) -> Array:
        """Return the second derivative of k_t of ordinary units, infinite at rho = 1 and read as at 1 - 1e-12 there."""
        inside = np.clip(rho, -1.0 + 1e-12, 1.0 - 1e-12)
        decayed = _decayed(np.asarray(self.thresholds)[:, None], inside)
        return (1.0 - self.leak) ** 2 * decayed / (2.0 * math.pi * np.sqrt((1.0 - inside) * (1.0 + inside)))

    @property
    def constants(self) -> tuple[Any, ...]:
        return self.thresholds, self.weights, tuple(accumulate(self.shares, initial=0.0))

    @property
    def settings(self) -> tuple[Any, ...]:
        return (self.leak,)

    def layer(self, qx: Tensor, qy: Tensor) -> ThresholdsLayer:
        return ThresholdsLayer(self, qx, qy)


def threshold_profiles(rho: Array, thresholds: Sequence[float] | Array, leak: float = 0.0) -> tuple[Array, Array]:
    """Return E[f(u - t) f(v - t)] and its derivative in rho, for every threshold: two arrays (thresholds, len(rho))."""
    t, jump = np.asarray(thresholds, dtype=float)[:, None], 1.0 - leak
    up, density = ndtr(-t), np.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    ratio = np.sqrt((1.0 - rho) / np.maximum(1.0 + rho, 1e-280))
    both = up - 2.0 * owens_t(t, ratio)
    bend = np.sqrt((1.0 - rho) * (1.0 + rho)) * _decayed(t, rho) / (2.0 * math.pi)
    plain = (rho + t * t) * both - 2.0 * t * density * ndtr(-t * ratio) + bend
    # f(z) = leak z + (1 - leak) relu(z), E[(u - t) relu(v - t)] = rho up - t E[relu(v - t)]
    mixed = rho * up - t * (density - t * up)
    value = leak**2 * (rho + t * t) + 2.0 * leak * jump * mixed + jump**2 * plain
    return value, leak**2 + 2.0 * leak * jump * up + jump**2 * both


def _decayed(t: Array, rho: Array) -> Array:
    return np.asarray(np.exp(-np.minimum(t * t / np.maximum(1.0 + rho, 1e-280), 700.0)))


class ThresholdsLayer:
    """E[psi psi] and its derivative in lam at a batch of squared norms (flat float64 CPU tensors)."""

    def __init__(self, phi: Thresholds, qx: Tensor, qy: Tensor) -> None:
        self.phi, self.qx, self.qy = phi, qx, qy

    def value(self, lam: Tensor) -> Tensor:
        """Return E[psi(x) psi(y)]."""
        root = self._root()
        return root * _Profile.apply((lam / root).clamp(-1.0, 1.0), self.phi, 0)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return E[psi(x) psi(y)] and its derivative in lam."""
        return self.value(lam), _Profile.apply((lam / self._root()).clamp(-1.0, 1.0), self.phi, 1)

    def _root(self) -> Tensor:
        return (self.qx * self.qy).clamp_min(1e-120).sqrt()


class _Profile(torch.autograd.Function):
    """sum_t weights_t k_t(rho) (order 0) and its derivatives in rho, each the gradient of the one before."""

    @staticmethod
    def forward(ctx: Any, rho: Tensor, phi: Thresholds, order: int) -> Tensor:
        ctx.save_for_backward(rho)
        ctx.phi, ctx.order = phi, order
        points = rho.detach().numpy()
        profiles = threshold_profiles(points, phi.thresholds, phi.leak)[order] if order < 2 else phi.densities(points)
        return torch.from_numpy(np.asarray(phi.weights) @ profiles)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None, None]:
        if ctx.order == 2:
            raise ActivationError("a further derivative of the kernel of units with thresholds is not available")
        return grad[0] * _Profile.apply(ctx.saved_tensors[0], ctx.phi, ctx.order + 1), None, None
