"""Minimax fits by sequential linear programming, in nonlinear parameters and non-negative weights.

A problem offers target functions on a grid, and for any parameters the terms whose positive combination should equal
them. Near an optimum as many extrema are active as there are unknowns plus one, so that the linear programmes converge
quadratically, as Remez' exchange does; their right-hand sides are scaled by the current error, so that errors of 1e-9
are resolved by a solver that works to 1e-7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

Array = NDArray[np.float64]
_BUMP = 1e-6


class Problem(Protocol):
    """What is to be fitted; several kernels share the parameters and have weights of their own."""

    @property
    def targets(self) -> list[Array]: ...
    @property
    def lower(self) -> float | Array: ...
    @property
    def upper(self) -> float | Array: ...
    def blocks(self, parameters: Array) -> list[Array]:
        """Terms (count, points) per kernel."""
        ...


@dataclass(frozen=True)
class Solution:
    """Parameters, weights per kernel, and the largest error on the fitting grid."""

    parameters: Array
    weights: tuple[Array, ...]
    error: float


def solve(problem: Problem, starts: Iterable[Sequence[float]], steps: int = 40) -> Solution:
    """The best local minimax fit from several starts."""
    targets = problem.targets
    found = (_refine(problem, targets, np.array(s, dtype=np.float64), steps) for s in starts)
    return min(found, key=lambda f: f.error)


def _refine(problem: Problem, targets: list[Array], x: Array, steps: int) -> Solution:
    blocks = problem.blocks(x)
    weights = [np.full(len(b), 1.0 / len(b)) for b in blocks]
    error = np.inf
    for _ in range(2):
        weights, error = _weigh(blocks, targets, weights)
    reach = 0.2
    for _ in range(steps):
        move = _step(problem, targets, x, weights, reach)
        if move is None:
            break
        trial, guess = np.clip(x + move[0], problem.lower, problem.upper), move[1]
        new, size = _weigh(problem.blocks(trial), targets, guess)
        if size < error * (1.0 - 1e-12):
            settled = error - size < 1e-7 * error
            reach = min(2.0 * reach, 0.5)
            x, weights, error = trial, new, size
            if settled:
                break
        else:
            reach *= 0.25
            if reach < 1e-10:
                break
    return Solution(x, tuple(weights), float(error))


def _residual(blocks: list[Array], targets: list[Array], weights: Sequence[Array]) -> list[Array]:
    return [t - w @ b for t, w, b in zip(targets, weights, blocks, strict=True)]


def _largest(residual: list[Array]) -> float:
    return max(float(np.abs(r).max()) for r in residual)


def _weigh(blocks: list[Array], targets: list[Array], weights: Sequence[Array]) -> tuple[list[Array], float]:
    """The best non-negative weights for given parameters: one linear programme per kernel."""
    residual = _residual(blocks, targets, weights)
    out = []
    for block, r, w in zip(blocks, residual, weights, strict=True):
        move = _programme(block.T, r, lower=-w, upper=np.full(len(w), np.inf))
        out.append(w if move is None else np.maximum(w + move, 0.0))
    after, before = _largest(_residual(blocks, targets, out)), _largest(residual)
    return (out, after) if after <= before else (list(weights), before)


def _step(
    problem: Problem, targets: list[Array], x: Array, weights: list[Array], reach: float
) -> tuple[Array, list[Array]] | None:
    """Move parameters and weights together against the linearised error."""
    blocks = problem.blocks(x)
    residual = _residual(blocks, targets, weights)
    jacobian = np.hstack([_block_diagonal([b.T for b in blocks]), _slopes(problem, x, weights)])
    flat = np.concatenate(weights)
    lower = np.concatenate([-flat, np.maximum(-reach, problem.lower - x)])
    upper = np.concatenate([np.full(len(flat), np.inf), np.minimum(reach, problem.upper - x)])
    move = _programme(jacobian, np.concatenate(residual), lower, upper)
    if move is None:
        return None
    parts = np.split(np.maximum(flat + move[: len(flat)], 0.0), np.cumsum([len(w) for w in weights])[:-1])
    return move[len(flat) :], parts


def _slopes(problem: Problem, x: Array, weights: list[Array]) -> Array:
    """Central differences of the fitted functions in the parameters, one-sided at a limit."""
    low, high = np.broadcast_to(problem.lower, x.shape), np.broadcast_to(problem.upper, x.shape)
    columns = []
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i], down[i] = min(x[i] + _BUMP, high[i]), max(x[i] - _BUMP, low[i])
        ahead, behind = problem.blocks(up), problem.blocks(down)
        change = [(w @ (a - b)) / (up[i] - down[i]) for w, a, b in zip(weights, ahead, behind, strict=True)]
        columns.append(np.concatenate(change))
    return np.stack(columns, axis=1)


def _block_diagonal(blocks: list[Array]) -> Array:
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row, column = 0, 0
    for b in blocks:
        out[row : row + b.shape[0], column : column + b.shape[1]] = b
        row, column = row + b.shape[0], column + b.shape[1]
    return out


def _programme(matrix: Array, residual: Array, lower: Array, upper: Array) -> Array | None:
    """argmin of max|residual - matrix move| within bounds, in units of the present error."""
    unit = float(np.abs(residual).max())
    if unit < 1e-14:
        return None
    ones = np.ones((len(residual), 1))
    inequality = np.block([[matrix, -ones], [-matrix, -ones]])
    side = np.concatenate([residual, -residual]) / unit
    bounds = [*zip(lower / unit, upper / unit, strict=True), (0.0, None)]
    cost = np.zeros(matrix.shape[1] + 1)
    cost[-1] = 1.0
    solved = linprog(cost, A_ub=inequality, b_ub=side, bounds=bounds, method="highs")
    return None if solved.x is None else solved.x[:-1] * unit
