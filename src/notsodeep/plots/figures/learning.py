"""Learning predicted before training: random settings, convergence, curves with measured points, the map."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import headline, word

__all__ = ["draw_learning"]

Document = Mapping[str, Any]
_LABELS = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}
_COLOURS = ("#2f7fc1", "#d1495b")


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
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    axes = figure.subplots(1, 2)
    for ax, kind, factor in zip(axes, ("accuracy", "mse"), (100.0, 1.0), strict=True):
        numbers = [point["numbers"] for point in points.values()]
        x = factor * np.array([v["predicted"][kind] for v in numbers])
        y = factor * np.array([v["measured"][kind]["mean"] for v in numbers])
        spread = factor * np.array([v["measured"][kind]["error"] for v in numbers])
        ax.errorbar(x, y, yerr=spread, fmt="o", markersize=3.5, linewidth=1, color=_COLOURS[0])
        ends = [min(x.min(), y.min()), max(x.max(), y.max())]
        ax.plot(ends, ends, ":", color="0.5")
        ax.set(xlabel="predicted before training", ylabel="measured with the exact kernel")
        ax.set_title({"accuracy": "accuracy (%)", "mse": "mean squared error"}[kind], fontsize="medium")
    headline(figure, f"{len(points)} settings drawn by seed, none left out")
    return figure


def _convergence(points: Document) -> Figure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    for name, colour in zip(("relu", "tanh"), _COLOURS, strict=True):
        rows = [v for key, v in points.items() if key.startswith(f"converge_{name}")]
        p = np.array([row["settings"]["p"] for row in rows], dtype=float)
        rms = np.array([row["numbers"]["mse_rms"] for row in rows])
        bias = np.array([row["numbers"]["mse_bias"] for row in rows])
        error = np.array([row["numbers"]["mse_bias_error"] for row in rows])
        slope = np.polyfit(np.log(p), np.log(rms), 1)[0]
        ax.plot(p, rms, "o-", color=colour, label=f"{word(name)}: one data set, slope {slope:.2f}")
        ax.errorbar(p, np.abs(bias), yerr=error, fmt="s--", color=colour, alpha=0.6, label=f"{word(name)}: the mean")
    ax.set(xscale="log", yscale="log", xlabel="p, with n = 1.5 p", ylabel="relative deviation of the error")
    ax.set_title("The prediction is right in the limit", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")
    return figure


def _curves(points: Document) -> Figure:
    figure = Figure(figsize=(3.8 * len(points), 6.2), layout="constrained")
    axes = figure.subplots(2, len(points), squeeze=False)
    for column, point in zip(axes.T, points.values(), strict=True):
        settings, numbers = point["settings"], point["numbers"]
        for ax, kind, factor in zip(column, ("accuracy", "mse"), (100.0, 1.0), strict=True):
            for (name, curve), colour in zip(numbers.items(), _COLOURS, strict=True):
                _line(ax, settings["values"], curve, kind, factor, colour, word(name))
            ax.set(xscale="log", ylabel={"accuracy": "accuracy (%)", "mse": "mean squared error"}[kind])
        column[1].set_xlabel(_LABELS[settings["axis"]])
    axes[0, 0].legend(frameon=False, fontsize="small")
    headline(figure, "Lines: predicted before training. Points: exact kernels on sampled data")
    return figure


def _line(ax: Axes, at: Any, curve: Document, kind: str, factor: float, colour: str, label: str) -> None:
    ax.plot(curve["points"], factor * np.array(curve[kind]), color=colour, label=label)
    measured = curve["measured"][kind]
    means = factor * np.array([m["mean"] for m in measured])
    errors = factor * np.array([m["error"] for m in measured])
    ax.errorbar(at, means, yerr=errors, fmt="o", markersize=4, color=colour)


def _map(points: Document) -> Figure:
    numbers = points["map"]["numbers"]
    grids = {name: 100.0 * np.array(grid) for name, grid in numbers["accuracy"].items()}
    panels = {
        "ReLU DEQ: accuracy (%)": grids["DEQ"],
        "DEQ less twin (points)": grids["DEQ"] - grids["twin"],
        "DEQ less plain network (points)": grids["DEQ"] - grids["plain"],
        "ReLU DEQ less tanh DEQ (points)": grids["DEQ"] - grids["tanh"],
    }
    figure = Figure(figsize=(14.0, 3.9), layout="constrained")
    for ax, (title, grid) in zip(figure.subplots(1, 4), panels.items(), strict=True):
        mesh = ax.pcolormesh(numbers["means"], numbers["traces"], grid, shading="nearest", cmap="viridis")
        figure.colorbar(mesh, ax=ax)
        ax.set_title(title, fontsize="small")
        ax.set_xlabel("distance of the means, ||mu||")
    figure.axes[0].set_ylabel("difference of the traces, c/sqrt(p)")
    headline(figure, "Where the networks differ, before training")
    return figure
