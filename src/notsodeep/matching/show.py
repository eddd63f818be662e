"""A twin for notebooks: its activations drawn, its numbers, what is proven."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..activations import Activation

__all__ = ["twin_html"]

_WIDTH, _HEIGHT, _REACH = 180, 120, 3.0
_COLOURS = {"DEQ": "#8a8a8a", "twin": "#b3262e"}


def twin_html(twin: Any) -> str:
    """The title, one small drawing per activation, and the lines that ``print`` gives."""
    title, *lines = str(twin).split("\n")
    scale = twin.tau0 or (twin.norms[1] if twin.norms else 1.0)
    own = twin.deq.activations[-1]
    drawings = [_drawing(own, "DEQ", f"activation of the {type(twin.deq).__name__}", scale)]
    for i, phi in enumerate(twin.network.activations, 1):
        drawings.append(_drawing(phi, "twin", f"layer {i} of the twin", scale))
    rows = "".join(_row(line.strip()) for line in lines)
    return (
        f'<div class="notsodeep-twin"><p><strong>{escape(title)}</strong></p>'
        f'<div style="display:flex;flex-wrap:wrap;gap:1em">{"".join(drawings)}</div>'
        f'<table style="text-align:left">{rows}</table></div>'
    )


def _row(line: str) -> str:
    name, _, text = line.partition("  ") if not line.startswith("layer") else (line[:7], "", line[7:])
    left = 'style="text-align:left"'
    return f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text.strip())}</td></tr>"


def _drawing(phi: Activation, kind: str, caption: str, scale: float) -> str:
    x = np.linspace(-_REACH * scale, _REACH * scale, 121)
    y = np.asarray(phi.at_norm(x, scale), dtype=float)
    label = f"{caption}, inputs from {x[0]:.3g} to {x[-1]:.3g}, values from {y.min():.3g} to {y.max():.3g}"
    return (
        f'<figure style="margin:0"><svg role="img" aria-label="{escape(label)}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'width="{_WIDTH}" height="{_HEIGHT}">{_curve(y, _COLOURS[kind])}</svg>'
        f"<figcaption><small>{escape(label)}</small></figcaption></figure>"
    )


def _curve(y: NDArray[Any], colour: str) -> str:
    """The values from edge to edge, and the line of zero where it is crossed."""
    low, high = float(y.min()), float(y.max())
    if not (math.isfinite(high - low) and high > low):
        return ""
    unit = (_HEIGHT - 8) / (high - low)
    heights = _HEIGHT - 4 - (y - low) * unit
    places = np.linspace(4, _WIDTH - 4, len(y))
    path = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(places, heights, strict=True))
    zero = _HEIGHT - 4 + low * unit
    axis = f'<line x1="4" x2="{_WIDTH - 4}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#ccc"/>' if low < 0 < high else ""
    return f'{axis}<polyline fill="none" stroke="{colour}" stroke-width="2" points="{path}"/>'
