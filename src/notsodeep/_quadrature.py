"""Gauss-Legendre panels against the standard normal weight.

The rule knows nothing of activations: it is told where the integrand has kinks and on what length it varies,
puts panel edges there, and is then exact to rounding for every piece that is analytic.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

ORDER = 20
REACH = 13.0  # exp(-REACH^2 / 4) < 1e-18: also enough against sqrt(weight) * h_k, which stays bounded
_UNIFORM_TO = 400.0
_UNIFORM_PANELS = 20_000


@functools.cache
def legendre(order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [-1, 1] (float64, CPU)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def uniform_reach(feature: float) -> float:
    """Panels of two features reach this far; beyond, they grow, which is right for what has settled there."""
    return min(_UNIFORM_TO, _UNIFORM_PANELS * 2.0 * feature)


@functools.lru_cache(maxsize=64)
def _feature_edges(feature: float, reach: float) -> Tensor:
    """Panel edges on the positive x axis: steps of two features, growing once the integrand is far out."""
    step = 2.0 * feature
    edges = list(np.arange(0.0, min(reach, uniform_reach(feature)) + 1.5 * step, step))  # at least one panel
    while edges[-1] < reach:
        edges.append(edges[-1] * 1.25)
    return torch.tensor(edges, dtype=torch.float64)


def panel_nodes(edges: Tensor, order: int = ORDER) -> tuple[Tensor, Tensor]:
    """Composite rule on sorted ``edges`` (..., m+1): nodes and Lebesgue weights, each (..., m * order)."""
    x, w = legendre(order)
    half = 0.5 * (edges[..., 1:] - edges[..., :-1])
    mid = 0.5 * (edges[..., 1:] + edges[..., :-1])
    nodes = mid[..., None] + half[..., None] * x
    weights = half[..., None] * w.expand_as(nodes)
    return nodes.flatten(-2), weights.flatten(-2)


def normal_rule(
    tau: Tensor, kinks: Sequence[float], feature: float, terms: int = 0, order: int = ORDER
) -> tuple[Tensor, Tensor]:
    """Nodes xi and weights, each (len(tau), N), with E[f(tau xi)] = (f(tau * xi) * weights).sum(-1).

    ``terms``: the integrand carries Hermite polynomials up to this degree, of wave number sqrt(terms).
    """
    tau = tau.detach().to(torch.float64).cpu()
    scale = tau.clamp_min(1e-150)[:, None]
    pieces = math.ceil(2.0 * REACH * max(1.0, math.sqrt(terms / 512.0)))
    base = torch.linspace(-REACH, REACH, pieces + 1, dtype=torch.float64)
    outer = _feature_edges(feature, REACH * max(scale.flatten().tolist(), default=1.0))
    inner = torch.cat([-outer.flip(0), outer[1:], torch.tensor(list(kinks), dtype=torch.float64)])
    edges = torch.cat([base.expand(len(tau), -1), (inner / scale).clamp(-REACH, REACH)], dim=1)
    nodes, weights = panel_nodes(edges.sort(dim=1).values, order)
    return nodes, weights * torch.exp(-0.5 * nodes * nodes) / math.sqrt(2.0 * math.pi)


def normal_density(x: Tensor, tau: Tensor) -> Tensor:
    """The density of tau * xi at x; zero in the limit tau -> 0 unless x = 0."""
    scale = tau.clamp_min(1e-150)
    return torch.exp(-0.5 * (x / scale) ** 2) / (math.sqrt(2.0 * math.pi) * scale)
