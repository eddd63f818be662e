"""Entries near r = +-1 of a DEQ whose activation has a kink at zero, from series of its layer instead of its kernel.

As a function of the norms and the cosine of the inputs such a kernel has a cone at duplicates, which no table follows.
As a function of the angle at equilibrium it is analytic. So the layer is tabulated there, and the equation of the DEQ
is solved on it, a few flat operations for all entries at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._chebyshev import nodes, to_coefficients
from ..activations.forms import correlation
from ..networks import DEQ, Kernel, Network
from .plane import polar_grid
from .pointwise import DEQSlope, solve_covariance
from .recursion import LayerMaps, implicit
from .sampling import rough_correlations
from .table import Level, NormScale, Table
from .variance import equilibrium_variance, gap_check

__all__ = ["NearSeries", "near_series"]


@dataclass(frozen=True)
class NearSeries:
    """E[phi phi] and E[phi' phi'] for angles at equilibrium between ``angles``."""

    deq: DEQ
    norms: NormScale
    angles: tuple[float, float]
    levels: tuple[Level, Level]

    def kernels(
        self, table: Table, nx: Tensor, ny: Tensor, r: Tensor, kernels: Sequence[Kernel]
    ) -> dict[Kernel, Tensor]:
        """At entries with these norms, and cosines on the side of the series (flat float64)."""
        sigma_a2 = self.deq.variances[0]
        qx, qy = (sigma_a2 * table.diagonal("ck", t) + self.deq.drive(t * t) for t in (nx, ny))
        left, right = (self.norms.polynomials(len(self.levels[0].factors), t) for t in (nx, ny))
        layer = _Entries(self, qx, qy, [(level.side(left), level.side(right)) for level in self.levels])
        lam = solve_covariance(self.deq, layer, self.deq.drive(nx * ny * r), (qx * qy).sqrt())
        return implicit(lam, layer, sigma_a2, kernels, gap_check(self.deq))


def near_series(deq: Network, scale: NormScale, reach: float, dtype: torch.dtype) -> NearSeries | None:
    """The series for cosines between ``reach`` and the +-1 beyond, or ``None`` where they do not converge."""
    if not isinstance(deq, DEQ) or isinstance(deq, DEQSlope) or scale.single or scale.high > 30.0 * scale.low:
        return None
    phi = deq.activation
    # with a closed form entry by entry is quick
    if not phi.elementwise or set(phi.kinks) != {0.0} or not phi.continuous or phi.closed_form() is not None:
        return None
    wide = dtype == torch.float64
    for size, terms in ((18, 14), (28, 18), (40, 24)) if wide else ((12, 10), (16, 13), (24, 18)):
        found = _series(deq, scale, reach, size, terms, 2e-14 if wide else 1e-9)
        if found is not None:
            return found
    return None


def _series(deq: DEQ, scale: NormScale, reach: float, size: int, terms: int, short: float) -> NearSeries | None:
    phi, t = deq.activation, scale.nodes(size)
    q = equilibrium_variance(deq, t**2)
    ia, ib = torch.tensor([0, 0, size - 1]), torch.tensor([0, size - 1, size - 1])
    cosines = torch.tensor([reach, math.copysign(1.0, reach)], dtype=torch.float64)
    rho = rough_correlations(deq, q, ia, ib, deq.drive((t[ia] * t[ib])[:, None] * cosines))
    low, high = math.acos(float(rho.max())), math.acos(float(rho.min()))
    room = 0.4 * (high - low)
    low, high = (0.0, high + room) if reach > 0 else (max(0.0, low - room), min(math.pi, high + room))
    if reach > 0 and high > 0.45 * math.pi:
        return None
    beta = 0.5 * (high + low) - 0.5 * (high - low) * torch.from_numpy(nodes(terms))
    across, along = torch.tensor(to_coefficients(terms)), torch.tensor(to_coefficients(size))
    levels = []
    for values in polar_grid((phi, phi.derivative), phi.panels(), q.sqrt(), beta):
        c = torch.tensordot(across, along @ values.permute(2, 0, 1) @ along.T, dims=1)
        last = max(float(c[-2:].abs().max()), float(c[:, -2:].abs().max()))
        if last > short * float(c.abs().max()):
            return None
        levels.append(Level.of(0.5 * (c + c.transpose(1, 2)), 1e-15))
    return NearSeries(deq, scale, (low, high), (levels[0], levels[1]))


class _Entries(LayerMaps):
    """The layer at single entries, given the norm factors of phi and of phi' on both sides."""

    def __init__(self, series: NearSeries, qx: Tensor, qy: Tensor, sides: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.series, self.qx, self.qy, self.sides = series, qx, qy, sides

    def subset(self, which: Tensor) -> _Entries:
        """Some of the entries."""
        sides = [(a[:, which], b[:, which]) for a, b in self.sides]
        return _Entries(self.series, self.qx[which], self.qy[which], sides)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.series.angles
        angle = torch.acos(correlation(self.qx, self.qy, lam)).clamp(low, high)
        x2 = 2.0 - 4.0 * (angle - low) / (high - low)
        value, slope = (level.at(*side, x2) for level, side in zip(self.series.levels, self.sides, strict=True))
        return value, slope
