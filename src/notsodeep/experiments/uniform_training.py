"""A ReLU DEQ and its NTK twin, trained side by side: ``python -m notsodeep.experiments.uniform_training OUT.json``.

All weights train, the twin with its learning-rate multipliers. Both start from the zero function (the initial outputs
are subtracted), so that what is compared is what training does and not the draw of the weights: in the limit of
infinite width both predictions are the same kernel's. Reported per epoch: test accuracy of both, and how often they
predict the same class, beside the agreement of two DEQs with different weights, which is the best that a finite width
allows.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import datasets
from .. import nn as finite
from .._files import write_text
from ..matching import Twin, match_uniform
from ..networks import DEQ
from ..nn.model import Model, in_batches
from ..nn.train import descend, new_optimiser


@dataclass(frozen=True)
class Setup:
    """What decides the numbers of a run."""

    data: str = "mnist"
    sigma_a2: float = 0.2
    layers: int = 2
    width: int = 2048
    epochs: int = 20
    lr: float = 0.5
    batch_size: int = 128
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    train: int | None = None
    """Training samples used; all unless given."""


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


class Centred(nn.Module):
    """A network minus its initial self."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.start = copy.deepcopy(model)
        for weight in self.start.parameters():
            weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            before = self.start(x)
        return self.model(x) - before


def half_square(net: Centred, X: Tensor, T: Tensor) -> Callable[[Tensor], Tensor]:
    """Rows -> half the mean of squares on them."""
    return lambda rows: 0.5 * (net(X[rows]) - T[rows]).square().sum(-1).mean()


def run_seed(setup: Setup, twin: Twin, parts: Sequence[Tensor], seed: int, report: Callable[[str], None]) -> list[Row]:
    """DEQ, twin and a second DEQ on the same batches in the same order."""
    X, y, Xt, yt = parts
    device, p, classes = X.device, X.shape[1], int(y.max()) + 1
    models: dict[str, Model] = {
        "deq": finite.DEQ(twin.deq, p, setup.width, classes, seed=3 * seed, device=device),
        "twin": finite.ENN(twin, p, setup.width, classes, seed=3 * seed + 1, device=device),
        "other": finite.DEQ(twin.deq, p, setup.width, classes, seed=3 * seed + 2, device=device),
    }
    nets = {name: Centred(model) for name, model in models.items()}
    optimisers = {
        name: new_optimiser("sgd", model.parameter_groups(setup.lr), setup.lr) for name, model in models.items()
    }
    targets = nn.functional.one_hot(y, classes).to(X.dtype) - 1.0 / classes
    rows = []
    for epoch in range(1, setup.epochs + 1):
        order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1000 * seed + epoch)).to(device)
        for name, net in nets.items():
            descend(half_square(net, X, targets), order.split(setup.batch_size), [optimisers[name]])
        f = {name: in_batches(net, Xt) for name, net in nets.items()}
        rows.append(_row(seed, epoch, f, yt))
        report(f"seed {seed} epoch {epoch}: {rows[-1]}")
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


def experiment(setup: Setup, device: str = "cpu", report: Callable[[str], None] = print) -> dict[str, Any]:
    """The document with every row and the summary over seeds."""
    twin = match_uniform(DEQ("relu", setup.sigma_a2), "ntk", layers=setup.layers)
    data = datasets.load(setup.data).standardised()
    data = data if setup.train is None else data.first(setup.train)
    arrays = (data.X_train, data.y_train, data.X_test, data.y_test)
    parts = [torch.from_numpy(a).to(device) for a in arrays]
    rows: list[Row] = []
    for seed in setup.seeds:
        rows += run_seed(setup, twin, parts, seed, report)
    last = [row for row in rows if row.epoch == setup.epochs]
    count = len(last)
    summary = {
        "deq": sum(r.deq for r in last) / count,
        "twin": sum(r.twin for r in last) / count,
        "final_gap": abs(sum(r.deq - r.twin for r in last)) / count,
        "least_agreement": min(r.agreement for r in rows),
        "least_deq_agreement": min(r.deq_agreement for r in rows),
    }
    command = "python -m notsodeep.experiments.uniform_training results/uniform/training.json"
    return {
        "command": command,
        "setup": asdict(setup),
        "twin": twin.to_dict(),
        "summary": summary,
        "rows": [asdict(row) for row in rows],
    }


def main() -> None:
    """Command line; every field of :class:`Setup` that matters for speed can be lowered for a trial run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--train", type=int, default=None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    setup = Setup(
        data=given.data,
        layers=given.layers,
        width=given.width,
        epochs=given.epochs,
        seeds=tuple(range(given.seeds)),
        train=given.train,
    )
    document = experiment(setup, given.device)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_text(given.out, json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
