"""Gram matrix + low rank + multiple of the identity, in tensors: products, and Woodbury on the smaller side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .._conjugate import thin
from ..errors import InvalidInputError


@dataclass(frozen=True, eq=False)
class Structured:
    """The matrix K = A + V core V' with A = gain X X' + shift I."""

    X: Tensor
    gain: float
    V: Tensor
    core: Tensor
    shift: float

    def product(self, v: Tensor) -> Tensor:
        """Return K v, by two passes over X."""
        out = self.gain * thin(self.X, thin(self.X.T, v)) + thin(self.V, self.core @ thin(self.V.T, v))
        return out.add_(v, alpha=self.shift)

    @cached_property
    def factors(self) -> tuple[Tensor, Tensor, Tensor, float]:
        """The Cholesky factor of A, A^(-1) V, (I + core V' A^(-1) V)^(-1) core, and log det K."""
        if self.shift <= 0:
            raise InvalidInputError(
                f"the kernel plus ridge is singular: its diagonal part is {self.shift:.3g}; use a larger ridge"
            )
        X, (n, p) = self.X, self.X.shape
        gram = self.gain * (X @ X.T if n <= p else X.T @ X / self.shift)
        gram.diagonal().add_(self.shift if n <= p else 1.0)
        cholesky = torch.linalg.cholesky(gram)
        logdet = 2.0 * float(cholesky.diagonal().log().sum()) + (n * math.log(self.shift) if n > p else 0.0)
        swept = self._gram_solve(cholesky, self.V)
        small = torch.eye(len(self.core)).to(X) + self.core @ (self.V.T @ swept)
        sign, extra = torch.linalg.slogdet(small)
        if float(sign) <= 0:
            raise InvalidInputError(
                "the kernel plus ridge is not positive definite: the low-rank part is negative somewhere, as "
                "statistics estimated from few points can make it; use a larger ridge"
            )
        return cholesky, swept, torch.linalg.solve(small, self.core), logdet + float(extra)

    def solve(self, v: Tensor) -> Tensor:
        """Return K^(-1) v, refined twice: Woodbury alone loses the digits that ||K|| / shift costs."""
        column = v[:, None] if v.ndim == 1 else v
        z = self._woodbury(column)
        for _ in range(2):
            z = z + self._woodbury(column - self.product(z))
        return z[:, 0] if v.ndim == 1 else z

    def _woodbury(self, v: Tensor) -> Tensor:
        cholesky, swept, small, _ = self.factors
        z = self._gram_solve(cholesky, v)
        return z - thin(swept, small @ thin(self.V.T, z))

    def _gram_solve(self, cholesky: Tensor, v: Tensor) -> Tensor:
        """Return A^(-1) v, with the Cholesky factor of A itself if n <= p, else of I + gain X'X/shift."""
        if len(self.X) <= self.X.shape[1]:
            return torch.cholesky_solve(v, cholesky)
        scaled = v / self.shift
        return scaled - self.gain * thin(self.X, torch.cholesky_solve(thin(self.X.T, scaled), cholesky)) / self.shift
