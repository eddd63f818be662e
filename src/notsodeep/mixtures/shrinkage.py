"""Class covariances estimated from few points, shrunk towards a multiple of the identity (Ledoit and Wolf)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._arrays import as_rows
from .covariances import LowRank
from .statistics import MixtureStatistics

__all__ = ["shrunk_covariances"]


def shrunk_covariances(statistics: MixtureStatistics, *, dense: bool = False) -> list[Any]:
    """One covariance per class with the trace of the sample and tr(C_a^2) = p T_aa, which is unbiased.

    Sample eigenvalues spread more than those of the population when n_a is of the order of p. Shrinking them towards
    their mean until the second moment is right removes that spread to second order. More features than points give
    a :class:`LowRank` covariance, unless ``dense``.
    """
    rows = as_rows(statistics.X).to("cpu", torch.float64).numpy() * math.sqrt(statistics.p)
    found = []
    for a in range(statistics.K):
        own = rows[statistics.labels == a]
        factor = (own - own.mean(0)).T / math.sqrt(max(len(own) - 1, 1))
        found.append(_shrunk(factor, statistics.T[a, a] * statistics.p, dense or len(factor) <= len(own)))
    return found


def _shrunk(factor: NDArray[np.float64], trace_square: float, dense: bool) -> Any:
    """keep S + (1 - keep)(tr S/p) I with S = factor factor', keep chosen so that the trace of the square is right."""
    p, rank = factor.shape
    trace = float((factor**2).sum())
    flat = trace**2 / p
    plug_in = float(((factor @ factor.T if p <= rank else factor.T @ factor) ** 2).sum())
    keep = math.sqrt(min(max(trace_square - flat, 0.0) / max(plug_in - flat, 1e-300), 1.0))
    rest = (1.0 - keep) * trace / p
    return keep * (factor @ factor.T) + rest * np.eye(p) if dense else LowRank(math.sqrt(keep) * factor, rest)
