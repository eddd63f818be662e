"""Test accuracy against width: DEQ, twin and plain network (preprint, Figure 3; ICML slides, accuracy figures).

Random frozen features, a linear readout trained by SGD (the papers) or Adam; theory, section 10. Run alone with

    python -m notsodeep.experiments.accuracy --full --device cuda --widths 32 256 4096 --time-limit 200
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import Dataset, load
from ..matching import Twin, match
from ..networks import DEQ, ENN
from .accuracy_figure import ACTIVATIONS, MODELS, curves, draw_accuracy, markdown_table
from .readouts import Optimiser, build, guess
from .runner import Document, Experiment, Point, Setup, run

__all__ = ["EXPERIMENT", "accuracies", "curves", "points", "prepared", "twin_for"]

DATASETS = ("mnist", "fashion_mnist", "cifar10_vgg")
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WIDEST = 8192  # only on a GPU
SIGMA_A2 = 0.2
TRAIN_ROWS = 50_000


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


EXPERIMENT = Experiment("accuracy", "Test accuracy of DEQ, twin and plain network", points, draw_accuracy)


# ---- command -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> Document:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m notsodeep.experiments.accuracy", description=__doc__)
    parser.add_argument("--full", action="store_true", help="the papers' sizes; without it a minute on a CPU")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", default=None, help="folder of the data sets (default: NOTSODEEP_DATA)")
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--widths", nargs="+", type=int)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=None)
    parser.add_argument("--folder", default="results/accuracy", help="where the numbers and the figure go")
    parser.add_argument("--time-limit", type=float, default=None, help="seconds; finished points are kept")
    given = parser.parse_args(arguments)
    deadline = None if given.time_limit is None else time.monotonic() + given.time_limit
    setup = Setup(not given.full, given.data, given.device, deadline)
    chosen = points(setup, given.datasets, given.widths, given.seeds, given.epochs)
    document = run(EXPERIMENT, setup, Path(given.folder), None, chosen)
    for point in chosen:
        stored = document["points"].get(point.key)
        print(f"{point.key}: {_summary(stored) if stored else 'not finished'}", flush=True)
    print(markdown_table(document))
    return document


def _summary(stored: Mapping[str, Any]) -> str:
    parts = [f"{stored['seconds']:.1f} s"]
    for activation, table in stored["numbers"]["accuracies"].items():
        means = [f"{name} {100 * float(np.mean(table['sgd'][name]['accuracy'])):.2f}" for name in MODELS]
        parts.append(f"{activation} (sgd): " + ", ".join(means))
    return "; ".join(parts)


if __name__ == "__main__":
    main()
