"""What can stand in for a *trained* DEQ: all its weights have travelled, and no kernel knows where.

A DEQ is trained with all its weights. Explicit networks of its width are held against it on the test rows: those of its
one-layer and two-layer twins, and plain ones with its own activation; each with a fresh readout on random features,
fitted to the DEQ's outputs (:func:`notsodeep.nn.distil`), or trained on the classes as the DEQ was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .. import nn as finite
from ..datasets import load
from ..matching import Twin, match_one_layer, norm_range
from ..matching.match import match
from ..networks import DEQ, ENN
from ..nn.compare import median_times, share
from ..nn.model import Model, in_batches
from ..plots.figures.accuracy import draw_distilled
from .runner import Experiment, Point, Setup


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


def _fresh_readout(model: Model, deq: Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    finite.fit_readout(model, (X, y), ridge=run.ridge)


def _distilled(model: Model, deq: Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    assert isinstance(model, finite.ENN)
    how = partial(finite.distil, epochs=run.epochs, lr=run.lr, batch_size=run.batch_size, seed=seed)
    how(deq, model, X, ridge=run.ridge, holdout=0.02)


def _from_scratch(model: Model, deq: Model, X: Tensor, y: Tensor, run: DistillingRun, seed: int) -> None:
    finite.fit(model, (X, y), optimiser="adam", lr=run.lr, epochs=run.epochs, batch_size=run.batch_size, seed=seed)


WAYS: dict[str, Callable[[Model, Model, Tensor, Tensor, DistillingRun, int], None]] = {
    "fresh readout": _fresh_readout,
    "distilled": _distilled,
    "from scratch": _from_scratch,
}


def students(run: DistillingRun, X: Tensor) -> dict[tuple[str, int], Twin | ENN]:
    """Twins of the DEQ before its training, and plain networks, of one and of two layers.

    Plain layers are a twin's only for homogeneous activations (theory, section 13); others have the one layer.
    """
    deq = DEQ(run.activation, run.sigma_a2)
    found: dict[tuple[str, int], Twin | ENN] = {("plain", depth): ENN([run.activation] * depth) for depth in (1, 2)}
    if deq.activation.homogeneity == 1.0:
        return {
            ("twin", 1): match_one_layer(deq, units="conditioned"),
            ("twin", 2): match(deq, 1.0),
            **found,
        }
    return {("twin", 1): match_one_layer(deq, norms=norm_range(X.cpu(), coverage=0.99)), **found}


def run_seed(
    run: DistillingRun, networks: Mapping[tuple[str, int], Twin | ENN], parts: Sequence[Tensor], seed: int, setup: Setup
) -> list[dict[str, Any]]:
    """The DEQ, then every student in every way; all of one seed draw from the same generator's seed."""
    X, y, Xt, yt = parts
    sizes = (X.shape[1], run.width, int(y.max()) + 1)
    deq = finite.DEQ(DEQ(run.activation, run.sigma_a2), *sizes, seed=2 * seed, bias=True, device=X.device)
    _from_scratch(deq, deq, X, y, run, seed)
    models: dict[tuple[str, int, str], Model] = {("deq", 1, "trained"): deq}
    for (start, depth), network in networks.items():
        for way, train in WAYS.items():
            setup.check_time()
            model = finite.ENN(network, *sizes, seed=2 * seed + 1, bias=True, device=X.device)
            train(model, deq, X, y, run, seed)
            models[start, depth, way] = model
    return _rows(models, deq.contraction(), Xt, yt, seed)


def _rows(
    models: Mapping[tuple[str, int, str], Model], contraction: float, X: Tensor, y: Tensor, seed: int
) -> list[dict[str, Any]]:
    """One row per network. ``start`` is ``"deq"``, or whose layers and weights it began with; ``agreement`` the share
    of test rows that it and the trained DEQ put into the same class; ``milliseconds`` are for one batch of 128 test
    rows, the median of calls in turns with all others; ``contraction`` is that of one step of the DEQ, at worst.
    """
    guesses = {key: in_batches(model, X).argmax(-1) for key, model in models.items()}
    with torch.no_grad():
        seconds = median_times({str(key): partial(m, X[:128]) for key, m in models.items()}, X.device)
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


def replace_trained(run: DistillingRun, setup: Setup) -> dict[str, Any]:
    """Every row, with the bounds of the twins."""
    parts = load(run.data, setup.data).standardised().tensors(setup.device)
    networks = students(run, parts[0])
    bounds = {f"{depth}": network.bound for (_, depth), network in networks.items() if isinstance(network, Twin)}
    rows = [row for seed in run.seeds for row in run_seed(run, networks, parts, seed, setup)]
    return {"bounds": bounds, "rows": rows}


def points(setup: Setup) -> list[Point]:
    """The digits; in full at a larger width, also with tanh, and MNIST and Fashion-MNIST."""
    digits = DistillingRun("digits", width=256, epochs=20, batch_size=128)
    full = [replace(digits, activation="tanh"), digits, DistillingRun(), DistillingRun("fashion_mnist")]
    sizes = [replace(digits, width=64, epochs=6)] if setup.quick else full
    return [Point(f"{r.data}/{r.activation}", asdict(r), partial(replace_trained, r, setup)) for r in sizes]


EXPERIMENTS = (Experiment("distil", points, draw_distilled),)
