"""Many linear readouts on frozen random features, trained at once: one batched product per step for all networks."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import ConvergenceError, InvalidInputError

from ._data import Dataset, load
from ._measure import share
from ._runner import QUICK, Setup

_CPU_BYTES = 4 << 30  # of features held at once
Loss = Callable[[Tensor], Tensor]

Rates = Mapping[str, float]
"""Plain SGD or Adam -> its learning rate, which stays."""
_PAPERS = {"sgd": 1.0}
_OPTIMISERS: dict[str, Any] = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam}


def build(network: nsd.DEQ | nsd.ENN, data: Dataset, width: int, seed: int, device: str = "cpu") -> nsd.nn.Model:
    """Return a network of random features for a data set."""
    sizes = (data.p, width, len(data.classes))
    if isinstance(network, nsd.DEQ):
        return nsd.nn.DEQ(network, *sizes, seed, device=device)
    return nsd.nn.ENN(network, *sizes, seed, device=device)


@dataclass(frozen=True)
class Candidate:
    """A network whose readout is to be trained, and the network it is compared with."""

    network: nsd.DEQ | nsd.ENN
    reference: str = "DEQ"


Shares = dict[str, list[float]]
"""``"accuracy"``: of test rows; ``"agreement"``: those classified as another network does. One number per seed."""


@dataclass(frozen=True)
class ReadoutScores:
    """What the readouts of several networks reach, and what they took."""

    shares: dict[str, dict[str, Shares]]
    """By network and by optimiser."""
    feature_seconds: dict[str, list[float]]
    """By network, for the training rows, one per seed."""
    readout_seconds: float


def score(
    candidates: Mapping[str, Candidate],
    data: Dataset,
    width: int,
    setup: Setup = QUICK,
    *,
    epochs: int = 100,
    batch_size: int = 128,
    seeds: Sequence[int] = (0,),
    optimisers: Rates = _PAPERS,
) -> ReadoutScores:
    """Train a readout on the features of every network and seed, as many at once as the memory holds.

    Networks of one seed share their input weights and the order of the samples; batches of 128, as in the papers.
    """
    specs = [(name, seed) for name in candidates for seed in seeds]
    builders = [
        functools.partial(build, one.network, data, width, seed, setup.device)
        for one in candidates.values()
        for seed in seeds
    ]
    X, y, test, _ = data.tensors(setup.device)
    found: list[Tensor] = []
    clock: dict[str, list[float]] = {name: [] for name in candidates}
    elapsed = 0.0
    while len(found) < len(specs):
        features, held, seconds = _features(builders[len(found) :], X, test)
        here = specs[len(found) : len(found) + len(features)]
        order, started = [seed for _, seed in here], time.perf_counter()
        training: Any = {"epochs": epochs, "batch_size": batch_size}
        weights = train_readouts(features, y, len(data.classes), optimisers, order, **training)
        found += [(f @ w).argmax(-1).cpu() for f, w in zip(held, weights, strict=True)]
        elapsed += time.perf_counter() - started
        for (name, _), taken in zip(here, seconds, strict=True):
            clock[name].append(taken)
        del features, held  # before the next ones are made
    guesses, truth = dict(zip(specs, found, strict=True)), torch.from_numpy(data.y_test)

    def shares(name: str, j: int) -> Shares:
        pairs = [(guesses[name, seed][j], guesses[candidates[name].reference, seed][j]) for seed in seeds]
        accuracies, agreements = [share(guess, truth) for guess, _ in pairs], [share(*pair) for pair in pairs]
        return {"accuracy": [round(v, 6) for v in accuracies], "agreement": [round(v, 6) for v in agreements]}

    by_network = {name: {way: shares(name, j) for j, way in enumerate(optimisers)} for name in candidates}
    return ReadoutScores(by_network, clock, elapsed)


def _features(
    builders: Sequence[Callable[[], nsd.nn.Model]], X: Tensor, test: Tensor
) -> tuple[Tensor, Tensor, list[float]]:
    """Training and test features of the first networks, as many as fit, and the seconds for the training rows."""
    model = builders[0]()
    width = model.readout.shape[1]
    free = 0.6 * torch.cuda.mem_get_info(X.device)[0] if X.device.type == "cuda" else _CPU_BYTES
    count = min(len(builders), max(1, int(free / (X.element_size() * width * (len(X) + len(test))))))
    features, held = (X.new_empty(count, len(rows), width) for rows in (X, test))
    seconds = []
    for i in range(count):
        model = builders[i]() if i else model
        seconds.append(_fill(features[i], model, X))
        _fill(held[i], model, test)
    return features, held, seconds


def _fill(out: Tensor, model: nsd.nn.Model, X: Tensor) -> float:
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
    """Wait for what a GPU was asked to do; a CPU has done it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def train_readouts(
    features: Tensor,
    y: Tensor,
    classes: int,
    optimisers: Rates,
    seeds: Sequence[int],
    *,
    epochs: int = 100,
    batch_size: int = 128,
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
    if any(way not in _OPTIMISERS or not (math.isfinite(lr) and lr > 0) for way, lr in optimisers.items()):
        raise InvalidInputError(f"optimisers are 'sgd' or 'adam' with a positive learning rate, got {optimisers}")
    flat = features.reshape(networks * n, width)
    start = torch.arange(networks, device=features.device)[:, None] * n
    weights = [features.new_zeros(networks, width, classes).requires_grad_() for _ in optimisers]
    steppers = [_OPTIMISERS[way]([w], lr=lr) for (way, lr), w in zip(optimisers.items(), weights, strict=True)]
    for group in (g for s in steppers for g in s.param_groups if "capturable" in g):
        group["capturable"] = features.is_cuda

    def loss(rows: Tensor) -> Tensor:
        """The sum over networks and optimisers, which share nothing: each weight gets the gradient of its own."""
        batch = flat.index_select(0, (rows + start).flatten()).view(networks, -1, width)
        outputs = torch.bmm(batch, torch.cat(weights, -1)).unflatten(2, (len(weights), classes))
        targets = y[rows][:, :, None].expand(-1, -1, len(weights))
        total = torch.nn.functional.cross_entropy(outputs.flatten(0, 2), targets.flatten(), reduction="sum")
        return total / rows.shape[1]

    different = sorted(set(seeds))
    which = torch.tensor([different.index(seed) for seed in seeds], device=features.device)
    run_epoch = _recorded(loss, steppers, batch_size) if features.is_cuda else _plain(loss, steppers, batch_size)
    for epoch in range(epochs):
        orders = torch.stack([_sample_order(n, seed, epoch) for seed in different]).to(features.device)
        run_epoch(orders[which])
    found = torch.stack([w.detach() for w in weights], 1)
    if not bool(torch.isfinite(found).all()):
        raise ConvergenceError(f"a readout diverged under {dict(optimisers)}; lower the learning rate")
    return found


def _sample_order(n: int, seed: int, epoch: int) -> Tensor:
    """Return the order of the samples in an epoch; any run can find it again."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed * 1_000_003 + epoch))


def _descend(loss: Loss, batches: Iterable[Tensor], steppers: Sequence[torch.optim.Optimizer]) -> None:
    """Take one step of all optimisers for each batch."""
    for rows in batches:
        for stepper in steppers:
            stepper.zero_grad()
        loss(rows).backward()
        for stepper in steppers:
            stepper.step()


def _plain(loss: Loss, steppers: Sequence[torch.optim.Optimizer], batch_size: int) -> Callable[[Tensor], None]:
    """An epoch, given the order of the samples."""
    return lambda order: _descend(loss, order.split(batch_size, dim=1), steppers)


def _recorded(loss: Loss, steppers: Sequence[torch.optim.Optimizer], batch_size: int) -> Callable[[Tensor], None]:
    """The same on a GPU, recorded at the second epoch and replayed from then on.

    A step takes the card less time than Python takes to ask for it, so that what costs is the asking.
    """
    graph: torch.cuda.CUDAGraph | None = None
    held = torch.empty(0)

    def epoch(order: Tensor) -> None:
        nonlocal graph, held
        if not held.numel():  # the first: not recorded, and on a stream of its own, as recording demands
            held = order.clone()
            aside = torch.cuda.Stream()
            aside.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(aside):
                _descend(loss, held.split(batch_size, dim=1), steppers)
            torch.cuda.current_stream().wait_stream(aside)
            return
        held.copy_(order)
        if graph is None:
            for stepper in steppers:
                stepper.zero_grad(set_to_none=True)  # the gradients shall live where the recording keeps its own
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                _descend(loss, held.split(batch_size, dim=1), steppers)
        graph.replay()

    return epoch


# ---- what the studies of accuracy share ----

ACTIVATIONS = ("tanh", "relu")
DATASETS = ("mnist", "fashion_mnist", "cifar10_vgg")
SIGMA_A2 = 0.2
TRAIN_ROWS = 10_000

Load = Callable[..., Dataset]


@functools.cache
def twin_for(phi: str) -> nsd.Twin:
    """The DEQ of the papers and its twin, for standardised data: tau0 = 1."""
    return nsd.match(nsd.DEQ(phi, SIGMA_A2), 1.0)


def loader(setup: Setup) -> Load:
    """name -> the first training rows, standardised, and the whole test set; the last one is kept."""

    @functools.lru_cache(maxsize=1)
    def prepared(name: str) -> Dataset:
        data = load(name, setup.data)
        return data.first(min(TRAIN_ROWS, len(data.X_train))).standardised()

    return prepared


def rate(dataset: str) -> float:
    """Return the learning rate of SGD."""
    return 0.1 if dataset == "cifar10_vgg" else 1.0
