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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arrays import squared_norms
from .._chebyshev import Workspace, power_sum, series_sum
from .._progress import track, waiting
from ..networks import Kernel
from ._limits import LIMITS
from .bands import Given, Lift, Part, bands, lift_of, lifted, norm_range, within
from .caps import Cap, ClosePairs
from .pointwise import KernelSpec
from .table import Level, NormScale, Scales, Table, on_device
from .tabulate import Unresolved, rounded_range, table_for
from .threads import one_thread, stay_alone

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
        panels, main, mask = list[Panel](), True, points.unsettled(r, max(-low, high))
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


Group = tuple[Tensor, Tensor, NormScale | None]
"""The numbers of rows and of columns with norms of one range, or of those for which there is no table."""

Ends = tuple[float, float] | None
"""The least and the largest cosine that a table is asked for, if it is."""


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
        self.scales: tuple[NormScale | None, NormScale | None] = None, None  # of the table that is looked for
        self.shared: Table | None = None  # of a wider range, if there is one
        self.table: Table | None = None
        self.flipped = False  # whether its rows are the columns
        self.trusted = -1.0  # cosines up to which the table settles an entry
        self._sides: dict[tuple[object, ...], Tensor] = {}  # of all threads

    def parts(self, ready: Given, target: Mapping[Any, Tensor]) -> list[Part]:
        """These points with their matrices, or in blocks of alike norms, which are to be copied into the target."""
        groups = self._groups(ready if ready[1] == self.lift else ({}, self.lift))
        if len(groups) == 1:
            self.scales = groups[0][2], groups[0][2]
            return [Part(self, target)]
        found = list[Part]()
        for (a, (rows, _, scale)), (b, (_, columns, other)) in itertools.product(enumerate(groups), repeat=2):
            if len(rows) and len(columns) and (a <= b or not self.symmetric):
                # nearly all rows may be alike: a smaller table serves these better
                alone = scale is None or other is None or len(rows) * len(columns) > 0.8 * math.prod(self.shape)
                table = None if alone else self.shared
                found.append(Part(self, target, rows, columns, (scale, other), table))
        return found

    def _wide(self, ready: Given) -> Table | None:
        """One table for all norms, which smooth kernels may have; nearly parallel points go by their own norms."""
        if self.spec.network.kinked:
            return None
        scale = self.norm_scale(*norm_range(self.sx, self.sy))
        known = (s for s, other in ready[0] if s == other and s.holds(scale.low, scale.high))
        scale = next(known, scale) if ready[1] == self.lift else scale
        return self._lookup(ready, (scale, scale))

    def _tabulated(self, ready: Given, norms: Tensor, low: float, high: float) -> list[NormScale]:
        """The range of these norms, in parts if no table serves the whole."""
        scale, middle = self.norm_scale(low, high), math.sqrt(low * high)
        narrow = self.shared is not None or high < LIMITS.narrow_band * low
        if narrow or self._lookup(ready, (scale, scale)) is not None:
            return [scale]
        sides = [(norms >= low) & (norms <= middle), (norms > middle) & (norms <= high)]
        parts = [norms[side] for side in sides if bool(side.any())]
        return [each for part in parts for each in self._tabulated(ready, part, float(part.min()), float(part.max()))]

    def _ranges(self, ready: Given, norms: Tensor) -> list[NormScale]:
        """The ranges of norms of the tables that serve these."""
        if len(self.spec.network.activations) > 1 and self.pairs < LIMITS.pairs_of_a_grid:  # one attempt is enough
            return [self.norm_scale(float(norms.min()), float(norms.max()))]
        ranges = bands(norms)
        self.shared = self._wide(ready) if len(ranges) > 1 else None
        return [scale for ends in ranges for scale in self._tabulated(ready, norms, *ends)]

    def _groups(self, ready: Given) -> list[Group]:
        """The rows and columns by their norms, in groups that share a table."""
        sides = self.sx.sqrt(), self.sy.sqrt()
        known, norms = [scale for scale, other in ready[0] if scale == other], torch.cat(sides)
        least, high = torch.stack(torch.aminmax(norms)).tolist()
        if self.spec.network.homogeneous and high > 0.0:
            return self._whole(known[0] if known else self.norm_scale(1.0, 1.0))
        for scale in known:
            if scale.holds(least, high) and (self.pairs <= self.direct or len(bands(norms)) == 1):
                return self._whole(scale)
        if high == 0.0 or self.pairs <= self.direct:
            return self._whole(None)
        known = [scale for scale in known if scale.width <= math.log(2.0 * LIMITS.widest_band)]
        short = None if least >= LIMITS.short_row * high else norms < LIMITS.short_row * high
        usual = norms if short is None else norms[~short]
        if not bool(within(usual, known).ge(0).all()):
            known = self._ranges(ready, usual)
        if len(known) == 1 and short is None:
            return self._whole(known[0])
        found = within(norms, known)
        numbers = (found if short is None else found.masked_fill_(short, -1)).split([len(side) for side in sides])
        groups, none = list[Group](), numbers[0][:0]
        for number in (*range(len(known)), -1):
            members = [(of == number).nonzero().squeeze(1) for of in numbers]
            halves = [m.split(max(LIMITS.block_rows, -(-len(s) // 2))) for m, s in zip(members, sides, strict=True)]
            for rows, columns in itertools.zip_longest(*halves, fillvalue=none):
                groups.append((rows, rows if self.symmetric else columns, None if number < 0 else known[number]))
        return groups

    def _whole(self, scale: NormScale | None) -> list[Group]:
        return [(self.sx[:0], self.sy[:0], scale)]  # nobody asks which these are

    def norm_scale(self, low: float, high: float) -> NormScale:
        """The range of norms for which a table is built."""
        return rounded_range(self.spec.network, low, high, 3e-8 if self.x.dtype == torch.float32 else 1e-14)

    def find_table(self, ready: Given) -> None:
        """Use the table that is ready, the cached one for such norms, or none where entry by entry is cheaper."""
        left, right = self.scales
        if left is None or right is None:
            return
        self.flipped = left.low > right.low
        self.norms = (right, left) if self.flipped else (left, right)
        self.table = self.shared or self._lookup(ready, self.norms)
        if self.table is not None:
            # cosines beyond are rounded too much for the angle of a kinked kernel
            known = 1.0 - (5e-4 if self.x.dtype == torch.float32 else 1e-6)
            self.trusted = min(self.table.reach, known) if self.spec.network.kinked else self.table.reach

    def _lookup(self, ready: Given, scales: Scales) -> Table | None:
        given = ready[0].get(scales) if ready[1] == self.lift else None
        if given is not None and given.has(self.spec.names):
            return given
        if self.pairs <= self.direct:
            return None
        patient = all(scale.high < LIMITS.narrow_band * scale.low for scale in scales)  # others can be parted
        return table_for(self.spec, scales, self.pairs, self.x.dtype, patient)

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

    def unsettled(self, r: Tensor, largest: float) -> Tensor | None:
        """Which entries of a tile the table leaves to series of nearly parallel points, or to single entries."""
        return r.abs() > self.trusted if largest > self.trusted and self.trusted < 1.0 else None  # else by rounding

    @functools.cached_property
    def capped(self) -> bool:
        """Whether nearly parallel points have series of their own."""
        few = self.pairs < LIMITS.many_pairs
        return self.table is not None and self.table.reach < 1.0 and not few and not self.spec.network.biased

    def cap(self, sign: int) -> Cap:
        """The series near r = ``sign``."""
        table = self.table
        assert table is not None
        return table.once(("cap", sign, self.norms), lambda: Cap(self.spec.detached, table, sign, self.norms))

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
        if not self.capped or int(mask.sum()) <= few:
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
            left = self._side(level, kernel, rows, 0, in_norm).T.contiguous().mul_(signs)
            return level.tile(left, self._side(level, kernel, columns, 1), x2, workspace)
        powers = None if x2.is_cuda else table.powers(level, kernel, x2.dtype)
        if powers is None:
            return series_sum(table.scalars(level, kernel).to(x2), x2, level.parity, workspace)
        return power_sum(powers, x2, workspace)

    def factors(self, level: Level, kernel: Kernel, squares: Tensor, side: int, in_norm: bool = False) -> Tensor:
        """The norm factors of points, by their squared norms, as rows (``side`` 0) or columns: (rank, points)."""
        assert self.table is not None
        of = self.table.side_slope if in_norm else self.table.side
        return of(level, kernel, squares.sqrt(), bool(side) != self.flipped)

    def _side(self, level: Level, kernel: Kernel, which: slice, side: int, in_norm: bool = False) -> Tensor:
        """The norm factors of some points of one side, (rank, points), stored while they are few."""
        wide, squares = tile_shape(self.x.device)[1], (self.sx, self.sy)[side]
        first = which.start - which.start % wide  # tiles do not cross its multiples
        key = id(level), in_norm, id(squares), first
        stored = self._sides.get(key)
        if stored is None:
            stored = self.factors(level, kernel, squares[first : first + wide], side, in_norm).to(self.x.dtype)
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
        if self.table is not None:
            equal = (lack == 0.0) & ~torch.signbit(lack) & (self.sx[i] == self.sy[j])
            if bool(equal.any()):
                yield equal.nonzero().squeeze(1), self._of_equal(self.sx[i[equal]])
            for sign in (1, -1):
                which = (~equal & ~alone & (torch.signbit(lack) == (sign < 0))).nonzero().squeeze(1)
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
                with waiting("entries one by one"):
                    found = kernels_of(i[which], j[which], lack[which])
                yield which, found

    def _of_equal(self, squares: Tensor) -> Mapping[Any, Tensor]:
        return {name: own.to(squares.device) for name, own in self.spec.diagonals(squares.cpu()).items()}

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
        elif self.capped and len(angle) > (LIMITS.few_pairs if self.spec.network.closed else LIMITS.few_slow_pairs):
            with one_thread():
                cap = self.cap(sign)
                groups = list(cap.intervals(angle))
            for which, series, x2 in groups:
                p, q = i[which], j[which]
                if series is not None:
                    yield which, {k: self._sum(series[k], k, p, q, x2) for k in names}
                elif cap.layer is not None:
                    with one_thread():
                        squares = (self.sy[q], self.sx[p]) if self.flipped else (self.sx[p], self.sy[q])
                        left, right, apart = (v.cpu() for v in (*squares, angle[which]))
                        known, found = cap.layer.kernels(names, left.sqrt(), right.sqrt(), apart)
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
        sides = [(self.factors(level, kernel, s, side).T.contiguous(), which) for side, (s, which) in enumerate(given)]
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
