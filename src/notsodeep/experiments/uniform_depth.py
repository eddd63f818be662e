"""Accuracy of plain layers against depth, for homogeneous DEQs: certified bounds of one to six leaky-ReLU layers, also
beyond the contraction range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..activations import activation
from ..matching.arc import HomogeneousDEQ
from ..matching.uniform.arc_fit import Fit
from ..matching.uniform.homogeneous import certified
from ..networks import DEQ, Kernel
from ..plots.figures import draw_uniform
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "homogeneous_rows", "points"]

FRACTIONS = (0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Of the contraction limit."""
BEYOND = (0.5, 1.0, 1.5, 1.9)
SLOPE = 0.2  # of the leaky ReLU

Row = dict[str, Any]


def homogeneous_rows(name: str, sigma_a2: float, kernel: Kernel, depths: int = 6) -> Iterator[Row]:
    """Certified bounds of one homogeneous DEQ, for twins of growing depth."""
    phi = activation("leaky_relu", slope=SLOPE) if name == "leaky_relu" else activation(name)
    reduced = HomogeneousDEQ.of(DEQ(phi, sigma_a2, 1.0))
    shallow: Fit | None = None
    for depth in range(1, depths + 1):
        found = certified(reduced, kernel, depth, 0.0, shallow, precise=True)
        shallow = found.fit
        yield {"depth": depth, "bound": found.bound, "sampled": found.sampled, "bends": found.fit.bends.tolist()}


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup) -> list[Point]:
    """One point per activation, sigma_a2 and kernel; each holds all depths."""
    if setup.quick:
        return [_homogeneous("relu", s, "ck", 3) for s in (0.05, 0.2)]
    kernels: tuple[Kernel, ...] = ("ck", "ntk", "ntk_frozen")
    inside = [(name, f * 0.25) for name in ("relu", "leaky_relu") for f in FRACTIONS]
    pairs = [*inside[: len(FRACTIONS)], *(("relu", s) for s in BEYOND), *inside[len(FRACTIONS) :]]
    return [_homogeneous(name, sigma_a2, kernel, 6) for name, sigma_a2 in pairs for kernel in kernels]


def _homogeneous(name: str, sigma_a2: float, kernel: Kernel, depths: int) -> Point:
    settings = {"activation": name, "sigma_a2": sigma_a2, "kernel": kernel, "norms": "all", "depths": depths}
    key = f"{name}/{sigma_a2:.4g}/{kernel}"
    return Point(key, settings, lambda: {"rows": list(homogeneous_rows(name, sigma_a2, kernel, depths))})


EXPERIMENT = Experiment("uniform_depth", "Plain layers without data: accuracy against depth", points, draw_uniform)
