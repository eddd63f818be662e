"""Test accuracy against width: DEQ, twin and plain network (preprint, Figure 3; ICML slides, accuracy figures).

Random frozen features, a linear readout trained by SGD (the papers) or Adam; theory, section 10.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..datasets import Dataset, load
from ..matching import Twin, match
from ..networks import DEQ, ENN
from ..plots.figures import draw_accuracy
from ..plots.figures.accuracy import ACTIVATIONS, MODELS
from .readouts import Optimiser, build, guess
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "REPORTED", "accuracies", "points", "prepared", "twin_for"]

DATASETS = ("mnist", "fashion_mnist", "cifar10_vgg")
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WIDEST = 8192  # only on a GPU
SIGMA_A2 = 0.2
TRAIN_ROWS = 50_000
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
"""Read off the published figure (+-0.003), width 32 and 4,096: data set, activation, network."""


def accuracies(
    data: Dataset,
    width: int,
    *,
    activations: Sequence[str] = ACTIVATIONS,
    seeds: int = 3,
    optimisers: Sequence[Optimiser] = (Optimiser("sgd", 1.0), Optimiser("adam", 1e-3)),
    epochs: int = 100,
    batch_size: int = 128,
    device: str = "cpu",
    between_epochs: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Test accuracies of every network, activation and optimiser, a list over seeds, with the wall times.

    ``agreement`` is the share of test rows that a network classifies as the DEQ of the same seed does. Networks of one
    seed share their input weights and the order of the samples.
    """
    specs = [(a, name, seed) for a in activations for name in MODELS for seed in range(seeds)]
    found = guess(
        [functools.partial(build, _network(a, name), data, width, seed, device=device) for a, name, seed in specs],
        data,
        optimisers,
        [seed for _, _, seed in specs],
        epochs=epochs,
        batch_size=batch_size,
        device=device,
        between_epochs=between_epochs,
    )
    guesses, truth = found.classes, torch.from_numpy(data.y_test).to(device)
    clock: dict[tuple[str, str], list[float]] = {}
    for (a, name, _), seconds in zip(specs, found.feature_seconds, strict=True):
        clock.setdefault((a, name), []).append(round(seconds, 5))
    table: dict[str, Any] = {
        a: {
            o.method: {name: _scores(guesses, truth, specs, a, name, j) for name in MODELS}
            for j, o in enumerate(optimisers)
        }
        for a in activations
    }
    for a in activations:
        table[a]["feature_seconds"] = {name: clock[a, name] for name in MODELS}
    return {"accuracies": table, "readout_seconds_of_all": round(found.readout_seconds, 3)}


def _scores(
    guesses: Tensor, truth: Tensor, specs: Sequence[tuple[str, str, int]], activation: str, name: str, optimiser: int
) -> dict[str, list[float]]:
    mine = [i for i, (a, n, _) in enumerate(specs) if (a, n) == (activation, name)]
    deq = [i for i, (a, n, _) in enumerate(specs) if (a, n) == (activation, "DEQ")]
    right = (guesses[mine, optimiser] == truth).double().mean(-1)
    same = (guesses[mine, optimiser] == guesses[deq, optimiser]).double().mean(-1)
    return {"accuracy": [round(v, 6) for v in right.tolist()], "agreement": [round(v, 6) for v in same.tolist()]}


@functools.cache
def twin_for(activation: str) -> Twin:
    """The DEQ of the papers and its twin, for standardised data: tau0 = 1."""
    return match(DEQ(activation, SIGMA_A2), 1.0)


def _network(activation: str, name: str) -> DEQ | ENN:
    twin = twin_for(activation)
    networks: dict[str, DEQ | ENN] = {"DEQ": twin.deq, "twin": twin.network, "plain": twin.plain}
    return networks[name]


# ---- points --------------------------------------------------------------------------------------------------


def points(
    setup: Setup,
    datasets: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
) -> list[Point]:
    """One point per data set and width."""
    chosen = datasets or (("digits",) if setup.quick else DATASETS)
    sizes = widths or ((32, 128, 512) if setup.quick else _full_widths(setup))
    length = epochs or (30 if setup.quick else 100)
    load_once = functools.lru_cache(maxsize=1)(functools.partial(prepared, setup.data))

    def point(name: str, width: int) -> Point:
        settings = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "seeds": list(range(seeds)),
            "optimisers": {"sgd": 0.1 if name == "cifar10_vgg" else 1.0, "adam": 1e-3},
            "epochs": length,
            "batch_size": 128,
        }
        return Point(f"{name}/{width}", settings, lambda: _measure(load_once(name), settings, setup))

    return [point(name, width) for name in chosen for width in sizes]


def _full_widths(setup: Setup) -> tuple[int, ...]:
    return (*WIDTHS, WIDEST) if setup.device.startswith("cuda") else WIDTHS


def prepared(folder: Any, name: str) -> Dataset:
    """The papers' training rows, standardised, and the whole test set."""
    data = load(name, folder)
    return data.first(min(TRAIN_ROWS, len(data.X_train))).standardised()


def _measure(data: Dataset, settings: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    return accuracies(
        data,
        settings["width"],
        activations=settings["activations"],
        seeds=len(settings["seeds"]),
        optimisers=[Optimiser(method, lr) for method, lr in settings["optimisers"].items()],
        epochs=settings["epochs"],
        batch_size=settings["batch_size"],
        device=setup.device,
        between_epochs=setup.check_time,
    )


EXPERIMENT = Experiment(
    "accuracy",
    "Test accuracy of DEQ, twin and plain network",
    points,
    lambda document: draw_accuracy(document, REPORTED),
)
