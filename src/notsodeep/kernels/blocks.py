"""Kernel matrices tile by tile: which tiles there are, who computes them, and where their entries go."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ..networks import Kernel
from .tabulate import one_thread
from .tiles import Points, tile_shape

_UNSETTLED = 1 << 18  # entries that wait to be evaluated one by one


def fill_tiles(
    points: Points, target: Mapping[Kernel, Tensor], blocks: Iterable[tuple[slice, slice]], count: int
) -> None:
    """Tile after tile; on the CPU each thread has tiles of its own, so that no operation waits for another thread."""
    threads = min(torch.get_num_threads(), count // 2)
    if points.x.is_cuda or points.table is None or threads < 2:
        _work(points, target, iter(blocks))
        return
    shared = _Shared(iter(blocks))
    with one_thread(), ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for done in [pool.submit(_work, copy.copy(points), target, shared) for _ in range(threads)]:
            done.result()


class _Shared:
    """An iterator that several threads take from."""

    def __init__(self, items: Iterator[tuple[slice, slice]]) -> None:
        self.items, self.lock = items, threading.Lock()

    def __iter__(self) -> _Shared:
        return self

    def __next__(self) -> tuple[slice, slice]:
        with self.lock:
            return next(self.items)


def _work(points: Points, target: Mapping[Kernel, Tensor], blocks: Iterator[tuple[slice, slice]]) -> None:
    for rows, columns in blocks:
        for kind, values in points.tile(rows, columns):
            _store(target[kind], values, rows, columns, points.symmetric)
        if points.unsettled > _UNSETTLED:
            points.settle(target)
    points.settle(target)


def _store(target: Tensor, values: Tensor, rows: slice, columns: slice, symmetric: bool) -> None:
    if not symmetric or columns.start > rows.start:
        target[rows, columns] = values
        if symmetric:
            target[columns, rows] = values.T
        return
    # the tile starts on the diagonal: a square, of which one triangle counts, and the rest
    size = rows.stop - rows.start
    square = torch.triu(values[:, :size])
    target[rows, rows] = square + torch.triu(square, 1).T
    if columns.stop > rows.stop:
        _store(target, values[:, size:], rows, slice(rows.stop, columns.stop), symmetric)


def tiles_of(shape: tuple[int, int], device: torch.device, symmetric: bool) -> Iterator[tuple[slice, slice]]:
    """The rows and columns of each tile; of a symmetric matrix those that reach above the diagonal."""
    high, wide = tile_shape(device)
    for i in range(0, shape[0], high):
        j = i if symmetric else 0
        while j < shape[1]:
            end = min(j - j % wide + wide, shape[1])
            yield slice(i, min(i + high, shape[0])), slice(j, end)
            j = end
