"""Many linear readouts on frozen features, trained at once: one batched product per step for all networks that fit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from .. import nn
from ..datasets import Dataset
from ..errors import ConvergenceError, InvalidInputError
from ..networks import DEQ, ENN
from ..nn.model import Model

__all__ = ["Guesses", "Optimiser", "build", "guess", "train_readouts"]

_CPU_BYTES = 4 << 30  # of features held at once
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's usual ones


@dataclass(frozen=True)
class Optimiser:
    """Plain SGD or Adam, with a constant learning rate."""

    method: Literal["sgd", "adam"]
    lr: float

    def __post_init__(self) -> None:
        if self.method not in ("sgd", "adam") or not (math.isfinite(self.lr) and self.lr > 0):
            raise InvalidInputError(f"an optimiser is 'sgd' or 'adam' with a positive learning rate, got {self!r}")


def build(
    network: DEQ | ENN, data: Dataset, width: int, seed: int, *, init: str = "gaussian", device: str = "cpu"
) -> Model:
    """A network of random features for a data set, of which only the readout will train."""
    sizes = (data.p, width, len(data.classes))
    if isinstance(network, DEQ):
        return nn.DEQ(network, *sizes, seed, train="readout", on_failure="raise", device=device)
    return nn.ENN(network, *sizes, seed, init=init, train="readout", device=device)


@dataclass(frozen=True)
class Guesses:
    """Predicted classes of the test rows, (networks, optimisers, rows), and what they took."""

    classes: Tensor
    feature_seconds: list[float]
    """Per network, for the training rows."""
    readout_seconds: float


def guess(
    builders: Sequence[Callable[[], Model]],
    data: Dataset,
    optimisers: Sequence[Optimiser],
    seeds: Sequence[int],
    *,
    epochs: int = 100,
    batch_size: int = 128,
    device: str = "cpu",
    between_epochs: Callable[[], None] | None = None,
) -> Guesses:
    """Train a readout on the features of every network; as many networks at once as the memory holds."""
    X, test, y = (torch.from_numpy(part).to(device) for part in (data.X_train, data.X_test, data.y_train))
    found, clock, elapsed, done = [], [], 0.0, 0
    while done < len(builders):
        features, held, seconds = _features(builders[done:], X, test, between_epochs)
        clock += seconds
        started = time.perf_counter()
        weights = train_readouts(
            features,
            y,
            len(data.classes),
            optimisers,
            seeds[done : done + len(features)],
            epochs=epochs,
            batch_size=batch_size,
            between_epochs=between_epochs,
        )
        found += [(f @ w).argmax(-1) for f, w in zip(held, weights, strict=True)]
        elapsed += time.perf_counter() - started
        done += len(features)
        del features, held  # before the next ones are made
    return Guesses(torch.stack(found), clock, elapsed)


def _features(
    builders: Sequence[Callable[[], Model]], X: Tensor, test: Tensor, between: Callable[[], None] | None
) -> tuple[Tensor, Tensor, list[float]]:
    """Training and test features of the first networks, as many as fit, and the seconds for the training rows."""
    model = builders[0]()
    width = model.readout.shape[1]
    free = 0.6 * torch.cuda.mem_get_info(X.device)[0] if X.device.type == "cuda" else _CPU_BYTES
    count = min(len(builders), max(1, int(free / (X.element_size() * width * (len(X) + len(test))))))
    features, held = (X.new_empty(count, len(rows), width) for rows in (X, test))
    seconds = []
    for i in range(count):
        if between is not None:
            between()
        model = builders[i]() if i else model
        seconds.append(_fill(features[i], model, X))
        _fill(held[i], model, test)
    return features, held, seconds


def _fill(out: Tensor, model: Model, X: Tensor) -> float:
    """Features batch by batch into ``out``; returns the seconds."""
    size = 8192 if X.device.type == "cuda" else 1024
    _synchronise(X.device)
    started = time.perf_counter()
    with torch.no_grad():
        for target, rows in zip(out.split(size), X.split(size), strict=True):
            target.copy_(model.features(rows))
    _synchronise(X.device)
    return time.perf_counter() - started


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train_readouts(
    features: Tensor,
    y: Tensor,
    classes: int,
    optimisers: Sequence[Optimiser],
    seeds: Sequence[int],
    *,
    epochs: int = 100,
    batch_size: int = 128,
    between_epochs: Callable[[], None] | None = None,
) -> Tensor:
    """Readouts (networks, optimisers, width, classes) by cross-entropy from zero.

    Parameters
    ----------
    features : (networks, n, width), all on one device
    y : the n classes
    seeds : one per network, of the order in which it sees the samples; equal seeds see the same order

    All optimisers share each pass over the features.
    """
    networks, n, width = features.shape
    if len(seeds) != networks or y.shape != (n,):
        raise InvalidInputError(f"{networks} networks and {n} rows need as many seeds and labels")
    flat = features.reshape(networks * n, width)
    start = torch.arange(networks, device=features.device)[:, None] * n
    targets = torch.nn.functional.one_hot(y, classes).to(features.dtype)
    weights = features.new_zeros(networks, width, len(optimisers), classes)
    states = [_State(o, weights[:, :, i]) for i, o in enumerate(optimisers)]
    with torch.no_grad():
        for epoch in range(epochs):
            if between_epochs is not None:
                between_epochs()
            order = _orders(n, seeds, epoch).to(features.device)
            for rows in order.split(batch_size, dim=1):
                batch = flat.index_select(0, (rows + start).flatten()).view(networks, -1, width)
                gradient = _gradient(batch, weights, targets[rows])
                for i, state in enumerate(states):
                    state.step(gradient[:, :, i])
    if not bool(torch.isfinite(weights).all()):
        raise ConvergenceError(f"a readout diverged under {tuple(optimisers)}; lower the learning rate")
    return weights.movedim(2, 1)


def _gradient(batch: Tensor, weights: Tensor, targets: Tensor) -> Tensor:
    """Of the mean cross-entropy, in the shape of ``weights``."""
    size = batch.shape[1]
    outputs = torch.bmm(batch, weights.flatten(2)).unflatten(2, weights.shape[2:])
    excess = outputs.softmax(-1).sub_(targets[:, :, None]).div_(size)
    return torch.bmm(batch.mT, excess.flatten(2)).unflatten(2, weights.shape[2:])


class _State:
    """One optimiser and its view of the weights."""

    def __init__(self, optimiser: Optimiser, weights: Tensor) -> None:
        self.optimiser, self.weights, self.steps = optimiser, weights, 0
        adam = optimiser.method == "adam"
        self.first = torch.zeros_like(weights) if adam else None
        self.second = torch.zeros_like(weights) if adam else None

    def step(self, gradient: Tensor) -> None:
        self.steps += 1
        if self.first is None or self.second is None:
            self.weights.add_(gradient, alpha=-self.optimiser.lr)
            return
        self.first.lerp_(gradient, 1.0 - _BETA1)
        self.second.mul_(_BETA2).addcmul_(gradient, gradient, value=1.0 - _BETA2)
        scale = math.sqrt(1.0 - _BETA2**self.steps)
        size = self.second.sqrt().div_(scale).add_(_EPSILON)
        self.weights.addcdiv_(self.first, size, value=-self.optimiser.lr / (1.0 - _BETA1**self.steps))


def _orders(n: int, seeds: Sequence[int], epoch: int) -> Tensor:
    """The order of the samples for each seed, from (seed, epoch) alone: the same on every device."""
    drawn = {
        seed: torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))
        for seed in set(seeds)
    }
    return torch.stack([drawn[seed] for seed in seeds])
