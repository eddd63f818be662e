"""Kernel ridge regression with many rows, by preconditioned conjugate gradients.

Stored entries may be in float32. Residuals are then computed in float64 and the solution is corrected by further
passes, until the true residual is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from .._arguments import check_settings, checked
from .._conjugate import Iterate, Precondition, conjugate_gradients, thin, unpreconditioned
from .._progress import track
from ..errors import ConvergenceError, InvalidInputError
from ._limits import LIMITS
from .dense import Solution, check_problem
from .operators import Dtype, KernelOperator
from .pivoted import pivoted_cholesky, preconditioner


@dataclass(frozen=True)
class CG:
    """Options of preconditioned conjugate gradients.

    Parameters
    ----------
    tol : float
        The relative residual that every right-hand side reaches.
    rank : int, optional
        Of the preconditioner, randomly pivoted Cholesky; by default a sixth of the rows and at most 2,000. 0 means
        that there is none.
    dtype : "auto", "float32" or "float64"
        Of the stored kernel; ``"auto"`` is float64 where the triangle takes less than half of the free memory.
    folder : str or Path, optional
        Where a temporary memory map holds the kernel. Without it the kernel is in memory where it fits, and is
        computed again for every product where it does not.
    max_steps : int
    seed : int
        Of the random pivots.

    Examples
    --------
    >>> CG(tol=1e-8, rank=100)
    CG(tol=1e-08, rank=100, dtype='auto', folder=None, max_steps=2000, seed=0)
    """

    tol: float = 1e-6
    rank: int | None = None
    dtype: Dtype = "auto"
    folder: str | Path | None = None
    max_steps: int = 2000
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        if not 0.0 < self.tol < 1.0:
            raise InvalidInputError(f"tol must lie between 0 and 1, got {self.tol!r}")
        if self.rank is not None and self.rank < 0:
            raise InvalidInputError(f"rank must be a whole number of at least 0, or None, got {self.rank!r}")


@checked
def solve_operator(
    operator: KernelOperator,
    targets: Tensor,
    ridges: Sequence[float],
    options: CG | None = None,
    *,
    progress: bool | None = None,
) -> Solution:
    """Solve kernel ridge regression by conjugate gradients with an operator, of this process or of a cluster.

    Parameters
    ----------
    operator : KernelOperator
        D K D, where D holds the square roots of the weights.
    targets : Tensor of shape (n, k)
    ridges : sequence of float
        Absolute and positive.
    options : CG, optional
        ``dtype`` and ``folder`` are those of the operator.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Returns
    -------
    Solution

    Raises
    ------
    ConvergenceError
        If conjugate gradients do not reach ``tol``, or if the matrix is not positive definite.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X = torch.eye(3, dtype=torch.float64)
    >>> K = nsd.solve.KernelTiles(lambda a, b: a @ (a if b is None else b).T, X)
    >>> solve_operator(K, X[:, :1], [1.0]).coefficients[0, 0, 0].item()
    0.5
    """
    check_problem(operator.X, targets, ridges)
    chosen = CG() if options is None else options
    B, scale = targets.to(operator.X.device, torch.float64), operator.scale
    right = (B if scale is None else scale * B).repeat(1, len(ridges))
    shifts = torch.tensor(list(ridges), dtype=B.dtype, device=B.device).repeat_interleave(B.shape[1])
    n, precondition = operator.n, cast(Precondition, unpreconditioned)
    rank = min(n, LIMITS.highest_rank, -(-n // 6)) if chosen.rank is None else min(n, chosen.rank)
    if rank:
        F, left, _ = pivoted_cholesky(operator.columns, operator.diagonal(), rank, chosen.seed)
        precondition, rank = preconditioner(F, left), F.shape[1]
    refinement = _Refinement(operator, right, shifts, precondition, chosen, progress)
    z, residuals = refinement.run()
    z = z.reshape(n, len(ridges), -1).transpose(0, 1)
    return Solution(
        z if scale is None else scale * z,
        tuple(ridges),
        residuals.reshape(len(ridges), -1),
        steps=refinement.steps,
        refinements=max(refinement.passes - 1, 0),
        rank=rank,
    )


@dataclass(eq=False)
class _Refinement:
    """Passes of conjugate gradients for (K + ridges[j] I) z = B[:, j], each on the residual of the one before."""

    operator: KernelOperator
    B: Tensor
    ridges: Tensor
    precondition: Precondition
    options: CG
    progress: bool | None
    steps: int = 0
    passes: int = 0
    history: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        norms = self.B.norm(dim=0)
        self.scales = torch.where(norms > 0, norms, torch.ones_like(norms))

    def run(self) -> tuple[Tensor, Tensor]:
        """Return the solutions, (n, columns), and their relative residuals."""
        z, residual = torch.zeros_like(self.B), self.B
        while bool((residual.norm(dim=0) > self.options.tol * self.scales).any()):
            state = Iterate.start(residual, self.ridges, self.precondition)
            state.step, state.history = self.steps, self.history
            self._pass(state)
            self.steps, self.passes, z = state.step, self.passes + 1, z + state.z
            sampled = self._on_a_sample(z)
            if sampled is not None:
                return z, sampled
            residual = self.B - self.operator.exact(z) - self.ridges * z
            self._check(state.start_norms, residual.norm(dim=0))
        return z, residual.norm(dim=0) / self.scales

    def _pass(self, state: Iterate) -> None:
        """Run conjugate gradients as far as the precision of the stored entries carries."""
        reach = torch.finfo(self.operator.dtype).eps ** 0.72  # 1e-5 in float32, 5e-12 in float64
        # half of the tolerance: a few more steps cost less than a true residual that is found too large
        aims = torch.maximum(0.5 * self.options.tol * self.scales, reach * state.start_norms)
        steps = conjugate_gradients(
            self.operator.__matmul__, self.ridges, aims, state, self.scales, self.precondition, self.options.max_steps
        )
        decades = 10 * max(math.ceil(-math.log10(self.options.tol)), 1)
        for _ in track(_tenths(steps), decades, "conjugate gradients", self.progress):
            pass

    def _on_a_sample(self, z: Tensor) -> Tensor | None:
        """Return relative residuals as some random rows tell them, or None where they are not clearly small enough.

        For many rows in float32 this costs a small part of the whole residual, and is right to 3 %.
        """
        n, few = self.operator.n, LIMITS.panel
        if self.operator.dtype == torch.float64 or n <= 10 * few:
            return None
        index = torch.randperm(n, generator=torch.Generator().manual_seed(n))[:few].to(z.device)
        parts = index.split(LIMITS.pivot_block)
        image = torch.cat([thin(self.operator.columns(part).T, z) for part in parts])
        left = self.B[index] - image - self.ridges * z[index]
        relative = (n / few) ** 0.5 * left.norm(dim=0) / self.scales
        return relative if bool((relative <= 0.9 * self.options.tol).all()) else None  # three standard errors

    def _check(self, before: Tensor, after: Tensor) -> None:
        stuck = (after > 0.5 * before) & (after > self.options.tol * self.scales)
        if bool(stuck.any()):
            worst, reason = float((after / self.scales).max()), "double precision carries no further at this ridge"
            if self.operator.dtype != torch.float64:
                reason = "the kernel is stored in float32; use dtype='float64'"
            raise ConvergenceError(
                f"the relative residual does not fall below {worst:.1e}: {reason}; use a larger ridge or a larger tol"
            )


def _tenths(steps: Iterator[Iterate]) -> Iterator[int]:
    """Yield once for each tenth of a decade by which the residual falls, for the progress bar."""
    tenths = 0
    for state in steps:
        while tenths < -10.0 * math.log10(max(state.history[-1], 1e-40)) - 1.0:
            tenths += 1
            yield tenths
