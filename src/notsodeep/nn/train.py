"""A small, honest training loop.

>>> import notsodeep as nsd, torch
>>> X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
>>> model = nsd.nn.ENN(nsd.ENN(["relu"]), in_features=5, width=64, out_features=2, train="readout")
>>> history = nsd.nn.fit(model, (X, (X[:, 0] > 0).long()), epochs=5, lr=1.0)
>>> len(history), history.last.accuracy > 0.7
(5, True)
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from .._arguments import checked, not_negative, whole
from .._arrays import as_device
from .._progress import track
from .._words import Method
from ..errors import CheckpointError, ConvergenceError, InvalidInputError
from .checkpoint import WEIGHTS, Checkpoints, fingerprint
from .model import Model, as_pair, check_classes, compute_features, evaluating, one_hot, set_readout

Schedule = Literal["constant", "cosine", "linear"]
Loss = Literal["cross_entropy", "squared"]
Forward = Callable[[Tensor], Tensor]

_RATES = {"sgd": 1.0, "adam": 0.01}


@dataclass(frozen=True)
class Epoch:
    """One pass over the data. Loss and accuracy are means over the epoch's batches, as they were seen."""

    epoch: int
    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    learning_rate: float
    seconds: float


@dataclass(frozen=True)
class History:
    """Every epoch of a run, and the time the frozen features took, which is spent once."""

    method: str
    epochs: tuple[Epoch, ...]
    feature_seconds: float = 0.0

    @property
    def last(self) -> Epoch:
        """The last epoch."""
        return self.epochs[-1]

    @property
    def seconds(self) -> float:
        """The time of the whole run."""
        return self.feature_seconds + sum(epoch.seconds for epoch in self.epochs)

    def column(self, name: str) -> list[Any]:
        """One quantity over the epochs, for example ``"loss"``."""
        return [getattr(epoch, name) for epoch in self.epochs]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        end = self.last
        seen = "" if end.accuracy is None else f", accuracy {end.accuracy:.4f}"
        held = "" if end.validation_accuracy is None else f", validation accuracy {end.validation_accuracy:.4f}"
        return f"History({self.method}, {len(self)} epochs, loss {end.loss:.4g}{seen}{held}, {self.seconds:.2f} s)"


@dataclass(frozen=True)
class _Run:
    """What decides the numbers of a run; two runs that agree here are one run."""

    method: str
    lr: float
    momentum: float
    weight_decay: float
    schedule: str
    batch_size: int
    seed: int
    loss: str

    def __post_init__(self) -> None:
        for name in ("lr", "momentum", "weight_decay"):
            not_negative(name, getattr(self, name))
        whole("batch_size", self.batch_size)


@checked
def fit(
    model: nn.Module,
    data: Any,
    *,
    validation: Any = None,
    method: Method = "sgd",
    lr: float | None = None,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: Schedule = "constant",
    batch_size: int = 128,
    epochs: int = 10,
    loss: Loss | None = None,
    ridge: float = 1e-3,
    seed: int = 0,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    checkpoint: str | Path | None = None,
    resume: bool = True,
) -> History:
    """Train ``model`` in place and return the history.

    Parameters
    ----------
    model : an nn.DEQ or nn.ENN (what trains is the model's own choice), or any module from inputs to outputs
    data, validation : pairs (X, y) of arrays or datasets; integer y are classes
    method : ``"sgd"``, ``"adam"``, or ``"ridge"`` (the readout in closed form, penalty ``ridge`` n |R|^2)
    lr : the learning rate; by default 1 for ``"sgd"`` and 0.01 for ``"adam"``, which suit weights of unit variance
    schedule : of the learning rate over the epochs
    loss : ``"cross_entropy"`` for classes and ``"squared"`` for other targets unless given
    seed : of the order of the samples, and of torch's generator during the run
    progress : a progress bar; by default where the output is a terminal
    checkpoint : a folder; the state is saved there after each epoch, and ``resume`` continues from it, bit for bit
        on the CPU. It is one run's own: other data, settings or initial weights are refused, a second fit at the same
        time too

    A readout trained on frozen features sees each sample's features computed once, not once per epoch.
    """
    whole("epochs", epochs)
    like = _like(model)
    if device is not None:
        like = _like(model.to(as_device(device)))
    X, y = as_pair(data, like)
    held = None if validation is None else as_pair(validation, like)
    chosen: str = loss or ("squared" if y.is_floating_point() else "cross_entropy")
    if isinstance(model, Model):
        check_classes(y, model.out_features)
    rate = _RATES.get(method, 0.0) if lr is None else lr
    run = _Run(method, rate, momentum, weight_decay, schedule, batch_size, seed, chosen)
    if method == "ridge":
        return _fit_ridge(model, X, y, held, ridge, batch_size)
    checkpoints = _checkpoints(checkpoint, run, model, epochs, (X, y), held)
    mode = model.training
    with contextlib.nullcontext() if checkpoints is None else checkpoints.locked():
        forward, X, held, seconds = _freeze(model, X, held)
        trainer = _Trainer(model, forward, run, epochs, checkpoints)
        try:
            rows = trainer.train(X, y, held, resume, progress)
        finally:
            model.train(mode)
    return History(method, tuple(rows), seconds)


@checked
def evaluate(model: nn.Module, data: Any, batch_size: int = 1024) -> tuple[float, float | None]:
    """(loss, accuracy) of a model on a pair (X, y); the accuracy is None for targets that are no classes."""
    X, y = as_pair(data, _like(model))
    with evaluating(model):
        return _evaluate(model, X, y, "squared" if y.is_floating_point() else "cross_entropy", batch_size)


# -- the loop --------------------------------------------------------------------------------------------
def descend(
    loss: Callable[[Tensor], Tensor], batches: Iterable[Tensor], optimisers: Sequence[torch.optim.Optimizer]
) -> None:
    """One gradient step of every optimiser for each batch of row numbers."""
    for batch in batches:
        value = loss(batch)
        for optimiser in optimisers:
            optimiser.zero_grad(set_to_none=True)
        value.backward()
        for optimiser in optimisers:
            optimiser.step()


class _Trainer:
    def __init__(
        self, model: nn.Module, forward: Forward, run: _Run, epochs: int, checkpoints: Checkpoints | None
    ) -> None:
        self.model, self.forward, self.run, self.epochs = model, forward, run, epochs
        self.checkpoints = checkpoints
        self.optimiser = _optimiser(model, run)
        self.base_rates = [group["lr"] for group in self.optimiser.param_groups]

    def train(self, X: Tensor, y: Tensor, held: Any, resume: bool, progress: bool | None) -> list[Epoch]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.run.seed)
            done, rows = self._restore(resume)
            epochs = range(done, self.epochs)

            def told() -> str:
                return f"loss {rows[-1].loss:.4f}" if rows else "training"

            for epoch in track(epochs, len(epochs), told, progress):
                rows.append(self._epoch(epoch, X, y, held))
                if self.checkpoints is not None:
                    self.checkpoints.save(epoch + 1, self.model, self.optimiser, [asdict(row) for row in rows])
        return rows[: self.epochs]

    def _restore(self, resume: bool) -> tuple[int, list[Epoch]]:
        if self.checkpoints is None:
            return 0, []
        if not resume:
            self.checkpoints.clear()
            return 0, []
        done, history = self.checkpoints.restore(self.model, self.optimiser)
        if done > self.epochs:
            raise CheckpointError(
                f"{self.checkpoints.folder} already holds {done} epochs of this run, more than the {self.epochs} asked "
                "for; ask for at least as many, or pass resume=False to start over"
            )
        return done, [Epoch(**row) for row in history]

    def _epoch(self, epoch: int, X: Tensor, y: Tensor, held: Any) -> Epoch:
        started = time.perf_counter()
        factor = _factor(self.run.schedule, epoch, self.epochs)
        for group, rate in zip(self.optimiser.param_groups, self.base_rates, strict=True):
            group["lr"] = rate * factor
        self.model.train()
        order = sample_order(len(X), self.run.seed, epoch).to(X.device)
        total, right = X.new_zeros(()), X.new_zeros(())

        def loss(batch: Tensor) -> Tensor:
            outputs = self.forward(X[batch])
            value = _loss(outputs, y[batch], self.run.loss)
            total.add_(value.detach() * len(batch))
            right.add_(_hits(outputs.detach(), y[batch]))
            return value

        descend(loss, order.split(self.run.batch_size), [self.optimiser])
        mean = float(total) / len(X)
        if not math.isfinite(mean):
            raise ConvergenceError(
                f"training diverged: the loss is {mean} in epoch {epoch + 1}; lower the learning rate "
                f"({self.run.lr * factor:.3g})"
            )
        self.model.eval()
        held_loss, held_accuracy = _held(self.forward, held, self.run.loss)
        if held_loss is not None and not math.isfinite(held_loss):
            raise ConvergenceError(f"training diverged: the validation loss is {held_loss} in epoch {epoch + 1}")
        accuracy = None if y.is_floating_point() else float(right) / len(X)
        seconds = time.perf_counter() - started
        return Epoch(epoch + 1, mean, accuracy, held_loss, held_accuracy, self.run.lr * factor, seconds)


def _optimiser(model: nn.Module, run: _Run) -> torch.optim.Optimizer:
    if isinstance(model, Model):
        groups: Any = model.parameter_groups(run.lr)
    else:
        groups = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": run.lr}]
    if not any(group["params"] for group in groups):
        raise InvalidInputError("nothing to train: no parameter of this model requires a gradient")
    return new_optimiser(run.method, groups, run.lr, run.momentum, run.weight_decay)


def new_optimiser(
    method: str, parameters: Any, lr: float, momentum: float = 0.0, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """SGD, or Adam, which has no use for the momentum."""
    if method == "adam":
        return torch.optim.Adam(parameters, lr=lr, weight_decay=weight_decay)
    return torch.optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)


def _factor(schedule: str, epoch: int, epochs: int) -> float:
    """The learning rate of an epoch relative to the first: a function, so that there is no state to save."""
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * epoch / epochs))
    return 1.0 - epoch / epochs if schedule == "linear" else 1.0


def sample_order(n: int, seed: int, epoch: int) -> Tensor:
    """The order of the samples in an epoch, from (seed, epoch) alone."""
    mixed = (int(seed) * 1_000_003 + epoch) % 2**63
    return torch.randperm(n, generator=torch.Generator().manual_seed(mixed))


def _loss(outputs: Tensor, y: Tensor, kind: str) -> Tensor:
    if kind == "cross_entropy":
        if y.is_floating_point():
            raise InvalidInputError("cross_entropy needs integer classes; use loss='squared' for real targets")
        return nn.functional.cross_entropy(outputs, y)
    return 0.5 * (outputs - one_hot(y, outputs.shape[-1], outputs)).square().sum(-1).mean()


def _hits(outputs: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return outputs.new_zeros(())
    return (outputs.argmax(-1) == y).sum().to(outputs.dtype)


def _evaluate(forward: Forward, X: Tensor, y: Tensor, kind: str, batch_size: int = 1024) -> tuple[float, float | None]:
    total, right = 0.0, 0.0
    whole("batch_size", batch_size)
    with torch.no_grad():
        for inputs, targets in zip(X.split(batch_size), y.split(batch_size), strict=True):
            outputs = forward(inputs)
            total += float(_loss(outputs, targets, kind)) * len(inputs)
            right += float(_hits(outputs, targets))
    return total / len(X), None if y.is_floating_point() else right / len(X)


def _held(forward: Forward, held: Any, kind: str) -> tuple[float | None, float | None]:
    return (None, None) if held is None else _evaluate(forward, held[0], held[1], kind)


# -- frozen features -------------------------------------------------------------------------------------
def _freeze(model: nn.Module, X: Tensor, held: Any) -> tuple[Forward, Tensor, Any, float]:
    """Replace inputs by features where only the readout trains: (forward, X, validation, seconds)."""
    if not (isinstance(model, Model) and model.trained == "readout"):
        return model, X, held, 0.0
    started = time.perf_counter()
    X = compute_features(model, X)
    held = None if held is None else (compute_features(model, held[0]), held[1])
    return model.read, X, held, time.perf_counter() - started


def _fit_ridge(model: nn.Module, X: Tensor, y: Tensor, held: Any, ridge: float, batch_size: int) -> History:
    if not isinstance(model, Model):
        raise InvalidInputError(f"method='ridge' needs an nn.DEQ or nn.ENN, got {type(model).__name__}")
    started = time.perf_counter()
    features = compute_features(model, X, max(batch_size, 1024))
    middle = time.perf_counter()
    set_readout(model, features, one_hot(y, model.out_features, features), ridge)
    loss, accuracy = _evaluate(model.read, features, y, "squared")
    held_loss, held_accuracy = _held(model, held, "squared")
    seconds = time.perf_counter() - middle
    row = Epoch(1, loss, accuracy, held_loss, held_accuracy, 0.0, seconds)
    return History("ridge", (row,), middle - started)


def _checkpoints(
    folder: Any, run: _Run, model: nn.Module, epochs: int, data: tuple[Tensor, Tensor], held: Any
) -> Checkpoints | None:
    """The checkpoints of this run: of these settings on these data from these weights, and of no other."""
    if folder is None:
        return None
    described = model.config() if isinstance(model, Model) else {"model": type(model).__name__}
    # under a constant learning rate a longer run is the same run, continued
    length = None if run.schedule == "constant" else epochs
    marks = {
        "dtype": str(data[0].dtype),
        "training data": fingerprint(dict(zip("Xy", data, strict=True))),
        "validation data": None if held is None else fingerprint(dict(zip("Xy", held, strict=True))),
        WEIGHTS: fingerprint(model.state_dict()),
    }
    return Checkpoints(folder, {**asdict(run), "model": described, "schedule_epochs": length, **marks})


def _like(model: nn.Module) -> Tensor:
    """A tensor of the type and on the device of the model's weights."""
    if not isinstance(model, nn.Module):
        raise InvalidInputError(f"fit and evaluate take a torch module, got {type(model).__name__}")
    like = next(model.parameters(), None)
    if like is None:
        raise InvalidInputError(f"{type(model).__name__} has no parameters: nothing to train")
    if like.is_meta:
        raise InvalidInputError(
            f"the weights of {type(model).__name__} are on the device 'meta', which holds no numbers"
        )
    return like
