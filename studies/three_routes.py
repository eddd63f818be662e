"""The three routes to a twin on the same data: four numbers, the sphere's series, one layer for every input.

Each twin is held against the DEQ it speaks of: ``match`` against the centred one, ``match_sphere`` against the plain
one on rows of norm 1, ``match_one_layer`` against the plain one. A plain network of the twin's depth stands beside it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

import notsodeep as nsd

from ._data import Dataset, load
from ._learners import in_batches, one_hot
from ._measure import kernel_of
from ._readouts import build
from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, INK, by_setting, panels, word

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
        mixture = nsd.GaussianMixture.two_class(_MIXTURE_DIMENSION)
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


def route_twin(route: str, activation: str, kernel: str, data: Dataset) -> nsd.Twin:
    """The twin that a route finds; its ``deq`` is the DEQ that the route speaks of."""
    deq = nsd.DEQ(activation, SIGMA_A2)
    if route == "four numbers":
        squares = (data.X_train.astype(np.float64) ** 2).sum(1)
        return nsd.match(deq, float(np.sqrt(squares.mean())), kernel)
    if route == "sphere":
        return nsd.match_sphere(deq, kernel)
    norms = None if deq.homogeneous else nsd.matching.norm_range(data.X_train)
    return nsd.match_one_layer(deq, kernel, norms, units="conditioned")


def compare_route(data: Dataset, route: str, activation: str, kernel: str, size: RouteSize) -> dict[str, Any]:
    """Distance of the kernels, agreement of the regressions, and for the CK the networks of finite width."""
    twin = route_twin(route, activation, kernel, data)
    rows = _unit(data) if route == "sphere" else data
    numbers: dict[str, Any] = {"depth": twin.depth, "bound": twin.bound, "family": twin.family}
    numbers |= {"norms": nsd.matching.norm_range(rows.X_train)} | _kernels(twin, rows, kernel)
    if kernel == "ck":
        numbers["networks"] = _networks(twin, rows, size)
    return numbers


# ---- kernels -------------------------------------------------------------------------------------------------


def _kernels(twin: nsd.Twin, data: Dataset, kernel: str) -> dict[str, Any]:
    """Relative spectral distance on the training rows; kernel ridge regression of the classes on the test rows."""
    X, X_test = (rows.astype(np.float64) for rows in (data.X_train, data.X_test))
    exact, plain = (kernel_of(network, kernel, X) for network in (twin.deq, twin.plain))
    others = {"twin": twin.kernel_matrix(X), "plain": plain}
    guesses = {
        name: nsd.DEQClassifier(network=network, kernel=kernel, ridge=RIDGE, scale=None, fit_intercept=False)
        .fit(X, data.y_train)
        .predict(X_test)
        for name, network in {"DEQ": twin.deq, "twin": twin, "plain": twin.plain}.items()
    }
    return {
        "distance": {name: nsd.equivalents.relative_spectral_error(exact, matrix) for name, matrix in others.items()},
        "regression": {
            "accuracy": {name: float(np.mean(guess == data.y_test)) for name, guess in guesses.items()},
            "agreement": {name: float(np.mean(guesses[name] == guesses["DEQ"])) for name in others},
        },
    }


# ---- finite width --------------------------------------------------------------------------------------------


def _networks(twin: nsd.Twin, data: Dataset, size: RouteSize) -> dict[str, Any]:
    """Frozen random features and a ridge readout; agreement with the DEQ of the same seed, or of the next one."""
    networks: dict[str, nsd.DEQ | nsd.ENN] = {"DEQ": twin.deq, "twin": twin.network, "plain": twin.plain}
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


def _guess(network: nsd.DEQ | nsd.ENN, data: Dataset, width: int, seed: int) -> Array:
    model, (X, y, X_test, _) = build(network, data, width, seed), data.tensors()
    train, test = (in_batches(model.features, rows) for rows in (X, X_test))
    ridge = READOUT_RIDGE * float((train**2).sum(1).mean())
    inner = train.mT @ train + ridge * torch.eye(width)
    readout = torch.linalg.solve(inner, train.mT @ one_hot(y, len(data.classes), train))
    return (test @ readout).argmax(1).numpy()


# ---- points --------------------------------------------------------------------------------------------------


def points(setup: Setup, datasets: Sequence[str] | None = None) -> list[Point]:
    """Every data set, route and activation with the CK; ReLU with the NTK as well."""
    size = QUICK if setup.quick else FULL
    chosen = datasets or (("digits",) if setup.quick else DATASETS)
    prepared = functools.lru_cache(maxsize=1)(lambda name: prepare(name, size, setup.data))
    cases: list[tuple[str, str]] = [("relu", "ck"), ("tanh", "ck"), ("relu", "ntk")]

    def point(name: str, route: str, activation: str, kernel: str) -> Point:
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


# ---- figures -----

_COLOURS = {"four numbers": COLOURS["DEQ"], "sphere": COLOURS["plain"], "one layer": COLOURS["twin"]}
_MARKERS = {("relu", "ck"): "o", ("tanh", "ck"): "s", ("relu", "ntk"): "^"}
_NAMES = {
    "four numbers": "four numbers (match)",
    "sphere": "unit norm (match_sphere)",
    "one layer": "any input (match_one_layer)",
}


def draw(document: Document) -> dict[str, Figure]:
    """Distance of the kernels, disagreement of the regressions, accuracy of networks beside the DEQ's."""
    return {
        "distance": _figure(document, "A twin is nearer to the DEQ than a plain network",
                            "relative spectral distance of the kernels", _distance, "log"),
        "regression": _figure(document, "str regression: how often another class is predicted",
                              "test rows classified unlike the DEQ, %", _disagreement),
        "networks": _figure(document, "Finite networks: what the twin costs in accuracy",
                            "test accuracy minus the DEQ's, percentage points", _gap),
    }  # fmt: skip


def _distance(numbers: Document, name: str) -> float | None:
    return numbers["distance"][name]


def _disagreement(numbers: Document, name: str) -> float | None:
    return 100 * (1 - numbers["regression"]["agreement"][name])


def _gap(numbers: Document, name: str) -> float | None:
    if "networks" not in numbers:
        return None
    accuracy = numbers["networks"]["accuracy"]
    return 100 * float(np.mean(accuracy[name]) - np.mean(accuracy["DEQ"]))


def _figure(
    document: Document, title: str, label: str, value: Callable[[Document, str], float | None], scale: str = "linear"
) -> Figure:
    names = list(by_setting(document["points"].values(), "dataset"))
    figure, ax = panels((8.6, 2.4 + 1.1 * len(names)), title)
    for point in document["points"].values():
        _draw_point(ax, point, names, value)
    for between in range(1, len(names)):
        ax.axhline(between - 0.5, color="0.7", linewidth=0.8)
    ax.grid(axis="x", color="0.7", alpha=0.4)
    ax.set_yticks(range(len(names)), [word(name) for name in names])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set(xscale=scale, xlabel=label)
    figure.legend(handles=_legend(ax), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _draw_point(ax: Axes, point: Document, names: list[str], value: Callable[[Document, str], float | None]) -> None:
    settings = point["settings"]
    case = (settings["activation"], settings["kernel"])
    places = [(c, r) for c in _MARKERS for r in _COLOURS]
    y = names.index(settings["dataset"]) - 0.4 + 0.8 * (places.index((case, settings["route"])) + 0.5) / len(places)
    colour = _COLOURS[settings["route"]]
    for name, face in (("plain", "none"), ("twin", colour)):
        x = value(point["numbers"], name)
        if x is not None:
            ax.plot(x, y, marker=_MARKERS[case], color=colour, markerfacecolor=face, markersize=6, linestyle="")


def _legend(ax: Axes) -> list[Any]:
    def entry(label: str, colour: str, marker: str, face: str) -> Any:
        style: Any = {"marker": marker, "color": colour, "markerfacecolor": face, "linestyle": "", "markersize": 6}
        return ax.plot([], [], label=label, **style)[0]

    routes = [entry(_NAMES[route], colour, "o", colour) for route, colour in _COLOURS.items()]
    cases = [entry(f"{word(a)}, {word(k)}", INK, marker, INK) for (a, k), marker in _MARKERS.items()]
    return [*routes, *cases, entry("filled: twin", INK, "o", INK), entry("hollow: plain network", INK, "o", "none")]


STUDY = Study(
    shows="three routes to a twin on the same data",
    quick="1 min",
    full="6 min",
    points=points,
    draw=draw,
)
