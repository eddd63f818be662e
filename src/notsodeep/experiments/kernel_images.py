"""Kernels of a DEQ and of its twin as images, with their spectra (preprint, Figure 2): mixture, MNIST 6 against 8."""

from __future__ import annotations

from typing import Any

from ..kernels import ck
from ..matching import match
from ..networks import DEQ
from ..plots.figures import draw_kernels
from .runner import Experiment, Point, Setup
from .samples import distances, eigenvalues, histograms, sample, thumbnail

__all__ = ["EXPERIMENT", "REPORTED", "compare_kernels"]

REPORTED = {"mixture/relu": 0.23, "mnist/relu": 1.83}
"""||Lambda - Sigma|| in the preprint's Figure 2, ReLU DEQ and its one-layer Leaky-ReLU network."""


def compare_kernels(
    data: str,
    activation: str,
    n: int,
    p: int,
    sigma_a2: float = 0.1,
    seed: int = 0,
    family: Any = "auto",
    folder: Any = None,
) -> dict[str, Any]:
    """The CKs of DEQ, twin and plain network on one sample: distances, spectra, images.

    ``lambda`` is the distance of sigma_a2 G + sigma_b2 X X' when the twin's kernel takes the place of G, as the
    preprint counts; ``ck`` that of G itself, which is larger.
    """
    points = sample(data, n, p, folder, seed)
    twin = match(DEQ(activation, sigma_a2), points.statistics(), family=family)
    truth, explicit = ck(twin.deq, points.X), ck(twin.network, points.X)
    return {
        "twin": str(twin.network),
        "family": twin.family,
        "residual": twin.residual,
        "distances": distances(truth, {"twin": explicit, "plain": ck(twin.plain, points.X)}, sigma_a2),
        "spectrum": histograms({"DEQ": eigenvalues(truth), "twin": eigenvalues(explicit)}),
        "images": {"DEQ": thumbnail(truth), "twin": thumbnail(explicit)},
    }


def points(setup: Setup) -> list[Point]:
    """Mixture and images, ReLU (the preprint) and tanh (the slides), which also gets a layer of its own kind."""
    if setup.quick:
        sizes = {"mixture": (320, 400), "digits": (270, 64)}
    else:
        sizes = {"mixture": (800, 1000), "mnist": (6000, 784)}

    def point(data: str, activation: str, family: str = "auto") -> Point:
        n, p = sizes[data]
        settings: dict[str, Any] = {"data": data, "activation": activation, "n": n, "p": p, "sigma_a2": 0.1, "seed": 0}
        key = f"{data}/{activation}"
        if family != "auto":
            settings["family"], key = family, f"{key}/{family}"
        return Point(key, settings, lambda: compare_kernels(**settings, folder=setup.data))

    chosen = [point(data, activation) for data in sizes for activation in ("relu", "tanh")]
    return [*chosen, *(point(data, "tanh", "hard_tanh") for data in sizes)]


EXPERIMENT = Experiment("kernels", "Kernels of DEQ and twin as images, with their spectra", points, draw_kernels)
