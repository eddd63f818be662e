"""A symmetric kernel matrix in panels of rows: kept in memory, on disk, or computed again for every product.

Panel i holds rows [i b, (i + 1) b) against columns [i b, n): the upper triangle, and blocks of size b on the diagonal.
For n = 60,000 in float32 that is 7.2 GB, and n b / 2 entries more.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked, whole
from .._arrays import as_rows
from .._progress import track
from .._words import Store as Store
from ..errors import InvalidInputError
from .folder import TileFolder
from .operator import KernelFunction, add_block, as_columns, fingerprint
from .pivoted import LowRank, pivoted_cholesky

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


class KernelTiles:
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
        dtype: torch.dtype = torch.float64,
        store: Store = "auto",
        folder: str | Path | None = None,
        panel: int = _PANEL,
        progress: bool | None = None,
    ) -> None:
        self.X, self.kernel, self.dtype, self.progress = as_rows(X).to(torch.float64), kernel, dtype, progress
        whole("panel", panel)
        self.n, self.panel = len(X), min(panel, len(X))
        self.scale = None if scale is None else scale.to(self.X).reshape(-1, 1)
        self.store, self.folder = _chosen(store, folder, self.n, dtype, self.X.device, self.panel)
        self._kept: dict[int, Tensor] = {}
        self._files: TileFolder | None = None
        if self.folder is not None:
            content = {"n": self.n, "panel": self.panel, "dtype": str(dtype), "content": self.fingerprint()}
            self._files = TileFolder(self.folder, content)

    # -- products ------------------------------------------------------------------------------------------
    def __matmul__(self, v: Tensor) -> Tensor:
        return self._scaled(v, self.panels(), self.dtype)

    def exact(self, v: Tensor) -> Tensor:
        """The product in float64 throughout; free where float64 is what is stored."""
        if self.dtype == torch.float64:
            return self @ v
        fresh = ((start, self._compute(start, torch.float64)) for start in self._starts("refining"))
        return self._scaled(v, fresh, torch.float64)

    def _scaled(self, v: Tensor, panels: Iterator[tuple[int, Tensor]], dtype: torch.dtype) -> Tensor:
        inner = v if self.scale is None else self.scale * v
        out = _symmetric_product(panels, inner, dtype)
        return out if self.scale is None else self.scale * out

    # -- entries -------------------------------------------------------------------------------------------
    def diagonal(self) -> Tensor:
        """k(x_i, x_i), scaled, in float64."""
        return self._diagonal if self.scale is None else self._diagonal * self.scale[:, 0] ** 2

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        """From small symmetric blocks: a kernel is exact there, whatever the rounding of inner products."""
        return torch.cat([self.kernel(part, None).diagonal() for part in self.X.split(_DIAGONAL)])

    def columns(self, index: Tensor) -> Tensor:
        """The columns of these rows, (n, len(index)), in float64."""
        found = self.kernel(self.X, self.X[index])
        return found if self.scale is None else self.scale * found * self.scale[index, 0]

    def low_rank(self, rank: int, seed: int) -> LowRank:
        """Randomly pivoted Cholesky."""
        return pivoted_cholesky(self.columns, self.diagonal(), rank, seed)

    # -- panels --------------------------------------------------------------------------------------------
    def panels(self) -> Iterator[tuple[int, Tensor]]:
        """(first row, panel) for all panels, in order; computed at the first pass, if they are kept at all."""
        complete = self.store != "none" and len(self._kept) == -(-self.n // self.panel)
        starts = range(0, self.n, self.panel) if complete else self._starts("kernel")
        for start in starts:
            yield start, self._panel(start)

    def _starts(self, name: str) -> Iterator[int]:
        starts = range(0, self.n, self.panel)
        return track(starts, len(starts), name, self.progress)

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

    def fingerprint(self) -> str:
        """Of the rows, and of the kernel between a few of them."""
        return fingerprint(self.kernel, self.X)


def _chosen(store: str, folder: Any, n: int, dtype: torch.dtype, device: torch.device, panel: int) -> tuple[str, Any]:
    if store not in ("auto", "memory", "disk", "none"):
        raise InvalidInputError(f"store must be 'auto', 'memory', 'disk' or 'none', got {store!r}")
    if store == "disk" and folder is None:
        raise InvalidInputError("store='disk' needs folder=, a folder for the tiles")
    if store != "auto":
        return store, Path(folder) if store == "disk" else None
    if triangle_bytes(n, dtype, panel) < 0.8 * available_bytes(device):
        return "memory", None
    return ("none", None) if folder is None else ("disk", Path(folder))


def _symmetric_product(panels: Iterator[tuple[int, Tensor]], v: Tensor, dtype: torch.dtype) -> Tensor:
    """The product with the matrix of which ``panels`` are the upper part; sums of pieces in double precision."""
    out, low = as_columns(torch.zeros_like(v), torch.float64), as_columns(v, dtype)
    for start, panel in panels:
        stop = start + len(panel)
        add_block(out, low, start, start, panel[:, : stop - start])
        add_block(out, low, start, stop, panel[:, stop - start :])
    return out.contiguous()
