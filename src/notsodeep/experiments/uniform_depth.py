"""Accuracy of uniform twins against depth.

Homogeneous activations: certified bounds, depths 1 to 6, also beyond the contraction range. Others: norms 0.5 to 1.5,
the CK, certified for one and two layers, sampled beyond.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ..activations import activation
from ..matching.twin import kernel_names
from ..matching.uniform.arc import HomogeneousDEQ
from ..matching.uniform.arc_fit import Fit
from ..matching.uniform.box_certify import Candidate, certify_box
from ..matching.uniform.box_fit import BoxProblem, fit_box
from ..matching.uniform.homogeneous import candidate
from ..networks import DEQ
from ..plots.figures import draw_uniform
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "box_rows", "homogeneous_rows", "points"]

FRACTIONS = (0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Of the contraction limit."""
BEYOND = (0.5, 1.0, 1.5, 1.9)
BOX = (0.5, 1.5)
SMOOTH = ("tanh", "erf", "arctan", "silu", "gelu", "elu", "softplus", "sigmoid", "sin", "cos")
SLOPE = 0.2  # of the leaky ReLU
CERTIFIED = 2  # layers; more are sampled

Row = dict[str, Any]


def homogeneous_rows(name: str, sigma_a2: float, kernel: str, depths: int = 6) -> Iterator[Row]:
    """Certified bounds of one homogeneous DEQ, for twins of growing depth."""
    phi = activation("leaky_relu", slope=SLOPE) if name == "leaky_relu" else activation(name)
    reduced = HomogeneousDEQ.of(DEQ(phi, sigma_a2, 1.0))
    shallow: Fit | None = None
    for depth in range(1, depths + 1):
        found = candidate(reduced, kernel, depth, 0.0, shallow, precise=True)
        shallow = found.fit
        yield {"depth": depth, "bound": found.bound, "sampled": found.sampled, "bends": found.fit.bends.tolist()}


def box_rows(name: str, sigma_a2: float, depths: int = 6, certified: int = CERTIFIED) -> Iterator[Row]:
    """Errors of the CK for norms 0.5 to 1.5; certified for the first depths."""
    deq = DEQ(name, sigma_a2, max(1.0 - sigma_a2, 0.5))  # the sigmoid's limit is 4
    shallow: Sequence[float] | None = None
    for depth in range(1, depths + 1):
        problem = BoxProblem(deq, kernel_names("ck"), BOX, depth)
        found = fit_box(problem, shallow)
        shallow = found.parameters.tolist()
        bound, sampled = None, found.error
        if depth <= certified:
            given = Candidate(deq, problem.activations(found.parameters), found.weights[0], "ck", BOX)
            seen = certify_box(given, 64, goal=max(5e-4, found.error))
            bound, sampled = seen.bound, seen.sampled
        yield {"depth": depth, "bound": bound, "sampled": sampled, "parameters": shallow}


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup) -> list[Point]:
    """One point per activation, sigma_a2 and kernel; each holds all depths."""
    if setup.quick:
        return [_homogeneous("relu", s, "ck", 3) for s in (0.05, 0.2)] + [_box("tanh", 0.4, 1)]
    kernels = ("ck", "ntk", "ntk_frozen")
    inside = [(name, f * 0.25) for name in ("relu", "leaky_relu") for f in FRACTIONS]
    pairs = [*inside[: len(FRACTIONS)], *(("relu", s) for s in BEYOND), *inside[len(FRACTIONS) :]]
    arcs = [_homogeneous(name, sigma_a2, kernel, 6) for name, sigma_a2 in pairs for kernel in kernels]
    return [*arcs, *(_box(name, f, 6) for name in SMOOTH for f in FRACTIONS)]


def _homogeneous(name: str, sigma_a2: float, kernel: str, depths: int) -> Point:
    settings = {"activation": name, "sigma_a2": sigma_a2, "kernel": kernel, "norms": "all", "depths": depths}
    key = f"{name}/{sigma_a2:.4g}/{kernel}"
    return Point(key, settings, lambda: {"rows": list(homogeneous_rows(name, sigma_a2, kernel, depths))})


def _box(name: str, fraction: float, depths: int) -> Point:
    sigma_a2 = fraction * DEQ(name, 0.01).limit
    settings = {"activation": name, "sigma_a2": sigma_a2, "kernel": "ck", "norms": BOX, "depths": depths}
    key = f"{name}/{sigma_a2:.4g}/ck"
    return Point(key, settings, lambda: {"rows": list(box_rows(name, sigma_a2, depths))})


EXPERIMENT = Experiment("uniform_depth", "Twins without data: accuracy against depth", points, draw_uniform)
