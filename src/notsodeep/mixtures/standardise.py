"""Common centring and scaling to mean squared norm one, as the papers prepare real data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._arrays import as_rows, like
from ..errors import InvalidInputError

__all__ = ["Standardiser", "standardise"]


@dataclass(frozen=True, eq=False, repr=False)
class Standardiser:
    """x -> (x - mean) / scale, fitted on training data so that the mean is zero and the mean of ||x||^2 is one.

    >>> import numpy as np
    >>> train, test = np.random.default_rng(0).normal(2.0, 3.0, (2, 40, 5))
    >>> fitted = Standardiser.fit(train)
    >>> round(float((fitted.transform(train) ** 2).sum(1).mean()), 12), fitted.transform(test).shape
    (1.0, (40, 5))
    """

    mean: Tensor
    scale: float

    @staticmethod
    def fit(X: Any) -> Standardiser:
        """From rows X of shape (n, p)."""
        rows = as_rows(X)
        mean = rows.to(torch.float64).mean(0)
        # ||x - m||^2 summed in chunks: no second copy of the data
        total = sum(float(((part - mean) ** 2).sum()) for part in rows.split(4096))
        if total == 0.0:
            raise InvalidInputError("all rows are equal: the data cannot be scaled to mean squared norm one")
        return Standardiser(mean, (total / len(rows)) ** 0.5)

    def transform(self, X: Any) -> Any:
        """The standardised rows, of the type and precision given."""
        rows = as_rows(X)
        if rows.shape[1] != len(self.mean):
            raise InvalidInputError(f"fitted on {len(self.mean)} features, got {rows.shape[1]}")
        return like((rows - self.mean.to(rows.device, rows.dtype)) / self.scale, X)

    def inverse_transform(self, X: Any) -> Any:
        """Back to the original coordinates."""
        rows = as_rows(X)
        return like(rows * self.scale + self.mean.to(rows.device, rows.dtype), X)

    def __repr__(self) -> str:
        return f"Standardiser(features={len(self.mean)}, scale={self.scale:.6g})"


def standardise(X: Any, *others: Any) -> Any:
    """X centred and scaled to mean ||x||^2 = 1; further arrays (test data) get the transformation fitted on X.

    >>> import numpy as np
    >>> train, test = standardise(np.eye(4), np.ones((2, 4)))
    >>> float(np.abs(train.mean(0)).max()) < 1e-15, test.shape
    (True, (2, 4))
    """
    fitted = Standardiser.fit(X)
    if not others:
        return fitted.transform(X)
    return tuple(fitted.transform(part) for part in (X, *others))
