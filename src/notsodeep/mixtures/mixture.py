"""Gaussian mixtures in the scaling of the theorems: rows x_i = (mu_a + C_a^(1/2) w_i) / sqrt(p)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._arguments import checked
from ..errors import InvalidInputError
from .covariances import Covariance, covariance, floats

Array = NDArray[np.float64]
_MOST = 10**15  # points: their number is a float64 without rounding


@dataclass(frozen=True, eq=False, repr=False)
class GaussianMixture:
    """K Gaussian classes in dimension p.

    Parameters
    ----------
    means : (K, p) array, the mu_a (before the division by sqrt(p))
    covariances : K entries, each a number (isotropic), a vector (diagonal), a matrix or a ``LowRank``
    weights : K class proportions, normalised to sum to one; equal unless given

    >>> mix = GaussianMixture(np.zeros((2, 50)), [1.0, np.full(50, 2.0)], weights=[3, 1])
    >>> X, y = mix.sample(8, seed=0)
    >>> X.shape, y.tolist()
    ((8, 50), [0, 0, 0, 0, 0, 0, 1, 1])
    """

    means: Array
    covariances: tuple[Covariance, ...]
    weights: Array

    def __init__(self, means: Any, covariances: Sequence[Any] | Array, weights: Any = None) -> None:
        centres = floats("means", means)
        if centres.ndim != 2 or 0 in centres.shape:
            raise InvalidInputError(f"means have shape (classes, p), got {centres.shape}")
        classes, p = centres.shape
        listed = isinstance(covariances, list | tuple) or (isinstance(covariances, np.ndarray) and covariances.ndim > 0)
        if not listed or len(covariances) != classes:
            raise InvalidInputError(f"covariances must be a list, tuple or array of {classes} entries, one per class")
        shares = np.full(classes, 1.0) if weights is None else floats("weights", weights)
        if shares.shape != (classes,) or (shares <= 0).any():
            raise InvalidInputError(f"weights must be {classes} positive numbers, got {weights!r}")
        object.__setattr__(self, "means", centres)
        object.__setattr__(self, "covariances", tuple(covariance(c, p) for c in covariances))
        object.__setattr__(self, "weights", shares / shares.sum())

    @staticmethod
    @checked
    def two_class(p: int, mu: float = 8.0, cov: float = 8.0) -> GaussianMixture:
        """The papers' mixture: mu_a = mu e_{8(a-1)+1}, C_a = (1 + cov (a-1)/sqrt(p)) I, equal weights."""
        if not 9 <= p <= _MOST:
            raise InvalidInputError(f"the two-class mixture puts its second mean on coordinate 9: p >= 9, got {p}")
        means = np.zeros((2, p))
        means[0, 0] = means[1, 8] = mu
        return GaussianMixture(means, [1.0, 1.0 + cov / np.sqrt(p)])

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
        """The root of E||x||^2, means included (theory, section 3).

        >>> round(GaussianMixture.two_class(100, mu=3.0).tau0, 6)
        1.220656
        """
        squares = np.array([c.trace() for c in self.covariances]) + (self.means**2).sum(axis=1)
        return float(np.sqrt(self.weights @ squares / self.p))

    @checked
    def counts(self, n: int) -> NDArray[np.int64]:
        """Class sizes nearest to n * weights that sum to n (largest remainder)."""
        if not 1 <= n <= _MOST:
            raise InvalidInputError(f"n must be at least 1 and at most {_MOST:.0e}, got {n}")
        ideal = n * self.weights
        counts = np.floor(ideal).astype(np.int64)
        # a stable sort gives ties to the first classes, so the counts do not depend on rounding of equal weights
        order = np.argsort(-np.round(ideal - counts, 9), kind="stable")
        counts[order[: n - counts.sum()]] += 1
        return counts

    @checked
    def sample(
        self, n: int, seed: int | np.random.Generator = 0, *, random_labels: bool = False
    ) -> tuple[Array, NDArray[np.int64]]:
        """n rows and their labels 0 ... K-1.

        By default the class sizes are :meth:`counts` and the rows are ordered by class; with ``random_labels``
        every label is drawn from the weights.
        """
        generator = np.random.default_rng(seed % 2**64 if isinstance(seed, int) else seed)
        if random_labels:
            if n < 1:
                raise InvalidInputError(f"n must be at least 1, got {n}")
            y = generator.choice(self.classes, size=n, p=self.weights).astype(np.int64)
        else:
            y = np.repeat(np.arange(self.classes), self.counts(n))
        X = np.empty((n, self.p))
        for a, (mean, cov) in enumerate(zip(self.means, self.covariances, strict=True)):
            rows = np.flatnonzero(y == a)
            X[rows] = (mean + cov.draw(len(rows), generator)) / np.sqrt(self.p)
        return X, y

    def diagnose(self) -> GrowthReport:
        """How well the growth conditions of the theorems hold at this p; prints as a table."""
        traces = np.array([c.trace() for c in self.covariances]) / self.p
        tau0_2 = float(self.weights @ traces)
        if tau0_2 == 0.0:
            raise InvalidInputError("all covariances are zero: the growth conditions speak of tr C / p > 0")
        return GrowthReport(
            p=self.p,
            mean_norms=tuple(float(v) for v in np.linalg.norm(self.means, axis=1)),
            covariance_norms=tuple(c.norm() for c in self.covariances),
            trace_deviations=tuple(float(v) for v in np.sqrt(self.p) * (traces - tau0_2)),
            tau0=float(np.sqrt(tau0_2)),
        )

    def __repr__(self) -> str:
        kinds = ", ".join(type(c).__name__ for c in self.covariances)
        shares = ", ".join(f"{w:.4g}" for w in self.weights)
        return f"GaussianMixture(p={self.p}, classes={self.classes}, covariances=[{kinds}], weights=[{shares}])"


@dataclass(frozen=True)
class GrowthReport:
    """The growth conditions ||mu_a|| = O(1), ||C_a|| = O(1), tr(C_a - C0) = O(sqrt(p)), as numbers at one p.

    Each is turned into the share of the squared norm that the theorems neglect; below ``TOLERATED`` they apply.
    """

    p: int
    mean_norms: tuple[float, ...]
    """||mu_a||"""
    covariance_norms: tuple[float, ...]
    """The largest eigenvalue of C_a"""
    trace_deviations: tuple[float, ...]
    """t_a = tr(C_a - C0) / sqrt(p)"""
    tau0: float

    TOLERATED = 0.3

    def shares(self) -> dict[str, tuple[float, ...]]:
        """||mu_a||^2/(p tau0^2), ||C_a||/(sqrt(p) tau0^2) and |t_a|/(sqrt(p) tau0^2): all vanish as p grows."""
        root, square = self.p**0.5, self.tau0**2
        return {
            "means": tuple(m * m / (self.p * square) for m in self.mean_norms),
            "covariances": tuple(c / (root * square) for c in self.covariance_norms),
            "traces": tuple(abs(t) / (root * square) for t in self.trace_deviations),
        }

    @property
    def holds(self) -> bool:
        """Whether every share is below ``TOLERATED``."""
        return all(s <= self.TOLERATED for shares in self.shares().values() for s in shares)

    def __str__(self) -> str:
        shares = self.shares()
        lines = [
            f"growth conditions at p = {self.p} (tau0 = {self.tau0:.4g}); the theorems apply when every share is small"
        ]
        rows = [
            ("means", "||mu_a|| = O(1)", self.mean_norms),
            ("covariances", "||C_a|| = O(1)", self.covariance_norms),
            ("traces", "t_a = tr(C_a - C0)/sqrt(p) = O(1)", self.trace_deviations),
        ]
        for key, text, values in rows:
            verdict = "ok" if max(shares[key]) <= self.TOLERATED else "LARGE"
            numbers = ", ".join(f"{v:.4g}" for v in values)
            lines.append(f"  {text:<36} {numbers:<32} largest share {max(shares[key]):.3f}  {verdict}")
        return "\n".join(lines)
