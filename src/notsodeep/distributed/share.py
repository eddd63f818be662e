"""What one worker holds of a kernel: rows, and tiles in its memory, on its disk, or computed again."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._conjugate import thin
from ..solve import NetworkKernel
from ..solve.operator import add_block, as_columns
from ..solve.tiles import TileFolder
from .layout import Grid, Tile
from .sinks import sink_of

Array = NDArray[np.float64]

BEHIND = "behind"
"""The answer of a worker that lacks rows of a factor."""


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
        starts = dict(zip(blocks, np.cumsum([0, *(self.grid.rows(b) for b in blocks)]).tolist(), strict=False))
        low = as_columns(as_rows(v), torch.float64 if fresh else self.dtype)
        out = as_columns(torch.zeros(low.shape), torch.float64)
        for i, j in tiles:
            block = self.compute((i, j)) if fresh and self.dtype != torch.float64 else self.tile((i, j))
            add_block(out, low, starts[i], starts[j], block)
        return out.numpy()

    def columns(self, blocks: Sequence[int], others: Array) -> list[Array]:
        """k(rows of each block, other rows)."""
        right = as_rows(others)
        return [self.kernel(self.rows[block], right).numpy() for block in blocks]

    def diagonal(self, blocks: Sequence[int]) -> list[Array]:
        """k(x, x) of the rows of each block."""
        return [self.kernel.diagonal(self.rows[block]).numpy() for block in blocks]

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
