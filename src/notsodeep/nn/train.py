"""A short training loop, with a checkpoint from which it resumes."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .._arguments import not_negative, positive_int, trains
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from .checkpoint import Checkpoint, all_finite, fingerprint
from .model import LIMITS, Model, as_pair, check_classes, in_batches, naming, one_hot, set_readout
from .tangents import check_outputs
from .teacher import evaluating

Optimiser = Literal["sgd", "adam"]
Forward = Callable[[Tensor], Tensor]
Pair = tuple[Tensor, Tensor]

_RATES = {"ntk": {"sgd": 1.0, "adam": 0.01}, "standard": {"sgd": 0.01, "adam": 0.001}}


@dataclass(frozen=True)
class Epoch:
    """Means over the batches of one pass, as they were seen, and what validation rows gave after it."""

    loss: float
    accuracy: float | None
    validation_loss: float | None
    validation_accuracy: float | None
    seconds: float


@dataclass(frozen=True)
class History:
    """Hold every epoch of a run.

    Attributes
    ----------
    epochs : tuple of Epoch
        Each has ``loss``, ``accuracy``, ``validation_loss``, ``validation_accuracy`` and ``seconds``.

    Examples
    --------
    >>> import notsodeep as nsd, numpy as np
    >>> model = nsd.nn.ENN(nsd.ENN(["tanh"]), in_features=3, width=8, out_features=2)
    >>> nsd.nn.fit(model, (np.eye(3), [0, 1, 1]), epochs=2).last.accuracy is not None
    True
    """

    epochs: tuple[Epoch, ...]

    @property
    def last(self) -> Epoch:
        """The last epoch."""
        return self.epochs[-1]

    def __len__(self) -> int:
        return len(self.epochs)

    def __repr__(self) -> str:
        end = self.last
        seen = "" if end.accuracy is None else f", accuracy {end.accuracy:.4f}"
        held = "" if end.validation_accuracy is None else f", validation accuracy {end.validation_accuracy:.4f}"
        seconds = sum(epoch.seconds for epoch in self.epochs)
        return f"History({len(self)} epochs, loss {end.loss:.4g}{seen}{held}, {seconds:.2f} s)"


@trains
def fit(
    model: nn.Module,
    data: Any,
    *,
    optimiser: Optimiser | Optimizer = "sgd",
    lr: float | None = None,
    epochs: int = 10,
    batch_size: int = 128,
    validation: Any = None,
    seed: int = 0,
    checkpoint: str | Path | None = None,
    progress: bool | None = None,
) -> History:
    """Train a network in place, on the device of its weights.

    Classes are trained with the cross entropy, other targets with half the squared error. Where only the readout
    trains, the features of every sample are computed once.

    Parameters
    ----------
    model : nn.Module
        An ``nsd.nn.DEQ`` or ``nsd.nn.ENN``, whose ``kernel`` says what trains, or any module from rows to outputs.
    data, validation : pair of arrays (X, y)
        X has shape (n, p); y holds n whole numbers (classes), or targets of shape (n,) or (n, outputs). Loss and
        accuracy on ``validation`` are recorded after every epoch.
    optimiser : {"sgd", "adam"} or torch.optim.Optimizer
    lr : float, optional
        The learning rate of an optimiser given by name, by default 1 for ``"sgd"`` and 0.01 for ``"adam"``; 0.01 and
        0.001 in the standard parametrisation and for other modules.
    epochs, batch_size : int
    seed : int
        The seed of the order of the samples, and of torch's generator during the run.
    checkpoint : str or Path, optional
        A file for the state after each epoch. If it exists, training resumes from it, on a CPU bit for bit. A
        checkpoint with other data, settings or initial weights raises an error.
    progress : bool, optional
        Whether to show a progress bar; by default after two seconds, on a terminal or in a notebook.

    Returns
    -------
    History

    Raises
    ------
    ConvergenceError
        If the loss, a weight or an output is no longer finite. Such a state is never written to the checkpoint, and
        model and optimiser return to the state after the last epoch before it.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    >>> model = nsd.nn.ENN(nsd.ENN(["relu"]), in_features=5, width=64, out_features=2, kernel="ck")
    >>> history = nsd.nn.fit(model, (X, (X[:, 0] > 0).long()), epochs=5, lr=1.0)
    >>> len(history), history.last.accuracy > 0.7
    (5, True)
    """
    positive_int("epochs", epochs)
    positive_int("batch_size", batch_size, most=2**31)
    like = _like(model)
    training, held = as_pair(data, like), None if validation is None else as_pair(validation, like)
    count = model.out_features if isinstance(model, Model) else _count_outputs(model, training[0])
    for X, y in (training, held or training):
        check_classes(y, count)
        if X.shape[1:] != training[0].shape[1:]:
            raise InvalidInputError(f"validation has rows of another shape than data: {tuple(X.shape[1:])}")
    stepper = optimiser if isinstance(optimiser, Optimizer) else _own_optimiser(model, optimiser, lr)
    saved = None
    if checkpoint is not None:
        described = {"batch_size": batch_size, "seed": seed, **_describe(model, stepper, training, held)}
        saved = Checkpoint(Path(checkpoint), described)
    forward, training, held = _freeze(model, training, held)
    mode = model.training
    with torch.random.fork_rng(devices=[]), contextlib.ExitStack() as stack:
        stack.callback(model.train, mode)
        torch.manual_seed(seed)
        rows = [] if saved is None else [Epoch(**row) for row in saved.restore(model, stepper, epochs)]
        steps = range(len(rows), epochs)
        for epoch in track(steps, len(steps), lambda: f"loss {rows[-1].loss:.4f}" if rows else "training", progress):
            # the order of the samples follows from (seed, epoch) alone
            own = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
            order = torch.randperm(len(training[0]), generator=own).to(like.device)
            with _keeping(model, stepper):
                rows.append(_epoch(model, forward, training, held, stepper, order.split(batch_size)))
            if saved is not None:
                saved.save(model, stepper, [asdict(row) for row in rows])
    return History(tuple(rows))


@trains
def fit_readout(model: Model, data: Any, *, ridge: float = 1e-3, validation: Any = None) -> History:
    """Fit the readout in closed form: argmin |F R' - Y|^2 / n + ridge |R|^2 over the readout R on features F.

    Parameters
    ----------
    model : nsd.nn.DEQ or nsd.nn.ENN
        Its readout, and its bias where it has one, are replaced; the hidden weights stay.
    data, validation : pair of arrays (X, y)
        Classes become centred indicator vectors; other targets stay as they are.
    ridge : float
        The penalty; that of a bias is zero.

    Returns
    -------
    History
        One epoch, with half the squared error as its loss.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> X = torch.randn(200, 5, generator=torch.Generator().manual_seed(0))
    >>> model = nsd.nn.ENN(nsd.ENN(["relu"]), in_features=5, width=64, out_features=2)
    >>> nsd.nn.fit_readout(model, (X, (X[:, 0] > 0).long())).last.accuracy > 0.9
    True
    """
    started = time.perf_counter()
    X, y = as_pair(data, _like(model))
    held = None if validation is None else as_pair(validation, X)
    features = in_batches(model.features, X)
    set_readout(model, features, one_hot(y, model.out_features, features), ridge)
    seen = _evaluate(model.read, (features, y), squared=True)
    later: tuple[float | None, float | None] = (None, None) if held is None else _evaluate(model, held, squared=True)
    return History((Epoch(*seen, *later, time.perf_counter() - started),))


# ---- the loop ------------------------------------------------------------------------------------------------


def _epoch(
    model: nn.Module, forward: Forward, training: Pair, held: Pair | None, stepper: Optimizer, batches: Sequence[Tensor]
) -> Epoch:
    started = time.perf_counter()
    X, y = training
    total, right = X.new_zeros(()), X.new_zeros(())
    model.train()
    for batch in batches:
        outputs = forward(X[batch])
        loss = _loss(outputs, y[batch])
        stepper.zero_grad(set_to_none=True)
        loss.backward()
        stepper.step()
        total += loss.detach() * len(batch)
        right += _hits(outputs.detach(), y[batch])
    model.eval()
    # the last step is seen by no loss of the epoch: finite weights may already have outputs that are not
    after = _evaluate(forward, (X[batches[-1]], y[batches[-1]]) if held is None else held)
    mean, sound = float(total) / len(X), all_finite(model.state_dict())
    if not (sound and math.isfinite(mean) and math.isfinite(after[0])):
        raise ConvergenceError(
            f"training diverged: the loss is {mean:.3g} and then {after[0]:.3g}, the weights are "
            f"{'' if sound else 'not '}finite; lower the learning rate ({stepper.param_groups[0]['lr']:.3g})"
        )
    accuracy = None if y.is_floating_point() else float(right) / len(X)
    later: tuple[float | None, float | None] = (None, None) if held is None else after
    return Epoch(mean, accuracy, *later, time.perf_counter() - started)


@contextlib.contextmanager
def _keeping(model: nn.Module, stepper: Optimizer) -> Iterator[None]:
    """Return to the state at the beginning of an epoch if it diverges."""
    held = [copy.deepcopy(part.state_dict()) for part in (model, stepper)]
    try:
        yield
    except ConvergenceError:
        model.load_state_dict(held[0])
        stepper.load_state_dict(held[1])
        raise


def _own_optimiser(model: nn.Module, name: str, lr: float | None) -> Optimizer:
    usual = _RATES[model.parametrisation if isinstance(model, Model) else "standard"][name]
    rate = usual if lr is None else not_negative("lr", lr)
    trained = [{"params": [p for p in model.parameters() if p.requires_grad], "lr": rate}]
    groups = model.parameter_groups(rate) if isinstance(model, Model) else trained
    if not any(group["params"] for group in groups):
        raise InvalidInputError("nothing to train: no parameter of this model requires a gradient")
    return torch.optim.Adam(groups, lr=rate) if name == "adam" else torch.optim.SGD(groups, lr=rate)


def _loss(outputs: Tensor, y: Tensor, squared: bool = False) -> Tensor:
    if squared or y.is_floating_point():
        return 0.5 * (outputs - one_hot(y, outputs.shape[-1], outputs)).square().sum(-1).mean()
    return nn.functional.cross_entropy(outputs, y)


def _hits(outputs: Tensor, y: Tensor) -> Tensor:
    if y.is_floating_point():
        return outputs.new_zeros(())
    return (outputs.argmax(-1) == y).sum().to(outputs.dtype)


def _evaluate(forward: Forward, pair: Pair, squared: bool = False) -> tuple[float, float | None]:
    total, right = 0.0, 0.0
    with torch.no_grad():
        for inputs, targets in zip(*(part.split(LIMITS.batch) for part in pair), strict=True):
            outputs = forward(inputs)
            total += float(_loss(outputs, targets, squared)) * len(inputs)
            right += float(_hits(outputs, targets))
    n = len(pair[0])
    return total / n, None if pair[1].is_floating_point() else right / n


def _freeze(model: nn.Module, training: Pair, held: Pair | None) -> tuple[Forward, Pair, Pair | None]:
    """Replace inputs by features where only the readout trains."""
    if not (isinstance(model, Model) and model.kernel == "ck"):
        return model, training, held
    features = [None if pair is None else (in_batches(model.features, pair[0]), pair[1]) for pair in (training, held)]
    return model.read, features[0], features[1]  # type: ignore[return-value]


# ---- what a run is -------------------------------------------------------------------------------------------


def _describe(model: nn.Module, optimiser: Optimizer, training: Pair, held: Pair | None) -> dict[str, Any]:
    """Return what tells this model, this optimiser and these data from others."""
    groups = optimiser.state_dict()["param_groups"]
    names = [name for name in groups[0] if name not in ("params", "name", "param_names")]
    numbers = {name: [group.get(name) for group in groups] for name in names}
    return {
        "optimiser": type(optimiser).__name__,
        **json.loads(json.dumps(numbers, default=str)),
        "model": model.config() if isinstance(model, Model) else {"model": type(model).__name__},
        "dtype": str(training[0].dtype),
        "training data": fingerprint(dict(zip("Xy", training, strict=True))),
        "validation data": None if held is None else fingerprint(dict(zip("Xy", held, strict=True))),
    }


def _count_outputs(model: nn.Module, X: Tensor) -> int:
    """Return how many outputs a module has for a row; refuse what cannot be trained."""
    with naming("the model", X[:1]), evaluating(model):
        found = model(X[:1].clone())
    check_outputs(found, 1)
    if found.ndim != 2:
        raise InvalidInputError(f"the model must have outputs of shape (n, outputs), got {tuple(found.shape)}")
    return int(found.shape[1])


def _like(model: nn.Module) -> Tensor:
    """Return a tensor of the type and on the device of the model's weights."""
    like = next(model.parameters(), None)
    if like is None:
        raise InvalidInputError(f"{type(model).__name__} has no parameters: nothing to train")
    if like.is_meta:
        raise InvalidInputError(f"the weights of {type(model).__name__} are on the device 'meta', without numbers")
    return like
