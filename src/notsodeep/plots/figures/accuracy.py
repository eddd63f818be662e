"""Test accuracies against width, one figure per data set and message; a table beside the published numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from ..style import COLOURS, headline, shared_legend, word

__all__ = ["ACTIVATIONS", "MODELS", "accuracy_curves", "accuracy_table", "draw_accuracy"]

Document = Mapping[str, Any]
Reported = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
MODELS = ("DEQ", "twin", "plain")
ACTIVATIONS = ("tanh", "relu")
_PUBLISHED = (32, 4096)  # the widths of the published accuracies
_STYLES = {"DEQ": ("o", "-"), "twin": ("s", "--"), "plain": ("^", ":")}


def accuracy_curves(document: Document, dataset: str, activation: str, method: str) -> dict[str, tuple[Any, Any, Any]]:
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


def _datasets(document: Document) -> list[str]:
    return list(dict.fromkeys(p["settings"]["dataset"] for p in document["points"].values()))


def draw_accuracy(document: Document, reported: Reported) -> dict[str, Figure]:
    """Per data set: accuracies by SGD and Adam, the gap to the DEQ, and the seconds for the features."""
    drawn = {}
    for name in _datasets(document):
        for method in ("sgd", "adam"):
            drawn[f"{name}_{method}"] = _accuracies(document, name, method, reported.get(name, {}))
        drawn[f"{name}_gap"] = _gaps(document, name)
        drawn[f"{name}_seconds"] = _seconds(document, name)
    return drawn


def _panels(title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    axes = figure.subplots(1, len(ACTIVATIONS))
    headline(figure, title)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        ax.set_title(word(activation), fontsize="medium")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.tick_params(axis="x", labelrotation=45)
        ax.set_xlabel("width")
    return figure, axes


def _look(name: str) -> dict[str, Any]:
    marker, line = _STYLES[name]
    return {"color": COLOURS[name], "marker": marker, "linestyle": line, "markersize": 5}


def _accuracies(document: Document, dataset: str, method: str, reported: Mapping[str, Any]) -> Figure:
    figure, axes = _panels(f"{word(dataset)}: DEQ and twin are equally good (readouts by {word(method)})")
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        for name, (widths, mean, error) in accuracy_curves(document, dataset, activation, method).items():
            ax.errorbar(widths, 100 * mean, 100 * error, label=name, **_look(name))
        for name, ends in reported.get(activation, {}).items() if method == "sgd" else ():
            values = [100 * v for v in ends]
            ax.plot(_PUBLISHED, values, "x", color=COLOURS[name], ms=8, label=f"{name}, published")
    axes[0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _gaps(document: Document, dataset: str) -> Figure:
    figure, axes = _panels(f"{word(dataset)}: how far twin and plain network are from the DEQ (SGD)")
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        by_model = accuracy_curves(document, dataset, activation, "sgd")
        for name in ("twin", "plain"):
            widths, mean, _ = by_model[name]
            ax.plot(widths, 100 * (mean - by_model["DEQ"][1]), label=f"{name} minus DEQ", **_look(name))
        ax.axhline(0.0, color="0.6", linewidth=0.8)
    axes[0].set_ylabel("percentage points")
    shared_legend(figure, axes[0])
    return figure


def _seconds(document: Document, dataset: str) -> Figure:
    figure, axes = _panels(f"{word(dataset)}: what the features of all training rows cost")
    stored = _of(document, dataset)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        clock = [(p["settings"]["width"], p["numbers"]["accuracies"][activation]["feature_seconds"]) for p in stored]
        for name in MODELS:
            best = [min(seconds[name]) for _, seconds in sorted(clock, key=lambda pair: pair[0])]
            ax.plot(sorted(w for w, _ in clock), best, label=name, **_look(name))
        ax.set_yscale("log")
    axes[0].set_ylabel("seconds")
    shared_legend(figure, axes[0])
    return figure


# ---- table ---------------------------------------------------------------------------------------------------


def accuracy_table(document: Document, reported: Reported) -> tuple[list[str], list[list[str]]]:
    """Headings and rows: mean test accuracies in per cent, SGD and Adam, with the published ones.

    At width 4,096, for which the published ones stand; where that is not stored, at the largest width.
    """
    heads = ["data", "activation", "width", *MODELS, "twin - DEQ", "plain - DEQ"]
    heads += ["published (DEQ, twin, plain)", "Adam (DEQ, twin, plain)"]
    pairs = [(name, activation) for name in _datasets(document) for activation in ACTIVATIONS]
    return heads, [_row(document, *pair, reported.get(pair[0], {}).get(pair[1])) for pair in pairs]


def _row(document: Document, dataset: str, activation: str, known: Mapping[str, Sequence[float]] | None) -> list[str]:
    found = {method: accuracy_curves(document, dataset, activation, method) for method in ("sgd", "adam")}
    widths = found["sgd"]["DEQ"][0].tolist()
    at = widths.index(_PUBLISHED[1]) if _PUBLISHED[1] in widths else -1
    means = {name: 100 * float(found["sgd"][name][1][at]) for name in MODELS}
    cells = [f"{means[name]:.2f} ± {100 * float(found['sgd'][name][2][at]):.2f}" for name in MODELS]
    gaps = [f"{means[name] - means['DEQ']:+.2f}" for name in ("twin", "plain")]
    published = ", ".join(f"{100 * known[name][1]:.1f}" for name in MODELS) if known else "-"
    adam = ", ".join(f"{100 * float(found['adam'][name][1][at]):.2f}" for name in MODELS)
    return [word(dataset), word(activation), f"{widths[at]:,}", *cells, *gaps, published, adam]
