"""How the error of an equivalent falls: the theorems' form, the one that keeps norms, and forms that were rejected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...equivalents.distance import ErrorCurve
from ..style import INK, MARKERS, headline, shared_legend, word

__all__ = ["draw_errors", "draw_mixtures", "draw_variants"]

Document = Mapping[str, Any]


def draw_errors(document: Document, curves: Mapping[str, Mapping[str, ErrorCurve]]) -> dict[str, Figure]:
    """One figure per kernel of the papers' mixture: the theorems' equivalent beside the one that keeps norms."""
    kernels = [name for name in curves if not name.endswith("/own")]
    return {name: _pair(name, curves[name], curves[f"{name}/own"]) for name in kernels}


def _pair(kernel: str, typical: Mapping[str, ErrorCurve], own: Mapping[str, ErrorCurve]) -> Figure:
    figure = Figure(figsize=(9.6, 5.0), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    forms = {"as in the theorems": typical, "keeping the norm of each row": own}
    for ax, (title, found) in zip(axes, forms.items(), strict=True):
        _lines(ax, list(found.values()))
        ax.set_title(f"{title}: slopes {_slopes(found)}", fontsize="medium")
    headline(figure, f"{word(kernel)}: the error of the equivalent falls with the number of points")
    axes[0].set_ylabel("relative spectral distance to the exact kernel")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _slopes(found: Mapping[str, ErrorCurve]) -> str:
    slopes = [curve.slope for curve in found.values()]
    return f"{max(slopes):.2f} to {min(slopes):.2f}" if slopes else "not measured"


def _lines(ax: Axes, curves: Sequence[ErrorCurve]) -> None:
    for i, curve in enumerate(curves):
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i % 6], markersize=5, color=f"C{i}", label=word(curve.label))
    if curves:
        n = np.array(curves[0].n, dtype=float)
        start = 0.7 * min(curve.mean[0] for curve in curves)
        ax.loglog(n, start * (n / n[0]) ** -0.5, ":", color=INK, label="slope -1/2")
        ax.set_xticks(curves[0].n, [f"{v:,}" for v in curves[0].n])
    ax.minorticks_off()
    ax.set_xlabel("number of points")


def draw_mixtures(document: Document) -> dict[str, Figure]:
    """One figure per mixture, one panel per kernel."""
    by_mixture: dict[str, dict[str, Any]] = {}
    for key, point in document["points"].items():
        mixture, activation = key.split("/")
        by_mixture.setdefault(mixture, {})[activation] = point["numbers"]
    return {name: _mixture(name, found) for name, found in by_mixture.items()}


def _mixture(name: str, found: Mapping[str, Mapping[str, Any]]) -> Figure:
    kernels = list(next(iter(found.values())))
    figure = Figure(figsize=(12.0, 4.6), layout="constrained")
    axes = figure.subplots(1, len(kernels), sharey=True)
    for ax, kernel in zip(axes, kernels, strict=True):
        curves = [ErrorCurve.from_dict({**by_kernel[kernel], "label": phi}) for phi, by_kernel in found.items()]
        _lines(ax, curves)
        ax.set_title(word(kernel), fontsize="medium")
    axes[0].set_ylabel("relative spectral distance")
    headline(figure, f"{word(name)}: the error of the equivalent falls as promised")
    shared_legend(figure, axes[0], ncols=7)
    return figure


def draw_variants(document: Document) -> dict[str, Figure]:
    """One figure per kernel: the form that is kept falls, the printed ones stall."""
    (point,) = document["points"].values()
    curves = {name: ErrorCurve.from_dict(curve) for name, curve in point["numbers"].items()}
    kept = [name for name in curves if "," not in name]
    return {name: _variants(name, [c for label, c in curves.items() if label.split(",")[0] == name]) for name in kept}


def _variants(kernel: str, curves: Sequence[ErrorCurve]) -> Figure:
    figure = Figure(figsize=(7.0, 4.8), layout="constrained")
    ax = figure.subplots()
    for i, curve in enumerate(curves):
        label = curve.label.partition(", ")[2] or "the form used here"
        style = {"linewidth": 2.2} if i == 0 else {"linestyle": "--"}
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i], color=f"C{i}", label=f"{label}: {curve.slope:.2f}", **style)
    ax.set_xticks(curves[0].n, [f"{v:,}" for v in curves[0].n])
    ax.minorticks_off()
    ax.set(xlabel="number of points", ylabel="relative spectral distance")
    headline(figure, f"{word(kernel)}: printed formulas that stall, and their slopes")
    ax.legend(frameon=False)
    return figure
