"""Learning predicted before training: random settings, convergence, curves with measured points, the map."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, QUANTITIES, SCHEDULES, Document, panels, ticks_at, word

_COLOURS = (COLOURS["DEQ"], COLOURS["twin"])


def draw_learning(document: Document) -> dict[str, Figure]:
    """``"settings"``, ``"convergence"``, ``"curves"`` and ``"map"``, as far as the document holds their points."""
    points = document["points"]
    groups = {
        "settings": ("setting_", _settings),
        "convergence": ("converge_", _convergence),
        "curves": ("curve_", _curves),
        "map": ("map", _map),
    }
    drawn = {}
    for name, (prefix, function) in groups.items():
        chosen = {key: point for key, point in points.items() if key.startswith(prefix)}
        if chosen:
            drawn[name] = function(chosen)
    return drawn


def _settings(points: Document) -> Figure:
    figure, axes = panels((9.0, 4.4), f"{len(points)} settings drawn by seed, none left out", 1, 2)
    numbers = [point["numbers"] for point in points.values()]
    for ax, (kind, (title, factor)) in zip(axes, QUANTITIES.items(), strict=True):
        x = factor * np.array([v["predicted"][kind] for v in numbers])
        y = factor * np.array([v["measured"][kind]["mean"] for v in numbers])
        spread = factor * np.array([v["measured"][kind]["error"] for v in numbers])
        ax.errorbar(x, y, yerr=spread, fmt="o", markersize=3.5, linewidth=1, color=_COLOURS[0])
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, ":", color="0.5")
        ax.set(title=title, xlabel="predicted before training", ylabel="measured with the exact kernel")
    return figure


def _convergence(points: Document) -> Figure:
    figure, ax = panels((6.4, 4.2), "The prediction is right in the limit")
    for name, colour in zip(("relu", "tanh"), _COLOURS, strict=True):
        rows = [v for key, v in points.items() if key.startswith(f"converge_{name}")]
        if len(rows) < 2:  # a run that was stopped
            continue
        p = np.array([row["settings"]["p"] for row in rows], dtype=float)
        names = ("mse_rms", "mse_bias", "mse_bias_error")
        rms, bias, error = (np.array([row["numbers"][name] for row in rows]) for name in names)
        slope = np.polyfit(np.log(p), np.log(rms), 1)[0]
        ax.plot(p, rms, "o-", color=colour, label=f"{word(name)}: one data set, slope {slope:.2f}")
        ax.errorbar(p, np.abs(bias), yerr=error, fmt="s--", color=colour, alpha=0.6, label=f"{word(name)}: the mean")
    ax.set(xscale="log", yscale="log", xlabel="p, with n = 1.5 p", ylabel="relative deviation of the error")
    ax.legend(fontsize="small")
    return figure


def _curves(points: Document) -> Figure:
    says = "Lines: predicted before training. Points: exact kernels on sampled data"
    figure, axes = panels((3.8 * len(points), 6.2), says, 2, len(points), squeeze=False)
    for column, point in zip(axes.T, points.values(), strict=True):
        settings, numbers = point["settings"], point["numbers"]
        for ax, (kind, (label, factor)) in zip(column, QUANTITIES.items(), strict=True):
            for (name, curve), colour in zip(numbers.items(), _COLOURS, strict=True):
                _line(ax, settings["values"], curve, kind, factor, colour, word(name))
            ax.set(xscale="log", ylabel=label)
            if settings["axis"] == "n":
                ticks_at(ax, settings["values"])
        column[1].set_xlabel(SCHEDULES[settings["axis"]])
    axes[0, 0].legend(fontsize="small")
    return figure


def _line(ax: Axes, at: Any, curve: Document, kind: str, factor: float, colour: str, label: str) -> None:
    ax.plot(curve["points"], factor * np.array(curve[kind]), color=colour, label=label)
    measured = curve["measured"][kind]
    means, errors = (factor * np.array([m[name] for m in measured]) for name in ("mean", "error"))
    ax.errorbar(at, means, yerr=errors, fmt="o", markersize=4, color=colour)


def _map(points: Document) -> Figure:
    numbers = points["map"]["numbers"]
    grids = {name: 100.0 * np.array(grid) for name, grid in numbers["accuracy"].items()}
    shown = {
        "ReLU DEQ: accuracy (%)": grids["DEQ"],
        "DEQ less twin (points)": grids["DEQ"] - grids["twin"],
        "DEQ less plain network (points)": grids["DEQ"] - grids["plain"],
        "ReLU DEQ less tanh DEQ (points)": grids["DEQ"] - grids["tanh"],
    }
    figure, axes = panels((14.0, 3.9), "Where the networks differ, before training", 1, 4)
    for ax, (title, grid) in zip(axes, shown.items(), strict=True):
        mesh = ax.pcolormesh(numbers["means"], numbers["traces"], grid, shading="nearest", cmap="viridis")
        figure.colorbar(mesh, ax=ax)
        ax.set_title(title, fontsize="small")
        ax.set_xlabel("distance of the means, ||mu||")
    axes[0].set_ylabel("difference of the traces, c/sqrt(p)")
    return figure
