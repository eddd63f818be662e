"""What the equivalents need to know of a mixture: tau0, t, T, psi and the labels (theory, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError
from ._rows import as_rows
from ._traces import class_traces
from .mixture import GaussianMixture

__all__ = ["MixtureStatistics"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class MixtureStatistics:
    """Statistics of n rows in K classes; build with :meth:`from_mixture` or :meth:`estimate`.

    >>> mix = GaussianMixture.two_class(100)
    >>> X, y = mix.sample(80, seed=0)
    >>> MixtureStatistics.from_mixture(mix, X, y)
    MixtureStatistics(n=80, p=100, classes=2, tau0=1.444, t=[-4, 4], exact)
    """

    X: Any
    """The rows, (n, p), as given (NumPy or torch)."""
    labels: NDArray[np.int64]
    """Class of each row, 0 ... K-1, shape (n,)."""
    tau0: float
    """Root of the mean squared norm (empirical by default)."""
    t: Array
    """t_a = tr(C_a - C0) / sqrt(p), shape (K,)."""
    T: Array
    """T_ab = tr(C_a C_b) / p with the raw covariances, shape (K, K)."""
    psi: Array
    """psi_i = ||x_i - E x_i||^2 - E ||x_i - E x_i||^2, shape (n,)."""
    means: Array
    """mu_a, exact or estimated, before the division by sqrt(p): shape (K, p)."""
    traces: Array
    """tr C_a / p, shape (K,)."""
    classes: tuple[Any, ...]
    """The user's names of the classes 0 ... K-1."""
    fitted_on: NDArray[np.int64] | None = None
    """Class sizes of the data that means, traces and T were estimated from; ``None`` if they are exact."""

    @staticmethod
    def from_mixture(mix: GaussianMixture, X: Any, y: Any, *, population: bool = False) -> MixtureStatistics:
        """Exact means and covariances; ``population=True`` also takes tau0^2 = tr C0 / p instead of mean ||x||^2."""
        rows = as_rows(X, features=mix.p)
        labels = _codes(y, len(rows), mix.classes)
        traces = np.array([c.trace() for c in mix.covariances]) / mix.p
        products = np.array([[a.inner(b) for b in mix.covariances] for a in mix.covariances]) / mix.p
        shares = np.bincount(labels, minlength=mix.classes) / len(labels)
        spread = _residual_norms(rows, labels, mix.means)
        return MixtureStatistics(
            X=X,
            labels=labels,
            tau0=math.sqrt(shares @ traces) if population else _mean_norm(rows),
            t=math.sqrt(mix.p) * (traces - shares @ traces),
            T=products,
            psi=spread - traces[labels],
            means=mix.means,
            traces=traces,
            classes=tuple(range(mix.classes)),
        )

    @staticmethod
    def estimate(X: Any, y: Any = None, *, population: bool = False) -> MixtureStatistics:
        """From data alone; without labels the data is one class.

        tr(C_a C_b)/p is estimated without bias whatever the distribution, also where n_a is of the order of p;
        residuals from the estimated class means are corrected by n_a/(n_a - 1). ``population=True`` takes
        tau0^2 = tr C0 / p with the estimated covariances instead of the mean of ||x||^2.
        """
        rows = as_rows(X)
        names, labels = _classes(y, len(rows))
        counts = np.bincount(labels, minlength=len(names))
        if counts.min() < 4:
            raise InvalidInputError(
                "each class needs at least 4 points to estimate tr(C_a^2) without bias; "
                f"class {names[int(counts.argmin())]!r} has {counts.min()}. "
                "Merge small classes, drop them, or pass y=None for one class"
            )
        p = rows.shape[1]
        means = _class_means(rows, labels, len(names))
        spread = _residual_norms(rows, labels, means) * (counts / (counts - 1))[labels]
        traces = np.bincount(labels, weights=spread, minlength=len(names)) / counts
        shares = counts / len(labels)
        return MixtureStatistics(
            X=X,
            labels=labels,
            tau0=math.sqrt(shares @ traces) if population else _mean_norm(rows),
            t=math.sqrt(p) * (traces - shares @ traces),
            T=class_traces(rows, labels, means),
            psi=spread - traces[labels],
            means=means,
            traces=traces,
            classes=names,
            fitted_on=counts,
        )

    def at(self, X: Any, y: Any = None) -> MixtureStatistics:
        """The statistics of new rows from the same classes: tau0, t and T are kept, psi is that of the new rows.

        ``y`` holds names from :attr:`classes`; it may be left out when there is one class.
        """
        rows = as_rows(X, features=self.p)
        if y is None and self.K > 1:
            raise InvalidInputError(f"new points need labels: the statistics have {self.K} classes {self.classes}")
        labels = np.zeros(len(rows), dtype=np.int64) if y is None else self._lookup(y, len(rows))
        spread = _residual_norms(rows, labels, self.means)
        if self.fitted_on is not None:  # an independent mean adds tr C_a / (p n_a) to the squared distance
            spread = spread * (self.fitted_on / (self.fitted_on + 1))[labels]
        return MixtureStatistics(
            X=X,
            labels=labels,
            tau0=self.tau0,
            t=self.t,
            T=self.T,
            psi=spread - self.traces[labels],
            means=self.means,
            traces=self.traces,
            classes=self.classes,
            fitted_on=self.fitted_on,
        )

    def _lookup(self, y: Any, n: int) -> NDArray[np.int64]:
        names, codes = _classes(y, n)
        unknown = [name for name in names if name not in self.classes]
        if unknown:
            raise InvalidInputError(f"unknown classes {unknown}; the statistics know {list(self.classes)}")
        return np.array([self.classes.index(name) for name in names], dtype=np.int64)[codes]

    @property
    def estimated(self) -> bool:
        """Whether means, traces and T come from data."""
        return self.fitted_on is not None

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.labels)

    @property
    def p(self) -> int:
        """The dimension."""
        return self.means.shape[1]

    @property
    def K(self) -> int:
        """The number of classes."""
        return len(self.t)

    @property
    def counts(self) -> NDArray[np.int64]:
        """Class sizes n_a, shape (K,)."""
        return np.bincount(self.labels, minlength=self.K)

    @property
    def J(self) -> Array:
        """One-hot labels, shape (n, K)."""
        return np.eye(self.K)[self.labels]

    @property
    def V(self) -> Array:
        """[J / sqrt(p), psi], shape (n, K + 1)."""
        return np.concatenate([self.J / math.sqrt(self.p), self.psi[:, None]], axis=1)

    def __repr__(self) -> str:
        t = ", ".join(f"{v:.4g}" for v in self.t)
        origin = "estimated" if self.estimated else "exact"
        return f"MixtureStatistics(n={self.n}, p={self.p}, classes={self.K}, tau0={self.tau0:.4g}, t=[{t}], {origin})"


# ---- labels --------------------------------------------------------------------------------------------------


def _codes(y: Any, n: int, classes: int) -> NDArray[np.int64]:
    """Labels that already are 0 ... K-1."""
    labels = _label_array(y, n)
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise InvalidInputError(f"labels of a mixture with {classes} classes are the integers 0 ... {classes - 1}")
    return labels.astype(np.int64)


def _classes(y: Any, n: int) -> tuple[tuple[Any, ...], NDArray[np.int64]]:
    """Names in sorted order and the code of each row; no labels mean one class."""
    if y is None:
        return (0,), np.zeros(n, dtype=np.int64)
    names, codes = np.unique(_label_array(y, n), return_inverse=True)
    return tuple(names.tolist()), codes.astype(np.int64)


def _label_array(y: Any, n: int) -> NDArray[Any]:
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    if labels.shape != (n,):
        raise InvalidInputError(f"labels must have shape ({n},), one per row, got {labels.shape}")
    return labels


# ---- sums over rows, in chunks, in float64 -------------------------------------------------------------------

_CHUNK = 4096


def _mean_norm(rows: Tensor) -> float:
    total = sum(float((part.to(torch.float64) ** 2).sum()) for part in rows.split(_CHUNK))
    if total == 0.0:
        raise InvalidInputError("all rows are zero: tau0 must be positive")
    return math.sqrt(total / len(rows))


def _class_means(rows: Tensor, labels: NDArray[np.int64], classes: int) -> Array:
    sums = torch.zeros(classes, rows.shape[1], dtype=torch.float64, device=rows.device)
    codes = torch.from_numpy(labels).to(rows.device)
    for part, code in zip(rows.split(_CHUNK), codes.split(_CHUNK), strict=True):
        sums.index_add_(0, code, part.to(torch.float64))
    counts = np.bincount(labels, minlength=classes)
    return sums.cpu().numpy() * (math.sqrt(rows.shape[1]) / counts)[:, None]


def _residual_norms(rows: Tensor, labels: NDArray[np.int64], means: Array) -> Array:
    """||x_i - mu_a / sqrt(p)||^2 for every row."""
    centres = torch.from_numpy(means / math.sqrt(rows.shape[1])).to(rows.device)
    codes = torch.from_numpy(labels).to(rows.device)
    norms = [
        ((part - centres[code]) ** 2).sum(1) for part, code in zip(rows.split(_CHUNK), codes.split(_CHUNK), strict=True)
    ]
    return torch.cat(norms).cpu().numpy()
