"""Solving with gain X X' + V core V' + a positive diagonal: Woodbury on the smaller side, or conjugate gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._conjugate import Iterate, conjugate_gradients, thin
from ..errors import ConvergenceError, InvalidInputError


def structured_product(X: Tensor, gain: float, V: Tensor, core: Tensor, lift: Tensor, v: Tensor) -> Tensor:
    """(gain X X' + V core V' + lift) v, the diagonal lift of shape (n, 1) or (1, 1): two passes over X."""
    out = gain * thin(X, thin(X.T, v)) + thin(V, core @ thin(V.T, v))
    return out.addcmul_(v, lift[:, 0] if v.ndim == 1 else lift)


@dataclass(frozen=True, eq=False)
class Factorisation:
    """K = A + V core V', A = gain X X' + lift: A by Cholesky, the low rank by an r x r system."""

    X: Tensor
    gain: float
    V: Tensor
    core: Tensor
    lift: Tensor
    """A diagonal, (n, 1), or (1, 1) for a multiple of the identity."""
    cholesky: Tensor
    """Of A itself if n <= p, else of I + gain X' lift^(-1) X."""
    swept: Tensor
    """A^(-1) V"""
    small: Tensor
    """core (I + V' A^(-1) V core)^(-1)"""
    logdet: float
    """log det K"""

    def solve(self, v: Tensor, refinements: int = 2) -> Tensor:
        """K^(-1) v, refined twice: Woodbury alone loses the digits that ||K|| / lift costs."""
        column = v[:, None] if v.ndim == 1 else v
        z = self._once(column)
        for _ in range(refinements):
            z = z + self._once(column - structured_product(self.X, self.gain, self.V, self.core, self.lift, z))
        return z[:, 0] if v.ndim == 1 else z

    def _once(self, v: Tensor) -> Tensor:
        z = _gram_solve(self.X, self.gain, self.lift, self.cholesky, v)
        return z - thin(self.swept, self.small @ thin(self.V.T, z))


def factorise(X: Tensor, gain: float, V: Tensor, core: Tensor, lift: Tensor) -> Factorisation:
    """Factorise gain X X' + V core V' + lift, the diagonal lift > 0 of shape (n, 1) or (1, 1)."""
    n, p = X.shape
    diagonal = lift[:, 0].expand(n)
    if n <= p:
        gram = gain * (X @ X.T)
        gram.diagonal().add_(diagonal)
    else:
        gram = gain * (X.T @ (X / lift))
        gram.diagonal().add_(1.0)
    cholesky = torch.linalg.cholesky(gram)
    logdet = 2.0 * float(cholesky.diagonal().log().sum()) + (float(diagonal.log().sum()) if n > p else 0.0)
    swept = _gram_solve(X, gain, lift, cholesky, V)
    small = torch.eye(len(core)).to(X) + V.T @ swept @ core
    sign, extra = torch.linalg.slogdet(small)
    if float(sign) <= 0:
        raise InvalidInputError(
            "the kernel plus ridge is not positive definite: the low-rank part is negative somewhere, as statistics "
            "estimated from few points can make it; use a larger ridge"
        )
    inverse = core @ torch.linalg.inv(small)
    return Factorisation(X, gain, V, core, lift, cholesky, swept, inverse, logdet + float(extra))


def _gram_solve(X: Tensor, gain: float, lift: Tensor, cholesky: Tensor, v: Tensor) -> Tensor:
    """(gain X X' + lift)^(-1) v."""
    if len(X) <= X.shape[1]:
        return torch.cholesky_solve(v, cholesky)
    scaled = v / lift
    return scaled - gain * thin(X, torch.cholesky_solve(thin(X.T, scaled), cholesky)) / lift


def iterated(product: Callable[[Tensor], Tensor], v: Tensor, tolerance: float = 1e-11, most: int = 5000) -> Tensor:
    """K^(-1) v for positive definite K by products alone, where it is too large to factorise."""
    column = v[:, None] if v.ndim == 1 else v
    none, scales = torch.zeros(column.shape[1]).to(v), column.norm(dim=0).clamp_min(torch.finfo(v.dtype).tiny)
    aims = max(tolerance, 20.0 * torch.finfo(v.dtype).eps) * scales
    state = Iterate.start(column, none)
    for _ in conjugate_gradients(product, none, aims, state, scales, most=most):
        pass
    worst = float(((column - product(state.z)).norm(dim=0) / aims).max())
    if worst > 1e3:  # products round: what is left of v is more than what the iteration believes
        raise ConvergenceError(
            f"conjugate gradients end at {worst:.1e} times the residual they aim at; use a larger ridge"
        )
    return state.z[:, 0] if v.ndim == 1 else state.z
