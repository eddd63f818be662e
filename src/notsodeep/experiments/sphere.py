"""The workshop paper's figure: CK and NTK of a ReLU DEQ on the unit sphere, and one layer with a quadratic activation.

Its DEQ, phi = sqrt(2) ReLU at sigma_a2 = 0.2, lies outside the guaranteed contraction range (0.125); the equations of
the infinite-width kernel still have their solution, so the check is waived.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..activations import Quadratic, activation
from ..equivalents import spectral_norm, sphere_equivalent
from ..kernels import kernels_of
from ..matching import match_sphere
from ..networks import DEQ, Kernel
from ..plots.figures import draw_sphere
from .runner import Experiment, Point, Setup
from .samples import eigenvalues, histograms

__all__ = ["EXPERIMENT", "compare_on_sphere", "unit_rows"]


def unit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """n points drawn uniformly from the unit sphere in dimension d."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def compare_on_sphere(kernel: Kernel, n: int, d: int, sigma_a2: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Distances to the DEQ's kernel of the equivalent, the quadratic layer, and the exact Hermite layer."""
    X = unit_rows(n, d, seed)
    deq = DEQ(activation("relu").affine(gain=math.sqrt(2.0)), sigma_a2)
    truth = kernels_of(deq, X, kinds=(kernel,), check=False)[kernel]
    quadratic, exact = match_sphere(deq, kernel, family="quadratic", dimension=d), match_sphere(deq, kernel)
    others = {
        "equivalent": sphere_equivalent(deq, X, kernel).matrix(),
        "quadratic": kernels_of(quadratic.network, X, kinds=(kernel,))[kernel],
        "hermite": kernels_of(exact.network, X, kinds=(kernel,))[kernel],
    }
    size = spectral_norm(truth)
    gaps = {name: spectral_norm(truth - other) for name, other in others.items()}
    off = ~np.eye(n, dtype=bool)
    layer = quadratic.network.activations[0]
    assert isinstance(layer, Quadratic)
    return {
        "distances": {name: {"absolute": gap, "relative": gap / size} for name, gap in gaps.items()},
        "largest_off_diagonal_error": {k: float(np.abs(truth - v)[off].max()) for k, v in others.items()},
        "quadratic": {"a2": layer.a, "a1": layer.b, "a0": layer.c},
        "spectrum": histograms({"implicit": eigenvalues(truth), "quadratic": eigenvalues(others["quadratic"])}),
    }


def points(setup: Setup) -> list[Point]:
    """CK and NTK (all weights trained)."""
    n, d = (250, 300) if setup.quick else (1000, 1200)

    def point(kernel: Kernel) -> Point:
        settings: dict[str, Any] = {"kernel": kernel, "n": n, "d": d, "sigma_a2": 0.2, "seed": 0}
        return Point(kernel, settings, lambda: compare_on_sphere(**settings))

    return [point("ck"), point("ntk")]


EXPERIMENT = Experiment("sphere", "Unit sphere: a ReLU DEQ and a quadratic layer", points, draw_sphere)
