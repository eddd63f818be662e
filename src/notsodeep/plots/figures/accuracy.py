"""How well networks classify: against width, against depth, during training, and in place of a trained DEQ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...nn.compare import standard_error
from ..style import (
    COLOURS,
    INK,
    LOOKS,
    Document,
    against_width,
    by_setting,
    panels,
    phrase,
    shared_legend,
    word,
)

Reported = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
MODELS = ("DEQ", "twin", "plain")
ACTIVATIONS = ("tanh", "relu")
PUBLISHED = (32, 4096)
"""The widths of the published accuracies."""
REPORTED: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "mnist": {
        "tanh": {"twin": (0.761, 0.917), "DEQ": (0.758, 0.917), "plain": (0.775, 0.904)},
        "relu": {"twin": (0.650, 0.934), "DEQ": (0.714, 0.937), "plain": (0.576, 0.918)},
    },
    "fashion_mnist": {
        "tanh": {"twin": (0.758, 0.837), "DEQ": (0.742, 0.837), "plain": (0.762, 0.822)},
        "relu": {"twin": (0.697, 0.843), "DEQ": (0.734, 0.847), "plain": (0.658, 0.823)},
    },
    "cifar10_vgg": {
        "tanh": {"twin": (0.758, 0.846), "DEQ": (0.744, 0.846), "plain": (0.756, 0.846)},
        "relu": {"twin": (0.622, 0.835), "DEQ": (0.676, 0.839), "plain": (0.500, 0.761)},
    },
}
"""Read off the published figure (+-0.003), at both widths: data set, activation, network."""


def accuracy_curves(document: Document, dataset: str, activation: str, method: str) -> dict[str, tuple[Any, Any, Any]]:
    """Network -> (widths, mean accuracy, standard error over seeds)."""
    found = {}
    rows = _by_width(document, dataset)
    widths = np.array([p["settings"]["width"] for p in rows])
    for name in MODELS:
        table = [p["numbers"]["accuracies"][activation][method][name]["accuracy"] for p in rows]
        found[name] = (widths, np.array([np.mean(v) for v in table]), np.array([standard_error(v) for v in table]))
    return found


def _by_width(document: Document, dataset: str) -> list[Document]:
    points = by_setting(document["points"].values(), "dataset")[dataset]
    return sorted(points, key=lambda point: point["settings"]["width"])


def draw_accuracy(document: Document) -> dict[str, Figure]:
    """Per data set: accuracies by SGD and Adam, the gap to the DEQ, and the seconds for the features."""
    drawn = {}
    for name in by_setting(document["points"].values(), "dataset"):
        for method in ("sgd", "adam"):
            drawn[f"{name}_{method}"] = _accuracies(document, name, method)
        drawn[f"{name}_gap"] = _gaps(document, name)
        drawn[f"{name}_seconds"] = _seconds(document, name)
    return drawn


def _accuracies(document: Document, dataset: str, method: str) -> Figure:
    says = f"{word(dataset)}: DEQ and twin are equally good (readouts by {word(method)})"
    figure, axes = against_width(ACTIVATIONS, says)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        for name, (widths, mean, error) in accuracy_curves(document, dataset, activation, method).items():
            ax.errorbar(widths, 100 * mean, 100 * error, label=name, **LOOKS[name])
        for name, ends in REPORTED.get(dataset, {}).get(activation, {}).items() if method == "sgd" else ():
            values = [100 * v for v in ends]
            ax.plot(PUBLISHED, values, "x", color=COLOURS[name], ms=8, label=f"{name}, published")
    axes[0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _gaps(document: Document, dataset: str) -> Figure:
    says = f"{word(dataset)}: how far twin and plain network are from the DEQ (SGD)"
    figure, axes = against_width(ACTIVATIONS, says)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        by_model = accuracy_curves(document, dataset, activation, "sgd")
        for name in ("twin", "plain"):
            widths, mean, _ = by_model[name]
            ax.plot(widths, 100 * (mean - by_model["DEQ"][1]), label=f"{name} minus DEQ", **LOOKS[name])
        ax.axhline(0.0, color="0.6", linewidth=0.8)
    axes[0].set_ylabel("percentage points")
    shared_legend(figure, axes[0])
    return figure


def _seconds(document: Document, dataset: str) -> Figure:
    figure, axes = against_width(ACTIVATIONS, f"{word(dataset)}: what the features of all training rows cost")
    points = _by_width(document, dataset)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        clock = [point["numbers"]["accuracies"][activation]["feature_seconds"] for point in points]
        for name in MODELS:
            best = [min(seconds[name]) for seconds in clock]
            ax.plot([point["settings"]["width"] for point in points], best, label=name, **LOOKS[name])
        ax.set_yscale("log")
    axes[0].set_ylabel("seconds")
    shared_legend(figure, axes[0])
    return figure


# ---- depth and weights of plain networks ---------------------------------------------------------------

_TWINS = ("twin", "orthogonal twin")


def draw_depths(document: Document) -> dict[str, Figure]:
    """One figure per data set, one panel per activation and width."""
    by_data: dict[str, list[Document]] = {}
    for key, point in document["points"].items():
        by_data.setdefault(key.split("/")[0], []).append(point)
    return {name: _depths(name, points, REPORTED.get(name, {})) for name, points in by_data.items()}


def _depths(name: str, points: Sequence[Document], reported: Mapping[str, Any]) -> Figure:
    rows, longest = -(-len(points) // 2), max(len(point["numbers"]) for point in points)
    cross = "; crosses: published, width 4,096" if reported else ""
    says = f"{word(name)}: what depth and weights of a plain network change{cross}"
    figure, grid = panels((10.0, (1.2 + 0.34 * longest) * rows + 0.6), says, rows, 2, squeeze=False)
    for ax, point in zip(grid.flat, points, strict=False):
        _depth(ax, point, reported.get(point["settings"]["activation"]))
    for ax in list(grid.flat)[len(points) :]:
        ax.set_axis_off()
    return figure


def _depth(ax: Axes, point: Document, reported: Mapping[str, Sequence[float]] | None) -> None:
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
    ax.set(title=f"{word(settings['activation'])}, width {settings['width']:,}", xlabel="test accuracy, %")


# ---- all weights trained -------------------------------------------------------------------------------


def draw_training(document: Document) -> dict[str, Figure]:
    """Accuracy of DEQ and twin by epoch, and how often they agree."""
    (point,) = document["points"].values()
    rows = point["numbers"]["rows"]
    epochs = sorted({row["epoch"] for row in rows})
    figure, (left, right) = panels((9.0, 4.4), "All weights train: the twin follows the DEQ", 1, 2)

    def line(ax: Axes, name: str, label: str, colour: str) -> None:
        means = [100 * float(np.mean([row[name] for row in rows if row["epoch"] == e])) for e in epochs]
        ax.plot(epochs, means, label=label, color=COLOURS[colour])

    for name, label, colour in (("deq", "DEQ", "DEQ"), ("twin", "twin", "twin"), ("other_deq", "another DEQ", "plain")):
        line(left, name, label, colour)
    for name, label, colour in (("agreement", "twin", "twin"), ("deq_agreement", "another DEQ", "plain")):
        line(right, name, label, colour)
    left.set(xlabel="epoch", ylabel="test accuracy, %", title="accuracy")
    right.set(xlabel="epoch", ylabel="test rows classified as the DEQ does, %", title="agreement with the DEQ")
    shared_legend(figure, left)
    return {"": figure}


# ---- students of a trained DEQ -------------------------------------------------------------------------

LAYERS = {1: "one layer", 2: "two layers"}
_WAYS = ("fresh readout", "distilled", "from scratch")


def draw_distilled(document: Document) -> dict[str, Figure]:
    """Per data set: accuracies beside the DEQ's, agreements with it."""
    return {
        name.replace("/", "_"): _students(phrase(name), point["numbers"]["rows"])
        for name, point in document["points"].items()
    }


def _students(title: str, rows: Sequence[Document]) -> Figure:
    figure, (left, right) = panels((9.0, 4.6), f"{title}: students of a trained DEQ", 1, 2, sharey=True)
    _bars(left, rows, "accuracy")
    trained = student_mean(rows, ("deq", 1, "trained"), "accuracy")[0]
    left.axvline(100 * trained, color=COLOURS["DEQ"], label="the trained DEQ")
    _bars(right, rows, "agreement")
    left.set(xlabel="test accuracy, %")
    right.set(xlabel="test rows classified as the DEQ does, %")
    shared_legend(figure, left)
    return figure


def _bars(ax: Axes, rows: Sequence[Document], quantity: str) -> None:
    places = [(way, depth) for way in _WAYS for depth in LAYERS]
    known = {(row["start"], row["depth"], row["way"]) for row in rows}
    for shift, start in ((-0.18, "twin"), (0.18, "plain")):
        there = [(i, (start, depth, way)) for i, (way, depth) in enumerate(places) if (start, depth, way) in known]
        means, errors = 100 * np.array([student_mean(rows, case, quantity) for _, case in there]).T
        label = "begun as the twin" if start == "twin" else "begun plain"
        ax.errorbar(means, [i + shift for i, _ in there], xerr=errors, fmt="o", color=COLOURS[start], label=label)
    ax.set_yticks(range(len(places)), [f"{way}, {LAYERS[depth]}" for way, depth in places])
    if not ax.yaxis_inverted():
        ax.invert_yaxis()


def student_mean(rows: Sequence[Document], case: tuple[str, int, str], quantity: str) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, of a student by its start, depth and way."""
    values = [row[quantity] for row in rows if (row["start"], row["depth"], row["way"]) == case]
    return float(np.mean(values)), float(np.std(values))
