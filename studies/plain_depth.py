"""What depth and weights of a plain network change.

The papers show plain networks 1.3 to 7.8 points below the DEQ at width 4,096 and state neither their depth nor the
variance of their weights. The kernel of one tanh layer is within 6 % of the DEQ's and a little larger, so no gap is to
be expected from it. Each further layer shrinks the kernel, as do smaller weights, and SGD with the same learning rate
gets less far. Features of a VGG trained on CIFAR-10 itself are so easy that all networks meet at the accuracy of the
VGG; with noise they are as hard as those of the papers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import notsodeep as nsd

from ._data import Dataset
from ._readouts import ACTIVATIONS, DATASETS, NOISE, Candidate, loader, rate, score, twin_for
from ._runner import QUICK, Document, Point, Setup, Study
from ._style import COLOURS, INK, panels, word
from .accuracy import REPORTED

TWINS: dict[str, str] = {"twin": "gaussian", "orthogonal twin": "orthogonal"}
"""The same twin with independent weights, and with orthogonal ones."""
PLAIN = {
    "1 layer": (1, 1.0, True),
    "2 layers": (2, 1.0, True),
    "3 layers": (3, 1.0, True),
    "1 layer, 0.2": (1, 0.2, True),
    "2 layers, 0.8": (2, 0.8, True),
    "1 raw layer": (1, 1.0, False),
    "2 raw layers": (2, 1.0, False),
}
"""Plain networks: layers, variance of their weights, and whether they are centred (odd activations always are)."""


def accuracy_by_depth(
    data: Dataset,
    phi: str,
    width: int,
    networks: Sequence[str],
    setup: Setup = QUICK,
    *,
    epochs: int = 100,
    seeds: Sequence[int] = (0,),
    lr: float = 1.0,
) -> dict[str, list[float]]:
    """Network -> test accuracy per seed; ``networks`` are ``"DEQ"`` and names from :data:`TWINS` and :data:`PLAIN`."""
    candidates = {name: Candidate(_by_name(phi, name), TWINS.get(name, "gaussian")) for name in networks}
    table = score(candidates, data, width, setup, epochs=epochs, seeds=seeds, optimisers={"sgd": lr})
    return {name: found["accuracy"] for name, found in table.first.items()}


def _by_name(phi: str, name: str) -> nsd.DEQ | nsd.ENN:
    if name == "DEQ" or name in TWINS:
        twin = twin_for(phi)
        return twin.deq if name == "DEQ" else twin.network
    depth, variance, centred = PLAIN[name]
    network = nsd.ENN([nsd.activation(phi).affine(scale=variance**0.5)] * depth)
    return network.centred(1.0) if centred else network


def points(setup: Setup) -> list[Point]:
    """One point per data set and activation; the noisy features and the digits also at other widths."""
    names = ("digits",) if setup.quick else DATASETS
    usual, epochs, seeds = (256, 20, 1) if setup.quick else (4096, 100, 3)
    load_data = loader(setup)

    def point(name: str, phi: str, noise: float = 0.0, width: int = usual, seeds: int = seeds) -> Point:
        plain = [label for label, (_, _, centred) in PLAIN.items() if centred or phi != "tanh"]
        chosen: dict[str, Any] = {
            "networks": ["DEQ", *TWINS, *(plain if width == usual else [])],
            "width": width,
            "epochs": epochs,
            "seeds": list(range(seeds)),
            "lr": rate(name),
        }
        return Point(
            f"{name}{'_noisy' if noise else ''}/{phi}/{width}",
            {"dataset": name, "noise": noise, "activation": phi, **chosen},
            lambda: accuracy_by_depth(load_data(name, noise), phi, setup=setup, **chosen),
        )

    chosen = [point(name, phi) for name in names for phi in ACTIVATIONS]
    if setup.quick:
        return chosen
    harder = [("tanh", 4096), ("relu", 1024), ("relu", 4096), ("relu", 16384)]
    narrow = [point("digits", phi, width=width, seeds=10) for width in (32, 64) for phi in ACTIVATIONS]
    return [*chosen, *(point("cifar10_vgg", phi, NOISE, width) for phi, width in harder), *narrow]


_TWINS = ("twin", "orthogonal twin")


def draw(document: Document) -> dict[str, Figure]:
    """One figure per data set, one panel per activation and width."""
    by_data: dict[str, list[Document]] = {}
    for key, point in document["points"].items():
        by_data.setdefault(key.split("/")[0], []).append(point)
    return {name: _depths(name, points, REPORTED.get(name, {})) for name, points in by_data.items()}


def _depths(name: str, points: Sequence[Document], reported: Mapping[str, Any]) -> Figure:
    rows, longest = -(-len(points) // 2), max(len(point["numbers"]) for point in points)
    cross = "; crosses: published, width 4,096" if reported else ""
    says = f"{word(name)}: what depth and weights of a plain network change{cross}"
    figure, grid = panels((10.0, (1.2 + 0.34 * longest) * rows + 0.6), says, rows, 2, squeeze=False)
    for ax, point in zip(grid.flat, points, strict=False):
        _depth(ax, point, reported.get(point["settings"]["activation"]))
    for ax in list(grid.flat)[len(points) :]:
        ax.set_axis_off()
    return figure


def _depth(ax: Axes, point: Document, reported: Mapping[str, Sequence[float]] | None) -> None:
    table, settings = point["numbers"], point["settings"]
    for place, (name, found) in enumerate(table.items()):
        mean, spread = 100 * float(np.mean(found)), 100 * float(np.std(found))
        colour = COLOURS["twin" if name in _TWINS else "DEQ" if name == "DEQ" else "plain"]
        ax.errorbar(mean, place, xerr=spread, fmt="o", color=colour, capsize=3)
        ax.annotate(f"{mean:.1f}", (mean, place), xytext=(0, 5), textcoords="offset points", ha="center", fontsize=9)
        if reported is not None:
            published = reported.get("twin" if name in _TWINS else name, reported["plain"])
            ax.plot(100 * published[1], place, "x", color=INK, markersize=7)
    ax.axvline(100 * float(np.mean(table["DEQ"])), color=COLOURS["DEQ"], linewidth=0.8, linestyle=":")
    ax.set_yticks(range(len(table)), list(table))
    ax.set_ylim(len(table) - 0.5, -0.8)
    ax.set(title=f"{word(settings['activation'])}, width {settings['width']:,}", xlabel="test accuracy, %")


STUDY = Study(
    shows="what depth and weights of a plain network change",
    quick="10 s",
    full="30 min, H200",
    points=points,
    draw=draw,
)
