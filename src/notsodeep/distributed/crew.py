"""Who owns which tiles and rows, and the loop of every step: ask all owners, and again for what was lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from torch import Tensor

from ..errors import ClusterError
from .cluster import Call, Cluster, Lost
from .layout import Grid, Tile, blocks_of, move, row_owners
from .worker import MISSING, on_share, open_share

_STRIKES = 3  # losses per worker without one finished part, after which a solve gives up
_EVERY = 1.0  # seconds between looks for new workers


class Crew:
    """The workers of one run, with what each of them was given.

    ``document`` is what a worker makes its share from, ``memory`` its bytes for rows and tiles.
    """

    def __init__(
        self,
        cluster: Cluster,
        grid: Grid,
        X: Tensor,
        document: dict[str, Any],
        memory: float | None,
        folder: str | None,
    ) -> None:
        self.cluster, self.grid, self.X, self.document = cluster, grid, X, document
        self.memory, self.folder, self.run = memory, folder, uuid4().hex[:16]
        self.owner: dict[Tile, str] = {}
        self.row_owner: dict[int, str] = {}
        self.strength: dict[str, float] = {}
        self.built: dict[Tile, str] = {}
        """Tiles that were computed, and by whom."""
        self.losses = 0
        self._leases: dict[str, Any] = {}
        self._loaded: dict[str, set[int]] = {}
        self._strikes, self._looked, self._seen_losses = 0, 0.0, 0

    def ask(self, worker: str, name: str, step: str, *arguments: Any, arrays: tuple[Any, ...] = (), items: Any) -> Call:
        """A step of the share of this worker."""
        return Call(worker, name, on_share, (self.run, step, *arguments), arrays, items=items)

    def each(self, name: str, step: str, *given: Any, arrays: tuple[Any, ...] = ()) -> Callable[[str, list[Any]], Call]:
        """What :meth:`over` asks of every worker: a step with its items, and what is the same for all."""
        return lambda worker, mine: self.ask(worker, name, step, *given, mine, arrays=arrays, items=mine)

    def over(
        self, items: Iterable[Any], call: Callable[[str, list[Any]], Call], most: int | None = None
    ) -> Iterator[tuple[Call, Any]]:
        """Answers for all items, each by its owner; parts whose worker is lost are asked for again."""
        pending = dict.fromkeys(items)
        while pending:
            self.settle()
            groups: dict[str, list[Any]] = {}
            for item in pending:
                owner = self.row_owner[item] if isinstance(item, int) else self.owner[item]
                groups.setdefault(owner, []).append(item)
            parts = [(w, mine[k : k + (most or len(mine))]) for w, mine in groups.items()
                     for k in range(0, len(mine), most or len(mine))]  # fmt: skip
            gone: set[str] = set()
            for done, found in self.cluster.run([call(worker, mine) for worker, mine in parts]):
                lost = _loss(found)
                if lost is not None:
                    if done.worker not in gone:  # once, however many parts it had
                        self._lose(done.worker, lost)
                    gone.add(done.worker)
                    continue
                self._strikes = 0
                for item in done.items:
                    pending.pop(item, None)
                yield done, found

    def _lose(self, worker: str, lost: Lost) -> None:
        """Forget what a worker had, but for its lease: it may be there, and only what it was to fetch is gone.

        Gives up where workers are lost again and again.
        """
        self._loaded.pop(worker, None)
        self.built = {tile: owner for tile, owner in self.built.items() if owner != worker}
        self.losses += 1
        self._strikes += 1
        if self._strikes > _STRIKES * max(len(self.strength), 1):
            rows = max((self._needs(w) for w in self.strength), default=0)
            raise ClusterError(
                f"workers were lost {self._strikes} times without one finished part (last: {worker}, {lost.reason}). "
                f"They may run out of memory: rows take up to {rows / 2**30:.2f} GiB per worker, beside tiles. Use "
                "more workers or a higher memory limit, memory= (bytes per worker), or store='disk'"
            )

    def _needs(self, worker: str) -> int:
        mine = blocks_of(tile for tile, owner in self.owner.items() if owner == worker)
        return sum(self.grid.rows(b) for b in mine) * self.X.shape[1] * 8

    def settle(self) -> None:
        """Owners for everything among those who are there; rows and a place on each of them."""
        if self.losses == self._seen_losses and self.owner and time.monotonic() - self._looked < _EVERY:
            return self._supply()
        alive = self.cluster.alive()
        if not alive or set(self.strength) - set(alive):  # wait a while for those who are restarted
            alive = self.cluster.wait_for_workers(max(1, len(self.strength)))
        self._looked, self._seen_losses = time.monotonic(), self.losses
        strength = {name: float(about["nthreads"]) for name, about in alive.items()}
        if strength != self.strength or not self.owner:
            self.cluster.agree(list(strength))
            self.strength = strength
            self.owner = move(self.grid, self.owner, strength)
            self.row_owner = row_owners(self.grid, self.owner, strength)
            for name in set(self._leases) - set(strength):
                del self._leases[name]
                self._loaded.pop(name, None)
        return self._supply()

    def _supply(self) -> None:
        """Open shares and send rows where they are missing; every block is sent once, workers pass it on."""
        fresh = [name for name in self.strength if name not in self._loaded]
        given = (self.run, self.document, self.memory, self.folder)
        opening = [Call(name, "kernel-open", open_share, given, held=True, pinned=True) for name in fresh]
        for call, lease in self.cluster.run(opening) if opening else ():
            if isinstance(lease, Lost):
                self._lose(call.worker, lease)
                return self.settle()
            self._leases[call.worker], self._loaded[call.worker] = lease, set()
        wanted = self._wanted()
        if not any(wanted.values()):
            return None
        sent = self._scatter(wanted)
        calls = [
            self.ask(name, "kernel-rows", "take", blocks, [sent[b] for b in blocks], items=blocks)
            for name, blocks in wanted.items()
            if blocks
        ]
        for call, found in self.cluster.run(calls):
            lost = _loss(found)
            if lost is not None:
                self._lose(call.worker, lost)
                return self.settle()
            self._loaded[call.worker].update(call.items)
        return None

    def _wanted(self) -> dict[str, list[int]]:
        needed: dict[str, set[int]] = {name: set() for name in self.strength}
        for tile, owner in self.owner.items():
            needed[owner].update(tile)
        for block, owner in self.row_owner.items():
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

    def look(self) -> None:
        """Take in newcomers at the next step, whenever the last look was."""
        self._looked = 0.0

    def close(self) -> None:
        """Give the workers' memory back; also done when the crew or its client goes."""
        for part in (self._leases, self._loaded, self.built, self.owner, self.strength):
            part.clear()


def _loss(found: Any) -> Lost | None:
    """Why there is no answer, if there is none; a worker that knows nothing of the run was restarted."""
    if isinstance(found, Lost):
        return found
    return Lost("restarted") if isinstance(found, str) and found == MISSING else None
