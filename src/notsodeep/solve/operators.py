"""A kernel matrix as an operator: products, columns and the diagonal, with the upper triangle stored in panels.

Panel i holds rows [i b, (i + 1) b) against columns [i b, n): the upper triangle and blocks of size b on the diagonal.
For n = 60,000 in float32 that is 7.5 GB.
"""

from __future__ import annotations

import functools
import os
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows
from .._conjugate import thin
from .._files import reserve
from .._progress import track
from ..errors import InvalidInputError
from ._limits import LIMITS

KernelFunction = Callable[[Tensor, Tensor | None], Tensor]  # k(X, Y) of shape (n, m); Y is None for k(X, X)
Dtype = Literal["auto", "float32", "float64"]


class KernelOperator(ABC):
    """D k(X, X) D as an operator, with D the identity or the diagonal matrix of ``scale``.

    Subclasses say how K itself is multiplied; scaling by D is done here. ``dtype`` is that of the stored entries.
    """

    def __init__(self, kernel: KernelFunction, X: Tensor, scale: Tensor | None, dtype: torch.dtype) -> None:
        self.kernel, self.X, self.n, self.dtype = kernel, X, len(X), dtype
        self.scale = None if scale is None else scale.to(X).reshape(-1, 1)

    def __matmul__(self, v: Tensor) -> Tensor:
        return self._scaled(v, exact=False)

    def exact(self, v: Tensor) -> Tensor:
        """Return the product with ``v`` in float64; every entry is computed again where less is stored."""
        return self._scaled(v, exact=self.dtype != torch.float64)

    def _scaled(self, v: Tensor, exact: bool) -> Tensor:
        columns = v.reshape(self.n, -1)
        image = self._product(columns if self.scale is None else self.scale * columns, exact)
        return (image if self.scale is None else self.scale * image).reshape(v.shape)

    def diagonal(self) -> Tensor:
        """Return the diagonal in float64, of shape (n,)."""
        return self._diagonal if self.scale is None else self._diagonal * self.scale[:, 0] ** 2

    def columns(self, index: Tensor) -> Tensor:
        """Return the columns of these rows in float64, of shape (n, len(index))."""
        columns = self._compute_columns(self.X[index])
        return columns if self.scale is None else self.scale * columns * self.scale[index, 0]

    @abstractmethod
    def _product(self, v: Tensor, exact: bool) -> Tensor:
        """Return K v, with the stored entries or with entries computed again in float64."""

    @property
    @abstractmethod
    def _diagonal(self) -> Tensor:
        """The k(x_i, x_i), (n,)."""

    @abstractmethod
    def _compute_columns(self, others: Tensor) -> Tensor:
        """Return k(X, others)."""


class KernelTiles(KernelOperator):
    """D k(X, X) D with its upper triangle in memory, in a memory map, or computed again for every product.

    Parameters
    ----------
    kernel : callable
        k(X, Y) of rows, in float64.
    X : Tensor of shape (n, p)
    scale : Tensor of shape (n,), optional
        The diagonal of D.
    dtype : "auto", "float32" or "float64"
        Of the stored entries; ``"auto"`` is float64 where the triangle takes less than half of the free memory.
    folder : str or Path, optional
        Where a temporary memory map holds the triangle.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Examples
    --------
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
        dtype: Dtype = "float64",
        folder: str | Path | None = None,
        progress: bool | None = None,
    ) -> None:
        rows = as_rows(X).to(torch.float64)
        free = available_bytes(rows.device)
        super().__init__(kernel, rows, scale, stored_dtype(dtype, len(rows), free))
        self.panel, self.progress = min(LIMITS.panel, self.n), progress
        self._panels: dict[int, Tensor] = {}
        self._map = None if folder is None else _memory_map(folder, self.n, self.panel, self.dtype)
        self._stored = self._map is not None or triangle_bytes(self.n, self.dtype) < 0.8 * free

    def _product(self, v: Tensor, exact: bool) -> Tensor:
        dtype = torch.float64 if exact else self.dtype
        out, low = as_columns(torch.zeros_like(v), torch.float64), as_columns(v, dtype)
        starts = range(0, self.n, self.panel)
        quiet = not exact and len(self._panels) == len(starts)
        for start in track(starts, len(starts), "kernel", False if quiet else self.progress):
            panel = self._compute(start, dtype) if exact else self._at(start)
            stop = start + len(panel)
            add_block(out, low, start, start, panel[:, : stop - start])
            add_block(out, low, start, stop, panel[:, stop - start :])
        return out.contiguous()

    def _at(self, start: int) -> Tensor:
        panel = self._panels.get(start)
        if panel is None:
            panel = self._compute(start, self.dtype)
            if self._map is not None:
                first = start * self.n - start * (start - self.panel) // 2
                panel = self._map[first : first + panel.numel()].view(panel.shape).copy_(panel)
            if self._stored:
                self._panels[start] = panel
        return panel.to(self.X.device)

    def _compute(self, start: int, dtype: torch.dtype) -> Tensor:
        """Return a panel, computed in float64, some columns at a time."""
        stop = min(start + self.panel, self.n)
        rows = self.X[start:stop]
        panel = torch.empty(len(rows), self.n - start, dtype=dtype, device=self.X.device)
        panel[:, : stop - start] = self.kernel(rows, None)
        wide = LIMITS.entries // len(rows) if self.X.device.type == "cpu" else self.n
        for left in range(stop, self.n, wide):
            others = self.X[left : left + wide]
            panel[:, left - start : left - start + len(others)] = self.kernel(rows, others)
        return panel

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        parts = self.X.split(LIMITS.diagonal_block)  # symmetric blocks: exact, whatever the rounding of products
        return torch.cat([self.kernel(part, None).diagonal() for part in parts])

    def _compute_columns(self, others: Tensor) -> Tensor:
        return self.kernel(self.X, others)


def triangle_bytes(n: int, dtype: torch.dtype) -> int:
    """Return the size of the stored triangle."""
    return n * (n + min(LIMITS.panel, n)) // 2 * dtype.itemsize


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device, or a cautious guess where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError):  # Windows has no sysconf; that of macOS does not know the free pages
        return LIMITS.assumed_memory


def stored_dtype(dtype: Dtype, n: int, free: float) -> torch.dtype:
    """Return the precision of stored entries; for ``"auto"``, float64 where the triangle fits into half of ``free``."""
    fits = triangle_bytes(n, torch.float64) < 0.5 * free
    return torch.float64 if dtype == "float64" or (dtype == "auto" and fits) else torch.float32


def _memory_map(folder: str | Path, n: int, panel: int, dtype: torch.dtype) -> Tensor:
    """Return a flat tensor for the triangle in a temporary file, which the system removes with its last user."""
    count = sum(min(panel, n - start) * (n - start) for start in range(0, n, panel))
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as stream:
            reserve(stream.fileno(), count * dtype.itemsize, Path(folder))  # a full disk is an error now
            kind = np.float32 if dtype == torch.float32 else np.float64
            return torch.from_numpy(np.memmap(stream, dtype=kind, mode="r+", shape=(count,)))
    except OSError as error:
        raise InvalidInputError(f"the folder {folder} cannot hold the kernel: {error.strerror or error}") from error


def add_block(out: Tensor, v: Tensor, top: int, left: int, block: Tensor) -> None:
    """Add K v to ``out`` for a symmetric K that is ``block`` at (top, left), its transpose opposite, and else zero.

    Blocks are taken in pieces that stay in the cache for their second use. This is fastest where ``out`` and ``v`` are
    stored column by column, see :func:`as_columns`.
    """
    high, wide = len(block), 2 * LIMITS.panel
    if block.device.type == "cpu":
        wide = LIMITS.panel
        high = LIMITS.cache_bytes * torch.get_num_threads() // (wide * block.element_size())
    for i in range(0, len(block), high):
        for j in range(0, block.shape[1], wide):
            piece = block[i : i + high, j : j + wide]
            rows, columns = (slice(a, a + size) for a, size in zip((top + i, left + j), piece.shape, strict=True))
            out[rows] += thin(piece, v[columns])
            if top != left:
                out[columns] += thin(piece.T, v[rows])


def as_columns(v: Tensor, dtype: torch.dtype) -> Tensor:
    """Return ``v`` with each of its columns in one piece of memory."""
    return v.T.to(dtype).contiguous().T
