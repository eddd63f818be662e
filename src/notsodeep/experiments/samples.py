"""The samples of the kernel figures, and what is stored of a kernel: its spectrum, a small image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..datasets import load
from ..equivalents import spectral_norm
from ..errors import InvalidInputError
from ..mixtures import GaussianMixture, MixtureStatistics

__all__ = ["Sample", "distances", "eigenvalues", "histograms", "sample", "thumbnail"]

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
            return MixtureStatistics.from_mixture(self.mixture, self.X, self.y, population=population)
        return MixtureStatistics.estimate(self.X, self.y, population=population)


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


def eigenvalues(kernel: Array) -> Array:
    """In decreasing order."""
    return scipy.linalg.eigh(kernel, eigvals_only=True, check_finite=True, driver="evd")[::-1]


def histograms(spectra: dict[str, Array]) -> dict[str, Any]:
    """Counts of several spectra over the same bins, and the largest eigenvalues, which the bins leave out."""
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
