"""Fixed points z = f(z), one per row: a single loop, and the solver that chooses the next iterate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ._arguments import check_settings, checked, shown, whole
from .errors import ConvergenceError, ConvergenceWarning, InvalidInputError, warn

Step = Callable[[Tensor], Tensor]
SolverMethod = Literal["auto", "picard", "anderson"]


@dataclass(frozen=True, repr=False)
class EquilibriumLimits:
    """The tuning numbers of the loop."""

    patience: int = 20  # Picard steps before "auto" turns to Anderson: random weights are done long before
    memory: int = 5  # differences that Anderson's method holds, as in torchdeq
    longest_leap: int = 8  # steps without a look at the residual; each look stalls an accelerator
    shortest_rest: int = 3  # steps still expected for which it pays to continue with fewer rows


LIMITS = EquilibriumLimits()


# ---- what may be asked, what is found --------------------------------------------------------------------


@dataclass(frozen=True)
class SolverOptions:
    """Say how equilibria are found, and how exactly.

    Parameters
    ----------
    method : {"auto", "picard", "anderson"}
        ``"picard"`` iterates z <- f(z): nothing linear is quicker for random weights, since the eigenvalues of the
        Jacobian fill a disc. Training may leave a few near one, where ``"anderson"`` pays; ``"auto"`` begins with the
        first and turns to the second after 20 steps.
    tol : float
        A row is done when |f(z) - z| <= tol |f(z)|; derivatives are solved to the same tolerance.
    max_steps : int
        The most evaluations of f. A row that is not done by then is a :class:`~notsodeep.errors.ConvergenceWarning`.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> nsd.nn.SolverOptions("anderson", tol=1e-8)
    SolverOptions(method='anderson', tol=1e-08, max_steps=200)
    """

    method: SolverMethod = "auto"
    tol: float = 1e-5
    max_steps: int = 200

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0 < self.tol < math.inf:
            raise InvalidInputError(f"tol must be positive and finite, got {self.tol!r}")
        whole("max_steps", self.max_steps, most=10**6)


@dataclass(frozen=True, repr=False)
class Equilibrium:
    """What a solve found.

    ``value`` holds the last images f(z), shape (..., m), ``residual`` |f(z) - z| / |f(z)| of every row, shape (...),
    ``steps`` says how often f was evaluated, and ``converged`` which rows met the tolerance.
    """

    value: Tensor
    residual: Tensor
    steps: int
    converged: Tensor

    def __repr__(self) -> str:
        met = f"{int(self.converged.sum())} of {self.converged.numel()} rows"
        return f"Equilibrium({tuple(self.value.shape)}, {self.steps} steps, {met} converged)"

    def require(self, options: SolverOptions, what: str = "the equilibrium", raises: bool = False) -> None:
        """Warn, or raise, unless every row converged; the message carries the residual."""
        if bool(self.converged.all()):
            return
        missed = int((~self.converged).sum())
        message = (
            f"{what} was not reached for {missed} of {self.converged.numel()} rows: relative residual "
            f"{float(self.residual.max()):.1e} after {self.steps} steps, tolerance {options.tol:.1e}. The map may "
            "be no contraction (see contraction()); lower sigma_a2, limit the contraction during training, allow "
            "more steps, or loosen the tolerance if it is near the rounding error of the data type"
        )
        if raises:
            raise ConvergenceError(message)
        warn(message, ConvergenceWarning)


@checked
def solve_equilibrium(
    step: Step, z0: Tensor, options: SolverOptions | None = None, restrict: Callable[[Tensor], Step] | None = None
) -> Equilibrium:
    """Iterate until |f(z) - z| <= tol |f(z)| in every row, or for ``max_steps`` evaluations of f = ``step``.

    Rows are independent problems. With ``restrict``, which returns the map of some rows, those that are done leave the
    batch as soon as they are half of it.
    """
    options = options or SolverOptions()
    if z0.numel() == 0:  # no rows, nothing to solve
        empty = z0.new_zeros(z0.shape[:-1])
        return Equilibrium(z0.clone(), empty, 0, empty == 0)
    solver = _Solver({"picard": math.inf, "auto": LIMITS.patience, "anderson": 0}[options.method])
    state = _Progress(z0, options.tol, restrict if z0.ndim == 2 else None)
    z, look = z0, 1
    for count in range(1, options.max_steps + 1):
        image = step(z)
        if count == 1 and getattr(image, "shape", None) != z.shape:
            raise InvalidInputError(f"step must keep the shape {tuple(z.shape)} of a tensor, got {shown(image)}")
        if count >= look or count == options.max_steps:
            rows, look = state.look(z, image, count)
            if state.finished:
                break
            if rows is not None and state.restrict is not None:
                step, z, image = state.restrict(state.rows), z[rows], image[rows]
                solver.keep(rows)
        z = solver.advance(z, image)
    return state.result(count)


# ---- the next iterate --------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Solver:
    """Picard's z <- f(z) for ``patience`` steps, then Anderson's method, which remembers a few steps of every row.

    Anderson: z <- f(z) - sum_j c_j (f_j+1 - f_j), the c_j minimising |g - sum_j c_j (g_j+1 - g_j)|, g = f(z) - z.
    """

    patience: float
    _steps: int = 0
    _last: tuple[Tensor, Tensor] | None = None
    _differences: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def advance(self, z: Tensor, image: Tensor) -> Tensor:
        """Return the next iterate, from an iterate and its image."""
        self._steps += 1
        if self._steps <= self.patience:
            return image
        gap = image - z
        if self._last is not None:
            self._differences = [*self._differences, (image - self._last[0], gap - self._last[1])][-LIMITS.memory :]
        self._last = image, gap
        if not self._differences:
            return image
        images, gaps = (torch.stack(steps, dim=-2) for steps in zip(*self._differences, strict=True))
        return image - (_least_squares(gaps, gap).unsqueeze(-2) @ images).squeeze(-2)

    def keep(self, rows: Tensor) -> None:
        """Forget every row but these."""
        if self._last is not None:
            self._last = self._last[0][rows], self._last[1][rows]
        self._differences = [(image[rows], gap[rows]) for image, gap in self._differences]


def _least_squares(gaps: Tensor, gap: Tensor) -> Tensor:
    """Return argmin_c |gap - c gaps| row by row, from normal equations scaled to a unit diagonal."""
    if gap.dtype in (torch.float16, torch.bfloat16):  # no factorisations exist in half precision
        return _least_squares(gaps.float(), gap.float()).to(gap.dtype)
    scale = _largest(gaps).amax(-2)
    gaps, gap = gaps / scale.unsqueeze(-2), gap / scale
    norms = torch.linalg.vector_norm(gaps, dim=-1).clamp_min(torch.finfo(gap.dtype).tiny)
    unit = gaps / norms.unsqueeze(-1)
    # squaring the condition costs half the digits: below sqrt(eps) a direction carries no information
    ridge = torch.finfo(gap.dtype).eps * 10.0
    gram = unit @ unit.mT + ridge * torch.eye(gaps.shape[-2], dtype=gap.dtype, device=gap.device)
    weights, _ = torch.linalg.solve_ex(gram, (unit @ gap.unsqueeze(-1)))
    return weights.squeeze(-1) / norms


def _largest(rows: Tensor) -> Tensor:
    """Return the largest absolute entry of every row, (..., 1): norms of rows divided by it cannot overflow."""
    return rows.abs().amax(-1, keepdim=True).clamp_min(torch.finfo(rows.dtype).tiny)


# ---- when to look, which rows go on ------------------------------------------------------------------------


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
        scale = torch.maximum(_largest(image), _largest(z))
        gap = torch.linalg.vector_norm((image - z) / scale, dim=-1)
        size = torch.linalg.vector_norm(image / scale, dim=-1)
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
        return self._shrink(open_rows, int(left)) if leap >= LIMITS.shortest_rest else None, count + leap

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
        return max(1, min(LIMITS.longest_leap, math.floor(math.log(self.tol / worst) / rate)))
