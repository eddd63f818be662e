"""Where the published gap of the plain network comes from: its depth, its weights, and how hard the data is.

The papers show plain networks 1.3 to 7.8 points below the DEQ at width 4,096 and state neither their depth nor the
variance of their weights. The kernel of one tanh layer is within 6 % of the DEQ's and a little larger, so no gap is to
be expected from it. Each further layer shrinks the kernel, as do smaller weights, and SGD with the same learning rate
gets less far. Features of a VGG trained on CIFAR-10 itself are so easy that all networks meet at the accuracy of the
VGG; with noise they are as hard as those of the papers.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..activations import activation
from ..datasets import Dataset
from ..networks import DEQ, ENN
from ..plots.figures import draw_depths
from .accuracy import REPORTED, prepared, twin_for
from .readouts import Candidate, Optimiser, score
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "accuracy_by_depth", "noisy"]

TWINS = {"twin": "gaussian", "orthogonal twin": "orthogonal"}
"""The same twin with independent weights, and with orthogonal ones."""
PLAIN = {
    "1 layer": (1, 1.0, True),
    "2 layers": (2, 1.0, True),
    "3 layers": (3, 1.0, True),
    "1 layer, 0.2": (1, 0.2, True),
    "2 layers, 0.8": (2, 0.8, True),
    "1 raw layer": (1, 1.0, False),
    "2 raw layers": (2, 1.0, False),
}
"""Plain networks: layers, variance of their weights, and whether they are centred (odd activations always are)."""
NOISE = 7.0  # brings a linear classifier of the CIFAR-10 features from 92 to 84 %, as in the papers


def accuracy_by_depth(
    data: Dataset,
    phi: str,
    width: int,
    networks: Sequence[str],
    *,
    epochs: int = 100,
    seeds: Sequence[int] = (0,),
    lr: float = 1.0,
    device: str = "cpu",
) -> dict[str, list[float]]:
    """Network -> test accuracy per seed; readouts trained by SGD, batch 128, as in the papers.

    ``networks`` are ``"DEQ"`` and names from :data:`TWINS` and :data:`PLAIN`.
    """
    candidates = {name: Candidate(_network(phi, name), TWINS.get(name, "gaussian")) for name in networks}
    first = next(iter(candidates))
    table = score(
        candidates,
        data,
        width,
        reference=first,
        epochs=epochs,
        seeds=seeds,
        optimiser=Optimiser("sgd", lr),
        device=device,
    )
    return {name: found["accuracy"] for name, found in table.items()}


def noisy(data: Dataset, size: float, seed: int = 0) -> Dataset:
    """The rows of a standardised data set with Gaussian noise of mean squared norm ``size``^2, standardised again."""
    random = np.random.default_rng(seed)

    def blurred(X: Any) -> Any:
        return X + np.float32(size / data.p**0.5) * random.standard_normal(X.shape, dtype=np.float32)

    return replace(data, X_train=blurred(data.X_train), X_test=blurred(data.X_test)).standardised()


def _network(phi: str, name: str) -> DEQ | ENN:
    if name == "DEQ":
        return twin_for(phi).deq
    if name in TWINS:
        return twin_for(phi).network
    depth, variance, centred = PLAIN[name]
    network = ENN([activation(phi).affine(scale=variance**0.5)] * depth)
    return network.centred(1.0) if centred else network


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup) -> list[Point]:
    """One point per data set and activation; the noisy features and the digits also at other widths."""
    names = ("digits",) if setup.quick else ("mnist", "fashion_mnist", "cifar10_vgg")
    usual, epochs, seeds = (256, 20, 1) if setup.quick else (4096, 100, 3)
    load_once = functools.lru_cache(maxsize=1)(functools.partial(prepared, setup.data))

    def point(name: str, phi: str, noise: float = 0.0, width: int = usual, seeds: int = seeds) -> Point:
        plain = [label for label, (_, _, centred) in PLAIN.items() if centred or phi != "tanh"]
        settings = {
            "dataset": name,
            "noise": noise,
            "activation": phi,
            "networks": ["DEQ", *TWINS, *(plain if width == usual else [])],
            "width": width,
            "epochs": epochs,
            "seeds": list(range(seeds)),
            "lr": 0.1 if name == "cifar10_vgg" else 1.0,
        }
        key = f"{name}{'_noisy' if noise else ''}/{phi}/{width}"
        return Point(key, settings, lambda: _measure(load_once(name), settings, setup))

    chosen = [point(name, phi) for name in names for phi in ("tanh", "relu")]
    if setup.quick:
        return chosen
    harder = [("tanh", 4096), ("relu", 1024), ("relu", 4096), ("relu", 16384)]
    narrow = [point("digits", phi, width=width, seeds=10) for width in (32, 64) for phi in ("tanh", "relu")]
    return [*chosen, *(point("cifar10_vgg", phi, NOISE, width) for phi, width in harder), *narrow]


def _measure(data: Dataset, settings: Mapping[str, Any], setup: Setup) -> dict[str, Any]:
    noise = settings["noise"]
    chosen = {name: settings[name] for name in ("width", "networks", "epochs", "seeds", "lr")}
    return accuracy_by_depth(
        noisy(data, noise) if noise else data, settings["activation"], **chosen, device=setup.device
    )


EXPERIMENT = Experiment(
    "plain_depth",
    "Plain networks of one to three layers beside DEQ and twin",
    points,
    lambda document: draw_depths(document, REPORTED),
)
