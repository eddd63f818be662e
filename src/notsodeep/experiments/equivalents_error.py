"""Relative spectral error of the equivalents against n (preprint and slides, error figures; p/n = 0.8).

The theorems promise n^(-1/2). :func:`error_against_n` measures it for any activation, on the papers' mixture and on two
more: several classes with random means, and classes with different full covariances (``mixtures_error``).

``rejected_variants``: published forms of the equivalents that do not converge, next to the one that does. The five
texts on these equivalents disagree. Each variant changes one formula back to a printed form; on mixtures with unequal
covariances its error stalls at a constant while the library's falls like n^(-1/2). They exist only here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import scipy.linalg

from ..activations import ActivationLike
from ..equivalents import Coefficients, coefficients, equivalent, relative_spectral_error
from ..equivalents.distance import ErrorCurve
from ..equivalents.operator import assemble
from ..errors import InvalidInputError
from ..gaussian import moments
from ..kernels import kernels_of
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import DEQ, KERNELS, Kernel
from ..plots.figures.kernels import draw_errors, draw_mixtures, draw_variants
from .runner import Document, Experiment, Point, Setup

ACTIVATIONS = ("tanh", "arctan", "relu", "leaky_relu", "elu", "silu")


def error_against_n(
    activation: ActivationLike = "tanh",
    mixture_name: str = "two_class",
    *,
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
        exact = kernels_of(network.centred(statistics.tau0), X, kernels=KERNELS)
        return {
            k if kept == "typical" else f"{k}/own": relative_spectral_error(
                exact[k], equivalent(network, statistics, k, own_norms=kept == "own")
            )
            for k in KERNELS
            for kept in norms
        }

    return _curves(measure, mixture_name, dimensions, points_per_dimension, seeds)


def _curves(
    measure: Callable[[GaussianMixture, Any, Any], dict[str, float]],
    mixture_name: str,
    dimensions: Sequence[int],
    points_per_dimension: float,
    seeds: int,
) -> dict[str, ErrorCurve]:
    """Measurements on samples of every dimension and seed, by label and by n."""
    found: dict[str, dict[int, list[float]]] = {}
    for p in dimensions:
        mix, n = mixture(mixture_name, p), round(points_per_dimension * p)
        for seed in range(seeds):
            for label, error in measure(mix, *mix.sample(n, seed=seed)).items():
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


MIXTURES: dict[str, Callable[[int], GaussianMixture]] = {
    "two_class": GaussianMixture.two_class,
    "random_means": random_means,
    "full_covariances": full_covariances,
    # means of norm 1: the classes differ in norm, and no large eigenvalue hides the rest
    "near_means": lambda p: GaussianMixture.two_class(p, mu=1.0),
    "only_means": lambda p: GaussianMixture.two_class(p, cov=0.0),
    "only_covariances": lambda p: GaussianMixture.two_class(p, mu=0.0),
}
"""Beside the papers' own, and with fewer differences of its classes: two others."""


def mixture(name: str, p: int) -> GaussianMixture:
    """One of :data:`MIXTURES` in dimension p."""
    if name not in MIXTURES:
        raise InvalidInputError(f"unknown mixture {name!r}; known: {', '.join(MIXTURES)}")
    return MIXTURES[name](p)


# ---- the studies ---------------------------------------------------------------------------------------------


def error_points(setup: Setup) -> list[Point]:
    """Six activations, growing dimension; each point holds all kernels and seeds."""

    def measure(activation: str, p: int, n: int, sigma_a2: float, seeds: list[int], norms: Any) -> dict[str, Any]:
        found = error_against_n(activation, dimensions=(p,), seeds=len(seeds), sigma_a2=sigma_a2, norms=norms)
        return {kernel: list(curve.errors[0]) for kernel, curve in found.items()}

    def point(activation: str, p: int) -> Point:
        settings = {"activation": activation, "p": p, "n": round(1.25 * p), "sigma_a2": 0.2, "seeds": [0, 1]}
        return Point.of(f"{activation}/{p}", {**settings, "norms": ["typical", "own"]}, measure)

    dimensions = (80, 160, 320) if setup.quick else (200, 400, 800, 1600, 3200)
    return [point(activation, p) for p in dimensions for activation in ACTIVATIONS]


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


def mixture_points(setup: Setup) -> list[Point]:
    """One point per mixture and activation, with the curves of all three kernels."""

    def measure(mixture: str, activation: str, seeds: list[int], **options: Any) -> dict[str, Any]:
        return _documents(error_against_n(activation, mixture, seeds=len(seeds), **options))

    def point(mixture: str, activation: str) -> Point:
        settings = {
            "mixture": mixture,
            "activation": activation,
            "dimensions": (40, 80, 160) if setup.quick else (250, 500, 1000, 2000, 4000),
            "points_per_dimension": 0.8,
            "sigma_a2": 0.2,
            "seeds": [0, 1],
        }
        return Point.of(f"{mixture}/{activation}", settings, measure)

    chosen = ("tanh", "relu") if setup.quick else ACTIVATIONS
    return [point(name, phi) for name in ("two_class", "random_means", "full_covariances") for phi in chosen]


def _documents(curves: dict[str, ErrorCurve]) -> dict[str, Any]:
    return {name: curve.to_dict() for name, curve in curves.items()}


# ---- printed formulas ----------------------------------------------------------------------------------------

Formulas = tuple[Coefficients, MixtureStatistics]
Change = Callable[[DEQ, Coefficients, MixtureStatistics], Formulas]


def _centred_covariances(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> Formulas:
    """T from C_a - C0 instead of C_a."""
    centre = np.eye(st.K) - np.outer(np.ones(st.K), st.counts / st.n)
    return c, replace(st, T=centre @ st.T @ centre.T)


def _kappa_from_tau(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> Formulas:
    """kappa^2 = tau*^2/(1 - s2a D2) instead of gamma^2/(1 - s2a D2) (slides)."""
    scale, m = _at_equilibrium(deq, c)
    return replace(c, diagonal=scale**2 / (1.0 - deq.variances[0] * m.slope_square)), st


def _beta3_of_the_slides(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> Formulas:
    """beta3 = (alpha3 + beta1 (s2a E2^2 + s2b) alpha1)/(1 - s2a E1^2) (slides)."""
    s2a, s2b, _ = deq.variances
    (_, m), ck = _at_equilibrium(deq, c), coefficients(deq, c.tau0, "ck")
    beta3 = (ck.c3 + c.c1 * (s2a * m.curvature**2 + s2b) * ck.c1) / (1.0 - s2a * m.slope**2)
    return replace(c, c3=beta3), st


def _at_equilibrium(deq: DEQ, c: Coefficients) -> tuple[float, Any]:
    assert c.tau_star is not None  # the variants speak of DEQs
    return c.tau_star, moments(deq.activation, c.tau_star)


VARIANTS: dict[str, tuple[Kernel, Change]] = {
    "ck": ("ck", lambda deq, c, st: (c, st)),
    "ck, T from centred covariances": ("ck", _centred_covariances),
    "ck, alpha4 not squared": ("ck", lambda deq, c, st: (replace(c, c2=c.c2 / c.alpha4), st)),  # slides
    "ck, - tau0^4 alpha3 on the diagonal": (  # preprint
        "ck",
        lambda deq, c, st: (replace(c, diagonal=c.diagonal - c.tau0**4 * c.c3), st),
    ),
    "ntk_frozen": ("ntk_frozen", lambda deq, c, st: (c, st)),
    "ntk_frozen, kappa from tau*": ("ntk_frozen", _kappa_from_tau),
    "ntk_frozen, beta3 of the slides": ("ntk_frozen", _beta3_of_the_slides),
}
"""Kernel, and what is printed in place of the library's form, which has no addition to its name."""


def rejected_variants(
    activation: ActivationLike = "relu",
    mixture_name: str = "near_means",
    *,
    dimensions: Sequence[int] = (250, 500, 1000, 2000),
    points_per_dimension: float = 1.25,
    seeds: int = 2,
    sigma_a2: float = 0.2,
) -> dict[str, ErrorCurve]:
    """The error against n of every variant, by name; compare the slopes."""
    network = DEQ(activation, sigma_a2=sigma_a2)

    def measure(mix: GaussianMixture, X: Any, y: Any) -> dict[str, float]:
        statistics = MixtureStatistics.from_mixture(mix, X, y)
        exact = kernels_of(network.centred(statistics.tau0), X, kernels=("ck", "ntk_frozen"))
        out = {}
        for label, (kernel, change) in VARIANTS.items():
            c = coefficients(network, statistics.tau0, kernel)
            out[label] = relative_spectral_error(exact[kernel], assemble(*change(network, c, statistics)))
        return out

    return _curves(measure, mixture_name, dimensions, points_per_dimension, seeds)


def variant_points(setup: Setup) -> list[Point]:
    """One point: all variants on the same samples."""
    settings: dict[str, Any] = {
        "activation": "relu",
        "mixture_name": "near_means",
        "dimensions": (60, 120, 240) if setup.quick else (250, 500, 1000, 2000),
        "points_per_dimension": 1.25,
        "seeds": 2,
        "sigma_a2": 0.2,
    }
    return [Point("relu", settings, lambda: _documents(rejected_variants(**settings)))]


EXPERIMENTS = (
    Experiment("equivalents_error", error_points, lambda document: draw_errors(kept_curves(document))),
    Experiment("mixtures_error", mixture_points, draw_mixtures),
    Experiment("rejected_variants", variant_points, draw_variants),
)
