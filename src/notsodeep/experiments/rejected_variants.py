"""Published forms of the equivalents that do not converge, next to the one that does.

The five texts on these equivalents disagree. Each variant below changes one formula back to a printed form; on mixtures
with unequal covariances its error stalls at a constant while the library's falls like n^(-1/2). They exist only here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..activations import ActivationLike
from ..equivalents import Coefficients, coefficients, relative_spectral_error
from ..equivalents.distance import ErrorCurve
from ..equivalents.operator import assemble
from ..gaussian import moments
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import DEQ, Kernel
from ..plots.figures import draw_variants
from .equivalents_error import curves, draws, exact_kernels
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "VARIANTS", "rejected_variants"]

Change = Callable[[DEQ, Coefficients, MixtureStatistics], tuple[Coefficients, MixtureStatistics]]


def _centred_covariances(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """T from C_a - C0 instead of C_a."""
    shares = st.counts / st.n
    centre = np.eye(st.K) - np.outer(np.ones(st.K), shares)
    return c, replace(st, T=centre @ st.T @ centre.T)


def _alpha4_once(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """alpha2 proportional to alpha4 instead of alpha4^2 (slides)."""
    return replace(c, c2=c.c2 / c.alpha4), st


def _shorter_diagonal(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """- tau0^4 alpha3 on the diagonal (preprint)."""
    return replace(c, diagonal=c.diagonal - c.tau0**4 * c.c3), st


def _kappa_from_tau(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """kappa^2 = tau*^2/(1 - s2a D2) instead of gamma^2/(1 - s2a D2) (slides)."""
    m = _moments(deq, c)
    return replace(c, diagonal=_scale(c) ** 2 / (1.0 - deq.variances[0] * m.slope_square)), st


def _beta3_of_the_slides(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """beta3 = (alpha3 + beta1 (s2a E2^2 + s2b) alpha1)/(1 - s2a E1^2) (slides)."""
    s2a, s2b, _ = deq.variances
    m, ck = _moments(deq, c), coefficients(deq, c.tau0, "ck")
    beta3 = (ck.c3 + c.c1 * (s2a * m.curvature**2 + s2b) * ck.c1) / (1.0 - s2a * m.slope**2)
    return replace(c, c3=beta3), st


def _as_it_is(deq: DEQ, c: Coefficients, st: MixtureStatistics) -> tuple[Coefficients, MixtureStatistics]:
    """The library's form."""
    return c, st


VARIANTS: dict[str, tuple[Kernel, Change]] = {
    "ck": ("ck", _as_it_is),
    "ck, T from centred covariances": ("ck", _centred_covariances),
    "ck, alpha4 not squared": ("ck", _alpha4_once),
    "ck, - tau0^4 alpha3 on the diagonal": ("ck", _shorter_diagonal),
    "ntk_frozen": ("ntk_frozen", _as_it_is),
    "ntk_frozen, kappa from tau*": ("ntk_frozen", _kappa_from_tau),
    "ntk_frozen, beta3 of the slides": ("ntk_frozen", _beta3_of_the_slides),
}


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
        exact = exact_kernels(network, statistics, ("ck", "ntk_frozen"))
        out = {}
        for label, (kernel, change) in VARIANTS.items():
            c = coefficients(network, statistics.tau0, kernel)
            out[label] = relative_spectral_error(exact[kernel], assemble(*change(network, c, statistics)))
        return out

    return curves(draws(mixture_name, dimensions, points_per_dimension, seeds), measure)


def _scale(c: Coefficients) -> float:
    assert c.tau_star is not None  # the variants speak of DEQs
    return c.tau_star


def _moments(deq: DEQ, c: Coefficients) -> Any:
    return moments(deq.activation, _scale(c))


def points(setup: Setup) -> list[Point]:
    """One point: all variants on the same samples."""
    settings: dict[str, Any] = {
        "activation": "relu",
        "mixture_name": "near_means",
        "dimensions": (60, 120, 240) if setup.quick else (250, 500, 1000, 2000),
        "points_per_dimension": 1.25,
        "seeds": 2,
        "sigma_a2": 0.2,
    }
    return [Point("relu", settings, lambda: {n: c.to_dict() for n, c in rejected_variants(**settings).items()})]


EXPERIMENT = Experiment("rejected_variants", "Printed formulas that stall, beside those kept", points, draw_variants)
