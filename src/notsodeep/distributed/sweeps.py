"""Many independent calls of one function of the package: the points of a study, on whatever workers there are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..errors import InvalidInputError
from .cluster import Call, Cluster

__all__ = ["sweep"]


def sweep(
    client: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str = "sweep"
) -> Iterator[tuple[int, Any]]:
    """Positions and results of the calls as they come; what a lost worker was doing is done again.

    The function must be one of notsodeep, which workers have: no code is sent.
    """
    module = getattr(function, "__module__", "") or ""
    if module.split(".")[0] != "notsodeep" or "<" in getattr(function, "__qualname__", "<"):
        raise InvalidInputError(f"a sweep runs functions of notsodeep, which workers have; got {function!r}")
    cluster = client if isinstance(client, Cluster) else Cluster(client)
    jobs = [Call("", name, function, tuple(one), items=(k,)) for k, one in enumerate(arguments)]
    for done, found in cluster.farm(jobs):
        yield int(done.items[0]), found
