"""All ridges for the price of one eigendecomposition K = Q S Q': solutions and leave-one-out predictions."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .dense import leave_one_out

__all__ = ["RidgePath", "ridge_path"]


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Ridge regression with one kernel matrix and one set of targets, for any ridge at O(n^2) each."""

    values: Tensor
    """Eigenvalues of K, negative ones from rounding taken as zero, shape (n,)."""
    vectors: Tensor
    targets: Tensor
    """Shape (n, k)."""
    rotated: Tensor
    """Q' targets."""

    def solution(self, ridge: float) -> Tensor:
        """(K + ridge I)^(-1) targets."""
        return self.vectors @ (self.rotated / self._lifted(ridge)[:, None])

    def inverse_diagonal(self, ridge: float) -> Tensor:
        """The diagonal of (K + ridge I)^(-1)."""
        return (self.vectors**2) @ (1.0 / self._lifted(ridge))

    def leave_one_out(self, ridge: float) -> Tensor:
        """The prediction of each row from all others."""
        return leave_one_out(self.targets, self.solution(ridge), self.inverse_diagonal(ridge))

    def _lifted(self, ridge: float) -> Tensor:
        if not ridge > 0.0:
            raise InvalidInputError(f"a path runs over positive ridges, got {ridge!r}")
        return self.values + ridge


def ridge_path(K: Tensor, targets: Tensor) -> RidgePath:
    """One eigendecomposition, in double precision.

    >>> path = ridge_path(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2))
    >>> path.solution(1.0)[:, 0]
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    columns = (targets[:, None] if targets.ndim == 1 else targets).to(torch.float64)
    if len(K) != len(columns):
        raise InvalidInputError(f"{len(K)} rows in the kernel and {len(columns)} targets; they must agree")
    values, vectors = torch.linalg.eigh(K.to(torch.float64))
    return RidgePath(values.clamp_min(0.0), vectors, columns, vectors.T @ columns)
