"""How near layers of finite width come to the DEQ's exact kernel.

The relative spectral error of the conjugate kernel of a DEQ, of its one-layer twin with Gaussian and with orthogonal
weights, and of the twin of the papers' route (``match``: one Hard-Tanh layer for tanh, two Leaky-ReLU layers for ReLU),
all of one width, each against the exact kernel of the DEQ that it stands for. Means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import load
from ..equivalents import relative_spectral_error
from ..kernels import ck
from ..matching import match, match_one_layer, norm_range
from ..mixtures import GaussianMixture
from ..networks import DEQ
from ..nn import DEQ as DEQModel
from ..nn import ENN as ENNModel
from ..plots.figures import draw_one_layer_width
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "errors_by_width"]

DATASETS = ("mixture", "digits", "mnist", "fashion_mnist")
WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SIGMA_A2 = 0.2
TOLERANCE = 1e-4
"""Of the one-layer twin; the errors of finite widths are a hundred times larger."""
_MIXTURE_DIMENSION = 400


def points(setup: Setup) -> list[Point]:
    """One point per data set and activation."""
    names = ("digits",) if setup.quick else DATASETS
    widths, n, seeds = ((64, 256, 1024), 200, 2) if setup.quick else (WIDTHS, 1000, 5)

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
        return Point(f"{name}/{phi}", settings, lambda: errors_by_width(_rows(name, n, setup), phi, widths, seeds))

    return [point(name, phi) for name in names for phi in ("tanh", "relu")]


def _rows(name: str, n: int, setup: Setup) -> Tensor:
    if name == "mixture":
        X = GaussianMixture.two_class(_MIXTURE_DIMENSION).sample(n, seed=0)[0]
    else:
        X = load(name, setup.data).first(n).standardised().X_train.astype(np.float64)
    return torch.as_tensor(np.asarray(X), device=setup.device)


def errors_by_width(X: Tensor, phi: str, widths: tuple[int, ...], seeds: int) -> dict[str, Any]:
    """Network -> one list of errors over the seeds for each width."""
    deq = DEQ(phi, SIGMA_A2)
    exact = ck(deq, X.cpu()).to(X.device)  # on a GPU too, the reference is that of the CPU
    one = match_one_layer(deq, norms=norm_range(X.cpu()), tol=TOLERANCE)
    papers = match(deq, float(X.square().sum(1).mean().sqrt()))
    centred = ck(papers.deq, X.cpu()).to(X.device)
    where: dict[str, Any] = {"dtype": X.dtype, "device": X.device}

    def networks(width: int, seed: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
        size = (X.shape[1], width, 1, seed)
        yield "DEQ", DEQModel(deq, *size, **where).features, exact
        yield "one layer", ENNModel(one, *size, **where).features, exact
        yield "one layer, orthogonal", ENNModel(one, *size, init="orthogonal", **where).features, exact
        yield "papers' twin", ENNModel(papers, *size, **where).features, centred

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
    return float(f"{float(relative_spectral_error(exact, z @ z.mT)):.5g}")


EXPERIMENT = Experiment("one_layer_width", "One layer at finite width", points, draw_one_layer_width)
