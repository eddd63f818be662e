"""What the demo computes: kernels, twins, trained networks. Nothing is printed or drawn here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.matching.verification import best_scalar
from notsodeep.networks import Kernel, is_tangent
from notsodeep.nn import Comparison
from notsodeep.spectra import SpectralLaw

SIGMA_A2 = 0.2
ACTIVATIONS = ("tanh", "relu")
Rows = np.ndarray


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    dimension: int = 1000
    points: int = 800
    widths: tuple[int, ...] = (32, 128, 512, 1024)
    seeds: int = 3
    gradient_widths: tuple[int, ...] = (64, 256, 1024)
    gradient_draws: int = 3

    @staticmethod
    def quick() -> Size:
        """Seconds instead of a minute."""
        return Size(200, 160, (16, 64), 2, (32, 128), 3)


@dataclass(frozen=True)
class Sample:
    """Labelled data, for kernels, training and testing."""

    name: str
    statistics: nsd.MixtureStatistics
    train: tuple[Rows, Rows]
    test: tuple[Rows, Rows]
    mixture: nsd.GaussianMixture | None = None


@dataclass(frozen=True)
class Case:
    """One DEQ on one data set: its twin, the distances of the kernels, the trained networks by width."""

    data: str
    activation: str
    twin: nsd.Twin
    distance: float
    plain_distance: float
    plain_scaled: float
    """The plain network's distance once its kernel is multiplied by the best scalar."""
    trained: dict[int, Comparison]

    @property
    def widest(self) -> Comparison:
        """The networks of the largest width."""
        return self.trained[max(self.trained)]

    def rows(self) -> list[dict[str, str]]:
        """DEQ, twin and plain network, in words: what stands in every table of them."""
        widest, distances = self.widest, {"twin": self.distance, "plain": self.plain_distance}
        return [
            {
                "network": name,
                "kernel distance": f"{distances[name]:.1e}" if name in distances else "0",
                "with the best factor": f"{self.plain_scaled:.1e}" if name == "plain" else "",
                "accuracy %": "{:.1f} ± {:.1f}".format(*(100 * v for v in widest.summary(name, "accuracy"))),
                "training s": f"{widest.summary(name, 'training_seconds')[0]:.2f}",
                "a batch ms": f"{1e3 * widest.summary(name, 'inference_seconds')[0]:.2f}",
                "speed-up": f"{widest.speedup(name):.1f}",
            }
            for name in ("DEQ", "twin", "plain")
        ]


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the exact kernels of DEQ, twin and plain network, and the law predicted for the DEQ's."""

    activation: str
    kernel: str
    twin: nsd.Twin
    law: SpectralLaw
    eigenvalues: dict[str, np.ndarray]
    distance: float
    plain_distance: float
    plain_scaled: float

    @property
    def distances(self) -> tuple[float, float, float]:
        """Of the twin, the plain network, and the plain network with its best scalar."""
        return self.distance, self.plain_distance, self.plain_scaled


@dataclass(frozen=True)
class Study:
    """Everything the table and the report show."""

    size: Size
    cases: tuple[Case, ...]
    spectra: tuple[Spectrum, ...]
    gradient_errors: tuple[float, ...]
    """Mean relative error of the NTK of real networks, by width."""
    learning: nsd.LearningCurve
    """Predicted accuracy of both DEQs on a mixture whose classes differ mostly in their covariances."""
    learned: dict[str, tuple[list[int], list[float], list[float]]]
    """Points, accuracies and standard errors of exact kernel regression on samples of that mixture, by DEQ."""
    wall_seconds: float
    cpu_seconds: float

    @property
    def slope(self) -> float:
        """How the error falls with the width, in a log-log plot."""
        return float(np.polyfit(np.log(self.size.gradient_widths), np.log(self.gradient_errors), 1)[0])


def run(size: Size | None = None) -> Study:
    """Compute everything."""
    size = size or Size()
    wall, cpu = time.perf_counter(), _cpu_seconds()
    mixture, digits = _mixture(size), _digits()
    spectra = tuple(s for phi in ACTIVATIONS for s in _spectra(phi, mixture))
    known = {s.activation: s for s in spectra if not is_tangent(s.kernel)}
    cases = tuple(_case(mixture, s.activation, s.twin, s.distances, size) for s in known.values())
    cases += tuple(_verified_case(digits, phi, size) for phi in ACTIVATIONS)
    errors = _gradient_errors(mixture, size)
    curve, learned = _learning()
    return Study(size, cases, spectra, errors, curve, learned, time.perf_counter() - wall, _cpu_seconds() - cpu)


def _learning() -> tuple[nsd.LearningCurve, dict[str, tuple[list[int], list[float], list[float]]]]:
    """What will be learned, predicted, and what is learned from four samples of two sizes each."""
    mixture, ridge = nsd.GaussianMixture.two_class(200, mu=1.0, cov=4.0), 1e-2
    X, _ = mixture.sample(2000, seed=0)
    scale = float(np.sqrt((X**2).sum(1).mean()))
    networks = {f"{phi} DEQ": nsd.DEQ(phi, sigma_a2=SIGMA_A2).centred(scale) for phi in ACTIVATIONS}
    curve = nsd.learning_curve(networks, mixture, [50, 100, 200, 400, 800], "ck", ridge=ridge)
    learned = {}
    for name, deq in networks.items():
        found = [[_measured(deq, mixture, n, ridge, seed) for seed in range(4)] for n in (100, 400)]
        errors = [float(np.std(row, ddof=1)) / 2.0 for row in found]
        learned[name] = ([100, 400], [float(np.mean(row)) for row in found], errors)
    return curve, learned


def _measured(deq: nsd.DEQ, mixture: nsd.GaussianMixture, n: int, ridge: float, seed: int) -> float:
    X, y = mixture.sample(n, seed=seed)
    Z, z = mixture.sample(1000, seed=100 + seed)
    return float(nsd.DEQClassifier(network=deq, kernel="ck", ridge=ridge).fit(X, y).score(Z, z))


def _cpu_seconds() -> float:
    return sum(os.times()[:2])


# ---- data ------------------------------------------------------------------------------------------------


def _mixture(size: Size) -> Sample:
    """The papers' two classes."""
    mixture = nsd.GaussianMixture.two_class(size.dimension)
    X, y = mixture.sample(size.points, seed=0)
    statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
    return Sample("mixture", statistics, (X, y), mixture.sample(size.points, seed=1), mixture)


def _digits() -> Sample:
    """The handwritten digits of scikit-learn, scaled by what the training part shows."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    X, X_test = nsd.standardise(X, X_test)
    return Sample("digits", nsd.MixtureStatistics.estimate(X, y), (X, y), (X_test, y_test))


# ---- kernels ---------------------------------------------------------------------------------------------


def _spectra(phi: str, data: Sample) -> list[Spectrum]:
    """Both kernels of one DEQ on the mixture, against the law that is predicted without sampling."""
    deq, X = nsd.DEQ(phi, SIGMA_A2), data.train[0]
    kernels: tuple[Kernel, ...] = ("ck", "ntk")
    exact = nsd.kernels_of(deq.centred(data.statistics.tau0), X, kinds=kernels)
    source = data.statistics if data.mixture is None else data.mixture
    found = []
    for kernel in kernels:
        truth = exact[kernel]
        twin = nsd.match(deq, data.statistics, kernel=kernel)
        others: dict[str, Any] = {
            "twin": nsd.kernels_of(twin.network, X, kinds=(kernel,), learning_rates=twin.learning_rates)[kernel],
            "plain": nsd.kernels_of(twin.plain, X, kinds=(kernel,))[kernel],
        }
        values = {name: np.linalg.eigvalsh(matrix) for name, matrix in {"DEQ": truth, **others}.items()}
        distances = [float(np.abs(np.linalg.eigvalsh(m - truth)).max() / values["DEQ"][-1]) for m in others.values()]
        scaled = best_scalar(torch.from_numpy(truth), torch.from_numpy(others["plain"])).distance
        law = nsd.spectral_law(deq, source, n=len(X), kernel=kernel)
        found.append(Spectrum(phi, kernel, twin, law, values, distances[0], distances[1], scaled))
    return found


def _gradient_errors(data: Sample, size: Size) -> tuple[float, ...]:
    """Gradients of real tanh DEQs, through the implicit function theorem, against the exact NTK."""
    X = data.train[0][:50]
    deq = nsd.DEQ("tanh", SIGMA_A2).centred(data.statistics.tau0)
    exact = nsd.ntk(deq, X)
    scale = np.linalg.norm(exact, 2)
    return tuple(
        float(np.mean([np.linalg.norm(nsd.finite_ntk(deq, X, width=m, seed=s) - exact, 2) for s in draws]) / scale)
        for m in size.gradient_widths
        for draws in [range(size.gradient_draws)]
    )


# ---- training --------------------------------------------------------------------------------------------


def _designed(data: Sample, deq: nsd.DEQ) -> nsd.Twin:
    """On the mixture the papers' match of the centred DEQ; elsewhere one layer for every input if it is homogeneous."""
    if data.mixture is None and deq.activation.homogeneity == 1.0:
        return nsd.match_one_layer(deq)
    return nsd.match(deq, data.statistics)


def _verified_case(data: Sample, phi: str, size: Size) -> Case:
    """Design the twin, and compare the exact kernels on some of the points."""
    twin = _designed(data, nsd.DEQ(phi, SIGMA_A2))
    verified = twin.verify(data.train[0][: size.points])
    distances = (verified.distance, verified.plain_distance, verified.plain_scaled_distance)
    return _case(data, phi, twin, distances, size)


def _case(data: Sample, phi: str, twin: nsd.Twin, distances: tuple[float, float, float], size: Size) -> Case:
    """Train the readouts of DEQ, twin and plain network on equal terms."""
    trained = {
        width: nsd.compare(twin.implicit, twin, data.train, test=data.test, width=width, seeds=size.seeds)
        for width in size.widths
    }
    return Case(data.name, phi, twin, *distances, trained)
