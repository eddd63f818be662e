"""Low-rank factors F F' of a positive semidefinite matrix, from a few of its columns.

Randomly pivoted Cholesky (Chen, Epperly, Tropp and Webber 2022) draws pivots in proportion to what is left on the
diagonal. Here in blocks with rejection (Epperly, Tropp and Webber 2024), which draws from the same distribution and
asks for many columns at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .._conjugate import thin
from ..errors import InvalidInputError

Columns = Callable[[Tensor], Tensor]
_BLOCK = 128
_NEGLIGIBLE = 1e-12  # part of the trace; less than this is rounding


class LowRankFactor(Protocol):
    """F F' ~ K, wherever the rows of F are."""

    @property
    def rank(self) -> int:
        """Columns of F."""

    @property
    def residual(self) -> Tensor:
        """The diagonal of K - F F'."""

    def gram(self) -> Tensor:
        """F' F."""

    def inner(self, R: Tensor, /) -> Tensor:
        """F' R."""

    def outer(self, Z: Tensor, /) -> Tensor:
        """F Z."""


@dataclass(frozen=True, eq=False)
class PivotedFactor:
    """A factor in this process."""

    F: Tensor
    """Shape (n, rank)."""
    residual: Tensor
    """The diagonal of K - F F', shape (n,)."""
    pivots: Tensor
    """The rows whose columns were used."""

    @property
    def rank(self) -> int:
        return self.F.shape[1]

    def gram(self) -> Tensor:
        return self.F.T @ self.F

    def inner(self, R: Tensor) -> Tensor:
        return thin(self.F.T, R)

    def outer(self, Z: Tensor) -> Tensor:
        return thin(self.F, Z)


class Growing(Protocol):
    """A factor that takes in some pivots at a time."""

    def corner(self, proposed: Tensor, /) -> Tensor:
        """K - F F' between these rows, with F as it is."""

    def grow(self, proposed: Tensor, kept: Tensor, lower: Tensor, /) -> Tensor:
        """The columns of ``proposed[kept]`` join F, ``lower`` the Cholesky factor of what they have left among
        themselves; returns what the new columns take from the diagonal.
        """


def pivoted_cholesky(columns: Columns, diagonal: Tensor, rank: int, seed: int = 0) -> PivotedFactor:
    """Randomly pivoted Cholesky; stops early where nothing is left.

    >>> K = torch.ones(4, 4, dtype=torch.float64)
    >>> found = pivoted_cholesky(lambda index: K[:, index], K.diagonal(), rank=3)
    >>> found.rank, float(found.residual.max())
    (1, 0.0)
    """
    here = _Here(columns, diagonal, rank)
    left, pivots = choose_pivots(here, diagonal, rank, seed)
    return PivotedFactor(here.F[:, : here.done].contiguous(), left, pivots)


def choose_pivots(factor: Growing, diagonal: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Let a factor grow by pivots drawn at random; what is left of the diagonal, and the pivots."""
    if not 1 <= rank <= len(diagonal):
        raise InvalidInputError(f"rank must be between 1 and n = {len(diagonal)}, got {rank}")
    generator = torch.Generator().manual_seed(seed)
    left = diagonal.clone().clamp_min(0.0)
    floor = _NEGLIGIBLE * float(left.sum())
    pivots, done = [torch.zeros(0, dtype=torch.long, device=left.device)], 0
    while done < rank and float(left.sum()) > floor:
        proposed = _draw(left, min(_BLOCK, 2 * (rank - done)), generator)
        kept, lower = _accept(factor.corner(proposed), left[proposed], rank - done, generator)
        if not len(kept):
            break
        left = (left - factor.grow(proposed, kept, lower)).clamp_min(0.0)
        left[proposed[kept]] = 0.0
        pivots.append(proposed[kept])
        done += len(kept)
    return left, torch.cat(pivots)


class _Here:
    """All rows of F, in columns of their own for every pivot."""

    def __init__(self, columns: Columns, diagonal: Tensor, rank: int) -> None:
        self.columns, self.done = columns, 0
        self.F = torch.zeros(len(diagonal), rank, dtype=diagonal.dtype, device=diagonal.device)

    def corner(self, proposed: Tensor) -> Tensor:
        F = self.F[:, : self.done]
        self._block = self.columns(proposed) - F @ F[proposed].T
        return self._block[proposed]

    def grow(self, proposed: Tensor, kept: Tensor, lower: Tensor) -> Tensor:
        fresh = torch.linalg.solve_triangular(lower.to(self.F), self._block[:, kept].T, upper=False).T
        self.F[:, self.done : self.done + len(kept)] = fresh
        self.done += len(kept)
        return (fresh**2).sum(1)


def _draw(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows in proportion to their weights, with replacement; cumulative sums serve any n."""
    total = weights.to("cpu", torch.float64).cumsum(0)
    where = torch.rand(count, generator=generator, dtype=torch.float64) * total[-1]
    return torch.searchsorted(total, where, right=True).clamp_max(len(weights) - 1).to(weights.device)


def _accept(block: Tensor, bounds: Tensor, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Positions that survive rejection, in order, and the Cholesky factor of the block on them."""
    work, limits = block.to("cpu", torch.float64).clone(), bounds.cpu()
    luck = torch.rand(len(work), generator=generator, dtype=torch.float64)
    kept: list[int] = []
    rows: list[Tensor] = []
    for i in range(len(work)):
        pivot = float(work[i, i])
        if len(kept) < most and pivot > 1e-10 * float(limits[i]) and luck[i] * float(limits[i]) < pivot:
            column = work[:, i] / pivot**0.5
            work = work - torch.outer(column, column)
            kept.append(i)
            rows.append(column)
    index = torch.tensor(kept, dtype=torch.long)
    lower = torch.stack(rows, dim=1)[index].tril() if kept else torch.zeros(0, 0, dtype=torch.float64)
    return index.to(block.device), lower


def nystrom(columns: Columns, diagonal: Tensor, rank: int, seed: int = 0) -> PivotedFactor:
    """The Nystroem factor of rows drawn uniformly: K_nI K_II^(-1/2)."""
    if not 1 <= rank <= len(diagonal):
        raise InvalidInputError(f"rank must be between 1 and n = {len(diagonal)}, got {rank}")
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(len(diagonal), generator=generator)[:rank].to(diagonal.device)
    block = columns(index)
    values, vectors = torch.linalg.eigh(0.5 * (block[index] + block[index].T))
    kept = values > 1e-12 * values[-1]
    F = block @ (vectors[:, kept] / values[kept].sqrt())
    return PivotedFactor(F, (diagonal - (F**2).sum(1)).clamp_min(0.0), index)
