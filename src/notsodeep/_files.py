"""Files appear whole or not at all: what was there before stays if a write fails, is interrupted or killed.

A file is written under a hidden name, ``.NAME.RANDOM.part``, beside its target and renamed when it is complete. Its
writer holds a lock on it: a part without one belongs to nobody alive, and the next writer of its target removes it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from .errors import CheckpointError, SerialisationError, warn

try:
    import fcntl
except ImportError:  # no such locks on this system: parts of killed runs stay, and folders are not guarded
    fcntl = None  # type: ignore[assignment]

WRONG_PATH = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_LONGEST = 200  # bytes of the target's name in that of its part: names end at 255


@contextlib.contextmanager
def atomic(path: Path, size: int = 0) -> Iterator[Path]:
    """A temporary file beside ``path``; flushed and renamed into place if all goes well, removed if not.

    ``size`` bytes are reserved first, so that a full disk is an error at once and not a signal in the midst of a memory
    map; write into the file as it is then ("r+b"), since opening it anew gives the space back. A symbolic link stays:
    what it points to is replaced. Permissions are those of the file before, or what the umask leaves.
    """
    target = _target(path)
    remove_parts(target.parent, target.name)
    part, handle = target.with_name(f".{_cut(target.name)}.{secrets.token_hex(8)}.part"), -1
    try:  # from here on: an interruption may come at any moment
        handle = _open_part(part)
        reserve(handle, size, path)
        yield part
        os.fsync(handle)
        with contextlib.suppress(FileNotFoundError):
            part.chmod(target.stat().st_mode & 0o777)
        os.replace(part, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            part.unlink()
        raise
    finally:
        if handle >= 0:
            os.close(handle)
    _sync_folder(target.parent)


def write_text(path: Path, text: str) -> None:
    """A UTF-8 file, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_with(path: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` write to a temporary file, which takes the place of ``path`` when it is done."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as temporary:
            write(temporary)
    except OSError as error:
        raise CheckpointError(
            f"{path} cannot be written: {error.strerror or error}. Free some space or choose another place; what was "
            "there before is as it was"
        ) from error


def remove_parts(folder: Path, name: str) -> None:
    """Remove, and say so, the parts that killed writers of files ``name...`` left in ``folder``."""
    if not folder.is_dir():
        return
    prefix, removed = f".{_cut(name)}", 0
    with os.scandir(folder) as entries:
        parts = [Path(e.path) for e in entries if e.name.startswith(prefix) and e.name.endswith(".part")]
    for part in parts:
        removed += _remove_if_dead(part)
    if removed:
        warn(f"removed unfinished parts of {folder / name}, {removed / 2**20:.1f} MiB that a killed run had left")


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[bool]:
    """Whether the folder is ours alone meanwhile; the lock goes with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            ours = _lock(handle, wait=False)
        except OSError:  # a file system without locks
            ours = True
        yield ours
    finally:
        os.close(handle)


def advice(error: OSError) -> str:
    """What to do about a file or a folder that cannot be used."""
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
    """What is to be replaced, links followed; devices and folders are not."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if target.exists() and not target.is_file():
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return target


# ---- parts -----------------------------------------------------------------------------------------------


def _open_part(part: Path) -> int:
    """A new, locked file, and the descriptor that holds its lock."""
    while True:
        handle = os.open(part, os.O_CREAT | os.O_RDWR, 0o666)
        with contextlib.suppress(OSError):  # without a lock the part of a killed run stays, and that is all
            _lock(handle, wait=True)
        # between its birth and its lock the file looks like a dead one: somebody may have removed it
        with contextlib.suppress(FileNotFoundError):
            if os.stat(part).st_ino == os.fstat(handle).st_ino:
                return handle
        os.close(handle)


def _cut(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_LONGEST])


def _remove_if_dead(part: Path) -> int:
    """Remove a part that nobody holds; its size in bytes, at least one, or 0 if it was left alone."""
    try:
        handle = os.open(part, os.O_RDWR)
    except OSError:
        return 0
    try:
        if not _lock(handle, wait=False):
            return 0
        size = os.fstat(handle).st_size
        part.unlink(missing_ok=True)
        return max(size, 1)
    except OSError:
        return 0
    finally:
        os.close(handle)


def _lock(handle: int, wait: bool) -> bool:
    """Take the lock; False if another holds it, OSError if there are no locks here."""
    if fcntl is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


def reserve(handle: int, size: int, path: Path) -> None:
    """Space for so many bytes of an open file, where the system knows how; a full disk is an error here."""
    if not size or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return
        raise OSError(error.errno, f"{os.strerror(error.errno or 0)} ({size:,} bytes needed)", str(path)) from None


def _sync_folder(folder: Path) -> None:
    """Make the new name itself durable, where the system lets a folder be opened."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- JSON documents that come from outside, before anything is made from them ----------------------------

_DEEPEST = 40  # levels of a document; an activation in an affine one in an affine one takes two each
_MOST = 10_000_000  # characters of a document, entries of it when it comes as a dictionary


def parsed(document: Any, what: str) -> dict[str, Any]:
    """The content of a document or of its text, neither too deep nor too long to be read; ``what`` it describes."""
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
    """Level by level, so that no document can exhaust the stack."""
    level: list[Any] = [document]
    entries = 0
    for _ in range(_DEEPEST):
        following: list[Any] = []
        for part in level:
            if isinstance(part, Mapping):
                following.extend(part.values())
            elif isinstance(part, list | tuple):
                following.extend(part)
        entries += len(following)
        if not following:
            return
        if entries > _MOST:
            break
        level = following
    raise SerialisationError(f"{what} is not nested {_DEEPEST} levels deep, nor has it {_MOST} entries")
