"""What is printed: results to standard output, everything else to standard error, and little of it in a pipe."""

from __future__ import annotations

import json
import sys
from typing import Any

__all__ = ["complain", "note", "print_json", "show", "table", "tell"]


def show(thing: Any) -> None:
    """A result, for people: with colours on a terminal (not under NO_COLOR), plain and wide in a pipe."""
    from rich.console import Console

    # no fixed width on a terminal; in a pipe lines are not folded to a window that does not exist
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=not sys.stdout.isatty())
    console.print(thing, markup=False) if isinstance(thing, str) else console.print(thing)


def print_json(document: Any) -> None:
    """A result, for programs."""
    sys.stdout.write(json.dumps(document, indent=1, allow_nan=False) + "\n")


def note(text: str) -> None:
    """A remark beside the result; only where somebody is watching."""
    if sys.stderr.isatty():
        _console().print(text, style="dim", markup=False, highlight=False)


def tell(text: str) -> None:
    """What a user must know although nothing failed: a choice that was made, a limit that was met."""
    complain(text, "yellow")


def complain(text: str, style: str = "red") -> None:
    """A failure or a warning, as one paragraph."""
    _console().print(f"notsodeep: {' '.join(text.split())}", style=style, markup=False, highlight=False)


def table(title: str, columns: dict[str, Any], rows: list[list[str]]) -> Any:
    """A rich table; ``columns`` maps headings to "left" or "right"."""
    from rich.table import Table

    made = Table(title=title, title_justify="left")
    for heading, justify in columns.items():
        made.add_column(heading, justify=justify)
    for row in rows:
        made.add_row(*row)
    return made


def _console() -> Any:
    from rich.console import Console

    return Console(stderr=True, width=None if sys.stderr.isatty() else 100, soft_wrap=not sys.stderr.isatty())
