"""Eigenvalues of the exact conjugate kernel and of its equivalent (preprint, Figure 1).

On the mixture and on MNIST 6 against 8. The preprint states distances for Lambda = sigma_a2 G + sigma_b2 X X', which
differs from its equivalent by sigma_a2 (G - Gbar). Images differ much in norm, which the theorems exclude: an
equivalent that keeps the norm of each row stands beside theirs, and one point has rows of norm one. The preprint does
not say how its images were scaled, on which the distance depends: further points have other scales.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import spectral_norm
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
    folder: Any = None,
) -> dict[str, Any]:
    """Distances and spectra of the exact CK and its equivalent.

    ``mean_square`` scales the rows to that mean of ||x||^2, and leaves the spectra out. ``"own norms"`` is the
    equivalent that keeps the norm of each row.
    """
    points = sample(data, n, p, folder, seed)
    if mean_square is not None:
        points = replace(points, X=points.X * np.sqrt(mean_square / np.mean((points.X**2).sum(1))))
    deq = nsd.DEQ(activation, sigma_a2)
    statistics = points.statistics()
    exact, approximation = nsd.ck(deq.centred(statistics.tau0), points.X), nsd.equivalent(deq, statistics, "ck")
    found = distances(
        exact, {"empirical tau0": approximation.matrix(), "own norms": own_norm_matrix(deq, statistics, "ck")}, sigma_a2
    )
    if mean_square is not None:
        return {"distances": _with_tau0(found, statistics)}
    population = points.statistics(population=True)
    theirs = {"population tau0": nsd.equivalent(deq, population, "ck").matrix()}
    other = distances(nsd.ck(deq.centred(population.tau0), points.X), theirs, sigma_a2)
    spectra = histograms({"exact": np.linalg.eigvalsh(exact), "equivalent": approximation.eigenvalues()})
    return {
        "distances": _with_tau0(found, statistics) | _with_tau0(other, population),
        "spectrum": spectra,
        "gram_norm": spectral_norm(points.X @ points.X.T),
    }


def _with_tau0(found: dict[str, dict[str, float]], statistics: nsd.MixtureStatistics) -> dict[str, dict[str, float]]:
    return {label: numbers | {"tau0": statistics.tau0} for label, numbers in found.items()}


def points(setup: Setup) -> list[Point]:
    """Mixture and images, arctan and tanh; the images also with rows of norm one, and at other scales."""
    mixture, images, unit = SIZES[setup.quick]
    point = functools.partial(point_of, compare_eigenvalues, setup)
    chosen = [point(data, phi) for data in (mixture, images) for phi in ("arctan", "tanh")]
    return [*chosen, point(unit, "tanh"), *(point(images, "tanh", f"/{v:g}", mean_square=v) for v in SCALES)]


_REPORTED = {"mixture/arctan": 0.12, "mnist/tanh": 1.57}  # ||Lambda - Lambda_bar|| in the preprint's Figure 1


def draw(document: Document) -> dict[str, Figure]:
    """One figure per spectrum, and ``"scale"``."""
    spectra = {key: point for key, point in document["points"].items() if "spectrum" in point["numbers"]}
    drawn = {key.replace("/", "_"): _spectrum(key, point) for key, point in spectra.items()}
    return drawn | {"scale": _scales(document)}


def _spectrum(key: str, point: Document) -> Figure:
    found, own = (point["numbers"]["distances"][label]["ck_relative"] for label in ("empirical tau0", "own norms"))
    printed = point["numbers"]["distances"]["empirical tau0"]["lambda"]
    said = f" (in the preprint's units {printed:.2g}; it reports {_REPORTED[key]:g})" if key in _REPORTED else ""
    return draw_spectra(
        point,
        f"{phrase(key)}, {point['settings']['n']:,} points: the equivalent has the exact spectrum\n"
        f"relative spectral distance {found:.2g}{said}; keeping the norm of each row {own:.2g}",
    )


def _scales(document: Document) -> Figure:
    figure, ax = panels((6.4, 4.4))
    data = [(key.split("/"), point) for key, point in document["points"].items()]
    images = [point for parts, point in data if parts[0] in ("mnist", "digits") and parts[1] == "tanh"]
    rows = sorted((p["settings"].get("mean_square", 1.0), p["numbers"]["distances"]) for p in images)
    styles = (("empirical tau0", "the papers' equivalent", "DEQ", "o-"), ("own norms", "with own norms", "twin", "s:"))
    for label, name, colour, style in styles:
        distances = [d[label]["lambda"] for _, d in rows]
        ax.loglog([scale for scale, _ in rows], distances, style, color=COLOURS[colour], label=name)
    name = images[0]["settings"]["data"] if images else "mnist"
    if f"{name}/tanh" in _REPORTED:
        ax.axhline(_REPORTED[f"{name}/tanh"], color=INK, linestyle="--", linewidth=0.9, label="printed in the preprint")
    ax.set(xlabel="mean squared norm of the images", ylabel="spectral distance, in the preprint's units")
    ax.set_title(f"{word(name)}, tanh: the distance depends on how images are scaled")
    ax.legend()
    return figure


STUDY = Study(
    shows="eigenvalues of exact kernels and equivalents (preprint, figure 1)",
    quick="5 s",
    full="10 min",
    points=points,
    draw=draw,
)
