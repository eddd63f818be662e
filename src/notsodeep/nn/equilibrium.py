"""Fixed points z = f(z), one per row: a single loop, shared by every solver.

>>> import torch
>>> result = solve_equilibrium(torch.cos, torch.zeros(2, 1, dtype=torch.float64), tol=1e-12)
>>> round(float(result.value[0]), 6), bool(result.converged.all())
(0.739085, True)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from ..errors import ConvergenceError, ConvergenceWarning, InvalidInputError
from .solvers import Solver, new_solver, solver_names

__all__ = ["Equilibrium", "OnFailure", "SolverOptions", "solve_equilibrium"]

Step = Callable[[Tensor], Tensor]
OnFailure = Literal["warn", "raise"]

_LONGEST_LEAP = 8  # steps without a look at the residual
_SHORTEST_REST = 3  # steps still expected for which it pays to continue with fewer rows


@dataclass(frozen=True)
class SolverOptions:
    """How equilibria are found: which solver, how exactly, and what happens when one is not."""

    solver: str = "auto"
    tol: float = 1e-5
    max_steps: int = 200
    on_failure: OnFailure = "warn"

    def __post_init__(self) -> None:
        if self.solver not in solver_names():
            raise InvalidInputError(f"unknown equilibrium solver {self.solver!r}; known: {', '.join(solver_names())}")
        if not (math.isfinite(self.tol) and self.tol > 0):
            raise InvalidInputError(f"tol must be positive and finite, got {self.tol!r}")
        if self.max_steps < 1:
            raise InvalidInputError(f"max_steps must be at least 1, got {self.max_steps!r}")
        if self.on_failure not in get_args(OnFailure):
            raise InvalidInputError(f"on_failure must be 'warn' or 'raise', got {self.on_failure!r}")

    def to_dict(self) -> dict[str, Any]:
        return {"solver": self.solver, "tol": self.tol, "max_steps": self.max_steps, "on_failure": self.on_failure}


@dataclass(frozen=True)
class Equilibrium:
    """What a solve found.

    value : the last image f(z), shape (..., m)
    residual : |f(z) - z| / |f(z)| of every row, shape (...)
    steps : how often f was evaluated, a rough start in bfloat16 not counted
    converged : residual <= tol, row by row
    """

    value: Tensor
    residual: Tensor
    steps: int
    converged: Tensor

    def require(self, options: SolverOptions, what: str = "the equilibrium") -> None:
        """Warn or raise unless every row converged; the message carries the residual."""
        if bool(self.converged.all()):
            return
        missed = int((~self.converged).sum())
        message = (
            f"{what} was not reached for {missed} of {self.converged.numel()} rows: relative residual "
            f"{float(self.residual.max()):.1e} after {self.steps} steps, tolerance {options.tol:.1e}. The map may "
            "be no contraction (see contraction()); lower sigma_a2, keep the contraction during training, allow "
            "more steps, or loosen the tolerance if it is near the rounding error of the data type"
        )
        if options.on_failure == "raise":
            raise ConvergenceError(message)
        warnings.warn(message, ConvergenceWarning, stacklevel=3)


def solve_equilibrium(
    step: Step,
    z0: Tensor,
    solver: str | Solver = "auto",
    tol: float = 1e-5,
    max_steps: int = 200,
    restrict: Callable[[Tensor], Step] | None = None,
) -> Equilibrium:
    """Iterate until |f(z) - z| <= tol |f(z)| in every row, or for ``max_steps`` evaluations of f = ``step``.

    Rows are independent problems. With ``restrict`` (rows -> the same map on these rows only) rows that are done
    leave the batch as soon as they are half of it, and are not touched again. The residual is looked at when the
    observed rate says that the tolerance may be reached: each look stalls an accelerator.
    """
    if z0.numel() == 0:  # no rows, nothing to solve
        empty = z0.new_zeros(z0.shape[:-1])
        return Equilibrium(z0.clone(), empty, 0, empty == 0)
    method = new_solver(solver) if isinstance(solver, str) else solver
    state = _Progress(z0, tol, restrict if z0.ndim == 2 else None)
    z, look = z0, 1
    for count in range(1, max_steps + 1):
        image = step(z)
        if count >= look or count == max_steps:
            rows, look = state.look(z, image, count)
            if state.finished:
                break
            if rows is not None and state.restrict is not None:
                step, z, image = state.restrict(state.rows), z[rows], image[rows]
                method.keep(rows)
        z = method.advance(z, image)
    return state.result(count)


class _Progress:
    """Which rows are done, what they ended on, and when to look again."""

    def __init__(self, z0: Tensor, tol: float, restrict: Callable[[Tensor], Step] | None) -> None:
        self.tol, self.restrict = tol, restrict
        self.finished = False
        self.rows = torch.empty(0, dtype=torch.long)
        self._whole = True
        self._value, self._residual = z0, z0.new_full(z0.shape[:-1], math.inf)
        self._last: tuple[int, float] | None = None

    def look(self, z: Tensor, image: Tensor, count: int) -> tuple[Tensor | None, int]:
        """Measure; return the rows that go on (None: all of them) and the next step worth a look."""
        gap = torch.linalg.vector_norm(image - z, dim=-1)
        size = torch.linalg.vector_norm(image, dim=-1)
        # a row at rest in zero is at rest: 0 <= tol * 0
        residual = torch.where(gap == 0, gap, gap / size)
        self._store(image, residual)
        # a row that is no longer finite never will be: it ends unconverged, the others go on
        open_rows = (residual > self.tol) & torch.isfinite(residual)
        left, worst = torch.stack(
            [open_rows.sum().to(residual.dtype), (residual * open_rows).nan_to_num().max()]
        ).tolist()
        if left == 0:
            self.finished = True
            return None, count
        leap = self._leap(count, worst)
        # a restricted batch costs a copy of everything: not worth it when the end is in sight
        return self._shrink(open_rows, int(left)) if leap >= _SHORTEST_REST else None, count + leap

    def result(self, count: int) -> Equilibrium:
        return Equilibrium(self._value, self._residual, count, self._residual <= self.tol)

    def _store(self, image: Tensor, residual: Tensor) -> None:
        if self._whole:
            self._value, self._residual = image, residual
        else:
            self._value[self.rows], self._residual[self.rows] = image, residual

    def _shrink(self, open_rows: Tensor, left: int) -> Tensor | None:
        if self.restrict is None or 2 * left > open_rows.numel():
            return None
        keep = open_rows.nonzero().squeeze(-1)
        if self._whole:
            self.rows, self._whole = keep, False
            self._value, self._residual = self._value.clone(), self._residual.clone()
        else:
            self.rows = self.rows[keep]
        return keep

    def _leap(self, count: int, worst: float) -> int:
        """Steps until the worst row meets the tolerance at the rate seen since the last look."""
        before, self._last = self._last, (count, worst)
        if before is None or worst >= before[1] or worst <= self.tol:
            return 1
        rate = math.log(worst / before[1]) / (count - before[0])
        return max(1, min(_LONGEST_LEAP, math.floor(math.log(self.tol / worst) / rate)))
