"""Tiles by a compiled loop on the CPU: ``tile.cpp``, built once per process where there is a C++ compiler."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import NotSoDeepWarning
from .lookup import Level

__all__ = ["fused_tile", "library"]

_FLAGS = ("-O3", "-fno-math-errno", "-shared", "-fPIC")
_PARITY = {None: 0, "odd": 1, "even": 2}
_SECONDS = 120.0


@functools.cache
def library() -> ctypes.CDLL | None:
    """The compiled loops, or ``None``, with a warning, where they cannot be built."""
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    reason = "there is no C++ compiler (CXX, c++, g++, clang++)"
    for tuned in (("-march=native",), ("-mcpu=native",), ()) if compiler else ():
        try:
            return _built([str(compiler), *tuned, *_FLAGS])
        except subprocess.CalledProcessError as error:
            reason = f"{compiler} failed: {error.stderr.strip()!r:.300}"
        except (OSError, AttributeError, subprocess.TimeoutExpired) as error:
            reason = repr(error)
    warnings.warn(f"compile=True does nothing here: {reason}; plain tiles are used", NotSoDeepWarning, stacklevel=2)
    return None


def _built(command: list[str]) -> ctypes.CDLL:
    source = Path(__file__).with_name("tile.cpp")
    with tempfile.TemporaryDirectory(prefix="notsodeep-") as folder:  # what is loaded does not need its file any more
        target = str(Path(folder) / "tile.so")
        subprocess.run(
            [*command, "-o", target, str(source)], check=True, capture_output=True, text=True, timeout=_SECONDS
        )
        found = ctypes.CDLL(target)
    pointer, number, count = ctypes.c_void_p, ctypes.c_int, ctypes.c_long
    for function in (found.tile_float64, found.tile_float32):
        function.argtypes = [pointer] * 5 + [count] * 3 + [number] * 3 + [ctypes.c_double]
        function.restype = None
    return found


def fused_tile(level: Level, left: Tensor, right: Tensor | None, r: Tensor, out: Tensor) -> Tensor:
    """:func:`evaluate.tile` in one pass; without ``right`` the coefficients are ``left``. Other threads go on."""
    loops = library()
    assert loops is not None
    assert all(t.is_contiguous() for t in (r, left, out))
    assert right is None or right.stride(1) == 1
    ends = np.cumsum((0, *level.series.ranks), dtype=np.intc)
    (loops.tile_float64 if r.dtype == torch.float64 else loops.tile_float32)(
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
