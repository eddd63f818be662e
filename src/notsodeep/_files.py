"""Files appear whole or not at all: what was there before stays if a write fails, is interrupted or killed.

A file is written under a hidden name, ``.NAME.<16 hexadecimal digits>.part``, beside its target and renamed when it is
complete. A killed process leaves its part, which may be removed.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, ValuesView
from pathlib import Path
from typing import Any

import numpy as np

from .errors import CheckpointError, SerialisationError

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
    name = os.fsdecode(os.fsencode(target.name)[:_NAME])
    part = target.with_name(f".{name}.{secrets.token_hex(8)}.part")
    try:
        with open(part, "xb") as stream:
            if size:
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


def _target(path: Path) -> Path:
    """Return the file that is to be replaced, links followed; devices and folders are refused."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return target


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
        inner = [part.values() if isinstance(part, Mapping) else part for part in level]
        level = [entry for part in inner if isinstance(part, ValuesView | list | tuple) for entry in part]
        entries += len(level)
        if not level:
            return
        if entries > _MOST:
            break
    raise SerialisationError(f"{what} is not nested {_DEEPEST} levels deep, nor has it {_MOST} entries")
