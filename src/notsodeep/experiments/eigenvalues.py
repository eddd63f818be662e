"""Eigenvalues of the exact Implicit-CK against its equivalent (preprint, Figure 1): mixture and MNIST 6 against 8.

The preprint states distances for Lambda = sigma_a2 G + sigma_b2 X X', which differs from its equivalent by
sigma_a2 (G - Gbar). Images differ much in norm, which the theorems exclude: a last point has rows of norm one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ..equivalents import equivalent, spectral_norm
from ..kernels import ck
from ..networks import DEQ
from .runner import Document, Experiment, Point, Setup
from .samples import draw_spectra, eigenvalues, histograms, sample

__all__ = ["EXPERIMENT", "REPORTED", "compare_eigenvalues"]

REPORTED = {"mixture/arctan": 0.12, "mnist/tanh": 1.57}
"""||Lambda - Lambda_bar|| in the preprint's Figure 1."""


def compare_eigenvalues(
    data: str, activation: str, n: int, p: int, sigma_a2: float = 0.1, seed: int = 0, folder: Any = None
) -> dict[str, Any]:
    """Distances and spectra of the exact CK and its equivalent, with the empirical tau0 and the population's."""
    points = sample(data, n, p, folder, seed)
    deq = DEQ(activation, sigma_a2)
    distances, spectra = {}, {}
    for label, population in (("population tau0", True), ("empirical tau0", False)):
        statistics = points.statistics(population=population)
        exact, approximation = ck(deq.centred(statistics.tau0), points.X), equivalent(deq, statistics, "ck")
        distances[label] = _distances(exact, approximation.matrix(), sigma_a2) | {"tau0": statistics.tau0}
        if not population:
            spectra = histograms({"exact": eigenvalues(exact), "equivalent": approximation.eigenvalues()})
    return {"distances": distances, "spectrum": spectra, "gram_norm": spectral_norm(points.X @ points.X.T)}


def _distances(exact: Any, approximation: Any, sigma_a2: float) -> dict[str, float]:
    size, gap = spectral_norm(exact), spectral_norm(exact - approximation)
    return {"ck": gap, "ck_relative": gap / size, "lambda": sigma_a2 * gap}


def points(setup: Setup) -> list[Point]:
    """Mixture and images, arctan and tanh."""
    if setup.quick:
        sizes = {"mixture": (320, 400), "digits": (270, 64), "digits_unit": (270, 64)}
    else:
        sizes = {"mixture": (800, 1000), "mnist": (6000, 784), "mnist_unit": (6000, 784)}

    def point(data: str, activation: str) -> Point:
        n, p = sizes[data]
        settings = {"data": data, "activation": activation, "n": n, "p": p, "sigma_a2": 0.1, "seed": 0}
        return Point(f"{data}/{activation}", settings, lambda: _measure(settings, setup))

    chosen = [point(data, activation) for data in list(sizes)[:2] for activation in ("arctan", "tanh")]
    return [*chosen, point(list(sizes)[2], "tanh")]


def _measure(settings: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    return compare_eigenvalues(**settings, folder=setup.data)


def draw_eigenvalues(document: Document) -> Figure:
    """One row per point: bulk and largest eigenvalues."""
    stored = document["points"]
    figure = Figure(figsize=(10.0, 3.0 * len(stored)), layout="constrained")
    grid = figure.subplots(len(stored), 2, squeeze=False)
    for (bulk, top), (key, point) in zip(grid, stored.items(), strict=True):
        s, found = point["settings"], point["numbers"]["distances"]["empirical tau0"]["lambda"]
        draw_spectra(
            bulk, top, point["numbers"]["spectrum"], f"{key}, n = {s['n']}, p = {s['p']}: ||dLambda|| {found:.3g}"
        )
    return figure


EXPERIMENT = Experiment(
    "eigenvalues", "Eigenvalues of the exact Implicit-CK and of its equivalent", points, draw_eigenvalues
)
