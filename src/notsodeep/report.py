"""One HTML file that holds everything: text, tables, figures as inline SVG; no scripts, nothing from elsewhere.

Figures take their ink and their paper from the page, so that they are legible in dark mode as well.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from matplotlib.figure import Figure

from .plots.style import figure_style, vector

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --card: #f5f6f8; --line: #d5d9de; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e4e7eb; --paper: #14171a; --card: #1d2125; --line: #3a4047; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.scroll { overflow-x: auto; }
table { margin-bottom: 1rem; border-collapse: collapse; font-size: 0.9rem;
  font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.row { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; max-width: 42rem; padding: 0.6rem; background: var(--card); border-radius: 0.5rem;
  --paper: var(--card); }
figure svg { display: block; width: 100%; height: auto; color: var(--ink); }
figure svg text { fill: currentColor; }
figcaption { font-size: 0.85rem; }
@media (max-width: 40rem) {
  thead { display: none; } tr { display: block; padding: 0.4rem 0; border-bottom: 1px solid var(--line); }
  td, td:first-child { display: flex; justify-content: space-between; border: 0; padding: 0.1rem 0; text-align: right; }
  td::before { content: attr(data-label); opacity: 0.7; } td:empty { display: none; }
}
"""
_DARK = ("#000000", "#1d3557")  # matplotlib's black, and the dark blue of the displays


def figure(drawn: Figure, caption: str, name: str) -> str:
    """A figure as inline SVG; ``name`` keeps its identifiers apart from those of the other figures."""
    with figure_style():
        svg = vector(drawn)
    svg = svg[svg.index("<svg") :]
    for colour in _DARK:
        svg = svg.replace(colour, "currentColor")
    svg = svg.replace("#ffffff", "var(--paper)").replace("<svg ", f'<svg role="img" aria-label="{_safe(caption)}" ', 1)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return f"<figure>{svg}<figcaption>{_safe(caption)}</figcaption></figure>"


def row_of(figures: Sequence[str]) -> str:
    """Figures side by side where there is room, below each other on a phone."""
    return f'<div class="row">{"".join(figures)}</div>'


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls sideways inside itself, and on a phone stacks the cells of each row."""
    head = "".join(f"<th>{_safe(h)}</th>" for h in headings)
    body = "".join(f"<tr>{_cells(headings, row)}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cells(headings: Sequence[str], row: Sequence[str]) -> str:
    """Each cell knows its heading, which stands beside it where rows are stacked."""
    return "".join(f'<td data-label="{_safe(h)}">{_safe(c)}</td>' for h, c in zip(headings, row, strict=True))


def heading(text: str) -> str:
    """A section starts."""
    return f"<h2>{_safe(text)}</h2>"


def paragraph(text: str) -> str:
    """Plain text."""
    return f"<p>{_safe(text)}</p>"


def document(title: str, parts: Sequence[str]) -> str:
    """The whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">'
        f"<title>{_safe(title)}</title><style>{_STYLE}</style></head>\n<body><h1>{_safe(title)}</h1>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _safe(text: str) -> str:
    return html.escape(text, quote=True)
