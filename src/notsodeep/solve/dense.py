"""Ridge regression with a kernel matrix in memory: Cholesky, a path over ridges, exact leave-one-out predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .._arguments import checked
from ..errors import ConvergenceError, InvalidInputError, warn


@dataclass(frozen=True, eq=False)
class Factor:
    """The Cholesky factor L of K + (ridge + jitter) I = L L'."""

    lower: Tensor
    jitter: float  # 0 unless a pivot was not positive

    def solve(self, b: Tensor) -> Tensor:
        """Return (K + ridge I)^(-1) b for a vector (n,) or a matrix (n, k) of right-hand sides."""
        column = (b[:, None] if b.ndim == 1 else b).to(self.lower)  # two triangles: cholesky_solve would copy L
        half = torch.linalg.solve_triangular(self.lower, column, upper=False)
        solution = torch.linalg.solve_triangular(self.lower.mT, half, upper=True)
        return solution[:, 0] if b.ndim == 1 else solution

    def inverse(self) -> Tensor:
        """Return (K + ridge I)^(-1), of shape (n, n)."""
        return torch.cholesky_inverse(self.lower)

    def inverse_diagonal(self, last: int) -> Tensor:
        """Return the ``last`` entries of the diagonal of (K + ridge I)^(-1); L is overwritten where all are wanted.

        Row j of L^(-1) ends at its diagonal, so these entries depend on the last rows and columns of L alone.
        """
        first = len(self.lower) - last
        block = self.lower[first:, first:].clone() if first else self.lower
        _invert_lower(block)
        return torch.linalg.vector_norm(block, dim=0) ** 2

    @property
    def logdet(self) -> float:
        """The logarithm of det(K + ridge I)."""
        return 2.0 * float(self.lower.diagonal().log().sum())


def _invert_lower(L: Tensor) -> None:
    """Invert a lower triangular matrix in place by halves, [A 0; B C] -> [A^(-1) 0; -C^(-1) B A^(-1) C^(-1)]."""
    half = len(L) // 2
    if len(L) <= 128:  # here the overhead of calls costs more than the third of the work that halving saves
        L.copy_(torch.linalg.solve_triangular(L, torch.eye(len(L), dtype=L.dtype, device=L.device), upper=False))
        return
    A, B, C = L[:half, :half], L[half:, :half], L[half:, half:]
    B.copy_(torch.linalg.solve_triangular(C, B, upper=False))
    B.copy_(torch.linalg.solve_triangular(A, B, upper=False, left=False).neg_())
    _invert_lower(A)
    _invert_lower(C)


def factorise(K: Tensor, ridge: float = 0.0, overwrite: bool = False) -> Factor:
    """Compute the Cholesky factor of K + ridge I.

    A pivot that is not positive is tried again in float64 with a small jitter on the diagonal, and a warning names it;
    where K was to be overwritten it is an error, since K is spoilt then.

    >>> float(factorise(torch.eye(2), ridge=1.0).solve(torch.tensor([2.0, 4.0])).sum())
    3.0
    """
    _check_matrix(K)
    if not (math.isfinite(ridge) and ridge >= 0):
        raise InvalidInputError(f"ridge must be finite and not negative, got {ridge!r}")
    lower = _cholesky(K if overwrite else K.clone(), ridge)
    if lower is None and overwrite:
        raise ConvergenceError(f"K + {ridge:.3g} I has a pivot that is not positive; use a larger ridge")
    return Factor(lower, 0.0) if lower is not None else _with_jitter(K, ridge)


def _check_matrix(K: Tensor) -> None:
    if K.ndim != 2 or K.shape[0] != K.shape[1] or len(K) == 0:
        raise InvalidInputError(f"a kernel matrix is square and not empty, got shape {tuple(K.shape)}")
    if not bool(torch.isfinite(K.sum())):
        raise InvalidInputError("the kernel matrix holds NaN or infinity; check the data it was computed from")


def _with_jitter(K: Tensor, ridge: float) -> Factor:
    wide, mean = K.to(torch.float64), max(float(K.diagonal().mean()), smallest_mean())
    jitters = [10.0**power * mean for power in range(-14, -5, 2)]
    for jitter in [0.0, *jitters] if K.dtype != torch.float64 else jitters:
        lower = _cholesky(wide.clone(), ridge + jitter)
        if lower is not None:
            warn(
                f"K + {ridge:.3g} I has a pivot that is not positive: solved in float64 with a jitter of {jitter:.3g} "
                f"added to the diagonal ({jitter / mean:.0e} of its mean). A larger ridge avoids this"
            )
            return Factor(lower, jitter)
    raise ConvergenceError(
        f"K + {ridge:.3g} I is not positive definite, not even with 1e-06 of its mean diagonal added; it may not be a "
        "kernel matrix. Check it, or use a larger ridge"
    )


def smallest_mean() -> float:
    """Return the smallest mean diagonal of which a relative rounding error is still a normal number."""
    info = torch.finfo(torch.float64)
    return info.tiny / info.eps


def _cholesky(K: Tensor, ridge: float) -> Tensor | None:
    """Factorise in the memory of K; LAPACK's order of entries is that of the transpose, which is K again."""
    K.diagonal().add_(ridge)
    info = torch.zeros((), dtype=torch.int32, device=K.device)
    lower, info = torch.linalg.cholesky_ex(K.mT, out=(K.mT, info))
    return lower if int(info) == 0 and bool(torch.isfinite(lower.diagonal()).all()) else None


@dataclass(frozen=True, eq=False)
class Solution:
    """Coefficients a of f(x) = sum_i a_i k(x, x_i), for every ridge and every right-hand side.

    Parameters
    ----------
    coefficients : Tensor of shape (ridges, n, k)
    ridges : tuple of float
        The absolute ridges.
    residuals : Tensor of shape (ridges, k)
        Norms of the residuals, relative to the right-hand sides.
    leave_one_out : Tensor of shape (ridges, n, k), or None
        The prediction of each row from all others, where Cholesky was asked for it.
    steps, refinements, rank : int
        Of conjugate gradients: the steps, the residuals computed again in float64, the rank of the preconditioner.
    jitter : float
        What Cholesky had to add to the diagonal.

    Examples
    --------
    >>> solve_dense(torch.eye(2), torch.ones(2, 1), [1.0]).jitter
    0.0
    """

    coefficients: Tensor = field(repr=False)
    ridges: tuple[float, ...]
    residuals: Tensor = field(repr=False)
    leave_one_out: Tensor | None = field(default=None, repr=False)
    steps: int = 0
    refinements: int = 0
    rank: int = 0
    jitter: float = 0.0


@checked
def solve_dense(
    K: Tensor, targets: Tensor, ridges: Sequence[float], *, weights: Tensor | None = None, loo: bool = False
) -> Solution:
    """Solve kernel ridge regression with a matrix, by one Cholesky factorisation for each ridge.

    Parameters
    ----------
    K : Tensor of shape (n, n)
        The kernel matrix.
    targets : Tensor of shape (n, k)
    ridges : sequence of float
        Absolute and positive; the system is K + ridge W^(-1).
    weights : Tensor of shape (n,), optional
        W, positive; a row of weight 2 counts as two rows.
    loo : bool
        Whether to compute leave-one-out predictions as well.

    Returns
    -------
    Solution

    Examples
    --------
    >>> solve_dense(torch.eye(2), torch.ones(2, 1), [1.0]).coefficients[0].tolist()
    [[0.5], [0.5]]
    """
    check_problem(K, targets, ridges)
    solutions = [solve_one(K, targets, ridge, weights, len(K) if loo else 0, overwrite=False) for ridge in ridges]
    names = ("coefficients", "residuals", *(("leave_one_out",) if loo else ()))
    joined: dict[str, Any] = {name: torch.cat([getattr(solution, name) for solution in solutions]) for name in names}
    return Solution(ridges=tuple(ridges), jitter=max(solution.jitter for solution in solutions), **joined)


def solve_one(
    K: Tensor, targets: Tensor, ridge: float, weights: Tensor | None, last: int, overwrite: bool = True
) -> Solution:
    """Solve for one ridge, in the memory of K; the ``last`` rows, and no others, get leave-one-out predictions.

    The residual is that of the last 64 rows, as if all were like them.
    """
    check_problem(K, targets, [ridge])
    B, scale = targets.to(K.device, torch.float64), scale_of(weights, len(K), K.device)
    d = torch.ones(len(K), dtype=torch.float64, device=K.device) if scale is None else scale
    if scale is not None:
        K = (K if overwrite else K.clone()).mul_(d).mul_(d[:, None])
    right, few, first = d[:, None] * B, K[-64:].to(B, copy=True), len(K) - last
    factor = factorise(K, ridge, overwrite)
    z = factor.solve(right).to(B)
    wrong = (right[-64:] - few @ z - ridge * z[-64:]).norm(dim=0) * (len(K) / len(few)) ** 0.5
    residuals = wrong / right.norm(dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    a, w = d[:, None] * z, d[first:] ** 2
    left_out = leave_one_out(B[first:], a[first:], w * factor.inverse_diagonal(last), w, ridge) if last else None
    return Solution(
        a[None], (ridge,), residuals[None], None if left_out is None else left_out[None], jitter=factor.jitter
    )


def leave_one_out(
    targets: Tensor, solution: Tensor, inverse_diagonal: Tensor, weights: Tensor | None = None, ridge: float = 0.0
) -> Tensor:
    """Return what ridge regression without row i predicts at row i, y_i - a_i / c_i, without fitting again.

    Here a = C^(-1) y is the solution and c the diagonal of C^(-1), for C = K + ridge W^(-1). A row of weight w > 1
    counts as several rows and loses one of them: this changes ridge / w to ridge / (w - 1) in one diagonal entry, and
    the residual is ridge a_i / (w - 1 + ridge c_i / w) by the formula of Sherman and Morrison.
    """
    column = (slice(None),) + (None,) * (targets.ndim - 1)
    gone = solution / inverse_diagonal[column]
    if weights is None or not bool((weights > 1.0).any()):
        return targets - gone
    w = weights[column]
    less = ridge * solution / ((w - 1.0).clamp_min(0.0) + ridge * inverse_diagonal[column] / w)
    return targets - torch.where(w > 1.0, less, gone)


def with_mean(left_out: Tensor, centred: Tensor, mean: Tensor, taken: Tensor, total: Tensor) -> Tensor:
    """Return leave-one-out predictions of targets that were centred by their weighted mean, (k,).

    The last column of ``left_out``, (n, k + 1), belongs to targets that are all 1. Leaving out the weight ``taken``,
    (n,), of the ``total`` moves the mean by d_i and the other targets by -d_i. Ridge regression is linear in its
    targets, so that the prediction is mean + f(y)_i + d_i (1 - f(1)_i).
    """
    others = (total - taken)[:, None]
    moved = torch.where(others > 0.0, -taken[:, None] * centred / others, -mean)  # without other rows, nothing is known
    return mean + left_out[:, :-1] + moved * (1.0 - left_out[:, -1:])


def check_problem(X: Tensor, targets: Tensor, ridges: Sequence[float]) -> None:
    """Refuse rows and targets that do not fit together, and ridges that are not positive."""
    if X.ndim != 2 or targets.ndim != 2 or len(X) != len(targets):
        raise InvalidInputError(
            f"rows (n, p) and targets (n, k) are needed, got {tuple(X.shape)} and {tuple(targets.shape)}"
        )
    if not len(ridges) or not all(0.0 < r < math.inf for r in ridges):
        raise InvalidInputError(f"ridges must be positive and finite, got {list(ridges)!r}")


def scale_of(weights: Tensor | None, n: int, device: torch.device) -> Tensor | None:
    """Return the square roots of the weights, or None where all of them are 1."""
    if weights is None:
        return None
    w = weights.to(device, torch.float64)
    if w.shape != (n,) or not bool(((w > 0) & torch.isfinite(w)).all()):
        raise InvalidInputError(f"weights must be {n} positive and finite numbers; leave out rows of weight zero")
    return None if bool((w == 1.0).all()) else w.sqrt()


def leave_one_out_path(K: Tensor, targets: Tensor, weights: Tensor | None = None) -> Callable[[float], Tensor]:
    """Return the leave-one-out predictions, (n, k), as a function of the positive ridge, at a cost of O(n^2) for each.

    >>> leave_one_out_path(torch.eye(2, dtype=torch.float64), torch.ones(2, 1))(1.0)[:, 0]
    tensor([0., 0.], dtype=torch.float64)
    """
    _check_matrix(K)
    check_problem(K, targets, [1.0])
    B, scale = targets.to(K.device, torch.float64), scale_of(weights, len(K), K.device)
    d = torch.ones_like(B[:, :1]) if scale is None else scale[:, None]
    values, vectors = torch.linalg.eigh(d * K.to(torch.float64) * d.T)
    # negative values come from rounding
    values, rotated, squares, w = values.clamp_min(0.0), vectors.T @ (d * B), vectors**2, d[:, 0] ** 2

    def at(ridge: float) -> Tensor:
        solution = d * (vectors @ (rotated / (values + ridge)[:, None]))
        return leave_one_out(B, solution, w * (squares @ (1.0 / (values + ridge))), w, ridge)

    return at
