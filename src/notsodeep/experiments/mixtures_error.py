"""The error of the equivalents on three mixtures: the papers', five random means, two full covariances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..plots.figures import draw_mixtures
from .equivalents_error import ACTIVATIONS, error_against_n
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "points"]

MIXTURES = ("two_class", "random_means", "full_covariances")


def points(setup: Setup) -> list[Point]:
    """One point per mixture and activation, with the curves of all three kernels."""
    dimensions = (40, 80, 160) if setup.quick else (250, 500, 1000, 2000, 4000)
    chosen = ("tanh", "relu") if setup.quick else ACTIVATIONS

    def point(mixture: str, activation: str) -> Point:
        settings = {
            "mixture": mixture,
            "activation": activation,
            "dimensions": dimensions,
            "points_per_dimension": 0.8,
            "sigma_a2": 0.2,
            "seeds": [0, 1],
        }
        return Point(f"{mixture}/{activation}", settings, lambda: _measure(settings))

    return [point(mixture, activation) for mixture in MIXTURES for activation in chosen]


def _measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    curves = error_against_n(
        settings["activation"],
        settings["mixture"],
        dimensions=settings["dimensions"],
        points_per_dimension=settings["points_per_dimension"],
        seeds=len(settings["seeds"]),
        sigma_a2=settings["sigma_a2"],
    )
    return {kernel: curve.to_dict() for kernel, curve in curves.items()}


EXPERIMENT = Experiment(
    "mixtures_error", "Relative spectral error of the equivalents on three mixtures", points, draw_mixtures
)
