"""What stands in for a trained DEQ: accuracy and agreement of every student, and what a batch costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, headline, phrase, shared_legend

__all__ = ["distilled_table", "draw_distilled"]

Document = Mapping[str, Any]
Case = tuple[str, int, str]

_LAYERS = {1: "one layer", 2: "two layers"}
_WAYS = ("fresh readout", "distilled", "from scratch")


def draw_distilled(document: Document) -> dict[str, Figure]:
    """Per data set: accuracies beside the DEQ's, agreements with it."""
    return {
        name.replace("/", "_"): _figure(phrase(name), point["numbers"]["rows"])
        for name, point in document["points"].items()
    }


def _figure(title: str, rows: Sequence[Document]) -> Figure:
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    _bars(left, rows, "accuracy")
    left.axvline(100 * _mean(rows, ("deq", 1, "trained"), "accuracy")[0], color=COLOURS["DEQ"], label="the trained DEQ")
    _bars(right, rows, "agreement")
    left.set(xlabel="test accuracy, %")
    right.set(xlabel="test rows classified as the DEQ does, %")
    headline(figure, f"{title}: students of a trained DEQ")
    shared_legend(figure, left)
    return figure


def _bars(ax: Axes, rows: Sequence[Document], quantity: str) -> None:
    places = [(way, depth) for way in _WAYS for depth in _LAYERS]
    known = {(row["start"], row["depth"], row["way"]) for row in rows}
    for shift, start in ((-0.18, "twin"), (0.18, "plain")):
        there = [(i, (start, depth, way)) for i, (way, depth) in enumerate(places) if (start, depth, way) in known]
        means, errors = 100 * np.array([_mean(rows, case, quantity) for _, case in there]).T
        label = "begun as the twin" if start == "twin" else "begun plain"
        ax.errorbar(means, [i + shift for i, _ in there], xerr=errors, fmt="o", color=COLOURS[start], label=label)
    ax.set_yticks(range(len(places)), [f"{way}, {_LAYERS[depth]}" for way, depth in places])
    if not ax.yaxis_inverted():
        ax.invert_yaxis()


def _mean(rows: Sequence[Document], case: Case, quantity: str) -> tuple[float, float]:
    """Mean and standard deviation over the seeds."""
    values = [row[quantity] for row in rows if (row["start"], row["depth"], row["way"]) == case]
    return float(np.mean(values)), float(np.std(values))


def distilled_table(document: Document) -> tuple[list[str], list[list[str]]]:
    """Headings, and one row per data set and network."""
    heads = ["data", "network", "way", "accuracy %", "same class as the DEQ %", "ms per batch of 128"]
    return heads, [
        line for name, point in document["points"].items() for line in _lines(name, point["numbers"]["rows"])
    ]


def _lines(name: str, rows: Sequence[Document]) -> list[list[str]]:
    cases = dict.fromkeys((row["start"], row["depth"], row["way"]) for row in rows)
    lines = []
    for case in cases:
        accuracy, agreement, cost = (_mean(rows, case, q) for q in ("accuracy", "agreement", "milliseconds"))
        network = "DEQ" if case[0] == "deq" else f"{case[0]}, {_LAYERS[case[1]]}"
        same = "" if case[0] == "deq" else f"{100 * agreement[0]:.1f}"
        measured = [f"{100 * accuracy[0]:.1f} ± {100 * accuracy[1]:.1f}", same, f"{cost[0]:.2g}"]
        lines.append([phrase(name), network, case[2], *measured])
    return lines
