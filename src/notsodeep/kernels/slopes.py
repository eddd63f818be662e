"""Derivatives of kernels in the inner product and in the squared norm, from the tables of the kernels themselves."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._chebyshev import Workspace
from ._limits import LIMITS
from .bands import Given
from .pointwise import KernelSpec
from .table import NormScale
from .tiles import Ends, Panel, Points, fill_tiles

_NAMES = "value", "inner", "square"


class Slopes(NamedTuple):
    """A kernel K(x, y) = k(||x||^2, ||y||^2, x . y) and two of its derivatives, each of shape (n, m)."""

    value: Any
    """K."""
    inner: Any
    """The derivative of k in x . y."""
    square: Any
    """The derivative of k in ||x||^2, x the row of X."""


def slopes_of(spec: KernelSpec, x: Tensor, y: Tensor, ready: Given) -> Slopes:
    """Compute the slopes of the one kernel that is asked for, in float64; the results have the type of ``x``."""
    slopes = {name: x.new_empty(len(x), len(y)) for name in _NAMES}
    if len(x) and len(y):
        points, (tables, lift) = _SlopePoints(spec, x.double(), y.double()), ready
        wide = {scales: t for scales, t in tables.items() if t.homogeneous or not any(s.single for s in scales)}

        def work(some: Points, target: Mapping[Any, Tensor]) -> None:
            some.find_table((wide, lift))
            fill_tiles(some, target, None)

        for part in points.parts((wide, lift), slopes):
            part.fill(work)
        if points.spec is not spec:  # by the chain rule
            for name in ("inner", "square"):
                slopes[name].mul_(spec.network.variances[1])
    return Slopes(**slopes)


class _SlopePoints(Points):
    """Rows whose kernel is differentiated: k_r by the series in the angle, k_s, s = ||x||, by those in the norm."""

    direct = LIMITS.direct_slopes

    @functools.cached_property
    def capped(self) -> bool:
        """Return False: single entries are differentiated."""
        return False

    def find_table(self, ready: Given) -> None:
        """Use a table only as far as its derivative in the cosine keeps its digits."""
        super().find_table(ready)
        if self.table is not None:
            self.level = self.table.slope_level(self.spec.names[0], not self.spec.network.kinked)
            if self.level.warped:
                self.trusted = min(self.trusted, LIMITS.steep_cosine)

    def norm_scale(self, low: float, high: float) -> NormScale:
        """A range, where all norms are one."""
        return super().norm_scale(low * (1.0 - 1e-9) if high - low <= 1e-9 * high else low, high)

    def lookup(
        self, rows: slice, columns: slice, r: Tensor, panels: Sequence[Panel], ends: Ends, workspace: Workspace
    ) -> Iterator[tuple[Any, Tensor]]:
        """Tiles of the kernel, of k_r / (s t) and of (k_s - r k_r / s) / (2 s)."""
        table, (kernel,) = self.table, self.spec.names
        assert table is not None
        ((_, looked_up),) = super().lookup(rows, columns, r, panels, ends, workspace)
        value = workspace("value", r).copy_(looked_up)
        yield "value", value
        x2 = self.level.variable(r, workspace)
        inner = workspace("inner", r).copy_(self.series(table, self.level, kernel, rows, columns, x2, workspace))
        inner.mul_(0.5 * self.level.scale)
        if self.level.warped:
            inner.mul_((1.0 - r * r).rsqrt_())
        short = self.wx[rows, None]
        if not table.homogeneous:
            inner.mul_(short).mul_(self.wy[columns])
        yield "inner", inner
        if table.homogeneous:
            slope = value.mul_(short)
        else:
            level = table.level(kernel, r.dtype)
            x2 = level.variable(r, workspace)
            slope = self.series(table, level, kernel, rows, columns, x2, workspace, in_norm=True)
        yield "square", slope.sub_(inner.mul_(r).mul_(self.sy[columns].sqrt())).mul_(0.5 * short)

    def entries(self, i: Tensor, j: Tensor, lack: Tensor) -> Iterator[tuple[Tensor, Mapping[Any, Tensor]]]:
        """Single entries, by the exact derivatives of the recursion."""
        (kernel,) = self.spec.names
        with torch.enable_grad():
            square, dot = (v.detach().cpu().requires_grad_() for v in (self.sx[i], self.dots(i, j, lack)))
            value = self.spec.pairwise(square, self.sy[j], dot)[kernel]
            slopes = torch.autograd.grad(value.sum(), (dot, square))
        value, close = value.detach().clone(), self._close(i, j, lack)
        if bool(close.any()):  # as in matrices: a rounded inner product hides their angle
            value[close.cpu()] = self._by_angle(i[close], j[close], lack[close])[kernel]
        yield torch.arange(len(i), device=i.device), dict(zip(_NAMES, (value, *slopes), strict=True))
