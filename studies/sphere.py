"""A ReLU DEQ on the unit sphere and one layer with a quadratic activation (the workshop paper's figure).

The paper's DEQ, phi = sqrt(2) ReLU at sigma_a2 = 0.2, lies outside the guaranteed contraction range (0.125). The
equations of the infinite-width kernel still have their solution, so the check is waived.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import kernel_of, spectral_norm
from ._runner import Document, Point, Setup, Study
from ._spectra import draw_spectra, histograms
from ._style import COLOURS, panels, word


def unit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """n points drawn uniformly from the unit sphere in dimension d."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def compare_on_sphere(kernel: str, n: int, d: int, sigma_a2: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Distances to the DEQ's kernel of the equivalent, the quadratic layer, and the exact Hermite layer."""
    X = unit_rows(n, d, seed)
    deq = nsd.DEQ(nsd.activation("relu").affine(gain=math.sqrt(2.0)), sigma_a2)
    truth = kernel_of(deq, kernel, X, check=False)
    quadratic, exact = nsd.match_sphere(deq, kernel, family="quadratic", dimension=d), nsd.match_sphere(deq, kernel)
    others = {
        "equivalent": nsd.equivalents.sphere_equivalent(deq, X, kernel).matrix(),
        "quadratic": kernel_of(quadratic.network, kernel, X),
        "hermite": kernel_of(exact.network, kernel, X),
    }
    size = spectral_norm(truth)
    gaps = {name: spectral_norm(truth - other) for name, other in others.items()}
    off = ~np.eye(n, dtype=bool)
    layer: Any = quadratic.network.activations[0]
    return {
        "distances": {name: {"absolute": gap, "relative": gap / size} for name, gap in gaps.items()},
        "largest_off_diagonal_error": {k: float(np.abs(truth - v)[off].max()) for k, v in others.items()},
        "quadratic": {"a2": layer.a, "a1": layer.b, "a0": layer.c},
        "spectrum": histograms(
            {"implicit": np.linalg.eigvalsh(truth), "quadratic": np.linalg.eigvalsh(others["quadratic"])}
        ),
    }


def points(setup: Setup) -> list[Point]:
    """CK and NTK (all weights trained)."""
    n, d = (250, 300) if setup.quick else (1000, 1200)
    settings = {"n": n, "d": d, "sigma_a2": 0.2, "seed": 0}
    return [Point.of(kernel, {"kernel": kernel, **settings}, compare_on_sphere) for kernel in ("ck", "ntk")]


def draw(document: Document) -> dict[str, Figure]:
    """One figure of spectra per kernel, and ``"activations"``."""
    drawn = {key: _quadratic(key, point) for key, point in document["points"].items()}
    return drawn | {"activations": _activations(document)}


def _quadratic(key: str, point: Document) -> Figure:
    gap = point["numbers"]["distances"]["quadratic"]["relative"]
    title = (
        f"Unit sphere, {word(key)}: one quadratic layer has the DEQ's spectrum\nrelative spectral distance {gap:.2g}"
    )
    return draw_spectra(point, title)


def _activations(document: Document) -> Figure:
    figure, ax = panels((6.4, 4.2), "What replaces the DEQ on the unit sphere")
    t = np.linspace(-3.0, 3.0, 121)
    ax.plot(t, math.sqrt(2.0) * np.maximum(t, 0.0), color=COLOURS["DEQ"], label="the DEQ: √2 ReLU")
    for (key, point), style in zip(document["points"].items(), ("-", "--"), strict=False):
        q = point["numbers"]["quadratic"]
        curve = q["a2"] * t**2 + q["a1"] * t + q["a0"]
        ax.plot(t, curve, style, color=COLOURS["twin"], label=f"one layer, {word(key)}")
    ax.set(xlabel="input", ylabel="activation")
    ax.legend()
    return figure


STUDY = Study(
    shows="a ReLU DEQ and one quadratic layer on the unit sphere (workshop)",
    quick="5 s",
    full="10 s",
    points=points,
    draw=draw,
)
