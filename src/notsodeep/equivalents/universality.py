"""How far a kernel on real data is from its equivalent, and why: the theorems are proved for Gaussian mixtures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arguments import checked
from .._arrays import as_rows
from ..kernels import kernels_of
from ..mixtures import GaussianMixture, MixtureStatistics
from ..mixtures.statistics import About, shrunk_covariances
from ..networks import Kernel, Network
from .distance import spectral_norm
from .operator import EquivalentKernel, equivalent

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TermReport:
    """One term of the equivalent: what refitting it freely to the exact kernel would change."""

    name: str
    size: float
    """Spectral norm of the change, relative to the exact kernel."""
    error: float
    """Relative spectral error after the change."""


@dataclass(frozen=True)
class UniversalityReport:
    """Exact kernel against equivalent on one data set; prints as a table."""

    network: Network
    kernel: Kernel
    n: int
    p: int
    classes: int
    error: float
    """Relative spectral error of the equivalent on the data."""
    gaussian_error: float
    """The same for Gaussian data with the same means, traces and tr(C_a^2)."""
    terms: tuple[TermReport, ...]
    """Gram, norms (psi and t), classes (T), diagonal: each refitted alone."""
    floor: float
    """Error after refitting all terms together: what no matrix of this form can describe."""

    @property
    def blame(self) -> str:
        """The term whose refit lowers the error most, or ``"rest"`` if none lowers it by a tenth."""
        best = min(self.terms, key=lambda term: term.error)
        return best.name if best.error < 0.9 * self.error else "rest"

    @property
    def excess(self) -> float:
        """error / gaussian_error: near one, the data behaves like a Gaussian mixture."""
        return self.error / self.gaussian_error

    def __str__(self) -> str:
        meaning = {
            "gram": "c1 X X'",
            "norms": "psi and t (c2)",
            "classes": "T (c3)",
            "diagonal": "diagonal",
        }
        lines = [
            f"{self.kernel} of {self.network!r}",
            f"n = {self.n}, p = {self.p}, classes = {self.classes}",
            f"relative spectral error of the equivalent {self.error:.4f}; "
            f"on Gaussian data with the same statistics {self.gaussian_error:.4f} (ratio {self.excess:.2f})",
            f"  {'term refitted to the data':<26} {'change':>8} {'error then':>11}",
        ]
        lines += [f"  {meaning[term.name]:<26} {term.size:>8.4f} {term.error:>11.4f}" for term in self.terms]
        lines += [f"  {'all of them':<26} {'':>8} {self.floor:>11.4f}", f"largest gain: {self.blame}"]
        return "\n".join(lines)


@checked
def universality(
    network: Network, X: Any, y: Any = None, kernel: Kernel = "ck", *, seed: int = 0, about: About = "mean"
) -> UniversalityReport:
    """Compare the exact kernel of the centred network with its equivalent, on data and on Gaussian data like it.

    Forms a few n x n matrices: pass a subsample of large data. Standardise the data first, as the papers do.
    ``about`` is passed to :meth:`MixtureStatistics.estimate`.

    >>> import notsodeep as nsd
    >>> X, y = nsd.GaussianMixture.two_class(60, mu=2.0, cov=1.0).sample(48, seed=0)
    >>> report = universality(nsd.DEQ("relu", sigma_a2=0.2), X, y)
    >>> report.n, 0.3 < report.excess < 3.0, report.floor < report.error
    (48, True, True)
    """
    statistics = MixtureStatistics.estimate(X, y, about=about)
    fit = equivalent(network, statistics, kernel)
    exact = _exact(fit)
    residual = exact - torch.as_tensor(fit.matrix()).to(exact)
    scale = spectral_norm(exact)
    changes = _changes(residual, statistics)
    terms = tuple(
        TermReport(name, spectral_norm(change) / scale, spectral_norm(residual - change) / scale)
        for name, change in changes.items()
        if name != "all"
    )
    return UniversalityReport(
        network=fit.network,
        kernel=kernel,
        n=statistics.n,
        p=statistics.p,
        classes=statistics.K,
        error=spectral_norm(residual) / scale,
        gaussian_error=_gaussian_error(network, statistics, kernel, seed),
        terms=terms,
        floor=spectral_norm(residual - changes["all"]) / scale,
    )


def _exact(fit: EquivalentKernel) -> Tensor:
    return torch.as_tensor(kernels_of(fit.network, fit.X, kernels=(fit.kernel,))[fit.kernel]).to(torch.float64)


def _gaussian_error(network: Network, statistics: MixtureStatistics, kernel: Kernel, seed: int) -> float:
    mix = gaussian_like(statistics)
    X, y = mix.sample(statistics.n, seed)
    fit = equivalent(network, MixtureStatistics.estimate(X, y, about=statistics.about), kernel)
    exact = _exact(fit)
    return spectral_norm(exact - torch.from_numpy(fit.matrix())) / spectral_norm(exact)


# ---- which term ----------------------------------------------------------------------------------------------


def _changes(residual: Tensor, statistics: MixtureStatistics) -> dict[str, Tensor]:
    """Least-squares fits of the residual by each term of the equivalent; off the diagonal, which is a term itself."""
    diagonal = torch.diag(residual.diagonal())
    hollow = residual - diagonal
    rows = as_rows(statistics.X).to(hollow)
    gram = _hollow(rows @ rows.T)
    V = torch.from_numpy(statistics.V).to(hollow)
    K = statistics.K
    classes = [(a, b) for a in range(K) for b in range(a + 1)]
    norms = [(K, a) for a in range(K + 1)]
    return {
        "gram": _project(hollow, V, [], gram),
        "norms": _project(hollow, V, norms, None),
        "classes": _project(hollow, V, classes, None),
        "diagonal": diagonal,
        "all": _project(hollow, V, classes + norms, gram) + diagonal,
    }


def _hollow(matrix: Tensor) -> Tensor:
    return matrix - torch.diag(matrix.diagonal())


def _project(target: Tensor, V: Tensor, pairs: list[tuple[int, int]], gram: Tensor | None) -> Tensor:
    """The combination of hollow(v_a v_b' + v_b v_a') and ``gram`` nearest to the hollow ``target`` (Frobenius).

    Inner products of rank-two matrices come from r x r tables, so no n x n matrix per basis element is formed.
    """
    size = len(pairs) + (gram is not None)
    left, right = [a for a, _ in pairs], [b for _, b in pairs]
    inner, aim = torch.zeros(size, size).to(target), torch.zeros(size).to(target)
    if pairs:
        table, own = V.T @ V, V[:, left] * V[:, right]
        straight, crossed = table[left][:, left] * table[right][:, right], table[left][:, right] * table[right][:, left]
        inner[: len(pairs), : len(pairs)] = 2.0 * (straight + crossed) - 4.0 * own.T @ own
        aim[: len(pairs)] = 2.0 * (V.T @ target @ V)[left, right]
    if gram is not None:
        inner[-1, :-1] = inner[:-1, -1] = 2.0 * (V.T @ gram @ V)[left, right]
        inner[-1, -1], aim[-1] = (gram * gram).sum(), (gram * target).sum()
    weights = _least_squares(inner, aim)
    core = torch.zeros(V.shape[1], V.shape[1]).to(target)
    core[left, right] = weights[: len(pairs)]
    out = _hollow(V @ (core + core.T) @ V.T)
    return out if gram is None else out + weights[-1] * gram


def _least_squares(inner: Tensor, aim: Tensor) -> Tensor:
    """Solve the normal equations with unit diagonal; directions that are absent from the data get weight zero."""
    scale = inner.diagonal().clamp_min(1e-300).sqrt()
    scaled = (inner / torch.outer(scale, scale)).cpu().numpy()
    solution = np.linalg.lstsq(scaled, (aim / scale).cpu().numpy(), rcond=1e-10)[0]
    return torch.from_numpy(solution).to(aim) / scale


# ---- Gaussian data with the same statistics --------------------------------------------------------------------


def gaussian_like(statistics: MixtureStatistics) -> GaussianMixture:
    """A mixture with the estimated means and covariances shrunk towards the identity.

    The shrinkage makes tr C_a and tr(C_a^2) right, so that Gaussian data from this mixture has the statistics of the
    equivalent.
    """
    if statistics.about == "origin":
        statistics = MixtureStatistics.estimate(statistics.X, statistics.labels)
    return GaussianMixture(statistics.means, shrunk_covariances(statistics), statistics.counts)
