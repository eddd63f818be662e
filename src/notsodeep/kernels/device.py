"""Kernel matrices on CUDA by fused tiles: products by cuBLAS into the result, then one pass over it in place.

A pass serves the table and those series of nearly parallel entries that a sample of the product asks for. Other entries
are listed by the programs and evaluated afterwards, in rounds where there is no room for all of them. Where Triton is
missing, and for blocks that fill the list alone, tiles are evaluated by plain torch instead.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from subprocess import CalledProcessError
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from .._chebyshev import Workspace
from ..errors import NotSoDeepError, log, warn
from ..networks import Kernel
from ._limits import LIMITS
from .table import Level, Table, copied, on_device
from .threads import one_thread
from .tiles import Points, angle_of, fill_blocks, products, tiles_of

N = TypeVar("N", int, float)
Block = tuple[slice, slice]


class Shape(NamedTuple):
    """The tile of a program."""

    high: int
    wide: int
    warps: int
    at_once: int  # ranks that are added at once
    dot: bool = False  # whether by tensor cores


SHAPES: dict[str, dict[torch.dtype, Shape]] = {
    "scalar": {torch.float64: Shape(32, 32, 4, 1), torch.float32: Shape(64, 64, 8, 1)},  # without norms
    "thick": {torch.float64: Shape(128, 32, 4, 16, True), torch.float32: Shape(64, 64, 8, 2)},
    # beside intervals of angles, where larger tiles would not fit into registers, and for few ranks of each order there
    "capped": {torch.float64: Shape(64, 32, 4, 16, True), torch.float32: Shape(64, 64, 8, 2)},
    "thin": {torch.float64: Shape(64, 32, 4, 2), torch.float32: Shape(64, 64, 8, 2)},
}
THIN = 2.0  # tensor cores add 16 ranks for each order, which is too many where this is so many times what there is
ENTRIES = 64  # single entries of a program


_refused: set[str] = set()  # why programs do not run here, as it was told


def program(module: str, name: str) -> Any:
    """Return a Triton program, or None where Triton is missing or does not run."""
    try:
        return None if _refused else getattr(importlib.import_module(f"{__package__}.{module}"), name)
    except ImportError as error:
        log.info("without Triton, tiles are computed by plain torch: %s", error)
        return None


def attempt(work: Callable[[], Any]) -> Any:
    """Return what the work with Triton programs gives; None, with a warning, where plain torch must do it.

    Memory that is short now may be there the next time. Other reasons stay, and are told once.
    """
    try:
        with one_thread():  # what is left to the host is small
            return work()
    except NotSoDeepError:
        raise
    except torch.OutOfMemoryError:
        warn("the GPU has no memory left for fused tiles, plain ones are used for this matrix")
    except Exception as error:  # an acceleration that a driver or a compiler refuses is none
        absent = isinstance(error, FileNotFoundError | CalledProcessError) or "compiler" in str(error).lower()
        advice = "Triton finds no C compiler that works: install gcc, or name one in the variable CC" if absent else ""
        reason = advice or f"this GPU, driver or Triton does not support them: {error!r:.300}"
        if reason not in _refused:
            warn(f"fused tiles do not run here, plain ones are used. {reason}")
        _refused.add(reason)
    return None


def start_products(points: Points, target: Mapping[Kernel, Tensor]) -> bool:
    """Set the Gram product of all rows going, into the last of the results, where fused tiles may follow."""
    plain = all(t.is_cuda and t.dtype == points.x.dtype and t.stride(1) == 1 for t in target.values())
    if not plain or program("triton_tile", "tile_kernel") is None:
        return False
    gram = list(target.values())[-1]
    for block in _blocks(points):
        _product(points, gram, block)
    return True


def _blocks(points: Points) -> list[Block]:
    return list(tiles_of(points.shape, LIMITS.gpu_block, points.symmetric))


def _product(points: Points, gram: Tensor, block: Block) -> None:
    rows, columns = block
    products(points.x[rows], points.y[columns], gram[rows, columns])


def fill_fused(points: Points, target: Mapping[Kernel, Tensor]) -> bool:
    """Fill the matrices from the Gram product in the last one, but for a symmetric diagonal; whether it was done."""
    if points.table is None:
        return False
    table = points.table
    return bool(attempt(lambda: _run(points, table, target)))


def _run(points: Points, table: Table, target: Mapping[Kernel, Tensor]) -> bool:
    """Fill the matrices from the Gram product in the last one: blocks in rounds, as far as the list has room."""
    listing, gram, blocks = points.trusted < 1.0, list(target.values())[-1], _blocks(points)  # else beyond is rounding
    caps = worthy(points, gram) if listing else []
    while True:
        done = _round(points, table, target, blocks, caps, listing)
        if not done:  # more than the list holds in one block
            fill_blocks(points, target, blocks[:1])
        blocks = blocks[max(done, 1) :]
        if not blocks:
            return True
        for block in blocks:
            _product(points, gram, block)


def _round(
    points: Points,
    table: Table,
    target: Mapping[Kernel, Tensor],
    blocks: Sequence[Block],
    caps: Sequence[Interval],
    listing: bool,
) -> int:
    """Fill blocks, and settle what they list; how many of the blocks had room for that."""
    x, gram, last = points.x, list(target.values())[-1], list(target)[-1]
    room = max(LIMITS.gpu_listed, int(points.pairs) // LIMITS.gpu_share) if listing else 1
    i, j, lack = (torch.empty(room, dtype=dtype, device=x.device) for dtype in (torch.int32, torch.int32, x.dtype))
    found = _Listed(i, j, lack, torch.zeros(1, dtype=torch.int64, device=x.device))
    # the list is made once, by the kernel that goes last
    unlisted = _Listed(i[:0], j[:0], lack[:0], torch.zeros_like(found.total))
    parts = [_Factors(points, table, kernel, listing and kernel == last, caps) for kernel in target]
    totals = []
    for rows, columns in blocks:
        for factors in parts:
            kernel = factors.kernel
            factors.launch(gram, target[kernel], rows, columns, found if kernel == last else unlisted)
        if listing:
            totals.append(found.total.clone())
    if not listing:
        return len(blocks)
    listed = [total for total in torch.cat(totals).tolist() if total <= room]
    if listed and listed[-1]:
        i, j, lack = (part[: listed[-1]].clone() for part in (i, j, lack))
        del found, unlisted, parts, factors  # single entries need the room
        _settle(points, table, target, i.long(), j.long(), lack)
    return len(listed)


def _settle(points: Points, table: Table, target: Mapping[Kernel, Tensor], i: Tensor, j: Tensor, lack: Tensor) -> None:
    """Write the entries that were listed: one program for all that have a series, and the others one by one."""
    caps = list[Interval]()
    if points.capped and len(i) > LIMITS.few_pairs:
        refined = points.refined(i, j, lack.to(points.sx.dtype))
        caps = [interval for sign in (1, -1) for interval in _intervals(points, sign, refined, 0.0)]
    if caps:
        done = torch.zeros_like(i, dtype=torch.int8)
        ranks = sum(len(cap.levels[kernel].signs) for cap in caps for kernel in target)
        together = ranks * max(points.shape) <= LIMITS.gpu_numbers  # the factors of all rows fit into memory
        for some in [caps] if together else [[cap] for cap in caps]:
            for kernel, out in target.items():
                _Factors(points, table, kernel, False, some).single(out, i, j, refined, done)
        rest = (done == 0).nonzero().squeeze(1)
        i, j, lack = (part[rest] for part in (i, j, lack))
    if len(i):
        points.write_entries(target, i, j, lack)


# ---- nearly parallel entries -----------------------------------------------------------------------------


class Interval(NamedTuple):
    """The series of nearly parallel entries between two angles."""

    sign: int
    start: float
    end: float
    levels: Mapping[Kernel, Level]

    def numbers(self) -> tuple[float, ...]:
        """The sign of r, the least and the largest lack, and the middle and the scale of twice the variable."""
        low, high = (2.0 * math.sin(0.5 * angle) ** 2 for angle in (self.start, self.end))
        return self.sign, low, high, 0.5 * (self.start + self.end), 4.0 / (self.end - self.start)


def worthy(points: Points, gram: Tensor) -> list[Interval]:
    """The intervals that hold more of a sample of the Gram product than are cheaper one by one."""
    if not points.capped:
        return []
    rows, columns = (slice(0, size, -(-size // LIMITS.gpu_sample)) for size in points.shape)
    (b, c), w = points.lift, Workspace()
    given = w("given", gram, gram[rows, columns].shape).copy_(gram[rows, columns])
    given.mul_(b * points.wx[rows, None]).mul_(points.wy[columns])
    r = torch.addcmul(given, c * points.wx[rows, None], points.wy[columns])
    beyond = points.unsettled(r, 1.0)
    assert beyond is not None
    if points.symmetric:
        number = torch.arange(points.shape[0], device=r.device)
        beyond &= number[rows, None] < number[columns]
    lack = points.lack(rows, columns, r, w)
    clear = beyond & (lack.abs() >= torch.maximum(points.blurs[0][rows, None], points.blurs[1][columns]))
    off, few = lack[clear], r.numel() / (LIMITS.gpu_series * (1 + points.symmetric))
    if len(off) <= few:
        return []
    return [interval for sign in (1, -1) for interval in _intervals(points, sign, off, few)]


def _intervals(points: Points, sign: int, lack: Tensor, few: float) -> list[Interval]:
    """The intervals near r = ``sign`` that have a series, and more than so ``few`` entries that lack this of it."""
    angles = angle_of(lack[lack * sign > 0.0].abs())
    if len(angles) <= few:
        return []
    cap = points.cap(sign)
    counts = torch.bincount(torch.ceil(torch.log2((angles / cap.first).clamp_min(1.0))).long()).tolist()
    levels = {number: cap.levels(number) for number, count in enumerate(counts) if count > few}
    return [Interval(sign, *cap.interval(number), level) for number, level in levels.items() if level is not None]


def every_order(parts: Sequence[N], parity: str | None, none: N) -> list[N]:
    """What belongs to all orders of a level, with ``none`` for those that its parity leaves out."""
    both = {"even": lambda part: (part, none), "odd": lambda part: (none, part), None: lambda part: (part,)}[parity]
    return [one for part in parts for one in both(part)]


def in_single_precision(level: Level) -> Level:
    """A level without the ranks that are rounding in single precision, and without the orders that have no others."""
    others = level.factors if level.others is None else level.others
    size = (level.factors.square().sum(0) * others.square().sum(0)).sqrt()
    keep = size >= 1e-8 * size.max()
    ranks = [int(part.sum()) for part in keep.split(level.ranks)]
    while ranks[-1] == 0:
        ranks.pop()
    kept = None if level.others is None else level.others[:, keep]
    return replace(level, factors=level.factors[:, keep], others=kept, signs=level.signs[keep], ranks=tuple(ranks))


def _kind(table: Table, ranks: Sequence[int], capped: bool) -> str:
    """The kind of shape that serves so many ranks of each order."""
    if table.one_function:
        return "scalar"
    if not capped:
        return "thick"
    return "thin" if sum(-(-rank // 16) for rank in ranks) * 16 > THIN * sum(ranks) else "capped"


# ---- launches --------------------------------------------------------------------------------------------


class _Listed(NamedTuple):
    """Entries for later: rows, columns, what their cosines lack of +-1, and how many there are."""

    i: Tensor
    j: Tensor
    lack: Tensor
    total: Tensor


class _Factors:
    """What the programs of one kernel read besides the Gram product."""

    def __init__(
        self, points: Points, table: Table, kernel: Kernel, listing: bool, caps: Sequence[Interval] = ()
    ) -> None:
        x = points.x
        self.points, self.table, self.kernel, self.intervals = points, table, kernel, caps
        self.main = level = table.level(kernel, x.dtype)
        others = [cap.levels[kernel] for cap in caps]
        if x.dtype == torch.float32 and not table.one_function:
            others = [in_single_precision(other) for other in others]
        self.levels, self.signs = [level, *others], torch.cat([one.signs for one in (level, *others)])
        ranks = (*level.ranks, *(rank for other in others for rank in every_order(other.ranks, other.parity, 0)))
        # with intervals, entries beyond are not the table's, whoever lists them
        numbers = level.scale, points.trusted if listing or caps else 2.0, table.reach, *points.lift
        self.numbers = copied(numbers, x.dtype, x.device)
        self.ends = copied((0, *accumulate(ranks)), torch.int32, x.device)
        orders = [len(every_order(other.ranks, other.parity, 0)) for other in others]
        begins = accumulate(orders, initial=len(level.ranks))
        spans = [number for pair in zip(begins, orders, strict=False) for number in pair]
        self.spans = copied(tuple(spans), torch.int32, x.device)
        self.caps = copied(tuple(number for cap in caps for number in cap.numbers()), x.dtype, x.device)
        self.shape = SHAPES[_kind(table, ranks, bool(caps))][x.dtype]
        self.left = self.right = self._void = torch.empty(0, 0, dtype=x.dtype, device=x.device)
        self._rows = slice(0)
        if table.one_function:
            sums = table.scalars(level, kernel).tolist()
            for other in others:
                sums += every_order(table.scalars(other, kernel).tolist(), other.parity, 0.0)
            self.left = self.right = copied(tuple(sums), x.dtype, x.device)

    def _sides(self, rows: slice, columns: slice) -> None:
        """The norm factors of a block: those of all rows would fill the memory."""
        if self.table.one_function:
            return
        if self._rows != rows:
            signs = on_device(self.signs, self.left.device)[:, None]
            left = self._side(self.points.sx[rows], 0, self.shape.high) * signs
            self._rows, self.left = rows, left.to(self.left.dtype)
        self.right = self._void  # one of them at a time
        self.right = self._side(self.points.sy[columns], 1, self.shape.wide).to(self.left.dtype)

    def _side(self, squares: Tensor, side: int, tile: int = 1) -> Tensor:
        squares = torch.cat([squares, squares[-1:].expand(-len(squares) % tile)])  # programs read whole tiles
        return torch.cat([self.points.factors(level, self.kernel, squares, side) for level in self.levels])

    def launch(self, gram: Tensor, out: Tensor, rows: slice, columns: slice, found: _Listed) -> None:
        """One pass over a block of the product."""
        self._sides(rows, columns)
        shape, (a, b) = self.shape, gram[rows, columns].shape
        program("triton_tile", "tile_kernel")[(-(-b // shape.wide), -(-a // shape.high))](
            gram,
            out,
            gram.stride(0),
            out.stride(0),
            self.points.wx,
            self.points.wy,
            *self.points.shares,
            *(self.points.blurs if self.intervals else self.points.shares),
            self.left,
            self.right,
            self.ends,
            self.numbers,
            self.caps,
            self.spans,
            len(self.intervals),
            *found,
            rows.start,
            columns.start,
            a,
            b,
            self.left.stride(0),
            self.right.stride(0),
            len(self.main.ranks),
            len(found.lack),
            SYMMETRIC=self.points.symmetric,
            WARPED=self.main.warped,
            PARITY={None: 0, "odd": 1, "even": 2}[self.main.parity],
            SCALAR=self.table.one_function,
            HOMOGENEOUS=self.table.homogeneous,
            CAPPED=len(self.intervals) > 0,
            BM=shape.high,
            BN=shape.wide,
            AT_ONCE=shape.at_once,
            DOT=shape.dot,
            num_warps=shape.warps,
            num_stages=1,  # most orders have no second step that could be read ahead
        )

    def single(self, out: Tensor, i: Tensor, j: Tensor, lack: Tensor, done: Tensor) -> None:
        """Write single entries that the intervals hold, in double precision but for what they are stored in."""
        points, table, left, right = self.points, self.table, self.left.double(), self.right.double()
        if not table.one_function:
            left, right = (self._side(s, side).T.contiguous() for side, s in enumerate((points.sx, points.sy)))
            left.mul_(on_device(self.signs, i.device))
        numbers = copied(tuple(number for cap in self.intervals for number in cap.numbers()), torch.float64, i.device)
        program("triton_tile", "entry_kernel")[(-(-len(i) // ENTRIES),)](
            out,
            out.stride(0),
            i,
            j,
            lack,
            done,
            len(i),
            points.wx,
            points.wy,
            left,
            right,
            self.ends,
            numbers,
            self.spans,
            len(self.intervals),
            left.stride(0),
            SYMMETRIC=points.symmetric,
            SCALAR=table.one_function,
            HOMOGENEOUS=table.homogeneous,
            SIZE=ENTRIES,
            AT_ONCE=8,
            num_stages=1,
        )
