"""Tiles of kernel matrices: cosines of two blocks of rows, looked up in the table, and what the table does not hold.

Near r = +-1 a kinked kernel varies with the angle, of which a rounded cosine knows half the digits: there the angle is
taken from the difference of the normalised rows. Entries beyond the table's reach are evaluated one by one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from ..networks import DEQ, Kernel, Network
from .evaluate import Room, at_entries, at_points, products, tile, tile_scalar
from .lookup import Level, Table
from .native import can_fuse, fused_tile
from .near import NearSeries, near_entries
from .pointwise import pairwise
from .tabulate import near_for

__all__ = ["TILE", "Points", "tile_shape"]

TILE = {"cpu": (128, 1024), "cuda": (4096, 4096)}  # rows and columns: flat tiles lose little beside the diagonal
_NUMBERS = 1 << 19  # in the pairs of rows that are held at once
_ENTRIES = 1 << 13  # that are evaluated at once, one by one
_HELD = 1 << 22  # numbers in the norm factors that are kept
_EVERY = 61  # of so many entries one is looked at
_LONE, _SEARCH = 4.0, 4.0  # what an entry alone costs beside one in a tile, and to find them, in terms
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
        least: float = 0.0,
    ) -> None:
        """``least``: no norm is below."""
        self.network, self.kinds, self.rates, self.table = network, kinds, rates, table
        self.x, self.y, self.sx, self.sy = x, y, sx, sy
        self.symmetric = symmetric
        self.compiled = compiled and x.device.type == "cpu" and can_fuse()
        self.wx = _inverse_norm(sx, x.dtype)
        self.wy = self.wx if symmetric else _inverse_norm(sy, x.dtype)
        self.trusted = 1.0
        self.short: tuple[Tensor | None, ...] = (None, None)
        if table is not None:
            kinked = any(phi.kinks for phi in network.activations)
            self.trusted = min(table.reach, _TRUSTED[x.dtype]) if kinked else table.reach
            if least < table.norms.low:  # on a GPU the question alone would wait for all that it does
                self.short = tuple(table.shorter(s.sqrt()) for s in (sx, sy))
        self._pairs = len(x) * len(y) / (2 if symmetric else 1)
        self._at_once = max(64, _NUMBERS // max(1, x.shape[1]))
        self.room = Room()
        self._held: dict[tuple[object, ...], Tensor] = {}  # by all threads
        self._current: tuple[slice, dict[object, Tensor]] = slice(0), {}
        self._unsettled: list[tuple[Tensor, Tensor]] = []
        self._too_short: list[tuple[Tensor, Tensor]] = []

    def __copy__(self) -> Points:
        """The same rows for another thread, which keeps its own notes."""
        other = object.__new__(Points)
        other.__dict__.update(self.__dict__, room=Room(), _current=(slice(0), {}), _unsettled=[], _too_short=[])
        return other

    def tile(self, rows: slice, columns: slice) -> Iterator[tuple[Kernel, Tensor]]:
        """The kernels between these rows and columns, to be used before the next is asked for.

        On and below the diagonal of a symmetric matrix they are void.
        """
        table = self.table
        if table is None:
            yield from self._one_by_one(rows, columns).items()
            return
        left, right = self._unit_rows(rows), self.y[columns]
        r = products(left, right, self.room("r", (len(left), len(right)), left))
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
        short = self._short_rows(rows, columns)
        for wanted, kept in ((outside, self._unsettled), (short, self._too_short)):
            if wanted is not None:
                i, j = wanted.nonzero(as_tuple=True)
                kept.append((i + rows.start, j + columns.start))
        for kind in self.kinds:
            yield kind, self._lookup(kind, rows, columns, r, largest)

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

    # -- the table ---------------------------------------------------------------------------------------------
    def _lookup(self, kind: Kernel, rows: slice, columns: slice, r: Tensor, largest: float) -> Tensor:
        table = self.table
        assert table is not None
        full = level = table.level(kind, largest, r.dtype)
        if table.one_function:
            c = torch.tensor(level.series.scalars(), dtype=torch.float64).to(r)  # infinite where it overflows
            if self.compiled:
                out = fused_tile(level, c, None, r, self.room("values", tuple(r.shape), r))
            else:
                level = full if r.is_cuda else self._cheapest(kind, full, r)
                out = tile_scalar(level, r, self.room)
            if level is not full:
                far = (torch.abs(r, out=self.room("x2", tuple(r.shape), r)) > level.reach).nonzero(as_tuple=True)
                x = (torch.asin(r[far]) if full.warped else r[far]) * (0.5 * full.scale())
                out[far] = at_points(full, c[:, None], x)
            if table.homogeneous:
                out.mul_(self.sx[rows, None].sqrt().to(r.dtype)).mul_(self.sy[columns].sqrt().to(r.dtype))
            return out
        left, right = self._left(level, kind, rows), self._side(level, kind, columns, "y")
        if self.compiled:
            return fused_tile(level, left, right, r, self.room("values", tuple(r.shape), r))
        return tile(level, left, right, r, self.room)

    def _cheapest(self, kind: Kernel, full: Level, r: Tensor) -> Level:
        """The level that costs least, when what lies beyond it is looked up entry by entry."""
        table = self.table
        assert table is not None
        few, reaches = r.view(-1)[::_EVERY].abs(), table.reaches(full.reach)
        beyond = (few[:, None] > torch.tensor(reaches, dtype=r.dtype)).sum(0).tolist()
        best, least = full, full.cost
        for reach, count in zip(reaches, beyond, strict=True):
            level = table.level(kind, reach, r.dtype)
            cost = level.cost + _SEARCH + _LONE * full.cost * count / len(few)
            best, least = (level, cost) if cost < least else (best, least)
        return best

    def _left(self, level: Level, kind: Kernel, rows: slice) -> Tensor:
        """The norm factors of the current rows: (rows, rank), signed."""
        kept, key = self._of_rows(rows), (kind, level.reach)
        if key not in kept:
            signs = level.series.signs.to(self.x)
            side = self._side(level, kind, rows, "y" if self.symmetric else "x")
            kept[key] = side.T.contiguous().mul_(signs)
        return kept[key]

    def _side(self, level: Level, kind: Kernel, which: slice, points: Literal["x", "y"]) -> Tensor:
        """The norm factors of some points, (rank, points), kept while they are few."""
        wide = tile_shape(self.x.device)[1]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = kind, level.reach, points, first
        found = self._held.get(key)
        if found is None:
            assert self.table is not None
            norms = (self.sx if points == "x" else self.sy)[first : first + wide].sqrt()
            found = self.table.side(level, kind, norms, signed=False).to(self.x.dtype)
            if sum(kept.numel() for kept in list(self._held.values())) + found.numel() > _HELD:
                self._held.clear()
            self._held[key] = found
        return found[:, which.start - first : which.stop - first]

    def _unit_rows(self, rows: slice) -> Tensor:
        """The normalised rows of the current row of tiles."""
        kept = self._of_rows(rows)
        if "unit" not in kept:
            kept["unit"] = self.x[rows] * self.wx[rows, None]
        return kept["unit"]

    def _of_rows(self, rows: slice) -> dict[object, Tensor]:
        """What is kept for the current row of tiles."""
        if self._current[0] != rows:
            self._current = rows, {}
        return self._current[1]

    # -- single entries --------------------------------------------------------------------------------------
    def _angles(self, i: Tensor, j: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The norms of pairs of rows, and 2 arcsin(r) / pi, exact near r = +-1."""
        nx, ny = self.sx[i].sqrt(), self.sy[j].sqrt()
        parts = zip(*(v.split(self._at_once) for v in (i, j, nx, ny)), strict=True)
        angles = [
            _angle_variable(self.x[p].double() / a[:, None], self.y[q].double() / b[:, None]) for p, q, a, b in parts
        ]
        return nx, ny, torch.cat(angles)

    def _by_angle(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Entries near r = +-1 from the table, at angles that are exact there."""
        table = self.table
        assert table is not None
        found: dict[Kernel, list[Tensor]] = {kind: [] for kind in self.kinds}
        for nx, ny, x in zip(*(v.split(_ENTRIES) for v in self._angles(i, j)), strict=True):
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
        nx, ny, x = self._angles(i, j)
        for sign in (1, -1):
            for which in (sign * x > 0).nonzero().squeeze(1).split(_ENTRIES):
                if len(which):
                    near = near_for(self.network, self.table, sign, self._pairs, self.x.dtype)
                    points = i[which], j[which]
                    exact = self._direct(*points) if near is None else self._near(near, nx[which], ny[which], x[which])
                    for kind, values in exact.items():
                        found[kind][which] = values.to(found[kind])
        return found

    def _near(self, near: NearSeries, nx: Tensor, ny: Tensor, x: Tensor) -> dict[Kernel, Tensor]:
        assert self.table is not None
        assert isinstance(self.network, DEQ)
        return near_entries(self.network, near, self.table, nx, ny, torch.sin(0.5 * math.pi * x), self.kinds)

    def _factors(self, level: Level, kind: Kernel, norms: Tensor, signed: bool) -> Tensor:
        assert self.table is not None
        if not self.table.one_function:
            return self.table.side(level, kind, norms, signed=signed)
        return level.series.weights(signed, norms.device).T.expand(-1, len(norms))

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
        parts = zip(*(v.split(self._at_once) for v in (i, j, a, b)), strict=True)
        dot = torch.cat([_dots(self.x[p], self.y[q], s, t) for p, q, s, t in parts])
        exact = pairwise(self.network, a.cpu(), b.cpu(), dot.cpu(), self.kinds, self.rates, check=False)
        return {kind: v.to(self.x.device, self.x.dtype) for kind, v in exact.items()}


def tile_shape(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return TILE.get(device.type, TILE["cpu"])


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
