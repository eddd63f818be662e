"""DEQ, twin and a plain network of the same size, side by side over several seeds."""

from __future__ import annotations

import io
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..errors import InvalidInputError
from ..matching import Twin
from ..networks import DEQ as DEQSpec
from ..networks import ENN as ENNSpec
from .data import as_pair
from .deq import DEQ
from .enn import ENN
from .model import Model
from .train import fit

__all__ = ["Comparison", "Measurement", "compare", "peak_bytes"]

_COLUMNS = {
    "accuracy": ("accuracy %", 100.0),
    "agreement": ("agreement %", 100.0),
    "inference_seconds": ("inference ms", 1e3),
    "training_seconds": ("training s", 1.0),
    "inference_bytes": ("memory MiB", 2.0**-20),
}


@dataclass(frozen=True)
class Measurement:
    """One network, one seed. Times are of a batch (inference) and of the whole fit (training); ``agreement`` is the
    share of test rows classified as the DEQ of the same seed does; ``inference_bytes`` the peak of a batch."""

    model: str
    seed: int
    accuracy: float
    agreement: float
    inference_seconds: float
    training_seconds: float
    inference_bytes: int
    parameters: int


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
        if quantity not in _COLUMNS or model not in self.models:
            raise InvalidInputError(f"known: {list(_COLUMNS)} of {list(self.models)}; got {quantity!r} of {model!r}")
        return [float(getattr(row, quantity)) for row in self.rows if row.model == model]

    def summary(self, model: str, quantity: str) -> tuple[float, float]:
        """(mean, standard error) over the seeds."""
        values = self.values(model, quantity)
        spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
        return statistics.fmean(values), spread

    def speedup(self, model: str = "twin") -> float:
        """How many times faster than the DEQ a batch is."""
        return self.summary("DEQ", "inference_seconds")[0] / self.summary(model, "inference_seconds")[0]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def table(self) -> Table:
        """The summaries as a rich table: mean and standard error over the seeds."""
        table = Table(title=f"width {self.width}, batch {self.batch_size}, {len(self.rows) // len(self.models)} seeds")
        table.add_column("network")
        for title, _ in _COLUMNS.values():
            table.add_column(title, justify="right")
        table.add_column("speed-up", justify="right")
        for model in self.models:
            cells = [_cell(*self.summary(model, q), factor) for q, (_, factor) in _COLUMNS.items()]
            table.add_row(model, *cells, f"{self.speedup(model):.1f}")
        return table

    def __str__(self) -> str:
        console = Console(width=120, file=io.StringIO(), force_terminal=False)
        with console.capture() as captured:
            console.print(self.table())
        return captured.get().rstrip()


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
    lr: float = 1.0,
    ridge: float = 1e-3,
    batch_size: int = 128,
    init: str = "gaussian",
    device: torch.device | str | None = None,
) -> Comparison:
    """Build, train and time the DEQ, its twin and a plain network of the twin's depth with the DEQ's activation.

    ``data`` is a pair (X, classes); ``test`` another one, or a fifth of ``data`` is kept apart. Networks that are
    given as modules are built anew from their specifications, once per seed: fresh weights are what error bars need.
    ``init`` is that of twin and plain network, see :class:`ENN`; a twin's learning rates are used.
    """
    specs = _specifications(deq, twin, init)
    size = width or (deq.width if isinstance(deq, DEQ) else None)
    if size is None:
        raise InvalidInputError("specifications have no width: pass width=...")
    like = torch.empty(0, dtype=torch.get_default_dtype(), device=device)
    training, held = _two(as_pair(data, like), None if test is None else as_pair(test, like))
    classes = int(torch.cat([training[1], held[1]]).max()) + 1
    rows: list[Measurement] = []
    for seed in range(seeds) if isinstance(seeds, int) else seeds:
        reference: Tensor | None = None
        for name, build in specs.items():
            model = build(training[0].shape[1], size, classes, seed, train, device)
            history = fit(
                model, training, method=method, epochs=epochs, lr=lr, ridge=ridge, batch_size=batch_size, seed=seed
            )
            row, reference = _measure(name, seed, model, held, history.seconds, reference, batch_size)
            rows.append(row)
    return Comparison(tuple(rows), size, batch_size)


def _measure(
    name: str,
    seed: int,
    model: Model,
    held: tuple[Tensor, Tensor],
    seconds: float,
    reference: Tensor | None,
    batch: int,
) -> tuple[Measurement, Tensor]:
    model.eval()
    X, y = held
    with torch.no_grad():
        predicted = torch.cat([model(x) for x in X.split(1024)]).argmax(1)
        reference = predicted if reference is None else reference
        x = X[:batch]
        elapsed = _time(lambda: model(x), x.device)
        memory = peak_bytes(lambda: model(x), x.device)
    accuracy = float((predicted == y).double().mean())
    agreement = float((predicted == reference).double().mean())
    count = sum(p.numel() for p in model.parameters())
    return Measurement(name, seed, accuracy, agreement, elapsed, seconds, memory, count), reference


def _time(function: Callable[[], Any], device: torch.device, repeats: int = 7) -> float:
    """The quickest of several calls: what else runs on the machine only ever adds time."""
    best = float("inf")
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best


def _specifications(deq: Any, twin: Any, init: str) -> dict[str, Callable[..., Model]]:
    if isinstance(deq, DEQ):
        spec, options = deq.spec, deq.options
    elif isinstance(deq, DEQSpec):
        spec, options = deq, None
    else:
        raise InvalidInputError(f"compare takes an nn.DEQ or a DEQ specification, got {type(deq).__name__}")
    if not isinstance(twin, ENN | ENNSpec | Twin):
        raise InvalidInputError(f"compare takes an nn.ENN, an ENN specification or a Twin, got {type(twin).__name__}")
    network: ENNSpec | Twin = twin.spec if isinstance(twin, ENN) else twin
    taken: dict[str, Any] = {}  # a twin brings its learning rates itself
    if isinstance(twin, ENN):
        taken = {"learning_rates": twin.learning_rates, "normalise": twin.normalise}

    def build_deq(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        chosen = {} if options is None else options.to_dict()
        return DEQ(spec, p, m, k, seed, train=train, device=device, **chosen)

    def build_twin(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        return ENN(network, p, m, k, seed, init=init, train=train, device=device, **taken)

    def build_plain(p: int, m: int, k: int, seed: int, train: str, device: Any) -> Model:
        return ENN(ENNSpec([spec.activation] * network.depth), p, m, k, seed, init=init, train=train, device=device)

    return {"DEQ": build_deq, "twin": build_twin, "plain": build_plain}


def _two(data: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor] | None) -> tuple[Any, Any]:
    for _, y in (data, *([] if test is None else [test])):
        if y.is_floating_point():
            raise InvalidInputError("compare speaks of accuracy: y must hold integer classes")
    if test is not None:
        return data, test
    if len(data[0]) < 5:
        raise InvalidInputError(f"{len(data[0])} rows are too few to keep a fifth apart; pass test=(X, y)")
    order = torch.randperm(len(data[0]), generator=torch.Generator().manual_seed(0)).to(data[0].device)
    cut = len(order) // 5
    return tuple(t[order[cut:]] for t in data), tuple(t[order[:cut]] for t in data)


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
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        function()
    events = profile.kineto_results.events()
    changes = sorted(((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"), key=lambda c: c[0])
    current = peak = 0
    for _, change in changes:
        current += change
        peak = max(peak, current)
    return peak
