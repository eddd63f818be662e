"""Twins without data: bound against depth, what odd layers cannot reach, and training side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, INK, MARKERS, headline, shared_legend, word

__all__ = ["draw_depths", "draw_odd", "draw_training", "draw_uniform"]

Document = Mapping[str, Any]


def draw_uniform(document: Document) -> dict[str, Figure]:
    """By kernel: the largest error over all inputs against depth."""
    points = dict(document["points"])
    kernels = list(dict.fromkeys(p["settings"]["kernel"] for p in points.values()))
    return {f"relu_{k}": _depths(_chosen(points, k), f"ReLU, {word(k)}: every layer buys accuracy") for k in kernels}


def _chosen(points: Mapping[str, Document], kernel: str) -> list[tuple[str, Sequence[Document]]]:
    found = [p for p in points.values() if p["settings"]["activation"] == "relu" and p["settings"]["kernel"] == kernel]
    return [(f"$\\sigma_a^2$ = {p['settings']['sigma_a2']:.3g}", p["numbers"]["rows"]) for p in found]


def _depths(curves: Sequence[tuple[str, Sequence[Document]]], title: str) -> Figure:
    figure = Figure(figsize=(7.4, 5.2), layout="constrained")
    ax = figure.subplots()
    _lines(ax, curves)
    ax.set_ylabel("largest relative error over all inputs")
    ax.set_title(title, fontsize="medium")
    shared_legend(figure, ax, ncols=3)
    return figure


def _case(settings: Document) -> str:
    return f"{word(settings['activation'])}, $\\sigma_a^2$ = {settings['sigma_a2']:.3g}"


def _lines(ax: Axes, curves: Sequence[tuple[str, Sequence[Document]]]) -> None:
    for i, (label, rows) in enumerate(curves):
        errors = [row["bound"] for row in rows]
        colour, marker = f"C{i % 10}", MARKERS[i % 6]
        ax.semilogy([row["depth"] for row in rows], errors, marker=marker, markersize=5, color=colour, label=label)
    ax.set_xlabel("layers of the twin")


def draw_odd(document: Document) -> dict[str, Figure]:
    """What no explicit network of odd layers can beat."""
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    ax = figure.subplots()
    points = list(document["points"].values())
    for place, point in enumerate(points):
        for (box, bound), marker in zip(point["numbers"]["bounds"].items(), "os", strict=True):
            ax.semilogx(bound, place, marker, color=COLOURS["twin" if marker == "o" else "DEQ"], label=f"norms {box}")
    ax.set_yticks(range(len(points)), [_case(p["settings"]) for p in points])
    ax.set_xlabel("no network of odd layers is nearer than this")
    ax.set_title("A limit of plain odd layers, of any depth", fontsize="medium")
    shared_legend(figure, ax)
    return {"": figure}


def draw_training(document: Document) -> dict[str, Figure]:
    """Accuracy of DEQ and twin by epoch, and how often they agree."""
    (point,) = document["points"].values()
    rows = point["numbers"]["rows"]
    epochs = sorted({row["epoch"] for row in rows})
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    named = (("deq", "DEQ", "DEQ"), ("twin", "twin", "twin"), ("other_deq", "another DEQ", "plain"))
    for name, label, colour in named:
        left.plot(epochs, _by_epoch(rows, name, epochs), label=label, color=COLOURS[colour])
    for name, label, colour in (("agreement", "twin", "twin"), ("deq_agreement", "another DEQ", "plain")):
        right.plot(epochs, _by_epoch(rows, name, epochs), label=label, color=COLOURS[colour])
    left.set(xlabel="epoch", ylabel="test accuracy, %", title="accuracy")
    right.set(xlabel="epoch", ylabel="test rows classified as the DEQ does, %", title="agreement with the DEQ")
    headline(figure, "All weights train: the twin follows the DEQ")
    shared_legend(figure, left)
    return {"": figure}


def _by_epoch(rows: Sequence[Document], name: str, epochs: Sequence[int]) -> list[float]:
    return [100 * float(np.mean([row[name] for row in rows if row["epoch"] == e])) for e in epochs]


# ---- depth ---------------------------------------------------------------------------------------------


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
