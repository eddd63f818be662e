"""Loops in C++, built once per process where there is a compiler; plain torch says the same everywhere."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from .errors import warn

_FLAGS = ("-O3", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120.0


Loops = dict[torch.dtype, Callable[..., None]]


@functools.cache
def loops(source: Path, *types: Any) -> Loops | None:
    """The functions NAME_float32 and NAME_float64 of NAME.cpp, of arguments of these types.

    ``None``, with a warning, where they cannot be built.
    """
    compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
    reason = "there is no C++ compiler (CXX, c++, g++, clang++)"
    for tuned in (("-march=native",), ("-mcpu=native",), ()) if compiler else ():
        try:
            return _built([str(compiler), *tuned, *_FLAGS], source, types)
        except subprocess.CalledProcessError as error:
            reason = f"{compiler} failed: {error.stderr.strip()!r:.300}"
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = repr(error)
    warn(f"compile=True does nothing here: {reason}; plain torch is used")
    return None


def _built(command: list[str], source: Path, types: tuple[Any, ...]) -> Loops:
    with tempfile.TemporaryDirectory(prefix="notsodeep-") as folder:  # what is loaded does not need its file any more
        target = str(Path(folder) / "loops.so")
        subprocess.run(
            [*command, "-o", target, str(source)], check=True, capture_output=True, text=True, timeout=_SECONDS
        )
        found = ctypes.CDLL(target)
    out: Loops = {}
    for dtype in (torch.float32, torch.float64):
        function = found[f"{source.stem}_{dtype}".replace("torch.", "")]
        function.argtypes, function.restype = types, None
        out[dtype] = function
    return out
