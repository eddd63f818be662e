"""Calls on the workers of a Dask cluster, each with an end: an answer, an error, or the news that its worker is gone.

The client is the user's own, with whatever security it has; no port is opened here.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from distributed import Client, KilledWorker

from .._arguments import checked
from ..errors import ClusterError, InvalidInputError
from .worker import versions

HERE = versions
"""What this process runs."""
_LOOK = 0.3  # seconds between looks at who is there
_STRIKES = 3  # losses per worker that a farm of jobs puts up with
_NONE = 6.0  # patience with a cluster that has no workers at all, in units of that with a single one
_INSIDE = 1 << 16  # bytes of an array that travels sooner inside its task, by way of the scheduler
_PROBE = 3.0  # seconds for a first connection from the client to a worker


@dataclass(frozen=True)
class Call:
    """``function(*arguments, *arrays)`` on one worker; large arrays travel beside the task, not inside it."""

    worker: str
    name: str
    """What Dask's dashboard shows."""
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    arrays: tuple[Any, ...] = ()
    held: bool = False
    """The answer stays on the worker; what comes back is Dask's future of it."""
    pinned: bool = False
    """And it stays as it is: an actor to Dask, which neither spills nor copies it."""
    needs: tuple[str, ...] = ()
    """Other workers that hold something for it: without them it would wait for ever."""
    items: Sequence[Any] = field(default=(), compare=False)
    """What the call is about, for the caller."""


@dataclass(frozen=True)
class Lost:
    """The worker of a call is gone, or what it needed is."""

    reason: str


class Cluster:
    """The workers behind a client."""

    @checked
    def __init__(self, client: Any, patience: float = 10.0) -> None:
        if not isinstance(client, Client):
            raise InvalidInputError(
                f"client must be a dask.distributed.Client, got {type(client).__name__}; for instance "
                "Client('tcp://scheduler:8786')"
            )
        if client.asynchronous:
            raise InvalidInputError("an asynchronous client is not supported; use Client(..., asynchronous=False)")
        self.client, self.patience = client, patience
        self._agreed: set[str] = set()
        self._direct: bool | None = None

    @staticmethod
    def of(client: Any, patience: float = 10.0) -> Cluster:
        """The cluster of a client; one that is there already is the same."""
        return client if isinstance(client, Cluster) else Cluster(client, patience)

    # -- who is there --------------------------------------------------------------------------------------
    def alive(self) -> dict[str, Mapping[str, Any]]:
        """Address and description of every worker."""
        address = getattr(self.client.scheduler, "address", "?")
        try:
            found: Mapping[str, Any] = self.client.sync(self._identity)
        except (OSError, TimeoutError, RuntimeError, AttributeError) as error:
            raise ClusterError(
                f"the scheduler at {address} does not answer ({error or type(error).__name__}); start one and give its "
                "client. A solve with a checkpoint goes on from its last step"
            ) from None
        # one that Dask has paused, for its memory, does nothing: it loses what it held, and comes back as a new one
        return {name: about for name, about in found["workers"].items() if about.get("status") in (None, "running")}

    async def _identity(self) -> Any:
        if self.client.status not in ("running", "connecting"):
            raise OSError(f"the client is {self.client.status}")
        scheduler: Any = self.client.scheduler
        return await asyncio.wait_for(scheduler.identity(n_workers=-1), 30.0)

    def wait_for_workers(self, wanted: int = 1) -> dict[str, Mapping[str, Any]]:
        """Those who are there once there are so many, or after a while; none at all is an error."""
        started = time.monotonic()
        while True:
            found, waited = self.alive(), time.monotonic() - started
            if len(found) >= wanted or (found and waited > self.patience):
                return found
            if waited > _NONE * self.patience:
                raise ClusterError(
                    f"the cluster has had no workers for {waited:.0f} seconds; start some (dask worker ADDRESS, "
                    "cluster.scale(n)) and try again. A solve with a checkpoint goes on from its last step"
                )
            time.sleep(min(_LOOK, self.patience))

    def agree(self, workers: Sequence[str]) -> None:
        """Refuse workers whose versions would give other numbers; each is asked once."""
        here, differing = HERE(), []
        calls = [Call(name, "versions", versions, ()) for name in workers if name not in self._agreed]
        for call, there in self.run(calls, say=_not_installed):
            if isinstance(there, Lost):
                continue
            wrong = {name: found for name, found in there.items() if found != here[name]}
            differing += [f"{name} {found} on {call.worker}, {here[name]} here" for name, found in wrong.items()]
            self._agreed.add(call.worker)
        if differing:
            raise ClusterError(
                f"client and workers run different versions: {'; '.join(differing[:4])}. Give both one environment"
            )

    @property
    def direct(self) -> bool:
        """Whether the client reaches workers itself; if not, arrays pass through the scheduler."""
        if self._direct is None:
            given = self.client.direct_to_workers
            self._direct = bool(given) or (given is None and self._reachable(next(iter(self.alive()), None)))
        return self._direct

    def _reachable(self, worker: str | None) -> bool:
        async def knock() -> bool:
            try:
                await asyncio.wait_for(self.client.rpc(worker).identity(), _PROBE)
            except (OSError, TimeoutError):
                return False
            return True

        return worker is not None and bool(self.client.sync(knock))

    # -- calls ---------------------------------------------------------------------------------------------
    def run(self, calls: Sequence[Call], say: Callable[[Call, Exception], Exception] | None = None) -> Iterator[Any]:
        """(call, answer or :class:`Lost`) as they come; errors of the work itself are raised."""
        return self._answers({self._start(call): call for call in calls}, say)

    def farm(self, jobs: Sequence[Call]) -> Iterator[tuple[Call, Any]]:
        """(call, answer) for jobs that any worker may do, one at a time on each; lost ones are given to others.

        The ``worker`` of a job is of no account; that of a call in an answer is who did it.
        """
        queue, pending, strikes = deque(jobs), dict[Future[Any], Call](), 0
        workers, looked = self.wait_for_workers(), -math.inf

        def employ() -> None:
            nonlocal workers, looked
            if time.monotonic() - looked > _LOOK:
                workers, looked = self.wait_for_workers(), time.monotonic()
                self.agree(list(workers))
            busy = {call.worker for call in pending.values()}
            for worker in workers.keys() - busy:
                if queue:
                    call = replace(queue.popleft(), worker=worker)
                    pending[self._start(call)] = call

        employ()
        for call, found in self._answers(pending, between=employ):
            if not isinstance(found, Lost):
                yield call, found
                continue
            strikes += 1
            queue.appendleft(call)
            if strikes > _STRIKES * max(len(workers), 1) + len(jobs):
                raise ClusterError(f"workers are lost again and again: {call.worker}, {found.reason}")

    def _start(self, call: Call) -> Future[Any]:
        client: Any = self.client
        return asyncio.run_coroutine_threadsafe(self._call(call, self.direct), client.loop.asyncio_loop)

    def _answers(
        self,
        pending: dict[Future[Any], Call],
        say: Callable[[Call, Exception], Exception] | None = None,
        between: Callable[[], None] = lambda: None,
    ) -> Iterator[tuple[Call, Any]]:
        """Until nothing is pending; ``between`` answers more of it may be started."""
        try:
            while pending:
                done, _ = wait(pending, timeout=_LOOK, return_when=FIRST_COMPLETED)
                for future in done:
                    call = pending.pop(future)
                    yield call, self._answer(call, future, say)
                if not done:
                    alive = self.alive()
                    for future in [f for f, call in pending.items() if not alive.keys() >= {call.worker, *call.needs}]:
                        future.cancel()
                        yield pending.pop(future), Lost("gone")
                between()
        finally:
            for future in pending:
                future.cancel()

    async def _call(self, call: Call, direct: bool) -> Any:
        arrays = [
            a
            if a.nbytes <= _INSIDE
            else await self.client.scatter(a, workers=[call.worker], hash=False, direct=direct, asynchronous=True)
            for a in call.arrays
        ]
        future = self.client.submit(
            call.function,
            *call.arguments,
            *arrays,
            key=f"{call.name}-{uuid4().hex}",
            workers=[call.worker],
            allow_other_workers=False,
            pure=False,
            retries=0,
            actor=call.pinned,
        )
        error = await future.exception()
        if error is not None:
            raise error
        return future if call.held else await self.client.gather(future, direct=direct, asynchronous=True)

    def _answer(self, call: Call, future: Future[Any], say: Callable[[Call, Exception], Exception] | None) -> Any:
        try:
            return future.result()
        except (KilledWorker, CancelledError, asyncio.CancelledError) as error:
            return Lost(f"{type(error).__name__}: {error}")
        except Exception as error:
            if _is_connection(error):  # it broke, or data went with its worker: the part is repeated
                return Lost(f"{type(error).__name__}: {error}")
            raise (error if say is None else say(call, error)) from None


def _is_connection(error: Exception) -> bool:
    """Dask's errors of communication; those of the worker's own files have a number."""
    if isinstance(error, OSError):
        return isinstance(error, ConnectionError | TimeoutError) or error.errno is None
    return isinstance(error, ValueError) and "No valid workers" in str(error)


def _not_installed(call: Call, error: Exception) -> Exception:
    if isinstance(error, ImportError | AttributeError | RuntimeError):
        return ClusterError(
            f"worker {call.worker} cannot import this version of notsodeep ({error}). Install "
            "'notsodeep[dask]' where scheduler and workers run"
        )
    return error
