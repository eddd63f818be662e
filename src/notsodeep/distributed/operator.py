"""A kernel matrix in tiles on the workers of a cluster, as an operator that :mod:`notsodeep.solve` solves with."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from .._progress import track
from ..errors import ClusterError, InvalidInputError, SerialisationError
from ..solve import NetworkKernel, triangle_bytes
from ..solve.operator import fingerprint
from . import tasks
from .cluster import Call, Cluster, Lost
from .layout import Grid, Tile, blocks_of, move, row_owners, tile_size

__all__ = ["ClusterKernel", "ClusterStore"]

ClusterStore = Literal["auto", "memory", "disk", "none"]
_STORES = ("auto", "memory", "disk", "none")
_STRIKES = 3  # losses per worker without one finished part, after which a solve gives up
_BATCHES = 16  # parts in which a worker computes its tiles: steps of the progress bar
_EVERY = 1.0  # seconds between looks for new workers
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

    def __init__(
        self,
        client: Any,
        kernel: NetworkKernel,
        X: Tensor,
        *,
        scale: Tensor | None = None,
        dtype: torch.dtype | Literal["auto", "float32", "float64"] = torch.float64,
        store: ClusterStore = "auto",
        folder: str | Path | None = None,
        memory: float | None = None,
        tile: int | None = None,
        patience: float = 10.0,
        progress: bool | None = None,
    ) -> None:
        if store not in _STORES:
            raise InvalidInputError(f"store must be one of {', '.join(_STORES)}, got {store!r}")
        self.cluster = client if isinstance(client, Cluster) else Cluster(client, patience)
        self.kernel, self.X, self.n = kernel, X.to("cpu", torch.float64), len(X)
        self.scale = None if scale is None else scale.to(self.X).reshape(-1, 1)
        self.progress, self.memory = progress, float("inf") if store == "memory" and memory is None else memory
        self.folder = None if folder is None else str(folder)
        workers = self.cluster.wait_for_workers()
        self.dtype = dtype if isinstance(dtype, torch.dtype) else _dtype(dtype, self.n, workers)
        self.grid = Grid(self.n, tile_size(self.n, len(workers)) if tile is None else min(tile, self.n))
        self.run, self.document = uuid4().hex[:16], self._describe(store)
        self.losses = 0
        self._owner: dict[Tile, str] = {}
        self._row_owner: dict[int, str] = {}
        self._strength: dict[str, float] = {}
        self._leases: dict[str, Any] = {}
        self._loaded: dict[str, set[int]] = {}
        self._built: dict[Tile, str] = {}
        self._strikes, self._looked = 0, 0.0

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
            return Call(worker, name, tasks.product, (self.run, mine, blocks, fresh), (part,), items=mine)

        for done, found in self.over(self.grid.tiles(), call):
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
        return self._by_rows("kernel-diagonal", tasks.diagonal, (), ())

    def columns(self, index: Tensor) -> Tensor:
        """The columns of these rows, (n, len(index)), in float64."""
        found = self._by_rows("kernel-columns", tasks.columns, (len(index),), (self.X[index].numpy(),))
        return found if self.scale is None else self.scale * found * self.scale[index, 0]

    def _by_rows(self, name: str, function: Callable[..., Any], width: tuple[int, ...], arrays: tuple[Any, ...]) -> Any:
        out = torch.empty(self.n, *width, dtype=torch.float64)

        def call(worker: str, mine: list[int]) -> Call:
            return Call(worker, name, function, (self.run, mine), arrays, items=mine)

        for done, found in self.over(range(self.grid.count), call):
            for block, values in zip(done.items, found, strict=True):
                out[self.grid.span(block)] = torch.as_tensor(values)
        return out

    def matrix(self) -> Tensor:
        """All of K, without the scale, in float64 in this process."""
        K = torch.empty(self.n, self.n, dtype=torch.float64)
        most = max(1, _MESSAGE // (8 * self.grid.size**2))

        def call(worker: str, mine: list[Tile]) -> Call:
            return Call(worker, "kernel-tiles", tasks.tiles, (self.run, mine), items=mine)

        total = len(self.grid.tiles())
        done = self.over(self.grid.tiles(), call, most)
        for (i, j), values in track(_pairs(done), total, "kernel", self.progress):
            rows, columns = self.grid.span(i), self.grid.span(j)
            K[rows, columns] = torch.as_tensor(values)
            K[columns, rows] = K[rows, columns].T
        return K

    @property
    def owners(self) -> dict[Tile, str]:
        """The worker of every tile, once something was computed."""
        return dict(self._owner)

    @property
    def built_part(self) -> float:
        """How many of the tiles were computed by those who own them now."""
        return len(self._built) / max(len(self.grid.tiles()), 1)

    def fingerprint(self) -> str:
        """Of the rows, and of the kernel between a few of them."""
        return str(self.document["content"])

    # -- tiles ---------------------------------------------------------------------------------------------
    def build(self) -> None:
        """Compute the tiles that are kept, where they are not there yet."""
        if self.document["store"] == "none":
            return
        while missing := [t for t in self.grid.tiles() if self._built.get(t) != self._owner.get(t) or not self._owner]:
            most = max(1, -(-len(missing) // (_BATCHES * max(len(self._strength), 1))))

            def call(worker: str, mine: list[Tile]) -> Call:
                gone = [t for t, before in self._built.items() if before == worker != self._owner[t]]
                return Call(worker, "kernel-build", tasks.keep, (self.run, mine, gone), items=mine)

            for tile in track(self._keep(missing, call, most), len(missing), "kernel", self.progress):
                self._built[tile] = self._owner[tile]

    def _keep(self, missing: list[Tile], call: Callable[[str, list[Tile]], Call], most: int) -> Iterator[Tile]:
        for done, _ in self.over(missing, call, most):
            yield from done.items

    # -- the loop of every step ----------------------------------------------------------------------------
    def over(
        self, items: Iterable[Any], call: Callable[[str, list[Any]], Call], most: int | None = None
    ) -> Iterator[tuple[Call, Any]]:
        """Answers for all items, each by its owner; parts whose worker is lost are asked for again."""
        pending = dict.fromkeys(items)
        while pending:
            self._settle(force=self.losses != self._seen_losses)
            groups: dict[str, list[Any]] = {}
            for item in pending:
                owner = self._row_owner[item] if isinstance(item, int) else self._owner[item]
                groups.setdefault(owner, []).append(item)
            parts = [(w, mine[k : k + (most or len(mine))]) for w, mine in groups.items()
                     for k in range(0, len(mine), most or len(mine))]  # fmt: skip
            for done, found in self.cluster.run([call(worker, mine) for worker, mine in parts]):
                if isinstance(found, Lost):
                    self._lose(done.worker, found)
                elif isinstance(found, str) and found == tasks.MISSING:
                    self._lose(done.worker, Lost("restarted"))
                else:
                    self._strikes = 0
                    for item in done.items:
                        pending.pop(item, None)
                    yield done, found

    _seen_losses = 0

    def _lose(self, worker: str, lost: Lost) -> None:
        """Forget what a worker had; give up where workers are lost again and again."""
        self._leases.pop(worker, None)
        self._loaded.pop(worker, None)
        self._built = {tile: owner for tile, owner in self._built.items() if owner != worker}
        self.losses += 1
        self._strikes += 1
        if self._strikes > _STRIKES * max(len(self._strength), 1):
            rows = max((self._needs(w) for w in self._strength), default=0)
            raise ClusterError(
                f"workers were lost {self._strikes} times without one finished part (last: {worker}, {lost.reason}). "
                f"They may run out of memory: rows take up to {rows / 2**30:.2f} GiB per worker, beside tiles. Use "
                "more workers or a higher memory limit, memory= (bytes per worker), or store='disk'"
            )

    def _needs(self, worker: str) -> int:
        mine = blocks_of(tile for tile, owner in self._owner.items() if owner == worker)
        return sum(self.grid.rows(b) for b in mine) * self.X.shape[1] * 8

    def _settle(self, force: bool) -> None:
        """Owners for everything among those who are there; rows and a place on each of them."""
        if not force and self._owner and time.monotonic() - self._looked < _EVERY:
            return self._supply()
        alive = self.cluster.alive()
        if not alive or set(self._strength) - set(alive):  # wait a while for those who are restarted
            alive = self.cluster.wait_for_workers(max(1, len(self._strength)))
        self._looked, self._seen_losses = time.monotonic(), self.losses
        strength = {name: float(about["nthreads"]) for name, about in alive.items()}
        if strength != self._strength or not self._owner:
            self.cluster.agree(list(strength))
            self._strength = strength
            self._owner = move(self.grid, self._owner, strength)
            self._row_owner = row_owners(self.grid, self._owner, strength)
            for name in set(self._leases) - set(strength):
                del self._leases[name]
                self._loaded.pop(name, None)
        return self._supply()

    def _supply(self) -> None:
        """Open shares and send rows where they are missing; every block is sent once, workers pass it on."""
        fresh = [name for name in self._strength if name not in self._leases]
        opening = [
            Call(name, "kernel-open", tasks.open_share, (self.run, self.document, self.memory, self.folder), held=True)
            for name in fresh
        ]
        for call, lease in self.cluster.run(opening) if opening else ():
            if isinstance(lease, Lost):
                self._lose(call.worker, lease)
                return self._settle(force=True)
            self._leases[call.worker], self._loaded[call.worker] = lease, set()
        wanted = self._wanted()
        if not any(wanted.values()):
            return None
        sent = self._scatter(wanted)
        calls = [
            Call(name, "kernel-rows", tasks.load, (self.run, blocks, [sent[b] for b in blocks]), items=blocks)
            for name, blocks in wanted.items()
            if blocks
        ]
        for call, found in self.cluster.run(calls):
            if isinstance(found, Lost) or found == tasks.MISSING:
                self._lose(call.worker, found if isinstance(found, Lost) else Lost("restarted"))
                return self._settle(force=True)
            self._loaded[call.worker].update(call.items)
        return None

    def _wanted(self) -> dict[str, list[int]]:
        needed: dict[str, set[int]] = {name: set() for name in self._strength}
        for tile, owner in self._owner.items():
            needed[owner].update(tile)
        for block, owner in self._row_owner.items():
            needed[owner].add(block)
        return {name: sorted(blocks - self._loaded[name]) for name, blocks in needed.items()}

    def _scatter(self, wanted: dict[str, list[int]]) -> dict[int, Any]:
        """Dask's futures of the blocks, each on one of the workers that want it."""
        sent: dict[int, Any] = {}
        for k, block in enumerate(sorted({b for blocks in wanted.values() for b in blocks})):
            holders: Sequence[str] = [name for name, blocks in wanted.items() if block in blocks]
            rows = np.ascontiguousarray(self.X[self.grid.span(block)].numpy())
            try:
                sent[block] = self.cluster.client.scatter(
                    rows, workers=[holders[k % len(holders)]], hash=False, direct=self.cluster.direct
                )
            except (OSError, ValueError, TimeoutError):  # that worker is gone: the next look will say so
                sent[block] = self.cluster.client.scatter(rows, hash=False)
        return sent

    # -- the end -------------------------------------------------------------------------------------------
    def close(self) -> None:
        """Give the workers' memory back; also done when the operator or its client goes."""
        self._leases.clear()
        self._loaded.clear()
        self._built.clear()
        self._owner.clear()
        self._strength.clear()

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


def _pairs(done: Iterator[tuple[Call, Any]]) -> Iterator[tuple[Tile, Any]]:
    for call, found in done:
        yield from zip(call.items, found, strict=True)
