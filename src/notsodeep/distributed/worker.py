"""What runs on a worker, and what it holds: rows of the data, and tiles in its memory, on its disk, or computed again.

Arguments are numbers, arrays and JSON documents; the functions are those of the package. State lies in a store of the
worker's own: nothing of it is known to the scheduler, moved or copied. It lives as long as its lease, the only thing
that the scheduler holds; when a client goes away, leases and stores go with it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed import Worker, get_worker

from .. import __version__
from .._conjugate import thin
from ..errors import ClusterError
from ..solve import NetworkKernel
from ..solve.operator import add_block, as_columns
from ..solve.tiles import TileFolder
from .layout import Grid, Tile
from .sinks import sink_of

Array = NDArray[np.float64]

MISSING = "missing"
"""The answer of a worker that knows nothing of a run: it was restarted, or its memory was reclaimed."""
BEHIND = "behind"
"""The answer of a worker that lacks rows of a factor."""
_PART = 0.55  # of a worker's memory limit: Dask begins to spill at 0.6 and stops a worker at 0.8
_TRIM, _MAP = (-1, 1 << 29), (-3, 1 << 25)  # glibc's names for parameters of malloc, and what they are set to
_STORES: weakref.WeakKeyDictionary[Worker, dict[str, Share]] = weakref.WeakKeyDictionary()


class Lease:
    """An actor that the scheduler keeps for the client; the share goes with its last lease."""

    def __init__(self, run: str, store: dict[str, Share]) -> None:
        self.run, self.store = run, store
        store[run].lease = id(self)

    def __del__(self) -> None:
        share = self.store.get(self.run)
        if share is not None and share.lease == id(self):  # news of its end may come late
            del self.store[self.run]


def versions() -> dict[str, str]:
    """Of what decides the numbers."""
    return {
        "notsodeep": __version__,
        "torch": torch.__version__.split("+")[0],
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
    }


def open_share(run: str, document: dict[str, Any], memory: float | None, folder: str | None) -> Lease:
    """A place for this run on this worker."""
    worker = get_worker()
    if worker.nanny:  # a process of its own: all its threads work on one task
        torch.set_num_threads(worker.state.nthreads)
        _keep_memory()
    store = _STORES.setdefault(worker, {})
    if folder is None and document["store"] == "disk":
        folder = str(Path(worker.local_directory) / f"notsodeep-{run}")
    if run not in store:  # else the client lost sight of this worker, which has lost nothing
        store[run] = Share(document, _room(worker) if memory is None else memory, folder)
    return Lease(run, store)


def _keep_memory() -> None:
    """Nannies tell malloc to hand back all but 64 KiB: every buffer of every tile would be mapped and cleared anew, for
    a third of the time. Who chose another number keeps it.
    """
    if os.environ.get("MALLOC_TRIM_THRESHOLD_") == "65536" and platform.libc_ver()[0] == "glibc":
        for name, value in (_TRIM, _MAP):
            ctypes.CDLL(None).mallopt(name, value)


def _room(worker: Worker) -> float:
    """Bytes that tiles may take: Dask's thresholds speak of the whole process."""
    limit = worker.memory_manager.memory_limit
    if not limit:
        return 0.5 * psutil.virtual_memory().available
    return max(0.0, _PART * limit - psutil.Process().memory_info().rss)


def on_share(run: str, step: str, *arguments: Any) -> Any:
    """A method of this run's share; where memory runs out, once more without the tiles that were kept."""
    worker = get_worker()
    share = _STORES.get(worker, {}).get(run)
    if share is None:
        return MISSING
    with share.lock:
        for again in (True, False):
            try:
                return getattr(share, step)(*arguments)
            except (MemoryError, RuntimeError) as error:
                if not _is_memory(error):
                    raise
            if again:
                share.shrink()
    raise ClusterError(
        f"worker {worker.address} ran out of memory, even with no tiles kept: {len(share.rows)} blocks of rows take "
        f"{sum(r.nbytes for r in share.rows.values()) / 2**30:.2f} GiB. Use more workers or a higher memory limit, "
        "smaller tiles (tile=), or fewer columns"
    )


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)


# ---- what it holds -----------------------------------------------------------------------------------------


class Share:
    """Rows and tiles of one run on one worker; made from a JSON document alone.

    ``limit`` bytes of tiles stay in memory. The rest lies in ``folder`` if there is one, else it is computed again for
    every product.
    """

    def __init__(self, document: Mapping[str, Any], limit: float, folder: str | Path | None) -> None:
        self.kernel = NetworkKernel.from_dict(document["kernel"])
        self.grid = Grid(document["n"], document["tile"])
        self.dtype = torch.float32 if document["dtype"] == "float32" else torch.float64
        self.store: str = document["store"]
        self.limit = 0.0 if self.store in ("disk", "none") else limit
        self.folder: TileFolder | None = None
        if folder is not None and self.store in ("auto", "disk"):
            self.folder = TileFolder(folder, {key: document[key] for key in ("n", "tile", "dtype", "content")})
        self.rows: dict[int, Tensor] = {}
        self.tiles: dict[Tile, Tensor] = {}
        self.held = 0
        self.factor = FactorRows(self)
        self.lease = 0
        """Which one keeps it."""
        self.lock = threading.Lock()  # of a worker with several threads: one task at a time, with all of them

    def take(self, blocks: Sequence[int], rows: Sequence[Array]) -> None:
        """Blocks of rows, once."""
        for block, values in zip(blocks, rows, strict=True):
            if block not in self.rows:
                self.rows[block] = as_rows(values)
                self.reserve(values.nbytes)

    def reserve(self, size: int) -> None:
        """So many bytes are no longer for tiles."""
        self.limit -= size
        while self.tiles and self.held > self.limit:
            self.held -= self.tiles.popitem()[1].nbytes

    def keep(self, tiles: Sequence[Tile], gone: Sequence[Tile] = ()) -> list[Tile]:
        """Drop tiles that another worker owns from now on, compute those that can be kept; the others."""
        left = []
        for tile in gone:
            if tile in self.tiles:
                self.held -= self.tiles.pop(tile).nbytes
        for tile in tiles:
            if tile in self.tiles or self.room(tile) or self.folder is not None:
                self.tile(tile)
            else:
                left.append(tile)
        return left

    def product(self, tiles: Sequence[Tile], blocks: Sequence[int], fresh: bool, v: Array) -> Array:
        """The part of K v that these tiles make; ``v`` and the result hold the rows of ``blocks`` alone."""
        starts = {block: here.start for block, (_, here) in zip(blocks, self.grid.spans(blocks), strict=True)}
        low = as_columns(as_rows(v), torch.float64 if fresh else self.dtype)
        out = as_columns(torch.zeros(low.shape), torch.float64)
        for i, j in tiles:
            block = self.compute((i, j)) if fresh and self.dtype != torch.float64 else self.tile((i, j))
            add_block(out, low, starts[i], starts[j], block)
        return out.numpy()

    def columns(self, blocks: Sequence[int], others: Array) -> Array:
        """k(rows of the blocks, other rows)."""
        right = as_rows(others)
        return np.concatenate([self.kernel(self.rows[block], right).numpy() for block in blocks])

    def diagonal(self, blocks: Sequence[int]) -> Array:
        """k(x, x) of the rows of the blocks."""
        return np.concatenate([self.kernel.diagonal(self.rows[block]).numpy() for block in blocks])

    def computed(self, tiles: Sequence[Tile]) -> list[Array]:
        """Tiles themselves, in float64."""
        return [self.compute(tile).numpy() for tile in tiles]

    def write(self, place: tuple[Any, ...], tiles: Sequence[Tile]) -> None:
        """Tiles into a sink; those with a mark were written before their worker was lost."""
        sink = sink_of(*place)
        there = sink.finished()
        for tile in tiles:
            if tile not in there:
                sink.write(tile, self.compute(tile).numpy())

    def factored(
        self, name: str, step: str, blocks: Sequence[int], start: int, total: int, values: Array, *lacking: Array
    ) -> Any:
        """Its part of a step with a factor; ``lacking``: pivots and rows of C from ``start`` to ``total``."""
        if not all(self.factor.extend(name, block, start, total, lacking) for block in blocks):
            return BEHIND
        return self.factor.step(step, blocks, as_rows(values)).numpy()

    def tile(self, tile: Tile) -> Tensor:
        """From memory, from the disk, or computed."""
        found = self.tiles.get(tile)
        if found is not None:
            return found
        if self.room(tile):
            found = self.compute(tile).to(self.dtype)
            self.tiles[tile] = found
            self.held += found.nbytes
            return found
        if self.folder is None:
            return self.compute(tile).to(self.dtype)
        return self.folder.get("tile-{:06d}-{:06d}".format(*tile), self.dtype, lambda: self.compute(tile))

    def compute(self, tile: Tile) -> Tensor:
        """In float64."""
        i, j = tile
        return self.kernel(self.rows[i], None if i == j else self.rows[j])

    def room(self, tile: Tile) -> bool:
        """Whether one more tile may stay in memory."""
        i, j = tile
        return self.held + self.grid.rows(i) * self.grid.rows(j) * self.dtype.itemsize <= self.limit

    def shrink(self) -> None:
        """Memory ran out: nothing stays, from now on."""
        self.tiles.clear()
        self.held, self.limit = 0, 0.0


class FactorRows:
    """The rows of a low-rank factor that belong to this worker; another factor takes the place of the one before."""

    def __init__(self, share: Share) -> None:
        self.share, self.name = share, ""
        self.rows: dict[int, Tensor] = {}

    def extend(self, name: str, block: int, start: int, total: int, lacking: Sequence[Array]) -> bool:
        """See that the block has ``total`` columns; False where those before ``start`` are missing."""
        if name != self.name:
            self.share.reserve(-sum(F.nbytes for F in self.rows.values()))
            self.name, self.rows = name, {}
        X = self.share.rows[block]
        F = self.rows.get(block, X[:, :0])
        done = F.shape[1]
        if done < start:
            return False
        if lacking and done < total:
            new, corner = (as_rows(values)[done - start :] for values in lacking)
            left = self.share.kernel(X, new) - F @ corner[:, :done].T
            fresh = torch.linalg.solve_triangular(corner[:, done:], left.T, upper=False).T
            self.rows[block] = torch.cat([F, fresh], dim=1)
            self.share.reserve(fresh.nbytes)
        return True

    def step(self, name: str, blocks: Sequence[int], values: Tensor) -> Tensor:
        """What the blocks give: together F'R or F'WF, one under the other F Z or what the last columns take."""
        mine = [self.rows[block] for block in blocks]
        if name == "grow":
            return torch.cat([F[:, -int(values) :].square().sum(1) for F in mine])
        if name == "outer":
            return torch.cat([thin(F, values) for F in mine])
        parts = zip(mine, values.split([len(F) for F in mine]), strict=True)
        if name == "inner":
            return torch.stack([thin(F.T, R) for F, R in parts]).sum(0)
        return torch.stack([F.T @ (w * F) for F, w in parts]).sum(0)


def as_rows(values: Array) -> Tensor:
    """What came over the network may be read-only memory, which torch does not take."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())
