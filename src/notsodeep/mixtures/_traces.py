"""Unbiased estimates of tr(C_a C_b) / p, from p x p matrices or from Gram blocks, whichever is cheaper."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]
_SMALL = 3000  # largest p for which p x p matrices are formed
_BLOCK = 2048


@dataclass(frozen=True)
class _Residuals:
    """x - mu_a / sqrt(p) of the rows of one class, in double precision, a few rows at a time."""

    rows: Tensor
    index: Tensor
    centre: Tensor

    @staticmethod
    def of(rows: Tensor, labels: NDArray[np.int64], label: int, mean: Array) -> _Residuals:
        index = torch.from_numpy(np.flatnonzero(labels == label)).to(rows.device)
        return _Residuals(rows, index, torch.from_numpy(mean / math.sqrt(rows.shape[1])).to(rows.device))

    def __len__(self) -> int:
        return len(self.index)

    def parts(self) -> Iterator[Tensor]:
        for index in self.index.split(_BLOCK):
            yield self.rows[index].to(torch.float64) - self.centre

    def scatter(self) -> Tensor:
        """R'R, (p, p)."""
        p = self.rows.shape[1]
        total = torch.zeros(p, p, dtype=torch.float64, device=self.rows.device)
        for part in self.parts():
            total.addmm_(part.T, part)
        return total

    def norms(self) -> Tensor:
        """Squared, of every residual."""
        return torch.cat([(part**2).sum(1) for part in self.parts()])


def class_traces(rows: Tensor, labels: NDArray[np.int64], means: Array) -> Array:
    """T, shape (K, K), for rows x = (mu_a + C_a^(1/2) w) / sqrt(p), without bias for any distribution.

    For a != b, tr(S_a S_b) is unbiased since the classes are independent. For a = b the plug-in tr(S_a^2)
    overshoots by about (tr C_a)^2 / n_a; the correction is the U-statistic of Chen, Zhang and Zhong (2010) in the
    closed form of Himeno and Yamada (2014), which needs fourth powers of the residual norms but no normality.
    """
    groups = [_Residuals.of(rows, labels, a, mean) for a, mean in enumerate(means)]
    square = _products(groups, [len(r) - 1 for r in groups])
    for a, residuals in enumerate(groups):
        square[a, a] = _unbiased(square[a, a], residuals.norms())
    return square * rows.shape[1]  # residuals carry 1/sqrt(p) each: tr(C_a C_b)/p^2 so far


def pair_moments(rows: Tensor, labels: NDArray[np.int64], classes: int) -> Array:
    """p E[(x . x')^2] over independent pairs of two classes: tr(M_a M_b)/p with second moments about the origin."""
    nothing = np.zeros(rows.shape[1])
    groups = [_Residuals.of(rows, labels, a, nothing) for a in range(classes)]
    square = _products(groups, [len(r) for r in groups])
    for a, r in enumerate(groups):
        own = float((r.norms() ** 2).sum())  # pairs of a point with itself do not count
        square[a, a] = (square[a, a] * len(r) ** 2 - own) / (len(r) * (len(r) - 1))
    return square * rows.shape[1]


def _products(groups: list[_Residuals], freedom: list[int]) -> Array:
    """tr(S_a S_b) with S_a = R_a' R_a / freedom_a."""
    n, p = sum(len(r) for r in groups), groups[0].rows.shape[1]
    raw = _covariance_products(groups) if p <= min(_SMALL, n) else _gram_products(groups)
    return raw / np.outer(freedom, freedom)


def _unbiased(trace_square: float, norms: Tensor) -> float:
    """tr(C^2) from tr(S^2), tr(S) and the mean fourth power of the residual norms."""
    n = len(norms)
    trace = float(norms.sum()) / (n - 1)
    fourth = float((norms**2).sum()) / (n - 1)
    return (n - 1) / (n * (n - 2) * (n - 3)) * ((n - 1) * (n - 2) * trace_square + trace**2 - n * fourth)


def _covariance_products(groups: list[_Residuals]) -> Array:
    """tr(R_a' R_a R_b' R_b) through p x p matrices."""
    scatters = [r.scatter().reshape(-1) for r in groups]
    return np.array([[float(a @ b) for b in scatters] for a in scatters])


def _gram_products(groups: list[_Residuals]) -> Array:
    """tr(R_a' R_a R_b' R_b) = ||R_a R_b'||_F^2, block by block."""
    out = np.empty((len(groups), len(groups)))
    for a, left in enumerate(groups):
        for b, right in enumerate(groups[: a + 1]):
            total = sum(float(((u @ v.T) ** 2).sum()) for u in left.parts() for v in right.parts())
            out[a, b] = out[b, a] = total
    return out
