"""Tiles of kernel matrices: cosines of two blocks of rows, looked up in the table, and what the table does not hold.

Near r = +-1 a kinked kernel varies with the angle, of which a rounded cosine knows half the digits: there the angle is
taken from the difference of the normalised rows. Entries beyond the table's reach are evaluated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..networks import DEQ, Kernel, Network
from .evaluate import at_entries, fused_tile, fused_tile_scalar, tile, tile_scalar
from .lookup import Level, Table
from .near import NearSeries, near_entries
from .pointwise import pairwise
from .tabulate import near_for

__all__ = ["Points"]

_PAIRS = 4096  # pairs of rows whose products are held at once
_HELD = 1 << 21  # numbers in the norm factors that are kept
_TRUSTED = {torch.float64: 1.0 - 1e-6, torch.float32: 1.0 - 5e-4}  # cosines whose angle is known well enough


class Points:
    """The rows of both sides with everything that is computed once per row."""

    def __init__(
        self,
        network: Network,
        kinds: tuple[Kernel, ...],
        rates: Sequence[float] | None,
        table: Table | None,
        x: Tensor,
        y: Tensor,
        sx: Tensor,
        sy: Tensor,
        *,
        symmetric: bool,
        compiled: bool = False,
    ) -> None:
        self.network, self.kinds, self.rates, self.table = network, kinds, rates, table
        self.x, self.y, self.sx, self.sy = x, y, sx, sy
        self.symmetric, self.compiled = symmetric, compiled
        self.wx = _inverse_norm(sx, x.dtype)
        self.wy = self.wx if symmetric else _inverse_norm(sy, x.dtype)
        self.trusted = 1.0
        self.short: tuple[Tensor | None, ...] = (None, None)
        if table is not None:
            kinked = any(phi.kinks for phi in network.activations)
            self.trusted = min(table.reach, _TRUSTED[x.dtype]) if kinked else table.reach
            self.short = tuple(table.shorter(s.sqrt()) for s in (sx, sy))
        self._pairs = len(x) * len(y) / (2 if symmetric else 1)
        self._rows: tuple[slice, Tensor] | None = None
        self._sides: dict[tuple[Kernel, float, int, bool], Tensor] = {}
        self._room = _HELD
        self._unsettled: list[tuple[Tensor, Tensor]] = []
        self._too_short: list[tuple[Tensor, Tensor]] = []

    def __copy__(self) -> Points:
        """The same rows for another thread, which keeps its own notes."""
        other = object.__new__(Points)
        other.__dict__.update(self.__dict__, _rows=None, _sides={}, _unsettled=[], _too_short=[])
        return other

    def tile(self, rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        """The kernels between these rows and columns; on and below the diagonal of a symmetric matrix they are void."""
        table = self.table
        if table is None:
            return self._one_by_one(rows, columns)
        r = self._unit_rows(rows) @ self.y[columns].T
        r.mul_(self.wy[columns])
        if self.symmetric and rows.start == columns.start:
            r.triu_(1)  # the diagonal is written from the norms alone, exactly
        low, high = torch.stack(torch.aminmax(r)).tolist()
        largest = max(-low, high)
        outside = None
        if largest > self.trusted:
            if self.trusted < 1.0:
                outside = r.abs() > self.trusted
            r.clamp_(-table.reach, table.reach)
        values = {}
        for kind in self.kinds:
            level = table.level(kind, largest, r.dtype)
            last = kind == self.kinds[-1]
            values[kind] = self._lookup(level, kind, rows, columns, r if last or self.compiled else r.clone())
        short = self._short_rows(rows, columns)
        for wanted, kept in ((outside, self._unsettled), (short, self._too_short)):
            if wanted is not None:
                i, j = wanted.nonzero(as_tuple=True)
                kept.append((i + rows.start, j + columns.start))
        return values

    @property
    def unsettled(self) -> int:
        """How many entries of the tiles so far wait for :meth:`settle`."""
        return sum(len(i) for kept in (self._unsettled, self._too_short) for i, _ in kept)

    def settle(self, target: Mapping[Kernel, Tensor]) -> None:
        """Write the entries that the table left open: few, so all at once."""
        for kept, method in ((self._unsettled, self.entries), (self._too_short, self._direct)):
            if not kept:
                continue
            i, j = (torch.cat(part) for part in zip(*kept, strict=True))
            kept.clear()
            for kind, exact in method(i, j).items():
                target[kind][i, j] = exact.to(target[kind].dtype)
                if self.symmetric:
                    target[kind][j, i] = exact.to(target[kind].dtype)

    def entries(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Single entries that the table does not settle as it is: near r = +-1, or beyond its reach."""
        assert self.table is not None
        if self.table.reach == 1.0:
            return self._by_angle(i, j)
        return self._by_layer(i, j) if isinstance(self.network, DEQ) else self._direct(i, j)

    def _short_rows(self, rows: slice, columns: slice) -> Tensor | None:
        """The entries of rows that are shorter than the table covers."""
        left, right = (None if s is None else s[part] for s, part in zip(self.short, (rows, columns), strict=True))
        if left is None and right is None:
            return None
        mask = torch.zeros(len(self.sx[rows]), len(self.sy[columns]), dtype=torch.bool, device=self.x.device)
        if left is not None:
            mask |= left[:, None]
        if right is not None:
            mask |= right
        if self.symmetric and rows.start == columns.start:
            mask = torch.triu(mask, 1)
        return mask if bool(mask.any()) else None

    def _unit_rows(self, rows: slice) -> Tensor:
        """The normalised rows of the current row of tiles."""
        if self._rows is None or self._rows[0] != rows:
            self._rows = rows, self.x[rows] * self.wx[rows, None]
        return self._rows[1]

    def _lookup(self, level: Level, kind: Kernel, rows: slice, columns: slice, r: Tensor) -> Tensor:
        table = self.table
        assert table is not None
        nx, ny = self.sx[rows].sqrt(), self.sy[columns].sqrt()
        if table.one_function:
            values = (fused_tile_scalar if self.compiled else tile_scalar)(level, r)
            return values.mul_(nx[:, None].to(r.dtype)).mul_(ny.to(r.dtype)) if table.homogeneous else values
        left = self._side(level, kind, rows, nx, signed=True)
        right = self._side(level, kind, columns, ny, signed=False)
        return (fused_tile if self.compiled else tile)(level, left, right.T, r)

    def _side(self, level: Level, kind: Kernel, which: slice, norms: Tensor, signed: bool) -> Tensor:
        """The norm factors of a block of rows, kept for the next tiles while they are few."""
        key = kind, level.reach, which.start, signed
        found = self._sides.get(key)
        if found is None:
            assert self.table is not None
            found = self.table.side(level, kind, norms, signed=signed).to(self.x.dtype)
            if not signed:
                found = found.T.contiguous().T  # columns of the product lie together
            if self._room < found.numel():
                self._sides.clear()
                self._room = _HELD
            self._room -= found.numel()
            self._sides[key] = found
        return found

    # -- single entries --------------------------------------------------------------------------------------
    def _by_angle(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Entries near r = +-1 from the table, at angles that are exact there."""
        table = self.table
        assert table is not None
        found: dict[Kernel, list[Tensor]] = {kind: [] for kind in self.kinds}
        for p, q in zip(i.split(_PAIRS), j.split(_PAIRS), strict=True):
            nx, ny = self.sx[p].sqrt(), self.sy[q].sqrt()
            x = _angle_variable(self.x[p].double() / nx[:, None], self.y[q].double() / ny[:, None])
            for kind in self.kinds:
                level = table.level(kind, 1.0, torch.float64)
                position = x if level.warped else torch.sin(0.5 * math.pi * x)
                left, right = (self._factors(level, kind, v, signed=k) for v, k in ((nx, True), (ny, False)))
                values = at_entries(level, left, right, position)
                values = values * nx * ny if table.homogeneous else values
                found[kind].append(values.to(self.x.dtype))
        return {kind: torch.cat(parts) for kind, parts in found.items()}

    def _by_layer(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Entries near r = +-1 from the series of the layer at equilibrium, where it has them."""
        assert self.table is not None
        found = {kind: torch.empty(len(i), dtype=self.x.dtype, device=self.x.device) for kind in self.kinds}
        for part in torch.arange(len(i), device=self.x.device).split(_PAIRS):
            nx, ny = self.sx[i[part]].sqrt(), self.sy[j[part]].sqrt()
            x = _angle_variable(self.x[i[part]].double() / nx[:, None], self.y[j[part]].double() / ny[:, None])
            for sign in (1, -1):
                wanted = sign * x > 0
                if bool(wanted.any()):
                    which, near = part[wanted], near_for(self.network, self.table, sign, self._pairs)
                    exact = self._direct(i[which], j[which]) if near is None else self._near(near, nx, ny, x, wanted)
                    for kind, values in exact.items():
                        found[kind][which] = values.to(found[kind])
        return found

    def _near(self, near: NearSeries, nx: Tensor, ny: Tensor, x: Tensor, wanted: Tensor) -> dict[Kernel, Tensor]:
        assert self.table is not None
        assert isinstance(self.network, DEQ)
        a, b, angle = (v[wanted].cpu() for v in (nx, ny, x))
        return near_entries(self.network, near, self.table, a, b, torch.sin(0.5 * math.pi * angle), self.kinds)

    def _factors(self, level: Level, kind: Kernel, norms: Tensor, signed: bool) -> Tensor:
        assert self.table is not None
        if not self.table.one_function:
            return self.table.side(level, kind, norms, signed=signed)
        series = level.series
        return (series.factors * series.signs if signed else series.factors).to(norms.device).expand(len(norms), -1)

    def _one_by_one(self, rows: slice, columns: slice) -> dict[Kernel, Tensor]:
        """A tile without a table; on the diagonal of a symmetric matrix only what lies above it."""
        shape = (len(self.sx[rows]), len(self.sy[columns]))
        wanted = torch.ones(shape, dtype=torch.bool, device=self.x.device)
        wanted = torch.triu(wanted, 1) if self.symmetric and rows.start == columns.start else wanted
        tiles = {kind: torch.zeros(shape, dtype=self.x.dtype, device=self.x.device) for kind in self.kinds}
        i, j = wanted.nonzero(as_tuple=True)
        for kind, exact in self._direct(i + rows.start, j + columns.start).items():
            tiles[kind][i, j] = exact
        return tiles

    def _direct(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Entries one by one, from inner products in double precision."""
        a, b = self.sx[i], self.sy[j]
        parts = zip(*(v.split(_PAIRS) for v in (i, j, a, b)), strict=True)
        dot = torch.cat([_dots(self.x[p], self.y[q], s, t) for p, q, s, t in parts])
        exact = pairwise(self.network, a.cpu(), b.cpu(), dot.cpu(), self.kinds, self.rates, check=False)
        return {kind: v.to(self.x.device, self.x.dtype) for kind, v in exact.items()}


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s.clamp_min(1e-300).rsqrt(), torch.zeros_like(s)).to(dtype)


def _angle_variable(u: Tensor, v: Tensor) -> Tensor:
    """2 arcsin(r) / pi of unit rows, from the chord to the nearer end: exact near r = +-1."""
    sign = torch.where((u * v).sum(1) < 0, -1.0, 1.0).to(u)
    chord = (u - sign[:, None] * v).square().sum(1).sqrt()
    return sign * (1.0 - torch.asin(0.5 * chord).mul_(4.0 / math.pi))


def _dots(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """Inner products of pairs of rows; where they nearly coincide from their difference: exact for duplicates."""
    x, y = x.double(), y.double()
    dot, half = (x * y).sum(1), 0.5 * (sx + sy)
    sign = torch.where(dot < 0, -1.0, 1.0).to(dot)
    near = half - dot.abs() <= 1e-6 * half
    if bool(near.any()):
        apart = ((x[near] - sign[near, None] * y[near]) ** 2).sum(1)
        dot[near] = sign[near] * (half[near] - 0.5 * apart)
    return dot
