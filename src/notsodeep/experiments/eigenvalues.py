"""Eigenvalues of the exact Implicit-CK against its equivalent (preprint, Figure 1): mixture and MNIST 6 against 8.

The preprint states distances for Lambda = sigma_a2 G + sigma_b2 X X', which differs from its equivalent by
sigma_a2 (G - Gbar). Images differ much in norm, which the theorems exclude: an equivalent that keeps the norm of each
row stands beside theirs, and one point has rows of norm one. The preprint does not say how its images were scaled, on
which the distance depends: further points have other scales.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from ..equivalents import equivalent, spectral_norm
from ..kernels import ck
from ..mixtures import MixtureStatistics
from ..networks import DEQ
from ..plots.figures import draw_eigenvalues
from .runner import Experiment, Point, Setup
from .samples import distances, eigenvalues, histograms, sample

__all__ = ["EXPERIMENT", "REPORTED", "compare_eigenvalues"]

REPORTED = {"mixture/arctan": 0.12, "mnist/tanh": 1.57}
"""||Lambda - Lambda_bar|| in the preprint's Figure 1."""
SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the mean of ||x||^2; centred pixels divided by sqrt(p), as rows of the mixture are, have 0.064."""


def compare_eigenvalues(
    data: str,
    activation: str,
    n: int,
    p: int,
    sigma_a2: float = 0.1,
    seed: int = 0,
    mean_square: float | None = None,
    folder: Any = None,
) -> dict[str, Any]:
    """Distances and spectra of the exact CK and its equivalent.

    ``mean_square`` scales the rows to that mean of ||x||^2, and leaves the spectra out. ``"own norms"`` is the
    equivalent that keeps the norm of each row.
    """
    points = sample(data, n, p, folder, seed)
    if mean_square is not None:
        points = replace(points, X=points.X * np.sqrt(mean_square / np.mean((points.X**2).sum(1))))
    deq = DEQ(activation, sigma_a2)
    statistics = points.statistics()
    exact, approximation = ck(deq.centred(statistics.tau0), points.X), equivalent(deq, statistics, "ck")
    own = equivalent(deq, statistics, "ck", norms="own")
    found = distances(exact, {"empirical tau0": approximation.matrix(), "own norms": own.matrix()}, sigma_a2)
    if mean_square is not None:
        return {"distances": _with_tau0(found, statistics)}
    population = points.statistics(population=True)
    theirs = {"population tau0": equivalent(deq, population, "ck").matrix()}
    other = distances(ck(deq.centred(population.tau0), points.X), theirs, sigma_a2)
    spectra = histograms({"exact": eigenvalues(exact), "equivalent": approximation.eigenvalues()})
    return {
        "distances": _with_tau0(found, statistics) | _with_tau0(other, population),
        "spectrum": spectra,
        "gram_norm": spectral_norm(points.X @ points.X.T),
    }


def _with_tau0(found: dict[str, dict[str, float]], statistics: MixtureStatistics) -> dict[str, dict[str, float]]:
    return {label: numbers | {"tau0": statistics.tau0} for label, numbers in found.items()}


def points(setup: Setup) -> list[Point]:
    """Mixture and images, arctan and tanh; the images also with rows of norm one, and at other scales."""
    if setup.quick:
        sizes = {"mixture": (320, 400), "digits": (270, 64), "digits_unit": (270, 64)}
    else:
        sizes = {"mixture": (800, 1000), "mnist": (6000, 784), "mnist_unit": (6000, 784)}

    def point(data: str, activation: str, mean_square: float | None = None) -> Point:
        n, p = sizes[data]
        settings: dict[str, Any] = {"data": data, "activation": activation, "n": n, "p": p, "sigma_a2": 0.1, "seed": 0}
        if mean_square is not None:
            settings["mean_square"] = mean_square
        key = f"{data}/{activation}" + ("" if mean_square is None else f"/{mean_square:g}")
        return Point(key, settings, lambda: compare_eigenvalues(**settings, folder=setup.data))

    mixture, images, unit = sizes
    chosen = [point(data, activation) for data in (mixture, images) for activation in ("arctan", "tanh")]
    return [*chosen, point(unit, "tanh"), *(point(images, "tanh", scale) for scale in SCALES)]


EXPERIMENT = Experiment(
    "eigenvalues",
    "Eigenvalues of the exact Implicit-CK and of its equivalent",
    points,
    lambda document: draw_eigenvalues(document, REPORTED),
)
