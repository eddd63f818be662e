"""Rows of both sides and the tiles between them: looked up in a table, or entry by entry where it does not reach.

Near r = +-1 a rounded cosine knows half the digits of the angle, which is taken from the difference of the normalised
rows there.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from .._arrays import squared_norms
from .._chebyshev import Workspace, power_sum
from .._progress import track
from ..networks import Kernel
from ._limits import LIMITS
from .caps import Cap
from .pointwise import KernelSpec
from .table import Level, NormScale, Table, on_device
from .tabulate import one_thread, rounded_range, stay_alone, table_for

# ---- tiles -----------------------------------------------------------------------------------------------


TILE = {"cpu": (128, 1024), "cuda": (4096, 4096)}  # rows and columns: flat tiles lose little beside the diagonal


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


def fill_tiles(points: Points, target: Mapping[Any, Tensor], progress: bool | None) -> None:
    """Fill all tiles; on the CPU each thread has tiles of its own, so that no operation waits for another thread."""
    blocks = list(tiles_of(points.shape, tile_shape(points.x.device), points.symmetric))
    filler = _Filler(points, target)
    whole = torch.get_num_threads()
    threads = min(whole, len(blocks) // 2)
    if points.x.is_cuda or points.table is None or threads < 2:
        for block in track(blocks, len(blocks), "kernel", progress) if len(blocks) > 1 else blocks:
            filler.tile(block)
    else:
        with one_thread(), ThreadPoolExecutor(threads, initializer=stay_alone, initargs=(whole,)) as pool:
            for _ in track(pool.map(filler.tile, blocks), len(blocks), "kernel", progress):
                pass
    filler.evaluate_pending()


class _Filler:
    """Writes tiles into the matrices, and then the entries that the table has left open."""

    def __init__(self, points: Points, target: Mapping[Any, Tensor]) -> None:
        self.points, self.target = points, target
        self.open: list[tuple[Tensor, ...]] = []
        self.threads, self.lock = threading.local(), threading.Lock()

    def tile(self, block: tuple[slice, slice]) -> None:
        """Write one tile of every kernel, and its mirror image."""
        (rows, columns), points, table = block, self.points, self.points.table
        workspace = self.threads.__dict__.setdefault("workspace", Workspace())  # memory of this thread
        r = points.cosines(rows, columns, workspace)
        on_diagonal = points.symmetric and rows.start == columns.start
        if on_diagonal:
            r.triu_(1)  # the diagonal is written from the norms alone, exactly
        low, high = torch.stack(torch.aminmax(r)).tolist()
        largest = max(-low, high)
        mask = points.unsettled(rows, columns, r, largest)
        if mask is not None:
            i, j = (mask.triu_(1) if on_diagonal else mask).nonzero(as_tuple=True)
            self.open.append((i + rows.start, j + columns.start, r[i, j]))
            if sum(len(entries[0]) for entries in list(self.open)) > LIMITS.open_entries:
                self.evaluate_pending()
        if table is None:
            return
        if largest > table.reach:
            r.clamp_(-table.reach, table.reach)
        for kernel, values in points.lookup(rows, columns, r, workspace):
            if on_diagonal:  # a square, of which one triangle counts, and the rest
                square = values[:, : len(values)]
                square.copy_(torch.triu(square) + torch.triu(square, 1).T)
            self.target[kernel][rows, columns] = values
            if points.symmetric:
                self.target[kernel][columns, rows] = values.T

    def evaluate_pending(self) -> None:
        """Write the entries that were left open."""
        with self.lock:
            entries, self.open = self.open, []
        if entries:
            self.points.write_entries(self.target, *(torch.cat(part) for part in zip(*entries, strict=True)))


# ---- the rows and their entries --------------------------------------------------------------------------


def norm_range(*squares: Tensor) -> tuple[float, float, float]:
    """The smallest norm, and the range of those that are not so short that they are evaluated one by one."""
    ends = torch.stack([v for s in squares for v in torch.aminmax(s)]).sqrt().tolist()
    least = low = min(ends)
    high, short = max(ends), LIMITS.short_row
    if low < short * high:
        low = min(float(long.min()) for s in squares if len(long := s[s >= (short * high) ** 2])) ** 0.5
    return least, low, high


Lift = tuple[float, float]
"""A factor b and a constant c: rows x stand for sqrt(b) x with one more column, sqrt(c)."""


def driven(spec: KernelSpec, x: Tensor, y: Tensor | None) -> tuple[KernelSpec, Tensor, Tensor | None, Lift]:
    """Return a network with sigma_b2 = 1 and no bias, and how rows are lifted to have the same kernel with it.

    It is quicker: DEQs that differ in these variances share a table, a homogeneous network without a bias has a
    function of the angle alone, others are smooth in the norms at a fixed angle, and with the constant no row is near
    zero.
    """
    b, c = spec.network.drives
    longest = b * max(float(squared_norms(rows).max()) for rows in (x, y) if rows is not None)
    if (b, c) == (1.0, 0.0) or not max(c / LIMITS.long_bias, 1e-30) <= longest <= 1e30:
        return spec, x, y, (1.0, 0.0)
    return replace(spec, network=spec.network.varied(None, 1.0, 0.0)), x, y, (b, c)


class Points:
    """The rows of both sides with everything that is computed once per row.

    Lifted rows are rounded, which products bear. Angles of nearly parallel rows do not, and come from the given ones.
    """

    direct = LIMITS.direct_pairs

    def __init__(self, spec: KernelSpec, x: Tensor, y: Tensor | None, lift: Lift = (1.0, 0.0)) -> None:
        self.spec, self.lift, self.symmetric = spec, lift, y is None
        self.given = x, x if y is None else y
        square = squared_norms(x)
        self.squares = square, square if y is None else squared_norms(y)
        self.sx = lift[0] * square + lift[1]
        self.sy = self.sx if y is None else lift[0] * self.squares[1] + lift[1]
        if x.dtype == torch.float32 and any(bool(((s > 0) & (s < 1e-74)).any()) for s in (self.sx, self.sy)):
            self.given = self.given[0].double(), self.given[1].double()  # the inverses of such norms are no float32
        self.x = self._lifted(self.given[0])
        self.y = self.x if y is None else self._lifted(self.given[1])
        self.shape = len(self.x), len(self.y)
        self.pairs = len(self.x) * len(self.y) / (2 if self.symmetric else 1)
        self.wx = _inverse_norm(self.sx, self.x.dtype)
        self.wy = self.wx if self.symmetric else _inverse_norm(self.sy, self.x.dtype)
        self.table: Table | None = None
        self.trusted = -1.0  # cosines up to which the table settles an entry
        self.short: tuple[Tensor, Tensor] | None = None  # rows that it does not cover
        self._sides: dict[tuple[object, ...], Tensor] = {}  # of all threads

    def _lifted(self, rows: Tensor) -> Tensor:
        b, c = self.lift
        scaled = rows if b == 1.0 else math.sqrt(b) * rows
        return torch.cat([scaled, rows.new_full((len(rows), 1), math.sqrt(c))], dim=1) if c else scaled

    def find_table(self, given: Table | None) -> None:
        """Use the given table, the cached one for such norms, or none where entry by entry is cheaper."""
        least, low, high = norm_range(self.sx, self.sy)
        self.ends = least, high
        network, single = self.spec.network, self.x.dtype == torch.float32
        if high == 0.0:
            return
        if given is not None and given.holds(low, high) and all(k in given.kernels for k in self.spec.names):
            self.table = given
        elif self.pairs > self.direct:
            scale = self.norm_scale(*self._usual(low, high))
            if given is not None and not scale.single:
                scale = rounded_range(network, min(low, given.norms.low), max(high, given.norms.high))
            self.table = table_for(self.spec, scale, self.pairs, self.x.dtype)
        if self.table is not None:
            # cosines beyond are rounded too much for the angle of a kinked kernel
            known = 1.0 - (5e-4 if single else 1e-6)
            self.trusted = min(self.table.reach, known) if network.kinked else self.table.reach
            left, right = (self.table.outside(s, self.ends) for s in (self.sx, self.sy))
            self.short = None if left is None or right is None else (left, right)

    def _usual(self, low: float, high: float) -> tuple[float, float]:
        """The range of most norms, if few rows are much longer or shorter: those are evaluated one by one."""
        if self.spec.network.homogeneous or high <= LIMITS.usual_norms * low:
            return low, high
        norms = torch.cat([self.sx, self.sy]).sqrt()
        middle = float(norms[norms > 0].median())
        start, end = (middle * LIMITS.usual_norms**power for power in (-0.5, 0.5))
        inside = norms[(norms >= start) & (norms <= end)]
        if len(inside) < (1.0 - LIMITS.odd_rows) * len(norms):
            return low, high
        return float(inside.min()), float(inside.max())

    def norm_scale(self, low: float, high: float) -> NormScale:
        """The range of norms for which a table is built."""
        return rounded_range(self.spec.network, low, high, 3e-8 if self.x.dtype == torch.float32 else 1e-14)

    # -- tiles -----------------------------------------------------------------------------------------------
    def cosines(self, rows: slice, columns: slice, workspace: Workspace) -> Tensor:
        """Between these rows and columns; they lie in the workspace."""
        left, right = self.x[rows], self.y[columns]
        left = torch.mul(left, self.wx[rows, None], out=workspace("unit", left))
        return products(left, right, workspace("r", left, (len(left), len(right)))).mul_(self.wy[columns])

    def unsettled(self, rows: slice, columns: slice, r: Tensor, largest: float) -> Tensor | None:
        """Which entries of a tile are left to :meth:`write_entries`, if any."""
        mask = None
        if largest > self.trusted and self.trusted < 1.0:  # else cosines beyond are rounding
            mask = r.abs() > self.trusted
        if self.short is not None:
            short = self.short[0][rows, None] | self.short[1][columns]
            mask = short if mask is None else mask | short
        return mask

    def lookup(self, rows: slice, columns: slice, r: Tensor, workspace: Workspace) -> Iterator[tuple[Any, Tensor]]:
        """Tiles of all kernels at these cosines; each lies in the workspace until the next one."""
        table = self.table
        assert table is not None
        for kernel in self.spec.names:
            out = self.series(table, table.level(kernel, r.dtype), kernel, rows, columns, r, workspace)
            if table.homogeneous:
                out.mul_(self.sx[rows, None].sqrt().to(r.dtype)).mul_(self.sy[columns].sqrt().to(r.dtype))
            yield kernel, out

    def series(
        self,
        table: Table,
        level: Level,
        kernel: Kernel,
        rows: slice,
        columns: slice,
        r: Tensor,
        workspace: Workspace,
        in_norm: bool = False,
    ) -> Tensor:
        """The sum of a level at a tile, over both norms if homogeneous; ``in_norm``: its derivative in ||x||."""
        if not table.one_function:
            signs = on_device(level.signs, r.device).to(r.dtype)
            left = self._side(level, kernel, rows, self.sx, in_norm).T.contiguous().mul_(signs)
            return level.tile(left, self._side(level, kernel, columns, self.sy), r, workspace)
        powers = table.powers(level, kernel) if r.dtype == torch.float64 and not r.is_cuda else None
        if powers is None:
            return level.tile(table.scalars(level, kernel).to(r), None, r, workspace)
        return power_sum(powers, level.variable(r, workspace), workspace)

    def _side(self, level: Level, kernel: Kernel, which: slice, squares: Tensor, in_norm: bool = False) -> Tensor:
        """The norm factors of some points of one side, (rank, points), stored while they are few."""
        wide = tile_shape(self.x.device)[1]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = kernel, level.order, in_norm, id(squares), first
        stored = self._sides.get(key)
        if stored is None:
            assert self.table is not None
            factors = self.table.side_slope if in_norm else self.table.side
            stored = factors(level, kernel, squares[first : first + wide].sqrt()).to(self.x.dtype)
            if sum(side.numel() for side in list(self._sides.values())) + stored.numel() > LIMITS.held_numbers:
                self._sides.clear()
            self._sides[key] = stored
        return stored[:, which.start - first : which.stop - first]

    # -- single entries --------------------------------------------------------------------------------------
    def write_entries(self, target: Mapping[Any, Tensor], i: Tensor, j: Tensor, r: Tensor | None = None) -> None:
        """Entries near r = +-1, beyond the reach of the table, of rows too short for it, or all if there is none.

        ``r``: their cosines, where they are known.
        """
        at_once = 2 * LIMITS.pairs_at_once
        cosines = torch.full_like(i, 2.0, dtype=self.sx.dtype) if r is None else r.to(self.sx.dtype)
        for p, q, cosine in zip(*(v.split(at_once) for v in (i, j, cosines)), strict=True):
            for which, kernels in self.entries(p, q, cosine):
                for kernel, values in kernels.items():
                    target[kernel][p[which], q[which]] = values.to(target[kernel])
                    if self.symmetric:
                        target[kernel][q[which], p[which]] = values.to(target[kernel])

    def entries(self, i: Tensor, j: Tensor, r: Tensor) -> Iterator[tuple[Tensor, Mapping[Any, Tensor]]]:
        """Groups of entries and their kernels: by table, by series of the layer at equilibrium, or one by one."""
        table = self.table
        alone = torch.full_like(i, table is None, dtype=torch.bool)
        if self.short is not None:
            alone |= self.short[0][i] | self.short[1][j]
        if table is not None:
            x = self._angles(i, j, r)
            for sign in (1, -1):
                which = (~alone & (sign * x > 0)).nonzero().squeeze(1)
                if not len(which):
                    continue
                known, kernels = self._near(table, sign, i[which], j[which], x[which])
                alone[which] = True
                alone[which[known]] = False
                yield which[known], kernels
        if bool(alone.any()):
            p, q = i[alone], j[alone]
            yield alone.nonzero().squeeze(1), self.spec.pairwise(self.sx[p], self.sy[q], self.dots(p, q))

    def _angles(self, i: Tensor, j: Tensor, r: Tensor) -> Tensor:
        """2 arcsin(r) / pi, from the rows where a rounded cosine would not do."""
        x = torch.asin(r.clamp(-1.0, 1.0)).mul_(2.0 / math.pi)
        smooth = not self.spec.network.kinked and self.ends[1] < LIMITS.steep_scale and self.x.dtype == torch.float64
        near = (r.abs() > (1.0 if smooth else 1.0 - 1e-4 if r.dtype == self.x.dtype else 0.99)).nonzero().squeeze(1)
        x[near] = self._of_pairs(functools.partial(_angle_variable, self.lift), i[near], j[near])
        return x

    def _near(self, table: Table, sign: int, i: Tensor, j: Tensor, x: Tensor) -> tuple[Tensor, dict[Kernel, Tensor]]:
        """Which of some entries near r = ``sign`` have a series, and their kernels."""
        names, everyone = self.spec.names, torch.arange(len(x), device=x.device)
        nx, ny = self.sx[i].sqrt(), self.sy[j].sqrt()
        if table.reach == 1.0:
            return everyone, {kernel: table.at_angles(kernel, nx, ny, x) for kernel in names}
        if self.pairs < LIMITS.many_pairs or self.spec.network.bias_variance:
            return everyone[:0], dict.fromkeys(names, nx[:0])
        with one_thread():
            cap = table.once(("cap", sign), lambda: Cap(self.spec.detached, table, sign))
            angle = 0.5 * math.pi * (1.0 - x.abs())
            roots = {k: (self._root(table, k, self.sx)[i] * self._root(table, k, self.sy)[j]).cpu() for k in names}
            known, kernels = cap.kernels(names, nx.cpu(), ny.cpu(), angle.cpu(), roots)
            return known.to(x.device), kernels

    def _root(self, table: Table, kernel: Kernel, squares: Tensor) -> Tensor:
        """The roots of a kernel of all rows of one side with themselves, of those that the table covers."""
        key = kernel, id(squares)
        if key not in self._sides:
            self._sides[key] = table.diagonal(kernel, squares.sqrt()).clamp_min(0.0).sqrt()
        return self._sides[key]

    def dots(self, i: Tensor, j: Tensor) -> Tensor:
        """Inner products of pairs of lifted rows, exact for duplicates."""
        return self.lift[0] * self._of_pairs(_dots, i, j) + self.lift[1]

    def _of_pairs(self, function: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor], i: Tensor, j: Tensor) -> Tensor:
        """A function of pairs of given rows and their squared norms, a few rows at a time."""
        (x, y), (sx, sy) = self.given, self.squares
        at_once = max(64, LIMITS.held_numbers // (8 * max(1, x.shape[1])))
        chunks = zip(i.split(at_once), j.split(at_once), strict=True)
        return torch.cat([function(x[p].double(), y[q].double(), sx[p], sy[q]) for p, q in chunks])


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Compute x y'; in float32 on a GPU in sums of 208 columns: a GPU adds up one by one, 784 are wrong by 1e-6."""
    short = 208 if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s.clamp_min(1e-300).rsqrt(), torch.zeros_like(s)).to(dtype)


def _angle_variable(lift: Lift, x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """2 arcsin(r) / pi of lifted rows, from the chord between the unit rows and the nearer end: exact near r = +-1."""
    b, c = lift
    norms = [(b * s + c).sqrt() for s in (sx, sy)]
    u, v = (math.sqrt(b) * rows / norm[:, None] for rows, norm in zip((x, y), norms, strict=True))
    last, other = (math.sqrt(c) / norm for norm in norms)
    sign = torch.where((u * v).sum(1) + last * other < 0, -1.0, 1.0).to(u)
    chord = ((u - sign[:, None] * v).square().sum(1) + (last - sign * other).square()).sqrt()
    return sign * (1.0 - torch.asin(0.5 * chord).mul_(4.0 / math.pi))


def _dots(x: Tensor, y: Tensor, sx: Tensor, sy: Tensor) -> Tensor:
    """Inner products of pairs of rows; where they nearly coincide from their difference: exact for duplicates."""
    dot, half = (x * y).sum(1), 0.5 * (sx + sy)
    sign = torch.where(dot < 0, -1.0, 1.0).to(dot)
    near = half - dot.abs() <= 1e-6 * half
    apart = ((x[near] - sign[near, None] * y[near]) ** 2).sum(1)
    dot[near] = sign[near] * (half[near] - 0.5 * apart)
    return dot
