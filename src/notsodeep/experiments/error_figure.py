"""Relative spectral error of the equivalents against n at p/n = 0.8 (slides, error figures), point by point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from .equivalents_error import ACTIVATIONS, KERNELS, error_against_n
from .runner import Document, Experiment, Point, Setup

__all__ = ["EXPERIMENT", "slopes"]

_MARKERS = "os^vDP"


def points(setup: Setup) -> list[Point]:
    """Six activations, growing dimension; each point holds all kernels and seeds."""
    dimensions = (80, 160, 320) if setup.quick else (200, 400, 800, 1600, 3200)

    def point(activation: str, p: int) -> Point:
        settings = {"activation": activation, "p": p, "n": round(1.25 * p), "sigma_a2": 0.2, "seeds": [0, 1]}
        settings["norms"] = ["typical", "own"]
        return Point(f"{activation}/{p}", settings, lambda: _measure(settings))

    return [point(activation, p) for p in dimensions for activation in ACTIVATIONS]


def _measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    curves = error_against_n(
        settings["activation"],
        kernels=KERNELS,
        dimensions=(settings["p"],),
        points_per_dimension=1.25,
        seeds=len(settings["seeds"]),
        sigma_a2=settings["sigma_a2"],
        norms=settings["norms"],
    )
    return {kernel: list(curve.errors[0]) for kernel, curve in curves.items()}


def slopes(document: Document) -> dict[str, dict[str, float]]:
    """Kernel -> activation -> slope of log(error) against log(n); the theorems promise -1/2.

    ``"ck/own"`` ... are the equivalents that keep the norm of each row.
    """
    return {
        kernel: {a: _slope(n, e) for a, (n, e) in _curves(document, kernel).items()}
        for name in KERNELS
        for kernel in (name, f"{name}/own")
    }


def _slope(n: list[int], errors: list[float]) -> float:
    return float(np.polyfit(np.log(n), np.log(errors), 1)[0])


def _curves(document: Document, kernel: str) -> dict[str, tuple[list[int], list[float]]]:
    found: dict[str, tuple[list[int], list[float]]] = {}
    for point in sorted(document["points"].values(), key=lambda p: p["settings"]["n"]):
        n, errors = found.setdefault(point["settings"]["activation"], ([], []))
        n.append(point["settings"]["n"])
        errors.append(float(np.mean(point["numbers"][kernel])))
    return {a: curve for a, curve in found.items() if len(curve[0]) > 1}


def draw_errors(document: Document) -> Figure:
    """One panel per kernel, one colour per activation: the theorems' equivalent, and below it with the rows' norms."""
    figure = Figure(figsize=(15.0, 5.4), layout="constrained")
    for ax, kernel in zip(figure.subplots(1, len(KERNELS)), KERNELS, strict=True):
        own = _curves(document, f"{kernel}/own")
        for i, (name, (n, errors)) in enumerate(_curves(document, kernel).items()):
            colour, marker = f"C{i}", _MARKERS[i % len(_MARKERS)]
            label = f"{name}: {_slope(n, errors):.2f}, {_slope(*own[name]):.2f}"
            ax.loglog(n, errors, marker=marker, markersize=4, color=colour, label=label)
            ax.loglog(*own[name], marker=marker, markersize=4, color=colour, linestyle=":", markerfacecolor="white")
            ax.set_xticks(n, [f"{v:,}" for v in n])
        ax.minorticks_off()
        ax.set_xlabel("n")
        ax.set_ylabel("relative spectral error")
        ax.set_title(f"{kernel} (dotted: each row keeps its norm)", fontsize="medium")
        if ax.lines:
            ax.legend(frameon=False, fontsize="small", title="slopes", title_fontsize="small", loc="lower left")
    return figure


EXPERIMENT = Experiment(
    "equivalents_error", "Relative spectral error of the equivalents against n", points, draw_errors
)
