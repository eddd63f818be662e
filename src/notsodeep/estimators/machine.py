"""Weighted ridge regression with the exact kernel of a network, as pure functions of tensors.

They minimise sum_i w_i |y_i - f(x_i)|^2 + a |f|^2 with weights w_i > 0; the absolute ridge a is the ridge times the
weighted mean of the kernel's diagonal. With an intercept the targets are first centred by their weighted mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..solve import CG, KernelTiles, NetworkKernel, solve_dense, solve_operator
from ..solve._limits import LIMITS as SOLVE_LIMITS
from ..solve.dense import ridge_path, scale_of, smallest_mean, with_mean
from ..solve.iterative import Solver, cg_options
from ..solve.operators import KernelOperator

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))
"""The ridges that ``ridge="loo"`` tries, relative to the mean diagonal: four to a decade."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a machine is fitted to."""

    X: Tensor
    """The rows in float64, (n, p); they are kept, not copied."""
    targets: Tensor
    """Without their mean, (n, k)."""
    weights: Tensor
    """Positive, (n,)."""
    mean: Tensor
    """The weighted mean of the targets, (k,); zeros without an intercept."""
    intercept: bool

    @staticmethod
    def of(X: Tensor, targets: Tensor, weights: Tensor, intercept: bool) -> Problem:
        """Centre the targets, (n, k), if there is an intercept."""
        mean = weights @ targets / weights.sum() if intercept else torch.zeros_like(targets[0])
        return Problem(X, targets - mean, weights, mean, intercept)

    @property
    def right(self) -> Tensor:
        """The right-hand sides; exact leave-one-out with an intercept needs that of targets 1 as well."""
        ones = torch.ones_like(self.targets[:, : int(self.intercept)])
        return torch.cat([self.targets, ones], dim=1)

    def left_out(self, found: Tensor) -> Tensor:
        """Return leave-one-out predictions, (n, k), from those for the right-hand sides."""
        return with_mean(found, self.targets, self.mean, self.weights) if self.intercept else found


@dataclass(frozen=True, eq=False)
class FittedMachine:
    """f(x) = mean + sum_i a_i k(x, x_i), and how it was found."""

    kernel: NetworkKernel
    X: Tensor
    """The training rows, (n, p)."""
    coefficients: Tensor
    """The a_i, (n, k)."""
    mean: Tensor
    """The intercept, (k,)."""
    ridge: float
    """Relative to the mean diagonal."""
    absolute_ridge: float
    record: dict[str, Any]
    """Solver, steps, residuals."""
    leave_one_out: Tensor | None = None
    """The prediction of each row from all others, (n, k); None after conjugate gradients."""

    @torch.no_grad()
    def predict(self, X: Tensor, client: Any = None) -> Tensor:
        """Return f at the rows of X, (m, k), in double precision; a client shares a long sum among its workers."""
        if client is None or len(X) * len(self.X) < SOLVE_LIMITS.entries:
            return self.mean + self.kernel.expansion(X, self.X, self.coefficients)
        from ..distributed.operator import expand

        return self.mean + expand(client, self.kernel, self.X, self.coefficients, X)


def fit_machine(
    kernel: NetworkKernel,
    problem: Problem,
    ridge: float | None,
    solver: Solver = "auto",
    client: Any = None,
    progress: bool | None = None,
) -> FittedMachine:
    """Fit a machine; ``ridge=None`` chooses the ridge by leave-one-out errors.

    With a Dask ``client``, its workers compute the kernel and its products.
    """
    options = cg_options(solver, len(problem.X))
    if options is not None:
        return _fit_iterative(kernel, problem, ridge, options, client, progress)
    K = kernel_matrix(kernel, problem.X, client)
    mean = _mean_diagonal(problem.weights * K.diagonal(), problem.weights)
    if ridge is None:
        return _fit_path(kernel, problem, K, mean)
    found = solve_dense(K, problem.right, [ridge * mean], weights=problem.weights, loo=True)
    assert found.leave_one_out is not None
    record = {"solver": "cholesky", "residual": float(found.residuals.max()), "jitter": found.jitter}
    left_out = problem.left_out(found.leave_one_out[0])
    return _fitted(kernel, problem, found.coefficients[0], ridge, ridge * mean, record, left_out)


def _fitted(kernel: NetworkKernel, problem: Problem, coefficients: Tensor, *rest: Any) -> FittedMachine:
    k = len(problem.mean)
    return FittedMachine(kernel, problem.X, coefficients[:, :k].contiguous(), problem.mean, *rest)


def kernel_matrix(kernel: NetworkKernel, X: Tensor, client: Any = None) -> Tensor:
    """Return the kernel matrix of the rows of X; with a client its workers compute the parts."""
    if client is None:
        return kernel(X)
    from ..distributed import ClusterKernel

    with ClusterKernel(client, kernel, X) as operator:
        return operator.matrix()


def _fit_path(kernel: NetworkKernel, problem: Problem, K: Tensor, mean: float) -> FittedMachine:
    """Choose the ridge of the grid with the least leave-one-out squared error."""
    path = ridge_path(K, problem.right, problem.weights)
    wrong = [problem.left_out(path.leave_one_out(ridge * mean)) - problem.targets - problem.mean for ridge in GRID]
    ridge = GRID[int(np.argmin([float(path.weights @ each.square().sum(1)) for each in wrong]))]
    a = ridge * mean
    left_out = problem.left_out(path.leave_one_out(a))
    return _fitted(kernel, problem, path.solution(a), ridge, a, {"solver": "eigh"}, left_out)


def _fit_iterative(
    kernel: NetworkKernel, problem: Problem, ridge: float | None, options: CG, client: Any, progress: bool | None
) -> FittedMachine:
    X, weights = problem.X, problem.weights
    if ridge is None:
        raise InvalidInputError(
            f"ridge='loo' takes a factorisation, and {len(X)} rows are solved by conjugate gradients; choose the ridge "
            f"on a sample of at most {SOLVE_LIMITS.direct_rows} rows, give a number, or solver='cholesky'"
        )
    scale = scale_of(weights, len(X), X.device)
    operator: KernelOperator
    if client is None:
        operator = KernelTiles(kernel, X, scale=scale, dtype=options.dtype, folder=options.folder, progress=progress)
    else:
        from ..distributed import ClusterKernel

        operator = ClusterKernel(client, kernel, X, scale=scale, dtype=options.dtype)
    absolute = ridge * _mean_diagonal(operator.diagonal(), weights)
    found = solve_operator(operator, problem.targets, [absolute], options, progress=progress)
    record: dict[str, Any] = {"solver": "cg", "residual": float(found.residuals.max())}
    record |= {name: getattr(found, name) for name in ("steps", "refinements", "rank")}
    return _fitted(kernel, problem, found.coefficients[0], ridge, absolute, record)


def _mean_diagonal(weighted: Tensor, weights: Tensor) -> float:
    """Return what a ridge is relative to; a small part of it and its inverse must be numbers too."""
    mean = float(weighted.sum() / weights.sum())
    if mean < smallest_mean():
        raise InvalidInputError(
            "the kernel of these rows is zero, or too near to it to be divided by: scale the inputs up, or give "
            "sigma_c2 > 0"
        )
    return mean
