"""Independent calls on whatever workers there are: sums over features, sums of expansions, the points of a study."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from .._arguments import checked
from ..errors import ClusterError, InvalidInputError
from ..nn import ENN as Network
from ..nn.checkpoint import build
from ..solve import FeatureSums, NetworkKernel
from .cluster import Call, Cluster, Lost
from .worker import Array, as_rows

_ATTEMPTS = 4


@checked
def feature_sums(client: Any, model: Network, X: Tensor, targets: Tensor, weights: Tensor) -> FeatureSums:
    """What :meth:`FeatureSums.of` gives for all rows, computed where the workers are.

    The network travels as its JSON description and its weights. What a lost worker had is computed again.
    """
    cluster = Cluster.of(client)
    states = {name: value.detach().cpu().numpy() for name, value in model.state_dict().items()}
    parts = len(cluster.wait_for_workers())
    jobs = [
        Call("", "feature-sums", partial_sums, (model.config(), list(states)), (*states.values(), *rows), held=True)
        for rows in zip(*(np.array_split(t.cpu().numpy(), parts) for t in (X, targets, weights)), strict=True)
        if len(rows[0])
    ]
    for _ in range(_ATTEMPTS):
        done = list(cluster.farm(jobs))
        found = _merged(cluster, [held for _, held in done], tuple({call.worker for call, _ in done}))
        if not isinstance(found, Lost):
            return _sums(found)
    raise ClusterError(f"sums over features were lost {_ATTEMPTS} times with their workers; use fewer or steadier ones")


def _merged(cluster: Cluster, held: list[Any], holders: tuple[str, ...]) -> Any:
    """Pairs, then pairs of pairs; Dask moves one of each pair to the other."""
    while len(held) > 1:
        pairs = [held[k : k + 2] for k in range(0, len(held), 2)]
        held = [cluster.client.submit(merge, *pair, pure=False) for pair in pairs]
    ((_, found),) = cluster.run([Call(holders[0], "feature-tree", merge, (held[0],), needs=holders)])
    return found


def partial_sums(config: dict[str, Any], names: list[str], *arrays: Array) -> tuple[Any, ...]:
    """The sums over some rows, as arrays."""
    states = {name: as_rows(value) for name, value in zip(names, arrays[: len(names)], strict=True)}
    model: Any = build(config, dtype=states["weights.0"].dtype)
    model.load_state_dict(states)
    X, T, w = (as_rows(part) for part in arrays[len(names) :])
    return _plain(FeatureSums.of(model.requires_grad_(False), X, T, w))


def merge(first: tuple[Any, ...], *others: tuple[Any, ...]) -> tuple[Any, ...]:
    """Several sums as one."""
    return _plain(functools.reduce(FeatureSums.merge, map(_sums, others), _sums(first)))


def _plain(sums: FeatureSums) -> tuple[Any, ...]:
    return sums.gram.numpy(), sums.cross.numpy(), sums.weight, sums.rows


def _sums(plain: tuple[Any, ...]) -> FeatureSums:
    gram, cross, weight, rows = plain
    return FeatureSums(as_rows(gram), as_rows(cross), weight, rows)


# ---- the sum of an expansion -------------------------------------------------------------------------------


_ROWS = 1 << 23  # numbers of training rows in one message


@checked
def expand(client: Any, kernel: NetworkKernel, X: Tensor, coefficients: Tensor, new: Tensor) -> Tensor:
    """The sum at the rows ``new``, (rows, k), in double precision."""
    cluster = Cluster.of(client)
    parts = max(len(cluster.wait_for_workers()), -(-X.numel() // _ROWS))
    rows, weights = (np.array_split(t.cpu().double().numpy(), parts) for t in (X, coefficients))
    points = new.cpu().double().numpy()
    jobs = [
        Call("", "kernel-predict", partial, (kernel.to_dict(),), (x, a, points))
        for x, a in zip(rows, weights, strict=True)
        if len(x)
    ]
    out = np.zeros((len(points), coefficients.shape[1]))
    for _, found in cluster.farm(jobs):
        out += found
    return as_rows(out)


def partial(document: dict[str, Any], X: Array, coefficients: Array, points: Array) -> Array:
    """The part of some training rows."""
    return NetworkKernel.from_dict(document).expansion(*map(as_rows, (points, X, coefficients))).numpy()


# ---- any calls ---------------------------------------------------------------------------------------------


@checked
def sweep(
    client: Any, function: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], name: str = "sweep"
) -> Iterator[tuple[int, Any]]:
    """Positions and results of the calls as they come; what a lost worker was doing is done again.

    The function must be one of notsodeep, which workers have: no code is sent.
    """
    module = getattr(function, "__module__", "") or ""
    if module.split(".")[0] != "notsodeep" or "<" in getattr(function, "__qualname__", "<"):
        raise InvalidInputError(f"a sweep runs functions of notsodeep, which workers have; got {function!r}")
    cluster = Cluster.of(client)
    jobs = [Call("", name, function, tuple(one), items=(k,)) for k, one in enumerate(arguments)]
    for done, found in cluster.farm(jobs):
        yield int(done.items[0]), found
