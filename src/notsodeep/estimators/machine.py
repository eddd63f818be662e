"""Weighted ridge regression with the exact kernel of a network, as pure functions of tensors.

They minimise sum_i w_i |y_i - f(x_i)|^2 + a |f|^2 with weights w_i > 0; the absolute ridge a is the ridge times the
weighted mean of the kernel's diagonal. With an intercept the targets are first centred by their weighted mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import ConvergenceError, InvalidInputError, log
from ..solve import CG, NetworkKernel, solve_operator
from ..solve._limits import LIMITS as SOLVE_LIMITS
from ..solve.dense import scale_of, smallest_mean, solve_one, with_mean
from ..solve.operators import KernelOperator, available_bytes

Solver = Literal["auto", "cholesky"] | CG


@dataclass(frozen=True, eq=False)
class Problem:
    """What a machine is fitted to: rows, (n, p), in float64, targets without their mean, and positive weights, (n,)."""

    X: Tensor
    targets: Tensor  # (n, k)
    weights: Tensor
    mean: Tensor  # of the targets, by weight, (k,); zeros without an intercept
    intercept: bool

    @staticmethod
    def of(X: Tensor, targets: Tensor, weights: Tensor, intercept: bool) -> Problem:
        """Centre the targets, (n, k), if there is an intercept."""
        largest = float(torch.stack(torch.aminmax(X)).abs().max())
        if largest > 0.0 and largest**2 == 0.0:
            raise InvalidInputError("the squares of these rows vanish in double precision; scale the inputs up")
        mean = weights @ targets / weights.sum() if intercept else torch.zeros_like(targets[0])
        centred = targets - mean
        if not bool(torch.isfinite(centred).all()):
            raise InvalidInputError("sums of these targets are beyond the range of float64; scale them down")
        return Problem(X, centred, weights, mean, intercept)

    @property
    def right(self) -> Tensor:
        """The right-hand sides; exact leave-one-out with an intercept needs that of targets 1 as well."""
        ones = torch.ones_like(self.targets[:, : int(self.intercept)])
        return torch.cat([self.targets, ones], dim=1)

    def left_out(self, predictions: Tensor) -> Tensor:
        """Return leave-one-out predictions of the last rows, (m, k), from those for the right-hand sides."""
        if not self.intercept:
            return predictions
        targets, weights = (values[-len(predictions) :] for values in (self.targets, self.weights))
        return with_mean(predictions, targets, self.mean, weights.clamp_max(1.0), self.weights.sum())

    def seen(self, features: Callable[[Tensor], Tensor] | None) -> Problem:
        """Return the problem with its rows as a kernel behind learned features sees them."""
        return self if features is None else replace(self, X=features(self.X))

    def at(self, index: Any) -> Problem:
        """Return the problem of these rows alone, with a mean of their own, in this order."""
        return Problem.of(self.X[index], self.targets[index] + self.mean, self.weights[index], self.intercept)


@dataclass(frozen=True, eq=False)
class FittedMachine:
    """f(x) = mean + sum_i a_i k(x, x_i), and how it was found."""

    kernel: NetworkKernel
    X: Tensor  # the training rows, (n, p)
    coefficients: Tensor  # the a_i, (n, k)
    mean: Tensor  # the intercept, (k,)
    ridge: float  # relative to the mean diagonal
    absolute_ridge: float
    record: dict[str, Any]  # solver, steps, residuals
    leave_one_out: Tensor | None = None  # predictions of the last rows, (m, k); None after conjugate gradients

    @torch.no_grad()
    def predict(self, X: Tensor, client: Any = None) -> Tensor:
        """Return f at the rows of X, (m, k), in double precision; a client shares a long sum among its workers."""
        if client is None or len(X) * len(self.X) < SOLVE_LIMITS.entries:
            outputs = self.mean + self.kernel.expansion(X, self.X, self.coefficients)
        else:
            from ..distributed.operator import expand

            outputs = self.mean + expand(client, self.kernel, self.X, self.coefficients, X)
        if not bool(torch.isfinite(outputs).all()):
            raise ConvergenceError("predictions are beyond the range of float64; scale the targets down")
        return outputs


def fit_machine(
    kernel: NetworkKernel,
    problem: Problem,
    ridge: float,
    solver: Solver = "auto",
    client: Any = None,
    progress: bool | None = None,
    last: int = 0,
    smaller: Sequence[float] = (),
    loss: Callable[[Tensor], Tensor] | None = None,
) -> FittedMachine:
    """Fit a machine, with leave-one-out predictions of the ``last`` rows where a factorisation solves it.

    A factorisation then tries ``smaller`` ridges one after the other, as long as the ``loss`` of these predictions
    falls. With a Dask ``client``, its workers compute the kernel and its products.
    """
    options, reason = choose_solver(solver, problem.X)
    log.info("%d rows are solved by %s: %s", len(problem.X), "Cholesky" if options is None else "CG", reason)
    if options is not None:
        return _fit_iterative(kernel, problem, ridge, options, client, progress)
    held = smaller and 16 * len(problem.X) ** 2 < 0.5 * available_bytes(problem.X.device)
    kept = kernel_matrix(kernel, problem.X, client) if held else None
    best = _fit_direct(kernel, problem, ridge, client, last, kept)
    for other in smaller if loss else ():
        fitted = _fit_direct(kernel, problem, other, client, last, kept)
        errors = [float(loss(one.leave_one_out).sum()) for one in (fitted, best)]  # type: ignore[misc, arg-type]
        if errors[0] >= errors[1]:
            break
        best = fitted
    best.record["reason"] = reason
    return best


def choose_solver(solver: Solver, X: Tensor) -> tuple[CG | None, str]:
    """Return the options of conjugate gradients where they solve for the rows of X, else None; and the reason."""
    if isinstance(solver, CG) or solver == "cholesky":
        return (solver if isinstance(solver, CG) else None), "as given"
    if solver != "auto":
        raise InvalidInputError(f"solver must be 'auto', 'cholesky' or nsd.solve.CG(...), got {solver!r}")
    n = len(X)
    if n <= SOLVE_LIMITS.direct_rows:
        return None, f"up to {SOLVE_LIMITS.direct_rows} rows"
    if 8 * n**2 > 0.7 * available_bytes(X.device):
        return CG(), "the matrix does not fit into the free memory"
    if X.device.type != "cpu":
        return None, "the matrix fits into the memory of the device"
    direct, iterative = predicted_seconds(n)
    return (CG() if iterative < direct else None), f"{direct:.2g} s predicted, {iterative:.2g} s by conjugate gradients"


def predicted_seconds(n: int) -> tuple[float, float]:
    """Return the seconds that Cholesky and conjugate gradients will take for n rows, from two measured products.

    Cholesky does n^3 / 3 multiplications as fast as a product of matrices does. The iteration makes a preconditioner
    of rank r with 3 n r^2 of them, and reads the matrix in about 50 steps (docs, Kernel machines).
    """
    A, rank, times = torch.ones(2048, 2048, dtype=torch.float64), min(SOLVE_LIMITS.highest_rank, n // 6), []
    for other in (A, A, A[:, :16], A[:, :16]):  # the first call of each kind is not measured: it loads libraries
        start = time.perf_counter()
        A @ other
        times.append(time.perf_counter() - start)
    dense, entry = times[1] / 2048**3, times[3] / 2048**2
    return n**3 / 3 * dense, 3.0 * n * rank**2 * dense + 50 * n**2 * entry


def _fit_direct(
    kernel: NetworkKernel, problem: Problem, ridge: float, client: Any, last: int, kept: Tensor | None
) -> FittedMachine:
    K = kernel_matrix(kernel, problem.X, client) if kept is None else kept.clone()
    absolute = ridge * mean_diagonal(problem.weights * K.diagonal(), problem.weights)
    try:
        solution = solve_one(K, problem.right, absolute, problem.weights, last)
    except ConvergenceError:  # K is spoilt; with a jitter it is solved in memory of its own
        K = kernel_matrix(kernel, problem.X, client)
        solution = solve_one(K, problem.right, absolute, problem.weights, last, overwrite=False)
    record = {"solver": "cholesky", "residual": float(solution.residuals.max()), "jitter": solution.jitter}
    left_out = None if solution.leave_one_out is None else problem.left_out(solution.leave_one_out[0])
    return _fitted(kernel, problem, solution.coefficients[0], ridge, absolute, record, left_out)


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


def _fit_iterative(
    kernel: NetworkKernel, problem: Problem, ridge: float, options: CG, client: Any, progress: bool | None
) -> FittedMachine:
    X, weights = problem.X, problem.weights
    scale = scale_of(weights, len(X), X.device)
    operator: KernelOperator
    if client is None:
        operator = kernel.operator(X, scale, dtype=options.dtype, folder=options.folder, progress=progress)
    else:
        from ..distributed import ClusterKernel

        operator = ClusterKernel(client, kernel, X, scale=scale, dtype=options.dtype)
    absolute = ridge * mean_diagonal(operator.diagonal(), weights)
    solution = solve_operator(operator, problem.targets, [absolute], options, progress=progress)
    record: dict[str, Any] = {"solver": "cg", "residual": float(solution.residuals.max())}
    record |= {name: getattr(solution, name) for name in ("steps", "refinements", "rank")}
    return _fitted(kernel, problem, solution.coefficients[0], ridge, absolute, record)


def mean_diagonal(weighted: Tensor, weights: Tensor) -> float:
    """Return what a ridge is relative to; a small part of it and its inverse must be numbers too."""
    mean = float(weighted.sum() / weights.sum())
    if mean < smallest_mean():
        raise InvalidInputError(
            "the kernel of these rows is zero, or too near to it to be divided by: scale the inputs up, or give "
            "sigma_c2 > 0"
        )
    return mean
