"""Kernels of convolutional DEQs with average pooling before the readout.

Machines: ridge regression on classes with the CK and the NTK of a dense DEQ and of convolutional ones with boxes of
several sizes (ReLU, 3 x 3 filters, sigma_b2 = 0.8), with an RBF kernel, and a small convolutional network trained by
Adam, three seeds. All choices are made on the last fifth of the training rows: the variance sigma_a2 (or the width of
the RBF kernel) once, with the first 3,000 rows at most, the ridge for each number of rows, and so are the learning rate
and the number of steps of the network. Test rows are scored once.

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
from .convolution import classes

SIGMAS = (0.2, 1.0)
WIDTHS = (0.2, 0.3, 0.5, 1.0, 2.0)
RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
CHOOSING = 3000
RATES = (3e-4, 1e-3, 3e-3)
SEEDS = 3
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
    started, few = time.perf_counter(), min(CHOOSING, max(train))
    squares = {value: matrices(value, X[:few], None) for value in settings}

    def best(K: Tensor, n: int) -> tuple[float, float]:
        some, rest = slice(0, n - n // 5), slice(n - n // 5, n)
        found = {ridge: guesses(K[some, some], K[rest, some], y[some], ridge) for ridge in RIDGES}
        return max((share(guess, y[rest]), ridge) for ridge, guess in found.items() if guess is not None)

    chosen = max(settings, key=lambda value: sum(best(K, few)[0] for K in squares[value].values()))
    square = squares[chosen] if few == len(X) else matrices(chosen, X, None)
    cross = matrices(chosen, X_test, X)
    found: dict[str, Any] = {"chosen": chosen}
    for kernel, K in square.items():
        accuracy, ridges = [], []
        for n in train:
            ridge, guess = best(K, n)[1], None
            while guess is None:  # more rows than were fitted before may need more
                guess = guesses(K[:n, :n], cross[kernel][:, :n], y[:n], ridge)
                ridges.append(ridge) if guess is not None else None
                ridge *= 10.0
            accuracy.append(share(guess, y_test))
        found[kernel] = {"accuracy": accuracy, "error": errors(accuracy, len(y_test)), "ridge": ridges}
    return {**found, "kernel_seconds": round(time.perf_counter() - started, 1)}


def guesses(K: Tensor, K_test: Tensor, y: Tensor, ridge: float) -> Tensor | None:
    """The classes that ridge regression predicts; None if rounding left no positive definite matrix."""
    try:
        return classes(K, K_test, y, ridge)
    except torch.linalg.LinAlgError:
        return None


def errors(accuracies: Sequence[float], rows: int) -> list[float]:
    """The standard errors of accuracies on so many rows."""
    return [math.sqrt(a * (1.0 - a) / rows) for a in accuracies]


def network(
    setup: Setup, dataset: str, side: int, train: Sequence[int], test: int, steps: Sequence[int]
) -> dict[str, Any]:
    """Mean accuracy of a small convolutional network trained by Adam, and its standard deviation over seeds."""
    X, y, X_test, y_test = images(setup, dataset, side, max(train), test, None)
    scale = math.sqrt(X.shape[1])  # pixels of unit size, as the initial weights expect
    Z, Z_test = (scale * part.reshape(-1, 1, side, side) for part in (X, X_test))
    found: dict[str, Any] = {"accuracy": [], "deviation": [], "error": [], "rate": [], "steps": []}
    for n in train:
        some, rest = slice(0, n - n // 5), slice(n - n // 5, n)
        trials = {rate: trained(Z[some], y[some], Z[rest], y[rest], rate, steps) for rate in RATES}
        _, rate, count = max((float(a.mean()), r, s) for r, all in trials.items() for s, a in all.items())
        accuracy = trained(Z[:n], y[:n], Z_test, y_test, rate, [count])[count]
        mean = float(accuracy.mean())
        row = {"accuracy": mean, "deviation": float(accuracy.std()), "rate": rate, "steps": count}
        for name, value in {**row, "error": errors([mean], test)[0]}.items():
            found[name].append(value)
    return {"cnn": found}


def trained(
    Z: Tensor, y: Tensor, Z_test: Tensor, y_test: Tensor, rate: float, steps: Sequence[int]
) -> dict[int, Tensor]:
    """Accuracy of each seed after so many steps with 64 rows. One network holds all seeds, as groups of channels."""
    torch.manual_seed(0)
    k, side = SEEDS, Z.shape[-1]
    layers = [nn.Conv2d(k, 32 * k, 3, padding=1, groups=k), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(32 * k, 64 * k, 3, padding=1, groups=k), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(64 * k, 10 * k, side // 4, groups=k), nn.Flatten(), nn.Unflatten(1, (k, 10))]
    model = nn.Sequential(*layers).to(Z.device)
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=1e-4, fused=Z.is_cuda)
    found = {}
    for step in range(1, max(steps) + 1):
        part = torch.randint(len(Z), (64, k), device=Z.device)
        optimiser.zero_grad()
        losses = nn.functional.cross_entropy(model(Z[part, 0]).flatten(0, 1), y[part].flatten(), reduction="none")
        losses.reshape(64, k).mean(0).sum().backward()
        optimiser.step()
        if step in steps:
            with torch.no_grad():
                logits = torch.cat([model(rows.expand(-1, k, -1, -1)) for rows in Z_test.split(1000)])
            found[step] = (logits.argmax(2) == y_test[:, None]).double().mean(0)
    return found


def points(setup: Setup) -> list[Point]:
    """Digits quickly; reduced images and few rows on a CPU; the images as they are, and more rows, on a GPU."""
    if setup.quick:
        return _group(setup, ("digits",), {"side": 8, "train": [40, 80], "test": 60}, (1, 2))
    if setup.device.startswith("cuda"):
        return _group(setup, _NAMES, {"side": 28, "train": [1000, 3000, 10_000], "test": 10_000}, (1, 3, 5))
    found = _group(setup, _NAMES, {"side": 14, "train": [50, 100, 200], "test": 300}, (1, 3), "/14x14")
    return found + _group(setup, _NAMES, {"side": 7, "train": [200, 500, 1000], "test": 300}, (1, 3, 5), "/7x7")


def _group(
    setup: Setup, names: Sequence[str], sizes: Mapping[str, Any], boxes: Sequence[int], end: str = ""
) -> list[Point]:
    """All machines at one size of images, the dearest last; flips and whitening for the last data set."""
    few = {**sizes, "train": [n for n in sizes["train"] if n <= CHOOSING]}

    def point(dataset: str, pool: int | None, flips: bool = False, whiten: float | None = None) -> Point:
        kind = "dense" if pool is None else f"box{pool}"
        key = f"{dataset}/{kind}" + ("/flips" if flips else "") + (f"/whitened{whiten}" if whiten else "") + end
        dear = pool is not None and (pool > 3 or (pool != boxes[0] and bool(flips or whiten)))
        settings = {"dataset": dataset, **(few if dear else sizes), "pool": pool, "flips": flips, "whiten": whiten}
        return Point.of(key, settings, machine, setup=setup)

    def others(name: str) -> list[Point]:
        settings = {"dataset": name, **sizes}
        most = [20, 40] if setup.quick else [250, 500] if sizes["side"] < 28 else [500, 1000, 2000]
        trained = Point.of(f"{name}/cnn{end}", {**settings, "steps": most}, network, setup=setup)
        return [Point.of(f"{name}/rbf{end}", settings, rbf, setup=setup), trained]

    last, low, high = names[-1], boxes[0], boxes[1]
    found = [point(name, pool) for name in names for pool in (None, low)] + [p for name in names for p in others(name)]
    found += [point(last, low, flips=True), *(point(last, low, whiten=ridge) for ridge in (0.1, 1.0))]
    found += [point(last, high, whiten=1.0), point(last, high, flips=True)]
    return found + [point(name, pool) for pool in boxes[1:] for name in names]


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
    full="45 min; 28 x 28 needs a GPU",
    points=points,
    draw=draw,
)
