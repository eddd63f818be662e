"""What can stand in for a *trained* DEQ: all its weights have travelled, and no kernel knows where.

A DEQ is trained with all its weights. Explicit networks of its width are held against it on the test rows: its one-
layer twin, and plain ones with its own activation; each with a fresh readout on random features, fitted to the DEQ's
outputs, or trained on the classes as the DEQ was.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd

from ._data import load
from ._learners import in_batches
from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, panels, phrase, shared_legend


@dataclass(frozen=True)
class DistillingRun:
    """What decides the numbers."""

    data: str = "mnist"
    activation: str = "relu"
    sigma_a2: float = 0.2
    width: int = 512
    epochs: int = 8
    lr: float = 0.01
    batch_size: int = 512
    ridge: float = 1e-4
    seeds: tuple[int, ...] = (0, 1, 2)


def _fresh_readout(model: nsd.nn.Model, deq: nsd.nn.Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    nsd.nn.fit_readout(model, (X, y), ridge=run.ridge)


def _distilled(model: nsd.nn.Model, deq: nsd.nn.Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    outputs = in_batches(deq, X)
    nsd.nn.fit_readout(model, (X, outputs), ridge=run.ridge)
    _from_scratch(model, deq, X, outputs, run, seed)


def _from_scratch(model: nsd.nn.Model, deq: nsd.nn.Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    nsd.nn.fit(model, (X, y), optimiser="adam", lr=run.lr, epochs=run.epochs, batch_size=run.batch_size, seed=seed)


WAYS: dict[str, Callable[[nsd.nn.Model, nsd.nn.Model, Tensor, Tensor, DistillingRun, int], None]] = {
    "fresh readout": _fresh_readout,
    "distilled": _distilled,
    "from scratch": _from_scratch,
}


def students(run: DistillingRun, X: Tensor) -> dict[tuple[str, int], nsd.Twin | nsd.ENN]:
    """Return the one-layer twin of the DEQ before its training, and plain networks of one and of two layers."""
    deq = nsd.DEQ(run.activation, run.sigma_a2)
    norms = None if deq.homogeneous else nsd.matching.norm_range(X.cpu(), coverage=0.99)
    twin = nsd.match_one_layer(deq, norms=norms, units="conditioned" if deq.homogeneous else "auto")
    return {("twin", 1): twin, **{("plain", depth): nsd.ENN([run.activation] * depth) for depth in (1, 2)}}


def run_seed(
    run: DistillingRun, networks: Mapping[tuple[str, int], nsd.Twin | nsd.ENN], parts: Sequence[Tensor], seed: int
) -> list[dict[str, Any]]:
    """The DEQ, then every student in every way; all of one seed draw from the same generator's seed."""
    X, y, Xt, yt = parts
    sizes = (X.shape[1], run.width, int(y.max()) + 1)
    deq = nsd.nn.DEQ(nsd.DEQ(run.activation, run.sigma_a2), *sizes, seed=2 * seed, bias=True, device=X.device)
    _from_scratch(deq, deq, X, y, run, seed)
    models: dict[tuple[str, int, str], nsd.nn.Model] = {("deq", 1, "trained"): deq}
    for (start, depth), network in networks.items():
        for way, train in WAYS.items():
            model = nsd.nn.ENN(network, *sizes, seed=2 * seed + 1, kernel="ntk", bias=True, device=X.device)
            train(model, deq, X, y, run, seed)
            models[start, depth, way] = model
    return _rows(models, deq.contraction(), Xt, yt, seed)


def _rows(
    models: Mapping[tuple[str, int, str], nsd.nn.Model], contraction: float, X: Tensor, y: Tensor, seed: int
) -> list[dict[str, Any]]:
    """One row per network. ``start`` is ``"deq"``, or whose layers and weights it began with; ``agreement`` the share
    of test rows that it and the trained DEQ put into the same class; ``milliseconds`` are for one batch of 128 test
    rows, the median of calls in turns with all others; ``contraction`` is that of one step of the DEQ, at worst."""
    guesses = {key: in_batches(model, X).argmax(-1) for key, model in models.items()}
    with torch.no_grad():
        seconds = median_seconds({str(key): partial(m, X[:128]) for key, m in models.items()}, X.device)
    first = next(iter(guesses.values()))
    return [
        {
            "seed": seed,
            **dict(zip(("start", "depth", "way"), key, strict=True)),
            "accuracy": share(guess, y),
            "agreement": share(guess, first),
            "milliseconds": 1e3 * seconds[str(key)],
            "contraction": contraction if key[0] == "deq" else None,
        }
        for key, guess in guesses.items()
    ]


def median_seconds(calls: Mapping[str, Callable[[], Any]], device: torch.device, repeats: int = 9) -> dict[str, float]:
    """Return the median time of each call, in turns: whatever else the machine does meets all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first warms up


def replace_trained(run: DistillingRun, setup: Setup) -> dict[str, Any]:
    """Every row, with the bounds of the twins."""
    parts = load(run.data, setup.data).standardised().tensors(setup.device)
    networks = students(run, parts[0])
    bounds = {f"{depth}": network.bound for (_, depth), network in networks.items() if isinstance(network, nsd.Twin)}
    rows = [row for seed in run.seeds for row in run_seed(run, networks, parts, seed)]
    return {"bounds": bounds, "rows": rows}


def points(setup: Setup) -> list[Point]:
    """The digits; in full at a larger width, also with tanh, and MNIST and Fashion-MNIST."""
    digits = DistillingRun("digits", width=256, epochs=20, batch_size=128)
    full = [replace(digits, activation="tanh"), digits, DistillingRun(), DistillingRun("fashion_mnist")]
    sizes = [replace(digits, width=64, epochs=6)] if setup.quick else full
    return [Point(f"{r.data}/{r.activation}", asdict(r), partial(replace_trained, r, setup)) for r in sizes]


LAYERS = {1: "one layer", 2: "two layers"}
_WAYS = ("fresh readout", "distilled", "from scratch")


def draw(document: Document) -> dict[str, Figure]:
    """Per data set: accuracies beside the DEQ's, agreements with it."""
    return {
        name.replace("/", "_"): _students(phrase(name), point["numbers"]["rows"])
        for name, point in document["points"].items()
    }


def _students(title: str, rows: Sequence[Document]) -> Figure:
    figure, (left, right) = panels((9.0, 4.6), f"{title}: students of a trained DEQ", 1, 2, sharey=True)
    _bars(left, rows, "accuracy")
    trained = student_mean(rows, ("deq", 1, "trained"), "accuracy")[0]
    left.axvline(100 * trained, color=COLOURS["DEQ"], label="the trained DEQ")
    _bars(right, rows, "agreement")
    left.set(xlabel="test accuracy, %")
    right.set(xlabel="test rows classified as the DEQ does, %")
    shared_legend(figure, left)
    return figure


def _bars(ax: Axes, rows: Sequence[Document], quantity: str) -> None:
    places = [(way, depth) for way in _WAYS for depth in LAYERS]
    known = {(row["start"], row["depth"], row["way"]) for row in rows}
    for shift, start in ((-0.18, "twin"), (0.18, "plain")):
        there = [(i, (start, depth, way)) for i, (way, depth) in enumerate(places) if (start, depth, way) in known]
        means, errors = 100 * np.array([student_mean(rows, case, quantity) for _, case in there]).T
        label = "begun as the twin" if start == "twin" else "begun plain"
        ax.errorbar(means, [i + shift for i, _ in there], xerr=errors, fmt="o", color=COLOURS[start], label=label)
    ax.set_yticks(range(len(places)), [f"{way}, {LAYERS[depth]}" for way, depth in places])
    if not ax.yaxis_inverted():
        ax.invert_yaxis()


def student_mean(rows: Sequence[Document], case: tuple[str, int, str], quantity: str) -> tuple[float, float]:
    """Mean and standard deviation over the seeds, of a student by its start, depth and way."""
    values = [row[quantity] for row in rows if (row["start"], row["depth"], row["way"]) == case]
    return float(np.mean(values)), float(np.std(values))


STUDY = Study(
    shows="what can stand in for a trained DEQ",
    quick="10 s",
    full="4 min, H200",
    points=points,
    draw=draw,
)
