"""Eigenvalues of the preprint's G* and K* and of their equivalents (preprint, Figure 1).

On the mixture and on MNIST 6 against 8. G* and K* are the CK and the NTK of a DEQ whose readout is one more
pre-activation. Images differ much in norm, which the theorems exclude: an equivalent that keeps the norm of each row
stands beside theirs, and one point has rows of norm one. The preprint does not say how its images were scaled, on which
the distance depends: further points have other scales.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import kernel_of
from ._own_norms import own_norm_matrix
from ._runner import Document, Point, Setup, Study
from ._spectra import SIZES, distances, draw_spectra, histograms, point_of, sample
from ._style import COLOURS, INK, panels, phrase, word

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
    spectra: list[str] | None = None,
    folder: Any = None,
) -> dict[str, Any]:
    """Distances of the exact kernels from their equivalents, and the spectra of those that are named.

    ``mean_square`` scales the rows to that mean of ||x||^2. ``"own norms"`` is the equivalent that keeps the norm of
    each row, ``"population tau0"`` that of the theorems with tr C0/p in place of the mean squared norm.
    """
    points = sample(data, n, p, folder, seed)
    if mean_square is not None:
        points = replace(points, X=points.X * np.sqrt(mean_square / np.mean((points.X**2).sum(1))))
    deq = nsd.DEQ(activation, sigma_a2, readout="pre-activation")
    statistics, population = points.statistics(), points.statistics(population=True)
    found, histogram = {}, {}
    for kernel in ("ck", "ntk"):
        exact = kernel_of(deq.centred(statistics.tau0), kernel, points.X)
        theirs = nsd.equivalent(deq, statistics, kernel)
        forms = {"theorem": theirs.matrix(), "own norms": own_norm_matrix(deq, statistics, kernel)}
        found |= distances(exact, forms, kernel)
        if kernel in (spectra or []):
            histogram[kernel] = histograms({"exact": np.linalg.eigvalsh(exact), "equivalent": theirs.eigenvalues()})
        if mean_square is None:
            other = {"population tau0": nsd.equivalent(deq, population, kernel).matrix()}
            found |= distances(kernel_of(deq.centred(population.tau0), kernel, points.X), other, kernel)
    return {"distances": found, "tau0": statistics.tau0, "population_tau0": population.tau0, "spectrum": histogram}


def points(setup: Setup) -> list[Point]:
    """Mixture and images, arctan and tanh; the images also with rows of norm one, and at other scales."""
    mixture, images, unit = SIZES[setup.quick]
    point = functools.partial(point_of, compare_eigenvalues, setup)
    chosen = [point(mixture, phi, spectra=["ck", "ntk"]) for phi in ("arctan", "tanh")]
    chosen += [point(images, phi, spectra=["ck"]) for phi in ("arctan", "tanh")]
    return [*chosen, point(unit, "tanh"), *(point(images, "tanh", f"/{v:g}", mean_square=v) for v in SCALES)]


_REPORTED = {"mixture/arctan": 0.12, "mnist/tanh": 1.57}  # ||G* - Gbar|| in the preprint's Figure 1


def draw(document: Document) -> dict[str, Figure]:
    """One figure per spectrum, and ``"scale"``."""
    drawn = {
        f"{key.replace('/', '_')}_{kernel}": _spectrum(key, kernel, point["numbers"])
        for key, point in document["points"].items()
        for kernel in point["numbers"]["spectrum"]
    }
    return drawn | {"scale": _scales(document)}


def _spectrum(key: str, kernel: str, numbers: Document) -> Figure:
    gap, own = (numbers["distances"][f"{kernel}/{label}"] for label in ("theorem", "own norms"))
    reported = f" (the preprint: {_REPORTED[key]:g})" if kernel == "ck" and key in _REPORTED else ""
    return draw_spectra(
        numbers["spectrum"][kernel],
        f"{phrase(key)}: {word(f'preprint_{kernel}')} and its equivalent\n"
        f"spectral distance {gap['absolute']:.2g}{reported}; keeping the norm of each row {own['absolute']:.2g}",
    )


def _scales(document: Document) -> Figure:
    figure, ax = panels((6.4, 4.4))
    data = [(key.split("/"), point) for key, point in document["points"].items()]
    images = [point for parts, point in data if parts[0] in ("mnist", "digits") and parts[1] == "tanh"]
    rows = sorted((p["settings"].get("mean_square", 1.0), p["numbers"]["distances"]) for p in images)
    styles = (
        ("theorem", "the papers' equivalent", "DEQ", "o-"),
        ("own norms", "the same, with the norm of every row", "twin", "s:"),
    )
    for label, name, colour, style in styles:
        gaps = [d[f"ck/{label}"]["absolute"] for _, d in rows]
        ax.loglog([scale for scale, _ in rows], gaps, style, color=COLOURS[colour], label=name)
    name = images[0]["settings"]["data"] if images else "mnist"
    if f"{name}/tanh" in _REPORTED:
        ax.axhline(_REPORTED[f"{name}/tanh"], color=INK, linestyle="--", linewidth=0.9, label="printed in the preprint")
    ax.set(xlabel="mean squared norm of the images", ylabel="spectral distance of G* and its equivalent")
    ax.set_title(f"{word(name)}, tanh: the distance depends on how images are scaled")
    ax.legend()
    return figure


STUDY = Study(
    shows="eigenvalues of G*, K* and their equivalents (preprint, figure 1)",
    quick="5 s",
    full="5 min",
    points=points,
    draw=draw,
)
