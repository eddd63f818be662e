"""Errors of the equivalents against the number of points: curves with their slopes, mixtures, and lines in a figure."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from matplotlib.axes import Axes

import notsodeep as nsd

from ._measure import KERNELS, PREPRINT
from ._own_norms import own_norm_matrix
from ._style import INK, MARKERS, ticks_at, word

ACTIVATIONS = ("tanh", "arctan", "relu", "leaky_relu", "elu", "silu")


@dataclass(frozen=True)
class ErrorCurve:
    """Errors of one equivalent over growing n, one row per size and one column per seed."""

    label: str
    n: tuple[int, ...]
    errors: tuple[tuple[float, ...], ...]

    @property
    def mean(self) -> tuple[float, ...]:
        """The error averaged over seeds."""
        return tuple(sum(row) / len(row) for row in self.errors)

    @property
    def slope(self) -> float:
        """Slope of log(mean error) against log(n)."""
        return float(np.polyfit(np.log(self.n), np.log(self.mean), 1)[0])

    def to_dict(self) -> dict[str, Any]:
        """Return a JSON document."""
        return {"label": self.label, "n": self.n, "errors": self.errors, "slope": self.slope}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> ErrorCurve:
        """Read what :meth:`to_dict` wrote."""
        return ErrorCurve(document["label"], tuple(document["n"]), tuple(tuple(row) for row in document["errors"]))


def error_against_n(
    activation: Any = "tanh",
    mixture_name: str = "two_class",
    *,
    dimensions: Sequence[int] = (250, 500, 1000, 2000, 4000),
    points_per_dimension: float = 1.25,
    seeds: int = 3,
    sigma_a2: float = 0.2,
    norms: Sequence[str] = ("typical",),
    kernels: Sequence[str] = KERNELS,
) -> dict[str, ErrorCurve]:
    """One curve per kernel for a DEQ, with exact kernels of the network centred at the data's tau0.

    ``kernels`` may hold ``"preprint_ck"`` and ``"preprint_ntk"``, those of the readout of the preprint. ``norms`` are
    ``"typical"``, as in the theorems, and ``"own"``: equivalents that keep the norm of each row, with curves like
    ``"ck/own"``.
    """

    def measure(mix: nsd.GaussianMixture, X: Any, y: Any) -> dict[str, float]:
        statistics = nsd.MixtureStatistics.from_mixture(mix, X, y)
        out = {}
        for labels in ([k for k in kernels if k not in PREPRINT], [k for k in kernels if k in PREPRINT]):
            asked = [network_of(activation, sigma_a2, label) for label in labels]
            names = tuple(kernel for _, kernel in asked)
            exact = nsd.kernels_of(asked[0][0].centred(statistics.tau0), X, kernels=names) if asked else {}
            for (network, kernel), label in zip(asked, labels, strict=True):
                for kept in norms:
                    form = (own_norm_matrix if kept == "own" else nsd.equivalent)(network, statistics, kernel)
                    name = label if kept == "typical" else f"{label}/own"
                    out[name] = nsd.equivalents.relative_spectral_error(exact[kernel], form)
        return out

    return curves_over_n(measure, mixture_name, dimensions, points_per_dimension, seeds)


def network_of(activation: Any, sigma_a2: float, label: str) -> tuple[nsd.DEQ, Any]:
    """Return the DEQ and the kernel that a label stands for."""
    readout: Any = "pre-activation" if label in PREPRINT else "activation"
    return nsd.DEQ(activation, sigma_a2, readout=readout), PREPRINT.get(label, label)


def curves_over_n(
    measure: Callable[[nsd.GaussianMixture, Any, Any], dict[str, float]],
    mixture_name: str,
    dimensions: Sequence[int],
    points_per_dimension: float,
    seeds: int,
) -> dict[str, ErrorCurve]:
    """Measure on samples of every dimension and seed; return one curve for each label that ``measure`` returns."""
    found: dict[str, dict[int, list[float]]] = {}
    for p in dimensions:
        mix, n = MIXTURES[mixture_name](p), round(points_per_dimension * p)
        for seed in range(seeds):
            for label, error in measure(mix, *mix.sample(n, seed=seed)).items():
                found.setdefault(label, {}).setdefault(n, []).append(error)
    return {
        label: ErrorCurve(label, tuple(by_n), tuple(tuple(values) for values in by_n.values()))
        for label, by_n in found.items()
    }


def documents(curves: Mapping[str, ErrorCurve]) -> dict[str, Any]:
    """Return curves as a JSON document."""
    return {name: curve.to_dict() for name, curve in curves.items()}


# ---- mixtures ------------------------------------------------------------------------------------------------


def random_means(p: int) -> nsd.GaussianMixture:
    """Five classes of unequal weight, random means of norm near 3, isotropic covariances 1 + 2(a-2)/sqrt(p)."""
    generator = np.random.default_rng(11)
    means = 3.0 * generator.standard_normal((5, p)) / math.sqrt(p)
    return nsd.GaussianMixture(means, [1.0 + 2.0 * (a - 2) / math.sqrt(p) for a in range(5)], [3, 2, 2, 2, 1])


def full_covariances(p: int) -> nsd.GaussianMixture:
    """Two classes with Toeplitz covariances 0.5^|i-j| and (1 + 3/sqrt(p)) (-0.3)^|i-j|, means of norm 3."""
    lag = np.minimum(np.arange(p), 100)  # 0.5^100 = 8e-31: smaller powers only slow the arithmetic down (denormals)
    means = np.zeros((2, p))
    means[0, 0] = means[1, p // 2] = 3.0
    first, second = scipy.linalg.toeplitz(0.5**lag), scipy.linalg.toeplitz((-0.3) ** lag)
    return nsd.GaussianMixture(means, [first, (1.0 + 3.0 / math.sqrt(p)) * second])


MIXTURES: dict[str, Callable[[int], nsd.GaussianMixture]] = {
    "two_class": nsd.GaussianMixture.two_class,
    "random_means": random_means,
    "full_covariances": full_covariances,
    # means of norm 1: the classes differ in norm, and no large eigenvalue hides the rest
    "near_means": lambda p: nsd.GaussianMixture.two_class(p, mu=1.0),
    "only_means": lambda p: nsd.GaussianMixture.two_class(p, cov=0.0),
    "only_covariances": lambda p: nsd.GaussianMixture.two_class(p, mu=0.0),
}


# ---- figures -----


def draw_lines(ax: Axes, curves: Sequence[ErrorCurve]) -> None:
    """Draw curves on logarithmic axes, with a dotted guide of slope -1/2."""
    for i, curve in enumerate(curves):
        ax.loglog(curve.n, curve.mean, marker=MARKERS[i % 6], color=f"C{i}", label=word(curve.label))
    if curves:
        n = np.array(curves[0].n, dtype=float)
        start = 0.7 * min(curve.mean[0] for curve in curves)
        ax.loglog(n, start * (n / n[0]) ** -0.5, ":", color=INK, label="slope -1/2")
        ticks_at(ax, curves[0].n)
    ax.set_xlabel("number of points")
