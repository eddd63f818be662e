"""How near layers of finite width come to the DEQ's exact kernel.

The relative spectral error of the conjugate kernel of a DEQ, of its one-layer twin with Gaussian and with orthogonal
weights, and of the twin of the papers' route (``match``: one Hard-Tanh layer for tanh, two Leaky-ReLU layers for ReLU),
all of one width, each against the exact kernel of the DEQ that it stands for. Means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import notsodeep as nsd

from ._data import load
from ._runner import Document, Point, Setup, Study
from ._style import LOOKS, against_width, by_setting, shared_legend, word

DATASETS = ("mixture", "mnist", "fashion_mnist")
SIGMA_A2 = 0.2
TOLERANCE = 1e-4
"""Of the one-layer twin; the errors of finite widths are a hundred times larger."""
_MIXTURE_DIMENSION = 400


def points(setup: Setup) -> list[Point]:
    """One point per data set and activation."""
    names = ("digits",) if setup.quick else DATASETS
    widths, n, seeds = ((64, 256, 1024), 200, 2) if setup.quick else ((64, 128, 256, 512, 1024, 2048), 400, 3)

    def point(name: str, phi: str) -> Point:
        settings = {
            "data": name,
            "activation": phi,
            "sigma_a2": SIGMA_A2,
            "rows": n,
            "widths": widths,
            "seeds": list(range(seeds)),
            "tol": TOLERANCE,
        }
        return Point(f"{name}/{phi}", settings, lambda: errors_by_width(_sample(name, n, setup), phi, widths, seeds))

    return [point(name, phi) for name in names for phi in ("tanh", "relu")]


def _sample(name: str, n: int, setup: Setup) -> Tensor:
    if name == "mixture":
        X = nsd.GaussianMixture.two_class(_MIXTURE_DIMENSION).sample(n, seed=0)[0]
    else:
        X = load(name, setup.data).first(n).standardised().X_train.astype(np.float64)
    return torch.as_tensor(np.asarray(X), device=setup.device)


def errors_by_width(X: Tensor, phi: str, widths: tuple[int, ...], seeds: int) -> dict[str, Any]:
    """Network -> one list of errors over the seeds for each width."""
    deq = nsd.DEQ(phi, SIGMA_A2)
    exact = nsd.ck(deq, X.cpu()).to(X.device)  # on a GPU too, the reference is that of the CPU
    one = nsd.match_one_layer(deq, norms=nsd.matching.norm_range(X.cpu()), tol=TOLERANCE, units="conditioned")
    papers = nsd.match(deq, float(X.square().sum(1).mean().sqrt()))
    centred = nsd.ck(papers.deq, X.cpu()).to(X.device)
    where: dict[str, Any] = {"dtype": X.dtype, "device": X.device}

    def networks(width: int, seed: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
        size = (X.shape[1], width, 1, seed)
        yield "DEQ", nsd.nn.DEQ(deq, *size, **where).features, exact
        yield "one layer", nsd.nn.ENN(one, *size, **where).features, exact
        yield "one layer, orthogonal", nsd.nn.ENN(one, *size, init="orthogonal", **where).features, exact
        yield "papers' twin", nsd.nn.ENN(papers, *size, **where).features, centred

    errors: dict[str, list[list[float]]] = {}
    for width in widths:
        for seed in range(seeds):
            for name, features, truth in networks(width, seed):
                rows = errors.setdefault(name, [])
                if not seed:
                    rows.append([])
                rows[-1].append(_error(features, truth, X))
    return {"errors": errors, "kinds": one.kinds, "bound": one.bound, "papers_depth": papers.depth}


def _error(features: Callable[[Tensor], Tensor], exact: Tensor, X: Tensor) -> float:
    with torch.no_grad():
        z = features(X)
    return float(f"{float(nsd.equivalents.relative_spectral_error(exact, z @ z.mT)):.5g}")


def draw(document: Document) -> dict[str, Figure]:
    """One figure per activation: errors of kernels against the width, a panel per data set."""
    by_activation = by_setting(document["points"].values(), "activation")
    return {phi: _errors(points, phi) for phi, points in by_activation.items()}


def _errors(points: Sequence[Document], phi: str) -> Figure:
    says = f"{word(phi)}: one layer is as near to the infinite DEQ as a DEQ of its width"
    figure, axes = against_width([p["settings"]["data"] for p in points], says)
    for ax, point in zip(axes, points, strict=True):
        widths = point["settings"]["widths"]
        for name, errors in point["numbers"]["errors"].items():
            ax.plot(widths, [np.mean(e) for e in errors], label=name, **LOOKS[name])
        ax.set_yscale("log")
    axes[0].set_ylabel("relative spectral error of the kernel")
    shared_legend(figure, axes[0], ncols=2 if len(points) < 3 else 4)
    return figure


STUDY = Study(
    shows="one layer: errors of kernels at finite width",
    quick="10 s",
    full="3 min",
    points=points,
    draw=draw,
)
