"""Trained DEQs and their certified replacements: coverage, disagreement on fresh rows, accuracy, time.

A DEQ is trained with all its weights, by ``nsd.nn`` or on torchdeq. Rows that it has not seen are shuffled and cut in
two: one part is measured by ``nsd.replace``, on the other, fresh part the replacement is held against the DEQ. Rivals
are the bare student, and the DEQ itself with looser tolerances of its solver.

With ``--networks FOLDER --jobs 8`` the DEQs are trained several at a time and kept; what is timed runs by itself.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import math
import os
import statistics
import time
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import notsodeep as nsd
from notsodeep.errors import CertificationError, ContractionError, DataError

from ._data import load
from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import MARKERS, by_setting, panels, phrase, shared_legend

LOOSER = (1e-2, 1e-1)
BATCHES = (128, 1024, 8192)
SOLVERS = ("fixed_point_iter", "anderson", "broyden")
Kept = dict[tuple[int, float], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class ReplacedRun:
    """What decides the numbers of one DEQ."""

    data: str = "mnist"
    library: str = "notsodeep"
    activation: str = "relu"
    width: int = 1024
    contraction: float | None = None
    """The limit that is kept during training; only ``nsd.nn`` has one."""
    trained: int = 40_000
    measured: int = 20_000
    """The most rows that a certificate rests on."""
    fresh: int = 10_000
    epochs: int = 5
    lr: float = 0.01
    """Of weights of unit variance; on torchdeq, whose weights are smaller, a tenth of it."""
    batch_size: int = 256
    tol: float = 1e-3
    steps: int = 2000
    levels: tuple[float, ...] = (0.005, 0.002, 0.001)
    seed: int = 0


class OnTorchDEQ(nn.Module):
    """h = phi(W h + U x), outputs R h + r, solved by torchdeq."""

    def __init__(self, run: ReplacedRun, features: int, classes: int) -> None:
        super().__init__()
        self.recurrent = nn.Linear(run.width, run.width, bias=False)
        self.input, self.readout = nn.Linear(features, run.width), nn.Linear(run.width, classes)
        nn.init.normal_(self.recurrent.weight, std=math.sqrt(0.2 / run.width))
        nn.init.normal_(self.input.weight, std=math.sqrt(0.8))
        self.phi = {"relu": torch.relu, "tanh": torch.tanh}[run.activation]
        self.solve_by(SOLVERS[0], run.tol)

    def solve_by(self, solver: str, tol: float) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from torchdeq import get_deq
        modes = {"f_stop_mode": "rel", "b_stop_mode": "rel", "f_max_iter": 100, "b_max_iter": 60, "ift": True}
        self.solver, self.tol = solver, tol
        self.deq = get_deq(f_solver=solver, b_solver=solver, f_tol=tol, b_tol=tol, **modes).train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        drive = self.input(x)
        states, _ = self.deq(lambda h: self.phi(drive + self.recurrent(h)), torch.zeros_like(drive))
        return self.readout(states[-1])


def train(run: ReplacedRun, X: Tensor, y: Tensor, kept: Path | None = None) -> nn.Module:
    """Return a DEQ trained on classes with all its weights; a folder holds those that were trained before."""
    model, lr = _untrained(run, X, y)
    path = kept and kept / f"{hashlib.sha256(repr(run).encode()).hexdigest()[:16]}.safetensors"
    if path and path.exists():
        model.load_state_dict(load_file(path))
        return model.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that do not converge in the midst of training
        settings = {"epochs": run.epochs, "batch_size": run.batch_size, "seed": run.seed, "progress": False}
        nsd.nn.fit(model, (X, y), optimiser="adam", lr=lr, **settings)
    model.eval()
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(model.state_dict(), part := path.with_suffix(f".{os.getpid()}"))
        part.replace(path)
    return model


def _untrained(run: ReplacedRun, X: Tensor, y: Tensor) -> tuple[nn.Module, float]:
    """Return a DEQ and its learning rate."""
    classes = int(y.max()) + 1
    torch.manual_seed(run.seed)
    if run.library == "torchdeq":
        return OnTorchDEQ(run, X.shape[1], classes).to(X.device), run.lr / 10
    options = nsd.nn.SolverOptions(tol=run.tol, max_steps=100)
    spec = nsd.DEQ(run.activation, sigma_a2=0.2)
    own = {"seed": run.seed, "bias": True, "solver": options, "device": X.device}
    return nsd.nn.DEQ(spec, X.shape[1], run.width, classes, **own).limit_contraction(run.contraction), run.lr


def measure(run: ReplacedRun, setup: Setup) -> dict[str, Any]:
    """Return everything that is measured of one DEQ."""
    X, y, pool, labels = some_rows(run, setup)
    model = train(run, X, y, setup.networks)
    calibration, fresh = pool[: -run.fresh][: run.measured], pool[-run.fresh :]
    if run.library == "torchdeq":
        _take_quickest(model, fresh[: BATCHES[1]])
    answers, truth = _classes(model, fresh), labels[-run.fresh :]
    found: dict[str, Any] = {
        "accuracy": share(answers, truth),
        "contraction": model.contraction() if isinstance(model, nsd.nn.DEQ) else None,
        "solver": getattr(model, "solver", "") if run.library == "torchdeq" else "auto",
        "levels": [],
    }
    options = nsd.nn.ReplaceOptions(steps=run.steps)
    fast: nsd.nn.Replacement | None = None
    kept: Kept = {}
    for level in sorted(run.levels, key=lambda level: level != run.levels[1]):  # the one in the middle trains
        settings = {"calibration": calibration, "disagreement": level, "progress": False}
        ladder = None if fast is None else [fast.scored, model]
        started = time.perf_counter()
        try:
            with answers_kept(model, kept):
                one = nsd.replace(model, X, ladder=ladder, options=options, **settings)
        except CertificationError as error:
            found["levels"].append({"disagreement": level, "coverage": None, "refused": str(error)})
            continue
        told = {**asdict(one.certificate), **{f"fresh_{k}": v for k, v in _against(one, fresh, answers, truth).items()}}
        found["levels"].append(told)
        if fast is None:
            fast, options = one, nsd.nn.ReplaceOptions(steps=0)
            found["building_seconds"] = time.perf_counter() - started
            found["student"] = _against(fast.student, fresh, answers, truth)
            found["predict"] = throughput(model, fast, fresh, BATCHES[1:])
            told |= _times(fast, fresh)
            climbed = nsd.replace(model, X, ladder="auto", student=fast.student, options=options, **settings)
            found["ladder"] = _climbed(climbed, fresh, answers)
    found["levels"].sort(key=lambda level: -level["disagreement"])
    found["looser"] = [_looser(model, tol, fresh, answers, truth) for tol in LOOSER]
    found["decide"] = _proven(model, fresh, answers)
    return found


@contextlib.contextmanager
def answers_kept(model: nn.Module, kept: Kept) -> Iterator[None]:
    """Let a model answer each batch once: all promises are measured on the same rows, in the same batches."""
    solve = model.forward

    def recall(x: Tensor) -> Tensor:
        key = (len(x), float(x.double().sum()))
        if key not in kept or not torch.equal(kept[key][0], x):
            kept[key] = x.clone(), solve(x)
        return kept[key][1]

    model.forward = recall  # type: ignore[method-assign]
    try:
        yield
    finally:
        del model.forward


def throughput(model: Any, fast: nsd.nn.Replacement, rows: Tensor, sizes: Sequence[int]) -> dict[str, Any]:
    """Return seconds of all rows: by the model, by the replacement, by ``predict`` and by looser models, in batches."""

    def by(call: Callable[[Tensor], Any], size: int) -> Callable[[Tensor], Any]:
        return lambda x: [call(part) for part in x.split(size)]

    found: dict[str, Any] = {}
    for size in sizes:
        calls = {"model": by(model, size), "batches": by(fast, size), "predict": lambda x, n=size: fast.predict(x, n)}
        found[str(size)] = seconds(calls, rows)
        for tol in LOOSER:
            with tolerance(model, tol):
                found[str(size)][f"tol {tol:g}"] = seconds({"": by(model, size)}, rows)[""]
    return found


def _climbed(fast: nsd.nn.Replacement, fresh: Tensor, answers: Tensor) -> dict[str, Any]:
    """Return what a ladder does with fresh rows."""
    return {
        "shares": [rung.share for rung in fast.certificate.rungs],
        "disagreement": 1.0 - share(fast.predict(fresh).argmax(1), answers),
        "seconds": seconds({"": fast.predict}, fresh)[""],
    }


def _proven(model: Any, fresh: Tensor, answers: Tensor) -> dict[str, Any] | None:
    """Return how the classes of fresh rows are proven; None where nothing is known to contract."""
    if not isinstance(model, nsd.nn.DEQ):
        return None
    try:
        proof = model.decide(fresh)
    except ContractionError:
        return None
    return {
        "proven": float(proof.proven.double().mean()),
        "steps": float(proof.steps.double().mean()),
        "solver_steps": float(model.solve(fresh).row_steps.double().mean()),
        "disagreement": 1.0 - share(proof.classes, answers),
        **{
            f"{name}_seconds": found for name, found in seconds({"model": model, "decide": model.decide}, fresh).items()
        },
    }


def some_rows(run: ReplacedRun, setup: Setup) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows to train on with their classes, and all others, shuffled, with theirs."""
    X, y, X_test, y_test = _tensors(run.data, setup.data, setup.device)
    rest, labels = torch.cat([X[run.trained :], X_test]), torch.cat([y[run.trained :], y_test])
    own = zlib.crc32(repr(run).encode())  # every point is measured on a split of its own
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(own)).to(rest.device)
    return X[: run.trained], y[: run.trained], rest[order], labels[order]


@functools.lru_cache(maxsize=4)
def _tensors(data: str, folder: str | Path | None, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return load(data, folder).standardised().tensors(device)


def _classes(model: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cat([model(part).argmax(1) for part in X.split(1024)])


def _against(model: Any, X: Tensor, answers: Tensor, truth: Tensor) -> dict[str, float]:
    guess = _classes(model, X)
    return {"disagreement": 1.0 - share(guess, answers), "accuracy": share(guess, truth)}


def _times(fast: nsd.nn.Replacement, X: Tensor) -> dict[str, float]:
    """Return seconds of batches on the device and, of 1,024 rows, on two cores of the CPU; in turns each."""
    calls = {"model": fast.model, "replacement": fast, "student": fast.student}
    found = {size: seconds(calls, X[:size]) for size in BATCHES}
    out = {f"{name}_seconds_{size}": value for size, times in found.items() for name, value in times.items()}
    if X.is_cuda:
        threads = torch.get_num_threads()
        torch.set_num_threads(2)
        there = fast.cpu().measure(X[:1024].cpu(), repeats=3)._asdict()
        torch.set_num_threads(threads)
        fast.to(X.device)
        out |= {f"{name}_seconds_two_cores": value for name, value in there.items()}
    return out


def _take_quickest(model: Any, x: Tensor) -> None:
    """Let the model be solved by the solver of torchdeq that is quickest on it."""
    times = {}
    for solver in SOLVERS:
        model.solve_by(solver, model.tol)
        times[solver] = seconds({"": model}, x)[""]
    model.solve_by(min(times, key=lambda solver: times[solver]), model.tol)


def seconds(calls: Mapping[str, Callable[[Tensor], Any]], x: Tensor, repeats: int = 2) -> dict[str, float]:
    """Return the median seconds of calls, measured in turns; on the CPU those of the processor."""
    clock = time.perf_counter if x.is_cuda else time.process_time
    times: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats + 1):
            for name, call in calls.items():
                started = clock()
                call(x)
                if x.is_cuda:
                    torch.cuda.synchronize(x.device)
                times[name].append(clock() - started)
    return {name: statistics.median(found[1:]) for name, found in times.items()}


@contextlib.contextmanager
def tolerance(model: Any, tol: float) -> Iterator[None]:
    """Let a model be solved to another tolerance for a while."""
    own = isinstance(model, nsd.nn.DEQ)
    before = model.solver if own else model.tol
    if own:
        model.solver = nsd.nn.SolverOptions(tol=tol, max_steps=100)
    else:
        model.solve_by(model.solver, tol)
    try:
        yield
    finally:
        if own:
            model.solver = before
        else:
            model.solve_by(model.solver, before)


def _looser(model: Any, tol: float, X: Tensor, answers: Tensor, truth: Tensor) -> dict[str, float]:
    """Return what the DEQ itself gains and loses with a looser tolerance."""
    some = X[: BATCHES[-1]]
    exact = seconds({"": model}, some, 1)[""]
    with tolerance(model, tol):
        return {"tol": tol, **_against(model, X, answers, truth), "ratio": exact / seconds({"": model}, some, 1)[""]}


# ---- settings and figures ------------------------------------------------------------------------------------

_SIZES: dict[str, dict[str, Any]] = {
    "mnist": {},
    "fashion_mnist": {},
    "cifar10_vgg": {"trained": 35_000},
    "digits": {"trained": 600, "fresh": 397, "epochs": 40, "batch_size": 64, "levels": (0.05, 0.02, 0.005)},
}


def points(setup: Setup) -> list[Point]:
    """Return one point per DEQ; the quick ones are small, on the digits."""
    if setup.quick:
        small = {**_SIZES["digits"], "width": 64, "epochs": 15, "steps": 300}
        return [point(ReplacedRun("digits", **small), setup)]
    return [point(run, setup) for run in runs(1024)]


def runs(widest: int, **others: Any) -> list[ReplacedRun]:
    """Return the settings of all DEQs; ``others`` take the place of usual ones, but for the digits."""
    found = []
    for data, size in _SIZES.items():
        widths, settings = ((256,), size) if data == "digits" else ((widest // 4, widest), {**size, **others})
        found += [ReplacedRun(data, "notsodeep", "relu", width, **settings) for width in widths]
        found += [ReplacedRun(data, "notsodeep", "tanh", widths[-1], 0.95, **settings)]
        found += [ReplacedRun(data, "torchdeq", "tanh", widths[0], **settings)]
        found += [ReplacedRun(data, "torchdeq", "relu", widths[-1], **settings)]
    return sorted(found, key=lambda run: run.library)  # those that take long come last


def point(run: ReplacedRun, setup: Setup) -> Point:
    kept = "" if run.contraction is None else "/contraction"
    key = f"{run.data}/{run.library}/{run.activation}/{run.width}{kept}"
    return Point(
        key,
        asdict(run),
        functools.partial(_measured, run, setup),
        setup.networks and functools.partial(_trained, run, setup),
    )


def _trained(run: ReplacedRun, setup: Setup) -> None:
    train(run, *some_rows(run, setup)[:2], setup.networks)


def _measured(run: ReplacedRun, setup: Setup) -> dict[str, Any]:
    if run.library == "torchdeq":
        try:
            import torchdeq  # noqa: F401
        except ImportError:
            raise DataError("torchdeq is not installed; pip install torchdeq, or --only notsodeep") from None
    return measure(run, setup)


def draw(document: Document) -> dict[str, Figure]:
    """Return a figure per data set: coverage against what is promised, time against what differed."""
    return {name: _figure(name, found) for name, found in by_setting(document["points"].values(), "data").items()}


def _figure(name: str, found: Sequence[Document]) -> Figure:
    figure, (left, right) = panels((9.5, 4.8), f"{phrase(name)}: trained DEQs and their replacements", 1, 2)
    size = BATCHES[-1]
    for point, marker in zip(found, MARKERS * len(found), strict=False):
        settings, numbers = point["settings"], point["numbers"]
        kept = ", contraction kept" if settings["contraction"] else ""
        label = f"{settings['library']}, {phrase(settings['activation'])}, {settings['width']:,}{kept}"
        levels = [level for level in numbers["levels"] if level["coverage"] is not None]
        promised = [100 * level["disagreement"] for level in levels]
        (line,) = left.plot(promised, [100 * level["coverage"] for level in levels], marker=marker, label=label)
        timed = [level for level in levels if f"model_seconds_{size}" in level]
        ratio = [level[f"model_seconds_{size}"] / level[f"replacement_seconds_{size}"] for level in timed]
        seen = [100 * level["fresh_disagreement"] for level in timed]
        right.plot(seen, ratio, marker=marker, color=line.get_color(), linestyle="")
        looser = numbers["looser"]
        right.plot(
            [100 * one["disagreement"] for one in looser],
            [one["ratio"] for one in looser],
            marker=marker,
            color=line.get_color(),
            linestyle=":",
            markerfacecolor="none",
        )
    left.set(xlabel="promised disagreement, %", ylabel="rows answered by the student, %")
    right.set(
        xlabel="disagreement seen, % (open: looser tolerance)",
        ylabel=f"times as fast as the DEQ, batch of {size:,}",
    )
    right.set_yscale("log")
    shared_legend(figure, left, ncols=2)
    return figure


STUDY = Study(
    shows="trained DEQs replaced with a certified bound on how often answers differ",
    quick="20 s",
    full="8 min, H200",
    points=points,
    draw=draw,
)
