"""Files in and out: arrays and documents that are read with care, and written whole or not at all."""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import math
import shutil
import struct
import sys
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import notsodeep as nsd

from .._files import atomic, write_text
from ..errors import DataError, InvalidInputError
from .app import note

_LONGEST_JSON = 64 << 20
_LARGEST = 1e150  # of an entry: its square is a number
# what NumPy and the archives below it raise on damaged files
_DAMAGE = (
    ValueError,
    EOFError,
    LookupError,
    NotImplementedError,
    SyntaxError,
    tokenize.TokenError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


# ---- reading ---------------------------------------------------------------------------------------------


def points_from(source: str, *, standardise: bool = False, as_is: bool = False) -> Any:
    """The rows of a .npy, .npz or .csv file (``-``: standard input), finite and of a scale the theory speaks of."""
    return _scaled(read_rows(source, least=2)[0], source, standardise, as_is)


def read_rows(source: str, wanted: Sequence[str] = (), least: int = 1) -> tuple[Any, tuple[str, ...]]:
    """Finite rows as they are in a file, and the names of their columns; those ``wanted`` where they have names."""
    found = read(source)
    if not isinstance(found, Columns):
        return as_points(found, source, least), ()
    columns = [found.column(name) for name in wanted] if wanted and found.names else None
    return as_points(found.numbers(columns), source, least), found.names


def as_points(points: Any, source: str, least: int = 1) -> Any:
    """Rows of numbers whose squares are numbers too, in single or double precision."""
    if points.ndim != 2 or 0 in points.shape or len(points) < least:
        raise DataError(
            f"{source} holds an array of shape {points.shape}; rows are needed, shape (n, p) with n >= {least}. "
            "Reshape it, for instance images with X.reshape(len(X), -1), and save it again."
        )
    if points.dtype.kind not in "fiub":
        raise DataError(
            f"{source} holds {points.dtype} entries; real numbers are needed. Convert with X.astype(float)."
        )
    points = points if points.dtype in (np.float32, np.float64) else points.astype(np.float64)
    bad = int((~np.isfinite(points)).any(axis=1).sum())
    if bad:
        raise DataError(
            f"{source} has NaN or infinite entries in {bad} of {len(points)} rows. Remove or fill them "
            "first, for instance X = X[np.isfinite(X).all(axis=1)]."
        )
    largest = float(np.abs(points).max())
    if largest > _LARGEST:
        raise DataError(
            f"{source} has entries up to {largest:.3g}; squares of such numbers are infinite. Divide first, for "
            "instance X = X / np.abs(X).max(), and save it again."
        )
    return points


def same_preparation(points: str, against: str, standardise: bool, as_is: bool) -> tuple[Any, Any]:
    """Two sets of rows, the first prepared with the statistics of the second: test rows as the training rows were."""
    if points == "-" and against == "-":
        raise InvalidInputError("only one of the two sets of points can come from standard input.")
    train, (X, _) = points_from(against, as_is=as_is or standardise), read_rows(points)
    X = _scaled(X, points, False, as_is or standardise)
    if X.shape[1] != train.shape[1]:
        raise DataError(
            f"{points} has {X.shape[1]} columns and {against} {train.shape[1]}: one kernel needs the same features."
        )
    if not standardise:
        return X, train
    fitted = nsd.Standardiser().fit(train)
    return fitted.transform(X), fitted.transform(train)


def labels_from(source: str, n: int) -> Any:
    """n labels from a file: numbers, or words."""
    found = _opened(source, "y")
    labels = _labels_of(found, n, source) if isinstance(found, str) else found
    if labels.shape != (n,):
        raise DataError(
            f"{source} holds labels of shape {labels.shape}, the data has {n} rows: one label per row is needed, "
            f"shape ({n},). Give the labels that belong to this data; one-hot labels become classes with y.argmax(1)."
        )
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        raise DataError(
            f"{source} has NaN or infinite labels in {int((~np.isfinite(labels)).sum())} of {n} rows; they are no "
            "class. Remove these rows from data and labels first."
        )
    return labels


def read_json(source: str) -> Any:
    """A JSON document from a file or, for ``-``, from standard input."""
    if source == "-":
        content = sys.stdin.buffer.read(_LONGEST_JSON + 1)
    else:
        with open(source, "rb") as stream:
            content = stream.read(_LONGEST_JSON + 1)
    try:
        if len(content) > _LONGEST_JSON:
            raise ValueError(f"it is longer than {_LONGEST_JSON >> 20} MiB")
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise DataError(
            f"{_named(source)} is not valid JSON ({reason}). It may be damaged, cut off or another kind of file; write "
            "it again with: notsodeep match ... --save"
        ) from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _named(source: str) -> str:
    return "standard input" if source == "-" else source


def read(source: str) -> Any:
    """What a file of rows holds: an array, or a :class:`Columns` of text."""
    found = _opened(source, "X")
    return _table_of(found, source) if isinstance(found, str) else found


def _opened(source: str, name: str) -> Any:
    """An array, that of this name in an archive; or text, which anything else is taken for."""
    content = sys.stdin.buffer.read() if source == "-" else None
    try:
        with open(source, "rb") if content is None else io.BytesIO(content) as stream:
            head = stream.read(6)
            stream.seek(0)
            if head == b"\x93NUMPY":
                return _loaded(stream)
            if head[:4] == b"PK\x03\x04":
                return _archived(stream, name)
            text = stream.read().decode("utf-8-sig")
        if not text.strip():
            raise ValueError("it is empty")
        return text
    except _DAMAGE as error:
        raise DataError(
            f"{_named(source)} cannot be read as numbers: "
            f"{str(error).splitlines()[0] if str(error) else 'it ends too early'}. "
            "Give a .npy file (np.save), an .npz file with an array X (labels: y), or comma-separated text in UTF-8."
        ) from None


def _archived(stream: Any, name: str) -> Any:
    with np.load(stream, allow_pickle=False) as archive:
        if name not in archive:
            raise KeyError(f"no array {name!r} inside, only {', '.join(archive.files)}")
        return archive[name]


def _loaded(stream: Any) -> Any:
    """A .npy file; one that claims more than it holds is damaged, however little memory there is."""
    try:
        return np.load(stream, allow_pickle=False)
    except MemoryError as error:
        stream.seek(0)
        readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = readers[np.lib.format.read_magic(stream)](stream)
        held, size = len(stream.read(1 << 30)), math.prod(shape) * dtype.itemsize
        if held < min(size, 1 << 30):
            raise ValueError(f"it says that it holds an array of shape {shape}, and ends before that") from error
        raise


@dataclass(frozen=True)
class Columns:
    """Text in rows and columns, separated by commas or blanks; columns without a header have no names."""

    source: str
    names: tuple[str, ...]
    text: str
    delimiter: str | None

    @functools.cached_property
    def cells(self) -> list[list[str]]:
        """Every cell, row by row."""
        return _cells(self.text, self.delimiter, self.source)

    def column(self, name: str) -> int:
        """Its position; a number counts from zero, -1 is the last."""
        if name in self.names:
            return self.names.index(name)
        width = len(self.cells[0])
        if name.lstrip("-").isdigit() and -width <= int(name) < width:
            return int(name) % width
        known = ", ".join(self.names) if self.names else f"0 to {width - 1}"
        raise InvalidInputError(f"{self.source} has no column {name!r}; it has {known}.")

    def numbers(self, columns: Sequence[int] | None = None) -> Any:
        """These columns, or all of them, as a matrix."""
        if columns is None:
            with contextlib.suppress(ValueError):  # many numbers are read quickly, a wrong one is looked for below
                return np.loadtxt(io.StringIO(self.text), delimiter=self.delimiter, ndmin=2)
        chosen = range(len(self.cells[0])) if columns is None else columns
        return np.array([[self._number(row, column) for column in chosen] for row in range(len(self.cells))])

    def _number(self, row: int, column: int) -> float:
        cell = self.cells[row][column]
        if _is_number(cell):
            return float(cell)
        where = self.names[column] if self.names else f"column {column}"
        raise DataError(
            f"{self.source}, data row {row + 1}, {where}: {cell!r} is not a number. Leave this column out, or encode "
            "it as numbers first."
        )


def _table_of(text: str, source: str) -> Columns:
    """A first line without a number names the columns."""
    first, _, rest = text.lstrip().partition("\n")
    delimiter = "," if "," in first else None
    names = [name for row in _cells(first.lstrip("# "), delimiter, source) for name in row]
    if any(_is_number(name) for name in names):
        return Columns(source, (), text, delimiter)
    if not rest.strip():
        raise DataError(f"{_named(source)} has a header and no rows.")
    return Columns(source, tuple(names), rest, delimiter)


def _cells(text: str, delimiter: str | None, source: str) -> list[list[str]]:
    """Every cell, row by row; rows of different lengths are refused."""
    try:
        split = map(str.split, text.splitlines()) if delimiter is None else csv.reader(io.StringIO(text))
        rows = [[cell.strip() for cell in row] for row in split if row]
    except csv.Error as error:
        raise DataError(f"{_named(source)} cannot be read as comma-separated text: {error}.") from None
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise DataError(f"{_named(source)} has rows of {sorted(widths)} columns; every row needs as many as the first.")
    return rows


def _labels_of(text: str, n: int, source: str) -> Any:
    """A label per line, perhaps under the name of the column; or all of them in one line."""
    rows = _cells(text, ",", source)
    if len(rows) == 1:
        rows = [[cell] for cell in text.replace(",", " ").split()]
    if len(rows) == n + 1:
        rows = rows[1:]
    return as_values([row[0] for row in rows]) if len(rows[0]) == 1 else np.array(rows)


def as_values(cells: Sequence[str]) -> Any:
    """Whole numbers, numbers, or words: the narrowest that all cells are."""
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return np.array([kind(cell) for cell in cells])
    return np.array(cells)


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _scaled(points: Any, source: str, standardise: bool, as_is: bool) -> Any:
    if standardise:
        return nsd.standardise(points)
    squares = float(np.mean(np.einsum("ij,ij->i", points, points, dtype=np.float64)))
    if not as_is and not 0.01 <= squares <= 100.0:
        raise DataError(
            f"the rows of {source} have a mean squared norm of {squares:.3g}; the theory speaks of data scaled "
            "to about one. Add --standardise to centre and scale the data, or --as-is if this is what you want."
        )
    return points


# ---- writing ---------------------------------------------------------------------------------------------


def check_target(path: Path | None, force: bool) -> None:
    """Fail before the work, not after it: the folder must take a file, an earlier one is kept unless ``force``."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidInputError(f"{path} is a folder; give the name of a file, for instance {path / 'result'}.")
    if path.exists() and not force:
        raise InvalidInputError(
            f"{path} exists and is kept as it is. Choose another name, or add --force to replace it."
        )
    if not path.parent.is_dir():
        raise InvalidInputError(f"the folder {path.parent} does not exist. Make it first, or write elsewhere.")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


@contextlib.contextmanager
def matrix_file(path: Path, shape: tuple[int, int], dtype: Any) -> Iterator[Any]:
    """A memory map of a .npy file that appears when it is full; its space is reserved before it is filled."""
    header = matrix_header(shape, dtype)
    size = len(header) + shape[0] * shape[1] * dtype.itemsize
    _enough_space(path, size)
    with atomic(path, size) as temporary:
        with open(temporary, "r+b") as stream:
            stream.write(header)
        mapped = np.lib.format.open_memmap(temporary, mode="r+")
        yield mapped
        mapped.flush()


def matrix_header(shape: tuple[int, int], dtype: Any) -> bytes:
    """The first bytes of a .npy file."""
    header = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, described)
    return header.getvalue()


def _enough_space(path: Path, size: int) -> None:
    """Refuse an output that cannot fit."""
    free = shutil.disk_usage(path.parent).free
    if size > free:
        raise DataError(
            f"{path} needs {size / 2**20:.1f} MiB and {path.parent} has {free / 2**20:.1f} MiB free. Free some space, "
            "write elsewhere, or halve it with float32 data."
        )


def write_json(path: Path, document: Any) -> None:
    """A JSON document, whole or not at all."""
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")
    note(f"written: {path}")


def check_plot(path: Path | None, force: bool) -> None:
    """As :func:`check_target`, for a drawing in the format that the name says."""
    if path is not None and path.suffix not in ("", ".png", ".svg", ".pdf"):
        raise InvalidInputError(f"--plot writes .png, .svg or .pdf, got {path.name!r}.")
    check_target(path, force)


def save_plot(display: Any, path: Path) -> None:
    """Draw without a window, into a file."""
    import matplotlib

    matplotlib.use("Agg")
    with atomic(path) as temporary:
        display.plot().figure_.savefig(temporary, format=path.suffix.lstrip(".") or "png", dpi=150)
    note(f"written: {path}")
