"""A kernel matrix in tiles on the workers of a cluster: an operator to solve with, or a file that they write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows
from .._progress import track
from .._words import Kernel, Store
from ..errors import InvalidInputError, SerialisationError, warn
from ..solve import KernelOperator, NetworkKernel, Source
from ..solve.pivoted import LowRankFactor, choose_pivots
from ..solve.tiles import stored_dtype
from .cluster import Call, Cluster
from .crew import Crew
from .layout import Grid, Tile, blocks_of, tile_size
from .sinks import sink_of
from .worker import BEHIND, Array

_BATCHES = 16  # parts in which a worker computes its tiles: steps of the progress bar
_SMALL = 1 << 26  # bytes of a factor that the client passes over sooner than messages come and go
_MESSAGE = 1 << 26  # bytes of tiles in one answer


class ClusterKernel(KernelOperator):
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
        self.cluster = Cluster.of(client, patience)
        workers = self.cluster.wait_for_workers()
        room = sum(about.get("memory_limit") or 0 for about in workers.values()) or float("inf")
        super().__init__(kernel, X.to("cpu", torch.float64), scale, stored_dtype(dtype, len(X), room), progress)
        self.grid = Grid(self.n, tile_size(self.n, len(workers)) if tile is None else min(tile, self.n))
        self.document = self._describe(kernel, store)
        bytes_each = float("inf") if store == "memory" and memory is None else memory
        place = None if folder is None else str(folder)
        self.crew = Crew(self.cluster, self.grid, self.X, self.document, bytes_each, place)

    def _describe(self, kernel: NetworkKernel, store: str) -> dict[str, Any]:
        try:
            network = kernel.to_dict()
        except SerialisationError as error:
            raise InvalidInputError(
                f"a network travels to workers as JSON, and this one has no such form: {error}. No code is sent"
            ) from None
        return {
            "kernel": network,
            "n": self.n,
            "tile": self.grid.size,
            "dtype": str(self.dtype).removeprefix("torch."),
            "store": store,
            "content": self.fingerprint(),
        }

    # -- products ------------------------------------------------------------------------------------------
    def _product(self, v: Tensor, fresh: bool) -> Tensor:
        if not fresh:
            self.build()
        name = "kernel-refine" if fresh else "kernel-product"
        given = v.to("cpu", torch.float64).numpy()
        out = np.zeros(given.shape)

        def call(worker: str, mine: list[Tile]) -> Call:
            blocks = blocks_of(mine)
            part = self.grid.part(given, blocks)
            return self.crew.ask(worker, name, "product", mine, blocks, fresh, arrays=(part,), items=mine)

        for done, found in self.crew.over(self.grid.tiles(), call):
            for there, here in self.grid.spans(blocks_of(done.items)):
                out[there] += found[here]
        return torch.from_numpy(out)

    # -- entries -------------------------------------------------------------------------------------------
    def _own(self) -> Tensor:
        return self._by_rows("diagonal", (), ())

    def _against(self, others: Tensor) -> Tensor:
        return self._by_rows("columns", (len(others),), (others.numpy(),))

    def low_rank(self, rank: int, seed: int) -> LowRankFactor:
        """Randomly pivoted Cholesky; a large factor is kept by the workers."""
        return super().low_rank(rank, seed) if 8 * self.n * rank <= _SMALL else ClusterFactor(self, rank, seed)

    def _by_rows(self, step: str, width: tuple[int, ...], arrays: tuple[Any, ...]) -> Tensor:
        call = self.crew.each(f"kernel-{step}", step, arrays=arrays)
        answers = self.crew.over(range(self.grid.count), call)
        return self.grid.put(((done.items, found) for done, found in answers), width)

    def matrix(self) -> Tensor:
        """All of K, without the scale, in float64 in this process."""
        K = torch.empty(self.n, self.n, dtype=torch.float64)
        most = max(1, _MESSAGE // (8 * self.grid.size**2))

        tiles = self.grid.tiles()
        done = self.crew.over(tiles, self.crew.each("kernel-tiles", "computed"), most)
        pairs = (pair for call, found in done for pair in zip(call.items, found, strict=True))
        for (i, j), values in track(pairs, len(tiles), "kernel", self.progress):
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
        for done, left in self.crew.over(missing, self.crew.each("kernel-build", "keep"), most):
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


def _no_room(count: int, total: int) -> str:
    return (
        f"{count} of {total} tiles have no room in the workers' memory and are computed again in every product; use "
        "more workers, a higher memory limit or memory= (bytes per worker), dtype='float32', or folder= on their disks"
    )


# ---- a low-rank factor on the workers, beside the rows of the data ------------------------------------------


class ClusterFactor:
    """F F' ~ D k(X, X) D; every worker holds F for the blocks of rows that are its own.

    Let S be the pivots and C the Cholesky factor of k(S, S): the rows of block b are F_b = k(X_b, S) C^(-T). So they
    follow from the pivots and C alone, which the client holds (rank x p and rank x rank): what a lost worker had is
    made again. The factor is that of the kernel without its scale D; with it F is D F, and C is D_S C.
    """

    def __init__(self, operator: ClusterKernel, rank: int, seed: int) -> None:
        self.operator, self.name = operator, uuid4().hex[:16]
        self.pivots = torch.zeros(0, dtype=torch.long)
        self.lower = torch.zeros(rank, rank, dtype=torch.float64)
        self._widths: dict[tuple[str, int], int] = {}
        self.residual, _ = choose_pivots(self, operator.diagonal(), rank, seed)

    @property
    def rank(self) -> int:
        return len(self.pivots)

    # -- growing -------------------------------------------------------------------------------------------
    def corner(self, proposed: Tensor) -> Tensor:
        """K - F F' between these rows; the client computes it from the pivots."""
        X, kernel, done = self.operator.X, self.operator.kernel, self.rank
        known = kernel(X[self.pivots], X[proposed]) if done else torch.zeros(0, len(proposed), dtype=torch.float64)
        self._rows = torch.linalg.solve_triangular(self.lower[:done, :done], known, upper=False).T
        d = self._scale[proposed]
        return d * (kernel(X[proposed], None) - self._rows @ self._rows.T) * d.T

    def grow(self, proposed: Tensor, kept: Tensor, lower: Tensor) -> Tensor:
        """Workers append the columns of ``proposed[kept]`` to their rows."""
        done, index = self.rank, proposed[kept]
        mine = slice(done, done + len(kept))
        self.lower[mine, :done] = self._rows[kept]
        self.lower[mine, mine] = lower / self._scale[index]
        self.pivots = torch.cat([self.pivots, index])
        taken = self.operator.grid.put(self._ask("grow", lambda _: np.array(float(len(kept)))))
        return taken * self._scale[:, 0] ** 2

    # -- use -----------------------------------------------------------------------------------------------
    def gram(self) -> Tensor:
        """F' F."""
        weights = self._scale.numpy() ** 2
        return self._summed("gram", lambda blocks: self.operator.grid.part(weights, blocks))

    def inner(self, R: Tensor) -> Tensor:
        """F' R."""
        given = (self._scale * R).numpy()
        return self._summed("inner", lambda blocks: self.operator.grid.part(given, blocks))

    def outer(self, Z: Tensor) -> Tensor:
        """F Z."""
        given = np.ascontiguousarray(Z.numpy())
        return self._scale * self.operator.grid.put(self._ask("outer", lambda _: given), (Z.shape[1],))

    @property
    def _scale(self) -> Tensor:
        scale = self.operator.scale
        return torch.ones(self.operator.n, 1, dtype=torch.float64) if scale is None else scale

    # -- messages ------------------------------------------------------------------------------------------
    def _summed(self, step: str, values: Callable[[list[int]], Array]) -> Tensor:
        parts = [torch.as_tensor(found) for _, found in self._ask(step, values)]
        return torch.stack(parts).sum(0) if len(parts) > 1 else parts[0]

    def _ask(self, step: str, values: Callable[[list[int]], Array]) -> Iterator[tuple[Sequence[int], Array]]:
        """(blocks, answer) of all workers; one that lacks rows says so, and is told what they follow from."""
        crew, total = self.operator.crew, self.rank
        pending = set(range(self.operator.grid.count))

        def call(worker: str, mine: list[int]) -> Call:
            start = min(self._widths.get((worker, b), 0) for b in mine)
            lacking = (self.operator.X[self.pivots[start:]].numpy(), self.lower[start:total, :total].numpy())
            arrays = (values(mine), *(lacking if start < total else ()))
            given = (self.name, step, mine, start, total)
            return crew.ask(worker, f"factor-{step}", "factored", *given, arrays=arrays, items=mine)

        while pending:
            for done, found in crew.over(sorted(pending), call):
                behind = isinstance(found, str) and found == BEHIND
                self._widths |= {(done.worker, b): 0 if behind else total for b in done.items}
                if not behind:
                    pending -= set(done.items)
                    yield done.items, found


# ---- matrices too large for a memory, written by the workers tile by tile ----------------------------------


_PARTS = 8  # tasks per worker: steps of the progress bar, and what is looked at again when one is lost


@checked
def kernel_to_zarr(
    network: Source,
    X: Any,
    path: str | Path,
    kernel: Kernel = "ck",
    *,
    client: Any,
    dtype: Literal["float32", "float64"] = "float64",
    tile: int | None = None,
    progress: bool | None = None,
) -> Any:
    """The kernel matrix of the rows of X as a Zarr v3 group at ``path``, which every worker must reach; returns it.

    The array ``kernel`` has one chunk per tile; ``finished`` has a 1 for every tile of the upper triangle that is
    there. The same call goes on where another one ended; a group of another kernel or other rows is refused.
    """
    _write("zarr", network, X, path, kernel, client, dtype, tile, progress)
    import zarr

    return zarr.open_group(str(path), mode="r")["kernel"]


@checked
def kernel_to_npy(
    network: Source,
    X: Any,
    path: str | Path,
    kernel: Kernel = "ck",
    *,
    client: Any,
    dtype: Literal["float32", "float64"] = "float64",
    tile: int | None = None,
    progress: bool | None = None,
) -> None:
    """The same as one .npy file (``numpy.load(path, mmap_mode="r")``), on a disk that all workers share.

    It appears under its name when it is complete; until then it lies in a hidden folder beside it.
    """
    _write("npy", network, X, path, kernel, client, dtype, tile, progress)


def _write(
    kind: str,
    network: Source,
    X: Any,
    path: str | Path,
    kernel: Kernel,
    client: Any,
    dtype: str,
    tile: int | None,
    progress: bool | None,
) -> None:
    rows = as_rows(X).to(torch.float64)
    # the size of tiles must not depend on how many workers there are now: another cluster may go on
    size = min(len(rows), 2048 if tile is None else tile)
    with ClusterKernel(client, NetworkKernel(network, kernel), rows, store="none", tile=size) as operator:
        place = (kind, str(Path(path).absolute()), operator.n, size, dtype)
        sink = sink_of(*place)
        sink.begin({**operator.document, "dtype": dtype, "store": kind})
        there = sink.finished()
        missing = [t for t in operator.grid.tiles() if t not in there]

        most = max(1, -(-len(missing) // (_PARTS * len(operator.cluster.wait_for_workers()))))
        done = operator.crew.over(missing, operator.crew.each("kernel-write", "write", place), most)
        for _ in track((t for call, _ in done for t in call.items), len(missing), "kernel", progress):
            pass
        sink.end()
