"""Fits of homogeneous layers to the one function that decides: bends per layer, weights per term, minimax.

The bends enter nonlinearly, the weights are non-negative; both are found by sequential linear programming. Near an
optimum as many extrema are active as there are unknowns plus one, so that the linear programmes converge quadratically,
as Remez' exchange does; their right-hand sides are scaled by the current error, so that errors of 1e-9 are resolved by
a solver that works to 1e-7.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import block_diag
from scipy.optimize import linprog

from ..networks import Kernel
from .arc import Array, HomogeneousDEQ, grid, terms

FIT_CELLS = 160
_STEEPEST = 2.0  # bends lie between 0 and this
_BUMP = 1e-6


@dataclass(frozen=True)
class BendFit:
    """Bends per layer, weights per term and kernel, and the largest error on the fitting grid."""

    bends: Array
    weights: tuple[Array, ...]
    error: float


@dataclass(frozen=True)
class Problem:
    """One or several kernels of a DEQ to be met by one network; they share the bends and have weights of their own."""

    deq: HomogeneousDEQ
    kinds: tuple[Kernel, ...]

    @property
    def targets(self) -> list[Array]:
        _, rho = grid(FIT_CELLS)
        return [self.deq.profile(rho, kind) for kind in self.kinds]

    def blocks(self, bends: Array) -> list[Array]:
        """Terms (count, points) per kernel, whose positive combination should equal its target."""
        _, rho = grid(FIT_CELLS)
        return [terms(rho, bends, kind) for kind in self.kinds]


def fit(problem: Problem, starts: Iterable[Sequence[float]], steps: int = 40) -> BendFit:
    """The best local minimax fit from several starting bends."""
    targets = problem.targets
    found = (_refine(problem, targets, np.array(s, dtype=np.float64), steps) for s in starts)
    return min(found, key=lambda f: f.error)


def deeper_starts(problem: Problem, shallow: BendFit | None) -> list[list[float]]:
    """Starts for one more layer: a short step before, after or inside the shallower optimum."""
    h, c0 = problem.deq.step, problem.deq.bend
    if shallow is None:
        return [[min(2.0, c0 + 0.2 * h)], [min(2.0, c0 + h)]]
    step = min(0.3, 0.5 * h)
    inside = [np.insert(shallow.bends, i, step).tolist() for i in range(len(shallow.bends) + 1)]
    if len(shallow.bends) == 1:
        inside += [[min(h, 1.0), c0], [c0, min(h, 1.0)], [0.5 * c0, 0.5 * c0]]
    return inside


def fit_depth(problem: Problem, depth: int, shallow: BendFit | None = None) -> BendFit:
    """Fit by continuation in depth, from the fit one layer shallower (found here if not given)."""
    if depth > 1 and (shallow is None or len(shallow.bends) != depth - 1):
        shallow = fit_depth(problem, depth - 1)
    return fit(problem, deeper_starts(problem, shallow if depth > 1 else None))


# ---- sequential linear programmes ----------------------------------------------------------------------------


def _refine(problem: Problem, targets: list[Array], x: Array, steps: int) -> BendFit:
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
        trial, guess = np.clip(x + move[0], 0.0, _STEEPEST), move[1]
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
    return BendFit(x, tuple(weights), float(error))


def _residual(blocks: list[Array], targets: list[Array], weights: Sequence[Array]) -> list[Array]:
    return [t - w @ b for t, w, b in zip(targets, weights, blocks, strict=True)]


def _largest(residual: list[Array]) -> float:
    return max(float(np.abs(r).max()) for r in residual)


def _weigh(blocks: list[Array], targets: list[Array], weights: Sequence[Array]) -> tuple[list[Array], float]:
    """The best non-negative weights for given bends: one linear programme per kernel."""
    residual = _residual(blocks, targets, weights)
    out = []
    for block, r, w in zip(blocks, residual, weights, strict=True):
        move = minimax(block.T, r, lower=-w, upper=np.full(len(w), np.inf))
        out.append(w if move is None else np.maximum(w + move, 0.0))
    after, before = _largest(_residual(blocks, targets, out)), _largest(residual)
    return (out, after) if after <= before else (list(weights), before)


def _step(
    problem: Problem, targets: list[Array], x: Array, weights: list[Array], reach: float
) -> tuple[Array, list[Array]] | None:
    """Move bends and weights together against the linearised error."""
    blocks = problem.blocks(x)
    residual = _residual(blocks, targets, weights)
    jacobian = np.hstack([block_diag(*(b.T for b in blocks)), _slopes(problem, x, weights)])
    flat = np.concatenate(weights)
    lower = np.concatenate([-flat, np.maximum(-reach, -x)])
    upper = np.concatenate([np.full(len(flat), np.inf), np.minimum(reach, _STEEPEST - x)])
    move = minimax(jacobian, np.concatenate(residual), lower, upper)
    if move is None:
        return None
    parts = np.split(np.maximum(flat + move[: len(flat)], 0.0), np.cumsum([len(w) for w in weights])[:-1])
    return move[len(flat) :], parts


def _slopes(problem: Problem, x: Array, weights: list[Array]) -> Array:
    """Central differences of the fitted functions in the bends, one-sided at a limit."""
    columns = []
    for i in range(len(x)):
        up, down = x.copy(), x.copy()
        up[i], down[i] = min(x[i] + _BUMP, _STEEPEST), max(x[i] - _BUMP, 0.0)
        ahead, behind = problem.blocks(up), problem.blocks(down)
        change = [(w @ (a - b)) / (up[i] - down[i]) for w, a, b in zip(weights, ahead, behind, strict=True)]
        columns.append(np.concatenate(change))
    return np.stack(columns, axis=1)


def minimax(
    matrix: Array, wanted: Array, lower: Array, upper: Array, accuracies: Sequence[float] = (1e-7,)
) -> Array | None:
    """argmin of max|wanted - matrix x| within bounds, a linear programme in units of the largest wanted number.

    The solver gives up now and then where it is asked for all digits: then it is asked for the next accuracy. ``None``
    where nothing is wanted or nothing found.
    """
    unit = float(np.abs(wanted).max())
    if unit < 1e-14:
        return None
    level = np.ones((len(wanted), 1))
    inequality = np.block([[matrix, -level], [-matrix, -level]])
    side = np.concatenate([wanted, -wanted]) / unit
    bounds = [*zip(lower / unit, upper / unit, strict=True), (0.0, None)]
    cost = np.append(np.zeros(matrix.shape[1]), 1.0)
    for accuracy in accuracies:
        options = {"primal_feasibility_tolerance": accuracy, "dual_feasibility_tolerance": accuracy}
        solved = linprog(cost, A_ub=inequality, b_ub=side, bounds=bounds, method="highs", options=options)
        if solved.x is not None:
            return np.asarray(solved.x[:-1] * unit)
    return None
