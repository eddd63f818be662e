"""Test accuracy of one-layer twins against width, with trained readouts.

Beside them stand the DEQ, the papers' twin and a plain network whose kernel is multiplied by the scalar that brings it
nearest to the DEQ's, so that it does not lose by its size alone; at three widths by Adam too.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._data import Dataset
from ._measure import standard_error
from ._readouts import ACTIVATIONS, DATASETS, NOISE, SIGMA_A2, WIDEST, WIDTHS, Candidate, loader, rate, score, twin_for
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, LOOKS, against_width, by_setting, shared_legend, word

TOLERANCE = 1e-3
"""Of the one-layer twin: kernels of these widths are off by a hundredth and more."""
ADAM_WIDTHS = (128, 1024, 4096)
_SCALED_ON = 1000  # rows that the plain network's scalar is found on


def one_layer_candidates(phi: str, data: Dataset) -> dict[str, Candidate]:
    """The networks compared, the DEQ first."""
    papers = twin_for(phi)
    one = nsd.match_one_layer(papers.deq, norms=nsd.matching.norm_range(data.X_train), tol=TOLERANCE).network
    scalar = papers.verify(data.X_train[:_SCALED_ON]).scalar
    *before, last = papers.plain.activations
    return {
        "DEQ": Candidate(papers.deq),
        "one layer": Candidate(one),
        "one layer, orthogonal": Candidate(one, "orthogonal"),
        "papers' twin": Candidate(papers.network),
        "plain, best scale": Candidate(nsd.ENN([*before, last.affine(gain=scalar**0.5)])),
    }


def points(setup: Setup) -> list[Point]:
    """One point per data set and width; ``_noisy`` behind a name adds the noise."""
    names = ("digits",) if setup.quick else (*DATASETS, "cifar10_vgg_noisy")
    sizes = (32, 128) if setup.quick else (*WIDTHS, WIDEST)
    epochs, seeds = (20, 2) if setup.quick else (100, 3)
    load_data = loader(setup)

    @functools.lru_cache(maxsize=1)
    def prepared(name: str) -> tuple[Dataset, dict[str, dict[str, Candidate]]]:
        data = load_data(name.removesuffix("_noisy"), NOISE if name.endswith("_noisy") else 0.0)
        return data, {phi: one_layer_candidates(phi, data) for phi in ACTIVATIONS}

    def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
        data, networks = prepared(settings["dataset"])
        options = {name: settings[name] for name in ("epochs", "seeds")}
        options["optimisers"] = {settings.get("method", "sgd"): settings["lr"]}
        return {
            phi: score(networks[phi], data, settings["width"], setup, **options).first
            for phi in settings["activations"]
        }

    def point(name: str, width: int, *, adam: bool = False) -> Point:
        settings: dict[str, Any] = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "tol": TOLERANCE,
            "noise": NOISE if name.endswith("_noisy") else 0.0,
            "seeds": list(range(seeds)),
            "lr": rate(name),
            "epochs": epochs,
        }
        if adam:
            settings |= {"method": "adam", "lr": 1e-3}
        return Point(f"{name}/{width}/adam" if adam else f"{name}/{width}", settings, lambda: measure(settings))

    plain = [point(name, width) for name in names for width in sizes]
    return plain + [point(n, w, adam=True) for n in names for w in sizes if w in ADAM_WIDTHS and not setup.quick]


def draw(document: Document) -> dict[str, Figure]:
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


STUDY = Study(
    shows="one layer: test accuracy against width, readouts trained",
    quick="30 s",
    full="15 min, H200",
    points=points,
    draw=draw,
)
