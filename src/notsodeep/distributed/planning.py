"""What a cluster would need and take: memory, traffic and time per step, from measured rates and exact shares.

The shares are those that a run would have (:mod:`notsodeep.distributed.layout`); the rates are measured by
``python -m benchmarks.distributed``, which also holds the plan against the clock for two and four processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from .._arguments import checked
from ..errors import InvalidInputError
from .layout import Grid, Tile, move, tile_size


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
    shares = [_Share() for _ in range(workers)]
    for one, name in owned.items():
        shares[int(name)].take(grid, one)
    rows = [sum(grid.rows(block) for block in share.blocks) for share in shares]
    entries, work = max(share.entries for share in shares), max(share.work for share in shares)
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


class _Share:
    """What one worker owns, added up."""

    def __init__(self) -> None:
        self.blocks: set[int] = set()
        self.entries, self.work = 0, 0.0

    def take(self, grid: Grid, tile: Tile) -> None:
        i, j = tile
        self.blocks.update(tile)
        self.entries += grid.rows(i) * grid.rows(j)
        self.work += grid.work(tile)
