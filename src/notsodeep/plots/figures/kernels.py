"""Kernels beside what stands for them: twins, equivalents, a quadratic layer; their spectra, and how errors fall."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ...equivalents.distance import ErrorCurve
from ..displays import KernelDisplay
from ..style import COLOURS, INK, MARKERS, Document, by_setting, panels, phrase, shared_legend, ticks_at, word


def draw_kernels(document: Document) -> dict[str, Figure]:
    """Two figures per point: the kernels as images, and their spectra."""
    drawn = {}
    for key, point in document["points"].items():
        name = key.replace("/", "_")
        drawn[f"{name}_image"] = _images(key, point)
        drawn[f"{name}_spectrum"] = _spectra(point, _title(key, point))
    return drawn


def _images(key: str, point: Document) -> Figure:
    figure, axes = panels((9.0, 4.4), _title(key, point), 1, 2)
    images = point["numbers"]["images"]
    limits = KernelDisplay.from_kernel(images["DEQ"]).limits
    for ax, (name, image) in zip(axes, images.items(), strict=True):
        KernelDisplay.from_kernel(image, title=name).plot(ax, limits=limits, colorbar=False)
        ax.set(xticks=[], yticks=[])
    figure.colorbar(ax.images[0], ax=axes, shrink=0.8, label="entry of the kernel")
    return figure


def _title(key: str, point: Document) -> str:
    gap = {name: found["ck_relative"] for name, found in point["numbers"]["distances"].items()}
    return (
        f"{phrase(key)}: the twin has the kernel of the DEQ\n"
        f"relative spectral distance: twin {gap['twin']:.2g}, plain network {gap['plain']:.2g}"
    )


# ---- two stored spectra side by side -------------------------------------------------------------------


_STYLES = ((COLOURS["DEQ"], True, "o", 7), (COLOURS["twin"], False, "x", 6))


def _spectra(point: Document, title: str) -> Figure:
    """The bulk as histograms, the largest eigenvalues by rank, of the two kernels of a point."""
    figure, (bulk, top) = panels((9.0, 4.2), title, 1, 2)
    spectrum = point["numbers"]["spectrum"]
    edges = np.array(spectrum["edges"])
    for (name, counts), (colour, filled, marker, size) in zip(spectrum["counts"].items(), _STYLES, strict=True):
        bulk.stairs(counts, edges, color=colour, fill=filled, alpha=0.45 if filled else 1.0, label=name, linewidth=1.4)
        values = spectrum["largest"][name]
        face = "none" if filled else colour
        top.plot(range(1, len(values) + 1), values, marker, ms=size, color=colour, markerfacecolor=face, label=name)
    if max(max(counts) for counts in spectrum["counts"].values()) > 0.3 * sum(spectrum["counts"][name]):
        bulk.set_yscale("log")  # images: nearly all eigenvalues lie in the first bins
    bulk.set(xlabel="eigenvalue", ylabel="number of eigenvalues", title="the bulk")
    top.set(xlabel="rank", ylabel="eigenvalue", yscale="log", title="the largest eigenvalues")
    shared_legend(figure, bulk)
    return figure


# ---- exact kernels against their equivalents -----------------------------------------------------------


_REPORTED = {"mixture/arctan": 0.12, "mnist/tanh": 1.57}  # ||Lambda - Lambda_bar|| in the preprint's Figure 1


def draw_eigenvalues(document: Document) -> dict[str, Figure]:
    """One figure per spectrum, and ``"scale"``."""
    spectra = {key: point for key, point in document["points"].items() if "spectrum" in point["numbers"]}
    drawn = {key.replace("/", "_"): _spectrum(key, point) for key, point in spectra.items()}
    return drawn | {"scale": _scales(document)}


def _spectrum(key: str, point: Document) -> Figure:
    found, own = (point["numbers"]["distances"][label]["ck_relative"] for label in ("empirical tau0", "own norms"))
    printed = point["numbers"]["distances"]["empirical tau0"]["lambda"]
    said = f" (in the preprint's units {printed:.2g}; it reports {_REPORTED[key]:g})" if key in _REPORTED else ""
    return _spectra(
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


# ---- a ReLU DEQ on the unit sphere and one quadratic layer ---------------------------------------------


def draw_sphere(document: Document) -> dict[str, Figure]:
    """One figure of spectra per kernel, and ``"activations"``."""
    drawn = {key: _quadratic(key, point) for key, point in document["points"].items()}
    return drawn | {"activations": _activations(document)}


def _quadratic(key: str, point: Document) -> Figure:
    gap = point["numbers"]["distances"]["quadratic"]["relative"]
    title = (
        f"Unit sphere, {word(key)}: one quadratic layer has the DEQ's spectrum\nrelative spectral distance {gap:.2g}"
    )
    return _spectra(point, title)


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


# ---- errors of equivalents against the number of points ------------------------------------------------


def draw_errors(curves: Mapping[str, Mapping[str, ErrorCurve]]) -> dict[str, Figure]:
    """One figure per kernel of the papers' mixture: the theorems' equivalent beside the one that keeps norms."""
    kernels = [name for name in curves if not name.endswith("/own")]
    return {name: _pair(name, curves[name], curves[f"{name}/own"]) for name in kernels}


def _pair(kernel: str, typical: Mapping[str, ErrorCurve], own: Mapping[str, ErrorCurve]) -> Figure:
    says = f"{word(kernel)}: the error of the equivalent falls with the number of points"
    figure, axes = panels((9.6, 5.0), says, 1, 2, sharey=True)
    forms = {"as in the theorems": typical, "keeping the norm of each row": own}
    for ax, (title, found) in zip(axes, forms.items(), strict=True):
        _lines(ax, list(found.values()))
        ax.set_title(f"{title}: slopes {_slopes(found)}")
    axes[0].set_ylabel("relative spectral distance to the exact kernel")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _slopes(found: Mapping[str, ErrorCurve]) -> str:
    slopes = [curve.slope for curve in found.values()]
    return f"{max(slopes):.2f} to {min(slopes):.2f}" if slopes else "not measured"


def _lines(ax: Axes, curves: Sequence[ErrorCurve]) -> None:
    for i, curve in enumerate(curves):
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i % 6], color=f"C{i}", label=word(curve.label))
    if curves:
        n = np.array(curves[0].n, dtype=float)
        start = 0.7 * min(curve.mean[0] for curve in curves)
        ax.loglog(n, start * (n / n[0]) ** -0.5, ":", color=INK, label="slope -1/2")
        ticks_at(ax, curves[0].n)
    ax.set_xlabel("number of points")


def draw_mixtures(document: Document) -> dict[str, Figure]:
    """One figure per mixture, one panel per kernel."""
    by_mixture = by_setting(document["points"].values(), "mixture")
    return {name: _mixture(name, points) for name, points in by_mixture.items()}


def _mixture(name: str, points: Sequence[Document]) -> Figure:
    kernels = list(points[0]["numbers"])
    says = f"{word(name)}: the error of the equivalent falls as promised"
    figure, axes = panels((12.0, 4.6), says, 1, len(kernels), sharey=True)
    for ax, kernel in zip(axes, kernels, strict=True):
        labelled = [{**point["numbers"][kernel], "label": point["settings"]["activation"]} for point in points]
        _lines(ax, [ErrorCurve.from_dict(curve) for curve in labelled])
        ax.set_title(word(kernel))
    axes[0].set_ylabel("relative spectral distance")
    shared_legend(figure, axes[0], ncols=7)
    return figure


def draw_variants(document: Document) -> dict[str, Figure]:
    """One figure per kernel: the form that is kept falls, the printed ones stall."""
    (point,) = document["points"].values()
    curves = {name: ErrorCurve.from_dict(curve) for name, curve in point["numbers"].items()}
    kept = [name for name in curves if "," not in name]
    return {name: _variants(name, [c for label, c in curves.items() if label.split(",")[0] == name]) for name in kept}


def _variants(kernel: str, curves: Sequence[ErrorCurve]) -> Figure:
    figure, ax = panels((7.0, 4.8), f"{word(kernel)}: printed formulas that stall, and their slopes")
    for i, curve in enumerate(curves):
        label = curve.label.partition(", ")[2] or "the form used here"
        style = {"linewidth": 2.2} if i == 0 else {"linestyle": "--"}
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i], color=f"C{i}", label=f"{label}: {curve.slope:.2f}", **style)
    ticks_at(ax, curves[0].n)
    ax.set(xlabel="number of points", ylabel="relative spectral distance")
    ax.legend()
    return figure
