"""A DEQ with all its weights trained beside one layer of which only the readout trains.

The conjugate kernel of the layer is the DEQ's tangent kernel, so in the limit of infinite width both learn the same
function at the same time. Gradient descent on half the mean of squares, the same learning rate, batches and order for
all. A second DEQ with other weights shows what a finite width allows. On the digits the limit itself is there: gradient
descent with the DEQ's exact tangent kernel, and how far each network is from it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd

from ._data import Dataset, load
from ._learners import Learner, Limit, in_step, one_hot
from ._measure import share
from ._runner import QUICK, Document, Point, Setup, Study
from ._style import LOOKS, against_width, by_setting, panels, shared_legend, word

LIMIT = "infinite width"


@dataclass(frozen=True)
class LazyRun:
    """What decides the numbers."""

    data: str = "mnist"
    activation: str = "tanh"
    sigma_a2: float = 0.2
    width: int = 2048
    epochs: int = 6
    rows_per_epoch: int = 2
    """How often the test rows are looked at."""
    lr: float = 4.0
    batch_size: int = 512
    seeds: tuple[int, ...] = (0, 1, 2)
    train: int | None = None
    """Training samples used; all unless given."""
    tol: float = 1e-3
    """Of the one-layer twin."""
    limit: bool = False
    """Whether infinite width is among the learners: the kernel of all rows must fit into memory."""


def _compared(outputs: Tensor, labels: Tensor, reference: Tensor) -> dict[str, float]:
    """Accuracy on the test rows; the share of them on which the reference predicts the same class; the distance
    |f - reference| / |reference| of the outputs."""
    guesses = outputs.argmax(-1)
    return {
        "accuracy": share(guesses, labels),
        "agreement": share(guesses, reference.argmax(-1)),
        "distance": _distance(outputs, reference),
    }


def _distance(outputs: Tensor, reference: Tensor) -> float:
    return float((outputs - reference).norm() / reference.norm())


def _follow(run: LazyRun, twin: nsd.Twin, data: Dataset, seed: int, setup: Setup) -> dict[str, Any]:
    """The half mean square of the test rows, and all that is compared with the DEQ, over time: of the DEQ, one layer
    with Gaussian and with orthogonal weights, another DEQ; ``to_limit`` is the distance from infinite width."""
    X, y, X_test, y_test = data.tensors(setup.device)
    sizes = (X.shape[1], run.width, len(data.classes))
    models: dict[str, nsd.nn.Model] = {
        "DEQ": nsd.nn.DEQ(twin.deq, *sizes, 3 * seed, solver=nsd.nn.SolverOptions(tol=1e-4), device=X.device),
        "one layer": nsd.nn.ENN(twin, *sizes, 3 * seed + 1, device=X.device),
        "one layer, orthogonal": nsd.nn.ENN(twin, *sizes, 3 * seed + 1, init="orthogonal", device=X.device),
        "another DEQ": nsd.nn.DEQ(
            twin.deq, *sizes, 3 * seed + 2, solver=nsd.nn.SolverOptions(tol=1e-4), device=X.device
        ),
    }
    targets, held = (one_hot(labels, len(data.classes), X) for labels in (y, y_test))
    learners: dict[str, Learner | Limit] = {
        name: Learner(model, X, targets, X_test, run.lr, readout="one layer" in name) for name, model in models.items()
    }
    if run.limit:
        learners[LIMIT] = Limit(twin.deq, X, targets, X_test, run.lr)
    curves: dict[str, dict[str, list[float]]] = {name: {} for name in learners}
    steps: list[int] = []
    for taken, found in in_step(learners, len(X), run.batch_size, seed, run.epochs, run.rows_per_epoch):
        steps.append(taken + (steps[-1] if steps else 0))
        for name, outputs in found.items():
            now = {"loss": float(0.5 * (outputs - held).square().sum(-1).mean())}
            now |= _compared(outputs, y_test, found["DEQ"])
            now |= {"to_limit": _distance(outputs, found[LIMIT])} if run.limit else {}
            for quantity, value in now.items():
                curves[name].setdefault(quantity, []).append(float(f"{value:.6g}"))
    return {"seed": seed, "steps": steps, **curves}


def train_lazily(run: LazyRun, setup: Setup = QUICK) -> dict[str, Any]:
    """The curves of every seed."""
    data = _rows(run, setup)
    deq = nsd.DEQ(run.activation, run.sigma_a2)
    norms = None if deq.homogeneous else nsd.matching.norm_range(data.X_train)
    twin = nsd.match_one_layer(deq, "ntk", norms, run.tol, trains="readout")
    seeds = [_follow(run, twin, data, seed, setup) for seed in run.seeds]
    return {"bound": twin.bound, "kinds": twin.kinds, "seeds": seeds}


def _rows(run: LazyRun, setup: Setup) -> Dataset:
    data = load(run.data, setup.data).standardised()
    return data if run.train is None else data.first(run.train)


def points(setup: Setup) -> list[Point]:
    """The digits beside infinite width; in full also MNIST at widths 2,048 and 8,192."""
    digits = LazyRun("digits", epochs=8, batch_size=64, train=1000, limit=True)
    if setup.quick:
        runs = [replace(digits, width=width, seeds=(0,)) for width in (128, 512)]
    else:
        runs = [
            LazyRun(activation=phi, width=width, seeds=seeds)
            for width, seeds in ((2048, (0, 1, 2)), (8192, (0,)))
            for phi in ("tanh", "relu")
        ]
        runs += [replace(digits, activation=phi, width=width) for phi in ("tanh", "relu") for width in (128, 512, 2048)]
    return [
        Point(
            f"{run.data}/{run.activation}/{run.width}",
            {name: value for name, value in asdict(run).items() if (name, value) != ("limit", False)},
            functools.partial(train_lazily, run, setup),
        )
        for run in runs
    ]


def draw(document: Document) -> dict[str, Figure]:
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


STUDY = Study(
    shows="one layer's readout trained beside a whole DEQ",
    quick="20 s",
    full="10 min, H200",
    points=points,
    draw=draw,
)
