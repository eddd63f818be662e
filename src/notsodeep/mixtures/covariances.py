"""Covariance matrices: p variances, or a p x p matrix where the user gave one."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from .._arrays import as_numbers
from ..errors import InvalidInputError

Array = NDArray[np.float64]


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


def covariance(given: Any, p: int) -> Covariance:
    """Make a covariance of dimension p from a number, p variances or a p x p matrix."""
    array = floats("a covariance", given)
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


def floats(what: str, given: Any) -> Array:
    """Return finite numbers in double precision, or say what they should have been."""
    array: Array = as_numbers(given, what).detach().cpu().numpy().astype(np.float64)
    if not np.isfinite(array).all():
        raise InvalidInputError(f"{what} must be finite")
    return array
