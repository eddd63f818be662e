"""A trained model replaced by a student wherever the two are sure to agree, with a bound on how often they differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import check_fields, checked, shown, whole, whole_seed
from .._arrays import as_numbers, as_rows, bad_row
from ..errors import CheckpointError, InvalidInputError, NotSoDeepError, warn
from .certify import Certificate, Drift, certify, check_promise, check_rows, compare_samples
from .checkpoint import check_shapes, read_file, write_file
from .enn import write_onnx
from .model import LIMITS, in_batches, median_times
from .student import SCORES, Data, ReplaceOptions, Scored, Student, distil, train_head, width_of

_SHARES = (0.6, 0.15, 0.25)  # of X without calibration rows: distilled, chosen, measured


@checked
def replace(
    model: Callable[..., Any],
    X: Any,
    *,
    disagreement: float = 0.002,
    confidence: float = 0.95,
    calibration: Any = None,
    tolerance: float | None = None,
    student: nn.Module | None = None,
    options: ReplaceOptions | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Replacement:
    """Train a cheap student of a model, and bound how often the two together differ from the model alone.

    The student answers where it is sure; the model answers the rest. The bound holds for any model and any student, for
    inputs drawn as the measured rows were.

    Parameters
    ----------
    model : nn.Module or callable
        From rows to one row of outputs each: an ``nsd.nn.DEQ``, a torchdeq module, any other. It is called without
        gradients, on its own device, in evaluation mode, in which it is left.
    X : array of shape (n, ...), or iterable of such batches
        Unlabelled rows, of an iterable at most 100,000. They may have trained the model if ``calibration`` is given.
    disagreement, confidence : float
        The largest share of inputs on which replacement and model may differ, and the probability, over the draw of the
        measured rows, with which this must hold.
    calibration : array of shape (n, ...), or iterable of such batches, optional
        Rows as fresh as the inputs to come; all of them are measured. Without it a quarter of X is, which is right only
        if the model was not trained on X.
    tolerance : float, optional
        For outputs that are numbers: the error that counts as agreement. By default the largest output is the answer.
    student : nn.Module, optional
        A network of your own, trained in place. By default one hidden layer of ReLU units with standardisation inside.
    options : ReplaceOptions, optional
        Width of the default student, steps of its training, mixed rows.
    seed : int
    progress : bool, optional
        Whether a progress bar is shown; by default on a terminal.

    Returns
    -------
    Replacement

    Raises
    ------
    CertificationError
        If the promise cannot be kept: too few rows, or a student too weak. It says what could be promised.

    Examples
    --------
    >>> import notsodeep as nsd, torch
    >>> X = torch.randn(6000, 5, generator=torch.Generator().manual_seed(0))
    >>> model = nsd.nn.DEQ(nsd.DEQ("tanh", sigma_a2=0.2), in_features=5, width=32, out_features=2)
    >>> options = nsd.nn.ReplaceOptions(steps=200)
    >>> fast = nsd.replace(model, X[:3000], disagreement=0.02, calibration=X[3000:], options=options)
    >>> fast(X[:4]).shape, fast.certificate.coverage > 0.5
    (torch.Size([4, 2]), True)
    """
    check_promise(disagreement, confidence, tolerance)
    options = options or ReplaceOptions()
    generator = torch.Generator().manual_seed(whole_seed(seed))
    ask = _Model(model, tolerance)
    rows = _as_rows(X, "X", generator, ask)
    fresh = None if calibration is None else _as_rows(calibration, "calibration", generator, ask)
    if fresh is not None and fresh.shape[1:] != rows.shape[1:]:
        raise InvalidInputError(f"calibration rows have shape {tuple(fresh.shape[1:])}, X has {tuple(rows.shape[1:])}")
    measured = round(_SHARES[2] * len(rows)) if fresh is None else len(fresh)
    check_rows(measured, disagreement, confidence, _SHARES[2] if fresh is None else 1.0)
    if fresh is None:
        warn(
            "no calibration rows were given: a quarter of X is taken for inputs as fresh as those to come. If the "
            "model was trained on X they are not, and the promise is void; give calibration= rows that it has not seen"
        )
    train, choose, measure = _split(ask, rows, fresh, generator)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        if student is None:
            student = Student(train.rows, train.answers, options.width or width_of(train, model))
        _check_student(student, train)
        distil(student, ask, train, choose, options, seed, progress)
        scored, thresholds = _choose_score(student, ask, train, choose, options, disagreement, seed)
    outputs, score = _scores(scored, measure.rows)
    differs, unsteady = (part.cpu().numpy() for part in (measure.differs(outputs), _unsteady(ask, measure)))
    used = {"distilled": len(train), "chosen": len(choose), "score": scored.kind, "tolerance": tolerance}
    certificate = certify(score, differs, unsteady, thresholds, (disagreement, confidence), **used)
    return Replacement(model, scored, certificate, rows.shape[1:])


# ---- the module ----------------------------------------------------------------------------------------------


class Timing(NamedTuple):
    """The median times of a batch, in seconds, measured in turns."""

    model: float
    replacement: float
    student: float

    @property
    def ratio(self) -> float:
        """How many times as long the model takes."""
        return self.model / self.replacement


class Replacement(nn.Module):
    """Answer as a model does, by a student where it is sure and by the model elsewhere; made by ``nsd.replace``.

    Parameters
    ----------
    model : nn.Module or callable
        The model that is replaced.
    scored : nn.Module
        The student with its score: rows in, (outputs, score) out.
    certificate : Certificate
    shape : tuple of int
        The shape of one row.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.nn.Replacement.load("fast.safetensors", model)  # doctest: +SKIP
    """

    def __init__(self, model: Any, scored: Scored, certificate: Certificate, shape: Iterable[int]) -> None:
        super().__init__()
        self.model, self.scored, self.certificate, self.shape = model, scored, certificate, tuple(shape)
        self._seen, self._fell, self._next_look, self._warned = 0, 0, 256, False
        self.eval()

    @property
    def student(self) -> nn.Module:
        """The bare student."""
        return self.scored.student

    def train(self, mode: bool = True) -> Replacement:
        """Stay in evaluation mode, the only one that the certificate knows."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the student's outputs for the rows it is sure of, the model's for the others."""
        outputs, left = self._answer(x)
        self._count(len(x), left)
        return outputs

    @torch.no_grad()
    def _answer(self, x: Tensor) -> tuple[Tensor, int]:
        """Return the outputs, and how many of them are the model's."""
        if not isinstance(x, Tensor) or tuple(x.shape[1:]) != self.shape or x.ndim < 1:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise InvalidInputError(f"expected a tensor of shape (rows, {str(self.shape)[1:-1]}), got {given}")
        outputs, score = self.scored(x)
        left = (~(score >= self.certificate.threshold)).nonzero()[:, 0]
        if len(left):
            outputs = outputs.index_copy(0, left, self.model(x[left]).to(outputs.dtype))
        return outputs, len(left)

    # -- after calibration -------------------------------------------------------------------------------
    def drift(self) -> Drift:
        """Compare the share of rows that the model had to answer since calibration with that of the measured rows."""
        return compare_samples(self.certificate, self._seen, self._fell)

    def _count(self, rows: int, fell: int) -> None:
        self._seen, self._fell = self._seen + rows, self._fell + fell
        if self._seen < self._next_look or self._warned:
            return
        self._next_look = 2 * self._seen  # looks are few, so that chance alone rarely warns
        found = self.drift()
        if found.p_value < 1e-4:
            self._warned = True
            warn(
                f"of the last {found.rows:,} rows the model had to answer {found.share:.2%}, of those at calibration "
                f"{found.expected:.2%} (p = {found.p_value:.1e}): the inputs have changed, and the promise speaks of "
                "inputs like those of calibration. Call replace again on rows like these"
            )

    def measure(self, x: Tensor, repeats: int = 9) -> Timing:
        """Return the median times of model, replacement and bare student on a batch, measured in turns."""
        self._answer(x)  # refuses what is no batch of rows
        return Timing(*median_times((self.model, self._answer, self.student), x, whole("repeats", repeats)))

    # -- elsewhere ---------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write student, threshold and certificate to one safetensors file; the model is not in it."""
        student: dict[str, Any] = {"class": type(self.student).__name__}
        if isinstance(self.student, Student):
            student |= {"width": self.student.hidden.out_features, "outputs": list(self.student.shape)}
        document = {"shape": list(self.shape), "student": student, "certificate": asdict(self.certificate)}
        write_file(path, self.scored.state_dict(), {"kind": "replacement", **document})

    @staticmethod
    def load(path: str | Path, model: Callable[..., Any], student: nn.Module | None = None) -> Replacement:
        """Read what :meth:`save` wrote of this model; a student of your own needs a network of its architecture."""
        schema = {"shape": Sequence[int], "student": dict[str, Any], "certificate": dict[str, Any]}
        tensors, document = read_file(path, "replacement", schema)
        try:
            certificate, about = Certificate(**document["certificate"]), document["student"]
            if student is None and about["class"] != "Student":
                raise CheckpointError(f"{path} holds a student {about['class']}: give student=, a network like it")
            if student is None:
                check_fields(about, {"class": str, "width": int, "outputs": Sequence[int]})
                check_shapes(tensors, {"student.hidden.weight": (about["width"], math.prod(document["shape"]))})
                check_shapes(tensors, {"student.centre": (math.prod(about["outputs"]),)})
            rows = tensors["scale"].new_zeros(1).expand(2, *document["shape"])  # takes no memory
            if student is None:
                student = Student(rows, rows.new_zeros(2, *about["outputs"]), about["width"])
            answers = torch.zeros_like(student.eval()(rows))
            scored = Scored(student, certificate.score, Data(rows, answers, certificate.tolerance))
            scored.load_state_dict(tensors)
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise CheckpointError(f"{path} does not describe this replacement: {error}") from error
        found = Replacement(model, scored, certificate, document["shape"])
        like = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        return found if like is None else found.to(like.device)

    def export_onnx(self, path: str | Path) -> Path:
        """Write the student as ONNX with outputs ``y`` and ``score``; rows below the threshold are the model's."""
        return write_onnx(self.scored, self.shape, path, ["y", "score"])

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.student.parameters())
        own = sum(p.numel() for p in self.model.parameters()) if isinstance(self.model, nn.Module) else 0
        beside = f" ({size / own:.1%} of the model's)" if own else ""
        return f"{self.certificate}\ncosts     {size:,} parameters{beside} for every row; the model for the others"


# ---- rows and answers ----------------------------------------------------------------------------------------


class _Model:
    """The model as it is asked here: in evaluation mode, in batches, its outputs checked."""

    def __init__(self, model: Any, tolerance: float | None) -> None:
        self.model, self.tolerance = model.eval() if isinstance(model, nn.Module) else model, tolerance
        self.like = next(model.parameters(), None) if isinstance(model, nn.Module) else None
        self.shape: tuple[int, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        try:
            with torch.no_grad():
                outputs = self.model(x)
        except NotSoDeepError:
            raise
        except (RuntimeError, TypeError, IndexError) as error:
            raise InvalidInputError(f"the model fails on rows of shape {tuple(x.shape)}: {error}") from error
        told = tuple(outputs.shape) if isinstance(outputs, Tensor) else type(outputs).__name__
        if told[:1] != x.shape[:1]:
            raise InvalidInputError(f"the model must return a tensor with one row per input, got {told} for {len(x)}")
        shape = tuple(outputs.shape[1:])
        if self.tolerance is None and (len(shape) != 1 or shape[0] < 2):
            raise InvalidInputError(
                f"the model has outputs of shape {shape} for each row, which are no scores of two or more classes; for "
                "numbers give tolerance=, the error that counts as agreement"
            )
        self.shape = shape if self.shape is None else self.shape
        if shape != self.shape:
            raise InvalidInputError(
                f"the model has outputs of shape {self.shape} for one batch and {shape} for another"
            )
        bad = bad_row(outputs.reshape(len(outputs), -1)) if outputs.numel() else None
        if bad is not None:
            raise InvalidInputError(f"the model's outputs hold NaN or infinity (first in row {bad} of a batch)")
        return outputs.detach()

    def data(self, rows: Tensor) -> Data:
        return Data(rows, in_batches(self, rows), self.tolerance)


def _as_rows(X: Any, name: str, generator: torch.Generator, ask: _Model) -> Tensor:
    """Return rows in the type and on the device of the model's weights; of an iterable of batches a sample."""
    rows = _sampled(X, name, LIMITS.most_rows, generator) if _is_iterable(X) else as_numbers(X, name)
    as_rows(rows.flatten(1) if rows.ndim > 1 else rows, name)  # refuses what is no data
    like = ask.like if ask.like is not None and ask.like.is_floating_point() else None
    return rows.detach().to(torch.float32) if like is None else rows.detach().to(like.device, like.dtype)


def _is_iterable(X: Any) -> bool:
    if isinstance(X, list | tuple):
        return bool(X) and isinstance(X[0], Tensor | np.ndarray) and X[0].ndim > 1
    return isinstance(X, Iterable) and not isinstance(X, Tensor | str | bytes) and not hasattr(X, "__array__")


def _sampled(batches: Iterable[Any], name: str, most: int, generator: torch.Generator) -> Tensor:
    """Return at most so many rows of a stream that is read once: those with the largest of random keys."""
    rows, keys = torch.empty(0), torch.empty(0)
    for batch in batches:
        part = as_numbers(batch[0] if isinstance(batch, list | tuple) else batch, f"a batch of {name}").detach().cpu()
        rows = rows if len(rows) else part[:0]
        if part.ndim < 2 or part.shape[1:] != rows.shape[1:]:
            shapes = f"{tuple(part.shape[1:])} beside {tuple(rows.shape[1:])}"
            raise InvalidInputError(f"the batches of {name} must hold rows of one shape, got rows of {shapes}")
        rows = torch.cat([rows, part])
        keys = torch.cat([keys, torch.rand(len(part), generator=generator)])
        if len(rows) > most:
            chosen = keys.topk(most).indices
            rows, keys = rows[chosen], keys[chosen]
    if not len(rows):
        raise InvalidInputError(f"{name} is an iterable without a row; a generator can be read only once")
    return rows


def _split(ask: _Model, rows: Tensor, fresh: Tensor | None, generator: torch.Generator) -> tuple[Data, Data, Data]:
    """Return the rows to distil, to choose the score by, and to measure, with the model's answers."""
    order = torch.randperm(len(rows), generator=generator).to(rows.device)
    shares = _SHARES if fresh is None else (0.85, 0.15, 0.0)
    ends = [round(share * len(rows)) for share in itertools.accumulate(shares[:2])]
    parts = [ask.data(rows[which]) for which in (order[: ends[0]], order[ends[0] : ends[1]])]
    if not all(len(part) > 1 for part in parts):
        raise InvalidInputError(f"X has {len(rows)} rows, too few to distil and to choose a score; give more")
    if ask.tolerance is None and len(parts[0].answers.argmax(1).unique()) == 1:
        raise InvalidInputError(
            f"the model puts all {len(parts[0]):,} rows into one class: there is nothing to learn. Give rows of "
            "several classes, or tolerance= if its outputs are numbers"
        )
    return parts[0], parts[1], ask.data(rows[order[ends[1] :]] if fresh is None else fresh)


def _check_student(student: nn.Module, data: Data) -> None:
    with torch.no_grad():
        outputs = student.eval()(data.rows[:2])
    if not isinstance(outputs, Tensor) or outputs.shape != data.answers[:2].shape:
        raise InvalidInputError(
            f"the student must return outputs of shape {tuple(data.answers.shape[1:])} for each row as the model does, "
            f"got {tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else shown(outputs)}"
        )
    if not any(p.requires_grad for p in student.parameters()):
        raise InvalidInputError("the student has no parameter that requires a gradient: there is nothing to train")


# ---- score, threshold, promise -------------------------------------------------------------------------------


def _choose_score(
    student: nn.Module, ask: _Model, train: Data, choose: Data, options: ReplaceOptions, allowed: float, seed: int
) -> tuple[Scored, np.ndarray]:
    """Return the student with the score that covers most at about the allowed disagreement, and its thresholds."""
    half = len(choose) // 2
    found: dict[str, tuple[float, Scored]] = {}
    for kind in SCORES if train.tolerance is None else SCORES[-1:]:
        scored = Scored(student, kind, train)
        if kind == "head":
            train_head(scored, ask, train, choose[:half], options, seed)
        outputs, score = _scores(scored.eval(), choose[half:].rows)
        order = np.argsort(-score, kind="stable")
        differing = np.cumsum(choose[half:].differs(outputs).cpu().numpy()[order])
        # the mean over several levels: at one of them a few rows of this split would decide
        coverage = float(np.mean([np.mean(differing <= level * allowed * len(order)) for level in (0.5, 1, 2, 4)]))
        # the head is learned, and has to be better by more than chance
        found[kind] = coverage - (len(order) ** -0.5 if kind == "head" else 0.0), scored
    best = max(found.values(), key=lambda pair: pair[0])[1]
    seen = np.concatenate([_scores(best, part.rows)[1] for part in (choose, train[: 4 * LIMITS.batch])])
    low, middle = seen.min(), np.median(seen)
    # fresh rows may be less sure than these: the thresholds reach further down, and are dense there
    return best, np.concatenate([seen, np.linspace(2.0 * low - middle, middle, 1000)])


def _scores(scored: Scored, rows: Tensor) -> tuple[Tensor, np.ndarray]:
    with torch.no_grad():
        parts = [scored(batch) for batch in rows.split(LIMITS.batch)]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts]).double().cpu().numpy()


def _unsteady(ask: _Model, data: Data) -> Tensor:
    """Return the rows that the model answers differently when it is asked again among others, in smaller batches."""
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(0)).to(data.rows.device)
    again = torch.empty_like(data.answers)
    again[order] = in_batches(ask, data.rows[order], LIMITS.batch // 8)
    changed = data.differs(again)
    share = float(changed.double().mean())
    if share > 0.05:
        raise InvalidInputError(
            f"the model's outputs depend on the batch: {share:.1%} of the rows get another answer among other rows. A "
            "replacement needs a model that answers each row by itself"
        )
    return changed
