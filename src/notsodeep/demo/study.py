"""What the demo computes: kernels, twins, trained networks. Nothing is printed or drawn here."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

import notsodeep as nsd
from notsodeep.equivalents.distance import ErrorCurve
from notsodeep.experiments.learning import measure_learning
from notsodeep.matching import Verification
from notsodeep.networks import Kernel
from notsodeep.nn import Comparison
from notsodeep.nn.compare import standard_error
from notsodeep.spectra import SpectralLaw

SIGMA_A2 = 0.2
ACTIVATIONS = ("tanh", "relu")
Rows = np.ndarray


@dataclass(frozen=True)
class DemoSize:
    """How much is computed."""

    dimension: int = 1000
    points: int = 800
    widths: tuple[int, ...] = (32, 128, 512, 1024)
    seeds: int = 3
    gradient_widths: tuple[int, ...] = (64, 256, 1024)
    gradient_draws: int = 3

    @staticmethod
    def quick() -> DemoSize:
        """Seconds instead of a minute."""
        return DemoSize(200, 160, (16, 64), 2, (32, 128), 3)


@dataclass(frozen=True)
class DemoData:
    """Labelled data, for kernels, training and testing."""

    name: str
    statistics: nsd.MixtureStatistics
    train: tuple[Rows, Rows]
    test: tuple[Rows, Rows]


@dataclass(frozen=True)
class Case:
    """One DEQ on one data set: its twin, the distances of the kernels, the trained networks by width."""

    data: str
    activation: str
    twin: nsd.Twin
    verified: Verification
    trained: dict[int, Comparison]

    @property
    def widest(self) -> Comparison:
        """The networks of the largest width."""
        return self.trained[max(self.trained)]

    def rows(self) -> list[dict[str, str]]:
        """DEQ, twin and plain network, in words: what stands in every table of them."""
        widest = self.widest
        distances = {"DEQ": "0", "twin": self.verified.distance, "plain": self.verified.plain_distance}
        return [
            {
                "network": name,
                "kernel distance": distance if isinstance(distance, str) else f"{distance:.1e}",
                "with the best factor": f"{self.verified.plain_scaled_distance:.1e}" if name == "plain" else "",
                "accuracy %": "{:.1f} ± {:.1f}".format(*(100 * v for v in widest.summary(name, "accuracy"))),
                "training s": f"{widest.summary(name, 'training_seconds')[0]:.2f}",
                "a batch ms": f"{1e3 * widest.summary(name, 'inference_seconds')[0]:.2f}",
                "speed-up": f"{widest.speedup(name):.1f}",
            }
            for name, distance in distances.items()
        ]


@dataclass(frozen=True)
class Spectrum:
    """Eigenvalues of the exact kernels of DEQ and twin, and the law predicted for the DEQ's."""

    activation: str
    twin: nsd.Twin
    verified: Verification
    law: SpectralLaw
    eigenvalues: dict[str, np.ndarray]


@dataclass(frozen=True)
class DemoStudy:
    """Everything the table and the report show."""

    size: DemoSize
    cases: tuple[Case, ...]
    spectra: tuple[Spectrum, ...]
    gradients: ErrorCurve
    """Relative errors of the NTK of real networks against their width."""
    learning: nsd.learning.LearningCurve
    """Predicted accuracy of both DEQs on a mixture whose classes differ mostly in their covariances."""
    learned: dict[str, tuple[list[int], list[float], list[float]]]
    """Points, accuracies and standard errors of exact kernel regression on samples of that mixture, by DEQ."""
    wall_seconds: float
    cpu_seconds: float


def run(size: DemoSize | None = None) -> DemoStudy:
    """Compute everything."""
    size = size or DemoSize()
    wall, cpu = time.perf_counter(), time.process_time()
    mixture = nsd.GaussianMixture.two_class(size.dimension)
    sample, digits = _sample(mixture, size), _digits()
    kernels: tuple[Kernel, ...] = ("ck", "ntk")
    spectra = tuple(_spectrum(phi, kernel, mixture, sample) for phi in ACTIVATIONS for kernel in kernels)
    cases = [_case(sample, s.activation, s.twin, s.verified, size) for s in spectra if s.twin.kernel == "ck"]
    for phi in ACTIVATIONS:
        twin = _as_it_is(phi, digits)
        cases.append(_case(digits, phi, twin, twin.verify(digits.train[0][: size.points]), size))
    gradients, (curve, learned) = _gradients(sample, size), _learning()
    return DemoStudy(
        size,
        tuple(cases),
        spectra,
        gradients,
        curve,
        learned,
        time.perf_counter() - wall,
        time.process_time() - cpu,
    )


# ---- data ------------------------------------------------------------------------------------------------


def _sample(mixture: nsd.GaussianMixture, size: DemoSize) -> DemoData:
    """The papers' two classes."""
    X, y = mixture.sample(size.points, seed=0)
    statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
    return DemoData("mixture", statistics, (X, y), mixture.sample(size.points, seed=1))


def _digits() -> DemoData:
    """The handwritten digits of scikit-learn, scaled by what the training part shows."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, random_state=0, stratify=y)
    X, X_test = nsd.standardise(X, X_test)
    return DemoData("digits", nsd.MixtureStatistics.estimate(X, y), (X, y), (X_test, y_test))


# ---- kernels ---------------------------------------------------------------------------------------------


def _spectrum(phi: str, kernel: Kernel, mixture: nsd.GaussianMixture, sample: DemoData) -> Spectrum:
    """A kernel of one DEQ on the mixture, against the law that is predicted without sampling."""
    deq, X = nsd.DEQ(phi, SIGMA_A2), sample.train[0]
    twin = nsd.match(deq, sample.statistics, kernel=kernel)
    matrices = {"DEQ": nsd.kernels_of(twin.deq, X, kernels=(kernel,))[kernel], "twin": twin.kernel_matrix(X)}
    law = nsd.spectral_law(deq, mixture, n=len(X), kernel=kernel)
    values = {name: np.linalg.eigvalsh(matrix) for name, matrix in matrices.items()}
    return Spectrum(phi, twin, twin.verify(X), law, values)


def _gradients(sample: DemoData, size: DemoSize) -> ErrorCurve:
    """Gradients of real tanh DEQs, through the implicit function theorem, against the exact NTK."""
    X = sample.train[0][:50]
    deq = nsd.DEQ("tanh", SIGMA_A2).centred(sample.statistics.tau0)
    exact = nsd.ntk(deq, X)
    errors = tuple(
        tuple(
            nsd.equivalents.relative_spectral_error(exact, nsd.finite_ntk(deq, X, width=width, seed=seed))
            for seed in range(size.gradient_draws)
        )
        for width in size.gradient_widths
    )
    return ErrorCurve("tanh DEQs", size.gradient_widths, errors)


# ---- training --------------------------------------------------------------------------------------------


def _as_it_is(phi: str, data: DemoData) -> nsd.Twin:
    """One layer for every input if the DEQ is homogeneous, else the papers' match of the centred DEQ."""
    deq = nsd.DEQ(phi, SIGMA_A2)
    return nsd.match_one_layer(deq) if deq.homogeneous else nsd.match(deq, data.statistics)


def _case(data: DemoData, phi: str, twin: nsd.Twin, verified: Verification, size: DemoSize) -> Case:
    """Train the readouts of DEQ, twin and plain network on equal terms."""
    trained = {
        width: nsd.compare(twin.deq, twin, data.train, test=data.test, width=width, seeds=size.seeds)
        for width in size.widths
    }
    return Case(data.name, phi, twin, verified, trained)


def _learning() -> tuple[nsd.learning.LearningCurve, dict[str, tuple[list[int], list[float], list[float]]]]:
    """What will be learned, predicted, and what is learned from four samples of two sizes each."""
    mixture, ridge, sizes = nsd.GaussianMixture.two_class(200, mu=1.0, cov=4.0), 1e-2, [100, 400]
    networks = {f"{phi} DEQ": nsd.DEQ(phi, sigma_a2=SIGMA_A2).centred(mixture.tau0) for phi in ACTIVATIONS}
    curve = nsd.learning_curve(networks, mixture, [50, 100, 200, 400, 800], "ck", ridge=ridge)
    learned = {}
    for name, deq in networks.items():
        found = [measure_learning(deq, mixture, n, "ck", "ridge", [ridge], 4, n)["accuracy"] for n in sizes]
        rows = [[accuracy for (accuracy,) in draws] for draws in found]
        learned[name] = (sizes, [sum(row) / len(row) for row in rows], [standard_error(row) for row in rows])
    return curve, learned
