"""A kernel matrix too large for one memory, as a Zarr array that workers write."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, Literal

import dask
import dask.array
import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, whole
from .._arrays import as_rows
from .._words import Kernel
from ..errors import InvalidInputError, MissingExtraError
from ..solve import NetworkKernel
from ..solve._limits import LIMITS as SOLVE_LIMITS
from ..solve.network import Source
from .operator import Array, result_of, send_rows, tensor_of, workers_of


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
) -> Any:
    """Write the kernel matrix as a Zarr array, chunk by chunk on the workers.

    It appears under its name when it is complete.

    Parameters
    ----------
    network : DEQ, ENN or Twin
    X : array of shape (n, p)
    path : str or Path
        A folder that every worker reaches.
    kernel : "ck", "ntk" or "ntk_frozen"
    client : dask.distributed.Client
    dtype : "float32" or "float64"
        Of the entries, which are computed in float64.
    tile : int, optional
        Rows of a chunk; 2,048 by default.

    Returns
    -------
    zarr.Array of shape (n, n)

    Examples
    --------
    >>> import tempfile, notsodeep as nsd
    >>> from distributed import Client
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    ...         K = kernel_to_zarr(nsd.ENN(["relu"]), torch.eye(3), f"{folder}/K.zarr", client=client)
    ...     print(K.shape, float(K[0, 0]))
    (3, 3) 0.5
    """
    try:
        import zarr
    except ImportError:
        raise MissingExtraError("zarr", "dask") from None
    target = Path(path).absolute()
    if target.exists():
        raise InvalidInputError(f"{target} exists; remove it, or choose another path")
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)  # what a stopped run left
    rows = as_rows(X).to("cpu", torch.float64)
    size = min(len(rows), SOLVE_LIMITS.panel if tile is None else whole("tile", tile))
    array = kernel_array(client, NetworkKernel(network, kernel), rows, dtype, size)
    result_of(client, client.compute(dask.array.to_zarr(array, str(part), compute=False)))
    part.rename(target)
    return zarr.open_array(str(target), mode="r")


def kernel_array(client: Any, kernel: NetworkKernel, X: Tensor, dtype: str, size: int) -> Any:
    """Return the kernel matrix as a Dask array, of which each tile of the upper triangle is computed once."""
    workers_of(client)
    starts = [*range(0, len(X), size), len(X)]
    blocks, rows = range(len(starts) - 1), send_rows(client, X, starts)
    compute, transpose = dask.delayed(kernel_tile, pure=False), dask.delayed(np.transpose, pure=False)
    upper = {(i, j): compute(kernel, dtype, rows[i], None if i == j else rows[j]) for i in blocks for j in blocks[i:]}

    def block(i: int, j: int) -> Any:
        shape = (starts[i + 1] - starts[i], starts[j + 1] - starts[j])
        return dask.array.from_delayed(upper[i, j] if i <= j else transpose(upper[j, i]), shape, dtype)

    return dask.array.block([[block(i, j) for j in blocks] for i in blocks])


def kernel_tile(kernel: NetworkKernel, dtype: str, rows: Array, others: Array | None) -> Array:
    """Return k(rows, others), or without others of the rows with themselves."""
    found = kernel(tensor_of(rows), None if others is None else tensor_of(others))
    return found.numpy().astype(dtype, copy=False)
