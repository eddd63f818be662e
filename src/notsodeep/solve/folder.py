"""Parts of a kernel matrix as files in a folder that belongs to one kernel on one set of rows."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._files import atomic
from ..errors import CheckpointError


class TileFolder:
    """Parts of other data or another kernel are refused, those of an interrupted run are used again.

    A file appears under its name when it is complete: that is the mark of a finished part.
    """

    def __init__(self, path: str | Path, content: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        note, here = self.path / "tiles.json", dict(content)
        if not note.exists():
            _place(note, json.dumps(here, indent=1) + "\n")
        if json.loads(note.read_text()) != here:
            raise CheckpointError(
                f"{self.path} holds the tiles of other data or another kernel; give this solve a folder of its own"
            )

    def get(self, name: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """The part of this name, computed and written if it is not there yet; as a memory map."""
        path = self.path / f"{name}.npy"
        if not path.exists():
            values = compute().to("cpu", dtype).numpy()
            with atomic(path) as temporary, open(temporary, "wb") as stream:
                np.save(stream, values)
        # copy-on-write: torch wants a writeable array, the file is never changed
        return torch.from_numpy(np.load(path, mmap_mode="c"))


def _place(note: Path, text: str) -> None:
    """The first of many processes that come at once writes it; the others read what it wrote."""
    part = note.with_name(f".{note.name}.{secrets.token_hex(8)}.part")
    part.write_text(text, encoding="utf-8")
    try:
        os.link(part, note)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        part.replace(note)
    finally:
        part.unlink(missing_ok=True)
