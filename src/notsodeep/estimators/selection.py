"""Scale of the rows, activation, variances and ridge of a machine, chosen together by exact leave-one-out errors.

Many kernels are compared on few rows and the best of them on more rows. One eigendecomposition for each kernel serves
all ridges. Variances come from a small grid, which is refined by golden-section steps around its best point.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from ..networks import Dense, Kernel
from ..solve import NetworkKernel, solve_dense
from ..solve.dense import leave_one_out_path
from ..solve.network import Source
from ._limits import LIMITS
from .machine import Problem, mean_diagonal
from .standardise import Scale

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))  # of ridges relative to the mean diagonal: four to a decade
Loss = Callable[[Tensor], Tensor]  # of predictions, (n, k): the share of each row, (n,), in the error
ACTIVATIONS = ("relu", "sin")  # to choose from: a kernel with a kink and a smooth one, both of closed form


class Choice(NamedTuple):
    """What decides on a kernel: how rows are scaled, and the network."""

    scale: Scale
    network: Source

    def moved(self, b2: float, c2: float) -> Choice:
        """Return the same DEQ with other variances of its input weights and biases."""
        deq: Any = self.network
        return Choice(self.scale, deq.varied(None, float(b2), float(c2)))

    @property
    def named(self) -> dict[str, Any]:
        """The scale, and for a DEQ the name of its activation and the variances of its input weights and biases."""
        deq: Any = self.network
        known = isinstance(deq, Dense) and deq.implicit
        inner = dict(zip(("sigma_b2", "sigma_c2"), deq.variances[1:], strict=True)) if known else {}
        return {"scale": self.scale} | ({"activation": deq.activations[0].name} if known else {}) | inner


@dataclass(eq=False)
class Search:
    """The search for the kernel and the ridge with the least leave-one-out error."""

    kernel: Kernel
    problems: Mapping[Scale, Problem]  # a sample of the rows in random order, scaled in every way that is tried
    codes: Tensor | None  # classes of the rows
    ridge: float | None  # the given one, if it is not free
    free: Sequence[str] = ()  # which of sigma_b2 and sigma_c2 are to be chosen
    tried: dict[tuple[Choice, int], dict[str, Any]] = field(default_factory=dict)

    def run(self, starts: Sequence[Choice], total: int) -> tuple[Choice, dict[str, Any]]:
        """Return the best choice and a record of it; the ridge is that for ``total`` rows."""
        many = len(next(iter(self.problems.values())).X)
        few = min(many, LIMITS.survey_rows)
        if len(starts) > 1 or self.free:
            self._survey(starts, few)
        finalists = [found["choice"] for found in self._ranked(few)[: LIMITS.finalists]] or list(starts)
        for choice in finalists:
            self._error(choice, many)
        best, *others = self._ranked(many)
        ridges = {rows: found["ridge"] for (choice, rows), found in self.tried.items() if choice == best["choice"]}
        record = best["choice"].named | {"ridge": self.ridge or extrapolated(ridges, total), "error": best["error"]}
        runners = [one["choice"].named | {name: one[name] for name in ("ridge", "error")} for one in others[:3]]
        kernels = len({choice for choice, _ in self.tried})
        return best["choice"], record | {"rows": many, "kernels": kernels, "runners_up": runners}

    def _survey(self, starts: Sequence[Choice], rows: int) -> None:
        """Compare scales and activations, then try a grid of variances for the best and refine it."""
        for start in starts:
            for choice in self._first(start):
                self._error(choice, rows)
        best = self._ranked(rows)[0]["choice"]
        if not self.free:
            return
        _, b2, c2 = best.network.variances
        one_ratio = self._one_ratio(best)
        if "sigma_b2" in self.free and not one_ratio:
            follows = c2 / b2 if "sigma_c2" in self.free else 0.0
            for u in (-0.5, 0.5):
                self._try(best, rows, b2 * 10**u, max(c2, follows * b2 * 10**u) if u > 0 else min(c2, c2 * 10**u))
            _, b2, c2 = self._ranked(rows)[0]["choice"].network.variances
        if "sigma_c2" in self.free:
            for ratio in (0.01, 1.0, 10.0) if one_ratio else (0.01, 1.0):  # without any, near rows are slow
                self._try(best, rows, b2, b2 * ratio)
        self._refine(rows, one_ratio)

    def _first(self, start: Choice) -> list[Choice]:
        """Return the kernels by which scales and activations are compared, with a bias if it is to be chosen."""
        if not self.free:
            return [start]
        deq: Any = start.network
        _, b2, c2 = deq.variances
        scales = (1.0, 10**-0.5) if "sigma_b2" in self.free and not self._one_ratio(start) else (1.0,)
        return [start.moved(b2 * u, 0.1 * b2 * u if "sigma_c2" in self.free else c2) for u in scales]

    def _refine(self, rows: int, one_ratio: bool) -> None:
        """Take golden-section steps from the best so far: in the scale of the variances, or in their ratio."""
        best = self._ranked(rows)[0]["choice"]
        _, b2, c2 = best.network.variances
        scaled = "sigma_b2" in self.free and not one_ratio
        along: Any = None
        if scaled:
            ratio = 1.0 if "sigma_c2" in self.free else 0.0
            along = lambda u: self._try(best, rows, b2 * 10**u, c2 * 10 ** (ratio * u))  # noqa: E731
        elif c2 > 0.0 and "sigma_c2" in self.free:
            along = lambda u: self._try(best, rows, b2, c2 * 10**u)  # noqa: E731
        if along is not None:
            width, options = 0.5 if scaled else 1.0, {"maxiter": 3}
            scipy.optimize.minimize_scalar(along, bounds=(-width, width), method="bounded", options=options)

    def _one_ratio(self, choice: Choice) -> bool:
        """Return whether sigma_b2 is only the unit of the kernel and of sigma_c2."""
        deq: Any = choice.network
        unit = "sigma_c2" in self.free or deq.variances[2] == 0.0
        return unit and all(phi.homogeneity == 1.0 for phi in deq.activations)

    def _ranked(self, rows: int) -> list[dict[str, Any]]:
        """Return what was tried on so many rows, the best first."""
        return sorted((one for (_, n), one in self.tried.items() if n == rows), key=lambda found: found["error"])

    def _try(self, choice: Choice, rows: int, b2: float, c2: float) -> float:
        most = widest(self.problems[choice.scale].X) if _slow(choice.network) else math.inf
        return self._error(choice.moved(min(b2, most), c2), rows)

    def _error(self, choice: Choice, rows: int) -> float:
        if (choice, rows) not in self.tried:
            whole = self.problems[choice.scale]
            problem = whole if rows == len(whole.X) else whole.at(slice(rows))
            loss = loss_of(problem, None if self.codes is None else self.codes[:rows])
            ridge, error = best_ridge(NetworkKernel(choice.network, self.kernel), problem, self.ridge, loss)
            self.tried[choice, rows] = {"choice": choice, "ridge": ridge, "error": error}
        return float(self.tried[choice, rows]["error"])


def widest(X: Tensor) -> float:
    """Return the largest sigma_b2 at which a kernel without closed form is quick to compute for these rows."""
    squares = X.square().sum(1)
    return min(5.0 / max(float(squares.mean()), 1e-300), 15.0 / max(float(squares.max()), 1e-300))


def _slow(network: Any) -> bool:
    return any(phi.closed_form() is None for phi in network.activations)


def extrapolated(ridges: Mapping[int, float], total: int) -> float:
    """Return the ridge for many rows from those that were best for samples of some sizes.

    Fewer rows leave more of the target unresolved, which acts as noise: on tables and images the best ridge falls about
    as the number of rows to the power -0.6. Single ridges are too noisy for a power of their own.
    """
    most = max(ridges)
    if most >= total:
        return ridges[most]
    logs = [math.log(ridge) + LIMITS.ridge_power * math.log(rows / total) for rows, ridge in ridges.items()]
    return max(math.exp(sum(logs) / len(logs)), GRID[0])


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
        return ridge, float(loss(problem.left_out(left_out[0])).sum())
    path = leave_one_out_path(K, right, problem.weights)

    @functools.cache
    def error(i: int) -> float:
        return float(loss(problem.left_out(path(GRID[i] * mean))).sum())

    at = min(range(0, len(GRID), 4), key=error)  # one to a decade first
    least = min(map(error, range(max(at - 3, 0), min(at + 4, len(GRID)))))
    best = max((i for i in range(0, len(GRID), 4) if error(i) <= 1.001 * least), default=at)
    best = max(i for i in range(best, min(best + 4, len(GRID))) if i == best or error(i) <= 1.001 * least)
    return GRID[best], error(best)


def loss_of(problem: Problem, codes: Tensor | None) -> Loss:
    """Return the loss of classification where there are classes, else that of regression."""
    return squared_error(problem) if codes is None else log_loss(problem, codes)


def squared_error(problem: Problem) -> Loss:
    """Return the loss of regression: the weighted squared error relative to that of the mean, summed over outputs."""
    unit = float(problem.targets.abs().max()) or 1.0  # no square over- or underflows
    scale = float((problem.weights @ (problem.targets / unit).square()).sum()) or 1.0

    def loss(found: Tensor) -> Tensor:
        return problem.weights * ((found - problem.mean - problem.targets) / unit).square().sum(1) / scale

    return loss


def log_loss(problem: Problem, codes: Tensor) -> Loss:
    """Return the loss of classification: minus the mean log likelihood, at the temperature that is best for it."""
    weights, t = problem.weights / problem.weights.sum(), 1.0

    def loss(found: Tensor) -> Tensor:
        nonlocal t  # that of a similar problem is a good start
        scores = found if found.shape[1] > 1 else torch.cat([-found, found], dim=1)
        right = scores.gather(1, codes[:, None])[:, 0]
        for _ in range(20):  # Newton's steps on a concave function; each at most doubles or halves
            p = torch.softmax(t * scores, dim=1)
            mean = (p * scores).sum(1)
            slope, bend = float(weights @ (right - mean)), float(weights @ ((p * scores**2).sum(1) - mean**2))
            before, t = t, min(max(t + slope / max(bend, 1e-12), 0.5 * t), 2.0 * t)
            if abs(t - before) < 1e-3 * t or not 1e-3 < t < 1e4:
                break
        t = min(max(t, 1e-3), 1e4)
        return -weights * torch.log_softmax(t * scores, dim=1).gather(1, codes[:, None])[:, 0]

    return loss
