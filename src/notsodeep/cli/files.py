"""Files in and out: arrays and documents that are read with care, and written whole or not at all."""

from __future__ import annotations

import contextlib
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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .._files import atomic, write_text
from ..errors import DataError, InvalidInputError

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


def points_from(source: str, *, standardise: bool = False, as_is: bool = False, least: int = 2) -> Any:
    """The rows of a .npy, .npz or .csv file (``-``: standard input), finite and of a scale the theory speaks of."""
    points = _array(source, "X")
    if points.ndim != 2 or 0 in points.shape or len(points) < least:
        raise DataError(
            f"{source} holds an array of shape {points.shape}; rows are needed, shape (n, p) with n >= {least}. "
            "Reshape it, for instance images with X.reshape(len(X), -1), and save it again."
        )
    points = _numbers(points, source)
    return _scaled(_finite(points, source), source, standardise, as_is)


def _finite(points: Any, source: str) -> Any:
    """Rows whose entries and squared norms are numbers."""
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
    import notsodeep as nsd

    if points == "-" and against == "-":
        raise InvalidInputError("only one of the two sets of points can come from standard input.")
    train = points_from(against, as_is=as_is or standardise)
    X = points_from(points, as_is=as_is or standardise, least=1)
    if X.shape[1] != train.shape[1]:
        raise DataError(
            f"{points} has {X.shape[1]} columns and {against} {train.shape[1]}: one kernel needs the same features."
        )
    if not standardise:
        return X, train
    fitted = nsd.Standardiser.fit(train)
    return fitted.transform(X), fitted.transform(train)


def labels_from(source: str, n: int) -> Any:
    """n labels from a file."""
    labels = _array(source, "y")
    if labels.shape == (n + 1,) and labels.dtype.kind == "U":
        labels = labels[1:]  # the first line names the column
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


def _array(source: str, name: str) -> Any:
    content = sys.stdin.buffer.read() if source == "-" else None
    try:
        if content is not None:
            return _parse(io.BytesIO(content), content[:6], name)
        with open(source, "rb") as stream:
            head = stream.read(6)
            stream.seek(0)
            return _parse(stream, head, name)
    except _DAMAGE as error:
        raise DataError(
            f"{_named(source)} cannot be read as numbers: "
            f"{str(error).splitlines()[0] if str(error) else 'it ends too early'}. "
            "Give a .npy file (np.save), an .npz file with an array X (labels: y), or comma-separated numbers."
        ) from None


def _parse(stream: Any, head: bytes, name: str) -> Any:
    if head == b"\x93NUMPY":
        return _loaded(stream)
    if head[:4] == b"PK\x03\x04":
        with np.load(stream, allow_pickle=False) as archive:
            if name not in archive:
                raise KeyError(f"no array {name!r} inside, only {', '.join(archive.files)}")
            return archive[name]
    text = stream.read().decode("utf-8")
    if not text.strip():
        raise ValueError("it is empty")
    return _labels_of(text) if name == "y" else _table_of(text)


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


def _table_of(text: str) -> Any:
    """Numbers, under a line of column names where there is one."""
    first, _, rest = text.lstrip().partition("\n")
    delimiter = "," if "," in first else None
    named = any(not is_number(cell) for cell in first.split(delimiter))
    return np.loadtxt(io.StringIO(rest if named and rest.strip() else text), delimiter=delimiter, ndmin=2)


def _labels_of(text: str) -> Any:
    """Numbers, or a word per line."""
    try:
        return np.loadtxt(io.StringIO(text), delimiter="," if "," in text else None, ndmin=1)
    except ValueError:
        return np.array([line.strip().strip('"') for line in text.splitlines() if line.strip()])


def is_number(cell: str) -> bool:
    """Whether a cell of a table is a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(points: Any, source: str) -> Any:
    if points.dtype.kind not in "fiub":
        raise DataError(
            f"{source} holds {points.dtype} entries; real numbers are needed. Convert with X.astype(float)."
        )
    return points if points.dtype in (np.float32, np.float64) else points.astype(np.float64)


def _scaled(points: Any, source: str, standardise: bool, as_is: bool) -> Any:
    if standardise:
        import notsodeep as nsd

        return nsd.standardise(points)
    squares = float(np.mean(np.einsum("ij,ij->i", points, points, dtype=np.float64)))
    if not as_is and not 0.01 <= squares <= 100.0:
        raise DataError(
            f"the rows of {source} have a mean squared norm of {squares:.3g}; the theory speaks of data scaled "
            "to about one. Add --standardise to centre and scale the data, or --as-is if this is what you want."
        )
    return points


# ---- writing ---------------------------------------------------------------------------------------------


def check_target(path: Path, force: bool) -> None:
    """Fail before the work, not after it: the folder must take a file, an earlier one is kept unless ``force``."""
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


def save_figure(figure: Any, path: Path) -> None:
    """A drawing, in the format that the name says."""
    suffix = path.suffix.lstrip(".") or "png"
    if suffix not in ("png", "svg", "pdf"):
        raise InvalidInputError(f"--plot writes .png, .svg or .pdf, got {path.name!r}.")
    with atomic(path) as temporary:
        figure.savefig(temporary, format=suffix, dpi=150)
