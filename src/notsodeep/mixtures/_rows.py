"""Rows of data: NumPy or torch in, the same out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InvalidInputError

__all__ = ["as_rows", "like", "squared_norms"]

_CHUNK = 4096


def as_rows(X: Any, features: int | None = None, *, checked: bool = True) -> Tensor:
    """A finite floating tensor of shape (n, p) that shares memory with X where it can; no scan if not ``checked``."""
    rows = X.detach() if isinstance(X, Tensor) else _from_array(X)
    if rows.ndim != 2 or 0 in rows.shape:
        raise InvalidInputError(f"data must have shape (n, p) with n, p >= 1, got {tuple(rows.shape)}")
    if features is not None and rows.shape[1] != features:
        raise InvalidInputError(f"data must have {features} columns, got {rows.shape[1]}")
    if not rows.is_floating_point():
        rows = rows.to(torch.float64)
    # one reduction, no n x p mask: a sum is finite unless an entry is not (or the data overflows its type)
    if checked and not bool(torch.isfinite(rows.sum())):
        raise InvalidInputError("data must be finite; remove or impute rows with NaN or infinity")
    return rows


def squared_norms(rows: Tensor) -> NDArray[np.float64]:
    """||x||^2 of every row, in double precision, a few rows at a time."""
    found: NDArray[np.float64] = torch.cat([(part.double() ** 2).sum(1) for part in rows.split(_CHUNK)]).cpu().numpy()
    return found


def like(result: Tensor, given: Any) -> Any:
    """A torch result in the type of the input it came from."""
    return result if isinstance(given, Tensor) else result.cpu().numpy()


def _from_array(X: Any) -> Tensor:
    try:
        array = np.asarray(X)
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
    except (TypeError, ValueError):
        raise InvalidInputError(f"data must be a numeric array, got {type(X).__name__}") from None
    if not array.flags.writeable or any(s < 0 for s in array.strides):
        array = array.copy()
    return torch.from_numpy(array)
