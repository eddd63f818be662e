"""A trained model as a teacher: asked on copies of rows, in evaluation mode, its answers checked; and rows for it."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import KINDS, shown
from .._arrays import as_numbers, bad_row
from ..errors import InvalidInputError, warn
from .model import LIMITS, as_batch, naming

# ---- answers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Agreement:
    """What counts as the same answer: the largest output or, with a ``tolerance``, every number within it.

    With a ``share`` the outputs are fields: that share of the pixels of a row may have another class or be further off.
    """

    tolerance: float | None = None
    share: float | None = None

    @staticmethod
    def of(tolerance: Any) -> Agreement:
        """Read the option ``tolerance=``: None, a number, or a pair of either with a share of pixels."""
        pair = tuple(tolerance) if isinstance(tolerance, tuple | list) and len(tolerance) == 2 else (tolerance, None)
        for value, name, most in ((pair[0], "tolerance", math.inf), (pair[1], "the share of pixels", 1.0)):
            number = isinstance(value, float | int) and not isinstance(value, bool)
            if value is not None and not (number and 0.0 < value < min(most, sys.float_info.max)):
                raise InvalidInputError(
                    f"{name} must be a positive number{'' if most == math.inf else ' below one'}, got {shown(value)}; "
                    "tolerance= takes a number, or for fields a pair of a number (or None) and a share of pixels"
                )
        return Agreement(*(None if value is None else float(value) for value in pair))

    def differs(self, outputs: Tensor, answers: Tensor) -> Tensor:
        """Return, for every row, whether outputs are another answer than these outputs of the model."""
        return self.wrong(outputs, answers.argmax(1) if self.tolerance is None else answers)

    def wrong(self, outputs: Tensor, truth: Tensor) -> Tensor:
        """Return, for every row, whether outputs are not the true classes or numbers."""
        near = self.tolerance
        off = outputs.argmax(1) != truth if near is None else ~((outputs - truth).abs() <= near)
        off = off.reshape(len(outputs), -1)
        return off.any(1) if self.share is None else off.double().mean(1) > self.share

    def check_truth(self, truth: Tensor, answers: Tensor) -> None:
        """Refuse true answers that no output could equal: another shape, or classes that the model does not have."""
        wanted, classes = answers if self.tolerance is not None else answers.argmax(1), answers.shape[1:2]
        if truth.shape != wanted.shape:
            raise InvalidInputError(
                f"labels of these outputs have shape {tuple(wanted.shape)}, got {tuple(truth.shape)}"
            )
        if self.tolerance is None and not bool(((truth == truth.round()) & (truth >= 0) & (truth < classes[0])).all()):
            raise InvalidInputError(
                f"labels must be the numbers of classes, 0 to {classes[0] - 1}, got {float(truth.min()):g} to "
                f"{float(truth.max()):g}"
            )

    def check_shape(self, shape: tuple[int, ...], whole: bool) -> None:
        """Refuse outputs of a row that hold no classes where classes are compared, or are no field."""
        if 0 in shape:
            raise InvalidInputError(f"the model has outputs of shape {shape} for each row, which hold no numbers")
        if self.tolerance is None and (len(shape) != (1 if self.share is None else max(2, len(shape))) or shape[0] < 2):
            hint = "for classes let it return " + (
                "the scores, not the class" if whole else "(-y, y) for a single logit y"
            )
            if len(shape) > 1 and self.share is None:
                hint = "for fields of classes give tolerance=(None, share), the share of pixels that may differ"
            raise InvalidInputError(
                f"the model has outputs of shape {shape} for each row, which are no scores of two or more classes; "
                f"{hint}, for numbers give tolerance=, the error that counts as agreement"
            )
        if self.share is not None and not shape:
            raise InvalidInputError("a share of pixels belongs to fields; the model has one number for each row")

    def __str__(self) -> str:
        classes = self.tolerance is None
        one = "another class than the model's" if classes else f"an output off by more than {self.tolerance:g}"
        return one if self.share is None else f"{one} in more than {self.share:g} of the pixels"


@contextlib.contextmanager
def evaluating(model: Any) -> Iterator[None]:
    """Hold a module in evaluation mode without gradients, and leave every part in the mode in which it was."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    try:
        for part in training:
            part.training = False
        with torch.no_grad():
            yield
    finally:
        for part in training:
            part.training = True


def autocast_of(device: torch.device) -> torch.dtype | None:
    """Return the type to which torch casts on a device at this place, if it does."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None


class Teacher:
    """Answer rows as a model does; whatever is no answer is refused."""

    def __init__(self, model: Any, agreement: Agreement, name: str = "the model") -> None:
        self.model, self.agreement, self.name = model, agreement, name
        self.like = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.shape: tuple[int, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return self.check(self.ask(x), x)

    def ask(self, x: Tensor) -> Any:
        """Return whatever the model returns for a copy of rows: it may work in place, as nn.ReLU(inplace=True) does."""
        copy = x.detach().clone()
        with naming(self.name, x), evaluating(self.model):
            outputs = self.model(copy)
        if self.shape is None and not torch.equal(copy, x):
            warn(
                f"{self.name} overwrites the rows that it is given, as nn.ReLU(inplace=True) does. Here it is given "
                "copies; whoever calls it elsewhere should do the same"
            )
        return outputs

    def check(self, outputs: Any, x: Tensor) -> Tensor:
        """Return real outputs of the type of the rows, one for each, all of one shape and finite."""
        if isinstance(outputs, tuple | list) and outputs and isinstance(outputs[0], Tensor):
            outputs = outputs[0]  # what comes with the outputs is not replaced
        dense = KINDS[Tensor].test(outputs)
        if not dense or outputs.shape[:1] != x.shape[:1]:
            told = f"{outputs.dtype} of {tuple(outputs.shape)}" if dense else shown(type(outputs))
            held = f" with {', '.join(map(repr, outputs))}" if isinstance(outputs, dict) else ""
            raise InvalidInputError(
                f"{self.name} must return a dense tensor of real numbers with one row per input, alone or first in a "
                f"tuple; got {told}{held} for {len(x)}. Wrap it in a module that returns the outputs alone"
            )
        shape = tuple(outputs.shape[1:])
        if self.shape is None:
            self.agreement.check_shape(shape, not outputs.is_floating_point())
            self.shape = shape
        if shape != self.shape:
            raise InvalidInputError(
                f"{self.name} has outputs of shape {self.shape} for one batch and {shape} for another"
            )
        outputs = outputs.detach().to(x.device, x.dtype, copy=True)  # some models write into one buffer again and again
        bad = bad_row(outputs.reshape(len(outputs), -1)) if outputs.numel() else None
        if bad is not None:
            what = f"{self.name}'s outputs" if bool(torch.isfinite(x[bad]).all()) else "the rows"
            raise InvalidInputError(f"{what} hold NaN or infinity (first in row {bad} of a batch)")
        return outputs


# ---- rows ------------------------------------------------------------------------------------------------------


def read_rows(X: Any, name: str, generator: torch.Generator, like: Tensor | None) -> Tensor:
    """Return rows in the type and on the device of the model's weights; of an iterable of batches a sample."""
    rows = sampled(X, name, LIMITS.most_rows, generator) if is_stream(X) else as_numbers(X, name)
    single = torch.empty(0, device=rows.device, dtype=torch.float32)
    return as_batch(rows, name, single if like is None or not like.is_floating_point() else like)


def is_stream(X: Any) -> bool:
    """Whether these are batches of rows rather than rows."""
    if isinstance(X, Mapping) or (isinstance(X, tuple) and X and getattr(X[0], "ndim", 0) > 1):
        raise InvalidInputError(
            f"a {type(X).__name__} of arrays was given, rows are one array. A model of several inputs takes them joined"
            " and splits them itself; a list of arrays stands for batches"
        )
    if isinstance(X, torch.utils.data.Dataset) and not isinstance(X, Iterable):
        raise InvalidInputError("a Dataset was given; pass torch.utils.data.DataLoader(dataset, batch_size=256)")
    if isinstance(X, list):
        return bool(X) and isinstance(X[0], Tensor | np.ndarray) and X[0].ndim > 1
    if hasattr(X, "__array__") or hasattr(X, "ndim"):
        return False
    return isinstance(X, Iterable) and not isinstance(X, tuple | str | bytes)


def rows_of(batch: Any, name: str) -> Tensor:
    """Return the rows of a batch, which may be a pair of rows and labels."""
    return as_numbers(batch[0] if isinstance(batch, list | tuple) and len(batch) else batch, name).detach()


def sampled(batches: Iterable[Any], name: str, most: int, generator: torch.Generator) -> Tensor:
    """Return at most so many rows of a stream that is read once: those with the largest of random keys."""
    parts: list[Tensor] = []
    keys: list[Tensor] = []
    held = 0
    for batch in batches:
        part = rows_of(batch, f"a batch of {name}").cpu()
        known = parts[0] if parts else part
        if part.ndim < 2 or part.shape[1:] != known.shape[1:]:
            shapes = f"{tuple(part.shape[1:])} beside {tuple(known.shape[1:])}"
            raise InvalidInputError(f"the batches of {name} must hold rows of one shape, got rows of {shapes}")
        parts.append(part)
        keys.append(torch.rand(len(part), generator=generator, dtype=torch.float32))
        held += len(part)
        if 2 * held > 3 * most:  # now and then, so that a row is copied few times
            parts, keys, held = *([kept] for kept in _largest(parts, keys, most)), most
    if not held:
        raise InvalidInputError(f"{name} is an iterable without a row; a generator can be read only once")
    return _largest(parts, keys, most)[0]


def _largest(parts: list[Tensor], keys: list[Tensor], most: int) -> tuple[Tensor, Tensor]:
    """Return the rows with the largest keys, and these."""
    rows, key = torch.cat(parts), torch.cat(keys)
    if len(rows) <= most:
        return rows, key
    chosen = key.topk(most).indices
    return rows[chosen], key[chosen]


def check_fresh(rows: Tensor, fresh: Tensor) -> None:
    """Refuse calibration rows that are rows of X, or that repeat each other, unless rows of X do so as often."""
    parts = (part.detach().cpu().flatten(1).contiguous().view(torch.uint8).numpy() for part in (rows, fresh))
    keys, other = ([hash(row.tobytes()) for row in part] for part in parts)
    known = set(keys)
    shared = sum(key in known for key in other)
    repeated = 1.0 - len(known) / len(keys)
    some = np.random.default_rng(0).permutation(len(other))[: len(keys)]  # more rows repeat each other more often
    again = 1.0 - len({other[i] for i in some}) / len(some)
    if again > 2.0 * repeated + 0.01:  # one in a hundred may be chance
        raise InvalidInputError(
            f"calibration rows repeat each other ({again:.0%} of {len(some):,} of them), which the test takes for "
            "independent evidence; give each row once"
        )
    if shared > (2.0 * repeated + 0.01) * len(other):
        raise InvalidInputError(
            f"{shared:,} of the {len(other):,} calibration rows are rows of X, on which the student is trained: there "
            "it agrees more often than on inputs to come, and the promise would be void. Give other rows, or leave "
            "calibration out: then a part of X is kept for it"
        )
