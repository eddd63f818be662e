"""Relative spectral error of the equivalents against n (preprint and slides, error figures; p/n = 0.8).

The theorems promise n^(-1/2). :func:`error_against_n` measures it for any activation, on the papers' mixture and on two
more: several classes with random means, and classes with different full covariances.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import scipy.linalg

from ..activations import ActivationLike
from ..equivalents import equivalent, relative_spectral_error
from ..equivalents.distance import ErrorCurve
from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import DEQ, Kernel, Network
from ..plots.figures import draw_errors
from .runner import Document, Experiment, Point, Setup

__all__ = ["ACTIVATIONS", "EXPERIMENT", "MIXTURES", "error_against_n", "kept_curves", "mixture"]

ACTIVATIONS = ("tanh", "arctan", "relu", "leaky_relu", "elu", "silu")
KERNELS: tuple[Kernel, ...] = ("ck", "ntk", "ntk_frozen")


def error_against_n(
    activation: ActivationLike = "tanh",
    mixture_name: str = "two_class",
    *,
    kernels: Sequence[Kernel] = KERNELS,
    dimensions: Sequence[int] = (250, 500, 1000, 2000, 4000),
    points_per_dimension: float = 1.25,
    seeds: int = 3,
    sigma_a2: float = 0.2,
    about: Any = "mean",
    norms: Sequence[Literal["typical", "own"]] = ("typical",),
) -> dict[str, ErrorCurve]:
    """One curve per kernel for a DEQ, with exact kernels of the network centred at the data's tau0.

    ``about`` is passed to :class:`~notsodeep.MixtureStatistics`, each of ``norms`` to :func:`~notsodeep.equivalent`;
    curves with the rows' own norms have the names ``"ck/own"`` ...
    """
    network = DEQ(activation, sigma_a2=sigma_a2)

    def measure(mix: GaussianMixture, X: Any, y: Any) -> dict[str, float]:
        statistics = MixtureStatistics.from_mixture(mix, X, y, about=about)
        exact = exact_kernels(network, statistics, kernels)
        return {
            k if kept == "typical" else f"{k}/own": relative_spectral_error(
                exact[k], equivalent(network, statistics, k, kept)
            )
            for k in kernels
            for kept in norms
        }

    samples = draws(mixture_name, dimensions, points_per_dimension, seeds)
    return curves(samples, measure)


def exact_kernels(network: Network, statistics: MixtureStatistics, kernels: Sequence[Kernel]) -> dict[Kernel, Any]:
    """Exact kernels of the network centred at the statistics' tau0."""
    return kernels_of(network.centred(statistics.tau0), statistics.X, kinds=tuple(kernels))


def draws(
    name: str, dimensions: Sequence[int], points_per_dimension: float, seeds: int
) -> Iterator[tuple[int, GaussianMixture, Any, Any]]:
    """(n, mixture, X, y) for every dimension and seed."""
    for p in dimensions:
        mix = mixture(name, p)
        n = round(points_per_dimension * p)
        for seed in range(seeds):
            yield (n, mix, *mix.sample(n, seed=seed))


def curves(
    samples: Iterator[tuple[int, GaussianMixture, Any, Any]],
    measure: Callable[[GaussianMixture, Any, Any], dict[str, float]],
) -> dict[str, ErrorCurve]:
    """Collect measurements by label and by n."""
    found: dict[str, dict[int, list[float]]] = {}
    for n, mix, X, y in samples:
        for label, error in measure(mix, X, y).items():
            found.setdefault(label, {}).setdefault(n, []).append(error)
    return {
        label: ErrorCurve(label, tuple(by_n), tuple(tuple(values) for values in by_n.values()))
        for label, by_n in found.items()
    }


# ---- mixtures ------------------------------------------------------------------------------------------------


def random_means(p: int) -> GaussianMixture:
    """Five classes of unequal weight, random means of norm near 3, isotropic covariances 1 + 2(a-2)/sqrt(p)."""
    generator = np.random.default_rng(11)
    means = 3.0 * generator.standard_normal((5, p)) / math.sqrt(p)
    return GaussianMixture(means, [1.0 + 2.0 * (a - 2) / math.sqrt(p) for a in range(5)], [3, 2, 2, 2, 1])


def full_covariances(p: int) -> GaussianMixture:
    """Two classes with Toeplitz covariances 0.5^|i-j| and (1 + 3/sqrt(p)) (-0.3)^|i-j|, means of norm 3."""
    lag = np.minimum(np.arange(p), 100)  # 0.5^100 = 8e-31: smaller powers only slow the arithmetic down (denormals)
    means = np.zeros((2, p))
    means[0, 0] = means[1, p // 2] = 3.0
    first, second = scipy.linalg.toeplitz(0.5**lag), scipy.linalg.toeplitz((-0.3) ** lag)
    return GaussianMixture(means, [first, (1.0 + 3.0 / math.sqrt(p)) * second])


def near_means(p: int) -> GaussianMixture:
    """The papers' mixture with means of norm 1: the classes differ in norm, and no large eigenvalue hides the rest."""
    return GaussianMixture.two_class(p, mu=1.0)


def only_means(p: int) -> GaussianMixture:
    """The papers' mixture with equal covariances."""
    return GaussianMixture.two_class(p, cov=0.0)


def only_covariances(p: int) -> GaussianMixture:
    """The papers' mixture with equal means."""
    return GaussianMixture.two_class(p, mu=0.0)


MIXTURES: dict[str, Callable[[int], GaussianMixture]] = {
    "two_class": GaussianMixture.two_class,
    "random_means": random_means,
    "full_covariances": full_covariances,
    "near_means": near_means,
    "only_means": only_means,
    "only_covariances": only_covariances,
}


def mixture(name: str, p: int) -> GaussianMixture:
    """One of :data:`MIXTURES` in dimension p."""
    if name not in MIXTURES:
        raise InvalidInputError(f"unknown mixture {name!r}; known: {', '.join(MIXTURES)}")
    return MIXTURES[name](p)


# ---- the study -----------------------------------------------------------------------------------------------


def points(setup: Setup) -> list[Point]:
    """Six activations, growing dimension; each point holds all kernels and seeds."""
    dimensions = (80, 160, 320) if setup.quick else (200, 400, 800, 1600, 3200)

    def point(activation: str, p: int) -> Point:
        settings = {"activation": activation, "p": p, "n": round(1.25 * p), "sigma_a2": 0.2, "seeds": [0, 1]}
        settings["norms"] = ["typical", "own"]
        return Point(f"{activation}/{p}", settings, lambda: _measure(settings))

    return [point(activation, p) for p in dimensions for activation in ACTIVATIONS]


def _measure(settings: Mapping[str, Any]) -> dict[str, Any]:
    curves = error_against_n(
        settings["activation"],
        kernels=KERNELS,
        dimensions=(settings["p"],),
        points_per_dimension=1.25,
        seeds=len(settings["seeds"]),
        sigma_a2=settings["sigma_a2"],
        norms=settings["norms"],
    )
    return {kernel: list(curve.errors[0]) for kernel, curve in curves.items()}


def kept_curves(document: Document) -> dict[str, dict[str, ErrorCurve]]:
    """Kernel -> activation -> its curve; ``"ck/own"`` ... are the equivalents that keep the norm of each row."""
    found: dict[str, dict[str, dict[int, tuple[float, ...]]]] = {}
    for point in sorted(document["points"].values(), key=lambda p: p["settings"]["n"]):
        for kernel, errors in point["numbers"].items():
            by_size = found.setdefault(kernel, {}).setdefault(point["settings"]["activation"], {})
            by_size[point["settings"]["n"]] = tuple(errors)
    return {
        kernel: {a: ErrorCurve(a, tuple(e), tuple(e.values())) for a, e in by_name.items() if len(e) > 1}
        for kernel, by_name in found.items()
    }


EXPERIMENT = Experiment(
    "equivalents_error",
    "Relative spectral error of the equivalents against n",
    points,
    lambda document: draw_errors(document, kept_curves(document)),
)
