"""Which worker owns which tiles of a symmetric matrix, and what a cluster would need and take for it.

Equal work, few rows each, and few tiles that move.

Tiles of the upper triangle are ordered along a Z-shaped curve and the curve is cut into pieces. A piece is compact: a
worker of P needs about n sqrt(2 / P) of the rows, and as much of every vector, instead of all of them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arguments import checked
from ..errors import InvalidInputError

Tile = tuple[int, int]
_SIZE = 2048
_MOST = 1024  # blocks of rows, half a million tiles: the client looks at each in every step
_EACH = 8  # tiles per worker at least, so that none waits long for another


def tile_size(n: int, workers: int) -> int:
    """Rows of a tile: 2,048; less where every worker would not have a few, more where they would be countless.

    >>> tile_size(60_000, 4), tile_size(800, 2)
    (2048, 134)
    """
    few = -(-n // math.ceil(math.sqrt(2 * _EACH * max(workers, 1))))
    return max(1, min(few, max(_SIZE, -(-n // _MOST))))


@dataclass(frozen=True)
class Grid:
    """n rows in blocks of ``size``; the last may be smaller."""

    n: int
    size: int

    @property
    def count(self) -> int:
        return -(-self.n // self.size)

    def span(self, block: int) -> slice:
        return slice(block * self.size, min((block + 1) * self.size, self.n))

    def rows(self, block: int) -> int:
        span = self.span(block)
        return span.stop - span.start

    def spans(self, blocks: Iterable[int]) -> Iterator[tuple[slice, slice]]:
        """Of every block its rows among all n, and among those of these blocks alone, one under the other."""
        start = 0
        for block in blocks:
            stop = start + self.rows(block)
            yield self.span(block), slice(start, stop)
            start = stop

    def part(self, values: NDArray[Any], blocks: Iterable[int]) -> NDArray[Any]:
        """The rows of these blocks, one under the other."""
        return np.concatenate([values[self.span(block)] for block in blocks])

    def put(self, parts: Iterable[tuple[Sequence[int], NDArray[Any]]], width: tuple[int, ...] = ()) -> Tensor:
        """All n rows from parts of them, each with its blocks."""
        out = torch.empty(self.n, *width, dtype=torch.float64)
        for blocks, values in parts:
            for there, here in self.spans(blocks):
                out[there] = torch.as_tensor(values[here])
        return out

    def work(self, tile: Tile) -> float:
        """Entries that are computed; a tile on the diagonal is symmetric itself."""
        i, j = tile
        return self.rows(i) * self.rows(j) * (0.5 if i == j else 1.0)

    def tiles(self) -> list[Tile]:
        """The upper triangle along the curve.

        >>> Grid(4, 1).tiles()
        [(0, 0), (0, 1), (1, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 2), (2, 3), (3, 3)]
        """
        return list(_curve(self.count))


@functools.lru_cache(8)
def _curve(count: int) -> tuple[Tile, ...]:
    spread = [_spread(k) for k in range(count)]
    triangle = ((i, j) for i in range(count) for j in range(i, count))
    return tuple(sorted(triangle, key=lambda tile: spread[tile[0]] << 1 | spread[tile[1]]))


def _spread(k: int) -> int:
    """The bits of k with a zero between any two; those of another number fit in."""
    return int(f"{k:b}", 4)


def blocks_of(tiles: Iterable[Tile]) -> list[int]:
    """The blocks of rows that these tiles need.

    >>> blocks_of([(0, 3), (0, 1)])
    [0, 1, 3]
    """
    return sorted({block for tile in tiles for block in tile})


def move(grid: Grid, owned: Mapping[Tile, str | None], strength: Mapping[str, float]) -> dict[Tile, str]:
    """A new owner for every tile whose owner is not among the workers in ``strength``, and for little else.

    Every worker's share is in proportion to its strength. Newcomers take from those who have more than theirs.
    """
    order = grid.tiles()
    total = sum(map(grid.work, order))
    fair = {name: total * s / sum(strength.values()) for name, s in strength.items()}
    held = dict.fromkeys(strength, 0.0)
    kept: dict[Tile, str] = {}
    for tile in order:  # along the curve, up to the share: what is left over lies at the end of a piece
        owner, work = owned.get(tile), grid.work(tile)
        if owner in held and held[owner] + 0.5 * work <= fair[owner]:
            kept[tile] = owner
            held[owner] += work
    free = [tile for tile in order if tile not in kept]
    lack = {name: max(fair[name] - held[name], 0.0) for name in strength}
    names = sorted(strength, key=lambda name: -lack[name])
    room, left, open_lack = 0.0, sum(map(grid.work, free)), sum(lack.values())
    name = ""
    for tile in free:
        work = grid.work(tile)
        while names and (not name or 0.5 * work > room):  # the next one, with its part of all that is left
            name = names.pop(0)
            room = left * lack[name] / open_lack if open_lack > 0.0 else left
            open_lack -= lack[name]
        kept[tile] = name
        room -= work
        left -= work
    return kept


def row_owners(grid: Grid, owned: Mapping[Tile, str], workers: Iterable[str]) -> dict[int, str]:
    """One worker for each block of rows, evenly, among those that hold it anyway."""
    holders: dict[int, set[str]] = {block: set() for block in range(grid.count)}
    for tile, name in owned.items():
        for block in tile:
            holders[block].add(name)
    load = dict.fromkeys(workers, 0)
    found = {}
    for block in sorted(holders, key=lambda b: len(holders[b])):
        name = min(holders[block] or load, key=lambda w: (load[w], w))
        found[block] = name
        load[name] += 1
    return found


# ---- what a cluster would need -------------------------------------------------------------------------------
# From measured rates (``python -m benchmarks.distributed``) and the shares that a run would have.


@dataclass(frozen=True)
class Rates:
    """Of one worker, and of the way to it."""

    build: float
    """Kernel entries computed per second, for the width of the data at hand."""
    product: float
    """Stored entries multiplied with all columns per second; off the diagonal each is used twice."""
    latency: float = 0.01
    """Seconds that a step takes without any message to speak of."""
    task: float = 1e-3
    """Seconds of the scheduler for each worker of a step."""
    bandwidth: float = 1e9
    """Bytes per second in and out of the client."""
    disk: float = 2e9
    """Bytes per second from a worker's disk."""


@dataclass(frozen=True)
class Plan:
    """For the worker with the most to do."""

    workers: int
    tile: int
    tiles: int
    rows_bytes: float
    """Of the rows that one worker holds."""
    tiles_bytes: float
    """Of the tiles that one worker owns."""
    factor_bytes: float
    """Of its rows of the preconditioner's factor."""
    kept: str
    """Where the tiles are: ``"memory"``, ``"disk"``, or ``"none"``: computed again in every step."""
    load_bytes: float
    """Rows that workers receive in all; the client sends each once."""
    step_bytes: float
    """In and out of the client in every step."""
    build_seconds: float
    step_seconds: float
    compute_seconds: float
    """The part of a step that workers compute; the rest is traffic and latency."""

    @property
    def efficiency(self) -> float:
        """Of a step: the part in which workers compute."""
        return self.compute_seconds / self.step_seconds

    def to_dict(self) -> dict[str, Any]:
        """Numbers and words."""
        return asdict(self) | {"efficiency": self.efficiency}


_MOST_WORKERS, _MOST_BLOCKS = 10_000, 1000  # half a million tiles


@checked
def plan(
    n: int,
    features: int,
    workers: int,
    rates: Rates,
    *,
    columns: int = 10,
    rank: int = 0,
    itemsize: int = 4,
    memory: float = float("inf"),
    disk: float = 0.0,
    tile: int | None = None,
) -> Plan:
    """A kernel of n rows on so many equal workers, each with ``memory`` and ``disk`` bytes for rows and tiles.

    ``rank`` is that of the preconditioner: two more messages to every worker and step, with the rows of each once.

    >>> small = plan(60_000, 784, 4, Rates(build=4e7, product=3e8), memory=5e9)
    >>> small.kept, round(small.tiles_bytes / 1e9, 1), small.step_bytes < 4 * 2 * 60_000 * 10 * 8
    ('memory', 1.9, True)
    """
    if min(n, features, workers, columns, itemsize, 1 if tile is None else tile) < 1 or rank < 0:
        raise InvalidInputError("n, features, workers, columns, itemsize and tile must be positive, rank not negative")
    grid = Grid(n, tile_size(n, workers) if tile is None else min(tile, n))
    if workers > _MOST_WORKERS or grid.count > _MOST_BLOCKS:
        raise InvalidInputError(
            f"{workers} workers and {grid.count} blocks of {grid.size} rows are beyond what is planned: at most "
            f"{_MOST_WORKERS} workers, {_MOST_BLOCKS} blocks"
        )
    owned = move(grid, {}, {str(k): 1.0 for k in range(workers)})
    blocks: list[set[int]] = [set() for _ in range(workers)]
    entries_of, work_of = [0] * workers, [0.0] * workers
    for one, name in owned.items():
        worker, (i, j) = int(name), one
        blocks[worker].update(one)
        entries_of[worker] += grid.rows(i) * grid.rows(j)
        work_of[worker] += grid.work(one)
    rows = [sum(map(grid.rows, mine)) for mine in blocks]
    entries, work = max(entries_of), max(work_of)
    stored, held = entries * itemsize, max(rows) * features * 8.0
    own = -(-grid.count // workers) * grid.size  # rows of the factor
    factor = own * rank * 8.0
    kept = "memory" if stored + held + factor <= memory else "disk" if stored <= disk else "none"
    again = {"memory": 0.0, "disk": stored / rates.disk, "none": work / rates.build}[kept]
    # an entry of the factor is used twice, like one of a tile, and has eight bytes
    compute = entries / rates.product + again + own * rank * 8 / itemsize / rates.product
    trips = 3 if rank else 1
    traffic = 2.0 * 8.0 * columns * (sum(rows) + (n + workers * rank if rank else 0))
    return Plan(
        workers=workers,
        tile=grid.size,
        tiles=len(owned),
        rows_bytes=held,
        tiles_bytes=float(stored),
        factor_bytes=factor,
        kept=kept,
        load_bytes=sum(rows) * features * 8.0,
        step_bytes=traffic,
        build_seconds=0.0 if kept == "none" else work / rates.build,
        step_seconds=compute + traffic / rates.bandwidth + trips * (rates.latency + workers * rates.task),
        compute_seconds=compute,
    )
