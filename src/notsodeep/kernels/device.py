"""Kernel matrices on CUDA by fused tiles: products by cuBLAS into the result, then one pass over it in place.

Entries that the table does not settle (near r = +-1, or beyond its reach) are listed by the programs and evaluated
afterwards. Where Triton is missing, or too many entries are listed, tiles are evaluated by plain torch instead.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from itertools import accumulate
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import NotSoDeepError, log, warn
from ..networks import Kernel
from ._limits import LIMITS
from .table import Table, copied, on_device
from .tabulate import one_thread
from .tiles import Points, products, tiles_of

# rows, columns and warps of a program, ranks that it adds at once, and whether by tensor cores
_SHAPES = {torch.float64: (128, 32, 4, 16, True), torch.float32: (64, 64, 8, 2, False)}
_SCALAR = {torch.float64: (32, 32, 4, 1, False), torch.float32: (64, 64, 8, 1, False)}  # without norms


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
    for rows, columns in tiles_of(gram.shape, LIMITS.gpu_block, points.symmetric):
        products(points.x[rows], points.y[columns], gram[rows, columns])
    return True


def fill_fused(points: Points, target: Mapping[Kernel, Tensor]) -> bool:
    """Fill the matrices from the Gram product in the last one, but for a symmetric diagonal; whether it was done."""
    if points.table is None:
        return False
    table = points.table
    return bool(attempt(lambda: _run(points, table, target)))


def _run(points: Points, table: Table, target: Mapping[Kernel, Tensor]) -> bool:
    """Whether there was room for all entries that had to be listed; then they are settled."""
    x = points.x
    listing = points.trusted < 1.0  # else cosines beyond are rounding
    room = max(LIMITS.gpu_listed, int(points.pairs) // LIMITS.gpu_share) if listing else 1
    i, j, lack = (torch.empty(room, dtype=dtype, device=x.device) for dtype in (torch.int32, torch.int32, x.dtype))
    found = _Listed(i, j, lack, torch.zeros(1, dtype=torch.int64, device=x.device))
    last = list(target)[-1]
    # the list is made once, by the kernel that goes last
    parts = [(target[kernel], _Factors(points, table, kernel, listing and kernel == last)) for kernel in target]
    gram = target[last]
    for rows, columns in tiles_of(gram.shape, LIMITS.gpu_block, points.symmetric):
        for out, factors in parts:
            factors.launch(gram, out, rows, columns, found)
    listed = int(found.total) if listing else 0
    if 0 < listed <= room:
        i, j, lack = (part[:listed].clone() for part in (i, j, lack))
        del found, parts, factors  # single entries need the room
        points.write_entries(target, i.long(), j.long(), lack)
    return listed <= room


class _Listed(NamedTuple):
    """Entries for later: rows, columns, what their cosines lack of +-1, and how many there are."""

    i: Tensor
    j: Tensor
    lack: Tensor
    total: Tensor


class _Factors:
    """What the programs of one kernel read besides the Gram product."""

    def __init__(self, points: Points, table: Table, kernel: Kernel, listing: bool) -> None:
        x = points.x
        self.points, self.table, self.kernel = points, table, kernel
        self.level = level = table.level(kernel, x.dtype)
        numbers = level.scale, points.trusted if listing else 2.0, table.reach, *points.lift
        self.numbers = copied(numbers, x.dtype, x.device)
        self.ends = copied((0, *accumulate(level.ranks)), torch.int32, x.device)
        self.left = self.right = self._void = torch.empty(0, 0, dtype=x.dtype, device=x.device)
        self._rows = slice(0)
        if table.one_function:
            self.left = self.right = copied(tuple(table.scalars(level, kernel).tolist()), x.dtype, x.device)

    def _sides(self, rows: slice, columns: slice) -> None:
        """The norm factors of a block: those of all rows would fill the memory."""
        if self.table.one_function:
            return
        if self._rows != rows:
            signs = on_device(self.level.signs, self.left.device)[:, None]
            self._rows, self.left = rows, (self._side(self.points.sx[rows], 0) * signs).to(self.left.dtype)
        self.right = self._void  # one of them at a time
        self.right = self._side(self.points.sy[columns], 1)

    def _side(self, squares: Tensor, side: int) -> Tensor:
        return self.points.factors(self.level, self.kernel, squares, side).to(self.points.x.dtype)

    def launch(self, gram: Tensor, out: Tensor, rows: slice, columns: slice, found: _Listed) -> None:
        """One pass over a block of the product."""
        self._sides(rows, columns)
        high, wide, warps, at_once, dot = (_SCALAR if self.table.one_function else _SHAPES)[gram.dtype]
        a, b = rows.stop - rows.start, columns.stop - columns.start
        program("triton_tile", "tile_kernel")[(-(-b // wide), -(-a // high))](
            gram,
            out,
            gram.stride(0),
            out.stride(0),
            self.points.wx,
            self.points.wy,
            *self.points.shares,
            self.left,
            self.right,
            self.ends,
            self.numbers,
            *found,
            rows.start,
            columns.start,
            a,
            b,
            self.left.stride(0),
            self.right.stride(0),
            len(self.level.ranks),
            len(found.lack),
            SYMMETRIC=self.points.symmetric,
            WARPED=self.level.warped,
            PARITY={None: 0, "odd": 1, "even": 2}[self.level.parity],
            SCALAR=self.table.one_function,
            HOMOGENEOUS=self.table.homogeneous,
            BM=high,
            BN=wide,
            AT_ONCE=at_once,
            DOT=dot,
            num_warps=warps,
        )
