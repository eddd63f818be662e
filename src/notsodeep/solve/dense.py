"""One Cholesky factorisation of K + ridge I, and everything that follows from it: solutions, leave-one-out, log det."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import checked
from ..errors import ConvergenceError, InvalidInputError, warn

_JITTERS = (1e-14, 1e-12, 1e-10, 1e-8, 1e-6)  # relative to the mean diagonal, tried in this order

_TINY = 1e-280  # of a mean diagonal: a small part of it can still be divided by


@dataclass(frozen=True, eq=False)
class Factor:
    """L L' = K + (ridge + jitter) I."""

    lower: Tensor
    jitter: float
    """What had to be added to the diagonal besides the ridge; 0 as a rule."""

    def solve(self, b: Tensor) -> Tensor:
        """(K + ridge I)^(-1) b for a vector or a matrix of right-hand sides."""
        column = b[:, None] if b.ndim == 1 else b
        found = torch.cholesky_solve(column.to(self.lower), self.lower)
        return found[:, 0] if b.ndim == 1 else found

    def inverse(self) -> Tensor:
        """(K + ridge I)^(-1) itself."""
        return torch.cholesky_inverse(self.lower)

    @property
    def logdet(self) -> float:
        """log det(K + ridge I)."""
        return 2.0 * float(self.lower.diagonal().log().sum())


@checked
def factorise(K: Tensor, ridge: float = 0.0) -> Factor:
    """Cholesky of K + ridge I; a pivot that is not positive is retried in float64 with a jitter, and said so.

    >>> float(factorise(torch.eye(2), ridge=1.0).solve(torch.tensor([2.0, 4.0])).sum())
    3.0
    """
    if K.ndim != 2 or K.shape[0] != K.shape[1] or len(K) == 0:
        raise InvalidInputError(f"a kernel matrix is square and not empty, got shape {tuple(K.shape)}")
    if not (math.isfinite(ridge) and ridge >= 0):
        raise InvalidInputError(f"ridge must be finite and not negative, got {ridge!r}")
    if not bool(torch.isfinite(K.sum())):
        raise InvalidInputError("the kernel matrix holds NaN or infinity; check the data it was computed from")
    lower = _attempt(K, ridge)
    if lower is not None:
        return Factor(lower, 0.0)
    wide, unit = K.to(torch.float64), max(float(K.diagonal().mean()), _TINY)
    for jitter in (0.0,) * (K.dtype != torch.float64) + tuple(unit * j for j in _JITTERS):
        lower = _attempt(wide, ridge + jitter)
        if lower is not None:
            warn(
                f"K + {ridge:.3g} I has a pivot that is not positive: solved in float64 with a jitter of {jitter:.3g} "
                f"added to the diagonal ({jitter / unit:.0e} of its mean). A larger ridge avoids this"
            )
            return Factor(lower, jitter)
    raise ConvergenceError(
        f"K + {ridge:.3g} I is not positive definite, not even with {_JITTERS[-1]:.0e} of its mean diagonal added; "
        "it may not be a kernel matrix. Check it, or use a larger ridge"
    )


def _attempt(K: Tensor, lift: float) -> Tensor | None:
    lifted = K.clone()
    lifted.diagonal().add_(lift)
    lower, info = torch.linalg.cholesky_ex(lifted)
    return lower if int(info) == 0 and bool(torch.isfinite(lower.diagonal()).all()) else None


def leave_one_out(
    targets: Tensor,
    solution: Tensor,
    inverse_diagonal: Tensor,
    weights: Tensor | None = None,
    ridge: float = 0.0,
) -> Tensor:
    """What ridge regression without row i predicts at row i, without a refit: y_i - a_i / c_i.

    ``solution`` is a = C^(-1) y and ``inverse_diagonal`` c = diag C^(-1), for C = K + ridge W^(-1). A row of weight
    w > 1 counts as several and loses one of them: that changes ridge / w to ridge / (w - 1) in one diagonal entry, and
    the residual is, by Sherman and Morrison, ridge a_i / (w - 1 + ridge c_i / w).
    """
    column = (slice(None),) + (None,) * (targets.ndim - 1)
    gone = solution / inverse_diagonal[column]
    if weights is None or not bool((weights > 1.0).any()):
        return targets - gone
    w = weights[column]
    less = ridge * solution / ((w - 1.0).clamp_min(0.0) + ridge * inverse_diagonal[column] / w)
    return targets - torch.where(w > 1.0, less, gone)


# ---- all ridges for the price of one eigendecomposition ----------------------------------------------------


@dataclass(frozen=True, eq=False)
class RidgePath:
    """Ridge regression with one kernel matrix and one set of targets, for any ridge at O(n^2) each."""

    values: Tensor
    """Eigenvalues of W^(1/2) K W^(1/2), negative ones from rounding taken as zero, shape (n,)."""
    vectors: Tensor
    targets: Tensor
    """Shape (n, k)."""
    rotated: Tensor
    """Q' W^(1/2) targets."""
    weights: Tensor
    """W, shape (n,)."""

    def solution(self, ridge: float) -> Tensor:
        """(K + ridge W^(-1))^(-1) targets."""
        return self.weights.sqrt()[:, None] * (self.vectors @ (self.rotated / self._lifted(ridge)[:, None]))

    def inverse_diagonal(self, ridge: float) -> Tensor:
        """The diagonal of (K + ridge W^(-1))^(-1)."""
        return self.weights * ((self.vectors**2) @ (1.0 / self._lifted(ridge)))

    def leave_one_out(self, ridge: float) -> Tensor:
        """The prediction of each row from all others; a row of weight above one loses one unit of it."""
        inverse = self.inverse_diagonal(ridge)
        return leave_one_out(self.targets, self.solution(ridge), inverse, self.weights, ridge)

    def _lifted(self, ridge: float) -> Tensor:
        if not ridge > 0.0:
            raise InvalidInputError(f"a path runs over positive ridges, got {ridge!r}")
        return self.values + ridge


@checked
def ridge_path(K: Tensor, targets: Tensor, weights: Tensor | None = None) -> RidgePath:
    """One eigendecomposition, in double precision; ``weights`` of the rows, positive, are ones unless given.

    >>> path = ridge_path(torch.diag(torch.tensor([1.0, 3.0])), torch.ones(2))
    >>> path.solution(1.0)[:, 0]
    tensor([0.5000, 0.2500], dtype=torch.float64)
    """
    columns = (targets[:, None] if targets.ndim == 1 else targets).to(torch.float64)
    if K.ndim != 2 or columns.ndim != 2 or K.shape != (len(columns),) * 2:
        raise InvalidInputError(
            f"a square kernel and a target for each of its rows are needed, got {tuple(K.shape)} and "
            f"{tuple(targets.shape)}"
        )
    w = torch.ones_like(columns[:, 0]) if weights is None else weights.to(columns)
    if w.shape != (len(K),) or not bool(((w > 0) & torch.isfinite(w)).all()):
        raise InvalidInputError(f"weights must be {len(K)} positive and finite numbers")
    root = w.sqrt()[:, None]
    values, vectors = torch.linalg.eigh(root * K.to(torch.float64) * root.T)
    return RidgePath(values.clamp_min(0.0), vectors, columns, vectors.T @ (root * columns), w)
