"""Kernel matrices too large for a memory, written by the workers tile by tile; an interrupted run goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import torch

from .._arguments import checked
from .._arrays import as_rows
from .._progress import track
from ..networks import Kernel
from ..solve import NetworkKernel, Source
from .operator import ClusterKernel
from .sinks import sink_of

_BATCHES = 8  # tasks per worker: steps of the progress bar, and what is looked at again when one is lost


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

        most = max(1, -(-len(missing) // (_BATCHES * len(operator.cluster.wait_for_workers()))))
        done = operator.crew.over(missing, operator.crew.each("kernel-write", "write", place), most)
        for _ in track((t for call, _ in done for t in call.items), len(missing), "kernel", progress):
            pass
        sink.end()
