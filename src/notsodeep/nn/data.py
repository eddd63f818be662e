"""Training data in, tensors out."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from .._arrays import as_rows
from ..errors import InvalidInputError

__all__ = ["as_inputs", "as_pair", "check_classes", "one_hot"]


def as_inputs(X: Any, like: Tensor | None = None) -> Tensor:
    """A finite (n, p) tensor, in the type and on the device of ``like``."""
    given = as_rows(X, tracked=True)
    rows = given.to(torch.get_default_dtype()) if like is None else given.to(like.device, like.dtype)
    if rows.dtype != given.dtype and not bool(torch.isfinite(rows).all()):
        raise InvalidInputError(f"X leaves the range of {rows.dtype}; scale it (notsodeep.standardise), or use float64")
    return rows


def as_pair(data: Any, like: Tensor) -> tuple[Tensor, Tensor]:
    """(X, y) from a pair of arrays or a map-style dataset; integer y are classes, others are targets."""
    if isinstance(data, Dataset):
        samples = [data[i] for i in range(len(data))]  # type: ignore[arg-type]
        data = (torch.stack([torch.as_tensor(x) for x, _ in samples]), torch.as_tensor([y for _, y in samples]))
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise InvalidInputError(f"data must be a pair (X, y) or a dataset of such pairs, got {type(data).__name__}")
    X = as_inputs(data[0], like)
    y = _labels(data[1])
    if y.shape[:1] != X.shape[:1]:
        raise InvalidInputError(f"X has {X.shape[0]} rows but y has shape {tuple(y.shape)}")
    if y.is_floating_point():
        if not bool(torch.isfinite(y).all()):
            raise InvalidInputError("targets contain NaN or infinite values")
        return X, (y if y.ndim == 2 else y.reshape(-1, 1)).to(like.device, like.dtype)
    if y.ndim != 1 or bool((y < 0).any()):
        raise InvalidInputError(f"classes must be non-negative whole numbers of shape (samples,), got {tuple(y.shape)}")
    return X, y.to(like.device, torch.long)


def _labels(y: Any) -> Tensor:
    """Classes or targets as a tensor; names are refused with a way out."""
    if isinstance(y, Tensor):
        return y
    try:
        array = np.asarray(y)
    except (ValueError, TypeError) as error:
        raise InvalidInputError(f"y must hold one class or one row of targets per point: {error}") from None
    if array.dtype.kind not in "fiub":
        raise InvalidInputError(
            f"y must hold whole numbers (classes) or real targets, got {array.dtype}. Names become classes with "
            "names, y = np.unique(y, return_inverse=True)"
        )
    wide = array.dtype.kind == "f" and array.dtype.itemsize >= 8
    kinds = {"f": np.float64 if wide else np.float32}
    return torch.from_numpy(np.require(array, kinds.get(array.dtype.kind, np.int64), ["C", "W"]))


def one_hot(y: Tensor, outputs: int, like: Tensor) -> Tensor:
    """Regression targets: classes become centred indicator vectors, other targets stay."""
    check_classes(y, outputs)
    if y.is_floating_point():
        return y
    return torch.nn.functional.one_hot(y, outputs).to(like.dtype) - 1.0 / outputs


def check_classes(y: Tensor, outputs: int) -> None:
    """Classes count from zero and need one output each; real targets one output per column."""
    if y.is_floating_point():
        if y.shape[1] != outputs:
            raise InvalidInputError(f"y has {y.shape[1]} columns, the network has {outputs} outputs")
    elif int(y.max()) >= outputs:
        raise InvalidInputError(
            f"class {int(y.max())} needs at least {int(y.max()) + 1} outputs, the network has {outputs}"
        )
