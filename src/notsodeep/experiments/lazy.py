"""Training from the zero function: initial outputs are subtracted, so that what is compared is what training does and
not the draw of the weights. A second DEQ with other weights shows what a finite width allows.

``one_layer_lazy``: a DEQ with all its weights trained beside one layer of which only the readout trains. The conjugate
kernel of the layer is the DEQ's tangent kernel, so in the limit of infinite width both learn the same function at the
same time. Gradient descent on half the mean of squares, the same learning rate, batches and order for all. On the
digits the limit itself is there: gradient descent with the DEQ's exact tangent kernel, and how far each network is
from it.

``uniform_training``: a ReLU DEQ and its NTK twin; all weights train, the twin with its learning-rate multipliers. In
the limit of infinite width both predictions are the same kernel's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .. import nn as finite
from ..datasets import Dataset, load
from ..kernels import ntk
from ..matching import Twin, match_one_layer, norm_range
from ..networks import DEQ
from ..nn.compare import share
from ..nn.model import Model, compute_features, in_batches, one_hot
from ..nn.train import descend, new_optimiser
from ..plots.figures.accuracy import draw_training
from ..plots.figures.twins import draw_one_layer_lazy
from .runner import HERE, Experiment, Point, Setup

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


class Learner:
    """A network minus its initial self, with an optimiser; where only the readout trains, its features are kept."""

    def __init__(self, model: Model, X: Tensor, targets: Tensor, X_test: Tensor, lr: float) -> None:
        frozen = model.kernel == "ck"
        self.forward: Callable[[Tensor], Tensor] = model.read if frozen else model
        self.X, self.X_test = (compute_features(model, rows) if frozen else rows for rows in (X, X_test))
        self.targets = targets + in_batches(self.forward, self.X)
        self.start = in_batches(self.forward, self.X_test)
        self.optimiser = new_optimiser("sgd", model.parameter_groups(lr), lr)

    def descend(self, batches: Sequence[Tensor]) -> None:
        """Steps on half the mean of squares."""
        descend(
            lambda rows: 0.5 * (self.forward(self.X[rows]) - self.targets[rows]).square().sum(-1).mean(),
            batches,
            [self.optimiser],
        )

    def outputs(self) -> Tensor:
        """What has been learned, on the test rows."""
        return in_batches(self.forward, self.X_test) - self.start


class Limit:
    """A DEQ of infinite width: the same gradient descent, in the functions that its tangent kernel spans."""

    def __init__(self, deq: DEQ, X: Tensor, targets: Tensor, X_test: Tensor, lr: float) -> None:
        self.kernel = ntk(deq, X.cpu(), torch.cat([X, X_test]).cpu()).to(X.device)
        self.values = X.new_zeros(len(X) + len(X_test), targets.shape[1])
        self.targets, self.lr = targets, lr

    def descend(self, batches: Sequence[Tensor]) -> None:
        """Steps on half the mean of squares."""
        for rows in batches:
            slope = (self.values[rows] - self.targets[rows]) / len(rows)
            self.values -= self.lr * self.kernel[rows].mT @ slope

    def outputs(self) -> Tensor:
        """What has been learned, on the test rows."""
        return self.values[len(self.targets) :].clone()


Learners = Mapping[str, Learner | Limit]


def _in_step(
    learners: Learners, n: int, batch_size: int, seed: int, epochs: Sequence[int], setup: Setup, looks: int = 1
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Everybody descends on the same batches in the same order; the number of steps, and what is known after them."""
    for epoch in epochs:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(1000 * seed + epoch))
        batches = order.to(setup.device).split(batch_size)
        length = -(-len(batches) // looks)
        for first in range(0, len(batches), length):
            part = batches[first : first + length]
            for learner in learners.values():
                learner.descend(part)
            yield len(part), {name: learner.outputs() for name, learner in learners.items()}
            setup.check_time()


def _compared(outputs: Tensor, labels: Tensor, reference: Tensor) -> dict[str, float]:
    """Accuracy on the test rows; the share of them on which the reference predicts the same class; the distance
    |f - reference| / |reference| of the outputs.
    """
    guesses = outputs.argmax(-1)
    return {
        "accuracy": share(guesses, labels),
        "agreement": share(guesses, reference.argmax(-1)),
        "distance": _distance(outputs, reference),
    }


def _distance(outputs: Tensor, reference: Tensor) -> float:
    return float((outputs - reference).norm() / reference.norm())


def _follow(run: LazyRun, twin: Twin, data: Dataset, seed: int, setup: Setup) -> dict[str, Any]:
    """The half mean square of the test rows, and all that is compared with the DEQ, over time: of the DEQ, one layer
    with Gaussian and with orthogonal weights, another DEQ; ``to_limit`` is the distance from infinite width.
    """
    X, y, X_test, y_test = data.tensors(setup.device)
    sizes = (X.shape[1], run.width, len(data.classes))
    models: dict[str, Model] = {
        "DEQ": finite.DEQ(twin.deq, *sizes, 3 * seed, solver=finite.SolverOptions(tol=1e-4), device=X.device),
        "one layer": finite.ENN(twin, *sizes, 3 * seed + 1, kernel="ck", device=X.device),
        "one layer, orthogonal": finite.ENN(
            twin, *sizes, 3 * seed + 1, init="orthogonal", kernel="ck", device=X.device
        ),
        "another DEQ": finite.DEQ(
            twin.deq, *sizes, 3 * seed + 2, solver=finite.SolverOptions(tol=1e-4), device=X.device
        ),
    }
    targets, held = (one_hot(labels, len(data.classes), X) for labels in (y, y_test))
    learners: dict[str, Learner | Limit] = {
        name: Learner(model, X, targets, X_test, run.lr) for name, model in models.items()
    }
    if run.limit:
        learners[LIMIT] = Limit(twin.deq, X, targets, X_test, run.lr)
    curves: dict[str, dict[str, list[float]]] = {name: {} for name in learners}
    steps: list[int] = []
    epochs = range(run.epochs)
    for taken, found in _in_step(learners, len(X), run.batch_size, seed, epochs, setup, run.rows_per_epoch):
        steps.append(taken + (steps[-1] if steps else 0))
        for name, outputs in found.items():
            now = {"loss": float(0.5 * (outputs - held).square().sum(-1).mean())}
            now |= _compared(outputs, y_test, found["DEQ"])
            now |= {"to_limit": _distance(outputs, found[LIMIT])} if run.limit else {}
            for quantity, value in now.items():
                curves[name].setdefault(quantity, []).append(float(f"{value:.6g}"))
    return {"seed": seed, "steps": steps, **curves}


def train_lazily(run: LazyRun, setup: Setup = HERE) -> dict[str, Any]:
    """The curves of every seed."""
    data = _rows(run, setup)
    deq = DEQ(run.activation, run.sigma_a2)
    norms = None if deq.homogeneous else norm_range(data.X_train)
    twin = match_one_layer(deq, "ntk", norms, run.tol, trains="readout")
    seeds = [_follow(run, twin, data, seed, setup) for seed in run.seeds]
    return {"bound": twin.bound, "kinds": twin.kinds, "seeds": seeds}


def _rows(run: LazyRun | Together, setup: Setup) -> Dataset:
    data = load(run.data, setup.data).standardised()
    return data if run.train is None else data.first(run.train)


def lazy_points(setup: Setup) -> list[Point]:
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


# ---- all weights of both ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Together:
    """What decides the numbers of a DEQ and its twin side by side."""

    data: str = "mnist"
    sigma_a2: float = 0.2
    layers: int = 2
    width: int = 2048
    epochs: int = 8
    lr: float = 0.5
    batch_size: int = 128
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    train: int | None = None
    """Training samples used; all unless given."""


def train_together(run: Together, setup: Setup = HERE) -> dict[str, Any]:
    """Every epoch of every seed, and the summary over seeds."""
    twin = match_one_layer(DEQ("relu", run.sigma_a2), "ntk")
    data = _rows(run, setup)
    rows = [row for seed in run.seeds for row in _side_by_side(run, twin, data, seed, setup)]
    last = [row for row in rows if row["epoch"] == run.epochs]
    summary = {
        "deq": sum(row["deq"] for row in last) / len(last),
        "twin": sum(row["twin"] for row in last) / len(last),
        "final_gap": abs(sum(row["deq"] - row["twin"] for row in last)) / len(last),
        "least_agreement": min(row["agreement"] for row in rows),
        "least_deq_agreement": min(row["deq_agreement"] for row in rows),
    }
    return {"twin": twin.to_dict(), "summary": summary, "rows": rows}


def _side_by_side(run: Together, twin: Twin, data: Dataset, seed: int, setup: Setup) -> Iterator[dict[str, Any]]:
    """DEQ, twin and a second DEQ on the same batches in the same order."""
    X, y, X_test, y_test = data.tensors(setup.device)
    sizes, device = (X.shape[1], run.width, int(y.max()) + 1), X.device
    models: dict[str, Model] = {
        "deq": finite.DEQ(twin.deq, *sizes, seed=3 * seed, device=device),
        "twin": finite.ENN(twin, *sizes, seed=3 * seed + 1, kernel="ntk", device=device),
        "other": finite.DEQ(twin.deq, *sizes, seed=3 * seed + 2, device=device),
    }
    learners = {name: Learner(model, X, one_hot(y, sizes[2], X), X_test, run.lr) for name, model in models.items()}
    epochs = range(1, run.epochs + 1)
    after = _in_step(learners, len(X), run.batch_size, seed, epochs, setup)
    for epoch, (_, outputs) in zip(epochs, after, strict=True):
        found = {name: _compared(values, y_test, outputs["deq"]) for name, values in outputs.items()}
        yield {
            "seed": seed,
            "epoch": epoch,
            "deq": found["deq"]["accuracy"],
            "twin": found["twin"]["accuracy"],
            "other_deq": found["other"]["accuracy"],
            "agreement": found["twin"]["agreement"],
            "deq_agreement": found["other"]["agreement"],
            "distance": found["twin"]["distance"],
            "deq_distance": found["other"]["distance"],
        }


def together_points(setup: Setup) -> list[Point]:
    """MNIST at width 2,048, or the digits."""
    run = Together(data="digits", width=128, epochs=3, seeds=(0,), train=600) if setup.quick else Together()
    return [Point(run.data, asdict(run), functools.partial(train_together, run, setup))]


EXPERIMENTS = (
    Experiment("one_layer_lazy", lazy_points, draw_one_layer_lazy),
    Experiment("uniform_training", together_points, draw_training),
)
