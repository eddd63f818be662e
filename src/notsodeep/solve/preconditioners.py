"""Approximate inverses of K + ridge I that serve every ridge (theory, section 16).

Each is built once; ``solve(R, ridges)`` takes the columns of R with a ridge of its own for each.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from .._arguments import checked, whole
from .._conjugate import thin
from ..equivalents import EquivalentKernel
from ..equivalents.factorisation import Factorisation
from ..errors import InvalidInputError
from .dense import factorise
from .operator import Factor, KernelOperator
from .pivoted import LowRank, nystrom, pivoted_cholesky

PreconditionerName = Literal["none", "diagonal", "nystrom", "rpcholesky", "equivalent", "equivalent+rpcholesky"]
NAMES: tuple[PreconditionerName, ...] = (
    "none",
    "diagonal",
    "nystrom",
    "rpcholesky",
    "equivalent",
    "equivalent+rpcholesky",
)


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


class Diagonal(Preconditioner):
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

    def __init__(self, name: PreconditionerName, factor: Factor) -> None:
        self.name, self.rank, self.factor = name, factor.rank, factor
        self.values, self.vectors = torch.linalg.eigh(factor.gram())
        self.shift = 0.5 * float(factor.residual.mean())

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        lift = ridges + self.shift
        inner = (self.vectors.T @ self.factor.inner(R)) / (self.values.clamp_min(0.0)[:, None] + lift)
        return (R - self.factor.outer(self.vectors @ inner)) / lift


class Equivalent(Preconditioner):
    """The high-dimensional equivalent itself; factorised once per ridge, and not refined: it is near K at best."""

    name: PreconditionerName = "equivalent"

    def __init__(self, operator: EquivalentKernel) -> None:
        self.operator = replace(operator.lifted(), X=operator.rows.to(torch.float64))
        self._factors: dict[float, Factorisation] = {}

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        return _by_ridge(R, ridges, lambda part, ridge: self.factor(ridge).solve(part, refinements=0))

    def factor(self, ridge: float) -> Factorisation:
        if ridge not in self._factors:
            self._factors[ridge] = self.operator.factorise(ridge)
        return self._factors[ridge]


class EquivalentDeflation(Preconditioner):
    """P = A + F F' with A the equivalent's Gram matrix plus a multiple of I, and F F' ~ K less that Gram matrix.

    What the Gram matrix leaves of K is positive semidefinite, as pivots want it: K is a sum over powers of cosines, the
    Gram matrix (of rows scaled by their own norms) the first of them. The equivalent's low rank would not leave it so.
    Woodbury: P^(-1) = A^(-1) - A^(-1) F (I + F' A^(-1) F)^(-1) F' A^(-1), once per ridge.
    """

    name: PreconditionerName = "equivalent+rpcholesky"

    def __init__(self, operator: EquivalentKernel, factor: LowRank) -> None:
        self.rank, self.F = factor.rank, factor.F
        self.base = Equivalent(replace(operator, shift=max(float(factor.residual.mean()), 1e-300)))
        self._small: dict[float, tuple[Tensor, Tensor]] = {}

    def solve(self, R: Tensor, ridges: Tensor) -> Tensor:
        return _by_ridge(R, ridges, self._once)

    def _once(self, R: Tensor, ridge: float) -> Tensor:
        inner = self.base.factor(ridge)
        if ridge not in self._small:
            swept = inner.solve(self.F, refinements=0)
            small = self.F.T @ swept
            small.diagonal().add_(1.0)
            self._small[ridge] = swept, factorise(0.5 * (small + small.T)).lower
        swept, lower = self._small[ridge]
        z = inner.solve(R, refinements=0)
        return z - thin(swept, torch.cholesky_solve(thin(self.F.T, z), lower))


@checked
def precondition(
    name: str,
    tiles: KernelOperator,
    *,
    rank: int | None = None,
    equivalent: EquivalentKernel | None = None,
    seed: int = 0,
) -> Preconditioner:
    """The preconditioner of this name for a kernel in tiles."""
    if name not in NAMES:
        raise InvalidInputError(f"preconditioner must be one of {', '.join(NAMES)} or auto, got {name!r}")
    size = default_rank(tiles.n) if rank is None else min(whole("rank", rank), tiles.n)
    if name.startswith("equivalent") and (equivalent is None or tiles.scale is not None):
        raise InvalidInputError(
            f"preconditioner {name!r} needs equivalent=, an operator of nsd.equivalent for these rows, and no weights"
        )
    if name == "none":
        return Identity()
    if name == "diagonal":
        return Diagonal(tiles.diagonal())
    if name == "nystrom":
        return Deflation("nystrom", nystrom(tiles.columns, tiles.diagonal(), size, seed))
    if name == "rpcholesky":
        return Deflation("rpcholesky", tiles.low_rank(size, seed))
    assert equivalent is not None
    if name == "equivalent":
        return Equivalent(equivalent)
    gram = replace(equivalent, V=equivalent.V[:, :0], core=equivalent.core[:0, :0])
    return EquivalentDeflation(gram, _remainder(gram, tiles, size, seed))


def default_rank(n: int) -> int:
    """A sixth of the rows, between 100 and 2,000: within it more rank pays in iterations (theory, section 16)."""
    return min(n, max(100, min(n // 6, 2000)))


def _remainder(operator: EquivalentKernel, tiles: KernelOperator, rank: int, seed: int) -> LowRank:
    """Randomly pivoted Cholesky of K less the Gram part of its equivalent."""
    X = operator.rows.to(tiles.X)

    def columns(index: Tensor) -> Tensor:
        return tiles.columns(index) - operator.gain * (X @ X[index].T)

    return pivoted_cholesky(columns, tiles.diagonal() - operator.structured_diagonal(), rank, seed)


def _by_ridge(R: Tensor, ridges: Tensor, solve: Callable[[Tensor, float], Tensor]) -> Tensor:
    out = torch.empty_like(R)
    for ridge in ridges.unique().tolist():
        mine = ridges == ridge
        out[:, mine] = solve(R[:, mine], ridge)
    return out
