"""Files appear whole or not at all: what was there before stays if a write fails, is interrupted or killed.

A file is written under a hidden name, ``.NAME.<16 hexadecimal digits>.part``, beside its target and renamed when it is
complete. A killed process leaves its part. A writer of the same file removes it a day later, and on the same Linux
machine at once: the digits are those of the machine, of the process and of a counter.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import math
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from .errors import CheckpointError, SerialisationError


@contextlib.contextmanager
def atomic(path: Path, first: bool = False) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, which takes its place if all goes well and is removed if not.

    With ``first`` a file that another process has put there in the meantime stays.
    """
    check_name(path)
    target = Path(os.path.realpath(path))  # a symbolic link stays, and what it points to is replaced
    if target.exists() and not target.is_file():
        raise IsADirectoryError(errno.EISDIR, "Not a regular file", str(path))
    part = part_of(target)
    try:
        part.touch(exist_ok=False)
        yield part
        with open(part, "r+b") as stream:
            os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):
            part.chmod(target.stat().st_mode & 0o777)
        (_put if first else os.replace)(part, target)
    finally:
        part.unlink(missing_ok=True)


def _put(part: Path, target: Path) -> None:
    """Give a part its name, unless there is such a file."""
    try:
        os.link(part, target)
    except FileExistsError:
        pass
    except (OSError, AttributeError):  # a file system or a Python without links
        if not target.exists():
            os.replace(part, target)


_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|(com|lpt)[0-9¹²³])( *[.:].*)?", re.IGNORECASE)


def check_name(path: PurePath, windows: bool = os.name == "nt") -> None:
    """Refuse names that Windows gives to devices, reads as streams of a file, or changes."""
    odd = [part for part in path.parts[bool(path.anchor) :] if part not in (".", "..")] if windows else ()
    for part in odd:
        if _DEVICES.fullmatch(part) or part != part.rstrip(" .") or re.search(r'[\x00-\x1f<>:"|?*]', part):
            raise OSError(errno.EINVAL, f"Windows has no file or folder of the name {part!r}", str(path))


_COUNT = itertools.count(secrets.randbelow(1 << 16))


def part_of(target: Path) -> Path:
    """Return a hidden name beside a file or folder that no other writer has, and remove what dead ones left."""
    _sweep(target)
    mark = f"{_machine():06x}{os.getpid() & 0xFFFFFF:06x}{next(_COUNT) & 0xFFFF:04x}"
    return target.with_name(f".{target.name[:50]}.{mark}.part")  # the longest names have 255 bytes


def _machine() -> int:
    """Return a number of this boot and of the space in which processes are counted; random where none is known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
        return zlib.crc32(boot + str(os.stat("/proc/self/ns/pid").st_ino).encode()) & 0xFFFFFF
    except OSError:  # not on Linux
        return secrets.randbelow(1 << 24)


def _sweep(target: Path) -> None:
    """Remove parts of this file whose process on this machine is gone, or that nobody has written to for a day."""
    ours = re.compile(rf"\.{re.escape(target.name[:50])}\.([0-9a-f]{{6}})([0-9a-f]{{6}})[0-9a-f]{{4}}\.part")
    with contextlib.suppress(OSError):  # what cannot be removed stays
        for part in target.parent.iterdir():
            if (match := ours.fullmatch(part.name)) and part.is_file():
                gone = int(match[1], 16) == _machine() and not Path("/proc", str(int(match[2], 16))).exists()
                if gone or time.time() - part.stat().st_mtime > 86400:
                    part.unlink()


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 file, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` fill a temporary file, which takes the place of ``path`` when it is done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary:
            write(temporary)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}. Free some space or choose another place; what was "
            "there before is as it was"
        ) from error


def write_matrix(
    path: Path, shape: tuple[int, int], dtype: Any, fill: Callable[[Any], Any], first: bool = False
) -> None:
    """Let ``fill`` write into a memory map of a .npy file, which appears when it is full; ``first`` as in `atomic`."""
    with atomic(path, first) as temporary:
        mapped = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        with open(temporary, "r+b") as stream:  # a full disk is an error now, not a signal in the midst of the work
            reserve(stream.fileno(), temporary.stat().st_size, temporary.parent)
        fill(mapped)
        mapped.flush()
        del mapped  # Windows renames no file that is still mapped


def open_matrix(path: Path, shape: tuple[int, int], dtype: Any) -> np.memmap:
    """Return the memory map of a .npy file of floating numbers; a new file is filled with NaN."""
    _sweep(path)  # of processes that were killed while they made it
    try:
        if not path.exists():
            write_matrix(path, shape, dtype, lambda new: new.fill(math.nan), first=True)
        mapped = np.lib.format.open_memmap(path, mode="r+")
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be opened as a .npy file, or not be made: {error}") from error
    if mapped.shape != shape or mapped.dtype.kind != "f" or not mapped.dtype.isnative:
        raise CheckpointError(
            f"{path} holds {mapped.dtype} of shape {mapped.shape}, but the result is floating numbers of shape "
            f"{shape}; remove the file or name another one"
        )
    return mapped


def reserve(handle: int, size: int, folder: Path) -> None:
    """Reserve so many bytes for an open file in a folder, where the system knows how; a full disk is an error here."""
    if size > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({size:,} bytes needed)", str(folder))
    os.ftruncate(handle, size)
    if hasattr(os, "posix_fallocate"):  # not on macOS and Windows
        os.posix_fallocate(handle, 0, size)


def parsed(document: Any, what: str) -> dict[str, Any]:
    """Return the content of a JSON document or of its text, which describes ``what``, unless it is too deep."""
    try:
        text = isinstance(document, str)
        content = json.loads(document, parse_float=_finite, parse_constant=_finite) if text else document
    except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
        raise SerialisationError(f"not the JSON document of {what}: {error}") from None
    if not isinstance(content, Mapping):
        raise SerialisationError(f"expected a JSON object that describes {what}, got {type(content).__name__}")
    deepest = 40  # levels: an activation in an affine one takes two
    if _is_deeper(content, deepest):
        raise SerialisationError(f"{what} is not nested {deepest} levels deep")
    return dict(content)


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text:.20} is no finite number")
    return number


def _is_deeper(part: Any, levels: int) -> bool:
    """Return whether there are parts within parts beyond so many levels."""
    inner = part.values() if isinstance(part, Mapping) else part if isinstance(part, list | tuple) else ()
    return levels == 0 or any(_is_deeper(one, levels - 1) for one in inner)
