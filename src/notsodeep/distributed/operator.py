"""A kernel matrix in tiles on the workers of a cluster, as an operator that :mod:`notsodeep.solve` solves with."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked
from .._progress import track
from .._words import Store
from ..errors import InvalidInputError, SerialisationError, warn
from ..solve import NetworkKernel, triangle_bytes
from ..solve.operator import Factor, fingerprint
from ..solve.pivoted import pivoted_cholesky
from .cluster import Call, Cluster
from .crew import Crew
from .factor import ClusterFactor
from .layout import Grid, Tile, blocks_of, tile_size

_BATCHES = 16  # parts in which a worker computes its tiles: steps of the progress bar
_SMALL = 1 << 26  # bytes of a factor that the client passes over sooner than messages come and go
_MESSAGE = 1 << 26  # bytes of tiles in one answer


class ClusterKernel:
    """D k(X, X) D on a cluster; D is the identity or a diagonal of ``scale``.

    Every worker owns tiles of the upper triangle and the rows they need. A product is one task per worker; what comes
    back are sums over its rows. Tiles of a worker that is lost go to a newcomer, or to the others after ``patience``
    seconds, and only its part of the step in flight is repeated.

    Parameters
    ----------
    client : a ``dask.distributed.Client``, with the security it has
    kernel : of a network that can be written as JSON; that is how it travels
    X : rows, (n, p)
    dtype : of the stored tiles; ``exact`` products compute every entry again in float64 where it is float32;
        ``"auto"`` is float64 where the triangle fits into half the memory of all workers
    store : ``"memory"``; ``"disk"``, in ``folder`` or the worker's own; ``"none"``, computed again for every product;
        ``"auto"``, in memory up to ``memory`` bytes per worker, what does not fit in ``folder`` if there is one
    memory : bytes of rows and tiles per worker; by default 0.55 of its limit, less what the process takes already
    tile : rows of a tile
    """

    @checked
    def __init__(
        self,
        client: Any,
        kernel: NetworkKernel,
        X: Tensor,
        *,
        scale: Tensor | None = None,
        dtype: torch.dtype | Literal["auto", "float32", "float64"] = torch.float64,
        store: Store = "auto",
        folder: str | Path | None = None,
        memory: float | None = None,
        tile: int | None = None,
        patience: float = 10.0,
        progress: bool | None = None,
    ) -> None:
        self.cluster = client if isinstance(client, Cluster) else Cluster(client, patience)
        self.kernel, self.X, self.n = kernel, X.to("cpu", torch.float64), len(X)
        self.scale = None if scale is None else scale.to(self.X).reshape(-1, 1)
        self.progress = progress
        workers = self.cluster.wait_for_workers()
        self.dtype = dtype if isinstance(dtype, torch.dtype) else _dtype(dtype, self.n, workers)
        self.grid = Grid(self.n, tile_size(self.n, len(workers)) if tile is None else min(tile, self.n))
        self.document = self._describe(store)
        bytes_each = float("inf") if store == "memory" and memory is None else memory
        place = None if folder is None else str(folder)
        self.crew = Crew(self.cluster, self.grid, self.X, self.document, bytes_each, place)

    def _describe(self, store: str) -> dict[str, Any]:
        try:
            kernel = self.kernel.to_dict()
        except SerialisationError as error:
            raise InvalidInputError(
                f"a network travels to workers as JSON, and this one has no such form: {error}. No code is sent"
            ) from None
        return {
            "kernel": kernel,
            "n": self.n,
            "tile": self.grid.size,
            "dtype": str(self.dtype).removeprefix("torch."),
            "store": store,
            "content": fingerprint(self.kernel, self.X),
        }

    # -- products ------------------------------------------------------------------------------------------
    def __matmul__(self, v: Tensor) -> Tensor:
        self.build()
        return self._product(v, "kernel-product", fresh=False)

    def exact(self, v: Tensor) -> Tensor:
        """The product in float64 throughout; free where float64 is what is stored."""
        if self.dtype == torch.float64:
            return self @ v
        return self._product(v, "kernel-refine", fresh=True)

    def _product(self, v: Tensor, name: str, fresh: bool) -> Tensor:
        columns = v.reshape(self.n, -1).to("cpu", torch.float64)
        given = (columns if self.scale is None else self.scale * columns).numpy()
        out = np.zeros(given.shape)

        def call(worker: str, mine: list[Tile]) -> Call:
            blocks = blocks_of(mine)
            part = np.concatenate([given[self.grid.span(b)] for b in blocks])
            return self.crew.ask(worker, name, "product", mine, blocks, fresh, arrays=(part,), items=mine)

        for done, found in self.crew.over(self.grid.tiles(), call):
            start = 0
            for block in blocks_of(done.items):
                out[self.grid.span(block)] += found[start : start + self.grid.rows(block)]
                start += self.grid.rows(block)
        image = torch.from_numpy(out)
        return (image if self.scale is None else self.scale * image).reshape(v.shape)

    # -- entries -------------------------------------------------------------------------------------------
    def diagonal(self) -> Tensor:
        """k(x_i, x_i), scaled, in float64."""
        return self._diagonal if self.scale is None else self._diagonal * self.scale[:, 0] ** 2

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        return self._by_rows("diagonal", (), ())

    def columns(self, index: Tensor) -> Tensor:
        """The columns of these rows, (n, len(index)), in float64."""
        found = self._by_rows("columns", (len(index),), (self.X[index].numpy(),))
        return found if self.scale is None else self.scale * found * self.scale[index, 0]

    def low_rank(self, rank: int, seed: int) -> Factor:
        """Randomly pivoted Cholesky; a large factor is kept by the workers."""
        if 8 * self.n * rank <= _SMALL:
            return pivoted_cholesky(self.columns, self.diagonal(), rank, seed)
        return ClusterFactor(self, rank, seed)

    def _by_rows(self, step: str, width: tuple[int, ...], arrays: tuple[Any, ...]) -> Tensor:
        out = torch.empty(self.n, *width, dtype=torch.float64)

        def call(worker: str, mine: list[int]) -> Call:
            return self.crew.ask(worker, f"kernel-{step}", step, mine, arrays=arrays, items=mine)

        for done, found in self.crew.over(range(self.grid.count), call):
            for block, values in zip(done.items, found, strict=True):
                out[self.grid.span(block)] = torch.as_tensor(values)
        return out

    def matrix(self) -> Tensor:
        """All of K, without the scale, in float64 in this process."""
        K = torch.empty(self.n, self.n, dtype=torch.float64)
        most = max(1, _MESSAGE // (8 * self.grid.size**2))

        def call(worker: str, mine: list[Tile]) -> Call:
            return self.crew.ask(worker, "kernel-tiles", "computed", mine, items=mine)

        total = len(self.grid.tiles())
        done = self.crew.over(self.grid.tiles(), call, most)
        for (i, j), values in track(_pairs(done), total, "kernel", self.progress):
            rows, columns = self.grid.span(i), self.grid.span(j)
            K[rows, columns] = torch.as_tensor(values)
            K[columns, rows] = K[rows, columns].T
        return K

    @property
    def losses(self) -> int:
        """How often a worker was lost, or its answer."""
        return self.crew.losses

    @property
    def owners(self) -> dict[Tile, str]:
        """The worker of every tile, once something was computed."""
        return dict(self.crew.owner)

    @property
    def built_part(self) -> float:
        """How many of the tiles were computed by those who own them now."""
        return len(self.crew.built) / max(len(self.grid.tiles()), 1)

    def fingerprint(self) -> str:
        """Of the rows, and of the kernel between a few of them."""
        return str(self.document["content"])

    # -- tiles ---------------------------------------------------------------------------------------------
    def build(self) -> None:
        """Compute the tiles that are kept, where they are not there yet."""
        if self.document["store"] == "none":
            return
        self.crew.settle()
        stale = {tile: before for tile, before in self.crew.built.items() if self.crew.owner.get(tile) != before}
        homeless: list[Tile] = []
        while missing := self._missing():
            most = max(1, -(-len(missing) // (_BATCHES * max(len(self.crew.strength), 1))))
            for tile in track(self._keep(missing, most, homeless), len(missing), "kernel", self.progress):
                self.crew.built[tile] = self.crew.owner[tile]
        if homeless:
            warn(_no_room(len(homeless), len(self.grid.tiles())))
        gone = {w: [t for t, before in stale.items() if before == w] for w in self.crew.strength}
        calls = [self.crew.ask(w, "kernel-drop", "keep", [], old, items=()) for w, old in gone.items() if old]
        for _ in self.cluster.run(calls):  # who is lost meanwhile has nothing to drop
            pass

    def _missing(self) -> list[Tile]:
        built, owner = self.crew.built, self.crew.owner
        return [tile for tile in self.grid.tiles() if tile not in built or built[tile] != owner.get(tile)]

    def _keep(self, missing: list[Tile], most: int, homeless: list[Tile]) -> Iterator[Tile]:
        def call(worker: str, mine: list[Tile]) -> Call:
            return self.crew.ask(worker, "kernel-build", "keep", mine, items=mine)

        for done, left in self.crew.over(missing, call, most):
            homeless += left
            yield from done.items

    # -- the end -------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Give the workers' memory back; also done when the operator or its client goes."""
        self.crew.close()

    def __enter__(self) -> ClusterKernel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _dtype(name: str, n: int, workers: Mapping[str, Mapping[str, Any]]) -> torch.dtype:
    if name not in ("auto", "float32", "float64"):
        raise InvalidInputError(f"dtype must be 'auto', 'float32' or 'float64', got {name!r}")
    room = 0.5 * sum(about.get("memory_limit") or 0 for about in workers.values())
    fits = triangle_bytes(n, torch.float64) < room or not room
    return torch.float32 if name == "float32" or (name == "auto" and not fits) else torch.float64


def _no_room(count: int, total: int) -> str:
    return (
        f"{count} of {total} tiles have no room in the workers' memory and are computed again in every product; use "
        "more workers, a higher memory limit or memory= (bytes per worker), dtype='float32', or folder= on their disks"
    )


def _pairs(done: Iterator[tuple[Call, Any]]) -> Iterator[tuple[Tile, Any]]:
    for call, found in done:
        yield from zip(call.items, found, strict=True)
