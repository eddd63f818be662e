"""Trained DEQs and their certified replacements: coverage, disagreement on fresh rows, accuracy, time.

A DEQ is trained with all its weights, by ``nsd.nn`` or on torchdeq. Rows that it has not seen are shuffled and cut in
two: one part is measured by ``nsd.replace``, on the other, fresh part the replacement is held against the DEQ. Rivals
are the bare student, and the DEQ itself with looser tolerances of its solver.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import time
import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

import notsodeep as nsd
from notsodeep.errors import CertificationError, DataError, InvalidInputError

from ._data import load
from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import MARKERS, by_setting, panels, phrase, shared_legend

LOOSER = (1e-2, 1e-1)
BATCHES = (128, 1024, 8192)
SOLVERS = ("fixed_point_iter", "anderson", "broyden")


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
        self.run, self.solver, self.tol = run, SOLVERS[0], run.tol
        self.recurrent = nn.Linear(run.width, run.width, bias=False)
        self.input, self.readout = nn.Linear(features, run.width), nn.Linear(run.width, classes)
        nn.init.normal_(self.recurrent.weight, std=math.sqrt(0.2 / run.width))
        nn.init.normal_(self.input.weight, std=math.sqrt(0.8))
        self.phi = {"relu": torch.relu, "tanh": torch.tanh}[run.activation]
        self.solvers: dict[tuple[str, float], Any] = {}

    def _deq(self) -> Any:
        key = (self.solver, self.tol)
        if key not in self.solvers:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torchdeq import get_deq
            modes = {"f_stop_mode": "rel", "b_stop_mode": "rel", "f_max_iter": 100, "b_max_iter": 60, "ift": True}
            deq = get_deq(f_solver=self.solver, b_solver=self.solver, f_tol=self.tol, b_tol=self.tol, **modes)
            self.solvers[key] = deq.train(self.training)
        return self.solvers[key].train(self.training)

    def forward(self, x: Tensor) -> Tensor:
        drive = self.input(x)
        states, _ = self._deq()(lambda h: self.phi(drive + self.recurrent(h)), torch.zeros_like(drive))
        return self.readout(states[-1])


def train(run: ReplacedRun, X: Tensor, y: Tensor) -> nn.Module:
    """Return a DEQ trained on classes with all its weights."""
    classes = int(y.max()) + 1
    torch.manual_seed(run.seed)
    if run.library == "torchdeq":
        model: nn.Module = OnTorchDEQ(run, X.shape[1], classes).to(X.device)
        lr = run.lr / 10
    else:
        options = nsd.nn.SolverOptions(tol=run.tol, max_steps=100)
        spec = nsd.DEQ(run.activation, sigma_a2=0.2)
        model = nsd.nn.DEQ(
            spec, X.shape[1], run.width, classes, seed=run.seed, bias=True, solver=options, device=X.device
        ).limit_contraction(run.contraction)
        lr = run.lr
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that do not converge in the midst of training
        settings = {"epochs": run.epochs, "batch_size": run.batch_size, "seed": run.seed, "progress": False}
        nsd.nn.fit(model, (X, y), optimiser="adam", lr=lr, **settings)
    return model.eval()


def measure(run: ReplacedRun, setup: Setup) -> dict[str, Any]:
    """Return everything that is measured of one DEQ."""
    X, y, pool, labels = _rows(run, setup)
    model = train(run, X, y)
    calibration, fresh = pool[: -run.fresh], pool[-run.fresh :]
    if run.library == "torchdeq":
        _take_quickest(model, fresh[: BATCHES[-1]])
    answers, truth = _classes(model, fresh), labels[-run.fresh :]
    found: dict[str, Any] = {
        "accuracy": share(answers, truth),
        "contraction": model.contraction() if isinstance(model, nsd.nn.DEQ) else None,
        "solver": getattr(model, "solver", "") if run.library == "torchdeq" else "auto",
        "levels": [],
    }
    student: nn.Module | None = None
    for level in run.levels:
        options = nsd.nn.ReplaceOptions(steps=run.steps if student is None else 0)
        try:
            fast = nsd.replace(
                model, X, calibration=calibration, disagreement=level, student=student, options=options, progress=False
            )
        except CertificationError as error:
            found["levels"].append({"disagreement": level, "coverage": None, "refused": str(error)})
            continue
        if student is None:
            student = fast.student
            found["student"] = _against(student, fresh, answers, truth)
        record = _against(fast, fresh, answers, truth)
        timing = _times(fast, fresh, cpu=level == run.levels[1])
        if level == run.levels[1]:
            found |= _further(model, fast, X, calibration, fresh, answers)
        told = asdict(fast.certificate)
        found["levels"].append({**told, **{f"fresh_{k}": v for k, v in record.items()}, **timing})
    found["looser"] = [_looser(model, tol, fresh, answers, truth) for tol in LOOSER]
    return found


def _further(
    model: Any, fast: nsd.nn.Replacement, X: Tensor, calibration: Tensor, fresh: Tensor, answers: Tensor
) -> dict[str, Any]:
    """Return what proofs, ladders and predicting all rows at once give, at the promise of a replacement."""
    size, promise = BATCHES[1], fast.certificate.disagreement

    def by_batches(call: Callable[[Tensor], Any]) -> Callable[[Tensor], list[Any]]:
        return lambda rows: [call(part) for part in rows.split(size)]

    seconds = [_median_seconds(call, fresh, 3) for call in (by_batches(model), by_batches(fast), fast.predict)]
    found: dict[str, Any] = {"predict": dict(zip(("model", "batches", "predict"), seconds, strict=True))}
    options = nsd.nn.ReplaceOptions(steps=0)
    with contextlib.suppress(InvalidInputError):  # a model whose solver is made anew at every call
        climbed = nsd.replace(
            model,
            X,
            calibration=calibration,
            disagreement=promise,
            ladder="auto",
            student=fast.student,
            options=options,
            progress=False,
        )
        shares = [rung.share for rung in climbed.certificate.rungs]
        differs = float((climbed.predict(fresh).argmax(1) != answers).double().mean())
        found["ladder"] = {
            "shares": shares,
            "disagreement": differs,
            "seconds": _median_seconds(climbed.predict, fresh, 3),
        }
    with contextlib.suppress(AttributeError, InvalidInputError):  # no contraction, or no model of this library
        proof = model.decide(fresh)
        found["decide"] = {
            "proven": float(proof.proven.double().mean()),
            "steps": float(proof.steps.double().mean()),
            "solver_steps": float(model.solve(fresh).row_steps.double().mean()),
            "disagreement": float((proof.classes != answers).double().mean()),
            "seconds": _median_seconds(model.decide, fresh, 3),
        }
    return found


def _rows(run: ReplacedRun, setup: Setup) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return rows to train on with their classes, and all others, shuffled, with theirs."""
    X, y, X_test, y_test = load(run.data, setup.data).standardised().tensors(setup.device)
    rest, labels = torch.cat([X[run.trained :], X_test]), torch.cat([y[run.trained :], y_test])
    own = zlib.crc32(repr(run).encode())  # every point is measured on a split of its own
    order = torch.randperm(len(rest), generator=torch.Generator().manual_seed(own)).to(rest.device)
    return X[: run.trained], y[: run.trained], rest[order], labels[order]


def _classes(model: Callable[[Tensor], Tensor], X: Tensor) -> Tensor:
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.cat([model(part).argmax(1) for part in X.split(1024)])


def _against(model: Any, X: Tensor, answers: Tensor, truth: Tensor) -> dict[str, float]:
    guess = _classes(model, X)
    return {"disagreement": 1.0 - share(guess, answers), "accuracy": share(guess, truth)}


def _times(fast: nsd.nn.Replacement, X: Tensor, cpu: bool) -> dict[str, float]:
    """Return seconds of batches on the device and, of 1,024 rows, on two cores of the CPU; in turns each."""
    found = {size: fast.measure(X[:size])._asdict() for size in BATCHES}
    out = {f"{name}_seconds_{size}": value for size, times in found.items() for name, value in times.items()}
    if X.is_cuda and cpu:
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
        model.solver = solver
        times[solver] = _median_seconds(model, x)
    model.solver = min(times, key=lambda solver: times[solver])


def _median_seconds(call: Callable[[Tensor], Any], x: Tensor, repeats: int = 5) -> float:
    times = []
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(repeats + 1):
            started = time.perf_counter()
            call(x)
            if x.is_cuda:
                torch.cuda.synchronize(x.device)
            times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _looser(model: Any, tol: float, X: Tensor, answers: Tensor, truth: Tensor) -> dict[str, float]:
    """Return what the DEQ itself gains and loses with a looser tolerance."""
    own = nsd.nn.DEQ if isinstance(model, nsd.nn.DEQ) else None
    exact, before = _median_seconds(model, X[: BATCHES[-1]]), model.solver if own else model.tol
    if own:
        model.solver = nsd.nn.SolverOptions(tol=tol, max_steps=100)
    else:
        model.tol = tol
    try:
        return {
            "tol": tol,
            **_against(model, X, answers, truth),
            "ratio": exact / _median_seconds(model, X[: BATCHES[-1]]),
        }
    finally:
        if own:
            model.solver = before
        else:
            model.tol = before


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
        return [_point(ReplacedRun("digits", **small), setup)]
    runs = []
    for data, size in _SIZES.items():
        widths = (256,) if data == "digits" else (256, 1024)
        runs += [ReplacedRun(data, "notsodeep", "relu", width, **size) for width in widths]
        runs += [ReplacedRun(data, "notsodeep", "tanh", widths[-1], 0.95, **size)]
        runs += [ReplacedRun(data, "torchdeq", "tanh", widths[0], **size)]
        runs += [ReplacedRun(data, "torchdeq", "relu", widths[-1], **size)]
    return [_point(run, setup) for run in runs]


def _point(run: ReplacedRun, setup: Setup) -> Point:
    kept = "" if run.contraction is None else "/contraction"
    key = f"{run.data}/{run.library}/{run.activation}/{run.width}{kept}"
    return Point(key, asdict(run), partial(_measured, run, setup))


def _measured(run: ReplacedRun, setup: Setup) -> dict[str, Any]:
    if run.library == "torchdeq":
        try:
            import torchdeq  # noqa: F401
        except ImportError:
            raise DataError("torchdeq is not installed; pip install torchdeq, or leave these points out") from None
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
        seen = [100 * level["fresh_disagreement"] for level in levels]
        ratio = [level[f"model_seconds_{size}"] / level[f"replacement_seconds_{size}"] for level in levels]
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
