"""Two stored spectra side by side: the bulk as histograms, the largest eigenvalues by rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ..style import COLOURS

__all__ = ["draw_spectra"]

_STYLES = ((COLOURS["DEQ"], True, "o", 7), (COLOURS["twin"], False, "x", 6))


def draw_spectra(bulk: Axes, top: Axes, spectrum: Mapping[str, Any]) -> None:
    """``spectrum`` has the edges of the bins, the counts and the largest eigenvalues of two kernels by name."""
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
