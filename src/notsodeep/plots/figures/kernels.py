"""Kernels of a DEQ and of its twin: images that cannot be told apart, and their spectra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from ..style import headline, phrase, shared_legend
from .spectra import draw_spectra

__all__ = ["draw_kernels"]

Document = Mapping[str, Any]


def draw_kernels(document: Document) -> dict[str, Figure]:
    """Two figures per point: the kernels as images, and their spectra."""
    drawn = {}
    for key, point in document["points"].items():
        name = key.replace("/", "_")
        drawn[f"{name}_image"] = _images(key, point)
        drawn[f"{name}_spectrum"] = _spectra(key, point)
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


def _spectra(key: str, point: Document) -> Figure:
    figure = Figure(figsize=(9.0, 4.2), layout="constrained")
    bulk, top = figure.subplots(1, 2)
    draw_spectra(bulk, top, point["numbers"]["spectrum"])
    headline(figure, _title(key, point))
    shared_legend(figure, bulk)
    return figure


def _title(key: str, point: Document) -> str:
    gap = point["numbers"]["distances"]
    scaled = "" if "plain, scaled" not in gap else f" ({gap['plain, scaled']['ck_relative']:.2g} with the best factor)"
    return (
        f"{phrase(key)}: the twin has the kernel of the DEQ\nrelative spectral distance: twin "
        f"{gap['twin']['ck_relative']:.2g}, plain network {gap['plain']['ck_relative']:.2g}{scaled}"
    )
