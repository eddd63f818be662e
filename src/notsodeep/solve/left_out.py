"""Leave-one-out predictions where K is known by its products alone: some rows at a time, by conjugate gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .dense import leave_one_out
from .iterative import solve_tiles
from .operator import KernelOperator
from .preconditioners import Preconditioner, precondition

__all__ = ["leave_rows_out"]


def leave_rows_out(
    operator: KernelOperator,
    targets: Tensor,
    coefficients: Tensor,
    ridge: float,
    rows: Tensor | None = None,
    *,
    preconditioner: Preconditioner | None = None,
    block: int = 128,
    tol: float = 1e-8,
    seed: int = 0,
    progress: bool | None = None,
) -> Tensor:
    """What the machine without row i predicts at row i, for the given rows (all of them by default), (rows, k).

    ``coefficients`` are those of a solve with this operator and ridge. Every row takes a solve of its own, ``block``
    of them share their products: a sample of some hundred rows tells the error of a large machine.
    """
    chosen = torch.arange(operator.n) if rows is None else torch.as_tensor(rows, dtype=torch.long)
    weights = None if operator.scale is None else operator.scale[:, 0] ** 2
    if weights is not None and not bool((weights[chosen] > 0).all()):
        raise InvalidInputError("a row of weight zero is left out already; predict at it instead")
    sweep = precondition("rpcholesky", operator, seed=seed) if preconditioner is None else preconditioner
    inverse = torch.cat([_diagonal(operator, part, ridge, sweep, tol, progress) for part in chosen.split(block)])
    mine = None if weights is None else weights[chosen]
    scaled = inverse if mine is None else mine * inverse
    return leave_one_out(targets[chosen].to(torch.float64), coefficients[chosen], scaled, mine, ridge)


def _diagonal(
    operator: KernelOperator, rows: Tensor, ridge: float, sweep: Preconditioner, tol: float, progress: bool | None
) -> Tensor:
    """Entries of the diagonal of (K + ridge I)^(-1)."""
    units = torch.zeros(operator.n, len(rows), dtype=torch.float64)
    units[rows, torch.arange(len(rows))] = 1.0
    lifts = torch.full((len(rows),), ridge, dtype=torch.float64)
    found = solve_tiles(operator, units, lifts, sweep, tol=tol, progress=progress)
    return found.z[rows, torch.arange(len(rows))]
