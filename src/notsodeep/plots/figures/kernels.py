"""Kernels and their spectra: those of a DEQ, of its twin, of its equivalent, and of a quadratic layer on the sphere."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..style import COLOURS, INK, headline, phrase, shared_legend, word

__all__ = ["draw_eigenvalues", "draw_kernels", "draw_sphere"]

Document = Mapping[str, Any]


def draw_kernels(document: Document) -> dict[str, Figure]:
    """Two figures per point: the kernels as images, and their spectra."""
    drawn = {}
    for key, point in document["points"].items():
        name = key.replace("/", "_")
        drawn[f"{name}_image"] = _images(key, point)
        drawn[f"{name}_spectrum"] = _spectra(point, _title(key, point))
    return drawn


def _images(key: str, point: Document) -> Figure:
    figure = Figure(figsize=(9.0, 4.4), layout="constrained")
    images = {name: np.array(values) for name, values in point["numbers"]["images"].items()}
    off = images["DEQ"][~np.eye(len(images["DEQ"]), dtype=bool)]
    reach = float(np.quantile(np.abs(off), 0.99))  # the diagonal would hide the classes
    axes = figure.subplots(1, 2)
    for ax, (name, image) in zip(axes, images.items(), strict=True):
        shown = ax.imshow(image, vmin=-reach, vmax=reach, cmap="RdBu_r", interpolation="nearest")
        ax.set(title=name, xticks=[], yticks=[])
    figure.colorbar(shown, ax=axes, shrink=0.8, label="entry of the kernel")
    headline(figure, _title(key, point))
    return figure


def _title(key: str, point: Document) -> str:
    gap = point["numbers"]["distances"]
    scaled = "" if "plain, scaled" not in gap else f" ({gap['plain, scaled']['ck_relative']:.2g} with the best factor)"
    return (
        f"{phrase(key)}: the twin has the kernel of the DEQ\nrelative spectral distance: twin "
        f"{gap['twin']['ck_relative']:.2g}, plain network {gap['plain']['ck_relative']:.2g}{scaled}"
    )


# ---- two stored spectra side by side -------------------------------------------------------------------


_STYLES = ((COLOURS["DEQ"], True, "o", 7), (COLOURS["twin"], False, "x", 6))


def _spectra(point: Document, title: str) -> Figure:
    """The bulk as histograms, the largest eigenvalues by rank, of the two kernels of a point."""
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    bulk, top = figure.subplots(1, 2)
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
    headline(figure, title)
    shared_legend(figure, bulk)
    return figure


# ---- exact kernels against their equivalents -----------------------------------------------------------


def draw_eigenvalues(document: Document, reported: Mapping[str, float]) -> dict[str, Figure]:
    """One figure per spectrum, and ``"scale"``; ``reported`` are distances printed in the preprint, by key."""
    spectra = {key: point for key, point in document["points"].items() if "spectrum" in point["numbers"]}
    drawn = {key.replace("/", "_"): _spectrum(key, point, reported.get(key)) for key, point in spectra.items()}
    return drawn | {"scale": _scales(document, reported)}


def _spectrum(key: str, point: Document, reported: float | None) -> Figure:
    found, own = (point["numbers"]["distances"][label]["ck_relative"] for label in ("empirical tau0", "own norms"))
    printed = point["numbers"]["distances"]["empirical tau0"]["lambda"]
    said = "" if reported is None else f" (in the preprint's units {printed:.2g}; it reports {reported:g})"
    return _spectra(
        point,
        f"{phrase(key)}, {point['settings']['n']:,} points: the equivalent has the exact spectrum\n"
        f"relative spectral distance {found:.2g}{said}; keeping the norm of each row {own:.2g}",
    )


def _scales(document: Document, reported: Mapping[str, float]) -> Figure:
    figure = Figure(figsize=(6.4, 4.4), layout="constrained")
    ax = figure.subplots()
    data = [(key.split("/"), point) for key, point in document["points"].items()]
    images = [point for parts, point in data if parts[0] in ("mnist", "digits") and parts[1] == "tanh"]
    rows = sorted((p["settings"].get("mean_square", 1.0), p["numbers"]["distances"]) for p in images)
    styles = (("empirical tau0", "the papers' equivalent", "DEQ", "o-"), ("own norms", "with own norms", "twin", "s:"))
    for label, name, colour, style in styles:
        distances = [d[label]["lambda"] for _, d in rows]
        ax.loglog([scale for scale, _ in rows], distances, style, color=COLOURS[colour], label=name)
    name = images[0]["settings"]["data"]
    if f"{name}/tanh" in reported:
        ax.axhline(reported[f"{name}/tanh"], color=INK, linestyle="--", linewidth=0.9, label="printed in the preprint")
    ax.set(xlabel="mean squared norm of the images", ylabel="spectral distance, in the preprint's units")
    ax.set_title(f"{word(name)}, tanh: the distance depends on how images are scaled", fontsize="medium")
    ax.legend(frameon=False)
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
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    ax = figure.subplots()
    t = np.linspace(-3.0, 3.0, 121)
    ax.plot(t, math.sqrt(2.0) * np.maximum(t, 0.0), color=COLOURS["DEQ"], label="the DEQ: √2 ReLU")
    for (key, point), style in zip(document["points"].items(), ("-", "--"), strict=True):
        q = point["numbers"]["quadratic"]
        curve = q["a2"] * t**2 + q["a1"] * t + q["a0"]
        ax.plot(t, curve, style, color=COLOURS["twin"], label=f"one layer, {word(key)}")
    ax.set_title("What replaces the DEQ on the unit sphere", fontsize="medium")
    ax.set(xlabel="input", ylabel="activation")
    ax.legend(frameon=False)
    return figure
