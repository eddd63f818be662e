"""Tiles by a compiled loop on the CPU: ``tile.cpp``."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
from torch import Tensor

from .._native import loops
from .lookup import Level

_SOURCE = Path(__file__).with_name("tile.cpp")
_TYPES = (*[ctypes.c_void_p] * 5, *[ctypes.c_long] * 3, *[ctypes.c_int] * 3, ctypes.c_double)
_PARITY = {None: 0, "odd": 1, "even": 2}


def can_fuse() -> bool:
    """Whether the loop is there; it is built if need be, and a warning says if it cannot be."""
    return loops(_SOURCE, *_TYPES) is not None


def fused_tile(level: Level, left: Tensor, right: Tensor | None, r: Tensor, out: Tensor) -> Tensor:
    """:func:`evaluate.tile` in one pass; without ``right`` the coefficients are ``left``. Other threads go on."""
    found = loops(_SOURCE, *_TYPES)
    assert found is not None
    assert all(t.is_contiguous() for t in (r, left, out))
    assert right is None or right.stride(1) == 1
    ends = np.cumsum((0, *level.series.ranks), dtype=np.intc)
    found[r.dtype](
        r.data_ptr(),
        left.data_ptr(),
        0 if right is None else right.data_ptr(),
        out.data_ptr(),
        ends.ctypes.data,
        *r.shape,
        0 if right is None else right.stride(0),
        len(level.series.ranks),
        _PARITY[level.parity],
        level.warped,
        level.scale(),
    )
    return out
