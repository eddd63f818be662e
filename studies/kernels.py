"""Conjugate kernels of a DEQ and of its twin as images, with their spectra (preprint, Figure 2).

The preprint has ||Lambda - Sigma|| = 0.23 on the mixture and 1.83 on MNIST, for a ReLU DEQ and its one-layer Leaky-ReLU
network.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._runner import Document, Point, Setup, Study
from ._spectra import SIZES, distances, draw_spectra, histograms, point_of, sample, thumbnail
from ._style import panels, phrase


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
    twin = nsd.match(nsd.DEQ(activation, sigma_a2), points.statistics(), family=family)
    truth, explicit = nsd.ck(twin.deq, points.X), nsd.ck(twin.network, points.X)
    return {
        "twin": str(twin.network),
        "family": twin.family,
        "residual": twin.residual,
        "distances": distances(truth, {"twin": explicit, "plain": nsd.ck(twin.plain, points.X)}, sigma_a2),
        "spectrum": histograms({"DEQ": np.linalg.eigvalsh(truth), "twin": np.linalg.eigvalsh(explicit)}),
        "images": {"DEQ": thumbnail(truth), "twin": thumbnail(explicit)},
    }


def points(setup: Setup) -> list[Point]:
    """Mixture and images, ReLU (the preprint) and tanh (the slides), which also gets a layer of its own kind."""
    data = list(SIZES[setup.quick])[:2]
    point = functools.partial(point_of, compare_kernels, setup)
    chosen = [point(name, phi) for name in data for phi in ("relu", "tanh")]
    return [*chosen, *(point(name, "tanh", "/hard_tanh", family="hard_tanh") for name in data)]


def draw(document: Document) -> dict[str, Figure]:
    """Two figures per point: the kernels as images, and their spectra."""
    drawn = {}
    for key, point in document["points"].items():
        name = key.replace("/", "_")
        drawn[f"{name}_image"] = _images(key, point)
        drawn[f"{name}_spectrum"] = draw_spectra(point, _title(key, point))
    return drawn


def _images(key: str, point: Document) -> Figure:
    figure, axes = panels((9.0, 4.4), _title(key, point), 1, 2)
    images = point["numbers"]["images"]
    low, high = _limits(np.asarray(images["DEQ"]))
    colours = "RdBu_r" if low < 0 < high else "viridis"
    for ax, (name, image) in zip(axes, images.items(), strict=True):
        ax.imshow(np.asarray(image), vmin=low, vmax=high, cmap=colours, interpolation="nearest")
        ax.set(title=name, xticks=[], yticks=[])
    figure.colorbar(ax.images[0], ax=axes, shrink=0.8, label="entry of the kernel")
    return figure


def _limits(kernel: np.ndarray) -> tuple[float, float]:
    """The range of 99 % of the off-diagonal entries, symmetric about zero if both signs occur."""
    low, high = np.quantile(kernel[~np.eye(len(kernel), dtype=bool)], [0.005, 0.995])
    end = max(-low, high)
    return (-end, end) if low < 0 < high else (low, high)


def _title(key: str, point: Document) -> str:
    gap = {name: found["ck_relative"] for name, found in point["numbers"]["distances"].items()}
    return (
        f"{phrase(key)}: the twin has the kernel of the DEQ\n"
        f"relative spectral distance: twin {gap['twin']:.2g}, plain network {gap['plain']:.2g}"
    )


STUDY = Study(
    shows="kernels of DEQ and twin as images (preprint, figure 2)",
    quick="2 s",
    full="8 min",
    points=points,
    draw=draw,
)
