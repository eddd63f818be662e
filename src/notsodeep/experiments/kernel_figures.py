"""Kernels on one sample of points beside what stands for them (preprint, Figures 1 and 2; the workshop paper's figure).

``eigenvalues``: the exact Implicit-CK against its equivalent, on the mixture and on MNIST 6 against 8. The preprint
states distances for Lambda = sigma_a2 G + sigma_b2 X X', which differs from its equivalent by sigma_a2 (G - Gbar).
Images differ much in norm, which the theorems exclude: an equivalent that keeps the norm of each row stands beside
theirs, and one point has rows of norm one. The preprint does not say how its images were scaled, on which the distance
depends: further points have other scales.

``kernels``: kernels of a DEQ and of its twin as images, with their spectra. The preprint's Figure 2 has
||Lambda - Sigma|| = 0.23 on the mixture and 1.83 on MNIST, for a ReLU DEQ and its one-layer Leaky-ReLU network.

``sphere``: CK and NTK of a ReLU DEQ on the unit sphere, and one layer with a quadratic activation. The paper's DEQ,
phi = sqrt(2) ReLU at sigma_a2 = 0.2, lies outside the guaranteed contraction range (0.125); the equations of the
infinite-width kernel still have their solution, so the check is waived.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..activations import Quadratic, activation
from ..datasets import load
from ..equivalents import equivalent, spectral_norm, sphere_equivalent
from ..errors import InvalidInputError
from ..kernels import ck, kernels_of
from ..matching import match_sphere
from ..matching.match import match
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import DEQ, Kernel
from ..plots.figures.kernels import draw_eigenvalues, draw_kernels, draw_sphere
from .runner import Experiment, Point, Setup

Array = NDArray[np.float64]
_BINS = 60
_TOP = 12


@dataclass(frozen=True, eq=False)
class Sample:
    """Rows ordered by class, with their labels."""

    X: Array
    y: NDArray[np.int64]
    mixture: GaussianMixture | None = None

    def statistics(self, *, population: bool = False) -> MixtureStatistics:
        """Exact for a mixture, estimated for real data."""
        if self.mixture is not None:
            found = MixtureStatistics.from_mixture(self.mixture, self.X, self.y)
        else:
            found = MixtureStatistics.estimate(self.X, self.y)
        return replace(found, tau0=float(np.sqrt(found.counts @ found.traces / found.n))) if population else found


def sample(name: str, n: int, p: int, folder: str | Path | None = None, seed: int = 0) -> Sample:
    """``"mixture"``: the papers' two classes; ``"mnist"`` or ``"digits"``: the first n training images of 6 and 8.

    Images are centred and scaled to mean ||x||^2 = 1; with ``"_unit"`` behind the name every row is scaled to norm 1.
    """
    if name == "mixture":
        mixture = GaussianMixture.two_class(p)
        return Sample(*mixture.sample(n, seed=seed), mixture)
    images = name.removesuffix("_unit")
    if images not in ("mnist", "digits"):
        raise InvalidInputError(f"the kernel figures know 'mixture', 'mnist' and 'digits', got {name!r}")
    data = load(images, folder, classes=(6, 8)).first(n).standardised()
    if data.p != p:
        raise InvalidInputError(f"{name} has {data.p} features, {p} were asked for")
    order = np.argsort(data.y_train, kind="stable")
    X = data.X_train[order].astype(np.float64)
    return Sample(X if images == name else X / np.linalg.norm(X, axis=1, keepdims=True), data.y_train[order])


def histograms(spectra: dict[str, Array]) -> dict[str, Any]:
    """Counts of several spectra in any order over the same bins, and the largest ones, which the bins leave out."""
    spectra = {name: np.sort(values)[::-1] for name, values in spectra.items()}
    first = next(iter(spectra.values()))
    kept = first[min(_TOP, len(first) // 4) :]
    low, high = min(v.min() for v in spectra.values()), float(kept.max())
    edges = np.linspace(low, high, _BINS + 1)
    return {
        "edges": _rounded(edges),
        "counts": {name: np.histogram(v, edges)[0].tolist() for name, v in spectra.items()},
        "largest": {name: _rounded(v[:_TOP]) for name, v in spectra.items()},
    }


def distances(truth: Array, others: Mapping[str, Array], sigma_a2: float) -> dict[str, dict[str, float]]:
    """Of other CKs from the true one: ``lambda`` is that of sigma_a2 G + sigma_b2 X X', which the preprint states."""
    size = spectral_norm(truth)
    gaps = {name: spectral_norm(truth - kernel) for name, kernel in others.items()}
    return {name: {"ck": v, "ck_relative": v / size, "lambda": sigma_a2 * v} for name, v in gaps.items()}


def thumbnail(kernel: Array, size: int = 80) -> list[list[float]]:
    """Every so many rows and columns of a kernel."""
    rows = np.unique(np.linspace(0, len(kernel) - 1, min(size, len(kernel))).astype(int))
    return [_rounded(row, 4) for row in kernel[np.ix_(rows, rows)]]


def _rounded(values: Array, digits: int = 6) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in values]


_SIZES = {
    True: {"mixture": (320, 400), "digits": (270, 64), "digits_unit": (270, 64)},
    False: {"mixture": (800, 1000), "mnist": (6000, 784), "mnist_unit": (6000, 784)},
}
"""Quick or not: n and p of mixture, images, and images with rows of norm one."""


def _point(function: Any, setup: Setup, data: str, phi: str, label: str = "", **others: Any) -> Point:
    n, p = _SIZES[setup.quick][data]
    settings = {"data": data, "activation": phi, "n": n, "p": p, "sigma_a2": 0.1, "seed": 0, **others}
    return Point.of(f"{data}/{phi}{label}", settings, function, folder=setup.data)


# ---- eigenvalues ---------------------------------------------------------------------------------------------

SCALES = (1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the mean of ||x||^2; centred pixels divided by sqrt(p), as rows of the mixture are, have 0.064."""


def compare_eigenvalues(
    data: str,
    activation: str,
    n: int,
    p: int,
    sigma_a2: float = 0.1,
    seed: int = 0,
    mean_square: float | None = None,
    folder: Any = None,
) -> dict[str, Any]:
    """Distances and spectra of the exact CK and its equivalent.

    ``mean_square`` scales the rows to that mean of ||x||^2, and leaves the spectra out. ``"own norms"`` is the
    equivalent that keeps the norm of each row.
    """
    points = sample(data, n, p, folder, seed)
    if mean_square is not None:
        points = replace(points, X=points.X * np.sqrt(mean_square / np.mean((points.X**2).sum(1))))
    deq = DEQ(activation, sigma_a2)
    statistics = points.statistics()
    exact, approximation = ck(deq.centred(statistics.tau0), points.X), equivalent(deq, statistics, "ck")
    own = equivalent(deq, statistics, "ck", own_norms=True)
    found = distances(exact, {"empirical tau0": approximation.matrix(), "own norms": own.matrix()}, sigma_a2)
    if mean_square is not None:
        return {"distances": _with_tau0(found, statistics)}
    population = points.statistics(population=True)
    theirs = {"population tau0": equivalent(deq, population, "ck").matrix()}
    other = distances(ck(deq.centred(population.tau0), points.X), theirs, sigma_a2)
    spectra = histograms({"exact": np.linalg.eigvalsh(exact), "equivalent": approximation.eigenvalues()})
    return {
        "distances": _with_tau0(found, statistics) | _with_tau0(other, population),
        "spectrum": spectra,
        "gram_norm": spectral_norm(points.X @ points.X.T),
    }


def _with_tau0(found: dict[str, dict[str, float]], statistics: MixtureStatistics) -> dict[str, dict[str, float]]:
    return {label: numbers | {"tau0": statistics.tau0} for label, numbers in found.items()}


def eigenvalue_points(setup: Setup) -> list[Point]:
    """Mixture and images, arctan and tanh; the images also with rows of norm one, and at other scales."""
    mixture, images, unit = _SIZES[setup.quick]
    point = functools.partial(_point, compare_eigenvalues, setup)
    chosen = [point(data, phi) for data in (mixture, images) for phi in ("arctan", "tanh")]
    return [*chosen, point(unit, "tanh"), *(point(images, "tanh", f"/{v:g}", mean_square=v) for v in SCALES)]


# ---- images --------------------------------------------------------------------------------------------------


def compare_kernels(
    data: str,
    activation: str,
    n: int,
    p: int,
    sigma_a2: float = 0.1,
    seed: int = 0,
    family: Any = "auto",
    folder: Any = None,
) -> dict[str, Any]:
    """The CKs of DEQ, twin and plain network on one sample: distances, spectra, images.

    ``lambda`` is the distance of sigma_a2 G + sigma_b2 X X' when the twin's kernel takes the place of G, as the
    preprint counts; ``ck`` that of G itself, which is larger.
    """
    points = sample(data, n, p, folder, seed)
    twin = match(DEQ(activation, sigma_a2), points.statistics(), family=family)
    truth, explicit = ck(twin.deq, points.X), ck(twin.network, points.X)
    return {
        "twin": str(twin.network),
        "family": twin.family,
        "residual": twin.residual,
        "distances": distances(truth, {"twin": explicit, "plain": ck(twin.plain, points.X)}, sigma_a2),
        "spectrum": histograms({"DEQ": np.linalg.eigvalsh(truth), "twin": np.linalg.eigvalsh(explicit)}),
        "images": {"DEQ": thumbnail(truth), "twin": thumbnail(explicit)},
    }


def image_points(setup: Setup) -> list[Point]:
    """Mixture and images, ReLU (the preprint) and tanh (the slides), which also gets a layer of its own kind."""
    data = list(_SIZES[setup.quick])[:2]
    point = functools.partial(_point, compare_kernels, setup)
    chosen = [point(name, phi) for name in data for phi in ("relu", "tanh")]
    return [*chosen, *(point(name, "tanh", "/hard_tanh", family="hard_tanh") for name in data)]


# ---- the unit sphere -----------------------------------------------------------------------------------------


def unit_rows(n: int, d: int, seed: int = 0) -> np.ndarray:
    """N points drawn uniformly from the unit sphere in dimension d."""
    rows = np.random.default_rng(seed).standard_normal((n, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def compare_on_sphere(kernel: Kernel, n: int, d: int, sigma_a2: float = 0.2, seed: int = 0) -> dict[str, Any]:
    """Distances to the DEQ's kernel of the equivalent, the quadratic layer, and the exact Hermite layer."""
    X = unit_rows(n, d, seed)
    deq = DEQ(activation("relu").affine(gain=math.sqrt(2.0)), sigma_a2)
    truth = kernels_of(deq, X, kernels=(kernel,), check=False)[kernel]
    quadratic, exact = match_sphere(deq, kernel, family="quadratic", dimension=d), match_sphere(deq, kernel)
    others = {
        "equivalent": sphere_equivalent(deq, X, kernel).matrix(),
        "quadratic": kernels_of(quadratic.network, X, kernels=(kernel,))[kernel],
        "hermite": kernels_of(exact.network, X, kernels=(kernel,))[kernel],
    }
    size = spectral_norm(truth)
    gaps = {name: spectral_norm(truth - other) for name, other in others.items()}
    off = ~np.eye(n, dtype=bool)
    layer = quadratic.network.activations[0]
    assert isinstance(layer, Quadratic)
    return {
        "distances": {name: {"absolute": gap, "relative": gap / size} for name, gap in gaps.items()},
        "largest_off_diagonal_error": {k: float(np.abs(truth - v)[off].max()) for k, v in others.items()},
        "quadratic": {"a2": layer.a, "a1": layer.b, "a0": layer.c},
        "spectrum": histograms(
            {"implicit": np.linalg.eigvalsh(truth), "quadratic": np.linalg.eigvalsh(others["quadratic"])}
        ),
    }


def sphere_points(setup: Setup) -> list[Point]:
    """CK and NTK (all weights trained)."""
    n, d = (250, 300) if setup.quick else (1000, 1200)
    settings = {"n": n, "d": d, "sigma_a2": 0.2, "seed": 0}
    return [Point.of(kernel, {"kernel": kernel, **settings}, compare_on_sphere) for kernel in ("ck", "ntk")]


EXPERIMENTS = (
    Experiment("eigenvalues", eigenvalue_points, draw_eigenvalues),
    Experiment("kernels", image_points, draw_kernels),
    Experiment("sphere", sphere_points, draw_sphere),
)
