"""The equivalents' error on three mixtures: the papers' own, five classes with random means, full covariances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib.figure import Figure

from ._curves import ACTIVATIONS, ErrorCurve, documents, draw_lines, error_against_n
from ._runner import Document, Point, Setup, Study
from ._style import by_setting, panels, shared_legend, word


def points(setup: Setup) -> list[Point]:
    """One point per mixture and activation, with the curves of all three kernels."""

    def measure(mixture: str, activation: str, seeds: list[int], **options: Any) -> dict[str, Any]:
        return documents(error_against_n(activation, mixture, seeds=len(seeds), **options))

    def point(mixture: str, activation: str) -> Point:
        settings = {
            "mixture": mixture,
            "activation": activation,
            "dimensions": (40, 80, 160) if setup.quick else (250, 500, 1000, 2000, 4000),
            "points_per_dimension": 0.8,
            "sigma_a2": 0.2,
            "seeds": [0, 1],
        }
        return Point.of(f"{mixture}/{activation}", settings, measure)

    chosen = ("tanh", "relu") if setup.quick else ACTIVATIONS
    return [point(name, phi) for name in ("two_class", "random_means", "full_covariances") for phi in chosen]


def draw(document: Document) -> dict[str, Figure]:
    """One figure per mixture, one panel per kernel."""
    by_mixture = by_setting(document["points"].values(), "mixture")
    return {name: _mixture(name, points) for name, points in by_mixture.items()}


def _mixture(name: str, points: Sequence[Document]) -> Figure:
    kernels = list(points[0]["numbers"])
    says = f"{word(name)}: the error of the equivalent falls as promised"
    figure, axes = panels((12.0, 4.6), says, 1, len(kernels), sharey=True)
    for ax, kernel in zip(axes, kernels, strict=True):
        labelled = [{**point["numbers"][kernel], "label": point["settings"]["activation"]} for point in points]
        draw_lines(ax, [ErrorCurve.from_dict(curve) for curve in labelled])
        ax.set_title(word(kernel))
    axes[0].set_ylabel("relative spectral distance")
    shared_legend(figure, axes[0], ncols=7)
    return figure


STUDY = Study(
    shows="the error of equivalents on three mixtures, one with full covariances",
    quick="5 s",
    full="30 min",
    points=points,
    draw=draw,
)
