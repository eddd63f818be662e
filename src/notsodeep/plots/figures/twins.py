"""Routes to a twin on the same data; twins without data: bound against depth, and what odd layers cannot reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..style import COLOURS, INK, MARKERS, Document, by_setting, panels, shared_legend, word

_COLOURS = {"four numbers": COLOURS["DEQ"], "sphere": COLOURS["plain"], "one layer": COLOURS["twin"]}
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
    names = list(by_setting(document["points"].values(), "dataset"))
    figure, ax = panels((8.6, 2.4 + 1.1 * len(names)), title)
    for point in document["points"].values():
        _draw_point(ax, point, names, value)
    for between in range(1, len(names)):
        ax.axhline(between - 0.5, color="0.7", linewidth=0.8)
    ax.grid(axis="x", color="0.7", alpha=0.4)
    ax.set_yticks(range(len(names)), [word(name) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set(xscale=scale, xlabel=label)
    figure.legend(handles=_legend(ax), loc="outside lower center", ncols=3, fontsize="small")
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


# ---- without data --------------------------------------------------------------------------------------


def draw_uniform(document: Document) -> dict[str, Figure]:
    """By kernel: the largest error over all inputs against depth."""
    points = by_setting(document["points"].values(), "activation")["relu"]
    return {f"relu_{kernel}": _depths(chosen, kernel) for kernel, chosen in by_setting(points, "kernel").items()}


def _depths(points: list[Document], kernel: str) -> Figure:
    figure, ax = panels((7.4, 5.2), f"ReLU, {word(kernel)}: every layer buys accuracy")
    for i, point in enumerate(points):
        rows, label = point["numbers"]["rows"], f"$\\sigma_a^2$ = {point['settings']['sigma_a2']:.3g}"
        look = {"marker": MARKERS[i % 6], "color": f"C{i % 10}", "label": label}
        ax.semilogy([row["depth"] for row in rows], [row["bound"] for row in rows], **look)
    ax.set(xlabel="layers of the twin", ylabel="largest relative error over all inputs")
    shared_legend(figure, ax, ncols=3)
    return figure


def draw_odd(document: Document) -> dict[str, Figure]:
    """What no explicit network of odd layers can beat."""
    figure, ax = panels((7.0, 3.6), "A limit of plain odd layers, of any depth")
    points = list(document["points"].values())
    cases = [f"{word(p['settings']['activation'])}, $\\sigma_a^2$ = {p['settings']['sigma_a2']:.3g}" for p in points]
    for place, point in enumerate(points):
        for (box, bound), marker in zip(point["numbers"]["bounds"].items(), "os", strict=True):
            ax.semilogx(bound, place, marker, color=COLOURS["twin" if marker == "o" else "DEQ"], label=f"norms {box}")
    ax.set_yticks(range(len(points)), cases)
    ax.set_xlabel("no network of odd layers is nearer than this")
    shared_legend(figure, ax)
    return {"": figure}
