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

from .._arguments import checked
from .._arrays import as_rows
from .._words import Kernel
from ..errors import InvalidInputError, MissingExtraError
from ..solve import NetworkKernel
from ..solve._limits import LIMITS as SOLVE_LIMITS
from ..solve.network import Source
from .operator import kernel_block, result_of, send_rows, workers_of


@checked
def kernel_to_zarr(
    network: Source,
    X: Any,
    path: str | Path,
    kernel: Kernel = "ck",
    *,
    client: Any,
    dtype: Literal["float32", "float64"] = "float64",
) -> Any:
    """Write the kernel matrix as a Zarr array on the workers; it appears under its name when it is complete.

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
    array = kernel_array(client, NetworkKernel(network, kernel), as_rows(X).to("cpu", torch.float64))
    result_of(client, client.compute(dask.array.to_zarr(array.astype(dtype), str(part), compute=False)))
    part.rename(target)
    return zarr.open_array(str(target), mode="r")


def kernel_array(client: Any, kernel: NetworkKernel, X: Tensor) -> Any:
    """Return the kernel matrix as a Dask array, of which each tile of the upper triangle is computed once."""
    workers_of(client)
    starts = [*range(0, len(X), SOLVE_LIMITS.panel), len(X)]
    blocks, rows = range(len(starts) - 1), send_rows(client, X, starts)
    compute, transpose = dask.delayed(kernel_block, pure=False), dask.delayed(np.transpose, pure=False)
    upper = {(i, j): compute(kernel, rows[i], None if i == j else rows[j]) for i in blocks for j in blocks[i:]}

    def block(i: int, j: int) -> Any:
        shape = (starts[i + 1] - starts[i], starts[j + 1] - starts[j])
        return dask.array.from_delayed(upper[i, j] if i <= j else transpose(upper[j, i]), shape, float)

    return dask.array.block([[block(i, j) for j in blocks] for i in blocks])
