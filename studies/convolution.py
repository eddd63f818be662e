"""Learning with the kernels of convolutional DEQs, beside those of the dense DEQ on the same images.

Ridge regression on classes. The rows are the images as they are, scaled to a mean squared norm of one. The ridge,
relative to the mean diagonal, is the best of three on held-out training rows: up to 10,000 rows are fitted for that
choice, and up to 5,000 others are scored. Then all training rows are fitted, and the test rows are scored once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd

from ._data import load
from ._measure import share
from ._runner import Document, Point, Setup, Study
from ._style import by_setting, panels, shared_legend, word

RIDGES = (1e-5, 1e-4, 1e-3)
IMAGES = {"digits": (1, 8, 8), "mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28)}


def learning(
    setup: Setup, dataset: str, train: int, sigma_a2: float, filter: int | None, kernels: Sequence[str]
) -> dict[str, Any]:
    """Test accuracy, ridge and seconds of each kernel; ``filter`` None is the dense DEQ."""
    X, y, X_test, y_test = load(dataset, setup.data).first(train).tensors(setup.device)
    scale = X.square().sum(1).mean().sqrt()
    X, X_test = X / scale, X_test / scale
    network: Any = nsd.DEQ("relu", sigma_a2, 0.8)
    if filter is not None:
        network = nsd.ConvDEQ("relu", sigma_a2, 0.8, image=IMAGES[dataset], filter=filter)
    options: Any = {"kernels": tuple(kernels), "check": False}
    started = time.perf_counter()
    square, cross = nsd.kernels_of(network, X, **options), nsd.kernels_of(network, X_test, X, **options)
    if X.is_cuda:
        torch.cuda.synchronize()
    found: dict[str, Any] = {"kernel_seconds": round(time.perf_counter() - started, 3)}
    for kernel in kernels:
        found[kernel] = _score(square.pop(kernel), cross.pop(kernel), y, y_test)
    return found


def _score(K: Tensor, K_test: Tensor, y: Tensor, y_test: Tensor) -> dict[str, float]:
    held = min(5_000, len(y) // 5)
    fitted = min(10_000, len(y) - held)
    part, rest = slice(0, fitted), slice(len(y) - held, None)
    shares = {r: share(_classes(K[part, part], K[rest, part], y[part], r), y[rest]) for r in RIDGES}
    ridge = max(shares, key=lambda r: shares[r])
    return {"accuracy": share(_classes(K, K_test, y, ridge), y_test), "ridge": ridge, "held_out": shares[ridge]}


def _classes(K: Tensor, K_test: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The classes that ridge regression on centred indicators predicts, by a Cholesky factor in double precision."""
    targets = torch.nn.functional.one_hot(y).double() - 0.1
    system = K.double()
    system.diagonal().add_(ridge * system.diagonal().mean())
    weights = torch.cholesky_solve(targets, torch.linalg.cholesky(system))
    return (K_test.double() @ weights).argmax(1)


def points(setup: Setup) -> list[Point]:
    """The digits on any machine; MNIST and Fashion-MNIST on a GPU alone, 10,000 rows before 60,000."""

    def point(dataset: str, train: int, sigma_a2: float, filter: int | None, *kernels: str) -> Point:
        kind = "dense" if filter is None else f"conv{filter}"
        names = list(kernels or ("ck", "ntk"))
        settings = {"dataset": dataset, "train": train, "sigma_a2": sigma_a2, "filter": filter, "kernels": names}
        return Point.of(f"{dataset}/{train}/{kind}/{sigma_a2}", settings, learning, setup=setup)

    rows = 150 if setup.quick else 700
    settings: list[tuple[float, int | None]] = [(0.2, None), (1.0, 3), (0.2, 3), (1.6, 3)]
    found = [point("digits", rows, *setting) for setting in settings]
    if setup.quick or not setup.device.startswith("cuda"):
        return found
    names = ("mnist", "fashion_mnist")
    found += [point(name, 10_000, *setting) for setting in settings for name in names]
    found += [point(name, 60_000, 0.2, None) for name in names]
    return [*found, point("mnist", 60_000, 1.0, 3, "ck"), point("fashion_mnist", 60_000, 1.0, 3)]


def draw(document: Document) -> dict[str, Figure]:
    """Test accuracy against sigma_a2, one panel for each data set and number of rows."""
    groups = by_setting(document["points"].values(), "dataset", "train")
    says = "kernels of convolutional DEQs beside those of the dense DEQ"
    figure, axes = panels((3.4 * len(groups), 3.8), says, 1, len(groups), squeeze=False)
    for ax, ((dataset, train), found) in zip(axes[0], groups.items(), strict=True):
        for kernel, colour in (("ck", "C0"), ("ntk", "C1")):
            of = [p for p in found if kernel in p["numbers"]]
            dense, conv = ([p for p in of if (p["settings"]["filter"] is None) == plain] for plain in (True, False))
            for each in dense:
                level = 100 * each["numbers"][kernel]["accuracy"]
                ax.axhline(level, color=colour, linestyle="--", label=f"dense {kernel.upper()}, 0.2")
            conv = sorted(conv, key=lambda p: p["settings"]["sigma_a2"])
            xs, ys = [p["settings"]["sigma_a2"] for p in conv], [100 * p["numbers"][kernel]["accuracy"] for p in conv]
            ax.plot(xs, ys, "o-", color=colour, label=f"convolutional {kernel.upper()}")
        ax.set(title=f"{word(dataset)}, {train:,} rows", xlabel="sigma_a2")
    axes[0][0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0][0])
    return {"": figure}


STUDY = Study(
    shows="learning with kernels of convolutional DEQs, beside the dense DEQ",
    quick="10 s",
    full="3 min; 5 min on an H200 with MNIST and Fashion-MNIST",
    points=points,
    draw=draw,
)
