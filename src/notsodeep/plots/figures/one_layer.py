"""Bounds of one-layer twins by kinds of units, and errors of layers of finite width."""

from __future__ import annotations

from typing import Any

from matplotlib.figure import Figure

from ..style import COLOURS

__all__ = ["draw_one_layer"]

Document = dict[str, Any]
_STYLE = {"DEQ": "DEQ", "one layer": "twin", "one layer, orthogonal": "twin", "papers' route": "plain"}


def draw_one_layer(document: Document) -> dict[str, Figure]:
    """One figure for the bounds, one for the widths."""
    points = list(document["points"].values())
    made = {
        "bounds": _bounds([p for p in points if p["settings"]["study"] == "bounds"]),
        "width": _widths([p for p in points if p["settings"]["study"] == "width"]),
    }
    return {name: figure for name, figure in made.items() if figure is not None}


def _bounds(points: list[Any]) -> Figure | None:
    if not points:
        return None
    figure = Figure(figsize=(8.0, 4.6), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, kernel in zip(axes, ("ck", "ntk"), strict=True):
        for point in points:
            settings = point["settings"]
            if settings["kernel"] == kernel:
                rows = point["numbers"]["bounds"]
                norms = "all norms" if settings["norms"] is None else "norms {} to {}".format(*settings["norms"])
                label = f"{settings['activation']}, {settings['sigma_a2']:g}, {norms}"
                ax.semilogy([r["kinds"] for r in rows], [r["bound"] for r in rows], "o-", label=label)
        ax.set_title(kernel.upper(), fontsize="medium")
        ax.set_xlabel("kinds of units")
        ax.legend(fontsize=5)
    axes[0].set_ylabel("proven error, relative to the diagonal")
    return figure


def _widths(points: list[Any]) -> Figure | None:
    if not points:
        return None
    figure = Figure(figsize=(3.2 * len(points), 3.4), layout="constrained")
    for ax, point in zip(figure.subplots(1, len(points), squeeze=False)[0], points, strict=True):
        rows = point["numbers"]["rows"]
        for name in [key for key in rows[0] if key != "width"]:
            dash, colour = "--" if "orthogonal" in name else "-", COLOURS[_STYLE[name]]
            ax.loglog([r["width"] for r in rows], [r[name] for r in rows], dash, color=colour, label=name)
        ax.set_title(f"{point['settings']['data']}, {point['settings']['activation']}", fontsize="medium")
        ax.set_xlabel("width")
        ax.legend(fontsize=6)
    return figure
