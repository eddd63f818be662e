"""Plain networks of one to three layers beside DEQ and twin: one figure per data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, INK, headline, word

__all__ = ["draw_depths"]

Document = Mapping[str, Any]
_TWINS = ("twin", "orthogonal twin")


def draw_depths(document: Document, reported: Mapping[str, Any]) -> dict[str, Figure]:
    """One figure per data set, one panel per activation and width."""
    by_data: dict[str, list[tuple[str, Document]]] = {}
    for key, point in document["points"].items():
        by_data.setdefault(key.split("/")[0], []).append((key, point))
    return {name: _figure(name, points, reported.get(name, {})) for name, points in by_data.items()}


def _figure(name: str, points: Sequence[tuple[str, Document]], reported: Mapping[str, Any]) -> Figure:
    rows = -(-len(points) // 2)
    longest = max(len(point["numbers"]) for _, point in points)
    figure = Figure(figsize=(10.0, (1.2 + 0.34 * longest) * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, 2, squeeze=False)
    for ax, (_, point) in zip(grid.flat, points, strict=False):
        _panel(ax, point, reported.get(point["settings"]["activation"]))
    for ax in list(grid.flat)[len(points) :]:
        ax.set_axis_off()
    cross = "; crosses: published, width 4,096" if reported else ""
    headline(figure, f"{word(name)}: what depth and weights of a plain network change{cross}")
    return figure


def _panel(ax: Axes, point: Document, reported: Mapping[str, Sequence[float]] | None) -> None:
    table, settings = point["numbers"], point["settings"]
    for place, (name, found) in enumerate(table.items()):
        mean, spread = 100 * float(np.mean(found)), 100 * float(np.std(found))
        colour = COLOURS["twin" if name in _TWINS else "DEQ" if name == "DEQ" else "plain"]
        ax.errorbar(mean, place, xerr=spread, fmt="o", color=colour, capsize=3)
        ax.annotate(f"{mean:.1f}", (mean, place), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=9)
        if reported is not None:
            published = reported.get("twin" if name in _TWINS else name, reported["plain"])
            ax.plot(100 * published[1], place, "x", color=INK, markersize=7)
    ax.axvline(100 * float(np.mean(table["DEQ"])), color=COLOURS["DEQ"], linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(table)), list(table))
    ax.set_ylim(len(table) - 0.5, -0.8)
    ax.set_title(f"{word(settings['activation'])}, width {settings['width']:,}", fontsize="medium")
    ax.set_xlabel("test accuracy, %")
