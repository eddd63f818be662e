"""The preprint's G* and K* of a DEQ and the kernels of its twin, as images and spectra (preprint, Figure 2).

The preprint has ||G* - Sigma|| = 0.23 on the mixture and 1.83 on MNIST, for a ReLU DEQ and one Leaky-ReLU layer, whose
two slopes meet two of the four equations (its Corollary 2). The twin here meets all four. G* and K* are the CK and the
NTK of a DEQ whose readout is one more pre-activation.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import kernel_of
from ._runner import Document, Point, Setup, Study
from ._spectra import SIZES, distances, draw_spectra, histograms, point_of, sample, thumbnail
from ._style import panels, phrase, word

_REPORTED = {"mixture/relu": 0.23, "mnist/relu": 1.83}  # ||G* - Sigma|| in the preprint's Figure 2


def compare_kernels(
    data: str,
    activation: str,
    n: int,
    p: int,
    sigma_a2: float = 0.1,
    seed: int = 0,
    kernel: Any = "ck",
    family: Any = "auto",
    shown: bool = True,
    folder: Any = None,
) -> dict[str, Any]:
    """Distances of the kernels of DEQ, twin and plain networks on one sample; if ``shown``, spectra and images.

    ``"plain, best factor"`` is the nearest multiple of the kernel of a plain network of one or two layers, whichever is
    nearer; for the CK of ReLU ``"Corollary 2"`` is the preprint's layer.
    """
    points = sample(data, n, p, folder, seed)
    statistics = points.statistics()
    twin = nsd.match(nsd.DEQ(activation, sigma_a2, readout="pre-activation"), statistics, kernel, family)
    truth, explicit = kernel_of(twin.deq, kernel, points.X), twin.kernel_matrix(points.X)
    pair = {"DEQ": truth, "twin": explicit}
    others = {"twin": explicit, "plain": kernel_of(twin.plain, kernel, points.X)}
    if kernel == "ck" and activation == "relu":
        others["Corollary 2"] = nsd.ck(one_leaky_layer(twin.coefficients), points.X)
    gaps = distances(truth, others)
    layers = [nsd.ENN([activation] * depth).centred(statistics.tau0) for depth in (1, 2)]
    scaled = [nsd.equivalents.best_scalar(truth, kernel_of(plain, kernel, points.X)).distance for plain in layers]
    size = gaps["twin"]["absolute"] / gaps["twin"]["relative"]
    gram = nsd.equivalents.best_scalar(truth, points.X @ points.X.T).distance
    for name, gap in (("plain, best factor", min(scaled)), ("Gram matrix, best factor", gram)):
        gaps[name] = {"absolute": gap * size, "relative": gap}
    return {
        "twin": str(twin.network),
        "family": twin.family,
        "residual": twin.residual,
        "distances": gaps,
        **({"spectrum": histograms({k: np.linalg.eigvalsh(v) for k, v in pair.items()})} if shown else {}),
        **({"images": {k: thumbnail(v) for k, v in pair.items()}} if shown and kernel == "ck" else {}),
    }


def one_leaky_layer(c: nsd.equivalents.Coefficients) -> nsd.ENN:
    """The layer of the preprint's Corollary 2, which meets the equations of c1 and of the diagonal alone.

    With the slopes a and b it needs (a + b)^2 = 4 c1 and (a^2 + b^2)/2 - (a - b)^2/(2 pi) = diagonal/tau0^2. The
    preprint prints a - b in the first equation, and half of the term in ab in the second.
    """
    total = 2.0 * math.sqrt(c.c1)
    difference = math.sqrt((c.diagonal / c.tau0**2 - c.c1) / (0.25 - 0.5 / math.pi))
    up, down = (total + difference) / 2.0, (total - difference) / 2.0
    return nsd.ENN([nsd.activation("leaky_relu", slope=down / up).affine(gain=up)]).centred(c.tau0)


def points(setup: Setup) -> list[Point]:
    """Mixture and images, ReLU (the preprint) and tanh (the slides), which also gets a layer of its own kind."""
    data = list(SIZES[setup.quick])[:2]
    point = functools.partial(point_of, compare_kernels, setup)
    chosen = [point(name, "relu", label, kernel=k) for name in data for label, k in (("", "ck"), ("/ntk", "ntk"))]
    chosen += [point(name, "tanh", kernel="ck", shown=False) for name in data]
    others = {"kernel": "ck", "family": "hard_tanh", "shown": False}
    return [*chosen, *(point(name, "tanh", "/hard_tanh", **others) for name in data)]


def draw(document: Document) -> dict[str, Figure]:
    """The kernels as images, of those that are stored, and their spectra."""
    drawn = {}
    for key, point in document["points"].items():
        name = key.replace("/", "_")
        if "images" in point["numbers"]:
            drawn[f"{name}_image"] = _images(key, point)
        if "spectrum" in point["numbers"]:
            drawn[f"{name}_spectrum"] = draw_spectra(point["numbers"]["spectrum"], _title(key, point))
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
    gap = point["numbers"]["distances"]
    reported = f" (the preprint prints {_REPORTED[key]:g} for its layer)" if key in _REPORTED else ""
    kernel = point["settings"]["kernel"]
    return (
        f"{phrase(key.removesuffix('/ntk'))}: the twin has {word(f'preprint_{kernel}')}\n"
        f"spectral distance: twin {gap['twin']['absolute']:.2g}{reported}, "
        f"plain network with its best factor {gap['plain, best factor']['absolute']:.2g}"
    )


STUDY = Study(
    shows="G* and K* of DEQ and twin as images (preprint, figure 2)",
    quick="5 s",
    full="8 min",
    points=points,
    draw=draw,
)
