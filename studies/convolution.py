"""Learning with the kernels of convolutional DEQs, and how near shallow explicit networks come to these kernels.

Learning: ridge regression on classes. The rows are the images as they are, scaled to a mean squared norm of one. The
ridge, relative to the mean diagonal, is the best of three on held-out training rows: up to 10,000 rows are fitted for
that choice, and up to 5,000 others are scored. Then all training rows are fitted, and the test rows are scored once.

Twins: explicit networks of a few layers with injected input: plain (the variances of the DEQ), fitted (`match_conv`),
and wide (the variances of the DEQ, but the first filter has those of the linearised equation, sum_k (sigma_a2 / 2)^k
w^(k+1) with w the window). Each has its best gain. Relative spectral distances on images that no fit has seen.
"""

from __future__ import annotations

import math
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
    shares = {r: share(classes(K[part, part], K[rest, part], y[part], r), y[rest]) for r in RIDGES}
    ridge = max(shares, key=lambda r: shares[r])
    return {"accuracy": share(classes(K, K_test, y, ridge), y_test), "ridge": ridge, "held_out": shares[ridge]}


def classes(K: Tensor, K_test: Tensor, y: Tensor, ridge: float) -> Tensor:
    """The classes that ridge regression on centred indicators predicts, by a Cholesky factor in double precision."""
    targets = torch.nn.functional.one_hot(y).double() - 0.1
    system = K.double()
    system.diagonal().add_(ridge * system.diagonal().mean())
    weights = torch.cholesky_solve(targets, torch.linalg.cholesky(system))
    return (K_test.double() @ weights).argmax(1)


# ---- twins -----------------------------------------------------------------------------------------------------


def twins(setup: Setup, dataset: str, activation: str, sigma_a2: float, layers: int, images: int) -> dict[str, Any]:
    """Distances of plain, fitted and (ReLU) wide networks from the DEQ, for both kernels."""
    X = torch.from_numpy(load(dataset, setup.data).X_train[:images]).double()
    X = X / X.square().sum(1).mean().sqrt()
    deq = nsd.ConvDEQ(activation, sigma_a2, 0.8, image=IMAGES[dataset])
    found: dict[str, Any] = {}
    for kernel in ("ck", "ntk"):
        twin = nsd.match_conv(deq, X, kernel, layers=layers, tol=1e9, check=False)
        found[kernel] = {"plain": twin.plain, "fitted": twin.error, "fitted_largest": twin.largest}
    if activation == "relu":
        rest = X[-min(40, images // 2) :]
        exact, wide = nsd.kernels_of(deq, rest, kernels=("ck", "ntk"), check=False), _wide(deq, rest, layers)
        for kernel, K in wide.items():
            truth = exact[kernel]
            gain = (K * truth).sum() / K.square().sum()
            found[kernel]["wide"] = nsd.equivalents.relative_spectral_error(truth, gain * K)
    return found


def _wide(deq: nsd.ConvDEQ, X: Tensor, layers: int) -> dict[str, Tensor]:
    """The kernels of explicit ReLU layers whose first filter solves the linearised equation."""
    sigma_a2, sigma_b2, _ = deq.dense.variances

    def window(field: Tensor) -> Tensor:
        return torch.nn.functional.avg_pool2d(field, deq.filter, 1, deq.filter // 2)

    x = X.reshape(len(X), *deq.image)
    source = sigma_b2 * window((x[:, None] * x).sum(2))
    covariance = source
    for _ in range(300):  # at sigma_a2 = 1.6 a step leaves eight tenths of the error
        covariance = source + 0.5 * sigma_a2 * window(covariance)
    fields: list[tuple[Tensor, Tensor]] = []
    value = torch.zeros_like(source)
    for _ in range(layers):
        covariance = source + sigma_a2 * window(value) if fields else covariance
        sizes = covariance.diagonal().movedim(-1, 0).sqrt()
        sizes = (sizes[:, None] * sizes).clamp_min(1e-300)
        rho = (covariance / sizes).clamp(-1.0, 1.0)
        angle = math.pi - torch.acos(rho)
        value = sizes * (torch.sqrt(1.0 - rho * rho) + angle * rho) / (2.0 * math.pi)
        fields.append((covariance, angle / (2.0 * math.pi)))
    ck = ntk = value.mean((-2, -1))
    above = torch.full_like(value, 1.0 / deq.positions)
    for covariance, slope in reversed(fields):
        ntk = ntk + (above * slope * covariance).sum((-2, -1))
        above = sigma_a2 * window(above * slope)
    return {"ck": ck, "ntk": ntk}


def points(setup: Setup) -> list[Point]:
    """The digits on any machine; MNIST and Fashion-MNIST on a GPU alone, 10,000 rows before 60,000."""

    def twin(dataset: str, activation: str, sigma_a2: float, layers: int) -> Point:
        settings = {"dataset": dataset, "activation": activation, "sigma_a2": sigma_a2, "layers": layers}
        settings["images"] = 40 if setup.quick else 84
        return Point.of(f"twins/{dataset}/{activation}/{sigma_a2}/{layers}", settings, twins, setup=setup)

    def point(dataset: str, train: int, sigma_a2: float, filter: int | None, *kernels: str) -> Point:
        kind = "dense" if filter is None else f"conv{filter}"
        names = list(kernels or ("ck", "ntk"))
        settings = {"dataset": dataset, "train": train, "sigma_a2": sigma_a2, "filter": filter, "kernels": names}
        return Point.of(f"{dataset}/{train}/{kind}/{sigma_a2}", settings, learning, setup=setup)

    rows = 150 if setup.quick else 700
    settings: list[tuple[float, int | None]] = [(0.2, None), (1.0, 3), (0.2, 3), (1.6, 3)]
    found = [point("digits", rows, *setting) for setting in settings]
    networks = [("relu", 0.2), ("relu", 1.0), ("relu", 1.6), ("erf", 0.15)]
    if setup.quick:
        found += [twin("digits", "relu", 0.2, layers) for layers in (1, 2)]
    elif setup.device == "cpu":
        found += [twin("mnist", *network, layers) for network in networks for layers in (1, 2, 3)]
    if setup.quick or not setup.device.startswith("cuda"):
        return found
    names = ("mnist", "fashion_mnist")
    found += [point(name, 10_000, *setting) for setting in settings for name in names]
    found += [point(name, 60_000, 0.2, None) for name in names]
    return [*found, point("mnist", 60_000, 1.0, 3, "ck"), point("fashion_mnist", 60_000, 1.0, 3)]


def draw(document: Document) -> dict[str, Figure]:
    """Test accuracy against sigma_a2, one panel for each data set and number of rows; distances against depth."""
    every = list(document["points"].values())
    learned, matched = ([p for p in every if ("layers" in p["settings"]) == of_twins] for of_twins in (False, True))
    drawn = {"accuracy": _accuracies(learned)} if learned else {}
    return drawn | ({"twins": _distances(matched)} if matched else {})


def _distances(matched: Sequence[Document]) -> Figure:
    groups = by_setting(matched, "activation", "sigma_a2")
    says = "explicit layers in the place of a convolutional DEQ"
    figure, axes = panels((3.0 * len(groups), 3.8), says, 1, len(groups), squeeze=False, sharey=True)
    for ax, ((activation, sigma_a2), found) in zip(axes[0], groups.items(), strict=True):
        found = sorted(found, key=lambda p: p["settings"]["layers"])
        for kind, marker in (("plain", "x--"), ("wide", "+:"), ("fitted", "o-")):
            for kernel, colour in (("ck", "C0"), ("ntk", "C1")):
                ys = [(p["settings"]["layers"], p["numbers"][kernel].get(kind)) for p in found]
                ys = [pair for pair in ys if pair[1] is not None]
                ax.semilogy(
                    *zip(*ys, strict=True), marker, color=colour, label=f"{kind}, {kernel.upper()}"
                ) if ys else None
        ax.set(title=f"{word(activation)}, {sigma_a2}", xlabel="layers", xticks=[1, 2, 3])
    axes[0][0].set_ylabel("relative spectral distance")
    shared_legend(figure, axes[0][0], ncols=6)
    return figure


def _accuracies(learned: Sequence[Document]) -> Figure:
    groups = by_setting(learned, "dataset", "train")
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
        ax.set(title=f"{word(dataset)}, {train:,} rows", xlabel="sigma_a2", xlim=(0.0, 1.8))
    axes[0][0].set_ylabel("test accuracy, %")
    shared_legend(figure, axes[0][0])
    return figure


STUDY = Study(
    shows="kernels of convolutional DEQs: learning, and explicit layers in their place",
    quick="15 s",
    full="20 min; learning on MNIST and Fashion-MNIST 5 min, H200",
    points=points,
    draw=draw,
)
