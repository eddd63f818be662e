"""Fixed points z = f(z), one per row: a single loop, and the solver that chooses the next iterate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ._arguments import ambient, check_settings, positive_int, shown
from .errors import ConvergenceError, ConvergenceWarning, InvalidInputError, warn

Step = Callable[[Tensor], Tensor]
Residual = Callable[[Tensor, Tensor, Any, Tensor], Tensor]
"""From iterates, their images, the numbers of these rows and which are not done to what must fall to the tolerance."""
SolverMethod = Literal["auto", "picard", "anderson"]


@dataclass(frozen=True, repr=False)
class EquilibriumLimits:
    """The tuning numbers of the loop."""

    patience: int = 20  # Picard steps before "auto" turns to Anderson: random weights are done long before
    memory: int = 5  # differences that Anderson's method holds, as in torchdeq
    stride: int = 2  # steps from look to look on an accelerator, which each of them stalls; rows do not choose it
    least_done: float = 0.4  # of the rows of a batch, before the others are copied to go on without them


LIMITS = EquilibriumLimits()


# ---- what may be asked, what is found --------------------------------------------------------------------


@dataclass(frozen=True)
class SolverOptions:
    """Set how equilibria are computed, and how exactly.

    Parameters
    ----------
    method : {"auto", "picard", "anderson"}
        ``"picard"`` iterates z <- f(z). For random weights no linear method is faster, since the eigenvalues of the
        Jacobian fill a disc. After training a few may lie near one, where ``"anderson"`` is faster. ``"auto"`` starts
        with the first and switches to the second after 20 steps.
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
        positive_int("max_steps", self.max_steps, most=10**6)


@dataclass(frozen=True, repr=False)
class Equilibrium:
    """What a solve found.

    ``value`` holds for every row the image f(z) that met the tolerance, or the last one, shape (..., m); ``residual``
    |f(z) - z| / |f(z)| of every row, shape (...); ``steps`` says how often f was evaluated, ``row_steps`` after how
    many of these a row was done, and ``converged`` which rows met the tolerance.
    """

    value: Tensor
    residual: Tensor
    steps: int
    converged: Tensor
    row_steps: Tensor

    def __repr__(self) -> str:
        met = f"{int(self.converged.sum())} of {self.converged.numel()} rows"
        return f"Equilibrium({tuple(self.value.shape)}, {self.steps} steps, {met} converged)"

    def require(self, options: SolverOptions, what: str = "the equilibrium", raises: bool = False) -> None:
        """Warn, or raise, unless every row converged; the message carries the residual."""
        if bool(self.converged.all()):
            return
        missed = (~self.converged).reshape(-1).nonzero()[:, 0].tolist()
        named = f"{', '.join(map(str, missed[:5]))}{', ...' if len(missed) > 5 else ''}"
        message = (
            f"{what} was not reached for {len(missed)} of {self.converged.numel()} rows ({named}): relative residual "
            f"{float(self.residual.max()):.1e} after {self.steps} steps, tolerance {options.tol:.1e}. The map may "
            "be no contraction (see contraction()); lower sigma_a2, limit the contraction during training, allow "
            "more steps, or loosen the tolerance if it is near the rounding error of the data type"
        )
        if raises:
            raise ConvergenceError(message)
        warn(message, ConvergenceWarning)


@ambient
def solve_equilibrium(
    step: Step,
    z0: Tensor,
    options: SolverOptions | None = None,
    restrict: Callable[[Tensor], Step] | None = None,
    residual: Residual | None = None,
    looks: tuple[int, int, int] | None = None,
) -> Equilibrium:
    """Iterate until |f(z) - z| <= tol |f(z)| in every row, or for ``max_steps`` evaluations of f = ``step``.

    Rows are independent problems: each keeps the image that met the tolerance first, whatever the others do. With
    ``restrict``, which returns the map of some rows, those that are done leave the batch as soon as they are two fifths
    of it. Another ``residual`` may take the place of the relative one; where it is not finite a row is given up.
    ``looks`` are the first step after which there is something to see, and the least and the most steps from look to
    look: half of the steps so far, within these bounds.
    """
    options = options or SolverOptions()
    if z0.numel() == 0:  # no rows, nothing to solve
        empty = z0.new_zeros(z0.shape[:-1])
        return Equilibrium(z0.clone(), empty, 0, empty == 0, empty.long())
    solver = _Solver({"picard": math.inf, "auto": LIMITS.patience, "anderson": 0}[options.method])
    state = _Progress(z0, options.tol, restrict if z0.ndim == 2 else None, residual)
    due, least, most = looks or _looks(z0, options.tol)
    z = z0
    for count in range(1, options.max_steps + 1):
        image = step(z)
        if count == 1 and getattr(image, "shape", None) != z.shape:
            raise InvalidInputError(f"step must keep the shape {tuple(z.shape)} of a tensor, got {shown(image)}")
        early = count == 1 and looks is None  # rows that are there already
        if early or count in (due, options.max_steps):
            if count == due:
                due += max(least, min(most, count // 2))
            rows = state.look(z, image, count, last=count == options.max_steps)
            if state.finished:
                break
            if rows is not None and state.restrict is not None:
                step, z, image = state.restrict(state.rows), z[rows], image[rows]
                solver.keep(rows)
        z = solver.advance(z, image)
    return state.result(count)


def _looks(z0: Tensor, tol: float) -> tuple[int, int, int]:
    """Return the second step after which residuals are looked at, and the steps between looks from there on, twice.

    The rows have no part in that: what one of them ends on must not depend on the others.
    """
    first = math.floor(1.5 * max(0.0, -math.log10(tol)))  # random weights take more steps than that
    stride = LIMITS.stride if z0.is_cuda else 1
    return max(2, first), stride, stride


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


# ---- which rows are done, which go on ----------------------------------------------------------------------


def relative_residual(z: Tensor, image: Tensor, *_: Any) -> Tensor:
    """Return |f(z) - z| / |f(z)| of every row."""
    gap, size = (torch.linalg.vector_norm(part, dim=-1) for part in (image - z, image))
    span = 1e15  # squares of larger and of smaller numbers leave the range of float32
    if 1.0 / span < float(size.min()) and float(size.max()) < span:
        return gap / size
    scale = torch.maximum(_largest(image), _largest(z))
    gap, size = (torch.linalg.vector_norm(part / scale, dim=-1) for part in (image - z, image))
    # a row at rest in zero is at rest: 0 <= tol * 0
    return torch.where(gap == 0, gap, gap / size)


class _Progress:
    """Which rows are done, and what they ended on."""

    def __init__(
        self, z0: Tensor, tol: float, restrict: Callable[[Tensor], Step] | None, residual: Residual | None
    ) -> None:
        self.tol, self.restrict, self.measure = tol, restrict, residual or relative_residual
        self.rows: Any = slice(None)  # of the whole batch that are still in it
        self._open = torch.ones(z0.shape[:-1], dtype=torch.bool, device=z0.device)
        self._left = self._open.numel()
        self._value: Tensor | None = None
        self._residual: Any = None
        self._steps: Any = 0

    @property
    def finished(self) -> bool:
        return self._left == 0

    def look(self, z: Tensor, image: Tensor, count: int, last: bool) -> Tensor | None:
        """Measure and keep what is done; return the rows that go on if the others leave the batch."""
        residual, before = self.measure(z, image, self.rows, self._open), self._left
        # a row that is no longer finite never will be: it ends unconverged, the others go on
        goes_on = (residual > self.tol) & (residual < math.inf) & self._open
        self._left = 0 if last else int(goes_on.sum())
        if self._left == before:
            return None
        if self.finished and self._value is None:  # all at once: nothing to copy
            self._value, self._residual = image, residual
            self._steps = torch.full_like(self._open, count, dtype=torch.long)
            return None
        ends = (self._open if self.finished else self._open & ~goes_on).nonzero(as_tuple=True)
        self._keep(ends, image, residual, count)
        self._open = goes_on
        return self._shrink() if self._left else None

    def result(self, count: int) -> Equilibrium:
        assert self._value is not None
        return Equilibrium(self._value, self._residual, count, self._residual <= self.tol, self._steps)

    def _keep(self, ends: tuple[Tensor, ...], image: Tensor, residual: Tensor, count: int) -> None:
        """Store the images of rows that end here."""
        if self._value is None:
            self._value, self._residual = torch.empty_like(image), torch.empty_like(residual)
            self._steps = torch.empty_like(residual, dtype=torch.long)
        where = ends if isinstance(self.rows, slice) else (self.rows[ends],)
        self._value[where], self._residual[where], self._steps[where] = image[ends], residual[ends], count

    def _shrink(self) -> Tensor | None:
        if self.restrict is None or self._left > (1.0 - LIMITS.least_done) * self._open.numel():
            return None
        keep = self._open.nonzero()[:, 0]
        self.rows = keep if isinstance(self.rows, slice) else self.rows[keep]
        self._open = self._open[keep]
        return keep
