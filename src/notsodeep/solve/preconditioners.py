"""Approximate inverses of K + ridge I that serve every ridge (theory, section 16).

Each is built once; ``solve(R, ridges)`` takes the columns of R with a ridge of its own for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from .._arguments import checked, whole
from ..equivalents import EquivalentKernel
from ..equivalents.structured import Factorisation, Structured
from ..errors import InvalidInputError
from .operator import KernelOperator
from .pivoted import LowRankFactor, nystrom, pivoted_cholesky

PreconditionerName = Literal["none", "diagonal", "nystrom", "rpcholesky", "equivalent", "equivalent+rpcholesky"]
NAMES: tuple[PreconditionerName, ...] = get_args(PreconditionerName)


class Preconditioner(ABC):
    """P^(-1) r for P ~ K + ridge I."""

    name: PreconditionerName
    rank: int = 0

    @abstractmethod
    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        """Column j of the result is (P with ridges[j])^(-1) R[:, j]."""


class Identity(Preconditioner):
    """None at all."""

    name: PreconditionerName = "none"

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        return R


class Jacobi(Preconditioner):
    """The diagonal of K: worth something where the rows' norms differ."""

    name: PreconditionerName = "diagonal"

    def __init__(self, diagonal: Tensor) -> None:
        self.diagonal = diagonal[:, None]

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        return R / (self.diagonal + ridges)


class Deflation(Preconditioner):
    """P = F F' + (ridge + half the mean residual diagonal) I: one eigendecomposition of F'F for every ridge.

    Woodbury: P^(-1) = (I - F (F'F + lift I)^(-1) F') / lift; beside F nothing of its size is held.
    """

    def __init__(self, name: PreconditionerName, factor: LowRankFactor) -> None:
        self.name, self.rank, self.factor = name, factor.rank, factor
        self.values, self.vectors = torch.linalg.eigh(factor.gram())
        self.shift = 0.5 * float(factor.residual.mean())

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        lift = ridges + self.shift
        inner = (self.vectors.T @ self.factor.inner(R)) / (self.values.clamp_min(0.0)[:, None] + lift)
        return (R - self.factor.outer(self.vectors @ inner)) / lift


class Woodbury(Preconditioner):
    """P = gain X X' + V core V' + a diagonal: factorised once per ridge, and not refined, as it is near K at best."""

    def __init__(self, name: PreconditionerName, matrix: Structured, rank: int = 0) -> None:
        self.name, self.rank, self.matrix = name, rank, matrix
        self._factors: dict[float, Factorisation] = {}

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        out = torch.empty_like(R)
        for ridge in ridges.unique().tolist():
            mine = ridges == ridge
            out[:, mine] = self._factor(ridge).solve(R[:, mine], refinements=0)
        return out

    def _factor(self, ridge: float) -> Factorisation:
        if ridge not in self._factors:
            self._factors[ridge] = replace(self.matrix, lift=self.matrix.lift + ridge).factorise()
        return self._factors[ridge]


def _deflated(operator: EquivalentKernel, tiles: KernelOperator, rank: int, seed: int) -> Structured:
    """The Gram matrix of the equivalent, and in place of its low rank randomly pivoted Cholesky of what is left of K.

    What the Gram matrix leaves of K is positive semidefinite, as pivots want it: K is a sum over powers of cosines, the
    Gram matrix (of rows scaled by their own norms) the first of them. The equivalent's low rank would not leave it so.
    """
    gram = replace(operator, V=operator.V[:, :0], core=operator.core[:0, :0])
    X, Y = gram.rows.to(torch.float64), gram.rows.to(tiles.X)

    def columns(index: Tensor) -> Tensor:
        return tiles.columns(index) - gram.gain * (Y @ Y[index].T)

    factor = pivoted_cholesky(columns, tiles.diagonal() - gram.structured_diagonal(), rank, seed)
    lift = factor.residual.mean().clamp_min(1e-300).reshape(1, 1).to(X)
    return Structured(X, gram.gain, factor.F, torch.eye(factor.rank).to(X), lift)


@checked
def precondition(
    name: PreconditionerName,
    tiles: KernelOperator,
    *,
    rank: int | None = None,
    equivalent: EquivalentKernel | None = None,
    seed: int = 0,
) -> Preconditioner:
    """The preconditioner of this name for a kernel in tiles."""
    size = default_rank(tiles.n) if rank is None else min(whole("rank", rank), tiles.n)
    if name.startswith("equivalent") and (equivalent is None or tiles.scale is not None):
        raise InvalidInputError(
            f"preconditioner {name!r} needs equivalent=, an operator of nsd.equivalent for these rows, and no weights"
        )
    if name == "none":
        return Identity()
    if name == "diagonal":
        return Jacobi(tiles.diagonal())
    if name == "nystrom":
        return Deflation("nystrom", nystrom(tiles.columns, tiles.diagonal(), size, seed))
    if name == "rpcholesky":
        return Deflation("rpcholesky", tiles.low_rank(size, seed))
    assert equivalent is not None
    if name == "equivalent":
        return Woodbury(name, replace(equivalent.lifted(), X=equivalent.rows.to(torch.float64)).structured())
    matrix = _deflated(equivalent, tiles, size, seed)
    return Woodbury(name, matrix, rank=len(matrix.core))


def default_rank(n: int) -> int:
    """A sixth of the rows, between 100 and 2,000: within it more rank pays in iterations (theory, section 16)."""
    return min(n, max(100, min(n // 6, 2000)))
