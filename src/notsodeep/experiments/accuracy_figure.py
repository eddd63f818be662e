"""The accuracies as a figure and as a table beside the published ones, from the stored document alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .runner import Document

__all__ = ["ACTIVATIONS", "MODELS", "REPORTED", "curves", "draw_accuracy", "markdown_table"]

MODELS = ("DEQ", "twin", "plain")
ACTIVATIONS = ("tanh", "relu")
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
"""Read off the published figure (+-0.003), width 32 and 4,096: data set, activation, network."""

_PUBLISHED = 4096  # the width of the published accuracies
_STYLES = {"DEQ": ("#1d3557", "o", "-"), "twin": ("#b3262e", "s", "--"), "plain": ("#4b8f4b", "^", ":")}


def curves(document: Document, dataset: str, activation: str, method: str) -> dict[str, tuple[Any, Any, Any]]:
    """Network -> (widths, mean accuracy, standard error over seeds)."""
    found = {}
    rows = sorted((p["settings"]["width"], p) for p in _of(document, dataset))
    for name in MODELS:
        table = [p["numbers"]["accuracies"][activation][method][name]["accuracy"] for _, p in rows]
        error = [np.std(v, ddof=1) / len(v) ** 0.5 if len(v) > 1 else 0.0 for v in table]
        found[name] = (np.array([w for w, _ in rows]), np.array([np.mean(v) for v in table]), np.array(error))
    return found


def _of(document: Document, dataset: str) -> list[dict[str, Any]]:
    return [p for p in document["points"].values() if p["settings"]["dataset"] == dataset]


def draw_accuracy(document: Document) -> Figure:
    """Rows: data sets and activations; columns: SGD, Adam, gap to the DEQ, seconds for the features."""
    names = list(dict.fromkeys(p["settings"]["dataset"] for p in document["points"].values()))
    rows = [(name, a) for name in names for a in ACTIVATIONS]
    figure = Figure(figsize=(15.0, 3.0 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), 4, squeeze=False)
    for axes, (name, activation) in zip(grid, rows, strict=True):
        by_method = {method: curves(document, name, activation, method) for method in ("sgd", "adam")}
        for ax, method in zip(axes, by_method, strict=False):
            _draw_curves(ax, by_method[method], f"{name}, {activation}, {method}")
            if method == "sgd":
                _draw_reported(ax, name, activation)
        _draw_gap(axes[2], by_method["sgd"])
        _draw_seconds(axes[3], _of(document, name), activation)
    return figure


def _draw_curves(ax: Any, by_model: Mapping[str, tuple[Any, Any, Any]], title: str) -> None:
    for name, (widths, mean, error) in by_model.items():
        colour, marker, line = _STYLES[name]
        ax.errorbar(
            widths, 100 * mean, 100 * error, color=colour, marker=marker, linestyle=line, markersize=4, label=name
        )
    _width_axis(ax, title, "test accuracy, %")
    ax.legend(frameon=False, fontsize="small")


def _draw_reported(ax: Any, dataset: str, activation: str) -> None:
    for name, ends in REPORTED.get(dataset, {}).get(activation, {}).items():
        ax.plot((32, 4096), [100 * v for v in ends], "x", color=_STYLES[name][0], markersize=6)


def _draw_gap(ax: Any, by_model: Mapping[str, tuple[Any, Any, Any]]) -> None:
    for name in ("twin", "plain"):
        colour, marker, line = _STYLES[name]
        widths, mean, _ = by_model[name]
        gap = 100 * (mean - by_model["DEQ"][1])
        ax.plot(widths, gap, color=colour, marker=marker, linestyle=line, markersize=4, label=f"{name} - DEQ")
    ax.axhline(0.0, color="0.6", linewidth=0.8)
    _width_axis(ax, "gap (sgd)", "percentage points")
    ax.legend(frameon=False, fontsize="small")


def _draw_seconds(ax: Any, stored: Sequence[Mapping[str, Any]], activation: str) -> None:
    rows = sorted((p["settings"]["width"], p["numbers"]["accuracies"][activation]["feature_seconds"]) for p in stored)
    for name in MODELS:
        colour, marker, line = _STYLES[name]
        best = [min(seconds[name]) for _, seconds in rows]
        ax.plot([w for w, _ in rows], best, color=colour, marker=marker, linestyle=line, markersize=4, label=name)
    ax.set_yscale("log")
    _width_axis(ax, "features of the training rows", "seconds")


def _width_axis(ax: Any, title: str, label: str) -> None:
    ax.set_xscale("log", base=2)
    ax.set_xlabel("width")
    ax.set_ylabel(label)
    ax.set_title(title, fontsize="medium")


def markdown_table(document: Document) -> str:
    """Mean test accuracies in per cent, SGD and Adam, with the published ones.

    At width 4,096, for which the published ones stand; where that is not stored, at the largest width.
    """
    lines = [
        "| data | activation | width | DEQ | twin | plain | twin - DEQ | plain - DEQ | reported "
        "(DEQ, twin, plain) | Adam |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(p["settings"]["dataset"] for p in document["points"].values()):
        for activation in ACTIVATIONS:
            lines.append(_row(document, name, activation))
    return "\n".join(lines)


def _row(document: Document, dataset: str, activation: str) -> str:
    found = {method: curves(document, dataset, activation, method) for method in ("sgd", "adam")}
    widths = found["sgd"]["DEQ"][0].tolist()
    at = widths.index(_PUBLISHED) if _PUBLISHED in widths else -1
    means = {name: 100 * float(found["sgd"][name][1][at]) for name in MODELS}
    cells = [f"{means[name]:.2f} ± {100 * float(found['sgd'][name][2][at]):.2f}" for name in MODELS]
    gaps = [f"{means[name] - means['DEQ']:+.2f}" for name in ("twin", "plain")]
    known = REPORTED.get(dataset, {}).get(activation)
    reported = ", ".join(f"{100 * known[name][1]:.1f}" for name in MODELS) if known else "-"
    adam = ", ".join(f"{100 * float(found['adam'][name][1][at]):.2f}" for name in MODELS)
    return f"| {dataset} | {activation} | {widths[at]} | " + " | ".join([*cells, *gaps, reported, adam]) + " |"
