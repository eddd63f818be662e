"""Where a kernel matrix is written tile by tile: Zarr, or one .npy file. Each tile has a mark, set when it is there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .._files import reserve
from ..errors import MissingExtraError
from ..solve.tiles import claim, other_tiles
from .layout import Grid, Tile

Matrix = NDArray[Any]


class Sink(Protocol):
    """A symmetric matrix on the disk; every worker opens it by itself."""

    def begin(self, content: dict[str, Any]) -> None:
        """Make it, or take up one of the same content."""

    def write(self, tile: Tile, values: Matrix) -> None:
        """A tile and its mirror image, then its mark."""

    def finished(self) -> set[Tile]:
        """The tiles that have their mark."""

    def end(self) -> None:
        """All are there."""


def sink_of(kind: str, path: str, n: int, tile: int, dtype: str) -> Sink:
    """From what a worker is told."""
    return (ZarrSink if kind == "zarr" else NpySink)(path, Grid(n, tile), dtype)


class ZarrSink:
    """A Zarr v3 group: ``kernel``, one chunk per tile and no shards, so that workers never share one; ``finished``."""

    def __init__(self, path: str, grid: Grid, dtype: str) -> None:
        try:
            import zarr
        except ImportError:
            raise MissingExtraError("zarr", "dask") from None
        self.zarr, self.path, self.grid, self.dtype = zarr, path, grid, dtype
        self._group: Any = None

    @property
    def group(self) -> Any:
        if self._group is None:
            self._group = self.zarr.open_group(self.path, mode="r+")
        return self._group

    def begin(self, content: dict[str, Any]) -> None:
        group = self.zarr.open_group(self.path, mode="a", zarr_format=3)
        if "kernel" in group:
            if dict(group.attrs) != content:
                raise other_tiles(self.path)
            return
        n, m = self.grid.n, self.grid.count
        whole: Any = {"compressors": None, "config": {"write_empty_chunks": True}}
        tiles = (self.grid.size, self.grid.size)
        group.create_array("kernel", shape=(n, n), chunks=tiles, dtype=self.dtype, fill_value=float("nan"), **whole)
        group.create_array("finished", shape=(m, m), chunks=(1, 1), dtype="uint8", fill_value=0, **whole)
        group.attrs.update(content)

    def write(self, tile: Tile, values: Matrix) -> None:
        i, j = tile
        rows, columns = self.grid.span(i), self.grid.span(j)
        with self.zarr.config.set({"array.write_empty_chunks": True}):
            kernel = self.group["kernel"]
            kernel[rows, columns] = values
            if i != j:
                kernel[columns, rows] = values.T
            self.group["finished"][i, j] = 1

    def finished(self) -> set[Tile]:
        marks = np.asarray(self.group["finished"][:])
        return {(int(i), int(j)) for i, j in zip(*marks.nonzero(), strict=True)}

    def end(self) -> None:
        """The group is the result, marks and all."""


class NpySink:
    """A .npy file that appears when it is complete; until then it lies in a folder beside it, with a byte per tile."""

    def __init__(self, path: str, grid: Grid, dtype: str) -> None:
        self.path, self.grid, self.dtype = Path(path), grid, dtype
        self.folder = self.path.with_name(f".{self.path.name}.tiles")
        self.matrix, self.marks = self.folder / "matrix.npy", self.folder / "marks.npy"

    def begin(self, content: dict[str, Any]) -> None:
        note = self.folder / "content.json"
        if not note.exists():
            self._make()
        claim(note, content)

    def _make(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        n, m = self.grid.n, self.grid.count
        np.save(self.marks, np.zeros((m, m), dtype=np.uint8))
        made = np.lib.format.open_memmap(self.matrix, mode="w+", dtype=self.dtype, shape=(n, n))
        size = made.nbytes + made.offset
        del made
        with open(self.matrix, "r+b") as stream:  # a full disk is an error now, not a signal later
            reserve(stream.fileno(), size, self.matrix)

    def write(self, tile: Tile, values: Matrix) -> None:
        i, j = tile
        rows, columns = self.grid.span(i), self.grid.span(j)
        matrix = np.load(self.matrix, mmap_mode="r+")
        matrix[rows, columns] = values
        matrix[columns, rows] = values.T
        matrix.flush()
        marks = np.load(self.marks, mmap_mode="r+")
        marks[i, j] = 1
        marks.flush()

    def finished(self) -> set[Tile]:
        return {(int(i), int(j)) for i, j in zip(*np.load(self.marks).nonzero(), strict=True)}

    def end(self) -> None:
        os.replace(self.matrix, self.path)
        shutil.rmtree(self.folder)
