"""A kernel matrix on the workers of a Dask cluster, as futures of shares of its upper triangle.

The triangle is cut into tiles, and neighbouring tiles form a share. A product is one task for each share and a tree of
sums. Rows and vectors travel inside their tasks, so that Dask can compute again whatever a lost worker held.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass
from typing import Any

import dask
import numpy as np
import torch
from torch import Tensor

from distributed import Client, Future, KilledWorker

from .._arguments import checked
from .._arrays import Array
from ..errors import ClusterError, InvalidInputError
from ..solve import NetworkKernel
from ..solve._limits import LIMITS as SOLVE_LIMITS
from ..solve.operators import Dtype, KernelOperator, add_block, as_columns, stored_dtype, triangle_bytes

Tile = tuple[int, int]
Parts = dict[int, Array]  # of a matrix of n rows, by the number of their block of rows


@dataclass(frozen=True)
class Limits:
    """Numbers that decide speed and memory, not results."""

    shares: int = 4  # for each worker: what a lost one held is spread over the others
    share_bytes: int = 1 << 30  # of a share at most: what Dask moves or writes to its disk at once
    patience: float = 30.0  # seconds without any worker after which a result is given up


LIMITS = Limits()


class ClusterKernel(KernelOperator):
    """D k(X, X) D on the workers of a Dask cluster, with D the identity or a diagonal matrix.

    Parameters
    ----------
    client : dask.distributed.Client
        The client, with its own security settings; no port is opened here.
    kernel : NetworkKernel
    X : Tensor of shape (n, p)
    scale : Tensor of shape (n,), optional
        The diagonal of D.
    dtype : "auto", "float32" or "float64"
        Of the stored entries; ``"auto"`` is float64 where the triangle takes less than half of the workers' memory.

    Raises
    ------
    ClusterError
        If the cluster has no workers or keeps losing them.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> from distributed import Client
    >>> X = torch.eye(3, dtype=torch.float64)
    >>> with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    ...     with ClusterKernel(client, nsd.solve.NetworkKernel(nsd.ENN(["relu"]), "ck"), X) as K:
    ...         print(K @ X[0])
    tensor([0.5000, 0.1592, 0.1592], dtype=torch.float64)
    """

    @checked
    def __init__(
        self, client: Any, kernel: NetworkKernel, X: Tensor, *, scale: Tensor | None = None, dtype: Dtype = "float64"
    ) -> None:
        workers = workers_of(client)
        memory = sum(about.get("memory_limit") or 0 for about in workers.values()) or float("inf")
        super().__init__(kernel, X.to("cpu", torch.float64), scale, stored_dtype(dtype, len(X), memory))
        self.client = client
        wanted = max(LIMITS.shares * len(workers), triangle_bytes(self.n, self.dtype) // LIMITS.share_bytes)
        self.starts = block_starts(self.n, wanted)
        self.shares = shares_of(len(self.starts) - 1, wanted)
        self.rows = send_rows(client, self.X, self.starts)
        self._stored: list[Future] = []

    def _product(self, v: Tensor, exact: bool) -> Tensor:
        if not exact and not self._stored:
            self._stored = self._tiles(str(self.dtype).removeprefix("torch."))
        given = submit(self.client, kernel_data, v.to("cpu", torch.float64).numpy())
        parts = [
            submit(self.client, fresh_product, self.kernel, tiles, self.starts, given, self._needed(tiles))
            if exact
            else submit(self.client, kernel_product, tiles, self.starts, given, self._stored[i])
            for i, tiles in enumerate(self.shares)
        ]
        return summed(self.client, parts)

    def _tiles(self, dtype: str) -> list[Future]:
        given = self.client, kernel_tiles, self.kernel
        return [submit(*given, tiles, dtype, self._needed(tiles)) for tiles in self.shares]

    def _needed(self, tiles: Sequence[Tile]) -> dict[int, Future]:
        return {block: self.rows[block] for block in blocks_of(tiles)}

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        return self._by_rows([submit(self.client, kernel_diagonal, self.kernel, rows) for rows in self.rows])

    def _compute_columns(self, others: Tensor) -> Tensor:
        given = submit(self.client, kernel_data, others.numpy())
        return self._by_rows([submit(self.client, kernel_block, self.kernel, rows, given) for rows in self.rows])

    def _by_rows(self, futures: list[Future]) -> Tensor:
        return torch.cat([tensor_of(result_of(self.client, future)) for future in futures])

    def matrix(self) -> Tensor:
        """Return all of K, without the scale, in float64 in this process, of shape (n, n)."""
        K = torch.empty(self.n, self.n, dtype=torch.float64)
        futures = self._tiles("float64")
        futures.reverse()
        for tiles in self.shares:
            for (i, j), values in zip(tiles, result_of(self.client, futures.pop()), strict=True):
                rows, columns = (slice(*self.starts[b : b + 2]) for b in (i, j))
                K[rows, columns] = tensor_of(values)
                K[columns, rows] = K[rows, columns].T
        return K

    def close(self) -> None:
        """Release what the workers hold; this also happens when the operator is no longer used."""
        self._stored, self.rows = [], []

    def __enter__(self) -> ClusterKernel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def expand(client: Any, kernel: NetworkKernel, X: Tensor, coefficients: Tensor, new: Tensor) -> Tensor:
    """Return f(x) = sum_i a_i k(x, x_i) at the rows ``new``, (m, k); workers take some of the training rows each."""
    size = -(-len(X) // (LIMITS.shares * len(workers_of(client))))
    points = submit(client, kernel_data, new.cpu().double().numpy())
    pairs = zip(*(part.cpu().double().split(size) for part in (X, coefficients)), strict=True)
    parts = [submit(client, kernel_expansion, kernel, x.numpy(), a.numpy(), points) for x, a in pairs]
    return summed(client, parts)


def block_starts(n: int, shares: int) -> list[int]:
    """Return the first rows of the blocks, and n: blocks of at most 2,048 rows, and enough tiles for all shares."""
    count = max(-(-n // SOLVE_LIMITS.panel), int(np.ceil(np.sqrt(2 * shares))))
    return [*range(0, n, -(-n // count)), n]


def shares_of(blocks: int, count: int) -> list[list[Tile]]:
    """Cut the tiles of the upper triangle into shares of neighbours, which need few of the rows.

    >>> shares_of(2, 2)
    [[(0, 0), (0, 1)], [(1, 1)]]
    """
    bits = range(blocks.bit_length())

    def along_curve(tile: Tile) -> int:  # Morton's: the bits of i and j in turn
        return sum((((tile[0] >> b) & 1) << (2 * b + 1)) | (((tile[1] >> b) & 1) << (2 * b)) for b in bits)

    tiles = sorted(((i, j) for i in range(blocks) for j in range(i, blocks)), key=along_curve)
    size = -(-len(tiles) // count)
    return [tiles[first : first + size] for first in range(0, len(tiles), size)]


def blocks_of(tiles: Iterable[Tile]) -> list[int]:
    """Return the blocks of rows that some tiles need."""
    return sorted({block for tile in tiles for block in tile})


# ---- tasks, named for Dask's dashboard ---------------------------------------------------------------------


def kernel_data(values: Array) -> Array:
    """Return what came with the task: other tasks take it from this worker."""
    return values


def kernel_tiles(kernel: NetworkKernel, tiles: Sequence[Tile], dtype: str, rows: Mapping[int, Array]) -> list[Array]:
    """Return tiles of the kernel, computed in float64 and rounded to ``dtype``."""
    return [kernel_block(kernel, rows[i], None if i == j else rows[j]).astype(dtype, copy=False) for i, j in tiles]


def kernel_product(tiles: Sequence[Tile], starts: Sequence[int], v: Array, values: Sequence[Array]) -> Parts:
    """Return the part of K v that these tiles make."""
    blocks = blocks_of(tiles)
    sizes = [starts[b + 1] - starts[b] for b in blocks]
    first = dict(zip(blocks, np.cumsum([0, *sizes]).tolist(), strict=False))
    needed = tensor_of(np.concatenate([v[starts[b] : starts[b + 1]] for b in blocks]))
    dtype = torch.float32 if values[0].dtype == np.float32 else torch.float64
    low, out = as_columns(needed, dtype), as_columns(torch.zeros_like(needed), torch.float64)
    for (i, j), tile in zip(tiles, values, strict=True):
        add_block(out, low, first[i], first[j], tensor_of(tile))
    return {b: part.contiguous().numpy() for b, part in zip(blocks, out.split(sizes), strict=True)}


def fresh_product(
    kernel: NetworkKernel, tiles: Sequence[Tile], starts: Sequence[int], v: Array, rows: Mapping[int, Array]
) -> Parts:
    """Return the part of K v that these tiles make, each computed again in float64."""
    return add_parts(*(kernel_product([t], starts, v, kernel_tiles(kernel, [t], "float64", rows)) for t in tiles))


def kernel_diagonal(kernel: NetworkKernel, rows: Array) -> Array:
    """Return k(x, x) of each row."""
    return kernel.diagonal(tensor_of(rows)).numpy()


def kernel_block(kernel: NetworkKernel, rows: Array, others: Array | None) -> Array:
    """Return k(rows, others), or without others that of the rows with themselves."""
    return kernel(tensor_of(rows), None if others is None else tensor_of(others)).numpy()


def kernel_expansion(kernel: NetworkKernel, X: Array, coefficients: Array, points: Array) -> Parts:
    """Return the part of an expansion that some training rows make."""
    return {0: kernel.expansion(*map(tensor_of, (points, X, coefficients))).numpy()}


def add_parts(*parts: Parts) -> Parts:
    """Return the sum of several parts."""
    total: Parts = {}
    for part in parts:
        for block, values in part.items():
            total[block] = total[block] + values if block in total else values
    return total


def tensor_of(values: Array) -> Tensor:
    """Return an array as a tensor; memory from the network may be read-only, which torch does not take."""
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def submit(client: Client, function: Any, *arguments: Any) -> Future:
    """Start a task; arrays among its arguments travel with it, however large."""
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1PiB"}):
        return client.submit(function, *arguments, pure=False)


def send_rows(client: Client, X: Tensor, starts: Sequence[int]) -> list[Future]:
    """Send each block of rows to a worker."""
    return [submit(client, kernel_data, X[first:last].numpy()) for first, last in itertools.pairwise(starts)]


def summed(client: Client, futures: list[Future]) -> Tensor:
    """Return the sum of parts, added in a tree on the workers, with its blocks one under the other."""
    while len(futures) > 1:
        futures = [submit(client, add_parts, *futures[k : k + 4]) for k in range(0, len(futures), 4)]
    parts: Parts = result_of(client, futures[0])
    return torch.cat([tensor_of(parts[block]) for block in sorted(parts)])


def workers_of(client: Any) -> Mapping[str, Any]:
    """Return the workers of a client by their addresses; wait a while for the first one."""
    if not isinstance(client, Client):
        raise InvalidInputError(
            f"client must be a dask.distributed.Client, got {type(client).__name__}; for instance "
            "Client('tcp://scheduler:8786')"
        )
    if client.asynchronous:
        raise InvalidInputError("an asynchronous client is not supported; use Client(..., asynchronous=False)")
    try:
        client.wait_for_workers(1, timeout=LIMITS.patience)
        workers: Mapping[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    except (OSError, TimeoutError, RuntimeError, AttributeError) as error:
        raise ClusterError(
            f"the cluster has no workers, or its scheduler does not answer ({error or type(error).__name__}); start "
            "some (dask worker ADDRESS, cluster.scale(n)) and try again"
        ) from None
    return workers


def result_of(client: Client, future: Future) -> Any:
    """Wait for a result; a cluster that has gone is an error of its own."""
    while True:
        try:
            return future.result(timeout=LIMITS.patience)
        except KilledWorker as error:
            raise ClusterError(
                f"workers were lost again and again: {error}. As a rule their memory is too small: use more workers, a "
                "higher memory limit, or dtype='float32'"
            ) from None
        except (TimeoutError, CancelledError, OSError):
            if future.status == "error":  # of the work itself
                raise
            if future.status == "cancelled":
                raise ClusterError("the scheduler has gone; start a new one, with a new client") from None
            workers_of(client)
