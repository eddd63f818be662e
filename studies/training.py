"""All weights train: is one layer as accurate as the DEQ?

A ReLU DEQ, the one-layer twin of its NTK, the twin of its CK with the hidden weights set free, and a plain ReLU layer.
Each gets the better of its learning rates, by the accuracy on validation rows with the weights of the first seed; test
rows are looked at once. DEQ and twins have the parametrisation that the documentation advises for the optimiser; the
plain layer tries both.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import ConvergenceError, ConvergenceWarning

from ._data import load
from ._measure import in_batches, share, standard_error
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, by_setting, panels, shared_legend, word

DEQ, NTK_TWIN, CK_TWIN, PLAIN = NETWORKS = ("DEQ", "NTK twin", "CK twin", "plain layer")
RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("adam", "standard"): (3e-4, 1e-3, 3e-3),
    ("adam", "ntk"): (0.03, 0.1, 0.3),
    ("sgd", "ntk"): (30.0, 100.0, 300.0),
    ("sgd", "standard"): (0.1, 0.3, 1.0),
}
"""By optimiser and parametrisation; the first of an optimiser is the advised one."""
SIGMA_A2 = 0.2
CONTRACTION = 0.9
"""The DEQ's weights are kept below it, so that it has one equilibrium while it trains."""


def build(network: str, columns: int, width: int, parametrisation: Any, seed: int) -> nsd.nn.Model:
    """Return a network of ten outputs whose weights all train."""
    sizes, deq = (columns, width, 10, seed), nsd.DEQ("relu", SIGMA_A2)
    if network == DEQ:
        solver = nsd.nn.SolverOptions(tol=1e-4, max_steps=60)
        return nsd.nn.DEQ(deq, *sizes, parametrisation=parametrisation, solver=solver).limit_contraction(CONTRACTION)
    return nsd.nn.ENN(_layer(network), *sizes, kernel="ntk", parametrisation=parametrisation)


@functools.cache
def _layer(network: str) -> nsd.Twin | nsd.ENN:
    if network == PLAIN:
        return nsd.ENN(["relu"])
    return nsd.match_one_layer(nsd.DEQ("relu", SIGMA_A2), "ntk" if network == NTK_TWIN else "ck")


def candidates(network: str, optimiser: str) -> list[tuple[str, float]]:
    """Return parametrisations and learning rates that a network tries."""
    forms = [form for rule, form in RATES if rule == optimiser]
    return [(form, rate) for form in (forms if network == PLAIN else forms[:1]) for rate in RATES[optimiser, form]]


def prepared(
    dataset: str, train: int, validation: int, test: int, folder: Any = None
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return rows and classes for training, for the choice of rates, and for testing, scaled by the training rows."""
    data = load(dataset, folder)
    held = slice(train, train + validation)
    rows = nsd.standardise(data.X_train[:train], data.X_train[held], data.X_test[:test])
    classes = (data.y_train[:train], data.y_train[held], data.y_test[:test])
    pairs = [(torch.from_numpy(X), torch.from_numpy(y)) for X, y in zip(rows, classes, strict=True)]
    return pairs[0], pairs[1], pairs[2]


def measure(
    dataset: str,
    width: int,
    network: str,
    optimiser: str,
    train: int,
    validation: int,
    test: int,
    epochs: int,
    batch_size: int,
    seeds: list[int],
    folder: Any = None,
) -> dict[str, Any]:
    """Return accuracies on the test rows, one per seed, at the setting with the best validation accuracy."""
    data, held, fresh = prepared(dataset, train, validation, test, folder)
    right = lambda model, rows: share(in_batches(model, rows[0]).argmax(1), rows[1])  # noqa: E731
    seconds: list[float] = []

    def trained(form: str, rate: float, seed: int) -> tuple[nsd.nn.Model, float]:
        model, started = build(network, data[0].shape[1], width, form, seed), time.process_time()
        options: Any = {"epochs": epochs, "batch_size": batch_size, "seed": seed, "progress": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of a DEQ at a rate that is too large
            try:
                nsd.nn.fit(model, data, optimiser=optimiser, lr=rate, **options)
            except ConvergenceError:
                return model, 0.0  # which is not chosen
            seconds.append(time.process_time() - started)
            return model, right(model, held)

    tried = {setting: trained(*setting, seeds[0]) for setting in candidates(network, optimiser)}
    form, rate = max(tried, key=lambda setting: tried[setting][1])
    models = [tried[form, rate][0], *(trained(form, rate, seed)[0] for seed in seeds[1:])]
    steps = epochs * -(-train // batch_size)
    return {
        "validation": [[*setting, accuracy] for setting, (_, accuracy) in tried.items()],
        "parametrisation": form,
        "rate": rate,
        "training accuracy": [right(model, data) for model in models],
        "accuracy": [right(model, fresh) for model in models],
        "milliseconds of a step": 1e3 * float(np.median(seconds)) / steps,
    }


def points(setup: Setup) -> list[Point]:
    """Return a point for each data set, width, network and optimiser; fewer seeds for the wide networks."""
    names = ("digits",) if setup.quick else ("mnist", "fashion_mnist", "cifar10_vgg")
    widths, epochs = ((32,), 3) if setup.quick else ((256, 1024), 10)
    counts = (600, 300, 397) if setup.quick else (1000, 500, 2000)
    size = dict(zip(("train", "validation", "test"), counts, strict=True))
    return [
        Point.of(
            f"{name}/{width}/{network}/{optimiser}",
            {"dataset": name, "width": width, "network": network, "optimiser": optimiser, **size, "epochs": epochs,
             "batch_size": 64, "seeds": list(range(2 if setup.quick else 5 if width <= 256 else 3))},
            measure,
            folder=setup.data,
        )
        for width in widths
        for name in names
        for network in NETWORKS
        for optimiser in ("adam", "sgd")
    ]  # fmt: skip


def accuracies(document: Document) -> dict[tuple[str, str, int], dict[str, Mapping[str, Any]]]:
    """Return the numbers by data set, optimiser and width, and then by network."""
    found = by_setting(document["points"].values(), "dataset", "optimiser", "width")
    return {key: {point["settings"]["network"]: point["numbers"] for point in some} for key, some in found.items()}


def gap(numbers: Mapping[str, Mapping[str, Any]], network: str) -> tuple[float, float]:
    """Return by how many points of accuracy a network is ahead of the DEQ, with the standard error over seeds."""
    ahead = 100.0 * np.subtract(numbers[network]["accuracy"], numbers[DEQ]["accuracy"])
    return float(ahead.mean()), standard_error(ahead.tolist())


def draw(document: Document) -> dict[str, Figure]:
    """Draw accuracies minus the DEQ's, with standard errors; the title says how far the NTK twin is from it."""
    found = {key: row for key, row in accuracies(document).items() if DEQ in row}
    gaps = [gap(row, NTK_TWIN)[0] for row in found.values() if NTK_TWIN in row]
    says = f"All weights train: the NTK twin is {np.mean(gaps):+.1f} points from the DEQ in the mean" if gaps else ""
    optimisers = list(dict.fromkeys(rule for _, rule, _ in found))
    figure, axes = panels((9.6, 4.2), says, 1, len(optimisers), squeeze=False, sharey=True)
    looks = {NTK_TWIN: ("s", COLOURS["twin"]), CK_TWIN: ("D", "#8a63b8"), PLAIN: ("^", COLOURS["plain"])}
    for ax, rule in zip(axes[0], optimisers, strict=True):
        rows = [(f"{word(name)}\n{width:,}", row) for (name, own, width), row in found.items() if own == rule]
        for shift, (network, (marker, colour)) in zip((-0.15, 0.0, 0.15), looks.items(), strict=True):
            some = [(i + shift, *gap(row, network)) for i, (_, row) in enumerate(rows) if network in row]
            if some:
                places, means, errors = zip(*some, strict=True)
                ax.errorbar(places, means, errors, fmt=marker, color=colour, label=network, capsize=2)
        ax.axhline(0.0, color=COLOURS["DEQ"], label="DEQ")
        ax.set_xticks(range(len(rows)), [label for label, _ in rows], fontsize="small", rotation=30)
        ax.set_title(word(rule))
    axes[0][0].set_ylabel("test accuracy minus the DEQ's, points")
    shared_legend(figure, axes[0][0])
    return {"": figure}


STUDY = Study(
    shows="all weights train: DEQ, its twins and a plain layer, Adam and SGD, each at its best rate",
    quick="20 s",
    full="10 min of one core",
    points=points,
    draw=draw,
)
