"""Tiles of kernel matrices: cosines of two blocks of rows, looked up in the table, and what the table does not hold.

Near r = +-1 a kinked kernel varies with the angle, of which a rounded cosine knows half the digits: there the angle is
taken from the difference of the normalised rows. Entries beyond the table's reach are evaluated one by one.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from .._chebyshev import Room
from ..networks import Kernel, Network
from .lookup import Level, Table, on_device
from .pointwise import pairwise
from .tabulate import near_for, one_thread

__all__ = ["TILE", "Points", "fill_tiles", "products", "tile_shape", "tiles_of"]

TILE = {"cpu": (128, 1024), "cuda": (4096, 4096)}  # rows and columns: flat tiles lose little beside the diagonal
_NUMBERS = 1 << 19  # in the pairs of rows that are held at once
_ENTRIES = 1 << 13  # that are evaluated at once, one by one
_OPEN = 1 << 18  # entries that wait for it
_DEPTH = 208  # columns in a sum of float32
_HELD = 1 << 22  # numbers in the norm factors that are kept
_TRUSTED = {torch.float64: 1.0 - 1e-6, torch.float32: 1.0 - 5e-4}  # cosines whose angle is known well enough


# ---- all tiles -------------------------------------------------------------------------------------------


def tile_shape(device: torch.device) -> tuple[int, int]:
    """Rows and columns of a tile."""
    return TILE.get(device.type, TILE["cpu"])


def tiles_of(shape: Sequence[int], sizes: tuple[int, int], symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of each tile; of a symmetric matrix those that reach above the diagonal."""
    high, wide = sizes
    for i in range(0, shape[0], high):
        j = i if symmetric else 0
        while j < shape[1]:
            end = min(j - j % wide + wide, shape[1])
            yield slice(i, min(i + high, shape[0])), slice(j, end)
            j = end


def fill_tiles(
    points: Points, target: Mapping[Kernel, Tensor], blocks: Iterable[tuple[slice, slice]], count: int
) -> None:
    """Tile after tile; on the CPU each thread has tiles of its own, so that no operation waits for another thread."""
    threads = min(torch.get_num_threads(), count // 2)
    if points.x.is_cuda or points.table is None or threads < 2:
        _Worker(points, target).fill(blocks)
        return
    shared = _Shared(iter(blocks))
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(_Worker(points, target).fill, shared) for _ in range(threads)]:
            done.result()


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, items: Iterator[tuple[slice, slice]]) -> None:
        self.items, self.lock = items, threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> tuple[slice, slice]:
        with self.lock:
            return next(self.items)


class _Worker:
    """What one thread writes into the matrices, and the entries that it has left open so far."""

    def __init__(self, points: Points, target: Mapping[Kernel, Tensor]) -> None:
        self.points, self.target, self.room = points, target, Room()
        self.open: list[tuple[Tensor, Tensor]] = []

    def fill(self, blocks: Iterable[tuple[slice, slice]]) -> None:
        """Some of the tiles, and at last what is open."""
        for rows, columns in blocks:
            self._tile(rows, columns)
            if sum(len(i) for i, _ in self.open) > _OPEN:
                self._settle()
        self._settle()

    def _tile(self, rows: slice, columns: slice) -> None:
        points, table = self.points, self.points.table
        r = points.cosines(rows, columns, self.room)
        on_diagonal = points.symmetric and rows.start == columns.start
        if on_diagonal:
            r.triu_(1)  # the diagonal is written from the norms alone, exactly
        low, high = torch.stack(torch.aminmax(r)).tolist()
        largest = max(-low, high)
        mask = points.unsettled(rows, columns, r, largest)
        if mask is not None:
            i, j = (mask.triu_(1) if on_diagonal else mask).nonzero(as_tuple=True)
            self.open.append((i + rows.start, j + columns.start))
        if table is None:
            return
        if largest > table.reach:
            r.clamp_(-table.reach, table.reach)
        for kernel in points.kernels:
            values = points.lookup(kernel, rows, columns, r, largest, self.room)
            if on_diagonal:  # a square, of which one triangle counts, and the rest
                square = values[:, : len(values)]
                square.copy_(torch.triu(square) + torch.triu(square, 1).T)
            self.target[kernel][rows, columns] = values
            if points.symmetric:
                self.target[kernel][columns, rows] = values.T

    def _settle(self) -> None:
        """Write the entries that the table left open: few, so all at once."""
        if not self.open:
            return
        i, j = (torch.cat(part) for part in zip(*self.open, strict=True))
        self.open.clear()
        self.points.write_entries(self.target, i, j)


# ---- the rows and their entries --------------------------------------------------------------------------


class Points:
    """The rows of both sides with everything that is computed once per row."""

    def __init__(
        self,
        network: Network,
        kernels: tuple[Kernel, ...],
        rates: Sequence[float] | None,
        table: Table | None,
        x: Tensor,
        y: Tensor,
        sx: Tensor,
        sy: Tensor,
        *,
        symmetric: bool,
        least: float = 0.0,
    ) -> None:
        """``least``: no norm is below."""
        self.network, self.kernels, self.rates, self.table = network, kernels, rates, table
        self.x, self.y, self.sx, self.sy = x, y, sx, sy
        self.symmetric = symmetric
        self.wx = _inverse_norm(sx, x.dtype)
        self.wy = self.wx if symmetric else _inverse_norm(sy, x.dtype)
        self.trusted = -1.0  # cosines up to which the table settles an entry
        self.short: tuple[Tensor, Tensor] | None = None  # rows that it does not cover
        if table is not None:
            self.trusted = min(table.reach, _TRUSTED[x.dtype]) if network.kinked else table.reach
            left, right = (table.shorter(s, least) for s in (sx, sy))
            self.short = None if left is None or right is None else (left, right)
        self._pairs = len(x) * len(y) / (2 if symmetric else 1)
        self._at_once = max(64, _NUMBERS // max(1, x.shape[1]))
        self._held: dict[tuple[object, ...], Tensor] = {}  # by all threads

    # -- tiles -----------------------------------------------------------------------------------------------
    def cosines(self, rows: slice, columns: slice, room: Room) -> Tensor:
        """Between these rows and columns; they lie in the room."""
        left, right = self.x[rows], self.y[columns]
        left = torch.mul(left, self.wx[rows, None], out=room("unit", left))
        return products(left, right, room("r", left, (len(left), len(right)))).mul_(self.wy[columns])

    def unsettled(self, rows: slice, columns: slice, r: Tensor, largest: float) -> Tensor | None:
        """Which entries of a tile are left to :meth:`write_entries`, if any."""
        mask = None
        if largest > self.trusted and self.trusted < 1.0:  # else cosines beyond are rounding
            mask = r.abs() > self.trusted
        if self.short is not None:
            short = self.short[0][rows, None] | self.short[1][columns]
            mask = short if mask is None else mask | short
        return mask

    def lookup(self, kernel: Kernel, rows: slice, columns: slice, r: Tensor, largest: float, room: Room) -> Tensor:
        """A tile of the table, at cosines of at most ``largest``; it lies in the room."""
        table = self.table
        assert table is not None
        level = table.level(kernel, largest, r.dtype)
        if not table.one_function:
            signs = on_device(level.signs, r.device).to(r.dtype)
            left = self._side(level, kernel, rows, self.sx).T.contiguous().mul_(signs)
            return level.tile(left, self._side(level, kernel, columns, self.sy), r, room)
        out = level.tile(table.scalars(level, kernel).to(r), None, r, room)
        if table.homogeneous:
            out.mul_(self.sx[rows, None].sqrt().to(r.dtype)).mul_(self.sy[columns].sqrt().to(r.dtype))
        return out

    def _side(self, level: Level, kernel: Kernel, which: slice, squares: Tensor) -> Tensor:
        """The norm factors of some points of one side, (rank, points), kept while they are few."""
        wide = tile_shape(self.x.device)[1]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = kernel, level.reach, id(squares), first
        found = self._held.get(key)
        if found is None:
            assert self.table is not None
            found = self.table.side(level, kernel, squares[first : first + wide].sqrt()).to(self.x.dtype)
            if sum(kept.numel() for kept in list(self._held.values())) + found.numel() > _HELD:
                self._held.clear()
            self._held[key] = found
        return found[:, which.start - first : which.stop - first]

    # -- single entries --------------------------------------------------------------------------------------
    def write_entries(self, target: Mapping[Kernel, Tensor], i: Tensor, j: Tensor) -> None:
        """Entries near r = +-1, beyond the reach of the table, of rows too short for it, or all if there is none."""
        for p, q in zip(i.split(_ENTRIES), j.split(_ENTRIES), strict=True):
            for which, found in self._entries(p, q):
                for kernel, values in found.items():
                    target[kernel][p[which], q[which]] = values.to(target[kernel])
                    if self.symmetric:
                        target[kernel][q[which], p[which]] = values.to(target[kernel])

    def _entries(self, i: Tensor, j: Tensor) -> Iterator[tuple[Tensor, dict[Kernel, Tensor]]]:
        """Some of them, and their kernels: from the table, from series of the layer at equilibrium, or one by one."""
        table = self.table
        alone = torch.full_like(i, table is None, dtype=torch.bool)
        if self.short is not None:
            alone |= self.short[0][i] | self.short[1][j]
        if table is not None:
            nx, ny, x = self.sx[i].sqrt(), self.sy[j].sqrt(), self._of_pairs(_angle_variable, i, j)
            for sign in (1, -1):
                which = (~alone & (sign * x > 0)).nonzero().squeeze(1)
                found = self._near(table, sign, nx[which], ny[which], x[which]) if len(which) else {}
                if found is None:
                    alone[which] = True
                else:
                    yield which, found
        if bool(alone.any()):
            yield alone.nonzero().squeeze(1), self._direct(i[alone], j[alone])

    def _near(self, table: Table, sign: int, nx: Tensor, ny: Tensor, x: Tensor) -> dict[Kernel, Tensor] | None:
        """Entries near r = ``sign``, if there is a series for them."""
        if table.reach == 1.0:
            return {kernel: table.at_angles(kernel, nx, ny, x) for kernel in self.kernels}
        series = near_for(self.network, table, sign, self._pairs, self.x.dtype)
        return None if series is None else series.kernels(table, nx, ny, torch.sin(0.5 * math.pi * x), self.kernels)

    def _direct(self, i: Tensor, j: Tensor) -> dict[Kernel, Tensor]:
        """Entries one by one, from inner products in double precision."""
        dot = self._of_pairs(_dots, i, j)
        return pairwise(self.network, self.sx[i], self.sy[j], dot, self.kernels, self.rates, check=False)

    def _of_pairs(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], i: Tensor, j: Tensor) -> Tensor:
        """A function of pairs of rows and their squared norms, a few rows at a time."""
        parts = zip(i.split(self._at_once), j.split(self._at_once), strict=True)
        return torch.cat([function(self.x[p].double(), self.y[q].double(), self.sx[p], self.sy[q]) for p, q in parts])


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """x y'; in float32 on a GPU, which adds up one by one, in short sums: a long one of 784 is wrong by 1e-6."""
    short = _DEPTH if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s.clamp_min(1e-300).rsqrt(), torch.zeros_like(s)).to(dtype)


def _angle_variable(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """2 arcsin(r) / pi, from the chord between the unit rows and the nearer end: exact near r = +-1."""
    u, v = x / sx.sqrt()[:, None], y / sy.sqrt()[:, None]
    sign = torch.where((u * v).sum(1) < 0, -1.0, 1.0).to(u)
    chord = (u - sign[:, None] * v).square().sum(1).sqrt()
    return sign * (1.0 - torch.asin(0.5 * chord).mul_(4.0 / math.pi))


def _dots(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """Inner products of pairs of rows; where they nearly coincide from their difference: exact for duplicates."""
    dot, half = (x * y).sum(1), 0.5 * (sx + sy)
    sign = torch.where(dot < 0, -1.0, 1.0).to(dot)
    near = half - dot.abs() <= 1e-6 * half
    if bool(near.any()):
        apart = ((x[near] - sign[near, None] * y[near]) ** 2).sum(1)
        dot[near] = sign[near] * (half[near] - 0.5 * apart)
    return dot
