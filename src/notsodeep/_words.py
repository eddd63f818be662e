"""The words that options of several rooms take, and how results are shown: tables for notebooks, pictures.

Nothing heavy is imported, so that the command has them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from importlib import import_module
from typing import Any, Literal

Kernel = Literal["ck", "ntk", "ntk_frozen"]
"""What is trained: the readout alone; all weights; all but the input weights (docs/theory.md, section 2)."""
Init = Literal["gaussian", "orthogonal"]
Readout = Literal["activation", "pre-activation"]
Parametrisation = Literal["ntk", "standard"]


def as_html(heading: str, rows: Iterable[tuple[object, ...]]) -> str:
    """Return a plain table, which notebooks show for an object; a row begins with its name, numbers have six digits."""
    texts = [[escape(f"{value:.6g}" if isinstance(value, float) else str(value)) for value in row] for row in rows]
    lines = (f"<tr><th>{name}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>" for name, *cells in texts)
    return f"<table><caption>{escape(heading)}</caption><tbody>{''.join(lines)}</tbody></table>"


class Drawn:
    """The base of results that have a picture, which :mod:`notsodeep.plots` draws."""

    def plot(self, ax: Any = None, **options: Any) -> Any:
        """Draw the result into ``ax``, or into a new figure, and return its display from :mod:`notsodeep.plots`."""
        return import_module("notsodeep.plots").display_of(self).plot(ax, **options)


class Curve(Drawn):
    """The base of curves, which are tables: the first row has the names of the columns."""

    def _table(self) -> tuple[str, list[tuple[str, ...]]]:
        """Return the heading and the rows."""
        raise NotImplementedError

    def __str__(self) -> str:
        heading, rows = self._table()
        widths = [3 + max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ("".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join([heading, *lines])

    def _repr_html_(self) -> str:
        return as_html(*self._table())
