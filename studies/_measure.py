"""What several studies measure: kernels by name, distances, agreement of classifiers, errors of means."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

import notsodeep as nsd

KERNELS = ("ck", "ntk", "ntk_frozen")
PREPRINT = {"preprint_ck": "ck", "preprint_ntk": "ntk"}
"""G* and K* of the preprint and of the workshop paper: kernels of a DEQ whose readout is one more pre-activation."""


def kernel_of(network: Any, kernel: str, X: Any, Y: Any = None, **options: Any) -> Any:
    """Return an exact kernel by its name."""
    if kernel == "ck":
        return nsd.ck(network, X, Y, **options)
    return nsd.ntk(network, X, Y, train_input=kernel == "ntk", **options)


def spectral_norm(matrix: np.ndarray) -> float:
    """Return the largest absolute eigenvalue of a symmetric matrix."""
    if len(matrix) <= 32:
        return float(np.abs(np.linalg.eigvalsh(matrix)).max())
    start = np.random.default_rng(0).standard_normal(len(matrix))
    # the error of an eigenvalue is quadratic in this tolerance
    found = scipy.sparse.linalg.eigsh(matrix, k=1, which="LM", v0=start, tol=1e-5, return_eigenvectors=False)
    return float(abs(found[0]))


def in_batches(function: Callable[[Tensor], Tensor], X: Tensor, size: int = 1024) -> Tensor:
    """Apply a function to rows, some at a time, without gradients."""
    with torch.no_grad():
        return torch.cat([function(rows) for rows in X.split(size)])


def share(guesses: Tensor, others: Tensor) -> float:
    """Return the share of rows that both put into the same class."""
    return float((guesses == others).double().mean())


def standard_error(values: Sequence[float]) -> float:
    """Return the standard error of a mean; zero where there is one value."""
    return statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
