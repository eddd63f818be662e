"""A symmetric kernel matrix in panels of rows: kept in memory, on disk, or computed again for every product.

Panel i holds rows [i b, (i + 1) b) against columns [i b, n): the upper triangle, and blocks of size b on the diagonal.
For n = 60,000 in float32 that is 7.2 GB, and n b / 2 entries more.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, whole
from .._arrays import as_rows
from .._files import atomic
from .._progress import track
from .._words import Store as Store
from ..errors import CheckpointError, InvalidInputError
from .operator import KernelFunction, KernelOperator, add_block, as_columns

_PANEL = 2048
_COLUMNS = 8192  # computed at once on a CPU; a GPU takes all of them
_DIAGONAL = 512


@checked
def triangle_bytes(n: int, dtype: torch.dtype, panel: int = _PANEL) -> int:
    """What the stored triangle takes.

    >>> round(triangle_bytes(60_000, torch.float32) / 1e9, 2)
    7.45
    """
    return n * (n + min(panel, n)) // 2 * dtype.itemsize


def available_bytes(device: torch.device) -> int:
    """Free memory of the device."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def stored_dtype(dtype: torch.dtype | str, n: int, room: float) -> torch.dtype:
    """What is asked for, or for ``"auto"`` float64 where the triangle fits into half of so many bytes."""
    if isinstance(dtype, torch.dtype):
        return dtype
    fits = triangle_bytes(n, torch.float64) < 0.5 * room
    return torch.float64 if dtype == "float64" or (dtype == "auto" and fits) else torch.float32


class KernelTiles(KernelOperator):
    """D k(X, X) D as an operator, D the identity or a diagonal of ``scale``.

    Kernels are computed in float64, and rounded to ``dtype`` where they are stored. ``exact`` products compute every
    entry again in float64: the residuals of a float32 solve are refined with them.

    >>> import notsodeep as nsd
    >>> X = torch.eye(3, dtype=torch.float64)
    >>> tiles = KernelTiles(lambda a, b: nsd.ck(nsd.ENN(["relu"]), a, b), X)
    >>> (tiles @ torch.ones(3, 1, dtype=torch.float64))[:, 0]
    tensor([0.8183, 0.8183, 0.8183], dtype=torch.float64)
    """

    @checked
    def __init__(
        self,
        kernel: KernelFunction,
        X: Tensor,
        *,
        scale: Tensor | None = None,
        dtype: torch.dtype | Literal["auto", "float32", "float64"] = torch.float64,
        store: Store = "auto",
        folder: str | Path | None = None,
        panel: int = _PANEL,
        progress: bool | None = None,
    ) -> None:
        rows = as_rows(X).to(torch.float64)
        room = available_bytes(rows.device)
        super().__init__(kernel, rows, scale, stored_dtype(dtype, len(rows), room), progress)
        self.panel = min(whole("panel", panel), self.n)
        fits = triangle_bytes(self.n, self.dtype, self.panel) < 0.8 * room
        if store == "auto":
            store = "memory" if fits else "none" if folder is None else "disk"
        if store == "disk" and folder is None:
            raise InvalidInputError("store='disk' needs folder=, a folder for the tiles")
        self.store = store
        self._kept: dict[int, Tensor] = {}
        self._files: TileFolder | None = None
        if store == "disk" and folder is not None:
            content = {"n": self.n, "panel": self.panel, "dtype": str(self.dtype), "content": self.fingerprint()}
            self._files = TileFolder(folder, content)

    def _product(self, v: Tensor, fresh: bool) -> Tensor:
        dtype = torch.float64 if fresh else self.dtype
        out, low = as_columns(torch.zeros_like(v), torch.float64), as_columns(v, dtype)
        for start, panel in self._fresh() if fresh else self.panels():
            stop = start + len(panel)
            add_block(out, low, start, start, panel[:, : stop - start])
            add_block(out, low, start, stop, panel[:, stop - start :])
        return out.contiguous()

    def _own(self) -> Tensor:
        """From small symmetric blocks: a kernel is exact there, whatever the rounding of inner products."""
        return torch.cat([self.kernel(part, None).diagonal() for part in self.X.split(_DIAGONAL)])

    def _against(self, others: Tensor) -> Tensor:
        return self.kernel(self.X, others)

    # -- panels --------------------------------------------------------------------------------------------
    def panels(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, panel) for all panels, in order; computed at the first pass, if they are kept at all."""
        complete = self.store != "none" and len(self._kept) == -(-self.n // self.panel)
        for start in self._starts("kernel", False if complete else self.progress):
            yield start, self._panel(start)

    def _fresh(self) -> Iterator[tuple[int, Tensor]]:
        for start in self._starts("refining", self.progress):
            yield start, self._compute(start, torch.float64)

    def _starts(self, name: str, progress: bool | None) -> Iterator[int]:
        starts = range(0, self.n, self.panel)
        return track(starts, len(starts), name, progress)

    def _panel(self, start: int) -> Tensor:
        if start in self._kept:
            return self._kept[start]
        if self._files is None:
            found = self._compute(start, self.dtype)
        else:
            found = self._files.get(f"panel-{start:09d}", self.dtype, lambda: self._compute(start, self.dtype)).to(
                self.X.device
            )
        if self.store != "none":
            self._kept[start] = found
        return found

    def _compute(self, start: int, dtype: torch.dtype) -> Tensor:
        """In float64, a few columns at a time, and rounded as they are put in place."""
        stop = min(start + self.panel, self.n)
        rows = self.X[start:stop]
        found = torch.empty(len(rows), self.n - start, dtype=dtype, device=self.X.device)
        found[:, : stop - start] = self.kernel(rows, None)
        wide = _COLUMNS if self.X.device.type == "cpu" else self.n
        for left in range(stop, self.n, wide):
            others = self.X[left : left + wide]
            found[:, left - start : left - start + len(others)] = self.kernel(rows, others)
        return found


# ---- parts of a kernel matrix as files -----------------------------------------------------------------------


class TileFolder:
    """Parts of other data or another kernel are refused, those of an interrupted run are used again.

    A file appears under its name when it is complete: that is the mark of a finished part.
    """

    def __init__(self, path: str | Path, content: Mapping[str, Any]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        claim(self.path / "tiles.json", content)

    def get(self, name: str, dtype: torch.dtype, compute: Callable[[], Tensor]) -> Tensor:
        """The part of this name, computed and written if it is not there yet; as a memory map."""
        path = self.path / f"{name}.npy"
        if not path.exists():
            values = compute().to("cpu", dtype).numpy()
            with atomic(path) as temporary, open(temporary, "wb") as stream:
                np.save(stream, values)
        # copy-on-write: torch wants a writeable array, the file is never changed
        return torch.from_numpy(np.load(path, mmap_mode="c"))


def claim(note: Path, content: Mapping[str, Any]) -> None:
    """A note of what a folder holds: the first of many processes that come at once writes it, the others must agree."""
    if not note.exists():
        part = note.with_name(f".{note.name}.{secrets.token_hex(8)}.part")
        part.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
        try:
            os.link(part, note)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            part.replace(note)
        finally:
            part.unlink(missing_ok=True)
    if json.loads(note.read_text(encoding="utf-8")) != json.loads(json.dumps(content)):
        raise other_tiles(note.parent)


def other_tiles(path: str | Path) -> CheckpointError:
    return CheckpointError(
        f"{path} holds the tiles of other data, another kernel, tile size or dtype; choose another place, or remove it"
    )
