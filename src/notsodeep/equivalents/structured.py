"""Gram + low rank + diagonal in tensors: products, Woodbury on the smaller side, or conjugate gradients."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._conjugate import Iterate, conjugate_gradients, thin
from ..errors import ConvergenceError, InvalidInputError


@dataclass(frozen=True, eq=False)
class Structured:
    """K = A + V core V', A = gain X X' + lift."""

    X: Tensor
    gain: float
    V: Tensor
    core: Tensor
    lift: Tensor
    """A diagonal, (n, 1), or (1, 1) for a multiple of the identity."""

    def product(self, v: Tensor) -> Tensor:
        """K v: two passes over X."""
        out = self.gain * thin(self.X, thin(self.X.T, v)) + thin(self.V, self.core @ thin(self.V.T, v))
        return out.addcmul_(v, self.lift[:, 0] if v.ndim == 1 else self.lift)

    def factorise(self) -> Factorisation:
        """A by Cholesky, the low rank by an r x r system."""
        self._check_lift()
        X, (n, p), diagonal = self.X, self.X.shape, self.lift[:, 0].expand(len(self.X))
        gram = self.gain * (X @ X.T if n <= p else X.T @ (X / self.lift))
        gram.diagonal().add_(diagonal if n <= p else 1.0)
        cholesky = torch.linalg.cholesky(gram)
        logdet = 2.0 * float(cholesky.diagonal().log().sum()) + (float(diagonal.log().sum()) if n > p else 0.0)
        swept = self.gram_solve(cholesky, self.V)
        small = torch.eye(len(self.core)).to(X) + self.core @ (self.V.T @ swept)
        sign, extra = torch.linalg.slogdet(small)
        if float(sign) <= 0:
            raise InvalidInputError(
                "the kernel plus ridge is not positive definite: the low-rank part is negative somewhere, as "
                "statistics estimated from few points can make it; use a larger ridge"
            )
        return Factorisation(self, cholesky, swept, torch.linalg.solve(small, self.core), logdet + float(extra))

    def gram_solve(self, cholesky: Tensor, v: Tensor) -> Tensor:
        """A^(-1) v, with the Cholesky factor of A itself if n <= p, else of I + gain X' lift^(-1) X."""
        if len(self.X) <= self.X.shape[1]:
            return torch.cholesky_solve(v, cholesky)
        scaled = v / self.lift
        return scaled - self.gain * thin(self.X, torch.cholesky_solve(thin(self.X.T, scaled), cholesky)) / self.lift

    def iterate(self, v: Tensor, tolerance: float = 1e-11, most: int = 5000) -> Tensor:
        """K^(-1) v for positive definite K by products alone, where it is too large to factorise."""
        self._check_lift()
        column = v[:, None] if v.ndim == 1 else v
        none, scales = torch.zeros(column.shape[1]).to(v), column.norm(dim=0).clamp_min(torch.finfo(v.dtype).tiny)
        aims = max(tolerance, 20.0 * torch.finfo(v.dtype).eps) * scales
        state = Iterate.start(column, none)
        for _ in conjugate_gradients(self.product, none, aims, state, scales, most=most):
            pass
        worst = float(((column - self.product(state.z)).norm(dim=0) / aims).max())
        if worst > 1e3:  # products round: what is left of v is more than what the iteration believes
            raise ConvergenceError(
                f"conjugate gradients end at {worst:.1e} times the residual they aim at; use a larger ridge"
            )
        return state.z[:, 0] if v.ndim == 1 else state.z

    def _check_lift(self) -> None:
        least = float(self.lift.min())
        if least <= 0:
            raise InvalidInputError(
                f"the kernel plus ridge is singular: its diagonal part is {least:.3g}; use a larger ridge"
            )


@dataclass(frozen=True, eq=False)
class Factorisation:
    """What solves with a structured matrix, by Woodbury's formula."""

    matrix: Structured
    cholesky: Tensor
    swept: Tensor
    """A^(-1) V"""
    small: Tensor
    """(I + core V' A^(-1) V)^(-1) core"""
    logdet: float
    """log det K"""

    def solve(self, v: Tensor, refinements: int = 2) -> Tensor:
        """K^(-1) v, refined twice: Woodbury alone loses the digits that ||K|| / lift costs."""
        column = v[:, None] if v.ndim == 1 else v
        z = self._once(column)
        for _ in range(refinements):
            z = z + self._once(column - self.matrix.product(z))
        return z[:, 0] if v.ndim == 1 else z

    def _once(self, v: Tensor) -> Tensor:
        z = self.matrix.gram_solve(self.cholesky, v)
        return z - thin(self.swept, self.small @ thin(self.matrix.V.T, z))
