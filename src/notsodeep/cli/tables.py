"""Tables of numbers with names: comma-separated files with a header and labels that may be words, or plain arrays."""

from __future__ import annotations

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, InvalidInputError
from .files import is_number, labels_from, points_from


@dataclass(frozen=True)
class Table:
    """Columns of a file; without a header they have no names."""

    source: str
    names: tuple[str, ...]
    cells: list[list[str]]

    def column(self, name: str) -> int:
        """Its position; a number counts from zero, -1 is the last."""
        if name in self.names:
            return self.names.index(name)
        width = len(self.cells[0])
        if name.lstrip("-").isdigit() and -width <= int(name) < width:
            return int(name) % width
        known = ", ".join(self.names) if self.names else f"0 to {width - 1}"
        raise InvalidInputError(f"{self.source} has no column {name!r}; it has {known}.")

    def numbers(self, columns: list[int]) -> Any:
        """These columns as a matrix of finite numbers."""
        out = np.empty((len(self.cells), len(columns)))
        for i, row in enumerate(self.cells):
            for j, column in enumerate(columns):
                try:
                    out[i, j] = float(row[column])
                except ValueError:
                    where = self.names[column] if self.names else f"column {column}"
                    raise DataError(
                        f"{self.source}, data row {i + 1}, {where}: {row[column]!r} is not a number. Leave this column "
                        "out, or encode it as numbers first."
                    ) from None
        if not np.isfinite(out).all():
            bad = int((~np.isfinite(out)).any(axis=1).sum())
            raise DataError(f"{self.source} has NaN or infinite entries in {bad} rows. Remove or fill them first.")
        return out


def read_table(source: str) -> Table | None:
    """A comma-separated file; None for .npy and .npz, which have no names."""
    if source != "-" and Path(source).suffix in (".npy", ".npz"):
        return None
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
        rows = [row for row in csv.reader(io.StringIO(text)) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{source} cannot be read as comma-separated text ({error}). Give a .csv file in UTF-8, or a .npy or .npz "
            "file."
        ) from None
    if not rows:
        raise DataError(f"{source} is empty; a row per sample is needed.")
    widths = {len(row) for row in rows}
    if len(widths) > 1:
        raise DataError(f"{source} has rows of {sorted(widths)} columns; every row needs as many as the first.")
    named = not any(is_number(cell) for cell in rows[0])
    names = tuple(cell.strip() for cell in rows[0]) if named else ()
    cells = [[cell.strip() for cell in row] for row in (rows[1:] if named else rows)]
    if not cells:
        raise DataError(f"{source} has a header and no rows.")
    return Table(source, names, cells)


def split_target(data: str, target: str | None, labels: str | None) -> tuple[Any, Any, list[str]]:
    """Rows, what to predict (words or numbers), and the names of the columns, if there are any."""
    table = read_table(data)
    if (target is None) == (labels is None):
        raise InvalidInputError("say what to predict: --target COLUMN of the data, or --labels FILE, not both.")
    if table is None:
        if labels is None:
            raise InvalidInputError("an array has no named columns; give what to predict with --labels FILE.")
        X = points_from(data, as_is=True)
        return X, _labels(labels, len(X)), []
    aim = None if target is None else table.column(target)
    columns = [i for i in range(len(table.cells[0])) if i != aim]
    if not columns:
        raise DataError(f"{data} has no columns besides the target.")
    X = table.numbers(columns)
    y = _labels(str(labels), len(X)) if aim is None else _values([row[aim] for row in table.cells])
    return X, y, [table.names[i] for i in columns] if table.names else []


def _labels(source: str, n: int) -> Any:
    table = read_table(source)
    if table is None:
        return labels_from(source, n)
    if len(table.cells) != n or len(table.cells[0]) != 1:
        raise DataError(
            f"{source} holds {len(table.cells)} rows of {len(table.cells[0])}; one label per row is needed."
        )
    return _values([row[0] for row in table.cells])


def _values(cells: list[str]) -> Any:
    """Whole numbers, numbers, or words: the narrowest that all cells are."""
    for kind in (int, float):
        try:
            return np.array([kind(cell) for cell in cells])
        except ValueError:
            continue
    return np.array(cells)
