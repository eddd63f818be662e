"""Published forms of the equivalents that do not converge, next to the one that does.

The texts on these equivalents disagree. Each variant changes one formula back to a printed form. On mixtures with
unequal covariances its error stalls at a constant while that of the library's form falls like n^(-1/2). On the papers'
own mixture the means hide some of it: the unsquared alpha4 of the slides does not stall there up to n = 2,000.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import notsodeep as nsd

from ._curves import ErrorCurve, curves_over_n, documents, network_of
from ._measure import kernel_of
from ._runner import Document, Point, Setup, Study
from ._style import MARKERS, panels, ticks_at, word

Formulas = tuple[nsd.equivalents.Coefficients, nsd.MixtureStatistics]
Change = Callable[[nsd.DEQ, nsd.equivalents.Coefficients, nsd.MixtureStatistics], Formulas]


def _centred_covariances(deq: nsd.DEQ, c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> Formulas:
    """T from C_a - C0 instead of C_a."""
    centre = np.eye(st.K) - np.outer(np.ones(st.K), st.counts / st.n)
    return c, replace(st, T=centre @ st.T @ centre.T)


def _kappa_from_tau(deq: nsd.DEQ, c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> Formulas:
    """kappa^2 = tau*^2/(1 - s2a D2) instead of gamma^2/(1 - s2a D2) (slides)."""
    scale, m = _at_equilibrium(deq, c)
    return replace(c, diagonal=scale**2 / (1.0 - deq.variances[0] * m.slope_square)), st


def _beta3_of_the_slides(deq: nsd.DEQ, c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> Formulas:
    """beta3 = (alpha3 + beta1 (s2a E2^2 + s2b) alpha1)/(1 - s2a E1^2) (slides)."""
    s2a, s2b, _ = deq.variances
    (_, m), ck = _at_equilibrium(deq, c), nsd.coefficients(deq, c.tau0, "ck")
    beta3 = (ck.c3 + c.c1 * (s2a * m.curvature**2 + s2b) * ck.c1) / (1.0 - s2a * m.slope**2)
    return replace(c, c3=beta3), st


def _at_equilibrium(deq: nsd.DEQ, c: nsd.equivalents.Coefficients) -> tuple[float, Any]:
    assert c.tau_star is not None  # the variants speak of DEQs
    return c.tau_star, nsd.gaussian.moments(deq.activation, c.tau_star)


def _less_alpha3(deq: nsd.DEQ, c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> Formulas:
    """- tau0^4 c3 on the diagonal (preprint)."""
    return replace(c, diagonal=c.diagonal - c.tau0**4 * c.c3), st


def _kept(deq: nsd.DEQ, c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> Formulas:
    return c, st


VARIANTS: dict[str, Change] = {
    "ck": _kept,
    "ck, T from centred covariances": _centred_covariances,
    "ck, alpha4 not squared": lambda deq, c, st: (replace(c, c2=c.c2 / c.alpha4), st),  # slides
    "ck, - tau0^4 alpha3 on the diagonal": _less_alpha3,
    "ntk_frozen": _kept,
    "ntk_frozen, kappa from tau*": _kappa_from_tau,
    "ntk_frozen, beta3 of the slides": _beta3_of_the_slides,
    "preprint_ck": _kept,
    "preprint_ck, - tau0^4 alpha3 on the diagonal": _less_alpha3,
    "preprint_ntk": _kept,
    "preprint_ntk, - tau0^4 beta3 on the diagonal": _less_alpha3,
}
"""The kernel, and what is printed in place of the library's form, which has no addition to its name."""


def _assemble(c: nsd.equivalents.Coefficients, st: nsd.MixtureStatistics) -> np.ndarray:
    """c1 X X' + V [[c2 t t' + c3 T, c2 t], [c2 t', c2]] V' + (diagonal - tau0^2 c1) I."""
    t = st.t[:, None]
    core = np.block([[c.c2 * t @ t.T + c.c3 * st.T, c.c2 * t], [c.c2 * t.T, np.array([[c.c2]])]])
    lifted: np.ndarray = (c.diagonal - c.tau0**2 * c.c1) * np.eye(st.n)
    return lifted + c.c1 * st.X @ st.X.T + st.V @ core @ st.V.T


def rejected_variants(
    activation: Any = "relu",
    mixture_name: str = "near_means",
    *,
    dimensions: Sequence[int] = (250, 500, 1000, 2000),
    points_per_dimension: float = 1.25,
    seeds: int = 2,
    sigma_a2: float = 0.2,
) -> dict[str, ErrorCurve]:
    """The error against n of every variant, by name; compare the slopes."""

    def measure(mix: nsd.GaussianMixture, X: Any, y: Any) -> dict[str, float]:
        statistics, out = nsd.MixtureStatistics.from_mixture(mix, X, y), {}
        for label, change in VARIANTS.items():
            network, kernel = network_of(activation, sigma_a2, label.split(",")[0])
            if change is _kept:
                exact = kernel_of(network.centred(statistics.tau0), kernel, X)
            c = nsd.coefficients(network, statistics.tau0, kernel)
            out[label] = nsd.equivalents.relative_spectral_error(exact, _assemble(*change(network, c, statistics)))
        return out

    return curves_over_n(measure, mixture_name, dimensions, points_per_dimension, seeds)


def points(setup: Setup) -> list[Point]:
    """All variants on the same samples: a mixture with near means, and the papers' own."""

    def point(key: str, mixture: str, ratio: float, dimensions: Sequence[int]) -> Point:
        settings: dict[str, Any] = {
            "activation": "relu",
            "mixture_name": mixture,
            "dimensions": tuple(dimensions),
            "points_per_dimension": ratio,
            "seeds": 2,
            "sigma_a2": 0.2,
        }
        return Point(key, settings, lambda: documents(rejected_variants(**settings)))

    sizes = ((60, 120, 240), (100, 200)) if setup.quick else ((250, 500, 1000, 2000), (200, 400, 800, 1600))
    return [point("relu", "near_means", 1.25, sizes[0]), point("relu/two_class", "two_class", 1.25, sizes[1])]


def draw(document: Document) -> dict[str, Figure]:
    """One figure per mixture and kernel: the form that is kept falls, the printed ones stall, or do not."""
    drawn = {}
    for key, point in document["points"].items():
        curves = {name: ErrorCurve.from_dict(curve) for name, curve in point["numbers"].items()}
        mixture = point["settings"]["mixture_name"]
        for name in [name for name in curves if "," not in name]:
            suffix = name if key == "relu" else f"{mixture}_{name}"
            title = f"{word(name)}, {word(mixture)}:\nerrors of the formulas as printed, with their slopes"
            drawn[suffix] = _variants(title, [c for label, c in curves.items() if label.split(",")[0] == name])
    return drawn


def _variants(title: str, curves: Sequence[ErrorCurve]) -> Figure:
    figure, ax = panels((7.0, 4.8), title)
    for i, curve in enumerate(curves):
        label = curve.label.partition(", ")[2] or "the form used here"
        style = {"linewidth": 2.2} if i == 0 else {"linestyle": "--"}
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i], color=f"C{i}", label=f"{label}: {curve.slope:.2f}", **style)
    ticks_at(ax, curves[0].n)
    ax.set(xlabel="number of points", ylabel="relative spectral distance")
    ax.legend()
    return figure


STUDY = Study(
    shows="printed formulas that stall, beside those kept",
    quick="2 s",
    full="2 min",
    points=points,
    draw=draw,
)
