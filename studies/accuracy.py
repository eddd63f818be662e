"""Test accuracy of DEQ, twin and plain network against width (preprint, Figure 3; slides, accuracy figures).

Random frozen features with linear readouts, by SGD (the papers) or Adam; theory section 10.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._measure import standard_error
from ._readouts import ACTIVATIONS, DATASETS, SIGMA_A2, Candidate, Load, loader, rate, score, twin_for
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, LOOKS, against_width, by_setting, shared_legend, word

Reported = Mapping[str, Mapping[str, Mapping[str, tuple[float, float]]]]
MODELS = ("DEQ", "twin", "plain")
PUBLISHED = (32, 4096)
"""The widths of the published accuracies."""
REPORTED: dict[str, dict[str, dict[str, tuple[float, float]]]] = {
    "mnist": {
        "tanh": {"twin": (0.761, 0.917), "DEQ": (0.758, 0.917), "plain": (0.775, 0.904)},
        "relu": {"twin": (0.650, 0.934), "DEQ": (0.714, 0.937), "plain": (0.576, 0.918)},
    },
    "fashion_mnist": {
        "tanh": {"twin": (0.758, 0.837), "DEQ": (0.742, 0.837), "plain": (0.762, 0.822)},
        "relu": {"twin": (0.697, 0.843), "DEQ": (0.734, 0.847), "plain": (0.658, 0.823)},
    },
    "cifar10_vgg": {
        "tanh": {"twin": (0.758, 0.846), "DEQ": (0.744, 0.846), "plain": (0.756, 0.846)},
        "relu": {"twin": (0.622, 0.835), "DEQ": (0.676, 0.839), "plain": (0.500, 0.761)},
    },
}
"""Read off the published figure (+-0.003), at both widths: data set, activation, network."""


def accuracies(
    load_data: Load,
    setup: Setup,
    dataset: str,
    width: int,
    activations: Sequence[str],
    sigma_a2: float,
    seeds: Sequence[int],
    optimisers: Mapping[str, float],
    epochs: int,
    batch_size: int,
) -> dict[str, Any]:
    """Test accuracies of every network, activation and optimiser, a list over seeds, with the wall times.

    ``agreement`` is the share of test rows that a network classifies as the DEQ of the same seed does.
    """
    found = score(
        {
            f"{phi}/{name}": Candidate(_network(phi, name), reference=f"{phi}/DEQ")
            for phi in activations
            for name in MODELS
        },
        load_data(dataset),
        width,
        setup,
        epochs=epochs,
        batch_size=batch_size,
        seeds=seeds,
        optimisers=optimisers,
    )
    table: dict[str, Any] = {}
    for phi in activations:
        table[phi] = {method: {name: found.shares[f"{phi}/{name}"][method] for name in MODELS} for method in optimisers}
        clock = {name: found.feature_seconds[f"{phi}/{name}"] for name in MODELS}
        table[phi]["feature_seconds"] = {name: [round(v, 5) for v in seconds] for name, seconds in clock.items()}
    return {"accuracies": table, "readout_seconds_of_all": round(found.readout_seconds, 3)}


def _network(phi: str, name: str) -> nsd.DEQ | nsd.ENN:
    twin = twin_for(phi)
    networks: dict[str, nsd.DEQ | nsd.ENN] = {"DEQ": twin.deq, "twin": twin.network, "plain": twin.plain}
    return networks[name]


def points(
    setup: Setup,
    datasets: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
) -> list[Point]:
    """One point per data set and width; beyond 512 on a GPU alone."""
    full = tuple(2**k for k in range(5, 14)) if setup.device.startswith("cuda") else (32, 128, 512)
    load_data = loader(setup)

    def point(name: str, width: int) -> Point:
        settings = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "seeds": list(range(seeds)),
            "optimisers": {"sgd": rate(name), "adam": 1e-3},
            "epochs": epochs or (30 if setup.quick else 100),
            "batch_size": 128,
        }
        return Point.of(f"{name}/{width}", settings, accuracies, load_data=load_data, setup=setup)

    names = datasets or (("digits",) if setup.quick else DATASETS)
    sizes = widths or ((32, 128, 512) if setup.quick else full)
    return [point(name, width) for name in names for width in sizes]


def accuracy_curves(document: Document, dataset: str, activation: str, method: str) -> dict[str, tuple[Any, Any, Any]]:
    """Network -> (widths, mean accuracy, standard error over seeds)."""
    found = {}
    rows = _by_width(document, dataset)
    widths = np.array([p["settings"]["width"] for p in rows])
    for name in MODELS:
        table = [p["numbers"]["accuracies"][activation][method][name]["accuracy"] for p in rows]
        found[name] = (widths, np.array([np.mean(v) for v in table]), np.array([standard_error(v) for v in table]))
    return found


def _by_width(document: Document, dataset: str) -> list[Document]:
    points = by_setting(document["points"].values(), "dataset")[dataset]
    return sorted(points, key=lambda point: point["settings"]["width"])


def draw(document: Document) -> dict[str, Figure]:
    """Per data set: accuracies by SGD and Adam, the gap to the DEQ, and the seconds for the features."""
    drawn = {}
    for name in by_setting(document["points"].values(), "dataset"):
        for method in ("sgd", "adam"):
            drawn[f"{name}_{method}"] = _accuracies(document, name, method)
        drawn[f"{name}_gap"] = _gaps(document, name)
        drawn[f"{name}_seconds"] = _seconds(document, name)
    return drawn


def _accuracies(document: Document, dataset: str, method: str) -> Figure:
    says = f"{word(dataset)}: test accuracy of DEQ, twin and plain network (readouts by {word(method)})"
    figure, axes = against_width(ACTIVATIONS, says)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        for name, (widths, mean, error) in accuracy_curves(document, dataset, activation, method).items():
            ax.errorbar(widths, 100 * mean, 100 * error, label=name, **LOOKS[name])
        for name, ends in REPORTED.get(dataset, {}).get(activation, {}).items() if method == "sgd" else ():
            values = [100 * v for v in ends]
            ax.plot(PUBLISHED, values, "x", color=COLOURS[name], ms=8, label=f"{name}, published")
    axes[0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0], ncols=6)
    return figure


def _gaps(document: Document, dataset: str) -> Figure:
    says = f"{word(dataset)}: how far twin and plain network are from the DEQ (SGD)"
    figure, axes = against_width(ACTIVATIONS, says)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        by_model = accuracy_curves(document, dataset, activation, "sgd")
        for name in ("twin", "plain"):
            widths, mean, _ = by_model[name]
            ax.plot(widths, 100 * (mean - by_model["DEQ"][1]), label=f"{name} minus DEQ", **LOOKS[name])
        ax.axhline(0.0, color="0.6", linewidth=0.8)
    axes[0].set_ylabel("percentage points")
    shared_legend(figure, axes[0])
    return figure


def _seconds(document: Document, dataset: str) -> Figure:
    figure, axes = against_width(ACTIVATIONS, f"{word(dataset)}: what the features of all training rows cost")
    points = _by_width(document, dataset)
    for ax, activation in zip(axes, ACTIVATIONS, strict=True):
        clock = [point["numbers"]["accuracies"][activation]["feature_seconds"] for point in points]
        for name in MODELS:
            best = [min(seconds[name]) for seconds in clock]
            ax.plot([point["settings"]["width"] for point in points], best, label=name, **LOOKS[name])
        ax.set_yscale("log")
    axes[0].set_ylabel("seconds")
    shared_legend(figure, axes[0])
    return figure


STUDY = Study(
    shows="test accuracy against width: DEQ, twin, plain (preprint, figure 3)",
    quick="20 s",
    full="10 min; all widths on a GPU",
    points=points,
    draw=draw,
)
