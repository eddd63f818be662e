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


class Loops:
    """The functions NAME_float32 and NAME_float64 of NAME.cpp, of arguments of these types, by their precision."""

    def __init__(self, source: Path, *types: Any) -> None:
        self.source, self.types = source, types

    @functools.cached_property
    def built(self) -> bool:
        """Whether they are there; they are built if need be, and a warning says if they cannot be."""
        compiler = shutil.which(os.environ.get("CXX", "c++")) or shutil.which("g++") or shutil.which("clang++")
        reason = "there is no C++ compiler (CXX, c++, g++, clang++)"
        for tuned in (("-march=native",), ("-mcpu=native",), ()) if compiler else ():
            try:
                self._build([str(compiler), *tuned, *_FLAGS])
                return True
            except subprocess.CalledProcessError as error:
                reason = f"{compiler} failed: {error.stderr.strip()!r:.300}"
            except (OSError, subprocess.TimeoutExpired) as error:
                reason = repr(error)
        warn(f"compile=True does nothing here: {reason}; plain torch is used")
        return False

    def __getitem__(self, dtype: torch.dtype) -> Callable[..., None]:
        function = getattr(self._library, f"{self.source.stem}_{dtype}".replace("torch.", ""))
        function.argtypes, function.restype = self.types, None
        return function

    def _build(self, command: list[str]) -> None:
        with tempfile.TemporaryDirectory(prefix="notsodeep-") as folder:  # what is loaded needs no file any more
            target = str(Path(folder) / "loops.so")
            command = [*command, "-o", target, str(self.source)]
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=_SECONDS)
            self._library = ctypes.CDLL(target)
