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
from .._fixed_point import newton
from ..activations.forms import correlation
from ..errors import ConvergenceError
from ..networks import DEQ, Kernel
from .evaluate import at_entries
from .lookup import Level, NormScale, Table, chebyshev, compressed
from .plane import polar_grid
from .pointwise import equilibrium, gap_check
from .recursion import equation, implicit
from .variance import equilibrium_variance

__all__ = ["NearSeries", "near_entries", "near_series"]

_SIZES = (16, 24, 36)  # terms in the angle
_NORMS = 6  # terms in the norms beyond those of the kernel
_SHORT = 2e-14
_RANGE = 30.0  # of the norms, in which no digits of the shorter rows are lost
_WIDER = 1.4  # than the angles that belong to the cap


@dataclass(frozen=True)
class NearSeries:
    """E[phi phi] and E[phi' phi'] for angles at equilibrium up to ``angle``."""

    norms: NormScale
    angle: float
    levels: tuple[Level, Level]

    def side(self, part: int, norms: Tensor, signed: bool) -> Tensor:
        """The norm factors of phi (0) or phi' (1) at these norms."""
        series = self.levels[part].series
        factors = series.factors * series.signs if signed else series.factors
        return chebyshev(len(factors), self.norms.position(norms)) @ factors.to(norms.device)


def near_series(deq: DEQ, table: Table) -> NearSeries | None:
    """The series for cosines beyond the table's reach, or ``None`` where they do not converge."""
    phi, scale = deq.activation, table.norms
    if not phi.elementwise or set(phi.kinks) != {0.0} or not phi.continuous or scale.single:
        return None
    if scale.high > _RANGE * scale.low or "ck" not in table.kinds:
        return None
    size = next(iter(table.coefficients.values())).shape[1] + _NORMS
    q = equilibrium_variance(deq, scale.nodes(size) ** 2)
    # two norms at the cap: the widest angle at equilibrium is not much wider than the angle of the inputs
    angle = _WIDER * _widest(deq, scale, table.reach)
    if angle > 0.45 * math.pi:
        return None
    for terms in _SIZES:
        beta = 0.5 * angle * (1.0 - torch.from_numpy(nodes(terms)))
        grids = polar_grid((phi, phi.derivative), phi.panels(), q.sqrt(), beta)
        levels = []
        for values in grids:
            along = torch.tensor(to_coefficients(size))
            c = torch.tensordot(torch.tensor(to_coefficients(terms)), values.permute(2, 0, 1), dims=1)
            c = along @ c @ along.T
            top = float(c.abs().max())
            if max(float(c[-2:].abs().max()), float(c[:, -2:].abs().max())) > _SHORT * top:
                break
            levels.append(Level(compressed(0.5 * (c + c.transpose(1, 2)), 1e-16), 1.0, False, None))
        if len(levels) == 2:
            return NearSeries(scale, angle, (levels[0], levels[1]))
    return None


def _widest(deq: DEQ, scale: NormScale, reach: float) -> float:
    low, high = (torch.tensor([v], dtype=torch.float64) ** 2 for v in (scale.low, scale.high))
    found = []
    for sx, sy in ((low, low), (low, high), (high, high)):
        qx, qy, lam = equilibrium(deq, sx, sy, reach * (sx * sy).sqrt())
        found.append(float(correlation(qx, qy, lam)))
    return math.acos(min(found))


class _Entries:
    """The layer at single entries; answers as any layer does."""

    def __init__(self, series: NearSeries, qx: Tensor, qy: Tensor, sides: tuple[tuple[Tensor, Tensor], ...]) -> None:
        self.series, self.qx, self.qy, self.sides = series, qx, qy, sides

    def subset(self, which: Tensor) -> _Entries:
        sides = tuple((a[which], b[which]) for a, b in self.sides)
        return _Entries(self.series, self.qx[which], self.qy[which], sides)

    def _part(self, part: int, lam: Tensor) -> Tensor:
        rho = correlation(self.qx, self.qy, lam)
        x = 1.0 - 2.0 * torch.acos(rho).clamp_max(self.series.angle) / self.series.angle
        return at_entries(self.series.levels[part], *self.sides[part], x)

    def value(self, lam: Tensor) -> Tensor:
        """E[phi(u) phi(v)]."""
        return self._part(0, lam)

    def slope(self, lam: Tensor) -> Tensor:
        """E[phi'(u) phi'(v)]."""
        return self._part(1, lam)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """(value, slope)."""
        return self.value(lam), self.slope(lam)


def near_entries(
    deq: DEQ, series: NearSeries, table: Table, nx: Tensor, ny: Tensor, r: Tensor, kinds: Sequence[Kernel]
) -> dict[Kernel, Tensor]:
    """Kernels at entries with these norms and cosines beyond the table's reach, near +1 (flat float64, CPU)."""
    qx, qy = (deq.variances[0] * table.diagonal("ck", t) + deq.drive(t * t) for t in (nx, ny))
    sides = tuple(
        (series.side(part, nx, signed=True), series.side(part, ny, signed=False)) for part in range(len(series.levels))
    )
    layer = _Entries(series, qx, qy, sides)
    drive, bound = deq.drive(nx * ny * r), (qx * qy).sqrt()

    def rest(lam: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        part, push = (layer, drive) if which is None else (layer.subset(which), drive[which])
        return equation(part, lam, deq.variances[0], push)

    root = newton(rest, drive.clamp(-bound, bound), -bound, bound, bound)
    if not root.converged:
        raise ConvergenceError(f"the covariance equation of {deq!r} did not converge near duplicates; {deq.advice}")
    return implicit(root.value, layer, deq.variances[0], kinds, gap_check(deq))
