"""DEQ, twin and a plain network of the same size, side by side over several seeds."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from .._arguments import checked, whole
from .._arrays import as_device
from .._words import Init
from ..errors import InvalidInputError
from ..matching import Twin
from ..networks import DEQ as DEQSpec
from ..networks import ENN as ENNSpec
from .deq import DEQ
from .enn import ENN
from .model import Model, as_pair, hold_out, in_batches
from .train import History, fit, fit_readout

QUANTITIES = {
    "accuracy": ("accuracy %", 100.0),
    "agreement": ("agreement %", 100.0),
    "inference_seconds": ("inference ms", 1e3),
    "training_seconds": ("training s", 1.0),
    "inference_bytes": ("memory MiB", 2.0**-20),
}
"""What is measured of a network: its name with the unit it is shown in, and how many of that make one."""


_TRAINS: dict[str, Any] = {"readout": "ck", "frozen": "ntk_frozen", "recurrent": "ntk_frozen", "all": "ntk"}


@dataclass(frozen=True)
class Measurement:
    """One network, one seed. Times are of a batch (inference, the median of several calls in turns with the other
    networks) and of the whole fit (training); ``agreement`` is the share of test rows classified as the DEQ of the same
    seed does; ``inference_bytes`` the peak of a batch; ``contraction`` that of a DEQ after training.
    """

    model: str
    seed: int
    accuracy: float
    agreement: float
    inference_seconds: float
    training_seconds: float
    inference_bytes: int
    parameters: int
    contraction: float | None = None


@dataclass(frozen=True)
class Comparison:
    """Every measurement, with summaries over the seeds."""

    rows: tuple[Measurement, ...]
    width: int
    batch_size: int

    @property
    def models(self) -> tuple[str, ...]:
        """The networks compared, the DEQ first."""
        return tuple(dict.fromkeys(row.model for row in self.rows))

    def values(self, model: str, quantity: str) -> list[float]:
        """One quantity of one network over the seeds."""
        if quantity not in QUANTITIES or model not in self.models:
            raise InvalidInputError(f"known: {list(QUANTITIES)} of {list(self.models)}; got {quantity!r} of {model!r}")
        return [float(getattr(row, quantity)) for row in self.rows if row.model == model]

    def summary(self, model: str, quantity: str) -> tuple[float, float]:
        """(mean, standard error) over the seeds; of times (median, median distance to it), which one slow run does
        not move.
        """
        values = self.values(model, quantity)
        if quantity.endswith("_seconds"):
            middle = statistics.median(values)
            return middle, statistics.median(abs(v - middle) for v in values)
        return statistics.fmean(values), standard_error(values)

    def speedup(self, model: str = "twin") -> float:
        """How many times faster than the DEQ a batch is."""
        return self.summary("DEQ", "inference_seconds")[0] / self.summary(model, "inference_seconds")[0]

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the numbers alone do not say: a DEQ that left contraction while it trained."""
        left = [row.contraction for row in self.rows if row.contraction is not None and row.contraction >= 1.0]
        if not left:
            return ()
        return (
            f"{len(left)} of {len(self.values('DEQ', 'accuracy'))} DEQs are no contractions after training (sigma_a "
            f"|A| Lip / sqrt(m) up to {max(left):.2f}): their equilibrium need not be unique, and takes more steps to "
            "find. Lower the learning rate, or compare an nn.DEQ(...).limit_contraction(0.95)",
        )

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "remarks": list(self.remarks)}

    def table(self) -> Table:
        """The summaries as a rich table: mean and standard error over the seeds, of times median and median distance
        to it; remarks below.
        """
        title = f"width {self.width}, batch {self.batch_size}, {len(self.rows) // len(self.models)} seeds"
        table = Table(title=title, caption="\n".join(self.remarks) or None, caption_justify="left")
        table.add_column("network")
        for title, _ in QUANTITIES.values():
            table.add_column(title, justify="right")
        table.add_column("speed-up", justify="right")
        for model in self.models:
            cells = [_cell(*self.summary(model, q), factor) for q, (_, factor) in QUANTITIES.items()]
            table.add_row(model, *cells, f"{self.speedup(model):.1f}")
        return table

    def __str__(self) -> str:
        console = Console(width=120, file=io.StringIO(), force_terminal=False)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


@checked
def compare(
    deq: DEQ | DEQSpec,
    twin: ENN | ENNSpec | Twin,
    data: Any,
    *,
    test: Any = None,
    width: int | None = None,
    seeds: int | Sequence[int] = 5,
    method: Any = "ridge",
    train: str = "readout",
    epochs: int = 20,
    lr: float | None = None,
    ridge: float = 1e-3,
    batch_size: int = 128,
    init: Init = "gaussian",
    device: torch.device | str | None = None,
) -> Comparison:
    """Build, train and time the DEQ, its twin and a plain network of the twin's depth with the DEQ's activation.

    ``data`` is a pair (X, classes); ``test`` another one, or a fifth of ``data`` is kept apart. Networks that are
    given as modules are built anew from their specifications, once per seed: fresh weights are what error bars need.
    ``lr`` has a default for each method, see :func:`fit`; ``init`` is that of twin and plain network, see :class:`ENN`;
    a twin's learning rates are used, and one whose readout stands for the training of the whole DEQ (a tangent kernel
    with ``trains == "readout"``) trains its readout, whatever ``train`` says of the others.
    """
    specs = _specifications(deq, twin, init)
    size = width or (deq.width if isinstance(deq, DEQ) else None)
    if size is None:
        raise InvalidInputError("specifications have no width: pass width=...")
    like = torch.empty(0, dtype=torch.get_default_dtype(), device=as_device(device))
    training, held = _two(as_pair(data, like), None if test is None else as_pair(test, like))
    classes = int(torch.cat([training[1], held[1]]).max()) + 1
    rows: list[Measurement] = []
    if not isinstance(seeds, int) and not seeds:
        raise InvalidInputError("seeds must be a positive number of networks, or a list of at least one seed, got none")
    for seed in range(whole("seeds", seeds)) if isinstance(seeds, int) else seeds:
        models = {n: build(training[0].shape[1], size, classes, seed, train, device) for n, build in specs.items()}
        options: dict[str, Any] = {"epochs": epochs, "lr": lr, "batch_size": batch_size, "seed": seed}
        histories = {
            n: fit_readout(m, training, ridge=ridge)
            if method == "ridge"
            else fit(m, training, optimiser=method, **options)
            for n, m in models.items()
        }
        rows += _measure(models, histories, seed, held, batch_size)
    return Comparison(tuple(rows), size, batch_size)


def _measure(
    models: dict[str, Model], histories: dict[str, History], seed: int, held: tuple[Tensor, Tensor], batch: int
) -> list[Measurement]:
    """All networks of a seed, the DEQ first: what they predict, and what a batch costs."""
    X, y = held
    x = X[:batch]
    for model in models.values():
        model.eval()
    guesses = {name: in_batches(model, X).argmax(1) for name, model in models.items()}
    with torch.no_grad():
        seconds = median_times({name: functools.partial(model, x) for name, model in models.items()}, x.device)
        memory = {name: peak_bytes(functools.partial(model, x), x.device) for name, model in models.items()}
    reference = next(iter(guesses.values()))
    return [
        Measurement(
            name,
            seed,
            share(guesses[name], y),
            share(guesses[name], reference),
            seconds[name],
            histories[name].seconds,
            memory[name],
            sum(p.numel() for p in model.parameters()),
            model.contraction() if isinstance(model, DEQ) else None,
        )
        for name, model in models.items()
    ]


def standard_error(values: Sequence[float]) -> float:
    """Of a mean; zero where there is one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def share(guesses: Tensor, others: Tensor) -> float:
    """Of the rows that both put into the same class."""
    return float((guesses == others).double().mean())


def median_times(calls: Mapping[str, Callable[[], Any]], device: torch.device, repeats: int = 9) -> dict[str, float]:
    """The median time of each call, in turns: whatever else the machine does meets all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):
        for name, call in calls.items():
            synchronise(device)
            started = time.perf_counter()
            call()
            synchronise(device)
            times[name].append(time.perf_counter() - started)
    return {name: statistics.median(values[1:]) for name, values in times.items()}  # the first warms up


def synchronise(device: torch.device) -> None:
    """Wait for what a GPU was asked to do; a CPU has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _specifications(deq: Any, twin: Any, init: Init) -> dict[str, Callable[..., Model]]:
    if isinstance(deq, DEQ):
        spec, options = deq.spec, {"solver": deq.solver}
    elif isinstance(deq, DEQSpec):
        spec, options = deq, {}
    else:
        raise InvalidInputError(f"compare takes an nn.DEQ or a DEQ specification, got {type(deq).__name__}")
    if not isinstance(twin, ENN | ENNSpec | Twin):
        raise InvalidInputError(f"compare takes an nn.ENN, an ENN specification or a Twin, got {type(twin).__name__}")
    network: ENNSpec | Twin = twin.spec if isinstance(twin, ENN) else twin
    convex = isinstance(twin, Twin) and twin.kernel != "ck" and twin.trains == "readout"

    def build_deq(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        model = DEQ(spec, p, m, k, seed, kernel=_TRAINS[train], device=device, **options)
        return model.limit_contraction(deq.contraction_limit if isinstance(deq, DEQ) else None)

    def build_twin(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        kernel = "ck" if convex else _TRAINS[train]
        model = ENN(network, p, m, k, seed, init=init, kernel=kernel, device=device)
        if isinstance(twin, ENN):  # a twin brings these itself
            model.learning_rates, model.normalise = twin.learning_rates, twin.normalise
        return model

    def build_plain(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        return ENN(
            ENNSpec([spec.activation] * network.depth), p, m, k, seed, init=init, kernel=_TRAINS[train], device=device
        )

    return {"DEQ": build_deq, "twin": build_twin, "plain": build_plain}


def _two(data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor] | None) -> tuple[Any, Any]:
    for _, y in (data, *([] if test is None else [test])):
        if y.is_floating_point():
            raise InvalidInputError("compare speaks of accuracy: y must hold integer classes")
    if test is not None:
        return data, test
    parts = hold_out(len(data[0]), 0.2, seed=0)
    training, held = (tuple(t[part.to(t.device)] for t in data) for part in parts)
    return training, held


def _cell(mean: float, error: float, factor: float) -> str:
    return f"{mean * factor:.3g} ± {error * factor:.1g}"


def peak_bytes(function: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """The most bytes of tensors alive at one time during a call, beyond those alive before it.

    CUDA counts for itself. On the CPU the allocations are replayed from torch's profiler.
    """
    device = torch.device(device)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        function()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    with _quiet_profiler(), torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.kineto_results.events()
    changes = sorted(((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda c: c[0])
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Torch's profiler reports its own start and stop on standard error unless it is told not to when it first runs."""
    before = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        yield
    finally:
        if before is None:
            del os.environ["KINETO_LOG_LEVEL"]
