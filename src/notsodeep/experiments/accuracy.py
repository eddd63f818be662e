"""Test accuracies of random frozen features with linear readouts, by SGD (the papers) or Adam; theory section 10.

``accuracy``: DEQ, twin and plain network against width (preprint, Figure 3; ICML slides, accuracy figures).

``plain_depth``: where the published gap of the plain network comes from. The papers show plain networks 1.3 to 7.8
points below the DEQ at width 4,096 and state neither their depth nor the variance of their weights. The kernel of one
tanh layer is within 6 % of the DEQ's and a little larger, so no gap is to be expected from it. Each further layer
shrinks the kernel, as do smaller weights, and SGD with the same learning rate gets less far. Features of a VGG trained
on CIFAR-10 itself are so easy that all networks meet at the accuracy of the VGG; with noise they are as hard as those
of the papers.

``one_layer_accuracy``: one-layer twins beside DEQ, the papers' twin and a plain network whose kernel is multiplied by
the scalar that brings it nearest to the DEQ's, so that it does not lose by its size alone; at three widths by Adam too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from .._words import Init
from ..activations import activation
from ..datasets import Dataset, load
from ..matching import Twin, match_one_layer, norm_range
from ..matching.match import match
from ..networks import DEQ, ENN
from ..plots.figures.accuracy import ACTIVATIONS, MODELS, draw_accuracy, draw_depths
from ..plots.figures.twins import draw_one_layer_accuracy
from .readouts import Candidate, score
from .runner import HERE, Experiment, Point, Setup

DATASETS = ("mnist", "fashion_mnist", "cifar10_vgg")
WIDTHS = (32, 64, 128, 256, 512, 1024, 2048, 4096)
WIDEST = 8192
SIGMA_A2 = 0.2
TRAIN_ROWS = 50_000
NOISE = 7.0
"""Brings a linear classifier of the CIFAR-10 features from 92 to 84 %, as in the papers."""

Load = Callable[..., Dataset]


@functools.cache
def twin_for(phi: str) -> Twin:
    """The DEQ of the papers and its twin, for standardised data: tau0 = 1."""
    return match(DEQ(phi, SIGMA_A2), 1.0)


def _loader(setup: Setup) -> Load:
    """name, noise -> the papers' training rows, standardised, and the whole test set; the last one is kept."""

    @functools.lru_cache(maxsize=1)
    def prepared(name: str, noise: float = 0.0) -> Dataset:
        data = load(name, setup.data)
        data = data.first(min(TRAIN_ROWS, len(data.X_train))).standardised()
        return noisy(data, noise) if noise else data

    return prepared


def noisy(data: Dataset, size: float, seed: int = 0) -> Dataset:
    """The rows of a standardised data set with Gaussian noise of mean squared norm ``size``^2, standardised again."""
    random = np.random.default_rng(seed)

    def blurred(X: Any) -> Any:
        return X + np.float32(size / data.p**0.5) * random.standard_normal(X.shape, dtype=np.float32)

    return replace(data, X_train=blurred(data.X_train), X_test=blurred(data.X_test)).standardised()


def _rate(dataset: str) -> float:
    return 0.1 if dataset.startswith("cifar10_vgg") else 1.0


# ---- against width -------------------------------------------------------------------------------------------


def accuracies(
    load_data: Load,
    setup: Setup,
    dataset: str,
    width: int,
    activations: Sequence[str],
    sigma_a2: float,
    seeds: Sequence[int],
    optimisers: Mapping[str, float],
    epochs: int,
    batch_size: int,
) -> dict[str, Any]:
    """Test accuracies of every network, activation and optimiser, a list over seeds, with the wall times.

    ``agreement`` is the share of test rows that a network classifies as the DEQ of the same seed does.
    """
    found = score(
        {
            f"{phi}/{name}": Candidate(_network(phi, name), reference=f"{phi}/DEQ")
            for phi in activations
            for name in MODELS
        },
        load_data(dataset),
        width,
        setup,
        epochs=epochs,
        batch_size=batch_size,
        seeds=seeds,
        optimisers=optimisers,
    )
    table: dict[str, Any] = {}
    for phi in activations:
        table[phi] = {method: {name: found.shares[f"{phi}/{name}"][method] for name in MODELS} for method in optimisers}
        clock = {name: found.feature_seconds[f"{phi}/{name}"] for name in MODELS}
        table[phi]["feature_seconds"] = {name: [round(v, 5) for v in seconds] for name, seconds in clock.items()}
    return {"accuracies": table, "readout_seconds_of_all": round(found.readout_seconds, 3)}


def _network(phi: str, name: str) -> DEQ | ENN:
    twin = twin_for(phi)
    networks: dict[str, DEQ | ENN] = {"DEQ": twin.deq, "twin": twin.network, "plain": twin.plain}
    return networks[name]


def accuracy_points(
    setup: Setup,
    datasets: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    seeds: int = 3,
    epochs: int | None = None,
) -> list[Point]:
    """One point per data set and width; the widest only on a GPU."""
    full = (*WIDTHS, WIDEST) if setup.device.startswith("cuda") else WIDTHS
    load_data = _loader(setup)

    def point(name: str, width: int) -> Point:
        settings = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "seeds": list(range(seeds)),
            "optimisers": {"sgd": _rate(name), "adam": 1e-3},
            "epochs": epochs or (30 if setup.quick else 100),
            "batch_size": 128,
        }
        return Point.of(f"{name}/{width}", settings, accuracies, load_data=load_data, setup=setup)

    names = datasets or (("digits",) if setup.quick else DATASETS)
    sizes = widths or ((32, 128, 512) if setup.quick else full)
    return [point(name, width) for name in names for width in sizes]


# ---- plain networks of several depths ------------------------------------------------------------------------

TWINS: dict[str, Init] = {"twin": "gaussian", "orthogonal twin": "orthogonal"}
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


def accuracy_by_depth(
    data: Dataset,
    phi: str,
    width: int,
    networks: Sequence[str],
    setup: Setup = HERE,
    *,
    epochs: int = 100,
    seeds: Sequence[int] = (0,),
    lr: float = 1.0,
) -> dict[str, list[float]]:
    """Network -> test accuracy per seed; ``networks`` are ``"DEQ"`` and names from :data:`TWINS` and :data:`PLAIN`."""
    candidates = {name: Candidate(_by_name(phi, name), TWINS.get(name, "gaussian")) for name in networks}
    table = score(candidates, data, width, setup, epochs=epochs, seeds=seeds, optimisers={"sgd": lr})
    return {name: found["accuracy"] for name, found in table.first.items()}


def _by_name(phi: str, name: str) -> DEQ | ENN:
    if name == "DEQ" or name in TWINS:
        return _network(phi, "DEQ" if name == "DEQ" else "twin")
    depth, variance, centred = PLAIN[name]
    network = ENN([activation(phi).affine(scale=variance**0.5)] * depth)
    return network.centred(1.0) if centred else network


def depth_points(setup: Setup) -> list[Point]:
    """One point per data set and activation; the noisy features and the digits also at other widths."""
    names = ("digits",) if setup.quick else DATASETS
    usual, epochs, seeds = (256, 20, 1) if setup.quick else (4096, 100, 3)
    load_data = _loader(setup)

    def point(name: str, phi: str, noise: float = 0.0, width: int = usual, seeds: int = seeds) -> Point:
        plain = [label for label, (_, _, centred) in PLAIN.items() if centred or phi != "tanh"]
        chosen: dict[str, Any] = {
            "networks": ["DEQ", *TWINS, *(plain if width == usual else [])],
            "width": width,
            "epochs": epochs,
            "seeds": list(range(seeds)),
            "lr": _rate(name),
        }
        return Point(
            f"{name}{'_noisy' if noise else ''}/{phi}/{width}",
            {"dataset": name, "noise": noise, "activation": phi, **chosen},
            lambda: accuracy_by_depth(load_data(name, noise), phi, setup=setup, **chosen),
        )

    chosen = [point(name, phi) for name in names for phi in ACTIVATIONS]
    if setup.quick:
        return chosen
    harder = [("tanh", 4096), ("relu", 1024), ("relu", 4096), ("relu", 16384)]
    narrow = [point("digits", phi, width=width, seeds=10) for width in (32, 64) for phi in ACTIVATIONS]
    return [*chosen, *(point("cifar10_vgg", phi, NOISE, width) for phi, width in harder), *narrow]


# ---- one layer -----------------------------------------------------------------------------------------------

TOLERANCE = 1e-3
"""Of the one-layer twin: kernels of these widths are off by a hundredth and more."""
ADAM_WIDTHS = (128, 1024, 4096)
_SCALED_ON = 1000  # rows that the plain network's scalar is found on


def one_layer_candidates(phi: str, data: Dataset) -> dict[str, Candidate]:
    """The networks compared, the DEQ first."""
    papers = twin_for(phi)
    one = match_one_layer(papers.deq, norms=norm_range(data.X_train), tol=TOLERANCE).network
    scalar = papers.verify(data.X_train[:_SCALED_ON]).scalar
    *before, last = papers.plain.activations
    return {
        "DEQ": Candidate(papers.deq),
        "one layer": Candidate(one),
        "one layer, orthogonal": Candidate(one, "orthogonal"),
        "papers' twin": Candidate(papers.network),
        "plain, best scale": Candidate(ENN([*before, last.affine(gain=scalar**0.5)])),
    }


def one_layer_points(setup: Setup) -> list[Point]:
    """One point per data set and width; ``_noisy`` behind a name adds the noise."""
    names = ("digits",) if setup.quick else (*DATASETS, "cifar10_vgg_noisy")
    sizes = (32, 128) if setup.quick else (*WIDTHS, WIDEST)
    epochs, seeds = (20, 2) if setup.quick else (100, 3)
    load_data = _loader(setup)

    @functools.lru_cache(maxsize=1)
    def prepared(name: str) -> tuple[Dataset, dict[str, dict[str, Candidate]]]:
        data = load_data(name.removesuffix("_noisy"), NOISE if name.endswith("_noisy") else 0.0)
        return data, {phi: one_layer_candidates(phi, data) for phi in ACTIVATIONS}

    def measure(settings: Mapping[str, Any]) -> dict[str, Any]:
        data, networks = prepared(settings["dataset"])
        options = {name: settings[name] for name in ("epochs", "seeds")}
        options["optimisers"] = {settings.get("method", "sgd"): settings["lr"]}
        return {
            phi: score(networks[phi], data, settings["width"], setup, **options).first
            for phi in settings["activations"]
        }

    def point(name: str, width: int, *, adam: bool = False) -> Point:
        settings: dict[str, Any] = {
            "dataset": name,
            "width": width,
            "activations": ACTIVATIONS,
            "sigma_a2": SIGMA_A2,
            "tol": TOLERANCE,
            "noise": NOISE if name.endswith("_noisy") else 0.0,
            "seeds": list(range(seeds)),
            "lr": _rate(name),
            "epochs": epochs,
        }
        if adam:
            settings |= {"method": "adam", "lr": 1e-3}
        return Point(f"{name}/{width}/adam" if adam else f"{name}/{width}", settings, lambda: measure(settings))

    plain = [point(name, width) for name in names for width in sizes]
    return plain + [point(n, w, adam=True) for n in names for w in sizes if w in ADAM_WIDTHS and not setup.quick]


EXPERIMENTS = (
    Experiment("accuracy", accuracy_points, draw_accuracy),
    Experiment("plain_depth", depth_points, draw_depths),
    Experiment("one_layer_accuracy", one_layer_points, draw_one_layer_accuracy),
)
