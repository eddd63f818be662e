"""A ReLU DEQ and its NTK twin, trained side by side.

All weights train, the twin with its learning-rate multipliers. Both start from the zero function (the initial outputs
are subtracted), so that what is compared is what training does and not the draw of the weights: in the limit of
infinite width both predictions are the same kernel's. Reported per epoch: test accuracy of both, and how often they
predict the same class, beside the agreement of two DEQs with different weights, which is the best that a finite width
allows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .. import datasets
from .. import nn as finite
from ..matching import Twin, match_uniform
from ..networks import DEQ
from ..nn.data import one_hot
from ..nn.model import Model
from ..plots.figures import draw_training
from .one_layer_lazy import Learner
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "Run", "train_together"]


@dataclass(frozen=True)
class Run:
    """What decides the numbers."""

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
    folder: str | Path | None = None
    """Where the data sets are."""


@dataclass(frozen=True)
class Row:
    """One epoch of one seed."""

    seed: int
    epoch: int
    deq: float
    twin: float
    other_deq: float
    agreement: float
    """Share of test points on which DEQ and twin predict the same class."""
    deq_agreement: float
    """The same for two DEQs with different weights."""
    distance: float
    """|f_deq - f_twin| / |f_deq| over the test outputs."""
    deq_distance: float


def run_seed(run: Run, twin: Twin, parts: Sequence[Tensor], seed: int, between: Callable[[], None]) -> list[Row]:
    """DEQ, twin and a second DEQ on the same batches in the same order."""
    X, y, Xt, yt = parts
    device, p, classes = X.device, X.shape[1], int(y.max()) + 1
    models: dict[str, Model] = {
        "deq": finite.DEQ(twin.implicit, p, run.width, classes, seed=3 * seed, device=device),
        "twin": finite.ENN(twin, p, run.width, classes, seed=3 * seed + 1, device=device),
        "other": finite.DEQ(twin.implicit, p, run.width, classes, seed=3 * seed + 2, device=device),
    }
    learners = {name: Learner(model, X, one_hot(y, classes, X), Xt, run.lr) for name, model in models.items()}
    rows = []
    for epoch in range(1, run.epochs + 1):
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1000 * seed + epoch)).to(device)
        for learner in learners.values():
            learner.descend(order.split(run.batch_size))
        rows.append(_row(seed, epoch, {name: learner.outputs() for name, learner in learners.items()}, yt))
        between()
    return rows


def _row(seed: int, epoch: int, f: dict[str, Tensor], y: Tensor) -> Row:
    guess = {name: values.argmax(-1) for name, values in f.items()}

    def share(a: Tensor, b: Tensor) -> float:
        return float((a == b).double().mean())

    size = f["deq"].norm()
    return Row(
        seed,
        epoch,
        share(guess["deq"], y),
        share(guess["twin"], y),
        share(guess["other"], y),
        share(guess["deq"], guess["twin"]),
        share(guess["deq"], guess["other"]),
        float((f["deq"] - f["twin"]).norm() / size),
        float((f["deq"] - f["other"]).norm() / size),
    )


def train_together(run: Run, device: str = "cpu", between: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Every row, and the summary over seeds; ``between`` is called after each epoch."""
    twin = match_uniform(DEQ("relu", run.sigma_a2), "ntk", layers=run.layers)
    data = datasets.load(run.data, run.folder).standardised()
    data = data if run.train is None else data.first(run.train)
    arrays = (data.X_train, data.y_train, data.X_test, data.y_test)
    parts = [torch.from_numpy(a).to(device) for a in arrays]
    rows = [row for seed in run.seeds for row in run_seed(run, twin, parts, seed, between)]
    return {"twin": twin.to_dict(), "summary": summary(rows, run.epochs), "rows": [asdict(row) for row in rows]}


def summary(rows: Sequence[Row], epochs: int) -> dict[str, float]:
    """Accuracies after the last epoch, and the least agreement on the way."""
    last = [row for row in rows if row.epoch == epochs]
    return {
        "deq": sum(r.deq for r in last) / len(last),
        "twin": sum(r.twin for r in last) / len(last),
        "final_gap": abs(sum(r.deq - r.twin for r in last)) / len(last),
        "least_agreement": min(r.agreement for r in rows),
        "least_deq_agreement": min(r.deq_agreement for r in rows),
    }


def points(setup: Setup) -> list[Point]:
    """MNIST at width 2,048, or the digits."""
    size = Run(data="digits", width=128, epochs=3, seeds=(0,), train=600) if setup.quick else Run()
    settings = {name: value for name, value in asdict(size).items() if name != "folder"}
    chosen = replace(size, folder=setup.data)
    return [Point(size.data, settings, lambda: train_together(chosen, setup.device, setup.check_time))]


EXPERIMENT = Experiment("uniform_training", "A ReLU DEQ and its twin, all weights trained", points, draw_training)
