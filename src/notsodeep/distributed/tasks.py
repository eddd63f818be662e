"""What runs on a worker. Arguments are numbers, arrays and JSON documents; the functions are those of the package.

State lies in a store of the worker's own: nothing of it is known to the scheduler, moved or copied. It lives as long
as its lease, the only thing that the scheduler holds; when a client goes away, leases and stores go with it.
"""

from __future__ import annotations

import ctypes
import os
import platform
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from distributed import Worker, get_worker

from .. import __version__
from ..errors import ClusterError
from .share import Share

MISSING = "missing"
"""The answer of a worker that knows nothing of a run: it was restarted, or its memory was reclaimed."""
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
        try:
            return getattr(share, step)(*arguments)
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            share.shrink()
        try:
            return getattr(share, step)(*arguments)
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            raise ClusterError(
                f"worker {worker.address} ran out of memory, even with no tiles kept: {len(share.rows)} blocks of rows "
                f"take {sum(r.nbytes for r in share.rows.values()) / 2**30:.2f} GiB. Use more workers or a higher "
                "memory limit, smaller tiles (tile=), or fewer columns"
            ) from None


def _is_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "allocate memory" in str(error) or "out of memory" in str(error)
