"""The three routes as a figure and as a table, from the stored document alone."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .runner import Document

__all__ = ["draw_routes", "markdown_table"]

_COLOURS = {"four numbers": "#1d3557", "sphere": "#4b8f4b", "uniform": "#b3262e"}
_MARKERS = {("relu", "ck"): "o", ("tanh", "ck"): "s", ("relu", "ntk"): "^"}


def draw_routes(document: Document) -> Figure:
    """Columns: distance of the kernels, disagreement of the regressions, accuracy of networks beside the DEQ's."""
    stored = list(document["points"].values())
    names = list(dict.fromkeys(p["settings"]["dataset"] for p in stored))
    figure = Figure(figsize=(14.0, 1.8 + 1.1 * len(names)), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    for point in stored:
        _draw_point(axes, point, names)
    titles = (
        "distance of the kernels, relative",
        "regression: test rows classified unlike the DEQ, %",
        "finite networks: accuracy minus the DEQ's, points",
    )
    for ax, title in zip(axes, titles, strict=True):
        ax.set_title(title, fontsize="medium")
        ax.grid(axis="x", color="0.9")
        for between in range(1, len(names)):
            ax.axhline(between - 0.5, color="0.8", linewidth=0.8)
    axes[0].set_xscale("log")
    axes[2].axvline(0.0, color="0.6", linewidth=0.8)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].set_ylim(len(names) - 0.5, -0.5)
    figure.legend(handles=_legend(axes[0]), loc="outside lower center", ncols=8, frameon=False, fontsize="small")
    return figure


def _draw_point(axes: Any, point: Document, names: list[str]) -> None:
    settings, numbers = point["settings"], point["numbers"]
    case = (settings["activation"], settings["kernel"])
    places = [(c, r) for c in _MARKERS for r in _COLOURS]
    y = names.index(settings["dataset"]) - 0.4 + 0.8 * (places.index((case, settings["route"])) + 0.5) / len(places)
    colour = _COLOURS[settings["route"]]
    for name, face in (("plain", "none"), ("twin", colour)):
        style = {"marker": _MARKERS[case], "color": colour, "markerfacecolor": face, "markersize": 5, "linestyle": ""}
        axes[0].plot(numbers["distance"][name], y, **style)
        axes[1].plot(100 * (1 - numbers["regression"]["agreement"][name]), y, **style)
        if "networks" in numbers:
            accuracy = numbers["networks"]["accuracy"]
            axes[2].plot(100 * (np.mean(accuracy[name]) - np.mean(accuracy["DEQ"])), y, **style)


def _legend(ax: Axes) -> list[Any]:
    def entry(label: str, colour: str, marker: str, face: str) -> Any:
        return ax.plot(
            [], [], marker=marker, color=colour, markerfacecolor=face, linestyle="", markersize=5, label=label
        )[0]

    routes = [entry(route, colour, "o", colour) for route, colour in _COLOURS.items()]
    cases = [entry(f"{a}, {k}", "0.3", marker, "0.3") for (a, k), marker in _MARKERS.items()]
    return [*routes, *cases, entry("filled: twin", "0.3", "o", "0.3"), entry("hollow: plain", "0.3", "o", "none")]


def markdown_table(document: Document) -> str:
    """One row per point; accuracies in per cent, means over the seeds for networks."""
    heads = ["data", "activation", "kernel", "route", "layers", "bound", "distance (plain)", "regression: agreement"]
    heads += ["regression: DEQ, twin", "networks: DEQ, twin, plain", "networks: agreement (DEQ of another seed)"]
    rows = [_row(point) for point in document["points"].values()]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [heads, ["---"] * len(heads), *rows]) + "\n\n"


def _row(point: Document) -> list[str]:
    settings, numbers = point["settings"], point["numbers"]
    distance, regression, networks = numbers["distance"], numbers["regression"], numbers.get("networks")
    cells = [settings["dataset"], settings["activation"], settings["kernel"], settings["route"], str(numbers["depth"])]
    cells.append("" if numbers["bound"] is None else f"{numbers['bound']:.1e}")
    cells.append(f"{distance['twin']:.1e} ({distance['plain']:.1e})")
    cells.append(f"{100 * regression['agreement']['twin']:.1f} ({100 * regression['agreement']['plain']:.1f})")
    cells.append(", ".join(f"{100 * regression['accuracy'][name]:.1f}" for name in ("DEQ", "twin")))
    if networks is None:
        return [*cells, "", ""]
    cells.append(", ".join(f"{100 * np.mean(networks['accuracy'][name]):.1f}" for name in ("DEQ", "twin", "plain")))
    same = networks["agreement"]
    return [*cells, f"{100 * same['twin']:.1f} ({100 * same['DEQ of another seed']:.1f})"]
