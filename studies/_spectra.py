"""Kernels on one sample of points: the sample, histograms of spectra, and their figure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import notsodeep as nsd
from notsodeep.errors import InvalidInputError

from ._data import load
from ._measure import spectral_norm
from ._runner import Document, Point, Setup
from ._style import COLOURS, panels, shared_legend

Array = NDArray[np.float64]
_BINS = 60
_TOP = 12


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows ordered by class, with their labels."""

    X: Array
    y: NDArray[np.int64]
    mixture: nsd.GaussianMixture | None = None

    def statistics(self, *, population: bool = False) -> nsd.MixtureStatistics:
        """Exact for a mixture, estimated for real data."""
        if self.mixture is not None:
            found = nsd.MixtureStatistics.from_mixture(self.mixture, self.X, self.y)
        else:
            found = nsd.MixtureStatistics.estimate(self.X, self.y)
        return replace(found, tau0=float(np.sqrt(found.counts @ found.traces / found.n))) if population else found


def sample(name: str, n: int, p: int, folder: str | Path | None = None, seed: int = 0) -> Sample:
    """``"mixture"``: the papers' two classes; ``"mnist"`` or ``"digits"``: the first n training images of 6 and 8.

    Images are centred and scaled to mean ||x||^2 = 1; with ``"_unit"`` behind the name every row is scaled to norm 1.
    """
    if name == "mixture":
        mixture = nsd.GaussianMixture.two_class(p)
        return Sample(*mixture.sample(n, seed=seed), mixture)
    images = name.removesuffix("_unit")
    if images not in ("mnist", "digits"):
        raise InvalidInputError(f"the kernel figures know 'mixture', 'mnist' and 'digits', got {name!r}")
    data = load(images, folder, classes=(6, 8)).first(n).standardised()
    if data.p != p:
        raise InvalidInputError(f"{name} has {data.p} features, {p} were asked for")
    order = np.argsort(data.y_train, kind="stable")
    X = data.X_train[order].astype(np.float64)
    return Sample(X if images == name else X / np.linalg.norm(X, axis=1, keepdims=True), data.y_train[order])


def histograms(spectra: dict[str, Array]) -> dict[str, Any]:
    """Counts of several spectra in any order over the same bins, and the largest ones, which the bins leave out."""
    spectra = {name: np.sort(values)[::-1] for name, values in spectra.items()}
    first = next(iter(spectra.values()))
    kept = first[min(_TOP, len(first) // 4) :]
    low, high = min(v.min() for v in spectra.values()), float(kept.max())
    edges = np.linspace(low, high, _BINS + 1)
    return {
        "edges": _rounded(edges),
        "counts": {name: np.histogram(v, edges)[0].tolist() for name, v in spectra.items()},
        "largest": {name: _rounded(v[:_TOP]) for name, v in spectra.items()},
    }


def distances(truth: Array, others: Mapping[str, Array], label: str = "") -> dict[str, dict[str, float]]:
    """Spectral distances of other kernels from the true one, by ``label`` and name."""
    size = spectral_norm(truth)
    gaps = {f"{label}/{name}" if label else name: spectral_norm(truth - kernel) for name, kernel in others.items()}
    return {name: {"absolute": gap, "relative": gap / size} for name, gap in gaps.items()}


def thumbnail(kernel: Array, size: int = 80) -> list[list[float]]:
    """Every so many rows and columns of a kernel."""
    rows = np.unique(np.linspace(0, len(kernel) - 1, min(size, len(kernel))).astype(int))
    return [_rounded(row, 4) for row in kernel[np.ix_(rows, rows)]]


def _rounded(values: Array, digits: int = 6) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in values]


SIZES = {
    True: {"mixture": (320, 400), "digits": (270, 64), "digits_unit": (270, 64)},
    False: {"mixture": (800, 1000), "mnist": (6000, 784), "mnist_unit": (6000, 784)},
}
"""Quick or not: n and p of mixture, images, and images with rows of norm one."""


def point_of(function: Any, setup: Setup, data: str, phi: str, label: str = "", **others: Any) -> Point:
    """Return the point of one data set and activation."""
    n, p = SIZES[setup.quick][data]
    settings = {"data": data, "activation": phi, "n": n, "p": p, "sigma_a2": 0.1, "seed": 0, **others}
    return Point.of(f"{data}/{phi}{label}", settings, function, folder=setup.data)


_STYLES = ((COLOURS["DEQ"], True, "o", 7), (COLOURS["twin"], False, "x", 6))


def draw_spectra(spectrum: Document, title: str) -> Figure:
    """The bulk as histograms, the largest eigenvalues by rank, of two kernels."""
    figure, (bulk, top) = panels((9.0, 4.2), title, 1, 2)
    draw_bulk(bulk, spectrum)
    draw_largest(top, spectrum)
    shared_legend(figure, bulk)
    return figure


def draw_bulk(ax: Axes, spectrum: Document) -> None:
    """Histograms of all but the largest eigenvalues."""
    edges, counts = np.array(spectrum["edges"]), spectrum["counts"]
    for (name, heights), (colour, filled, _, _) in zip(counts.items(), _STYLES, strict=True):
        ax.stairs(heights, edges, color=colour, fill=filled, alpha=0.45 if filled else 1.0, label=name, linewidth=1.4)
    if max(max(heights) for heights in counts.values()) > 0.3 * sum(heights):
        ax.set_yscale("log")  # images: nearly all eigenvalues lie in the first bins
    ax.set(xlabel="eigenvalue", ylabel="number of eigenvalues", title="the bulk")


def draw_largest(ax: Axes, spectrum: Document) -> None:
    """The largest eigenvalues by rank."""
    for (name, values), (colour, filled, marker, size) in zip(spectrum["largest"].items(), _STYLES, strict=True):
        face = "none" if filled else colour
        ax.plot(range(1, len(values) + 1), values, marker, ms=size, color=colour, markerfacecolor=face, label=name)
    ax.set(xlabel="rank", ylabel="eigenvalue", yscale="log", title="the largest eigenvalues")
