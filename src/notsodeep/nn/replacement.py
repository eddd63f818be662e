"""A trained model replaced by cheaper ones wherever they are sure to agree, with a bound on how often they differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from .._arguments import check_fields, positive_int, shown, trains, whole_seed
from .._arrays import Array, as_numbers, like
from .._words import Drawn, as_html
from ..errors import CheckpointError, InvalidInputError, NotSoDeepError, warn
from .certify import Certificate, Drift, Measured, certify, check_promise, check_rows, compare_samples
from .checkpoint import check_shapes, read_file, write_file
from .enn import write_onnx
from .ladder import Called, common_scale, looser, looser_rungs, scores_of, thresholds_of, with_score
from .model import LIMITS, in_batches, median_times, naming
from .student import OWN, Data, ReplaceOptions, Scored, Student, distil, mix, width_of
from .teacher import Agreement, Teacher, autocast_of, check_fresh, evaluating, is_stream, read_rows, rows_of

_SHARES = (0.6, 0.15, 0.25)  # of X without calibration rows: distilled, chosen, measured
_KNOWN_ROWS = 16  # by whose outputs a stored replacement knows its model
_ALONE = 32  # rows that are asked one by one, too


class Training(TypedDict, total=False):
    """How the student is trained."""

    student: nn.Module | None
    options: ReplaceOptions | None
    seed: int
    progress: bool | None


@trains
def replace(
    model: Callable[..., Any],
    X: Any,
    *,
    disagreement: float = 0.002,
    confidence: float = 0.95,
    calibration: Any = None,
    labels: Any = None,
    tolerance: Any = None,
    ladder: Any = None,
    **training: Unpack[Training],
) -> Replacement:
    """Train a cheap student of a model, and bound how often the two together differ from the model alone.

    The student answers where it is sure, and the model answers the rest. The bound holds for any model and any student,
    for inputs drawn like the calibration rows.

    Parameters
    ----------
    model : nn.Module or callable
        A map from rows to one row of outputs each: an ``nsd.nn.DEQ``, a torchdeq module, or any other. It receives
        copies of the rows, on its own device, without gradients and in evaluation mode; its mode is restored
        afterwards. If it returns a tuple, the first entry counts.
    X : array of shape (n, ...), or iterable of such batches
        Unlabelled rows, of an iterable at most 100,000. They may have trained the model if ``calibration`` is given.
    disagreement, confidence : float
        The largest share of inputs on which replacement and model may differ, and the probability, over the draw of the
        calibration rows, with which this must hold.
    calibration : array of shape (n, ...), or iterable of such batches, optional
        Fresh rows that resemble future inputs, on which the promise is tested. By default a quarter of X is used, which
        is valid only if the model was not trained on X.
    labels : array of shape (n,) or of the outputs' shape, optional
        True answers for the calibration rows (for X if there are none). The promise is then that the error rate of the
        replacement exceeds that of the model by at most ``disagreement``.
    tolerance : float, or pair of float and share, optional
        For outputs that are numbers: the error that counts as agreement. By default the largest output is the answer.
        For fields a pair: (error, share) lets that share of the pixels be further off, (None, share) have another
        class; classes are then the second axis.
    ladder : "auto" or sequence, optional
        Networks to try in this order, the cheapest first, such as ``["student", looser, model]``: functions from rows
        to outputs, or to (outputs, score). ``"student"`` is the one trained here; the last entry is the model, or
        ``"abstain"`` for no answer (rows of NaN). ``"auto"`` uses the student and the model with looser tolerances of
        its solver, where these are faster. All of them are tested together.
    **training
        ``student`` (an nn.Module of your own that is trained in place; by default one hidden layer of ReLU units with
        standardisation inside), ``options`` (a ``ReplaceOptions``: width of the default student, steps, mixed rows),
        ``seed`` (an int) and ``progress`` (whether to show a progress bar; by default after two seconds).

    Returns
    -------
    Replacement

    Raises
    ------
    CertificationError
        If the promise cannot be kept, because there are too few rows or the student is too weak. The message states
        what could be promised.

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
    check_promise(disagreement, confidence)
    options, seed = training.get("options") or ReplaceOptions(), training.get("seed", 0)
    generator = torch.Generator().manual_seed(whole_seed(seed))
    ask = Teacher(model, Agreement.of(tolerance))
    parts = model.modules() if isinstance(model, nn.Module) else ()
    if any(getattr(part, "_vector", None) is not None for part in parts):  # of a DEQ whose contraction is limited
        raise InvalidInputError("the model is still training: its eval() will return it to its limit; call that first")
    rows = read_rows(X, "X", generator, ask.like)
    fresh = None if calibration is None else read_rows(calibration, "calibration", generator, ask.like)
    _check_rows(rows, fresh, disagreement, confidence, labels is not None)
    beside = (X, rows) if fresh is None else (calibration, fresh)
    truth = None if labels is None else _truth(labels, *beside)
    train, choose, measure, truth = _split(ask, rows, fresh, truth, generator)
    if truth is not None:
        ask.agreement.check_truth(truth, measure.answers)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        pool = mix(train, ask, options, seed, training.get("progress"))
        networks, abstains = _networks(ladder, ask, train)
        if "student" in networks:
            student = training.get("student") or Student(train, options.width or width_of(train, model))
            _check_student(student, train, options.steps)
            if options.steps:
                distil(student, train, pool, choose, options, seed, training.get("progress"))
            networks[networks.index("student")] = student
        rungs = [with_score(one, train, pool, choose, options, disagreement, seed) for one in networks]
    scale = common_scale(rungs, choose)
    thresholds = thresholds_of(rungs, scale, choose, train)
    measured, alone, again = _measure(rungs, scale, measure, None if abstains else ask, truth)
    record: dict[str, Any] = {"distilled": len(train), "chosen": len(choose), "student_disagreement": alone}
    record |= asdict(ask.agreement) | {"labels": truth is not None, "abstains": abstains}
    record["rungs"] = [(rung.kind, *line) for rung, line in zip(rungs, scale, strict=True)]
    certificate = certify(measured, thresholds, (disagreement, confidence), **record)
    fast = Replacement(model, rungs, certificate, rows.shape[1:], Known.of(measure, again, rungs))
    _check_alone(fast, measure)
    return fast


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


class Replacement(Drawn, nn.Module):
    """Stand in for a model: a student answers where it is sure, the model elsewhere; made by ``nsd.replace``.

    Parameters
    ----------
    model : nn.Module or callable
        The model that is replaced.
    rungs : sequence of nn.Module
        The student, and further rungs of a ladder, with their scores: rows in, (outputs, score) out.
    certificate : Certificate
    shape : tuple of int
        The shape of one row.
    known : tuple of tensors
        A few rows, with the outputs of the model and the rungs, by which :meth:`load` recognises them.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.nn.Replacement.load("fast.safetensors", model)  # doctest: +SKIP
    """

    def __init__(
        self, model: Any, rungs: Sequence[Scored], certificate: Certificate, shape: Iterable[int], known: Any
    ) -> None:
        super().__init__()
        self.model, self.rungs, self.certificate, self.shape = model, nn.ModuleList(rungs), certificate, tuple(shape)
        self._known, self._counts, self._warned = known, [(0, 0)], False
        self._ask = Teacher(model, Agreement(certificate.tolerance, certificate.share))
        self._ask.shape = None if known is None else tuple(known.answers[0].shape[1:])
        self._autocast = autocast_of(self.scored.scale.device)
        self.training = False

    @property
    def scored(self) -> Scored:
        """The student with its score: rows in, (outputs, score) out."""
        return self.rungs[0]  # type: ignore[return-value]

    @property
    def student(self) -> nn.Module:
        """The bare student."""
        return self.scored.student

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Replacement:
        """Move to another device, but keep the precision in which the promise was measured."""
        own = self.scored.scale.dtype
        if fn(torch.zeros((), dtype=own)).dtype != own:
            raise InvalidInputError(
                f"the promise was measured in {own}, and other precisions give other answers; convert the model before "
                "nsd.replace"
            )
        return super()._apply(fn, recurse)

    def train(self, mode: bool = True) -> Replacement:
        """Stay in evaluation mode, the only one that the certificate knows; the model keeps its own."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the student's outputs where it is sure, and those of the next rung or the model elsewhere."""
        outputs, fell = self._answer(x)
        self._count(len(x), fell)
        return outputs

    def predict(self, X: Any, batch_size: int = 8192) -> Any:
        """Answer many rows: first by the student, then the remaining rows by the model in full batches.

        Arrays give an array of outputs. An iterable of batches of any length gives an iterator over their outputs, in
        order; they are held until the model has a full batch to answer, or 256 MB of them are there.
        """
        positive_int("batch_size", batch_size, most=2**31)
        if is_stream(X):
            return self._stream((rows_of(batch, "a batch of X") for batch in X), batch_size)
        rows = as_numbers(X, "X").detach()
        parts = list(self._stream(rows.split(batch_size) if rows.numel() and rows.ndim else [rows], batch_size))
        return like(torch.cat(parts), X)

    def _stream(self, batches: Iterable[Tensor], size: int) -> Iterator[Tensor]:
        """Yield the outputs of batches once enough rows were left for a batch of the next rung."""
        done: list[Tensor] = []
        left: list[tuple[Tensor, Tensor]] = []
        waiting = held = 0
        for batch in batches:
            x = self._rows(batch.to(self.scored.scale.device))
            outputs, open_rows = self._climb(x, 0)
            done.append(outputs)
            left.append((open_rows, x[open_rows]))
            waiting, held = waiting + len(open_rows), held + outputs.numel() + 1024  # for the tensor itself
            if waiting >= size or held > LIMITS.waiting:
                yield from self._finish(done, left, size)
                done, left, waiting, held = [], [], 0, 0
        yield from self._finish(done, left, size)

    def _finish(self, done: list[Tensor], left: list[tuple[Tensor, Tensor]], size: int) -> Iterator[Tensor]:
        """Yield outputs of which the open rows have been answered by the later rungs, all together."""
        fell = 0
        if any(len(where) for where, _ in left):
            parts = torch.cat([rows for _, rows in left])
            found = [self._rest(part, 1) for part in parts.tensor_split(math.ceil(len(parts) / (2 * size)))]
            fell = sum(count for _, count in found)
            answers = torch.cat([outputs for outputs, _ in found]).split([len(where) for where, _ in left])
            done = [one.index_copy(0, where, found) for one, (where, _), found in zip(done, left, answers, strict=True)]
        self._count(sum(len(one) for one in done), fell)
        yield from done

    def _answer(self, x: Tensor) -> tuple[Tensor, int]:
        """Return the outputs, and how many rows no rung answered."""
        return self._rest(self._rows(x), 0)

    def _rows(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor) or tuple(x.shape[1:]) != self.shape or x.ndim < 1:
            given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            sizes = ", ".join(map(str, ("rows", *self.shape)))
            raise InvalidInputError(f"expected a tensor of shape ({sizes}), got {given}; predict takes arrays, too")
        own = self.scored.scale
        if x.device != own.device or x.is_complex():
            raise InvalidInputError(f"expected real rows on {own.device}, got {x.dtype} on {x.device}; move them there")
        return x.detach().to(own.dtype)

    def _rest(self, x: Tensor, k: int) -> tuple[Tensor, int]:
        """Return the outputs of rung k and of those after it, and how many rows none of them answered."""
        if k == len(self.rungs):
            if self.certificate.abstains:
                return x.new_full((len(x), *self._known.answers[0].shape[1:]), math.nan), len(x)
            with self._as_measured():
                return self._ask(x), len(x)
        outputs, left = self._climb(x, k)
        if not len(left):
            return outputs, 0
        others, fell = self._rest(x[left], k + 1)
        return outputs.index_copy(0, left, others.to(outputs.dtype)), fell

    def _climb(self, x: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the outputs of rung k, and the numbers of the rows of which it is not sure."""
        with evaluating(self.rungs[k]), self._as_measured():
            outputs, score = self.rungs[k](x)
        return outputs, (~(score.double() >= self.certificate.rungs[k].threshold)).nonzero()[:, 0]

    def _as_measured(self) -> torch.autocast:
        """Answer under the autocast, or without, under which the promise was measured."""
        kind = self.scored.scale.device.type
        return torch.autocast(kind, dtype=self._autocast, enabled=self._autocast is not None)

    # -- after calibration -------------------------------------------------------------------------------
    def drift(self) -> Drift:
        """Compare the share of rows that no rung answered since calibration with that of the measured rows."""
        return compare_samples(self.certificate, *self._counts[-1], self._counts[:-1] or self._counts)

    def _count(self, rows: int, fell: int) -> None:
        """Add to the rows seen and those that fell through; counts at each doubling of the rows are kept."""
        *kept, (seen, before) = self._counts
        kept = kept if kept and seen <= 2 * kept[-1][0] else [*kept, (seen, before)]
        self._counts = [*kept, (seen + rows, before + fell)]
        if self._warned or not rows:
            return
        found = self.drift()
        if found.p_value < 1e-4:
            self._warned = True
            warn(
                f"the inputs have changed: the student leaves another share of them than the {found.expected:.2%} of "
                f"calibration ({found.share:.2%} of {found.rows:,} rows so far, p = {found.p_value:.1e}), and the "
                "promise speaks of inputs like those. Call replace again on rows like the latest"
            )

    def measure(self, x: Tensor, repeats: int = 9) -> Timing:
        """Return the median times of model, replacement and bare student on a batch, measured in turns."""
        x = self._rows(x).clone()
        with evaluating(self.model):
            return Timing(*median_times((self.model, self._answer, self.student), x, positive_int("repeats", repeats)))

    # -- elsewhere ---------------------------------------------------------------------------------------
    def save(self, path: str | Path) -> None:
        """Write student, thresholds and certificate to one safetensors file; the model is not in it."""
        tensors = {
            f"{k}.{name}": value for k, rung in enumerate(self.rungs) for name, value in rung.state_dict().items()
        }
        tensors |= {f"known.{k}": value for k, value in enumerate([*self._known[:2], *self._known.answers])}
        rungs = [_description(rung.student) for rung in self.rungs]
        document = {"shape": list(self.shape), "rungs": rungs, "certificate": asdict(self.certificate)}
        document["autocast"] = None if self._autocast is None else str(self._autocast).removeprefix("torch.")
        write_file(path, tensors, {"kind": "replacement", **document})

    @staticmethod
    def load(path: str | Path, model: Callable[..., Any], student: Any = None) -> Replacement:
        """Read what :meth:`save` wrote of this model, which must answer a few stored rows as it did then.

        A student of your own needs a network of its architecture, and other rungs of a ladder the functions
        themselves: ``student`` is one of them, or a list.
        """
        schema: dict[str, Any] = {"shape": Sequence[int], "rungs": list[dict[str, Any]], "certificate": dict[str, Any]}
        schema["autocast"] = Literal["bfloat16", "float16"] | None
        tensors, document = read_file(path, "replacement", schema)
        given = iter(student if isinstance(student, list | tuple) else [] if student is None else [student])
        try:
            certificate, known = Certificate(**document["certificate"]), Known.read(tensors, document["shape"])
            agreement = Agreement(certificate.tolerance, certificate.share)
            rungs = []
            for k, (about, said) in enumerate(zip(document["rungs"], certificate.rungs, strict=True)):
                own = {name[len(f"{k}.") :]: value for name, value in tensors.items() if name.startswith(f"{k}.")}
                data = Data(known.rows[:2], known.answers[0][:2], agreement)
                network = _read_network(about, own, data, model, given)
                if (said.score == OWN) != (isinstance(network, Called) and network.scores):
                    raise CheckpointError("a rung has a score of its own if it returns one, and only then")
                scored = Scored(network, said.score, data)
                scored.load_state_dict(own)
                rungs.append(scored.eval())
            found = Replacement(model, rungs, certificate, document["shape"], known)
            weights = next(model.parameters(), None) if isinstance(model, nn.Module) else None
            found = found if weights is None else found.to(weights.device)
            found._autocast = getattr(torch, document["autocast"]) if document["autocast"] else None
            with found._as_measured():
                known.check(found)
        except (KeyError, TypeError, RuntimeError, ValueError, IndexError, StopIteration, NotSoDeepError) as error:
            raise CheckpointError(f"{path} does not describe this replacement: {error}") from error
        return found

    def export_onnx(self, path: str | Path) -> Path:
        """Write the student as ONNX with outputs ``y`` and ``score``; rows below the threshold are the model's."""
        return write_onnx(self.scored, self.shape, path, ["y", "score"])

    def __repr__(self) -> str:
        size = sum(p.numel() for p in self.student.parameters())
        own = sum(p.numel() for p in self.model.parameters()) if isinstance(self.model, nn.Module) else 0
        beside = f" ({size / own:.1%} of the model's)" if own else ""
        return f"{self.certificate}\ncosts     {size:,} parameters{beside} for every row; the model for the others"

    def _repr_html_(self) -> str:
        return as_html("Replacement", ((line[:10].strip(), line[10:]) for line in repr(self).splitlines()))


class Known(NamedTuple):
    """A few rows, what the model and the rungs that are not stored answered, and how far they may be from that."""

    rows: Tensor
    allowed: Tensor
    answers: list[Tensor]

    @staticmethod
    def of(measure: Data, again: Tensor, rungs: Sequence[Scored]) -> Known:
        """Take the first measured rows; solvers stop by the batch, and other devices round differently."""
        some = measure[:_KNOWN_ROWS]
        allowed = 4.0 * (again - measure.answers).abs().max() + 1e-3 * measure.scale
        return Known(some.rows, allowed, [some.answers, *(called(some.rows) for called in _called(rungs))])

    @staticmethod
    def read(tensors: Mapping[str, Tensor], shape: Sequence[int]) -> Known:
        """Read them from the tensors of a file."""
        found = [tensors[f"known.{k}"] for k in range(sum(name.startswith("known.") for name in tensors))]
        rows, allowed, *answers = found
        check_shapes(tensors, {"known.0": (len(rows), *shape), "known.1": ()})
        check_shapes(tensors, {f"known.{k}": (len(rows), *answers[0].shape[1:]) for k in range(2, len(found))})
        return Known(rows, allowed, answers)

    def check(self, fast: Replacement) -> None:
        """Refuse another model, or another rung, than answered these rows."""
        asked = [] if fast.certificate.abstains else [("the model", fast._ask)]
        asked += [(called.name, called) for called in _called(fast.rungs)]
        answers = self.answers[fast.certificate.abstains :]
        rows = self.rows.to(fast.scored.scale.device)
        for (name, ask), before in zip(asked, answers, strict=True):
            now = ask(rows)
            if now.shape != before.shape or not bool(((now - before.to(now)).abs() <= self.allowed.to(now)).all()):
                raise CheckpointError(
                    f"{name} does not answer the stored rows as it did when this was certified: the promise speaks of "
                    "that one alone. Give it, or call replace for this one"
                )


def _called(rungs: Any) -> list[Teacher]:
    return [rung.student.teacher for rung in rungs if isinstance(rung.student, Called)]


def _description(network: Any) -> dict[str, Any]:
    """Return what a file says of a rung."""
    if isinstance(network, Student):
        return {"class": "Student", "width": network.hidden.out_features, "outputs": list(network.shape)}
    if isinstance(network, Called):
        return {"class": "Called", "factor": network.factor, "scores": network.scores}
    return {"class": type(network).__name__}


def _read_network(
    about: Mapping[str, Any], tensors: Mapping[str, Tensor], data: Data, model: Any, given: Iterator[Any]
) -> nn.Module:
    """Return the network of a rung, ready for its weights: one that is described, or the next that was given."""
    if about["class"] == "Student":
        check_fields(about, {"class": str, "width": int, "outputs": Sequence[int]})
        check_shapes(tensors, {"student.hidden.weight": (about["width"], data.rows[0].numel())})
        check_shapes(tensors, {"student.centre": (math.prod(about["outputs"]),)})
        if tuple(about["outputs"]) != tuple(data.answers.shape[1:]):
            raise CheckpointError(
                f"the student has outputs of shape {about['outputs']}, the stored answers have others"
            )
        return Student(data, about["width"])
    if about["class"] == "Called":
        check_fields(about, {"class": str, "factor": float | None, "scores": bool})
        if about["factor"] is not None:
            return looser(model, about["factor"], data.agreement)
    network = next(given, None)
    if network is None:
        raise CheckpointError(f"it holds a rung {shown(about['class'])}: give student=, a network like it")
    if about["class"] != "Called":
        return network
    called = Called(network, data.agreement, "a rung of the ladder")
    called.scores = about["scores"]
    return called


# ---- rows and rungs ------------------------------------------------------------------------------------------


def _check_rows(rows: Tensor, fresh: Tensor | None, disagreement: float, confidence: float, labels: bool) -> None:
    """Refuse too few rows, and calibration rows that are not fresh or of another shape."""
    if fresh is not None and fresh.shape[1:] != rows.shape[1:]:
        raise InvalidInputError(f"calibration rows have shape {tuple(fresh.shape[1:])}, X has {tuple(rows.shape[1:])}")
    measured = round(_SHARES[2] * len(rows)) if fresh is None else len(fresh)
    check_rows(measured, disagreement, confidence, _SHARES[2] if fresh is None else 1.0, labels)
    if fresh is not None:
        check_fresh(rows, fresh)
        return
    warn(
        "no calibration rows were given: a quarter of X is taken for inputs as fresh as those to come. If the "
        "model was trained on X they are not, and the promise is void; give calibration= rows that it has not seen"
    )


def _truth(labels: Any, source: Any, rows: Tensor) -> Tensor:
    """Return the true answers to rows, as a tensor beside them."""
    if is_stream(source):
        raise InvalidInputError("labels need their rows as one array, not as batches; join the batches")
    found = as_numbers(labels, "labels").detach().to(rows.device)
    if found.shape[:1] != rows.shape[:1] or not bool(torch.isfinite(found).all()):
        raise InvalidInputError(
            f"labels must be a finite class or row of numbers for each of {len(rows):,} rows, got {tuple(found.shape)}"
        )
    return found


def _split(
    ask: Teacher, rows: Tensor, fresh: Tensor | None, truth: Tensor | None, generator: torch.Generator
) -> tuple[Data, Data, Data, Tensor | None]:
    """Return the rows to distil, to choose the score by, and to measure, with the model's and the true answers."""
    order = torch.randperm(len(rows), generator=generator).to(rows.device)
    shares = _SHARES if fresh is None else (0.85, 0.15, 0.0)
    ends = [round(share * len(rows)) for share in itertools.accumulate(shares[:2])]
    parts = [_answered(ask, rows[which]) for which in (order[: ends[0]], order[ends[0] : ends[1]])]
    if not all(len(part) > 1 for part in parts):
        raise InvalidInputError(f"X has {len(rows)} rows, too few to distil and to choose a score; give more")
    if ask.agreement.tolerance is None and len(parts[0].answers.argmax(1).unique()) == 1:
        raise InvalidInputError(
            f"the model puts all {len(parts[0]):,} rows into one class: there is nothing to learn. Give rows of "
            "several classes, or tolerance= if its outputs are numbers"
        )
    if fresh is not None:
        return parts[0], parts[1], _answered(ask, fresh), truth
    last = order[ends[1] :]
    return parts[0], parts[1], _answered(ask, rows[last]), None if truth is None else truth[last]


def _answered(ask: Teacher, rows: Tensor) -> Data:
    return Data(rows, in_batches(ask, rows), ask.agreement)


def _networks(ladder: Any, ask: Teacher, train: Data) -> tuple[list[Any], bool]:
    """Return the rungs before the last, "student" for the one to be trained, and whether the last one abstains."""
    if ladder is None or (isinstance(ladder, str) and ladder == "auto"):
        return ["student", *(looser_rungs(ask.model, train.rows, ask.agreement) if ladder else [])], False
    rungs = list(ladder) if isinstance(ladder, list | tuple) else []
    abstains = bool(rungs) and isinstance(rungs[-1], str) and rungs[-1] == "abstain"
    if rungs and (abstains or rungs[-1] is ask.model):
        rungs = rungs[:-1]
    words = [rung for rung in rungs if isinstance(rung, str)]
    if not rungs or words not in ([], ["student"]) or not all(isinstance(r, str) or callable(r) for r in rungs):
        raise InvalidInputError(
            "ladder must be 'auto' or a sequence of functions, as ['student', looser, model], whose last entry is the "
            f"model or 'abstain'; got {shown(ladder)}"
        )
    found: list[Any] = []
    for k, rung in enumerate(rungs):
        found.append(rung if isinstance(rung, str) else Called(rung, ask.agreement, f"rung {k + 1} of the ladder"))
        if isinstance(found[-1], Called):
            found[-1].meet(train[:2])
    return found, abstains


def _check_student(student: nn.Module, data: Data, steps: int) -> None:
    rows = data.rows[:2].clone()
    with naming("the student", rows), torch.no_grad():
        outputs = student.eval()(rows)
    if not isinstance(outputs, Tensor) or outputs.shape != data.answers[:2].shape:
        raise InvalidInputError(
            f"the student must return outputs of shape {tuple(data.answers.shape[1:])} for each row as the model does, "
            f"got {tuple(outputs.shape[1:]) if isinstance(outputs, Tensor) else shown(outputs)}"
        )
    if not torch.equal(rows, data.rows[:2]):
        raise InvalidInputError(
            "the student overwrites the rows that it is given, as nn.ReLU(inplace=True) does, and the model would see "
            "what it left; take inplace=False"
        )
    if steps and not any(p.requires_grad for p in student.parameters()):
        raise InvalidInputError("the student has no parameter that requires a gradient: there is nothing to train")


# ---- what is measured ----------------------------------------------------------------------------------------


def _measure(
    rungs: Sequence[Scored],
    scale: Sequence[tuple[float, float]],
    data: Data,
    ask: Teacher | None,
    truth: Tensor | None,
) -> tuple[Measured, float, Tensor]:
    """Return scores and losses of the measured rows, how often rung 1 differs, and the answers of the model.

    Answers may depend on the batch, and later rungs will only see rows of which all before were unsure. So they, and
    the model, are measured on the least sure rows first: these share batches with their like.
    """
    scores: list[Array] = []
    answers: list[Tensor] = []
    surest = np.full(len(data), -np.inf)
    for rung, (offset, slope) in zip(rungs, scale, strict=True):
        order = torch.from_numpy(np.argsort(surest, kind="stable")).to(data.rows.device)
        outputs, score = scores_of(rung, data.rows[order])
        back = torch.argsort(order)
        answers.append(outputs[back])
        scores.append(offset + slope * score[back.cpu().numpy()])
        surest = np.fmax(surest, scores[-1])
    rest = data.answers if ask is None else _asked_again(ask, data, torch.from_numpy(np.argsort(surest, kind="stable")))
    losses = [_loss(outputs, data, truth).cpu().numpy() for outputs in (*answers, rest)]
    alone = float(data.differs(answers[0]).double().mean())
    return Measured(np.stack(scores, 1), np.stack(losses, 1)), alone, rest


def _loss(outputs: Tensor, data: Data, truth: Tensor | None) -> Tensor:
    if truth is None:
        return data.differs(outputs).int()
    return data.agreement.wrong(outputs, truth).int() - data.agreement.wrong(data.answers, truth).int()


def _asked_again(ask: Teacher, data: Data, order: Tensor) -> Tensor:
    """Return the model's answers when it is asked again, in this order and in smaller batches."""
    order = order.to(data.rows.device)
    again = torch.empty_like(data.answers)
    again[order] = in_batches(ask, data.rows[order], LIMITS.batch // 8)
    some = data[_spread(data)]
    alone = torch.cat([ask(row[None]) for row in some.rows])
    for share, how, most in ((data.differs(again), "among other rows", 0.05), (some.differs(alone), "alone", 0.1)):
        if float(share.double().mean()) > most:
            raise InvalidInputError(
                f"the model's outputs depend on the batch: {float(share.double().mean()):.1%} of the rows get another "
                f"answer {how}. A replacement needs a model that answers each row by itself"
            )
    return again


def _check_alone(fast: Replacement, data: Data) -> None:
    """Refuse a student or a rung whose answers to a row depend on the rows beside it: the promise is of each row."""
    data = data[: LIMITS.batch]
    some = _spread(data)
    for k, rung in enumerate(fast.rungs):
        outputs, unsure = fast._climb(data.rows, k)
        alone = [fast._climb(row[None], k) for row in data.rows[some]]
        again, outputs = torch.cat([found for found, _ in alone]), outputs[some]
        if isinstance(rung.student, Called):  # a solver stops by the batch
            other = data.agreement.differs(again.nan_to_num(), outputs.nan_to_num())
            left = torch.tensor([len(where) for _, where in alone], device=some.device) > 0
            other |= left != torch.isin(some, unsure)
        else:
            near = 1e-3 * fast.scored.scale + 8.0 * torch.finfo(outputs.dtype).eps * outputs.abs().amax()
            other = ((again - outputs).abs() > near).reshape(len(some), -1).any(1)
        if float(other.double().mean()) > 0.1:
            raise InvalidInputError(
                f"the answers of {f'rung {k + 1} of the ladder' if k else 'the student'} depend on the batch: "
                f"{float(other.double().mean()):.1%} of the rows get another one alone. Take networks that answer each "
                "row by itself: nn.BatchNorm1d(..., track_running_stats=False), say, does not"
            )


def _spread(data: Data) -> Tensor:
    """Return the numbers of a few rows, spread over all of them."""
    return torch.linspace(0, len(data) - 1, min(_ALONE, len(data)), dtype=torch.float64).long().to(data.rows.device)
