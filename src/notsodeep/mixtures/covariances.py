"""Covariance matrices by structure, so that p = 20,000 costs no p x p matrix unless the user gave one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from ..errors import InvalidInputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Covariance:
    """A positive semi-definite p x p matrix that knows its traces and can colour white noise."""

    def trace(self) -> float:
        """Return tr C."""
        raise NotImplementedError

    def inner(self, other: Covariance) -> float:
        """Return tr(C C') with another covariance of the same dimension."""
        raise NotImplementedError

    def dense(self) -> Array:
        """Return the p x p matrix itself."""
        raise NotImplementedError

    def multiply(self, rows: Array) -> Array:
        """Return rows @ C, for rows of shape (m, p)."""
        raise NotImplementedError

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        """Draw n centred Gaussian rows with this covariance, shape (n, p)."""
        raise NotImplementedError

    def main_diagonal(self) -> Array:
        """Return the entries C_jj, shape (p,)."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Diagonal(Covariance):
    """A diagonal covariance, diag(variances)."""

    variances: Array

    def trace(self) -> float:
        return float(self.variances.sum())

    def inner(self, other: Covariance) -> float:
        return float(self.variances @ other.main_diagonal())

    def dense(self) -> Array:
        return np.diag(self.variances)

    def multiply(self, rows: Array) -> Array:
        return rows * self.variances

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        return np.sqrt(self.variances) * generator.standard_normal((n, len(self.variances)))

    def main_diagonal(self) -> Array:
        return self.variances


@dataclass(frozen=True, eq=False)
class LowRank(Covariance):
    """The covariance factor @ factor.T + diag(diagonal), which needs no p x p matrix.

    Parameters
    ----------
    factor : array of shape (p, r)
        Directions of large variance.
    diagonal : float or array of shape (p,)
        Variances that are added on the diagonal.

    Examples
    --------
    >>> LowRank(np.ones((4, 1)), diagonal=0.5).trace()
    6.0
    """

    factor: Array
    diagonal: Any = 1.0

    def __post_init__(self) -> None:
        factor = floats("the factor of a LowRank covariance", self.factor)
        if factor.ndim != 2:
            raise InvalidInputError(f"the factor of a LowRank covariance has shape (p, r), got {factor.shape}")
        diagonal = floats("the diagonal of a LowRank covariance", self.diagonal)
        if diagonal.shape not in ((), (len(factor),)):
            raise InvalidInputError(
                f"the diagonal of a LowRank covariance is one number or p = {len(factor)} numbers, "
                f"got shape {diagonal.shape}"
            )
        if (diagonal < 0).any():
            raise InvalidInputError("the diagonal of a LowRank covariance must not be negative")
        object.__setattr__(self, "factor", factor)
        object.__setattr__(self, "diagonal", np.broadcast_to(diagonal, (len(factor),)))

    def trace(self) -> float:
        return float((self.factor**2).sum() + self.diagonal.sum())

    def inner(self, other: Covariance) -> float:
        return float((self.factor.T * other.multiply(self.factor.T)).sum() + self.diagonal @ other.main_diagonal())

    def dense(self) -> Array:
        return self.factor @ self.factor.T + np.diag(self.diagonal)

    def multiply(self, rows: Array) -> Array:
        return (rows @ self.factor) @ self.factor.T + rows * self.diagonal

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        p, rank = self.factor.shape
        noise = np.sqrt(self.diagonal) * generator.standard_normal((n, p))
        return noise + generator.standard_normal((n, rank)) @ self.factor.T

    def main_diagonal(self) -> Array:
        return (self.factor**2).sum(1) + self.diagonal


@dataclass(frozen=True, eq=False)
class Dense(Covariance):
    """A covariance given as a positive semi-definite p x p matrix."""

    entries: Array

    def trace(self) -> float:
        return float(np.trace(self.entries))

    def inner(self, other: Covariance) -> float:
        if isinstance(other, Dense):
            return float(np.vdot(self.entries, other.entries))
        return other.inner(self)

    def dense(self) -> Array:
        return self.entries

    def multiply(self, rows: Array) -> Array:
        return rows @ self.entries

    def draw(self, n: int, generator: np.random.Generator) -> Array:
        return generator.standard_normal((n, len(self.entries))) @ self.root

    def main_diagonal(self) -> Array:
        return np.diag(self.entries)

    @functools.cached_property
    def root(self) -> Array:
        """R with R' R = C: Cholesky, or by eigenvectors where the matrix is singular."""
        try:
            return scipy.linalg.cholesky(self.entries)
        except scipy.linalg.LinAlgError:
            values, vectors = scipy.linalg.eigh(self.entries)
            return np.sqrt(np.clip(values, 0.0, None))[:, None] * vectors.T


def covariance(given: Any, p: int) -> Covariance:
    """Make a covariance of dimension p from a number, p variances, a p x p matrix, or a :class:`Covariance`."""
    if isinstance(given, Covariance):
        size = len(given.main_diagonal())
        if size != p:
            raise InvalidInputError(f"a covariance has dimension {size}, but the means have dimension {p}")
        return given
    array = floats("a covariance", given)
    if array.shape in ((), (p,)):
        if (array < 0).any():
            raise InvalidInputError(f"variances must not be negative, got {float(array.min())!r}")
        return Diagonal(np.broadcast_to(array, (p,)))
    if array.shape == (p, p):
        return _checked_dense(array)
    raise InvalidInputError(
        f"a covariance is a number, a vector of p = {p} variances, a {p} x {p} matrix or a LowRank, "
        f"got shape {array.shape}"
    )


def _checked_dense(array: Array) -> Dense:
    scale = float(np.abs(np.diag(array)).max(initial=0.0))
    if not np.allclose(array, array.T, rtol=0.0, atol=1e-10 * scale):
        raise InvalidInputError("a covariance matrix must be symmetric")
    out = Dense(0.5 * (array + array.T))
    # Cholesky of a slightly lifted matrix is the cheap test for "no eigenvalue below -1e-8 of the largest entry"
    try:
        scipy.linalg.cholesky(out.entries + 1e-8 * (scale + 1e-300) * np.eye(len(array)), check_finite=False)
    except scipy.linalg.LinAlgError:
        lowest = float(scipy.linalg.eigvalsh(out.entries, subset_by_index=[0, 0])[0])
        raise InvalidInputError(
            f"a covariance matrix must be positive semi-definite; its smallest eigenvalue is {lowest:.3g}"
        ) from None
    return out


def floats(what: str, given: Any) -> Array:
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{what} must be an array of numbers, got {type(given).__name__}") from None
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{what} must be finite")
    return array
