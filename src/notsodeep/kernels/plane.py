"""Two-dimensional Gaussian quadrature of f(u) g(v), for what neither closed forms nor series reach.

Three rules, each exact to rounding on its class, for every correlation up to +-1:

* :func:`polar` - kinks only at zero, which are rays in polar coordinates whatever the variances are;
* :func:`conditional` - kinks anywhere: panels in u, then panels in v given u, both split at every kink;
* :func:`piecewise_linear` - Price's theorem twice: only the kinks contribute, a one-dimensional integral.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from .._quadrature import panel_nodes

Function = Callable[[Tensor], Tensor]
_CHUNK = 1 << 21


def _chunks(cost: int, *columns: Tensor) -> Iterator[tuple[Tensor, ...]]:
    size = max(1, _CHUNK // cost)
    yield from zip(*(column.split(size) for column in columns), strict=True)


def _grading(scale: float, feature: float) -> int:
    """How many halvings resolve a feature seen at this scale."""
    return max(0, math.ceil(math.log2(max(scale / feature, 1e-30)))) if scale > 2.0 * feature else 0


def polar(f: Function, g: Function, feature: float, qx: Tensor, qy: Tensor, rho: Tensor) -> Tensor:
    """E[f(u) g(v)] with u = sqrt(qx) R cos(w), v = sqrt(qy) R cos(w - beta), cos(beta) = rho."""
    levels = _grading(float(torch.maximum(qx.max(), qy.max())) ** 0.5, feature)
    steps = [2.0**-j for j in range(levels, -1, -1)]
    radius, radial = panel_nodes(torch.tensor([0.0, *steps, 2.0, 3.5, 5.5, 8.0, 11.0], dtype=torch.float64), 16)
    radial = radial * radius * torch.exp(-0.5 * radius * radius) / (2.0 * math.pi)
    graded = [0.5 * s for s in steps]
    unit = torch.tensor([0.0, *graded, *(1.0 - s for s in reversed(graded[:-1])), 1.0], dtype=torch.float64)
    within, share = panel_nodes(unit, 20)
    out = []
    for x, y, r in _chunks(4 * len(within) * len(radius), qx, qy, rho):
        beta = torch.acos(r)
        lengths = torch.stack([beta, math.pi - beta, beta, math.pi - beta], dim=1)
        starts = torch.stack([torch.zeros_like(beta), beta, torch.full_like(beta, math.pi), math.pi + beta], dim=1)
        # measured from the ray v = 0 behind u = 0, so that no large angle is subtracted near rho = 1
        angle = (starts[..., None] + lengths[..., None] * within).flatten(1)
        weight = (lengths[..., None] * share).flatten(1)
        u = torch.sin(angle)  # cos(w), w = angle - pi/2
        v = torch.sin(angle - beta[:, None])
        plane = f(x.sqrt()[:, None, None] * u[..., None] * radius) * g(y.sqrt()[:, None, None] * v[..., None] * radius)
        out.append(((plane * radial).sum(-1) * weight).sum(-1))
    return torch.cat(out)


def conditional(
    f: Function,
    g: Function,
    kinks_f: Sequence[float],
    kinks_g: Sequence[float],
    feature: float,
    qx: Tensor,
    qy: Tensor,
    rho: Tensor,
) -> Tensor:
    """E[f(u) g(v)], u = sqrt(qx) X, v given X normal with mean sqrt(qy) rho X and variance qy (1 - rho^2)."""
    scale = float(torch.maximum(qx.max(), qy.max())) ** 0.5
    width = min(1.5, 2.0 * feature / max(scale, 1e-300))
    base = torch.arange(-9.0, 9.0 + width, width, dtype=torch.float64).clamp_max(9.0)
    ripple = torch.tensor([-8.0, -5.0, -3.0, -1.5, 0.0, 1.5, 3.0, 5.0, 8.0], dtype=torch.float64)
    out = []
    for x, y, r in _chunks(144 * len(base) ** 2, qx, qy, rho):
        sx, sy = x.sqrt().clamp_min(1e-150)[:, None], y.sqrt().clamp_min(1e-150)[:, None]
        spread = torch.sqrt(((1.0 - r) * (1.0 + r)).clamp_min(1e-32))[:, None]
        edges = [base.expand(len(x), -1), _clipped(kinks_f, sx)]
        # g smoothed over v | u still bends near its kinks, on the length of the smoothing
        turn = torch.where(r.abs() < 1e-3, 1.0, r)[:, None]
        edges += [((c / sy + spread * ripple) / turn).clamp(-9.0, 9.0) for c in kinks_g]
        outer, weight = panel_nodes(torch.cat(edges, dim=1).sort(dim=1).values, 12)
        weight = weight * torch.exp(-0.5 * outer * outer)
        centre = r[:, None] * outer
        inner_edges = [base.expand(*centre.shape, -1)]
        inner_edges += [((c / sy - centre) / spread).clamp(-9.0, 9.0)[..., None] for c in kinks_g]
        inner, share = panel_nodes(torch.cat(inner_edges, dim=-1).sort(dim=-1).values, 12)
        share = share * torch.exp(-0.5 * inner * inner)
        smoothed = (g(sy[..., None] * (centre[..., None] + spread[..., None] * inner)) * share).sum(-1)
        out.append((f(sx * outer) * smoothed * weight).sum(-1) / (2.0 * math.pi))
    return torch.cat(out)


def _clipped(kinks: Sequence[float], scale: Tensor) -> Tensor:
    return (torch.tensor(list(kinks), dtype=torch.float64) / scale).clamp(-9.0, 9.0)


def shifted_mean(g: Function, kinks: Sequence[float], feature: float, mean: Tensor, spread: Tensor) -> Tensor:
    """E[g(mean + spread xi)], elementwise."""
    scale = spread.clamp_min(1e-150)[:, None]
    width = min(1.0, 2.0 * feature / max(float(spread.max()), 1e-300))
    base = torch.arange(-9.0, 9.0 + width, width, dtype=torch.float64).clamp_max(9.0)
    rough = ((torch.tensor(list(kinks), dtype=torch.float64) - mean[:, None]) / scale).clamp(-9.0, 9.0)
    edges = torch.cat([base.expand(len(mean), -1), rough], dim=1).sort(dim=1).values
    nodes, weights = panel_nodes(edges, 16)
    weights = weights * torch.exp(-0.5 * nodes * nodes) / math.sqrt(2.0 * math.pi)
    return (g(mean[:, None] + spread[:, None] * nodes) * weights).sum(-1)


def piecewise_linear(
    kinks: Sequence[float], bends: Sequence[float], qx: Tensor, qy: Tensor, rho: Tensor
) -> tuple[Tensor, Tensor]:
    """What the kinks add to E[phi phi] and E[phi' phi'] beyond their values at rho = 0 (and the linear term).

    d^2 E[phi phi] / d lam^2 = sum_kl d_k d_l p(c_k, c_l; lam); with lam = sqrt(qx qy) sin(t) the density is smooth in t
    except for exp(-(x - y)^2 / (2 cos^2 t)), which panels halving towards t = +-pi/2 resolve.
    """
    total, slope = torch.zeros_like(rho), torch.zeros_like(rho)
    near = rho.abs() > 0.95
    for mask, levels in ((~near, 3), (near, 44)):
        if bool(mask.any()):
            value, steep = _kink_integrals(kinks, bends, qx[mask], qy[mask], rho[mask], levels)
            total[mask], slope[mask] = value, steep
    return total, slope


def _kink_integrals(
    kinks: Sequence[float], bends: Sequence[float], qx: Tensor, qy: Tensor, rho: Tensor, levels: int
) -> tuple[Tensor, Tensor]:
    values, slopes = [], []
    fractions = torch.tensor([2.0**-j for j in range(levels)] + [0.0], dtype=torch.float64)
    for x, y, r in _chunks(24 * levels * len(kinks) ** 2, qx, qy, rho):
        top = torch.asin(r)[:, None]
        # distance from the end of the integral to +-pi/2 decides where the panels must crowd
        rest = 0.5 * math.pi - top.abs()
        edges = torch.sign(top) * (0.5 * math.pi - (rest + (0.5 * math.pi - rest) * fractions))
        t, weight = panel_nodes(edges, 12)
        sine, cosine2 = torch.sin(t), torch.cos(t) ** 2
        scale = torch.sqrt(x * y)[:, None]
        density = torch.zeros_like(t)
        for c, d in zip(kinks, bends, strict=True):
            for e, h in zip(kinks, bends, strict=True):
                a, b = c / x.sqrt()[:, None], e / y.sqrt()[:, None]
                # (a^2 - 2 a b s + b^2) / (2 (1 - s^2)), written without cancellation on either side
                plus = (a - b) ** 2 / (2.0 * cosine2) + a * b / (1.0 + sine)
                minus = (a + b) ** 2 / (2.0 * cosine2) - a * b / (1.0 - sine)
                density = density + d * h * torch.exp(-torch.where(sine >= 0, plus, minus))
        density = density * weight / (2.0 * math.pi)
        slopes.append(density.sum(-1))
        values.append(scale[:, 0] * (density * (r[:, None] - sine)).sum(-1))
    return torch.cat(values), torch.cat(slopes)
