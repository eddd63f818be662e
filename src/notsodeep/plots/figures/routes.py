"""The routes to a twin on the same data: three figures, one message each, and a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import INK, word

__all__ = ["draw_routes", "routes_table"]

Document = Mapping[str, Any]
_COLOURS = {"four numbers": "#2f7fc1", "sphere": "#3d9a5c", "one layer": "#d1495b"}
_MARKERS = {("relu", "ck"): "o", ("tanh", "ck"): "s", ("relu", "ntk"): "^"}
_NAMES = {
    "four numbers": "four numbers (match)",
    "sphere": "unit norm (match_sphere)",
    "one layer": "any input (match_one_layer)",
}


def draw_routes(document: Document) -> dict[str, Figure]:
    """Distance of the kernels, disagreement of the regressions, accuracy of networks beside the DEQ's."""
    return {
        "distance": _figure(document, "A twin is nearer to the DEQ than a plain network",
                            "relative spectral distance of the kernels", _distance, "log"),
        "regression": _figure(document, "Kernel regression: how often another class is predicted",
                              "test rows classified unlike the DEQ, %", _disagreement),
        "networks": _figure(document, "Finite networks: what the twin costs in accuracy",
                            "test accuracy minus the DEQ's, percentage points", _gap),
    }  # fmt: skip


def _distance(numbers: Document, name: str) -> float | None:
    return numbers["distance"][name]


def _disagreement(numbers: Document, name: str) -> float | None:
    return 100 * (1 - numbers["regression"]["agreement"][name])


def _gap(numbers: Document, name: str) -> float | None:
    if "networks" not in numbers:
        return None
    accuracy = numbers["networks"]["accuracy"]
    return 100 * float(np.mean(accuracy[name]) - np.mean(accuracy["DEQ"]))


def _figure(
    document: Document, title: str, label: str, value: Callable[[Document, str], float | None], scale: str = "linear"
) -> Figure:
    stored = list(document["points"].values())
    names = list(dict.fromkeys(p["settings"]["dataset"] for p in stored))
    figure = Figure(figsize=(8.6, 2.4 + 1.1 * len(names)), layout="constrained")
    ax = figure.subplots()
    for point in stored:
        _draw_point(ax, point, names, value)
    for between in range(1, len(names)):
        ax.axhline(between - 0.5, color="0.7", linewidth=0.8)
    ax.grid(axis="x", color="0.7", alpha=0.4)
    ax.set_yticks(range(len(names)), [word(name) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xscale(scale)
    ax.set_xlabel(label)
    ax.set_title(title, fontsize="medium")
    figure.legend(handles=_legend(ax), loc="outside lower center", ncols=3, frameon=False, fontsize="small")
    return figure


def _draw_point(ax: Axes, point: Document, names: list[str], value: Callable[[Document, str], float | None]) -> None:
    settings = point["settings"]
    case = (settings["activation"], settings["kernel"])
    places = [(c, r) for c in _MARKERS for r in _COLOURS]
    y = names.index(settings["dataset"]) - 0.4 + 0.8 * (places.index((case, settings["route"])) + 0.5) / len(places)
    colour = _COLOURS[settings["route"]]
    for name, face in (("plain", "none"), ("twin", colour)):
        x = value(point["numbers"], name)
        if x is not None:
            ax.plot(x, y, marker=_MARKERS[case], color=colour, markerfacecolor=face, markersize=6, linestyle="")


def _legend(ax: Axes) -> list[Any]:
    def entry(label: str, colour: str, marker: str, face: str) -> Any:
        style: Any = {"marker": marker, "color": colour, "markerfacecolor": face, "linestyle": "", "markersize": 6}
        return ax.plot([], [], label=label, **style)[0]

    routes = [entry(_NAMES[route], colour, "o", colour) for route, colour in _COLOURS.items()]
    cases = [entry(f"{word(a)}, {word(k)}", INK, marker, INK) for (a, k), marker in _MARKERS.items()]
    return [*routes, *cases, entry("filled: twin", INK, "o", INK), entry("hollow: plain network", INK, "o", "none")]


# ---- table ---------------------------------------------------------------------------------------------------


def routes_table(document: Document) -> tuple[list[str], list[list[str]]]:
    """Headings and one row per point; accuracies in per cent, means over the seeds for networks."""
    heads = ["data", "activation", "kernel", "route", "layers", "bound", "distance (plain)", "regression: agreement"]
    heads += ["regression: DEQ, twin", "networks: DEQ, twin, plain", "networks: agreement (DEQ of another seed)"]
    return heads, [_row(point) for point in document["points"].values()]


def _row(point: Document) -> list[str]:
    settings, numbers = point["settings"], point["numbers"]
    distance, regression, networks = numbers["distance"], numbers["regression"], numbers.get("networks")
    cells = [word(settings[name]) for name in ("dataset", "activation", "kernel", "route")] + [str(numbers["depth"])]
    cells.append("" if numbers["bound"] is None else f"{numbers['bound']:.1e}")
    cells.append(f"{distance['twin']:.1e} ({distance['plain']:.1e})")
    cells.append(f"{100 * regression['agreement']['twin']:.1f} ({100 * regression['agreement']['plain']:.1f})")
    cells.append(", ".join(f"{100 * regression['accuracy'][name]:.1f}" for name in ("DEQ", "twin")))
    if networks is None:
        return [*cells, "", ""]
    cells.append(", ".join(f"{100 * np.mean(networks['accuracy'][name]):.1f}" for name in ("DEQ", "twin", "plain")))
    same = networks["agreement"]
    return [*cells, f"{100 * same['twin']:.1f} ({100 * same['DEQ of another seed']:.1f})"]
