"""Fixed points z = f(z), one per row: a single loop, and the solvers that choose the next iterate.

A solver turns the last iterate z and its image f(z) into the next iterate. It lives for one solve and treats every row
by itself; ``keep`` restricts its memory to some rows.

>>> import torch
>>> result = solve_equilibrium(torch.cos, torch.zeros(2, 1, dtype=torch.float64), tol=1e-12)
>>> round(float(result.value[0]), 6), bool(result.converged.all())
(0.739085, True)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ._arguments import check_settings, checked, shown, whole
from .errors import ConvergenceError, ConvergenceWarning, InvalidInputError, warn

Step = Callable[[Tensor], Tensor]
SolverName = Literal["auto", "picard", "anderson", "broyden"]
OnFailure = Literal["warn", "raise"]

_LONGEST_LEAP = 8  # steps without a look at the residual
_SHORTEST_REST = 3  # steps still expected for which it pays to continue with fewer rows


# ---- solvers ---------------------------------------------------------------------------------------------


class Solver(Protocol):
    """The state of one fixed-point iteration; tensors are (..., m), every row its own problem."""

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        """The next iterate, from an iterate and its image f(z)."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Forget every row but these (an index into the leading dimension)."""
        ...


@dataclass(slots=True)
class Picard:
    """z <- f(z).

    Among methods that combine iterates linearly nothing is quicker for random weights: the eigenvalues of the
    Jacobian fill a disc around zero (circular law), and on such a disc x^k is the best polynomial of degree k.
    """

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        return image

    def keep(self, rows: Tensor) -> None:
        """Nothing is remembered."""


@dataclass(slots=True)
class Anderson:
    """z <- f(z) - sum_j c_j (f_j+1 - f_j), the c_j minimising |g - sum_j c_j (g_j+1 - g_j)|, g = f(z) - z.

    ``memory`` differences are kept. The least squares are regularised relative to their own size, so that nothing
    depends on the scale of the data.
    """

    memory: int = 5
    _image: Tensor | None = field(default=None, repr=False)
    _gap: Tensor | None = field(default=None, repr=False)
    _image_steps: list[Tensor] = field(default_factory=list, repr=False)
    _gap_steps: list[Tensor] = field(default_factory=list, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        gap = image - z
        if self._image is not None and self._gap is not None:
            self._image_steps = [*self._image_steps, image - self._image][-self.memory :]
            self._gap_steps = [*self._gap_steps, gap - self._gap][-self.memory :]
        self._image, self._gap = image, gap
        if not self._gap_steps:
            return image
        gaps = torch.stack(self._gap_steps, dim=-2)
        weights = _least_squares(gaps, gap)
        return image - (weights.unsqueeze(-2) @ torch.stack(self._image_steps, dim=-2)).squeeze(-2)

    def keep(self, rows: Tensor) -> None:
        self._image = None if self._image is None else self._image[rows]
        self._gap = None if self._gap is None else self._gap[rows]
        self._image_steps = [step[rows] for step in self._image_steps]
        self._gap_steps = [step[rows] for step in self._gap_steps]


def _least_squares(gaps: Tensor, gap: Tensor) -> Tensor:
    """argmin_c |gap - c gaps| row by row, from normal equations scaled to a unit diagonal."""
    if gap.dtype in (torch.float16, torch.bfloat16):  # no factorisations exist in half precision
        return _least_squares(gaps.float(), gap.float()).to(gap.dtype)
    norms = torch.linalg.vector_norm(gaps, dim=-1).clamp_min(torch.finfo(gap.dtype).tiny)
    unit = gaps / norms.unsqueeze(-1)
    # squaring the condition costs half the digits: below sqrt(eps) a direction carries no information
    ridge = torch.finfo(gap.dtype).eps * 10.0
    gram = unit @ unit.mT + ridge * torch.eye(gaps.shape[-2], dtype=gap.dtype, device=gap.device)
    weights, _ = torch.linalg.solve_ex(gram, (unit @ gap.unsqueeze(-1)))
    return weights.squeeze(-1) / norms


@dataclass(slots=True)
class Auto:
    """Picard for ``patience`` steps, then Anderson.

    Random weights with sigma_a2 below 1/4 are done long before; trained weights may have a few eigenvalues near one,
    which is where Anderson pays.
    """

    patience: int = 20
    _steps: int = field(default=0, repr=False)
    _anderson: Anderson = field(default_factory=Anderson, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        self._steps += 1
        return image if self._steps <= self.patience else self._anderson.advance(z, image)

    def keep(self, rows: Tensor) -> None:
        self._anderson.keep(rows)


@dataclass(slots=True)
class Broyden:
    """z <- z - H g, g = f(z) - z; H = -I + sum_j u_j v_j' is updated by Sherman and Morrison's formula.

    It starts as Picard iteration and needs no contraction. The memory is cleared once ``memory`` pairs are held.
    """

    memory: int = 20
    _step: Tensor | None = field(default=None, repr=False)
    _gap: Tensor | None = field(default=None, repr=False)
    _left: list[Tensor] = field(default_factory=list, repr=False)
    _right: list[Tensor] = field(default_factory=list, repr=False)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        gap = image - z
        if self._step is not None and self._gap is not None:
            self._learn(self._step, gap - self._gap)
        step = -_low_rank(self._left, self._right, gap)
        self._step, self._gap = step, gap
        return z + step

    def keep(self, rows: Tensor) -> None:
        self._step = None if self._step is None else self._step[rows]
        self._gap = None if self._gap is None else self._gap[rows]
        self._left = [u[rows] for u in self._left]
        self._right = [v[rows] for v in self._right]

    def _learn(self, step: Tensor, change: Tensor) -> None:
        """H <- H + (s - H y) (s' H) / (s' H y)."""
        if len(self._left) >= self.memory:
            self._left, self._right = [], []
        image = _low_rank(self._left, self._right, change)
        row = _low_rank(self._right, self._left, step)
        pivot = (row * change).sum(-1, keepdim=True)
        floor = torch.finfo(pivot.dtype).eps * row.norm(dim=-1, keepdim=True) * change.norm(dim=-1, keepdim=True)
        # a vanishing pivot carries no information: leave that row's matrix as it is
        update = torch.where(pivot.abs() > floor, (step - image) / pivot, 0.0)
        self._left.append(update)
        self._right.append(row)


def _low_rank(left: list[Tensor], right: list[Tensor], x: Tensor) -> Tensor:
    """-x + sum_j left_j (right_j . x)."""
    out = -x
    for u, v in zip(left, right, strict=True):
        out = out + u * (v * x).sum(-1, keepdim=True)
    return out


_SOLVERS: dict[str, Callable[[], Solver]] = {"auto": Auto, "picard": Picard, "anderson": Anderson, "broyden": Broyden}


# ---- the loop ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SolverOptions:
    """How equilibria are found: which solver, how exactly, and what happens when one is not.

    ``bfloat16_start`` makes the first steps of float32 networks on a CPU in bfloat16: quicker where the processor has
    instructions for it; the float32 iteration that follows alone decides when the tolerance is met.
    """

    solver: SolverName = "auto"
    tol: float = 1e-5
    max_steps: int = 200
    on_failure: OnFailure = "warn"
    bfloat16_start: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < self.tol < math.inf:
            raise InvalidInputError(f"tol must be positive and finite, got {self.tol!r}")
        whole("max_steps", self.max_steps)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Equilibrium:
    """What a solve found.

    value : the last image f(z), shape (..., m)
    residual : |f(z) - z| / |f(z)| of every row, shape (...)
    steps : how often f was evaluated, a start in bfloat16 not counted
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
        warn(message, ConvergenceWarning)


@checked
def solve_equilibrium(
    step: Step,
    z0: Tensor,
    solver: SolverName | Solver = "auto",
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
    SolverOptions(tol=tol, max_steps=max_steps)  # which refuses what is no tolerance, or no number of steps
    method = _SOLVERS[solver]() if isinstance(solver, str) else solver
    state = _Progress(z0, tol, restrict if z0.ndim == 2 else None)
    z, look = z0, 1
    for count in range(1, max_steps + 1):
        image = step(z)
        if count == 1 and getattr(image, "shape", None) != z.shape:
            raise InvalidInputError(f"step must keep the shape {tuple(z.shape)} of a tensor, got {shown(image)}")
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
