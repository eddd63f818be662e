"""Gaussian mixtures in the scaling of the theorems: rows x_i = (mu_a + C_a^(1/2) w_i) / sqrt(p)."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .._arguments import checked
from .._arrays import Array, as_labels, as_numbers, as_rows
from .._words import as_html
from ..errors import InvalidInputError

_MOST = 2**53  # beyond it whole numbers are rounded in float64


@dataclass(frozen=True, eq=False)
class Covariance:
    """A positive semi-definite p x p matrix; ``entries`` are its p variances if it is diagonal, else all of it."""

    entries: Array

    @property
    def diagonal(self) -> bool:
        """Whether the matrix is diagonal."""
        return self.entries.ndim == 1

    def variances(self) -> Array:
        """Return the entries C_jj, shape (p,)."""
        return self.entries if self.diagonal else np.diag(self.entries)

    def trace(self) -> float:
        """Return tr C."""
        return float(self.variances().sum())

    def inner(self, other: Covariance) -> float:
        """Return tr(C C') with another covariance of the same dimension."""
        if self.diagonal or other.diagonal:
            return float(self.variances() @ other.variances())
        return float(np.vdot(self.entries, other.entries))

    def dense(self) -> Array:
        """Return the p x p matrix itself."""
        return np.diag(self.entries) if self.diagonal else self.entries

    def multiply(self, rows: Array) -> Array:
        """Return rows @ C, for rows of shape (m, p)."""
        return rows * self.entries if self.diagonal else rows @ self.entries

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        """Draw n centred Gaussian rows with this covariance, shape (n, p)."""
        noise = generator.standard_normal((n, len(self.entries)))
        return noise * self._root if self.diagonal else noise @ self._root

    @functools.cached_property
    def _root(self) -> Array:
        """R with R' R = C: Cholesky, or by eigenvectors where the matrix is singular."""
        if self.diagonal:
            return np.sqrt(self.entries)
        try:
            return scipy.linalg.cholesky(self.entries)
        except scipy.linalg.LinAlgError:
            values, vectors = scipy.linalg.eigh(self.entries)
            return np.sqrt(np.clip(values, 0.0, None))[:, None] * vectors.T


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture:
    """A mixture of K Gaussian classes in dimension p.

    Parameters
    ----------
    means : array of shape (K, p)
        The mu_a, before the division by sqrt(p).
    covariances : sequence of K entries
        Each one is a number (isotropic), p variances (diagonal) or a p x p matrix.
    weights : array of shape (K,), optional
        Class proportions, scaled to sum to one; equal unless given.

    Examples
    --------
    >>> mix = GaussianMixture(np.zeros((2, 50)), [1.0, np.full(50, 2.0)], weights=[3, 1])
    >>> X, y = mix.sample(8, seed=0)
    >>> X.shape, y.tolist()
    ((8, 50), [0, 0, 0, 0, 0, 0, 1, 1])
    """

    means: Array
    covariances: tuple[Covariance, ...]
    weights: Array

    def __init__(self, means: Any, covariances: Sequence[Any] | Array, weights: Any = None) -> None:
        centres = _floats("means", means)
        if centres.ndim != 2 or 0 in centres.shape:
            raise InvalidInputError(f"means have shape (classes, p), got {centres.shape}")
        classes, p = centres.shape
        listed = isinstance(covariances, list | tuple) or (isinstance(covariances, np.ndarray) and covariances.ndim > 0)
        if not listed or len(covariances) != classes:
            raise InvalidInputError(f"covariances must be a list, tuple or array of {classes} entries, one per class")
        shares = np.full(classes, 1.0) if weights is None else _floats("weights", weights)
        if shares.shape != (classes,) or (shares <= 0).any():
            raise InvalidInputError(f"weights must be {classes} positive numbers, got {weights!r}")
        object.__setattr__(self, "means", centres)
        object.__setattr__(self, "covariances", tuple(covariance(c, p) for c in covariances))
        object.__setattr__(self, "weights", shares / shares.sum())

    @staticmethod
    @checked
    def two_class(p: int, mu: float = 8.0, cov: float = 8.0) -> GaussianMixture:
        """Return the papers' mixture: mu_a = mu e_{8(a-1)+1}, C_a = (1 + cov (a-1)/sqrt(p)) I, equal weights."""
        if not 9 <= p <= _MOST:
            raise InvalidInputError(f"the two-class mixture puts its second mean on coordinate 9: p >= 9, got {p}")
        means = np.zeros((2, p))
        means[0, 0] = means[1, 8] = mu
        return GaussianMixture(means, [1.0, 1.0 + cov / np.sqrt(p)])

    @staticmethod
    def from_data(X: Any, y: Any = None) -> GaussianMixture:
        """Return the mixture with the class means, covariances and shares of rows X, (n, p), with labels y.

        Covariances are shrunk towards a multiple of the identity as Ledoit and Wolf (2004) propose, so that they are
        positive definite for few rows, too. Without labels the data is one class.
        """
        from sklearn.covariance import ledoit_wolf  # half a second that other mixtures need not wait for

        rows = as_rows(X, "X", least=2).double().cpu().numpy()
        labels = np.zeros(len(rows)) if y is None else as_labels(y, len(rows))
        names, codes = np.unique(labels, return_inverse=True)
        groups, root = [rows[codes == a] for a in range(len(names))], np.sqrt(rows.shape[1])
        if min(map(len, groups)) < 2:
            raise InvalidInputError("every class needs at least two rows for a covariance; drop or merge small classes")
        covariances = [ledoit_wolf(root * group)[0] for group in groups]
        return GaussianMixture(
            [root * group.mean(0) for group in groups], covariances, [len(group) for group in groups]
        )

    @property
    def p(self) -> int:
        """The dimension."""
        return self.means.shape[1]

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return self.means.shape[0]

    @property
    def tau0(self) -> float:
        """The root of E||x||^2, means included (theory, section 3)."""
        squares = np.array([c.trace() for c in self.covariances]) + (self.means**2).sum(axis=1)
        return float(np.sqrt(self.weights @ squares / self.p))

    @checked
    def counts(self, n: int) -> NDArray[np.int64]:
        """Return the class sizes nearest to n * weights that sum to n (largest remainder)."""
        if not 1 <= n <= _MOST:
            raise InvalidInputError(f"n must be at least 1 and at most 2^53, got {n}")
        ideal = n * self.weights
        counts = np.floor(ideal).astype(np.int64)
        # a stable sort gives ties to the first classes, so the counts do not depend on rounding of equal weights
        order = np.argsort(-np.round(ideal - counts, 9), kind="stable")
        counts[order[: n - counts.sum()]] += 1
        return counts

    @checked
    def sample(self, n: int, seed: int | np.random.Generator = 0) -> tuple[Array, NDArray[np.int64]]:
        """Draw n rows X, (n, p), ordered by class in the sizes of :meth:`counts`, and their labels y, 0 ... K-1."""
        generator = np.random.default_rng(seed % 2**64 if isinstance(seed, int) else seed)
        counts = self.counts(n)
        rows = [
            mean + cov.draw(k, generator) for mean, cov, k in zip(self.means, self.covariances, counts, strict=True)
        ]
        return np.concatenate(rows) / np.sqrt(self.p), np.repeat(np.arange(self.classes), counts)

    def __repr__(self) -> str:
        kinds = ", ".join("diagonal" if c.diagonal else "dense" for c in self.covariances)
        shares = ", ".join(f"{w:.4g}" for w in self.weights)
        return f"GaussianMixture(p={self.p}, classes={self.classes}, covariances=[{kinds}], weights=[{shares}])"

    def _repr_html_(self) -> str:
        classes = zip(self.weights, np.linalg.norm(self.means, axis=1), self.covariances, strict=True)
        texts = [f"weight {w:.4g}, |mean| {m:.4g}, tr C / p {c.trace() / self.p:.4g}" for w, m, c in classes]
        rows = [(f"class {a}", text) for a, text in enumerate(texts)]
        return as_html(f"GaussianMixture, p = {self.p}", rows)


# ---- what was given ------------------------------------------------------------------------------------------


def covariance(given: Any, p: int) -> Covariance:
    """Make a covariance of dimension p from a number, p variances or a p x p matrix."""
    array = _floats("a covariance", given)
    if array.shape in ((), (p,)):
        if (array < 0).any():
            raise InvalidInputError(f"variances must not be negative, got {float(array.min())!r}")
        return Covariance(np.broadcast_to(array, (p,)))
    if array.shape == (p, p):
        return _checked_dense(array)
    raise InvalidInputError(
        f"a covariance is a number, a vector of p = {p} variances or a {p} x {p} matrix, got shape {array.shape}"
    )


def _checked_dense(array: Array) -> Covariance:
    scale = float(np.abs(np.diag(array)).max(initial=0.0))
    if not np.allclose(array, array.T, rtol=0.0, atol=1e-10 * scale):
        raise InvalidInputError("a covariance matrix must be symmetric")
    entries = 0.5 * (array + array.T)
    # Cholesky of a slightly larger matrix is the cheap test for "no eigenvalue below -1e-8 of the largest entry"
    try:
        scipy.linalg.cholesky(entries + 1e-8 * (scale + 1e-300) * np.eye(len(array)), check_finite=False)
    except scipy.linalg.LinAlgError:
        lowest = float(scipy.linalg.eigvalsh(entries, subset_by_index=[0, 0])[0])
        raise InvalidInputError(
            f"a covariance matrix must be positive semi-definite; its smallest eigenvalue is {lowest:.3g}"
        ) from None
    return Covariance(entries)


def _floats(what: str, given: Any) -> Array:
    """Return finite numbers in double precision, or say what they should have been."""
    array: Array = as_numbers(given, what).detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{what} must be finite")
    return array
