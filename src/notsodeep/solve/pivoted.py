"""The preconditioner: a low-rank factor of the kernel by randomly pivoted Cholesky, and a multiple of the identity.

Pivots are drawn in proportion to what is left on the diagonal (Chen, Epperly, Tropp and Webber 2022), in blocks with
rejection (Epperly, Tropp and Webber 2024), which has the same distribution and asks for many columns at once.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .._conjugate import Precondition, thin
from ..errors import InvalidInputError
from ._limits import LIMITS

Columns = Callable[[Tensor], Tensor]


def pivoted_cholesky(columns: Columns, diagonal: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Return F, (n, rank), with F F' near K; the diagonal of K - F F'; the pivots, of which F reproduces the columns.

    ``columns`` takes row indices, (m,), and returns these columns of K, (n, m). F stops early where nothing is left.

    >>> K = torch.ones(4, 4, dtype=torch.float64)
    >>> F, residual, _ = pivoted_cholesky(lambda index: K[:, index], K.diagonal(), rank=3)
    >>> F.shape, float(residual.max())
    (torch.Size([4, 1]), 0.0)
    """
    if not 1 <= rank <= len(diagonal):
        raise InvalidInputError(f"rank must be between 1 and n = {len(diagonal)}, got {rank}")
    generator = torch.Generator().manual_seed(seed)
    left = diagonal.clone().clamp_min(0.0)
    floor = LIMITS.negligible * float(left.sum())
    F = torch.zeros(len(diagonal), rank, dtype=diagonal.dtype, device=diagonal.device)
    pivots, done = [torch.zeros(0, dtype=torch.long, device=left.device)], 0
    while done < rank and float(left.sum()) > floor:
        proposed = _draw(left, min(LIMITS.pivot_block, 2 * (rank - done)), generator)
        block = columns(proposed) - F[:, :done] @ F[proposed, :done].T
        accepted, lower = _accept(block[proposed], left[proposed], rank - done, generator)
        if not len(accepted):
            break
        fresh = torch.linalg.solve_triangular(lower.to(F), block[:, accepted].T, upper=False).T
        F[:, done : done + len(accepted)] = fresh
        left = (left - (fresh**2).sum(1)).clamp_min(0.0)
        left[proposed[accepted]] = 0.0
        pivots.append(proposed[accepted])
        done += len(accepted)
    return F[:, :done].contiguous(), left, torch.cat(pivots)


def _draw(weights: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw rows in proportion to their weights, with replacement; cumulative sums serve any n."""
    total = weights.to("cpu", torch.float64).cumsum(0)
    where = torch.rand(count, generator=generator, dtype=torch.float64) * total[-1]
    return torch.searchsorted(total, where, right=True).clamp_max(len(weights) - 1).to(weights.device)


def _accept(block: Tensor, bounds: Tensor, most: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the positions that survive rejection, in order, and the Cholesky factor of the block on them."""
    work, limits = block.to("cpu", torch.float64).clone(), bounds.cpu()
    uniform = torch.rand(len(work), generator=generator, dtype=torch.float64)
    accepted: list[int] = []
    rows: list[Tensor] = []
    for i in range(len(work)):
        pivot, limit = float(work[i, i]), float(limits[i])
        if len(accepted) < most and pivot > LIMITS.negligible * limit and uniform[i] * limit < pivot:
            column = work[:, i] / pivot**0.5
            work = work - torch.outer(column, column)
            accepted.append(i)
            rows.append(column)
    index = torch.tensor(accepted, dtype=torch.long)
    lower = torch.stack(rows, dim=1)[index].tril() if accepted else torch.zeros(0, 0, dtype=torch.float64)
    return index.to(block.device), lower


def preconditioner(F: Tensor, residual: Tensor) -> Precondition:
    """Return the inverse of P = F F' + (ridge + half the mean residual diagonal) I, which is near K + ridge I.

    One eigendecomposition of F'F serves all ridges: with s = ridge + half the mean residual, Woodbury's formula gives
    P^(-1) = (I - F (F'F + s I)^(-1) F') / s.
    """
    values, vectors = torch.linalg.eigh(F.T @ F)
    values, half = values.clamp_min(0.0)[:, None], 0.5 * float(residual.mean())

    def solve(R: Tensor, ridges: Tensor) -> Tensor:
        shift = ridges + half
        inner = (vectors.T @ thin(F.T, R)) / (values + shift)
        return (R - thin(F, vectors @ inner)) / shift

    return solve
