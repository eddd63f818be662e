"""``--scheduler ADDRESS`` and ``--workers N``: the client of a cluster for the time of a command."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from ..errors import ClusterError, InvalidInputError, MissingExtraError
from .output import note

__all__ = ["Scheduler", "Workers", "client_from"]

Scheduler = Annotated[
    str | None, typer.Option("--scheduler", help="Compute on the Dask cluster of this address: tcp://host:8786")
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Compute on so many processes of this machine (Dask).")
]
_PATIENCE = 15  # seconds for a scheduler to answer


@contextlib.contextmanager
def client_from(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """A client, or None where neither was asked for; a cluster of processes goes with the command."""
    if scheduler is None and workers is None:
        yield None
        return
    if scheduler is not None and workers is not None:
        raise InvalidInputError("give --scheduler for a cluster that runs, or --workers for one of this machine.")
    try:
        from distributed import Client, LocalCluster
    except ImportError:
        raise MissingExtraError("distributed", "dask") from None
    with contextlib.ExitStack() as stack:
        if workers is not None:
            threads = max(1, (os.cpu_count() or 1) // workers)
            local = LocalCluster(
                n_workers=workers, threads_per_worker=threads, dashboard_address=":0", silence_logs="ERROR"
            )
            scheduler = stack.enter_context(local).scheduler_address
        try:
            client = stack.enter_context(Client(scheduler, timeout=_PATIENCE))
        except (OSError, ValueError) as error:
            raise ClusterError(
                f"no scheduler answers at {scheduler} ({error or type(error).__name__}). Start one with: dask scheduler"
            ) from None
        note(f"cluster: {len(client.scheduler_info(n_workers=-1)['workers'])} workers, {client.dashboard_link}")
        yield client
