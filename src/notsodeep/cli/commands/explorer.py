"""``explore``: the page on which the theory moves with the sliders."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from ..app import app
from ..output import show


@app.command()
def explore(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the page there instead of opening it.")
    ] = None,
) -> None:
    """Open the explorer: one page in your browser, no server, nothing fetched, nothing sent.

    \b
    Examples:
      notsodeep explore
      notsodeep explore -o explorer.html
    """
    from ..._files import write_text
    from ...explore import page

    file = output or Path(tempfile.mkdtemp(prefix="notsodeep-")) / "explorer.html"
    write_text(file, page())
    if output is not None:
        show(f"wrote {file}; open it in a browser")
    elif webbrowser.open(file.as_uri()):
        show(f"opened {file}")
    else:
        show(f"no browser was found; open {file} yourself, or write it elsewhere with -o")
