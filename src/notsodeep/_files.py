"""Files appear whole or not at all: what was there before stays if a write fails or is interrupted."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

__all__ = ["atomic", "write_text"]


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``; flushed and renamed into place if all goes well, removed if not."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        temporary.chmod(0o644 if not path.exists() else path.stat().st_mode & 0o777)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        raise


def write_text(path: Path, text: str) -> None:
    """A UTF-8 file, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
