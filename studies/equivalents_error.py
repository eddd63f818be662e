"""The equivalents' error falls with the number of points (preprint and slides, error figures; p/n = 0.8).

The theorems promise n^(-1/2), for every activation and kernel: CK and frozen NTK are those of the slides, G* and K*
those of the preprint. Beside their equivalent stands the one that keeps the norm of each row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from ._curves import ACTIVATIONS, ErrorCurve, draw_lines, error_against_n
from ._measure import PREPRINT
from ._runner import Document, Point, Setup, Study
from ._style import panels, shared_legend, word


def points(setup: Setup) -> list[Point]:
    """Six activations, growing dimension; each point holds all kernels of a readout, and all seeds."""

    def measure(activation: str, p: int, n: int, sigma_a2: float, seeds: list[int], **kept: Any) -> dict[str, Any]:
        found = error_against_n(activation, dimensions=(p,), seeds=len(seeds), sigma_a2=sigma_a2, **kept)
        return {kernel: list(curve.errors[0]) for kernel, curve in found.items()}

    def point(activation: str, p: int, name: str = "", **others: Any) -> Point:
        settings = {"activation": activation, "p": p, "n": round(1.25 * p), "sigma_a2": 0.2, "seeds": [0, 1]}
        return Point.of(f"{name}{activation}/{p}", {**settings, "norms": ["typical", "own"], **others}, measure)

    dimensions = (80, 160, 320) if setup.quick else (200, 400, 800)
    chosen = [point(activation, p) for p in dimensions for activation in ACTIVATIONS]
    preprint = {"name": "preprint/", "kernels": list(PREPRINT)}
    return chosen + [point(phi, p, **preprint) for p in dimensions for phi in ACTIVATIONS]


def kept_curves(document: Document) -> dict[str, dict[str, ErrorCurve]]:
    """Kernel -> activation -> its curve; ``"ck/own"`` ... are the equivalents that keep the norm of each row."""
    found: dict[str, dict[str, dict[int, tuple[float, ...]]]] = {}
    for point in sorted(document["points"].values(), key=lambda p: p["settings"]["n"]):
        for kernel, errors in point["numbers"].items():
            by_size = found.setdefault(kernel, {}).setdefault(point["settings"]["activation"], {})
            by_size[point["settings"]["n"]] = tuple(errors)
    return {
        kernel: {a: ErrorCurve(a, tuple(e), tuple(e.values())) for a, e in by_name.items() if len(e) > 1}
        for kernel, by_name in found.items()
    }


def draw(document: Document) -> dict[str, Figure]:
    """Draw one figure per kernel: the theorems' equivalent beside the one that keeps norms."""
    curves = kept_curves(document)
    kernels = [name for name in curves if not name.endswith("/own")]
    return {name: _pair(name, curves[name], curves[f"{name}/own"]) for name in kernels}


def _pair(kernel: str, typical: Mapping[str, ErrorCurve], own: Mapping[str, ErrorCurve]) -> Figure:
    says = f"{word(kernel)}: the error of the equivalent falls with the number of points"
    figure, axes = panels((9.6, 5.0), says, 1, 2, sharey=True)
    forms = {"as in the theorems": typical, "keeping the norm of each row": own}
    for ax, (title, found) in zip(axes, forms.items(), strict=True):
        draw_lines(ax, list(found.values()))
        ax.set_title(f"{title}: slopes {_slopes(found)}")
    axes[0].set_ylabel("relative spectral distance to the exact kernel")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _slopes(found: Mapping[str, ErrorCurve]) -> str:
    slopes = [curve.slope for curve in found.values()]
    return f"{max(slopes):.2f} to {min(slopes):.2f}" if slopes else "not measured"


STUDY = Study(
    shows="the equivalents' error falls with the number of points (slides, preprint)",
    quick="20 s",
    full="4 min",
    points=points,
    draw=draw,
)
