"""The three routes to a twin on the same data: four numbers, the sphere's series, one layer for every input.

Each twin is held against the DEQ it speaks of: ``match`` against the centred one, ``match_sphere`` against the plain
one on rows of norm 1, ``match_one_layer`` against the plain one. A plain network of the twin's depth stands beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..datasets import Dataset, load
from ..equivalents import relative_spectral_error
from ..estimators import DEQClassifier
from ..kernels import kernels_of
from ..matching import Twin, match_one_layer, match_sphere, norm_range
from ..matching.match import match
from ..mixtures import GaussianMixture
from ..networks import DEQ, ENN, Kernel, is_tangent
from ..nn.model import compute_features, one_hot, ridge_readout
from ..plots.figures.twins import draw_routes
from .readouts import build
from .runner import Experiment, Point, Setup

ROUTES = ("four numbers", "sphere", "one layer")
DATASETS = ("mixture", "mnist", "fashion_mnist", "cifar10_vgg")
SIGMA_A2 = 0.2
RIDGE = 1e-2
"""Of kernel regression, in units of the mean of the kernel's diagonal."""
READOUT_RIDGE = 1e-1
"""Of networks, in the same units; larger, as 1,500 rows on 1,024 features are near the interpolation threshold."""
_MIXTURE_DIMENSION = 1000

Array = NDArray[Any]


@dataclass(frozen=True)
class RouteSize:
    """How much is computed."""

    train: int
    test: int
    width: int
    seeds: int = 3


QUICK, FULL = RouteSize(400, 300, 256), RouteSize(1500, 1000, 1024)


# ---- data ----------------------------------------------------------------------------------------------------


def prepare(name: str, size: RouteSize, folder: Any = None, seed: int = 0) -> Dataset:
    """Random rows of a data set, standardised by the training rows; the papers' mixture is drawn and stays as it is."""
    if name == "mixture":
        mixture = GaussianMixture.two_class(_MIXTURE_DIMENSION)
        (X, y), (X_test, y_test) = mixture.sample(size.train, seed=seed), mixture.sample(size.test, seed=seed + 1)
        return Dataset(name, X.astype(np.float32), y, X_test.astype(np.float32), y_test, classes=(0, 1))
    data, rng = load(name, folder), np.random.default_rng(seed)
    train, test = (rng.permutation(len(y))[:n] for y, n in ((data.y_train, size.train), (data.y_test, size.test)))
    chosen = replace(
        data,
        X_train=data.X_train[train],
        y_train=data.y_train[train],
        X_test=data.X_test[test],
        y_test=data.y_test[test],
    )
    return chosen.standardised()


def _unit(data: Dataset) -> Dataset:
    rows = [X / np.linalg.norm(X, axis=1, keepdims=True) for X in (data.X_train, data.X_test)]
    return replace(data, X_train=rows[0], X_test=rows[1])


# ---- twins ---------------------------------------------------------------------------------------------------


def route_twin(route: str, activation: str, kernel: Kernel, data: Dataset) -> Twin:
    """The twin that a route finds; its ``deq`` is the DEQ that the route speaks of."""
    deq = DEQ(activation, SIGMA_A2)
    if route == "four numbers":
        squares = (data.X_train.astype(np.float64) ** 2).sum(1)
        return match(deq, float(np.sqrt(squares.mean())), kernel)
    if route == "sphere":
        return match_sphere(deq, kernel)
    return match_one_layer(deq, kernel, None if deq.homogeneous else norm_range(data.X_train), units="conditioned")


def compare_route(data: Dataset, route: str, activation: str, kernel: Kernel, size: RouteSize) -> dict[str, Any]:
    """Distance of the kernels, agreement of the regressions, and for the CK the networks of finite width."""
    twin = route_twin(route, activation, kernel, data)
    rows = _unit(data) if route == "sphere" else data
    numbers: dict[str, Any] = {"depth": twin.depth, "bound": twin.bound, "family": twin.family}
    numbers |= {"norms": norm_range(rows.X_train)} | _kernels(twin, rows, kernel)
    if not is_tangent(kernel):
        numbers["networks"] = _networks(twin, rows, size)
    return numbers


# ---- kernels -------------------------------------------------------------------------------------------------


def _kernels(twin: Twin, data: Dataset, kernel: Kernel) -> dict[str, Any]:
    """Relative spectral distance on the training rows; kernel ridge regression of the classes on the test rows."""
    X, X_test = (rows.astype(np.float64) for rows in (data.X_train, data.X_test))
    exact, plain = (kernels_of(network, X, kernels=(kernel,))[kernel] for network in (twin.deq, twin.plain))
    others = {"twin": twin.kernel_matrix(X), "plain": plain}
    guesses = {
        name: DEQClassifier(network=network, kernel=kernel, ridge=RIDGE).fit(X, data.y_train).predict(X_test)
        for name, network in {"DEQ": twin.deq, "twin": twin, "plain": twin.plain}.items()
    }
    return {
        "distance": {name: relative_spectral_error(exact, matrix) for name, matrix in others.items()},
        "regression": {
            "accuracy": {name: float(np.mean(guess == data.y_test)) for name, guess in guesses.items()},
            "agreement": {name: float(np.mean(guesses[name] == guesses["DEQ"])) for name in others},
        },
    }


# ---- finite width --------------------------------------------------------------------------------------------


def _networks(twin: Twin, data: Dataset, size: RouteSize) -> dict[str, Any]:
    """Frozen random features and a ridge readout; agreement with the DEQ of the same seed, or of the next one."""
    networks: dict[str, DEQ | ENN] = {"DEQ": twin.deq, "twin": twin.network, "plain": twin.plain}
    guesses = {
        name: np.stack([_guess(network, data, size.width, seed) for seed in range(size.seeds)])
        for name, network in networks.items()
    }
    other = np.roll(guesses["DEQ"], 1, axis=0)
    compared = {"twin": guesses["twin"], "plain": guesses["plain"], "DEQ of another seed": other}
    return {
        "accuracy": {name: (found == data.y_test).mean(1).tolist() for name, found in guesses.items()},
        "agreement": {name: float(np.mean(found == guesses["DEQ"])) for name, found in compared.items()},
    }


def _guess(network: DEQ | ENN, data: Dataset, width: int, seed: int) -> Array:
    model, (X, y, X_test, _) = build(network, data, width, seed), data.tensors()
    train, test = (compute_features(model, rows) for rows in (X, X_test))
    targets = one_hot(y, len(data.classes), train)
    ridge = READOUT_RIDGE * float((train**2).sum(1).mean()) / len(train)
    return (test @ ridge_readout(train, targets, ridge).mT).argmax(1).numpy()


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup, datasets: Sequence[str] | None = None) -> list[Point]:
    """Every data set, route and activation with the CK; ReLU with the NTK as well."""
    size = QUICK if setup.quick else FULL
    chosen = datasets or (("digits",) if setup.quick else DATASETS)
    prepared = functools.lru_cache(maxsize=1)(lambda name: prepare(name, size, setup.data))
    cases: list[tuple[str, Kernel]] = [("relu", "ck"), ("tanh", "ck"), ("relu", "ntk")]

    def point(name: str, route: str, activation: str, kernel: Kernel) -> Point:
        settings = {
            "dataset": name,
            "route": route,
            "activation": activation,
            "kernel": kernel,
            "sigma_a2": SIGMA_A2,
            "ridge": RIDGE,
            "readout_ridge": READOUT_RIDGE,
            **asdict(size),
            "seeds": list(range(size.seeds)),
        }
        key = f"{name}/{activation}/{kernel}/{route}"
        return Point(key, settings, lambda: compare_route(prepared(name), route, activation, kernel, size))

    return [point(name, route, *case) for name in chosen for case in cases for route in ROUTES]


EXPERIMENTS = (Experiment("three_routes", points, draw_routes),)
