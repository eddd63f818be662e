"""Rows of both sides and the tiles between them: looked up in a table, or entry by entry where it does not reach.

Near r = +-1 a rounded cosine knows half the digits of the angle, which is taken from the difference of the normalised
rows there.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arrays import squared_norms
from .._caches import cached
from .._chebyshev import Workspace, power_sum, series_sum
from .._progress import track
from ..networks import Kernel, Network
from ._limits import LIMITS
from .caps import Cap, ClosePairs
from .pointwise import KernelSpec
from .table import Level, NormScale, Table, on_device
from .tabulate import Unresolved, one_thread, rounded_range, stay_alone, table_for

# ---- tiles -----------------------------------------------------------------------------------------------


# rows and columns: flat tiles lose little beside the diagonal, and four arrays of this size fit into a core's cache
TILE = {"cpu": (128, 512), "cuda": (4096, 4096)}


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
    if points.odd:
        points.fill_odd(target)


def fill_blocks(points: Points, target: Mapping[Any, Tensor], blocks: Sequence[tuple[slice, slice]]) -> None:
    """Fill some blocks, with as many rows as a tile at most; of a symmetric matrix those that begin on the diagonal."""
    filler, wide = _Filler(points, target), tile_shape(points.x.device)[1]
    for rows, columns in blocks:
        ends = *range(columns.start // wide * wide + wide, columns.stop, wide), columns.stop
        for start, end in itertools.pairwise((columns.start, *ends)):
            filler.tile((rows, slice(start, end)))
    filler.evaluate_pending()


class _Filler:
    """Writes tiles into the matrices, and then the entries that the table has left open."""

    def __init__(self, points: Points, target: Mapping[Any, Tensor]) -> None:
        self.points, self.target = points, target
        self.open: list[tuple[Tensor, ...]] = []
        self.threads, self.lock = threading.local(), threading.Lock()

    def tile(self, block: tuple[slice, slice]) -> None:
        """Write one tile of every kernel, and its mirror image."""
        (rows, columns), points = block, self.points
        workspace = self.threads.__dict__.setdefault("workspace", Workspace())  # memory of this thread
        r = points.cosines(rows, columns, workspace)
        on_diagonal = points.symmetric and rows.start == columns.start
        if on_diagonal:
            r.triu_(1)  # the diagonal is written from the norms alone, exactly
        low, high = torch.stack(torch.aminmax(r)).tolist()
        panels, main, mask = list[Panel](), True, points.unsettled(rows, columns, r, max(-low, high))
        if mask is not None:
            mask = mask.triu_(1) if on_diagonal else mask
            lack = points.lack(rows, columns, r, workspace)
            covered = int(mask.sum()) + (len(r) * (len(r) + 1) // 2 if on_diagonal else 0)
            panels = points.panels(rows, columns, mask, lack, workspace)
            main = not panels or covered < r.numel()
            i, j = mask.nonzero(as_tuple=True)
            entries = i + rows.start, j + columns.start, lack[i, j]
        reach = 1.0 if points.table is None else points.table.reach
        if main and max(-low, high) > reach:
            r.clamp_(-reach, reach)
        ends = (max(low, -reach), min(high, reach)) if main else None
        for kernel, values in points.lookup(rows, columns, r, panels, ends, workspace) if points.table else ():
            out = self.target[kernel]
            out[rows, columns] = values
            if points.symmetric:
                # read from there: in the workspace, rows are a power of two apart, which caches do not like
                rest = slice(rows.stop, columns.stop) if on_diagonal else columns
                out[rest, rows] = out[rows, rest].T
            if on_diagonal:  # a square, of which one triangle counts
                square = out[rows, rows]
                square.copy_(torch.triu(square) + torch.triu(square, 1).T)
        if mask is not None:  # over what was written
            with self.lock:
                self.open.append(entries)
                many = sum(len(part[0]) for part in self.open) > LIMITS.open_entries
            if many:
                self.evaluate_pending()

    def evaluate_pending(self) -> None:
        """Write the entries that were left open."""
        with self.lock:
            entries, self.open = self.open, []
        if entries:
            self.points.write_entries(self.target, *(torch.cat(part) for part in zip(*entries, strict=True)))


# ---- the rows and their entries --------------------------------------------------------------------------


def norm_range(*squares: Tensor) -> tuple[float, float, float]:
    """The smallest norm, and the range of those that are not so short that they are evaluated one by one."""
    every = torch.cat(squares).sqrt()
    least, high = torch.stack(torch.aminmax(every)).tolist()
    short = LIMITS.short_row * high
    return least, least if least >= short else float(every[every >= short].min()), high


Lift = tuple[float, float]
"""A factor b and a constant c: rows x stand for sqrt(b) x with one more column, sqrt(c)."""

Given = tuple[Table | None, Lift]
"""A table, and how rows are lifted for it."""

Ends = tuple[float, float] | None
"""The least and the largest cosine that a table is asked for, if it is."""


def lift_of(network: Network, longest: float) -> Lift:
    """Return how rows, of squared norms up to ``longest``, are lifted for a network with sigma_b2 = 1 and no bias.

    It is quicker: DEQs that differ in these variances share a table, a homogeneous network without a bias has a
    function of the angle alone, others are smooth in the norms at a fixed angle, and with the constant no row is near
    zero.
    """
    b, c = network.drives
    return (b, c) if max(c / LIMITS.long_bias, 1e-30) <= b * longest <= 1e30 else (1.0, 0.0)


@cached(256)
def lifted(spec: KernelSpec, lift: Lift) -> KernelSpec:
    """Return the kernels as functions of lifted rows."""
    return spec if lift == (1.0, 0.0) else replace(spec, network=spec.network.varied(None, 1.0, 0.0))


class Panel(NamedTuple):
    """Many entries of a tile between two angles, with series of their own."""

    levels: Mapping[Kernel, Level]
    where: Tensor
    start: float
    end: float

    def variable(self, angle: Tensor, workspace: Workspace) -> Tensor:
        """Twice the variable of the series; in the workspace."""
        x2 = torch.sub(angle, 0.5 * (self.start + self.end), out=workspace("x2", angle))
        return x2.mul_(4.0 / (self.end - self.start)).clamp_(-2.0, 2.0)


class Points:
    """The rows of both sides with everything that is computed once per row; they are lifted in thought only.

    Parameters
    ----------
    spec : KernelSpec
        The kernels.
    x, y : tensors of shape (n, p) and (m, p)
        The rows; without ``y`` the matrix is symmetric.
    lift : (float, float), optional
        How rows are lifted; decided by their norms unless it is given.
    """

    direct = LIMITS.direct_pairs

    def __init__(self, spec: KernelSpec, x: Tensor, y: Tensor | None, lift: Lift | None = None) -> None:
        square, self.symmetric = squared_norms(x), y is None
        self.squares = square, square if y is None else squared_norms(y)
        if lift is None:
            lift = lift_of(spec.network, float(torch.cat(self.squares).max()))
        self.lift, (b, c) = lift, lift
        self.spec = lifted(spec, lift)
        self.sx = b * square + c
        self.sy = self.sx if y is None else b * self.squares[1] + c
        if x.dtype == torch.float32 and any(bool(((s > 0) & (s < 1e-74)).any()) for s in (self.sx, self.sy)):
            x, y = x.double(), None if y is None else y.double()  # the inverses of such norms are no float32
        self.x, self.y = x, x if y is None else y
        self.shape = len(self.x), len(self.y)
        self.pairs = len(self.x) * len(self.y) / (2 if self.symmetric else 1)
        self.wx = _inverse_norm(self.sx, self.x.dtype)
        self.wy = self.wx if self.symmetric else _inverse_norm(self.sy, self.x.dtype)
        self.table: Table | None = None
        self.trusted = -1.0  # cosines up to which the table settles an entry
        self.short: tuple[Tensor, Tensor] | None = None  # rows that it does not cover
        self.odd = False  # whether these have a table of their own
        self._sides: dict[tuple[object, ...], Tensor] = {}  # of all threads

    def find_table(self, ready: Given, whole: bool = False) -> None:
        """Use the table that is ready, the cached one for such norms, or none where entry by entry is cheaper.

        ``whole``: all rows share a table, also if a few are much longer or shorter than the others.
        """
        least, low, high = norm_range(self.sx, self.sy)
        self.ends = least, high
        network, single = self.spec.network, self.x.dtype == torch.float32
        if high == 0.0:
            return
        given = ready[0] if ready[1] == self.lift else None
        if given is not None and given.holds(low, high) and given.has(self.spec.names):
            self.table = given
        elif self.pairs > self.direct:
            for ratio, few in ((math.inf, 0.0),) if whole else LIMITS.usual_norms:
                usual = self._usual(low, high, ratio, few)
                self.odd, scale = usual != (low, high), self.norm_scale(*usual)
                if given is not None and not scale.single:
                    scale = rounded_range(network, min(low, given.norms.low), max(high, given.norms.high))
                self.table = table_for(self.spec, scale, self.pairs, self.x.dtype)
                if self.table is not None:
                    break
        if self.table is not None:
            # cosines beyond are rounded too much for the angle of a kinked kernel
            known = 1.0 - (5e-4 if single else 1e-6)
            self.trusted = min(self.table.reach, known) if network.kinked else self.table.reach
            left, right = self.table.outside(self.sx, self.ends), self.table.outside(self.sy, self.ends)
            self.short = None if left is None or right is None else (left, right)
        self.odd &= self.short is not None

    def _usual(self, low: float, high: float, ratio: float, few: float) -> tuple[float, float]:
        """The range of most norms, if few rows are much longer or shorter: those have a table of their own."""
        if self.spec.network.homogeneous or high <= ratio * low:
            return low, high
        norms = torch.cat([self.sx, self.sy]).sqrt()
        middle = float(norms[norms > 0].median())
        start, end = (middle * ratio**power for power in (-0.5, 0.5))
        inside = norms[(norms >= start) & (norms <= end)]
        if len(inside) < (1.0 - few) * len(norms):
            return low, high
        return float(inside.min()), float(inside.max())

    def norm_scale(self, low: float, high: float) -> NormScale:
        """The range of norms for which a table is built."""
        return rounded_range(self.spec.network, low, high, 3e-8 if self.x.dtype == torch.float32 else 1e-14)

    def fill_odd(self, target: Mapping[Any, Tensor]) -> None:
        """Write the rows and columns of points that the table of the others does not cover."""
        assert self.short is not None
        (rows, columns), (others, rest) = (
            [which.nonzero().squeeze(1) for which in sides] for sides in (self.short, [~s for s in self.short])
        )
        blocks = [(rows, rest), (rows, columns), *([] if self.symmetric else [(others, columns)])]
        table = None
        for i, j in blocks:
            if not len(i) or not len(j):
                continue
            y = None if self.symmetric and j is columns else self.y[j]
            points = type(self)(self.spec, self.x[i], y, self.lift)
            points.find_table((table, self.lift), whole=True)
            table = points.table
            found = {name: values.new_empty(points.shape) for name, values in target.items()}
            fill_tiles(points, found, False)
            for name, values in found.items():
                target[name][i[:, None], j] = values
                if self.symmetric:
                    target[name][j[:, None], i] = values.T

    # -- tiles -----------------------------------------------------------------------------------------------
    def cosines(self, rows: slice, columns: slice, workspace: Workspace) -> Tensor:
        """Between these rows and columns; they lie in the workspace, beside the share of the given rows in them."""
        (b, c), left, right = self.lift, self.x[rows], self.y[columns]
        left = torch.mul(left, math.sqrt(b) * self.wx[rows, None], out=workspace("unit", left))
        given = products(left, right, workspace("given", left, (len(left), len(right))))
        given.mul_(math.sqrt(b) * self.wy[columns])
        if not c:
            return given
        return torch.addcmul(given, c * self.wx[rows, None], self.wy[columns], out=workspace("r", given))

    def lack(self, rows: slice, columns: slice, r: Tensor, workspace: Workspace) -> Tensor:
        """What a tile of cosines lacks of +-1, with their signs; in the workspace.

        With g the share of the given rows in r, t that in a squared norm and r = g + e e', e^2 = 1 - t, the squared
        sine is t + t' - t t' - g (r + e e'): beside a large bias nothing cancels.
        """
        c, given, out = self.lift[1], workspace("given", r), workspace("lack", r)
        if not c:
            return torch.abs(r, out=out).neg_().add_(1.0).clamp_min_(0.0).copysign_(r)
        t, other = (share[which] for share, which in zip(self.shares, (rows, columns), strict=True))
        torch.addcmul(r, c * self.wx[rows, None], self.wy[columns], out=out).mul_(given).neg_()
        out.add_(t[:, None]).addcmul_((1.0 - t)[:, None], other)
        return out.clamp_min_(0.0).div_(torch.abs(r, out=given).add_(1.0)).copysign_(r)

    def unsettled(self, rows: slice, columns: slice, r: Tensor, largest: float) -> Tensor | None:
        """Which entries of a tile the table leaves to series of nearly parallel points, or to single entries."""
        beyond = r.abs() > self.trusted if largest > self.trusted and self.trusted < 1.0 else None  # else by rounding
        if self.short is None or (self.odd and beyond is None):
            return beyond
        short = self.short[0][rows, None] | self.short[1][columns]
        if beyond is None:
            return short
        return beyond & ~short if self.odd else beyond | short

    @functools.cached_property
    def capped(self) -> bool:
        """Whether nearly parallel points have series of their own."""
        few = self.pairs < LIMITS.many_pairs
        return self.table is not None and self.table.reach < 1.0 and not few and not self.spec.network.biased

    def cap(self, sign: int) -> Cap:
        """The series near r = ``sign``."""
        table = self.table
        assert table is not None
        return table.once(("cap", sign), lambda: Cap(self.spec.detached, table, sign))

    @functools.cached_property
    def shares(self) -> tuple[Tensor, Tensor]:
        """The shares of the given rows in the squared norms of the lifted ones."""
        (b, c), sides = self.lift, zip(self.squares, (self.sx, self.sy), strict=True)
        left, right = ((b * given / s.clamp_min(1e-300) if c else torch.ones_like(s)) for given, s in sides)
        return left.to(self.x.dtype), right.to(self.x.dtype)

    @functools.cached_property
    def blurs(self) -> tuple[Tensor, Tensor]:
        """What a cosine lacks of +-1 is taken from the rows themselves, where it is less than this at one of them."""
        left, right = (self._blur(share, s) for share, s in zip(self.shares, (self.sx, self.sy), strict=True))
        return left, right

    def _blur(self, share: Tensor, s: Tensor) -> Tensor:
        double = share.dtype == torch.float64
        rounding = share * (2.0 - share)  # of the squared sines, beside that of cosines
        blur = rounding * (1e-4 if double else 1e-2)
        smooth = double and not self.spec.network.kinked
        return blur.masked_fill_(rounding * s < LIMITS.steep_scale**2, 0.0) if smooth else blur

    def panels(self, rows: slice, columns: slice, mask: Tensor, lack: Tensor, workspace: Workspace) -> list[Panel]:
        """The intervals of angles that hold many of these entries; they are taken out of the mask."""
        found, few = list[Panel](), mask.numel() // LIMITS.panel_share
        if not self.capped or (self.short is not None and not self.odd) or int(mask.sum()) <= few:
            return found
        size, (left, right) = torch.abs(lack, out=workspace("angle", lack)), self.blurs
        clear = mask & (size >= torch.maximum(left[rows, None], right[columns]))
        angle, total = angle_of(size, out=size), int(clear.sum())
        for sign in (1, -1):
            if total <= few:  # mostly there is nothing near the other end
                break
            left = clear & ((lack > 0.0) if sign > 0 else (lack < 0.0))
            count = int(left.sum())
            total -= count
            if count <= few:
                continue
            cap = self.cap(sign)
            for number in range(cap.number(math.acos(self.trusted)), -1, -1):
                start, end = cap.interval(number)
                where = left & (angle > start) if number else left
                if int(where.sum()) > few and (levels := cap.levels(number)) is not None:
                    found.append(Panel(levels, where, start, end))
                    mask &= ~where
                left = left & ~where
                if int(left.sum()) <= few:
                    break
        return found

    def lookup(
        self, rows: slice, columns: slice, r: Tensor, panels: Sequence[Panel], ends: Ends, workspace: Workspace
    ) -> Iterator[tuple[Any, Tensor]]:
        """Tiles of all kernels at these cosines between the ``ends``; each lies in the workspace until the next one.

        Without ``ends`` only the panels count.
        """
        table = self.table
        assert table is not None
        for kernel in self.spec.names:
            pieces, out = [*([] if ends is None else [None]), *panels], r
            for panel in pieces:
                if panel is None:
                    level = table.level(kernel, r.dtype, *(() if r.is_cuda or ends is None else ends))
                    x2 = level.variable(r, workspace)
                else:
                    level, x2 = panel.levels[kernel], panel.variable(workspace("angle", r), workspace)
                found = self.series(table, level, kernel, rows, columns, x2, workspace)
                if panel is pieces[0]:
                    out = found if len(pieces) == 1 else workspace("panels", r).copy_(found)
                elif panel is not None:  # exact at 0 and 1, and without branches, which would take ten times as long
                    out.lerp_(found, workspace("share", r).copy_(panel.where))
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
        x2: Tensor,
        workspace: Workspace,
        in_norm: bool = False,
    ) -> Tensor:
        """The sum of a level at a tile, over both norms if homogeneous; ``in_norm``: its derivative in ||x||.

        ``x2``: twice the variable of the series.
        """
        if not table.one_function:
            signs = on_device(level.signs, x2.device).to(x2.dtype)
            left = self._side(level, kernel, rows, self.sx, in_norm).T.contiguous().mul_(signs)
            return level.tile(left, self._side(level, kernel, columns, self.sy), x2, workspace)
        powers = None if x2.is_cuda else table.powers(level, kernel, x2.dtype)
        if powers is None:
            return series_sum(table.scalars(level, kernel).to(x2), x2, level.parity, workspace)
        return power_sum(powers, x2, workspace)

    def _side(self, level: Level, kernel: Kernel, which: slice, squares: Tensor, in_norm: bool = False) -> Tensor:
        """The norm factors of some points of one side, (rank, points), stored while they are few."""
        wide = tile_shape(self.x.device)[1]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = id(level), in_norm, id(squares), first
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
    def write_entries(self, target: Mapping[Any, Tensor], i: Tensor, j: Tensor, lack: Tensor) -> None:
        """Entries near r = +-1, beyond the reach of the table, of rows too short for it, or all if there is none.

        ``lack``: what their cosines lack of +-1, with the signs of these.
        """
        at_once = LIMITS.gpu_open if i.is_cuda else LIMITS.open_entries
        for p, q, off in zip(*(v.split(at_once) for v in (i, j, lack.to(self.sx.dtype))), strict=True):
            for which, kernels in self.entries(p, q, self.refined(p, q, off)):
                for kernel, values in kernels.items():
                    target[kernel][p[which], q[which]] = values.to(target[kernel])
                    if self.symmetric:
                        target[kernel][q[which], p[which]] = values.to(target[kernel])

    def entries(self, i: Tensor, j: Tensor, lack: Tensor) -> Iterator[tuple[Tensor, Mapping[Any, Tensor]]]:
        """Groups of entries and their kernels: by table, by series of the layer at equilibrium, or one by one."""
        alone = torch.full_like(i, self.table is None, dtype=torch.bool)
        if self.short is not None and not self.odd:
            alone |= self.short[0][i] | self.short[1][j]
        if self.table is not None:
            for sign in (1, -1):
                which = (~alone & (torch.signbit(lack) == (sign < 0))).nonzero().squeeze(1)
                if not len(which):
                    continue
                alone[which] = True
                for known, kernels in self._near(sign, i[which], j[which], angle_of(lack[which].abs())):
                    alone[which[known]] = False
                    yield which[known], kernels
        close = alone & self._close(i, j, lack)
        for mask, kernels_of in ((alone & ~close, self._by_covariance), (close, self._by_angle)):
            which = mask.nonzero().squeeze(1)
            if len(which):
                yield which, kernels_of(i[which], j[which], lack[which])

    def _close(self, i: Tensor, j: Tensor, lack: Tensor) -> Tensor:
        """Say for which entries the rounding of a covariance, beside their scale, hides too much of a known angle."""
        if not ClosePairs.serve(self.spec.network):
            return torch.zeros_like(i, dtype=torch.bool)
        scale = torch.maximum(self.sx[i], self.sy[j]).clamp_min(1.0)
        least = torch.minimum(LIMITS.hidden * scale, torch.maximum(self.blurs[0][i], self.blurs[1][j]))
        return (lack != 0.0) & (lack.abs() < least)

    def _by_angle(self, i: Tensor, j: Tensor, lack: Tensor) -> Mapping[Any, Tensor]:
        there = (self.sx[i], self.sy[j], self.dots(i, j, lack), lack)
        sx, sy, dots, lacking = (v.to("cpu", torch.float64) for v in there)
        try:
            with torch.no_grad():
                return self.spec.run(ClosePairs(lacking), (sx, sy), dots)
        except Unresolved:  # for instance where inputs do not enter
            return self._by_covariance(i, j, lack)

    def _by_covariance(self, i: Tensor, j: Tensor, lack: Tensor) -> Mapping[Any, Tensor]:
        return self.spec.pairwise(self.sx[i], self.sy[j], self.dots(i, j, lack))

    def _near(self, sign: int, i: Tensor, j: Tensor, angle: Tensor) -> Iterator[tuple[Tensor, Mapping[Any, Tensor]]]:
        """Groups of entries near r = ``sign`` that have a series, and their kernels."""
        names, table = self.spec.names, self.table
        assert table is not None
        if table.reach == 1.0:
            ends = sorted((float(sign), sign * math.cos(float(angle.max()))))
            levels = {kernel: table.level(kernel, torch.float64, *ends) for kernel in names}
            found = {k: self._sum(level, k, i, j, level.from_end(sign, angle)) for k, level in levels.items()}
            yield torch.arange(len(angle), device=angle.device), found
        elif self.capped and not (len(angle) <= LIMITS.few_pairs and self.spec.network.closed):
            with one_thread():
                cap = self.cap(sign)
                groups = list(cap.intervals(angle))
            for which, series, x2 in groups:
                p, q = i[which], j[which]
                if series is not None:
                    yield which, {k: self._sum(series[k], k, p, q, x2) for k in names}
                elif cap.layer is not None:
                    with one_thread():
                        given = [v.cpu() for v in (self.sx[p].sqrt(), self.sy[q].sqrt(), angle[which])]
                        known, found = cap.layer.kernels(names, *given)
                    yield which[known.to(which.device)], found

    def _sum(self, level: Level, kernel: Kernel, i: Tensor, j: Tensor, x2: Tensor) -> Tensor:
        """A series at single entries, so many at a time that their norm factors fit into a cache."""
        table, numbers = self.table, LIMITS.gpu_numbers if x2.is_cuda else LIMITS.nodes_at_once
        assert table is not None
        if table.one_function:
            scalars = table.scalars(level, kernel).to(x2)
            out = torch.cat([series_sum(scalars, part, level.parity) for part in x2.split(numbers)])
            return out.mul_(self.sx[i].sqrt()).mul_(self.sy[j].sqrt()) if table.homogeneous else out
        # the factors of all rows, or those of the entries if these are fewer
        given = [
            (s, which) if len(s) <= len(which) else (s[which], torch.arange(len(which), device=which.device))
            for s, which in ((self.sx, i), (self.sy, j))
        ]
        sides = [(table.side(level, kernel, s.sqrt()).T.contiguous(), which) for s, which in given]
        out, at_once = torch.empty_like(x2), max(64, numbers // len(level.signs))
        for part in torch.arange(len(x2), device=x2.device).split(at_once):
            left, right = (side.index_select(0, which[part]) for side, which in sides)
            out[part] = level.at(left, right, x2[part])
        return out

    def dots(self, i: Tensor, j: Tensor, lack: Tensor) -> Tensor:
        """Inner products of pairs of lifted rows, exact for duplicates."""
        sx, sy = self.sx[i], self.sy[j]
        dot = torch.copysign(sx.sqrt() * sy.sqrt() * (1.0 - lack.abs()), lack)
        return torch.where((lack.abs() == 0.0) & (sx == sy), torch.copysign(sx, lack), dot)

    def refined(self, i: Tensor, j: Tensor, lack: Tensor) -> Tensor:
        """What cosines lack of +-1, from the chords between rows where rounded cosines would not do."""
        near = (lack.abs() < torch.maximum(self.blurs[0][i], self.blurs[1][j])).nonzero().squeeze(1)
        if not len(near):
            return lack
        (b, c), lack = self.lift, lack.clone()
        numbers = LIMITS.gpu_numbers if lack.is_cuda else LIMITS.nodes_at_once
        for some in near.split(max(64, numbers // max(1, self.x.shape[1]))):
            p, q, sign = i[some], j[some], torch.where(torch.signbit(lack[some]), -1.0, 1.0).to(lack)
            wx, wy = self.sx[p].rsqrt(), sign * self.sy[q].rsqrt()
            apart = self.x[p].double().mul_(wx[:, None]).sub_(self.y[q].double().mul_(wy[:, None]))
            lack[some] = 0.5 * sign * (b * apart.square_().sum(1) + c * (wx - wy).square())
        return lack


def angle_of(lack: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the angles to the nearer end, from what cosines lack of it."""
    return torch.mul(lack, 0.5, out=out).sqrt_().asin_().mul_(2.0)


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """Compute x y'; in float32 on a GPU in sums of 208 columns: a GPU adds up one by one, 784 are wrong by 1e-6."""
    short = 208 if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def _inverse_norm(s: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.where(s > 0, s, math.inf).rsqrt().to(dtype)
