"""Twins: three routes on the same data; without data bounds against depth and limits of odd layers; one layer: bounds,
errors at finite width, accuracies, lazy training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from ...nn.compare import standard_error
from ..style import (
    COLOURS,
    INK,
    LOOKS,
    MARKERS,
    Document,
    against_width,
    by_setting,
    panels,
    shared_legend,
    word,
)

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


# ---- one layer: bounds ------------------------------------------------------------------------


_SHARE = 0.8  # of the limit, for which the bounds are drawn; the tables hold the others


def draw_one_layer(document: Document) -> dict[str, Figure]:
    """By kernel and range of norms the bounds against the kinds of units; all bounds beside what pairs show."""
    points = list(document["points"].values())
    usual = [point for point in points if point["settings"]["share"] == _SHARE and point["settings"]["norms"]]
    ranges = by_setting(usual, "norms").items()
    return {"bounds_{}_{}".format(*norms): _bounds(chosen, norms) for norms, chosen in ranges} | {"seen": _seen(points)}


def _bounds(points: Sequence[Document], norms: Sequence[float]) -> Figure:
    says = "Norms {:g} to {:g}: every kind of units multiplies the accuracy, kinks aside".format(*norms)
    figure, axes = panels((9.0, 5.4), says, 1, 2, sharey=True)
    names = list(by_setting(points, "activation"))
    for ax, kernel in zip(axes, ("ck", "ntk"), strict=True):
        for point in by_setting(points, "kernel").get(kernel, []):
            name, rows = point["settings"]["activation"], point["numbers"]["rows"]
            i = names.index(name)
            look = {"marker": MARKERS[i % len(MARKERS)], "color": f"C{i % 10}"}
            ax.semilogy([r["kinds"] for r in rows], [r["bound"] for r in rows], label=word(name), **look)
        ax.set(title=word(kernel), xlabel="kinds of units")
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("bound on the error, relative to the diagonal")
    shared_legend(figure, axes[0], ncols=5)
    return figure


def _seen(points: Sequence[Document]) -> Figure:
    figure, ax = panels((6.4, 5.4), "No pair of inputs is further off than the bound says")
    for (kernel, marker), colour in zip((("ck", "o"), ("ntk", "s")), ("DEQ", "twin"), strict=True):
        rows = [r for p in points if p["settings"]["kernel"] == kernel for r in p["numbers"]["rows"]]
        look = {"color": COLOURS[colour], "markerfacecolor": "none", "label": word(kernel)}
        ax.loglog([max(r["seen"], 1e-16) for r in rows], [r["bound"] for r in rows], marker, **look)
    ends = ax.get_xlim()
    ax.loglog(ends, ends, color="0.5", linewidth=1.0, label="equal")
    ax.set(xlabel="largest error that random pairs of inputs show", ylabel="bound on the error")
    shared_legend(figure, ax)
    return figure


# ---- one layer at finite width ------------------------------------------------------------------------


def draw_one_layer_width(document: Document) -> dict[str, Figure]:
    """One figure per activation: errors of kernels against the width, a panel per data set."""
    by_activation = by_setting(document["points"].values(), "activation")
    return {phi: _errors(points, phi) for phi, points in by_activation.items()}


def _errors(points: Sequence[Document], phi: str) -> Figure:
    says = f"{word(phi)}: one layer is as near to the infinite DEQ as a DEQ of its width"
    figure, axes = against_width([p["settings"]["data"] for p in points], says)
    for ax, point in zip(axes, points, strict=True):
        widths = point["settings"]["widths"]
        for name, errors in point["numbers"]["errors"].items():
            ax.plot(widths, [np.mean(e) for e in errors], label=name, **LOOKS[name])
        ax.set_yscale("log")
    axes[0].set_ylabel("relative spectral error of the kernel")
    shared_legend(figure, axes[0], ncols=2 if len(points) < 3 else 4)
    return figure


# ---- accuracies of one layer ------------------------------------------------------------------------


def draw_one_layer_accuracy(document: Document) -> dict[str, Figure]:
    """One figure per activation: test accuracy by SGD minus the DEQ's against the width, a panel per data set."""
    points = [p for p in document["points"].values() if "method" not in p["settings"]]
    return {phi: _gaps(points, phi) for phi in points[0]["settings"]["activations"]} if points else {}


def _gaps(points: Sequence[Document], phi: str) -> Figure:
    by_data = by_setting(points, "dataset")
    says = f"{word(phi)}: with trained readouts one layer classifies as well as the DEQ"
    figure, axes = against_width(list(by_data), says)
    for ax, chosen in zip(axes, by_data.values(), strict=True):
        rows = sorted((p["settings"]["width"], p["numbers"][phi]) for p in chosen)
        widths = [width for width, _ in rows]
        for name in rows[0][1]:
            gaps = [100 * np.subtract(table[name]["accuracy"], table["DEQ"]["accuracy"]) for _, table in rows]
            if name == "DEQ":
                ax.axhline(0.0, color=COLOURS["DEQ"], linewidth=1.0, label="DEQ")
                continue
            means, errors = [g.mean() for g in gaps], [standard_error(g) for g in gaps]
            ax.errorbar(widths, means, errors, label=name, **LOOKS[name])
    axes[0].set_ylabel("accuracy minus the DEQ's, points")
    shared_legend(figure, axes[0], ncols=3 if len(by_data) < 3 else 5)
    return figure


# ---- lazy training of one layer ------------------------------------------------------------------------


def draw_one_layer_lazy(document: Document) -> dict[str, Figure]:
    """One figure per data set and activation; a row of panels per width: loss, accuracy, agreement."""
    points = list(document["points"].values())
    cases = by_setting(points, "data", "activation")
    drawn = {f"{data}_{phi}": _lazy(chosen, data, phi) for (data, phi), chosen in cases.items()}
    known = [p for p in points if p["settings"].get("limit")]
    return {**drawn, "limit": _limit(known)} if known else drawn


def _limit(points: Sequence[Document]) -> Figure:
    by_activation = by_setting(points, "activation")
    says = f"{word(points[0]['settings']['data'])}: DEQ and one layer go to the same limit"
    figure, axes = against_width(list(by_activation), says)
    for ax, chosen in zip(axes, by_activation.values(), strict=True):
        for name in ("DEQ", "one layer", "one layer, orthogonal"):
            distances = [np.mean([s[name]["to_limit"][-1] for s in p["numbers"]["seeds"]]) for p in chosen]
            ax.plot([p["settings"]["width"] for p in chosen], distances, label=name, **LOOKS[name])
        ax.set_yscale("log")
    axes[0].set_ylabel("distance from infinite width")
    shared_legend(figure, axes[0], ncols=2 if len(by_activation) == 1 else 3)
    return figure


def _lazy(points: Sequence[Document], data: str, phi: str) -> Figure:
    says = f"{word(data)}, {word(phi)}: a readout of one layer follows a whole DEQ, the wider the closer"
    figure, grid = panels((10.0, 3.1 * len(points) + 0.8), says, len(points), 3, squeeze=False)
    names = ("DEQ", "one layer", "one layer, orthogonal", "another DEQ")
    quantities = (
        ("loss", "test loss", 1.0, names),
        ("accuracy", "test accuracy, %", 100.0, names),
        ("agreement", "same prediction as the DEQ, %", 100.0, names[1:]),
    )
    for axes, point in zip(grid, points, strict=True):
        seeds = point["numbers"]["seeds"]
        rate = point["settings"]["lr"]
        for ax, (quantity, label, factor, shown) in zip(axes, quantities, strict=True):
            for name in shown:
                mean = factor * np.mean([s[name][quantity] for s in seeds], axis=0)
                look = {**LOOKS[name], "marker": ""}
                ax.plot([rate * step for step in seeds[0]["steps"]], mean, label=name, **look)
            title = f"width {point['settings']['width']:,}"
            ax.set(title=title, xlabel="time (learning rate times steps)", ylabel=label)
    shared_legend(figure, grid[0][0])
    return figure
