"""Chebyshev series of the angle on tiles, sum_m T_m(x) left_m right_m', by torch and by the loop of ``tile.cpp``."""

from __future__ import annotations

import ctypes
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._chebyshev import clenshaw, series_sum
from .._native import Loops
from .lookup import Level

_DEPTH = 208  # columns in a sum of float32
PARITY = {None: 0, "odd": 1, "even": 2}  # as programs know it
loops = Loops(
    Path(__file__).with_name("tile.cpp"),
    *[ctypes.c_void_p] * 5,
    *[ctypes.c_long] * 3,
    *[ctypes.c_int] * 3,
    ctypes.c_double,
)


class Room:
    """Memory for tiles that is used again and again: fresh pages would cost as much as the arithmetic."""

    def __init__(self) -> None:
        self._kept: dict[object, Tensor] = {}

    def __call__(self, name: str, like: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        """A tensor like this one, void; it stays until the same name is asked for again."""
        shape = like.shape if shape is None else shape
        size, key = math.prod(shape), (name, like.dtype, like.device)
        if key not in self._kept or self._kept[key].numel() < size:
            self._kept[key] = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._kept[key][:size].view(shape)


def products(x: Tensor, y: Tensor, out: Tensor) -> Tensor:
    """x y'; in float32 on a GPU, which adds up one by one, in short sums: a long one of 784 is wrong by 1e-6."""
    short = _DEPTH if x.is_cuda and x.dtype == torch.float32 else max(1, x.shape[1])
    torch.mm(x[:, :short], y[:, :short].T, out=out)
    for k in range(short, x.shape[1], short):
        out.addmm_(x[:, k : k + short], y[:, k : k + short].T)
    return out


def tile(level: Level, left: Tensor, right: Tensor | None, r: Tensor, room: Room, compiled: bool = False) -> Tensor:
    """The kernel at cosines ``r`` (a, b), left (a, rank), with its signs, and right (rank, b) the norm factors.

    Without ``right`` the coefficients are ``left``. What is returned lies in the room.
    """
    if compiled:
        return _compiled(level, left, right, r, room("b1", r))
    x2 = room("x2", r)
    torch.mul(torch.asin(r, out=x2) if level.warped else r, level.scale, out=x2)
    if right is None:
        return series_sum(left, x2, level.parity, room)
    parts = list(zip(left.split(level.ranks, dim=1), right.split(level.ranks), strict=True))
    return clenshaw(len(parts), lambda m, b: b.addmm_(*parts[m], beta=-1.0), x2, level.parity, room)


def _compiled(level: Level, left: Tensor, right: Tensor | None, r: Tensor, out: Tensor) -> Tensor:
    """In one pass; other threads go on."""
    assert all(t.is_contiguous() for t in (r, left, out))
    assert right is None or right.stride(1) == 1
    ends = np.cumsum((0, *level.ranks), dtype=np.intc)
    loops[r.dtype](
        r.data_ptr(),
        left.data_ptr(),
        0 if right is None else right.data_ptr(),
        out.data_ptr(),
        ends.ctypes.data,
        *r.shape,
        0 if right is None else right.stride(0),
        len(level.ranks),
        PARITY[level.parity],
        level.warped,
        level.scale,
    )
    return out
