"""What the equivalents need to know of a mixture: tau0, t, T, psi and the labels (theory, section 3)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arguments import checked
from .._arrays import Array, as_labels, as_rows, squared_norms
from ..errors import InvalidInputError
from .mixture import GaussianMixture


@dataclass(frozen=True, eq=False, repr=False)
class MixtureStatistics:
    """The statistics of n rows in K classes that the theorems need (theory, section 3).

    Build it with :meth:`from_mixture` or :meth:`estimate`.

    Examples
    --------
    >>> mix = GaussianMixture.two_class(100)
    >>> X, y = mix.sample(80, seed=0)
    >>> MixtureStatistics.from_mixture(mix, X, y)
    MixtureStatistics(n=80, p=100, classes=2, tau0=1.444, t=[-4, 4])
    """

    X: Any
    """The rows, (n, p), as given (NumPy or torch)."""
    labels: NDArray[np.int64]
    """Class of each row, 0 ... K-1, shape (n,)."""
    tau0: float
    """Root of the mean squared norm of the rows."""
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

    @staticmethod
    @checked
    def from_mixture(mix: GaussianMixture, X: Any, y: Any) -> MixtureStatistics:
        """Take means and covariances from the mixture that the rows X, (n, p), of classes y = 0 ... K-1 come from."""
        rows = as_rows(X, features=mix.p)
        labels = _codes(y, len(rows), mix.classes)
        traces = np.array([c.trace() for c in mix.covariances]) / mix.p
        products = np.array([[a.inner(b) for b in mix.covariances] for a in mix.covariances]) / mix.p
        _, spread, _ = _deviations(rows, labels, mix.classes, mix.means)
        names = tuple(range(mix.classes))
        return _record(X, rows, labels, spread, traces, T=products, means=mix.means, classes=names)

    @staticmethod
    @checked
    def estimate(X: Any, y: Any = None) -> MixtureStatistics:
        """Estimate the statistics of rows X, (n, p), from data alone; without labels y the data is one class.

        tr(C_a C_b)/p is estimated without bias whatever the distribution, also where n_a is of the order of p. Every
        class needs at least four rows.
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
        _check_fourth_powers(rows)
        groups, spread, means = _deviations(rows, labels, len(names))
        spread *= (counts / (counts - 1))[labels]  # residuals from an estimated mean are too short
        traces = np.bincount(labels, weights=spread, minlength=len(names)) / counts
        T = _unbiased_products(groups)
        return _record(X, rows, labels, spread, traces, T=T, means=means, classes=names)

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
    def V(self) -> Array:
        """[J / sqrt(p), psi] with one-hot labels J, shape (n, K + 1)."""
        return np.column_stack([np.eye(self.K)[self.labels] / math.sqrt(self.p), self.psi])

    def __repr__(self) -> str:
        t = ", ".join(f"{v:.4g}" for v in self.t)
        return f"MixtureStatistics(n={self.n}, p={self.p}, classes={self.K}, tau0={self.tau0:.4g}, t=[{t}])"


def _record(
    X: Any, rows: Tensor, labels: NDArray[np.int64], spread: Array, traces: Array, **known: Any
) -> MixtureStatistics:
    """Complete the statistics from ``spread``, ||x_i - E x_i||^2, and its mean ``traces`` in each class."""
    mean = float(np.bincount(labels, minlength=len(traces)) @ traces) / len(labels)
    square = float(squared_norms(rows).mean())
    if square == 0.0:
        raise InvalidInputError("all rows are zero: tau0 must be positive")
    return MixtureStatistics(
        X=X,
        labels=labels,
        tau0=math.sqrt(square),
        t=math.sqrt(rows.shape[1]) * (traces - mean),
        psi=spread - traces[labels],
        traces=traces,
        **known,
    )


# ---- labels --------------------------------------------------------------------------------------------------


def _codes(y: Any, n: int, classes: int) -> NDArray[np.int64]:
    """Check labels that already are 0 ... K-1."""
    labels = as_labels(y, n)
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise InvalidInputError(f"labels of a mixture with {classes} classes are the integers 0 ... {classes - 1}")
    return labels.astype(np.int64)


def _classes(y: Any, n: int) -> tuple[tuple[Any, ...], NDArray[np.int64]]:
    """Return the names in sorted order and the code of each row; no labels mean one class."""
    if y is None:
        return (0,), np.zeros(n, dtype=np.int64)
    names, codes = np.unique(as_labels(y, n), return_inverse=True)
    return tuple(names.tolist()), codes.astype(np.int64)


# ---- sums over rows, in float64 -------------------------------------------------------------------------------


def _check_fourth_powers(rows: Tensor) -> None:
    largest, allowed = float(rows.abs().max()), float(np.finfo(np.float64).max) ** 0.23
    if largest > allowed:
        raise InvalidInputError(
            f"X has entries up to {largest:.3g}: sums of fourth powers, which the statistics are made of, overflow "
            f"beyond {allowed:.0e}; divide X by its scale"
        )


def _deviations(
    rows: Tensor, labels: NDArray[np.int64], classes: int, means: Array | None = None
) -> tuple[list[Tensor], Array, Array]:
    """Return x - mu_a / sqrt(p) of every class, its squared norm by row, and the means, estimated unless given."""
    root = math.sqrt(rows.shape[1])
    groups, squares, centres = [], np.empty(len(rows)), []
    for a in range(classes):
        which = np.flatnonzero(labels == a)
        group = rows[torch.from_numpy(which).to(rows.device)].double()
        centre = group.mean(0) if means is None else torch.from_numpy(means[a] / root).to(group)
        groups.append(group - centre)
        squares[which] = groups[-1].square().sum(1).cpu().numpy()
        centres.append(centre.cpu().numpy() * root)
    return groups, squares, np.stack(centres)


def _unbiased_products(groups: list[Tensor]) -> Array:
    """Return T_ab = tr(C_a C_b)/p, (K, K), without bias for any distribution.

    For a != b, tr(S_a S_b) is unbiased since the classes are independent. For a = b the correction is the U-statistic
    of Chen, Zhang and Zhong (2010) in the closed form of Himeno and Yamada (2014), which needs fourth powers of the
    residual norms but no normality.
    """
    p, freedom = groups[0].shape[1], [len(deviations) - 1 for deviations in groups]
    # the matrices of either way take no more memory than a few copies of the rows
    raw = (_scatter_products if len(groups) * p <= sum(map(len, groups)) else _gram_products)(groups)
    products = raw / np.outer(freedom, freedom)
    for a, deviations in enumerate(groups):
        n, norms = len(deviations), (deviations**2).sum(1)
        trace, fourth = float(norms.sum()) / (n - 1), float((norms**2).sum())
        excess = (n - 2) / (n - 1) * raw[a, a] + trace**2 - n * fourth / (n - 1)
        products[a, a] = (n - 1) / (n * (n - 2) * (n - 3)) * excess
    return products * p  # deviations carry 1/sqrt(p) each: tr(C_a C_b)/p^2 so far


def _scatter_products(groups: list[Tensor]) -> Array:
    """Return tr(R_a' R_a R_b' R_b) through p x p matrices."""
    scatters = [(deviations.T @ deviations).reshape(-1) for deviations in groups]
    return np.array([[float(a @ b) for b in scatters] for a in scatters])


def _gram_products(groups: list[Tensor]) -> Array:
    """Return tr(R_a' R_a R_b' R_b) = ||R_a R_b'||_F^2."""
    lower = [[float(((a @ b.T) ** 2).sum()) for b in groups[: k + 1]] for k, a in enumerate(groups)]
    return np.array([[lower[max(a, b)][min(a, b)] for b in range(len(groups))] for a in range(len(groups))])


# ---- class covariances estimated from few points, shrunk towards a multiple of the identity (Ledoit and Wolf) ----


def shrunk_covariances(statistics: MixtureStatistics) -> list[Array]:
    """Return one p x p covariance per class with the trace of the sample and tr(C_a^2) = p T_aa, which is unbiased.

    Sample eigenvalues spread more than those of the population when n_a is of the order of p. Shrinking them towards
    their mean until the second moment is right removes that spread to second order.
    """
    rows = as_rows(statistics.X).to("cpu", torch.float64).numpy() * math.sqrt(statistics.p)
    return [_shrunk(rows[statistics.labels == a], statistics.T[a, a] * statistics.p) for a in range(statistics.K)]


def _shrunk(rows: Array, trace_square: float) -> Array:
    """Return share S + (1 - share)(tr S/p) I, with the sample covariance S and the right trace of the square."""
    p = rows.shape[1]
    sample = np.atleast_2d(np.cov(rows.T, ddof=min(1, len(rows) - 1)))
    trace = float(np.trace(sample))
    flat, plug_in = trace**2 / p, float((sample**2).sum())
    share = math.sqrt(min(max(trace_square - flat, 0.0) / max(plug_in - flat, 1e-300), 1.0))
    return share * sample + (1.0 - share) * trace / p * np.eye(p)
