"""The relative spectral distance of two kernels, as they are or with the best scalar between them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse.linalg import ArpackError, LinearOperator, eigsh
from torch import Tensor

from .._arguments import isolation
from .._arrays import Array, as_numbers, bad_row
from .._fixed_point import newton
from ..errors import ConvergenceError, InvalidInputError
from .operator import EquivalentKernel

_SMALL = 32  # rows up to which all eigenvalues are computed sooner than the outermost ones
_DENSE = 1500  # rows up to which all eigenvalues are computed where Lanczos fails; more take minutes


def relative_spectral_error(exact: Any, approximation: Any) -> float:
    """Return ||exact - approximation|| / ||exact|| in the spectral norm.

    Parameters
    ----------
    exact, approximation : arrays, tensors, equivalents or SciPy operators of shape (n, n)
        Symmetric kernels. Only products with vectors are needed, from a fixed start vector.

    Returns
    -------
    float

    Examples
    --------
    >>> round(relative_spectral_error(np.diag([2.0, 1.0]), np.eye(2)), 12)
    0.5
    """
    left, right, scale = _compared(exact, approximation)
    return spectral_norm(left - right) / scale


def _compared(exact: Any, approximation: Any) -> tuple[LinearOperator, LinearOperator, float]:
    """Return two kernels of one shape as operators, with the norm of the first."""
    left, right = symmetric_operator(exact), symmetric_operator(approximation)
    if left.shape != right.shape:
        raise InvalidInputError(f"the kernels have different shapes: {left.shape} and {right.shape}")
    scale = spectral_norm(left)
    if scale == 0.0:
        raise InvalidInputError("the exact kernel is zero: a relative error is not defined")
    return left, right, scale


def spectral_norm(kernel: Any) -> float:
    """Return the largest absolute eigenvalue of a symmetric array, tensor or operator."""
    values, _ = _outermost(symmetric_operator(kernel))
    return float(abs(values[0]))


class BestScalar(NamedTuple):
    """The scalar with which a kernel comes nearest to another, and the relative distance that is left."""

    scalar: float
    distance: float


@isolation()
def best_scalar(exact: Any, approximation: Any) -> BestScalar:
    """Minimise over s the distance ||exact - s approximation|| / ||exact||, both positive semi-definite.

    The largest and the smallest eigenvalue of the difference fall with s; the spectral norm is least where they are
    opposite. Their sum is a decreasing function whose slope the two eigenvectors give.
    """
    whole, part, size = _compared(exact, approximation)
    other = spectral_norm(part)
    if min(size, other) < 1e-300:  # nothing, or no digits
        return BestScalar(0.0, 1.0)
    left, right = (1.0 / size) * whole, (1.0 / other) * part
    if left.shape[0] <= _SMALL:
        left, right = (operator @ np.eye(operator.shape[0]) for operator in (left, right))
    least = math.inf

    def excess(scalar: Tensor, _: Tensor | None) -> tuple[Tensor, Tensor]:
        nonlocal least
        values, vectors = _outermost(left - float(scalar) * right, both=True)
        least = min(least, float(np.abs(values).max()))
        return scalar.new_tensor([-values.sum()]), scalar.new_tensor([(vectors * (right @ vectors)).sum()])

    start = torch.ones(1, dtype=torch.float64)
    root = newton(excess, start, 0.0 * start, math.inf * start, flattest=1e-300, steps=40, still=1e-9)
    return BestScalar(float(root.value) * (size / other), least)


def _outermost(operator: LinearOperator | Array, both: bool = False) -> tuple[Array, Array]:
    """Find the eigenvalue of the largest size, or the smallest and the largest, with eigenvectors in columns."""
    n = operator.shape[0]
    start = np.random.default_rng(0).standard_normal(n)
    if not np.any(operator @ start):
        return np.zeros(1 + both), np.eye(n, 1 + both)
    if n > _SMALL:
        which: dict[str, Any] = {"k": 2, "which": "BE"} if both else {"k": 1, "which": "LM"}
        try:
            # the error of an eigenvalue is quadratic in ARPACK's residual tolerance
            return eigsh(operator, v0=start, tol=1e-5, maxiter=200, **which)
        except ArpackError as error:  # what is made of rounding errors has no top that Lanczos could find
            if n > _DENSE:
                raise ConvergenceError(f"Lanczos did not find the spectral norm: {error}") from None
    values, vectors = np.linalg.eigh(operator @ np.eye(n))
    kept = [0, -1] if both else [int(np.abs(values).argmax())]
    return values[kept], vectors[:, kept]


def symmetric_operator(kernel: Any) -> LinearOperator:
    """Make a SciPy operator from an array, a tensor, an equivalent or an operator."""
    if isinstance(kernel, LinearOperator):
        operator = kernel
    elif isinstance(kernel, EquivalentKernel):
        operator = kernel.linear_operator()
    elif isinstance(kernel, Tensor | np.ndarray):
        operator = as_numbers(kernel, "a kernel matrix").detach()
    else:
        raise InvalidInputError(f"expected an array, a tensor or an equivalent kernel, got {type(kernel).__name__}")
    if len(operator.shape) != 2 or operator.shape[0] != operator.shape[1]:
        raise InvalidInputError(f"a kernel matrix is square, got shape {tuple(operator.shape)}")
    return _dense(operator) if isinstance(operator, Tensor) else operator


def _dense(matrix: Tensor) -> LinearOperator:
    if (row := bad_row(matrix)) is not None:
        raise InvalidInputError(f"the kernel has entries that are not finite, first in row {row}")
    probe = torch.from_numpy(np.random.default_rng(1).standard_normal((len(matrix), 1))).to(matrix)
    gap = (matrix @ probe - matrix.T @ probe).norm()
    # a difference of two kernels that agree is made of rounding errors, which need not be symmetric to their last digit
    if bool(gap > torch.finfo(matrix.dtype).eps ** 0.5 * (matrix @ probe).norm() + 1e-300):
        raise InvalidInputError("the kernel is not symmetric; the spectral error is defined here for symmetric kernels")

    def product(v: np.ndarray) -> np.ndarray:
        return (matrix @ torch.from_numpy(np.ascontiguousarray(v)).to(matrix)).double().cpu().numpy()

    return LinearOperator(tuple(matrix.shape), matvec=product, matmat=product, dtype=np.float64)
