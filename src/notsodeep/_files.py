"""Files appear whole or not at all: what was there before stays if a write fails, is interrupted or killed.

A file is written under a hidden name, ``.NAME.<16 hexadecimal digits>.part``, beside its target and renamed when it is
complete. Where the system has locks, its writer holds one on it: a part without a lock belongs to a process that was
killed, and the next writer of the same target removes it. No other file is ever removed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError, SerialisationError, warn

try:
    import fcntl
except ImportError:  # Windows has no such locks: the part of a killed process stays there
    fcntl = None  # type: ignore[assignment]

WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_NAME = 200  # bytes of the target's name in that of its part: file systems allow 255 in all
_DEEPEST = 40  # levels of a JSON document: an activation in an affine one takes two
_MOST = 10_000_000  # characters of a JSON document, or its entries


@contextlib.contextmanager
def atomic(path: Path, size: int = 0) -> Iterator[Path]:
    """Yield a temporary file beside ``path``, which takes its place if all goes well and is removed if not.

    ``size`` bytes are reserved first, so that a full disk is an error at once and not a signal in the midst of a memory
    map; write into the file as it is then ("r+b"). A symbolic link stays, and what it points to is replaced.
    Permissions are those of the file before, or what the umask leaves.
    """
    target = _target(path)
    _remove_dead_parts(target)
    part = target.with_name(f".{_cut(target.name)}.{secrets.token_hex(8)}.part")
    try:
        with _locked(part):
            if size:
                with open(part, "r+b") as stream:
                    reserve(stream.fileno(), size, part.parent)
            yield part
            with open(part, "r+b") as stream:
                os.fsync(stream.fileno())
            with contextlib.suppress(FileNotFoundError):
                part.chmod(target.stat().st_mode & 0o777)
            os.replace(part, target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # makes the new name durable, where the system lets a folder be opened
        _sync(target.parent)


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


def write_matrix(path: Path, shape: tuple[int, int], dtype: Any, fill: Callable[[Any], Any]) -> None:
    """Let ``fill`` write into a memory map of a .npy file, which appears when it is full."""
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(np.dtype(dtype)), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    size = shape[0] * shape[1] * np.dtype(dtype).itemsize
    with atomic(path, len(header.getvalue()) + size) as temporary:
        with open(temporary, "r+b") as stream:
            stream.write(header.getvalue())
        mapped = np.lib.format.open_memmap(temporary, mode="r+")
        fill(mapped)
        mapped.flush()
        del mapped  # Windows renames no file that is still mapped


def reserve(handle: int, size: int, folder: Path) -> None:
    """Reserve so many bytes for an open file in a folder, where the system knows how; a full disk is an error here."""
    if size > shutil.disk_usage(folder).free:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)} ({size:,} bytes needed)", str(folder))
    os.ftruncate(handle, size)
    try:
        os.posix_fallocate(handle, 0, size)
    except AttributeError:  # macOS and Windows have no such call
        return
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):  # a file system that cannot
            raise


def advice(error: OSError) -> str:
    """Return what to do about a file or a folder that cannot be used."""
    if isinstance(error, FileNotFoundError):
        return "Check the path; relative paths start in the current folder."
    if isinstance(error, PermissionError):
        return "Choose a folder you may write to, or change its permissions."
    if isinstance(error, IsADirectoryError):
        return "A file is needed here, not a folder."
    if isinstance(error, NotADirectoryError | FileExistsError):
        return "A folder is needed here, and a file of that name is in the way."
    return "Free some space or choose another place; earlier output is as it was."


# ---- parts -----------------------------------------------------------------------------------------------


def _target(path: Path) -> Path:
    """Return the file that is to be replaced, links followed; devices and folders are refused."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return target


def _cut(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_NAME])


@contextlib.contextmanager
def _locked(part: Path) -> Iterator[None]:
    """Make a new file, and hold a lock on it where there are locks."""
    if fcntl is None:
        part.touch()
        yield
        return
    while True:
        with open(part, "ab") as stream:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(stream, fcntl.LOCK_EX)
            # before it had its lock, the part looked like a dead one and may have been removed by another writer
            if part.exists() and os.path.samestat(part.stat(), os.fstat(stream.fileno())):
                yield
                return


def _remove_dead_parts(target: Path) -> None:
    """Remove the parts that killed writers of this target have left, and say so."""
    if fcntl is None or not target.parent.is_dir():
        return
    ours = re.compile(rf"\.{re.escape(_cut(target.name))}\.[0-9a-f]{{16}}\.part")
    with os.scandir(target.parent) as entries:
        parts = [Path(entry.path) for entry in entries if ours.fullmatch(entry.name)]
    removed = sum(map(_remove_if_dead, parts))
    if removed:
        warn(f"removed unfinished parts of {target}, {removed / 2**20:.1f} MiB that a killed run had left")


def _remove_if_dead(part: Path) -> int:
    """Remove a part that nobody holds; return its size in bytes, at least one, or 0 if it was left alone."""
    try:
        with open(part, "r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(stream.fileno()).st_size
            part.unlink(missing_ok=True)
            return max(size, 1)
    except OSError:  # a living writer holds it, or it is not ours to open
        return 0


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# ---- JSON documents that come from outside, before anything is made from them ----------------------------


def parsed(document: Any, what: str) -> dict[str, Any]:
    """Return the content of a document or of its text, which describes ``what``; too deep or too long is refused."""
    if isinstance(document, str):
        if len(document) > _MOST:
            raise SerialisationError(f"{what} is not {len(document)} characters long; at most {_MOST} are read")
        try:
            document = json.loads(document)
        except (ValueError, RecursionError) as error:  # a number of thousands of digits is a ValueError
            raise SerialisationError(f"not the JSON document of {what}: {error}") from None
    if not isinstance(document, Mapping):
        raise SerialisationError(f"expected a JSON object that describes {what}, got {type(document).__name__}")
    _check_size(document, what)
    return dict(document)


def _check_size(document: Mapping[str, Any], what: str) -> None:
    """Look at a document level by level, so that none can exhaust the stack."""
    level: list[Any] = [document]
    entries = 0
    for _ in range(_DEEPEST):
        inner = [part.values() if isinstance(part, Mapping) else part for part in level if _is_nested(part)]
        level = [entry for part in inner for entry in part]
        entries += len(level)
        if not level:
            return
        if entries > _MOST:
            break
    raise SerialisationError(f"{what} is not nested {_DEEPEST} levels deep, nor has it {_MOST} entries")


def _is_nested(part: Any) -> bool:
    return isinstance(part, Mapping | list | tuple)
