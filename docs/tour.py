"""The tour runs: its outputs, its figures and the notebook are made from the code in tour.md.

``python docs/tour.py`` writes them; tests/test_docs.py holds what is written against what the code prints.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import re
import runpy
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the studies lie beside the documentation

from studies._style import adaptive_svg, figure_style

__all__ = ["Step", "notebook", "page", "steps"]

HERE = Path(__file__).resolve().parent
_BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n(?:\n```text\n(?P<output>.*?)^```\n)?(?:\n!\[[^\n]*\]\(tour_\d+\.svg\)\n)?",
    re.S | re.M,
)


@dataclass(frozen=True)
class Step:
    """Words, the code after them, and what it printed and drew."""

    words: str
    code: str
    written: str
    """The output that stands in the page."""
    printed: str = ""
    vector: str = ""
    pixels: bytes = b""


def steps(text: str) -> Iterator[Step]:
    """Run the blocks of a page in order; the words after the last are a step without code."""
    names: dict[str, Any] = {}
    plt.close("all")  # a figure that stands open belongs to somebody else
    end = 0
    for found in _BLOCK.finditer(text):
        printed = io.StringIO()
        with figure_style(), contextlib.redirect_stdout(printed):
            exec(compile(found["code"], "tour.md", "exec"), names)
            pictures = _pictures()
        yield Step(text[end : found.start()], found["code"], found["output"] or "", printed.getvalue(), *pictures)
        end = found.end()
    yield Step(text[end:], "", "")


def _pictures() -> tuple[str, bytes]:
    if not plt.get_fignums():
        return "", b""
    figure = plt.gcf()
    pixels = io.BytesIO()
    figure.savefig(pixels, format="png", dpi=80, facecolor="white")
    vector = adaptive_svg(figure)
    plt.close("all")
    return vector, pixels.getvalue()


def page(found: list[Step]) -> str:
    """tour.md with the outputs as they are now; ``tour_1.svg`` and so on are its figures."""
    text, drawn = "", 0
    for step in found:
        text += step.words
        if step.code:
            text += f"```python\n{step.code}```\n"
        if step.printed:
            text += f"\n```text\n{step.printed}```\n"
        if step.vector:
            drawn += 1
            text += f"\n![What the lines above draw](tour_{drawn}.svg)\n"
    return text


def notebook(found: list[Step]) -> dict[str, Any]:
    """The same as a notebook."""
    cells = [cell for step in found for cell in _cells(step)]
    for number, cell in enumerate(cells):
        cell["id"] = f"cell{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def _cells(step: Step) -> list[dict[str, Any]]:
    words = re.sub(r"\]\((\w+)\.md\)", r"](../docs/\1.md)", step.words.strip())
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "metadata": {}, "source": _lines(words)}] if words else []
    if not step.code:
        return cells
    outputs: list[dict[str, Any]] = []
    if step.printed:
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(step.printed)})
    if step.pixels:
        data = {"image/png": base64.b64encode(step.pixels).decode()}
        outputs.append({"output_type": "display_data", "data": data, "metadata": {}})
    code = {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": outputs}
    return [*cells, {**code, "source": _lines(step.code.rstrip())}]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main() -> None:
    """Write the page, its figures, the notebook, and the picture that opens the documentation."""
    mpl.use("Agg")
    plt.show = lambda: None  # the figure stays open
    runpy.run_path(str(HERE.parent / "examples" / "one_layer.py"))
    plt.savefig(HERE / "twin.png", dpi=90)
    found = list(steps((HERE / "tour.md").read_text()))
    (HERE / "tour.md").write_text(page(found))
    for number, step in enumerate((step for step in found if step.vector), 1):
        (HERE / f"tour_{number}.svg").write_text(step.vector)
    document = json.dumps(notebook(found), indent=1, ensure_ascii=False) + "\n"
    (HERE.parent / "examples" / "tour.ipynb").write_text(document)


if __name__ == "__main__":
    main()
