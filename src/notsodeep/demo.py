"""``notsodeep demo``: two deep equilibrium models and their one-layer twins, in one table and one figure.

On a Gaussian mixture and on the digits of scikit-learn the DEQ, its twin and a plain layer with the DEQ's activation
classify as kernel machines (exact, infinite width) and as networks of random features with a ridge readout.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import notsodeep as nsd

from ._files import atomic
from .equivalents import best_scalar, relative_spectral_error
from .nn.model import median_times
from .spectra import SpectralLaw

ACTIVATIONS = {"tanh": "tanh", "relu": "ReLU"}


class DemoSize(NamedTuple):
    """How much is computed."""

    dimension: int = 800
    points: int = 600
    width: int = 512
    seeds: int = 3


class DemoData(NamedTuple):
    """Labelled rows for training and for testing; the mixture they are drawn from, if there is one."""

    name: str
    train: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]
    mixture: nsd.GaussianMixture | None = None


class Row(NamedTuple):
    """What is measured of one network beside a DEQ: the DEQ itself, its twin, or a plain layer."""

    network: str
    distance: float  # of the exact conjugate kernel to the DEQ's, relative, in spectral norm
    scaled: float  # what the best common factor, which a readout learns by itself, leaves of it
    same: float  # share of test rows that the kernel machine puts into the class that the DEQ's machine chooses
    machine: float  # test accuracy of the kernel machine
    accuracy: float  # mean test accuracy of networks over the seeds
    seconds: float  # median time of a batch of 128 rows on one core


class Case(NamedTuple):
    """One DEQ on one data set: its twin, the eigenvalues of both kernels, their law, and the rows of the table."""

    data: str
    activation: str
    twin: nsd.Twin
    eigenvalues: dict[str, np.ndarray]
    law: SpectralLaw | None  # predicted without sampling: for odd activations, which are centred, on the mixture
    rows: tuple[Row, ...]


def main(folder: str | Path = "demo", console: Console | None = None, *, quick: bool = False) -> tuple[Case, ...]:
    """Compute, print the table, and write ``demo.png`` into ``folder``; return what was computed."""
    console = console or Console()
    started, size = time.perf_counter(), DemoSize(200, 150, 128, 2) if quick else DemoSize()
    target = Path(folder) / "demo.png"
    target.parent.mkdir(exist_ok=True)  # and no folders above it, as elsewhere
    asked = [(data, phi) for data in (_mixture(size), _digits(size)) for phi in ACTIVATIONS]
    found = []
    for i, (data, phi) in enumerate(asked, 1):
        console.print(f"{i} of {len(asked)}: {ACTIVATIONS[phi]} DEQ, its twin and a plain layer on the {data.name} ...")
        found.append(_case(data, phi, size))
    cases = tuple(found)
    console.print(table(cases, size))
    for case in cases[:2]:
        kinds = "one kind" if case.twin.kinds == 1 else f"{case.twin.kinds} kinds"
        how = "if its assumption holds" if case.twin.certificate.assumes else "proven"
        bound = f"error of every entry below {case.twin.bound:.0e} of the diagonal, {how}"
        console.print(f"{ACTIVATIONS[case.activation]}: one layer of {kinds} of units, {bound}.")
    with atomic(target) as part:
        draw(cases).savefig(part, format="png", dpi=110)
    console.print(f"Figure: {target} ({time.perf_counter() - started:.0f} s)")
    return cases


# ---- data ------------------------------------------------------------------------------------------------


def _mixture(size: DemoSize) -> DemoData:
    """Two classes with near means and covariances of different size: nobody can tell them apart without errors."""
    mixture = nsd.GaussianMixture.two_class(size.dimension, mu=3.0, cov=4.0)
    return DemoData("mixture", mixture.sample(size.points, seed=0), mixture.sample(size.points, seed=1), mixture)


def _digits(size: DemoSize) -> DemoData:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    train, test = nsd.standardise(X[: size.points], X[1400:])  # the last ones are by other writers
    return DemoData("digits", (train, y[: size.points]), (test, y[1400:]))


# ---- measurements ----------------------------------------------------------------------------------------


def _case(data: DemoData, phi: str, size: DemoSize) -> Case:
    deq, X = nsd.DEQ(phi, sigma_a2=0.2), data.train[0]
    twin = nsd.match_one_layer(deq, norms=None if deq.homogeneous else nsd.matching.norm_range(X))
    networks: dict[str, Any] = {"DEQ": deq, "twin": twin, "plain": nsd.ENN([phi])}
    kernels = {name: _kernel(network, X) for name, network in networks.items()}
    guesses = {name: _decide(kernels[name], _kernel(n, data.test[0], X), data) for name, n in networks.items()}
    models = {name: [_network(n, data, size.width, seed) for seed in range(size.seeds)] for name, n in networks.items()}
    seconds = _batch_seconds([found[0] for found in models.values()], data)
    rows = tuple(
        Row(
            name,
            relative_spectral_error(kernels["DEQ"], kernels[name]),
            best_scalar(kernels["DEQ"], kernels[name]).distance,
            float(np.mean(guesses[name] == guesses["DEQ"])),
            float(np.mean(guesses[name] == data.test[1])),
            statistics.fmean(_accuracy(model, data) for model in models[name]),
            taken,
        )
        for name, taken in zip(networks, seconds, strict=True)
    )
    odd, mixture = deq.activation.parity == "odd", data.mixture
    law = nsd.spectral_law(deq, mixture, n=len(X)) if mixture is not None and odd else None
    return Case(data.name, phi, twin, {name: np.linalg.eigvalsh(kernels[name]) for name in ("DEQ", "twin")}, law, rows)


def _kernel(network: Any, X: np.ndarray, Y: np.ndarray | None = None) -> np.ndarray:
    return network.kernel_matrix(X, Y) if isinstance(network, nsd.Twin) else nsd.ck(network, X, Y)


def _decide(kernel: np.ndarray, cross: np.ndarray, data: DemoData) -> np.ndarray:
    """Return the classes of the test rows by kernel regression."""
    targets = np.eye(int(data.train[1].max()) + 1)[data.train[1]]
    ridge = 1e-2 * float(np.trace(kernel)) / len(kernel)  # relative to the mean diagonal
    scores = cross @ np.linalg.solve(kernel + ridge * np.eye(len(kernel)), targets - targets.mean(0))
    return scores.argmax(1)


def _network(network: Any, data: DemoData, width: int, seed: int) -> Any:
    """Return random features with a readout by ridge regression."""
    X, y = data.train
    build: Callable[..., Any] = nsd.nn.DEQ if network.implicit else nsd.nn.ENN
    model = build(network, X.shape[1], width, int(y.max()) + 1, seed=seed)
    nsd.nn.fit_readout(model, (X, y), ridge=0.3 / len(X))  # larger than a kernel's, as random features are noisy
    return model


def _accuracy(model: Any, data: DemoData) -> float:
    with torch.no_grad():
        found = model(torch.from_numpy(data.test[0]).float()).argmax(1)
    return float((found.numpy() == data.test[1]).mean())


def _batch_seconds(models: Sequence[Any], data: DemoData) -> list[float]:
    """Return median times of one core, in turns: whatever else the machine does takes no part, or the same from all."""
    x = torch.from_numpy(data.test[0][:128]).float()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so that the time of this thread is all the work
    try:
        return median_times(models, x, 40, time.thread_time)
    finally:
        torch.set_num_threads(threads)


# ---- what is shown ---------------------------------------------------------------------------------------


def table(cases: Sequence[Case], size: DemoSize) -> Table:
    """Return the table: three rows for each data set and DEQ."""
    shown = Table(title="A DEQ, its one-layer twin, and a plain layer with the DEQ's activation", title_justify="left")
    shown.add_column("data, DEQ", no_wrap=True)
    shown.add_column("network", no_wrap=True)
    for heading in ("gap", "scaled", "exact\n%", "same\n%", f"width\n{size.width}, %", "speed"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for case in cases:
        for i, row in enumerate(case.rows):
            first = f"{case.data}, {ACTIVATIONS[case.activation]}" if i == 0 else ""
            gaps = ["", ""] if row.network == "DEQ" else [f"{row.distance:.0e}", f"{row.scaled:.0e}"]
            shares = [f"{100 * v:.1f}" for v in (row.machine, row.same, row.accuracy)]
            speed = f"{case.rows[0].seconds / row.seconds:.1f}"
            shown.add_row(first, row.network, *gaps, *shares, speed, end_section=i == 2)
    shown.caption = (
        "Gap: distance of the exact conjugate kernel to the DEQ's, relative, in spectral norm; scaled: what the best "
        "common factor leaves of it. Exact: test accuracy of kernel regression; same: test rows on which it decides as "
        f"the DEQ's does. Width: networks of {size.width} random features with a ridge readout, mean over {size.seeds} "
        "seeds. Speed: how many times faster than the DEQ a batch of 128 rows is, on one core. The plain layer decides "
        "nearly as the DEQ does, but its numbers are others; the twin has the DEQ's numbers."
    )
    shown.caption_justify = "left"
    return shown


def draw(cases: Sequence[Case]) -> Figure:
    """Draw the spectra of both kernels, of the DEQ and of its twin, for every data set and activation."""
    figure = Figure(figsize=(11.0, 7.6), layout="constrained")
    for ax, case in zip(figure.subplots(2, 2).flat, cases, strict=True):
        title = f"{ACTIVATIONS[case.activation]} DEQ on the {case.data}: spectrum of its conjugate kernel"
        display = nsd.plots.SpectrumDisplay.from_eigenvalues(case.eigenvalues["DEQ"], case.law, title)
        display.plot(ax, beside={f"one-layer twin ({case.rows[1].distance:.0e} away)": case.eigenvalues["twin"]})
    return figure
