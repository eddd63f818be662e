"""The words that options of several rooms take, and tables of words for notebooks.

Nothing heavy is imported, so that the command has them at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import Literal

Kernel = Literal["ck", "ntk", "ntk_frozen"]
"""What is trained: the readout alone; all weights; all but the input weights (docs/theory.md, section 2)."""
Init = Literal["gaussian", "orthogonal"]
Readout = Literal["activation", "pre-activation"]
Parametrisation = Literal["ntk", "standard"]


def as_html(heading: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a plain table, which notebooks show for an object; numbers have six digits."""
    told = [(name, f"{value:.6g}" if isinstance(value, float) else str(value)) for name, value in rows]
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in told)
    return f"<table><caption>{escape(heading)}</caption><tbody>{cells}</tbody></table>"
