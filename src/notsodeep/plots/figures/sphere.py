"""A ReLU DEQ on the unit sphere and one quadratic layer: spectra, and the two activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..style import COLOURS, headline, shared_legend, word
from .spectra import draw_spectra

__all__ = ["draw_sphere"]

Document = Mapping[str, Any]


def draw_sphere(document: Document) -> dict[str, Figure]:
    """One figure of spectra per kernel, and ``"activations"``."""
    drawn = {key: _spectra(key, point) for key, point in document["points"].items()}
    return drawn | {"activations": _activations(document)}


def _spectra(key: str, point: Document) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    bulk, top = figure.subplots(1, 2)
    draw_spectra(bulk, top, point["numbers"]["spectrum"])
    gap = point["numbers"]["distances"]["quadratic"]["relative"]
    headline(
        figure,
        f"Unit sphere, {word(key)}: one quadratic layer has the DEQ's spectrum\nrelative spectral distance {gap:.2g}",
    )
    shared_legend(figure, bulk)
    return figure


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
