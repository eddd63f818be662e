"""Activation, variances and ridge of a machine, chosen together by exact leave-one-out errors on a sample of the rows.

One eigendecomposition for each kernel serves all ridges. Variances come from a small grid, which is refined by
golden-section steps around its best point.
"""

from __future__ import annotations

import functools
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

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))  # of ridges relative to the mean diagonal: four to a decade
Loss = Callable[[Tensor], float]  # of leave-one-out predictions, (n, k)
ACTIVATIONS = ("relu", "sin")  # to choose from: a kernel with a kink and a smooth one, both of closed form


def select(searches: Sequence[Selection]) -> dict[str, Any]:
    """Return the best of several searches with its runners-up; more than one are surveyed, and the best is refined."""
    for search in searches:
        search.survey()
    best = min(searches, key=lambda search: search.ranked()[0]["error"])
    best.refine(1 if len(searches) > 1 else 2)
    tried = sum(len(search.tried) for search in searches)
    found, *others = sorted((one for search in searches for one in search.ranked()), key=lambda one: one["error"])
    return found | {"rows": len(best.problem.X), "kernels": tried, "runners_up": others[:3]}


@dataclass
class Selection:
    """The search for the variances and the ridge of a DEQ with the least leave-one-out error."""

    start: DEQ
    kernel: Kernel
    problem: Problem
    ridge: float | None  # the given one, if it is not free
    loss: Loss
    free: Sequence[str]  # which of sigma_b2 and sigma_c2 are to be chosen
    tried: dict[tuple[float, float], dict[str, Any]] = field(default_factory=dict)  # the best ridge of both, its error

    def survey(self) -> None:
        """Try a small grid: of the scale sigma_b2 first, then of the ratio of both."""
        _, b2, c2 = self.start.variances
        if "sigma_b2" in self.free and not self._one_ratio:
            lift = 0.1 if "sigma_c2" in self.free else 0.0  # so that a missing bias does not decide on the scale
            for u in (-0.5, 0.0, 0.5):
                self._error(b2 * 10**u, max(c2, lift * (b2 * 10**u)))
            b2 = self.ranked()[0]["sigma_b2"]
        if "sigma_c2" in self.free:
            for u in (-1.0, 0.0, 1.0) if self._one_ratio else (-1.0, 0.0):
                self._error(b2, b2 * 10**u)
            self._error(b2, 0.0)
        if not self.tried:
            self._error(b2, c2)

    def refine(self, most: int) -> None:
        """Take golden-section steps from the best so far: in the scale, then in the ratio; ``most`` of these two."""
        steps = []
        if "sigma_b2" in self.free and not self._one_ratio:
            ratio = (lambda c2, u: c2 * 10**u) if "sigma_c2" in self.free else (lambda c2, u: c2)
            steps.append((lambda b2, c2, u: self._error(b2 * 10**u, ratio(c2, u)), 0.5))
        if "sigma_c2" in self.free:
            steps.append((lambda b2, c2, u: self._error(b2, c2 * 10**u), 1.0))
        for error, width in steps[:most]:
            b2, c2 = (self.ranked()[0][name] for name in ("sigma_b2", "sigma_c2"))
            if width < 1.0 or c2 > 0.0:
                bounds, options = (-width, width), {"maxiter": 3}
                along = functools.partial(error, b2, c2)
                scipy.optimize.minimize_scalar(along, bounds=bounds, method="bounded", options=options)

    @property
    def _one_ratio(self) -> bool:
        """Whether sigma_b2 is only the unit of the kernel and of sigma_c2."""
        unit = "sigma_c2" in self.free or self.start.variances[2] == 0.0
        return unit and all(phi.homogeneity == 1.0 for phi in self.start.activations)

    def ranked(self) -> list[dict[str, Any]]:
        """Return what was tried, the best first."""
        return sorted(self.tried.values(), key=lambda found: found["error"])

    def _error(self, b2: float, c2: float) -> float:
        b2, c2 = float(b2), float(c2)
        if (b2, c2) not in self.tried:
            phi = self.start.activation
            kernel = NetworkKernel(DEQ(phi, self.start.variances[0], b2, c2), self.kernel)
            ridge, error = best_ridge(kernel, self.problem, self.ridge, self.loss)
            found = {"sigma_b2": b2, "sigma_c2": c2, "ridge": ridge, "error": error}
            self.tried[b2, c2] = {"activation": phi.name, **found}
        return float(self.tried[b2, c2]["error"])


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
