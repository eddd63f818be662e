"""The ridge and the variances of a machine, chosen together by exact leave-one-out errors on a sample of the rows.

One eigendecomposition for each kernel serves all ridges. Variances come from a small grid, which is refined by
golden-section steps on its best side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from ..networks import DEQ, Kernel
from ..solve import NetworkKernel, solve_dense
from ..solve.dense import leave_one_out_path
from .machine import Problem, mean_diagonal

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))
"""The ridges that ``ridge="loo"`` tries, relative to the mean diagonal: four to a decade."""
Loss = Callable[[Tensor], float]
"""Of leave-one-out predictions, (n, k)."""


@dataclass
class Selection:
    """The search for the DEQ and the ridge with the least leave-one-out error."""

    start: DEQ
    kernel: Kernel
    problem: Problem
    ridge: float | None
    """The given one, if it is not free."""
    loss: Loss
    tried: dict[tuple[float, float], dict[str, float]] = field(default_factory=dict)
    """For sigma_b2 and sigma_c2 their best ridge, and its error."""

    def run(self, free: Sequence[str]) -> dict[str, Any]:
        """Search over the free ones of sigma_b2 and sigma_c2; return the best with its runners-up."""
        _, b2, c2 = self.start.variances
        ratios: tuple[float | None, ...] = (-1.0, 0.0, None)  # logarithms of sigma_c2 / sigma_b2; None: no bias
        if self._is_homogeneous and ("sigma_c2" in free or c2 == 0.0):  # sigma_b2 is the unit of kernel and sigma_c2
            ratios = (-1.0, 0.0, 1.0, None)
        elif "sigma_b2" in free:
            lift = 0.1 if "sigma_c2" in free else 0.0  # so that a missing bias does not decide on the scale
            self._along(lambda u: self._error(b2 * 10**u, max(c2, lift * (b2 * 10**u))), (-0.5, 0.0, 0.5))
            b2 = self._ranked()[0]["sigma_b2"]
        if "sigma_c2" in free:
            self._along(lambda u: self._error(b2, 0.0 if u is None else b2 * 10**u), ratios)
        if not self.tried:
            self._error(b2, c2)
        best, *others = self._ranked()
        return best | {"rows": len(self.problem.X), "kernels": len(self.tried), "runners_up": others[:3]}

    @property
    def _is_homogeneous(self) -> bool:
        return all(phi.homogeneity == 1.0 for phi in self.start.activations)

    def _ranked(self) -> list[dict[str, float]]:
        return sorted(self.tried.values(), key=lambda found: found["error"])

    def _along(self, error: Callable[[Any], float], grid: Sequence[Any]) -> None:
        """Try a grid of logarithms, then three golden-section steps on both sides of the best."""
        best = grid[int(np.argmin([error(u) for u in grid]))]
        if best is not None:
            bounds = (best - grid[1] + grid[0], best + grid[1] - grid[0])
            scipy.optimize.minimize_scalar(error, bounds=bounds, method="bounded", options={"maxiter": 3})

    def _error(self, b2: float, c2: float) -> float:
        b2, c2 = float(b2), float(c2)
        if (b2, c2) not in self.tried:
            kernel = NetworkKernel(DEQ(self.start.activation, self.start.variances[0], b2, c2), self.kernel)
            ridge, error = best_ridge(kernel, self.problem, self.ridge, self.loss)
            self.tried[b2, c2] = {"sigma_b2": b2, "sigma_c2": c2, "ridge": ridge, "error": error}
        return self.tried[b2, c2]["error"]


def best_ridge(kernel: NetworkKernel, problem: Problem, ridge: float | None, loss: Loss) -> tuple[float, float]:
    """Return the ridge, given or the best of the grid, and its leave-one-out error.

    The largest ridge is taken of those within a thousandth of the least error: where nothing is to be lost, it makes
    the system easier to solve.
    """
    K, right = kernel(problem.X), problem.right
    mean = mean_diagonal(problem.weights * K.diagonal(), problem.weights)
    if ridge is not None:
        left_out = solve_dense(K, right, [ridge * mean], weights=problem.weights, loo=True).leave_one_out
        assert left_out is not None
        return ridge, loss(problem.left_out(left_out[0]))
    path = leave_one_out_path(K, right, problem.weights)
    errors = np.array([loss(problem.left_out(path(r * mean))) for r in GRID])
    at = int(np.flatnonzero(errors <= 1.001 * errors.min())[-1])
    return GRID[at], float(errors[at])


def squared_error(problem: Problem) -> Loss:
    """Return the loss of regression: the weighted squared error relative to that of the mean, summed over outputs."""
    unit = float(problem.targets.abs().max()) or 1.0  # no square over- or underflows
    scale = float((problem.weights @ (problem.targets / unit).square()).sum()) or 1.0

    def loss(left_out: Tensor) -> float:
        wrong = problem.weights @ ((left_out - problem.mean - problem.targets) / unit).square()
        return float(wrong.sum()) / scale

    return loss


def log_loss(problem: Problem, codes: Tensor) -> Loss:
    """Return the loss of classification: minus the mean log likelihood, at the temperature that is best for it."""
    weights = problem.weights / problem.weights.sum()

    def loss(left_out: Tensor) -> float:
        scores = left_out if left_out.shape[1] > 1 else torch.cat([-left_out, left_out], dim=1)
        right, t = scores.gather(1, codes[:, None])[:, 0], 1.0
        for _ in range(8):  # Newton's steps on a concave function; each at most doubles or halves
            p = torch.softmax(t * scores, dim=1)
            mean = (p * scores).sum(1)
            slope, bend = float(weights @ (right - mean)), float(weights @ ((p * scores**2).sum(1) - mean**2))
            t = min(max(t + slope / max(bend, 1e-12), 0.5 * t), 2.0 * t)
        return -float(weights @ torch.log_softmax(t * scores, dim=1).gather(1, codes[:, None])[:, 0])

    return loss
