"""Kernels of convolutional DEQs with average pooling before the readout, on few rows.

Machines: ridge regression on classes with the CK and the NTK of a dense DEQ and of convolutional ones with boxes of
several sizes (ReLU, 3 x 3 filters, sigma_b2 = 0.8), with an RBF kernel, and a small convolutional network trained by
Adam, three seeds. The variance sigma_a2 (or the width of the RBF kernel) and the ridge are those that are best on the
last fifth of the training rows, sigma_a2 once for all numbers of rows. Test rows are scored once.

Images are those of the data set, or means over blocks of their pixels where ``side`` is smaller, then scaled to a mean
squared norm of one. ``whiten`` is the ridge of zero-phase whitening (ZCA), relative to the mean variance of a pixel,
with the statistics of the training rows. ``flips`` averages the kernel over an image and its mirror image.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import NullLocator
from torch import Tensor, nn

import notsodeep as nsd

from ._data import load
from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import by_setting, panels, shared_legend, word
from .convolution import RIDGES, classes

SIGMAS = (0.2, 1.0)
WIDTHS = (0.3, 1.0, 3.0)
Rows = tuple[Tensor, Tensor, Tensor, Tensor]
Matrices = Callable[[float, Tensor, Tensor | None], dict[str, Tensor]]


def images(setup: Setup, dataset: str, side: int, train: int, test: int, whiten: float | None) -> Rows:
    """Return the images and classes that are fitted and those that are scored."""
    X, y, X_test, y_test = load(dataset, setup.data).first(train).tensors(setup.device)
    size = math.isqrt(X.shape[1])

    def small(rows: Tensor) -> Tensor:
        return nn.functional.avg_pool2d(rows.reshape(-1, 1, size, size), size // side).flatten(1)

    X, X_test = small(X), small(X_test[:test])
    if whiten is not None:
        mean, centred = X.mean(0), (X - X.mean(0)).double()
        values, vectors = torch.linalg.eigh(centred.T @ centred / len(X))
        roots = (values.clamp_min(0.0) + whiten * values.mean()).rsqrt()
        X, X_test = (((part - mean).double() @ (vectors * roots) @ vectors.T).float() for part in (X, X_test))
    scale = X.square().sum(1).mean().sqrt()
    return X / scale, y, X_test / scale, y_test[:test]


def machine(
    setup: Setup,
    dataset: str,
    side: int,
    train: Sequence[int],
    test: int,
    pool: int | None,
    flips: bool,
    whiten: float | None,
) -> dict[str, Any]:
    """Accuracy of both kernels for each number of rows; ``pool`` None is the dense DEQ."""

    def matrices(sigma_a2: float, X: Tensor, Y: Tensor | None) -> dict[str, Tensor]:
        network: Any = nsd.DEQ("relu", sigma_a2, 0.8)
        if pool is not None:
            network = nsd.ConvDEQ("relu", sigma_a2, 0.8, image=(1, side, side), pool=pool)
        options: Any = {"kernels": ("ck", "ntk"), "check": False}
        found = nsd.kernels_of(network, X, Y, **options)
        if flips:
            mirrored = (X if Y is None else Y).reshape(-1, side, side).flip(2).flatten(1)
            other = nsd.kernels_of(network, X, mirrored, **options)
            found = {kernel: 0.5 * (K + other[kernel]) for kernel, K in found.items()}
        return found

    return scores(matrices, SIGMAS, images(setup, dataset, side, max(train), test, whiten), train)


def rbf(setup: Setup, dataset: str, side: int, train: Sequence[int], test: int) -> dict[str, Any]:
    """Accuracy of the RBF kernel exp(-|x - y|^2 / (2 width^2))."""

    def matrices(width: float, X: Tensor, Y: Tensor | None) -> dict[str, Tensor]:
        return {"rbf": torch.exp(-0.5 * (torch.cdist(X, X if Y is None else Y) / width) ** 2)}

    return scores(matrices, WIDTHS, images(setup, dataset, side, max(train), test, None), train)


def scores(matrices: Matrices, settings: Sequence[float], rows: Rows, train: Sequence[int]) -> dict[str, Any]:
    """Test accuracy of each kernel and number of rows, with what was chosen on held-out rows, and seconds."""
    X, y, X_test, y_test = rows
    started = time.perf_counter()
    squares = {value: matrices(value, X, None) for value in settings}

    def held_out(K: Tensor, n: int, ridge: float) -> float:
        some, rest = slice(0, n - n // 5), slice(n - n // 5, n)
        return share(classes(K[some, some], K[rest, some], y[some], ridge), y[rest])

    def best(K: Tensor, n: int) -> tuple[float, float]:
        return max((held_out(K, n, ridge), ridge) for ridge in RIDGES)

    chosen = max(settings, key=lambda value: sum(best(K, max(train))[0] for K in squares[value].values()))
    cross, found = matrices(chosen, X_test, X), {}
    for kernel, K in squares[chosen].items():
        ridges = [best(K, n)[1] for n in train]
        guesses = [classes(K[:n, :n], cross[kernel][:, :n], y[:n], r) for n, r in zip(train, ridges, strict=True)]
        found[kernel] = {"accuracy": [share(guess, y_test) for guess in guesses], "ridge": ridges}
    return {**found, "chosen": chosen, "kernel_seconds": round(time.perf_counter() - started, 1)}


def network(setup: Setup, dataset: str, side: int, train: Sequence[int], test: int, epochs: int) -> dict[str, Any]:
    """Mean accuracy of a small convolutional network trained by Adam, and its standard deviation over three seeds."""
    X, y, X_test, y_test = images(setup, dataset, side, max(train), test, None)
    each = [[_trained(X[:n], y[:n], X_test, y_test, side, epochs, seed) for seed in range(3)] for n in train]
    parts = torch.tensor(each, dtype=torch.float64)
    return {"cnn": {"accuracy": parts.mean(1).tolist(), "deviation": parts.std(1).tolist()}}


def _trained(X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor, side: int, epochs: int, seed: int) -> float:
    torch.manual_seed(seed)
    layers = [nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(64 * (side // 4) ** 2, 10)).to(X.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
    scale = math.sqrt(X.shape[1])  # pixels of unit size, as these initial weights expect
    Z, Z_test = (scale * part.reshape(-1, 1, side, side) for part in (X, X_test))
    for _ in range(epochs):
        for part in torch.randperm(len(Z)).split(32):
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(Z[part]), y[part]).backward()
            optimiser.step()
    with torch.no_grad():
        return share(model(Z_test).argmax(1), y_test)


def points(setup: Setup) -> list[Point]:
    """Digits quickly; reduced images and few rows on a CPU; the images as they are, and more rows, on a GPU."""
    if setup.quick:
        return _group(setup, ("digits",), {"side": 8, "train": [40, 80], "test": 60}, (1, 2))
    if setup.device.startswith("cuda"):
        return _group(setup, _NAMES, {"side": 28, "train": [1000, 3000, 10_000], "test": 10_000}, (1, 3, 5))
    found = _group(setup, _NAMES, {"side": 14, "train": [50, 100, 200], "test": 300}, (1, 3))
    return found + _group(setup, _NAMES, {"side": 7, "train": [200, 500, 1000], "test": 300}, (1, 3, 5), "/7x7")


def _group(
    setup: Setup, names: Sequence[str], sizes: Mapping[str, Any], boxes: Sequence[int], end: str = ""
) -> list[Point]:
    """All machines at one size of images, boxes last; flips and whitening for the last data set."""

    def point(dataset: str, pool: int | None, flips: bool = False, whiten: float | None = None) -> Point:
        kind = "dense" if pool is None else f"box{pool}"
        key = f"{dataset}/{kind}" + ("/flips" if flips else "") + ("/whitened" if whiten else "") + end
        settings = {"dataset": dataset, **sizes, "pool": pool, "flips": flips, "whiten": whiten}
        return Point.of(key, settings, machine, setup=setup)

    found = [point(name, pool) for name in names for pool in (None, boxes[0])]
    for name in names:
        settings = {"dataset": name, **sizes}
        epochs = {"epochs": 5 if setup.quick else 60}
        found.append(Point.of(f"{name}/rbf{end}", settings, rbf, setup=setup))
        found.append(Point.of(f"{name}/cnn{end}", {**settings, **epochs}, network, setup=setup))
    last = names[-1]
    found += [point(name, pool) for pool in boxes[1:2] for name in names]
    found += [*(point(last, pool, flips=True) for pool in boxes[:2]), point(last, boxes[0], whiten=1.0)]
    return [*found, *(point(name, pool) for pool in boxes[2:] for name in names)]


_NAMES = ("mnist", "fashion_mnist")


def draw(document: Document) -> dict[str, Figure]:
    """Test accuracy against training rows, one panel for each data set."""
    groups = by_setting(list(document["points"].values()), "dataset", "side")
    figure, axes = panels((4.6 * len(groups), 4.2), "pooling before the readout", 1, len(groups), squeeze=False)
    for ax, ((dataset, side), found) in zip(axes[0], groups.items(), strict=True):
        for record in found:
            _lines(ax, record)
        rows = found[0]["settings"]["train"]
        ax.set(
            title=f"{word(dataset)}, {side} x {side}",
            xlabel="training rows",
            xscale="log",
            xticks=rows,
            xticklabels=rows,
        )
        ax.xaxis.set_minor_locator(NullLocator())
    axes[0][0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0][-1], ncols=4)
    return {"accuracy": figure, "shifts": _picture((1, 2), 3)}


def _picture(shift: tuple[int, int], box: int) -> Figure:
    """Two digits, the positions that a shift pairs, and the weights of all shifts of a box."""
    x, y = load("digits").X_train[[3, 13]].reshape(2, 8, 8)
    figure, axes = panels((9.0, 3.9), "a shift d pairs position p of x with position p + d of y", 1, 3)
    down, across = shift
    for ax, image, corner, name in ((axes[0], x, (0, 0), "x"), (axes[1], y, shift, "y")):
        ax.imshow(image, cmap="Greys")
        low = (corner[1] - 0.5, corner[0] - 0.5)
        ax.add_patch(Rectangle(low, 8 - across, 8 - down, fill=False, color="C1", linewidth=2.5))
        ax.set(title=f"{name}, overlap at d = {shift}", xticks=[], yticks=[])
    weights = nsd.ConvDEQ("relu", 0.2, image=(1, 8, 8), pool=box).averages.shifts
    reach = range(1 - box, box)
    grid = [[weights[i, j] * box**4 for j in reach] for i in reach]
    axes[2].imshow(grid, cmap="Oranges", extent=(reach[0] - 0.5, box - 0.5, box - 0.5, reach[0] - 0.5))
    for i, j in weights:
        axes[2].text(j, i, f"{weights[i, j] * box**4:.0f}", ha="center", va="center", color="black")
    axes[2].set(title=f"weights times {box**4}, box {box}", xlabel="across", ylabel="down")
    return figure


_LOOKS: dict[Any, tuple[str, str]] = {
    None: ("0.5", "dense"),
    1: ("C0", "box 1"),
    2: ("C1", "box 2"),
    3: ("C1", "box 3"),
}


def _lines(ax: Any, record: Document) -> None:
    settings, numbers = record["settings"], record["numbers"]
    for kernel, line in (("ck", "--"), ("ntk", "-"), ("rbf", "-"), ("cnn", "-")):
        if kernel in numbers:
            others = {"rbf": ("C2", "RBF"), "cnn": ("C3", "CNN, Adam")}
            colour, name = others.get(kernel) or _LOOKS.get(settings["pool"], ("C4", f"box {settings['pool']}"))
            name += f", {kernel.upper()}" if kernel in ("ck", "ntk") else ""
            name += ", flips" if settings.get("flips") else ", whitened" if settings.get("whiten") else ""
            marker = "^" if settings.get("flips") else "v" if settings.get("whiten") else "o"
            ys = [100.0 * a for a in numbers[kernel]["accuracy"]]
            ax.plot(settings["train"], ys, line, marker=marker, color=colour, label=name)


STUDY = Study(
    shows="convolutional DEQs with average pooling, beside an RBF machine and a trained network, on few rows",
    quick="20 s",
    full="30 min; 28 x 28 needs a GPU",
    points=points,
    draw=draw,
)
