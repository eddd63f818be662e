"""How deep is the papers' plain network? Accuracy of plain tanh networks of one to three layers beside DEQ and twin.

The papers show a plain tanh network 1.3 to 1.5 points below the DEQ at width 4,096. The kernel of one tanh layer is
within 6 % of the DEQ's and a little larger, so no such gap is to be expected from it. Each further layer shrinks the
kernel, and SGD with the same learning rate gets less far.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from matplotlib.figure import Figure

from .. import nn
from ..datasets import load
from ..matching import match
from ..networks import DEQ, ENN
from ..nn.base import Model
from ..nn.ridge import compute_features
from .accuracy_figure import REPORTED
from .readouts import Optimiser, train_readouts
from .runner import Document, Experiment, Point, Setup

__all__ = ["EXPERIMENT", "accuracy_by_depth"]

NETWORKS = ("DEQ", "twin", "tanh x 1", "tanh x 2", "tanh x 3")


def accuracy_by_depth(dataset: str, width: int, epochs: int, seed: int = 0, folder: Any = None) -> dict[str, float]:
    """Network -> test accuracy; readouts trained by SGD with learning rate 1, batch 128, as in the papers."""
    data = load(dataset, folder)
    data = data.first(min(50_000, len(data.X_train))).standardised()
    X, test = torch.from_numpy(data.X_train), torch.from_numpy(data.X_test)
    y, truth = torch.from_numpy(data.y_train), torch.from_numpy(data.y_test)
    classes = len(data.classes)
    models = [_build(name, data.p, width, classes, seed) for name in NETWORKS]
    features = torch.stack([compute_features(model, X) for model in models])
    weights = train_readouts(features, y, classes, [Optimiser("sgd", 1.0)], [seed] * len(models), epochs=epochs)
    guesses = [(compute_features(m, test) @ w[0]).argmax(1) for m, w in zip(models, weights, strict=True)]
    return {name: float((g == truth).double().mean()) for name, g in zip(NETWORKS, guesses, strict=True)}


def _build(name: str, p: int, width: int, classes: int, seed: int) -> Model:
    if name == "DEQ":
        return nn.DEQ(DEQ("tanh", 0.2), p, width, classes, seed, train="readout")
    layers = match(DEQ("tanh", 0.2), 1.0).network if name == "twin" else ENN(["tanh"] * int(name[-1]))
    return nn.ENN(layers, p, width, classes, seed, train="readout")


def points(setup: Setup) -> list[Point]:
    """One point per data set."""
    names = ("digits",) if setup.quick else ("mnist", "fashion_mnist")
    width, epochs = (256, 20) if setup.quick else (512, 100)

    def point(name: str) -> Point:
        settings = {"dataset": name, "width": width, "epochs": epochs, "seed": 0}
        return Point(name, settings, lambda: _measure(settings, setup))

    return [point(name) for name in names]


def _measure(settings: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    return accuracy_by_depth(**settings, folder=setup.data)


def draw_depths(document: Document) -> Figure:
    """Bars of accuracy; dotted: what the papers report for the plain tanh network at width 4,096."""
    stored = document["points"]
    figure = Figure(figsize=(5.2 * len(stored), 3.6), layout="constrained")
    for ax, (name, point) in zip(figure.subplots(1, len(stored), squeeze=False)[0], stored.items(), strict=True):
        heights = [100 * v for v in point["numbers"].values()]
        bars = ax.bar(list(point["numbers"]), heights, color=["#1d3557", "#b3262e", "#4b8f4b", "#4b8f4b", "#4b8f4b"])
        ax.bar_label(bars, fmt="%.1f")
        ax.set_ylim(min(heights) - 3.0, max(heights) + 1.5)
        if name in REPORTED:
            ax.axhline(100 * REPORTED[name]["tanh"]["plain"][1], color="0.3", linestyle=":")
        ax.set_title(f"{name}, width {point['settings']['width']}", fontsize="medium")
        ax.set_ylabel("test accuracy, %")
    return figure


EXPERIMENT = Experiment("plain_depth", "Plain tanh networks of one to three layers", points, draw_depths)
