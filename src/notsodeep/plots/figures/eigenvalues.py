"""Exact kernels against their equivalents: one spectrum per figure, and the distance against the scale of images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ..style import COLOURS, INK, headline, phrase, shared_legend, word
from .spectra import draw_spectra

__all__ = ["draw_eigenvalues"]

Document = Mapping[str, Any]


def draw_eigenvalues(document: Document, reported: Mapping[str, float]) -> dict[str, Figure]:
    """One figure per spectrum, and ``"scale"``; ``reported`` are distances printed in the preprint, by key."""
    spectra = {key: point for key, point in document["points"].items() if "spectrum" in point["numbers"]}
    drawn = {key.replace("/", "_"): _spectrum(key, point, reported.get(key)) for key, point in spectra.items()}
    return drawn | {"scale": _scales(document, reported)}


def _spectrum(key: str, point: Document, reported: float | None) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    bulk, top = figure.subplots(1, 2)
    draw_spectra(bulk, top, point["numbers"]["spectrum"])
    found, own = (point["numbers"]["distances"][label]["ck_relative"] for label in ("empirical tau0", "own norms"))
    printed = point["numbers"]["distances"]["empirical tau0"]["lambda"]
    said = "" if reported is None else f" (in the preprint's units {printed:.2g}; it reports {reported:g})"
    headline(
        figure,
        f"{phrase(key)}, {point['settings']['n']:,} points: the equivalent has the exact spectrum\n"
        f"relative spectral distance {found:.2g}{said}; keeping the norm of each row {own:.2g}",
    )
    shared_legend(figure, bulk)
    return figure


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
