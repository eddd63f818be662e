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

from ..activations import Activation
from ..networks import Kernel
from ..solve import NetworkKernel
from ..solve.dense import leave_one_out_path
from ._limits import LIMITS
from .machine import Problem, mean_diagonal
from .standardise import Scale

GRID = tuple(float(r) for r in np.logspace(-8, 1, 37))  # of ridges relative to the mean diagonal: four to a decade
Loss = Callable[[Tensor], Tensor]  # of predictions, (n, k): the share of each row, (n,), in the error
FIRST = ((1.0, 0.1), (10**-0.5, 0.1), (10**0.5, 1.0))  # sigma_b2 by its start, and sigma_c2 / sigma_b2: tried first
ACTIVATIONS = ("relu", "sin")  # to choose from: a kernel with a kink and a smooth one, both of closed form


class Choice(NamedTuple):
    """What decides on a kernel: how rows are scaled, and the network."""

    scale: Scale
    network: Any

    def moved(self, b2: float, c2: float) -> Choice:
        """Return the same DEQ with other variances of its input weights and biases."""
        return Choice(self.scale, self.network.varied(None, float(b2), float(c2)))

    @property
    def inner(self) -> tuple[float, ...]:
        """The variances of the input weights and biases of a DEQ; other networks have none."""
        return tuple(getattr(self.network, "given_variances", ())[1:])

    @property
    def activations(self) -> tuple[Activation, ...]:
        """The activations of the network."""
        layers: tuple[Activation, ...] = self.network.activations
        return layers

    @property
    def homogeneous(self) -> bool:
        """Whether all activations are homogeneous."""
        return all(phi.homogeneity == 1.0 for phi in self.activations)

    @property
    def named(self) -> dict[str, Any]:
        """The scale, and for a DEQ the name of its activation and the variances of its input weights and biases."""
        inner = dict(zip(("sigma_b2", "sigma_c2"), self.inner, strict=False))
        return {"scale": self.scale} | ({"activation": self.activations[0].name} if inner else {}) | inner


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
        self._survey(starts, few)
        for trial in self._ranked(few)[: LIMITS.finalists]:
            self._error(trial["choice"], many)
        best, *others = self._ranked(many)
        ridges = {rows: trial["ridge"] for (choice, rows), trial in self.tried.items() if choice == best["choice"]}
        record = best["choice"].named | {"ridge": self.ridge or extrapolated(ridges, total), "error": best["error"]}
        runners = [one["choice"].named | {name: one[name] for name in ("ridge", "error")} for one in others[:3]]
        kernels = len({choice for choice, _ in self.tried})
        return best["choice"], record | {"rows": many, "kernels": kernels, "runners_up": runners}

    def _survey(self, starts: Sequence[Choice], rows: int) -> None:
        """Compare scales and activations, then try a grid of variances for the best and refine it."""
        if not self.free:
            for start in starts:
                self._error(start, rows)
            return
        # one activation is tried far from the straight line, too, where sigmoid and others are on rows of norm one
        points = FIRST[: 3 if len({start.network for start in starts}) == 1 else 2]
        for start in starts:
            b2, c2 = start.inner
            for u, ratio in points if self._scaled(start) else points[:1]:
                self._try(start, rows, b2 * u, ratio * b2 * u if "sigma_c2" in self.free else c2)
        best = self._ranked(rows)[0]["choice"]
        for u in (-0.5, 0.5) if self._scaled(best) else ():
            self._shifted(best, rows, u)
        b2, c2 = self._ranked(rows)[0]["choice"].inner
        if "sigma_c2" in self.free:
            for ratio in (0.01, 1.0, 10.0) if best.homogeneous else (0.01, 1.0):  # without any, near rows are slow
                if abs(math.log(ratio * b2 / c2)) > 1.0:
                    self._try(best, rows, b2, b2 * ratio)
        best = self._ranked(rows)[0]["choice"]
        width, along = 0.5 if self._scaled(best) else 1.0, functools.partial(self._shifted, best, rows)
        scipy.optimize.minimize_scalar(along, bounds=(-width, width), method="bounded", options={"maxiter": 3})

    def _shifted(self, choice: Choice, rows: int, u: float) -> float:
        """Try the free variances times 10^u."""
        b2, c2 = choice.inner
        scales = self._scaled(choice), "sigma_c2" in self.free
        return self._try(choice, rows, b2 * 10 ** (scales[0] * u), c2 * 10 ** (scales[1] * u))

    def _scaled(self, choice: Choice) -> bool:
        """Return whether sigma_b2 is free and more than the unit of the kernel and of sigma_c2."""
        unit = choice.homogeneous and ("sigma_c2" in self.free or choice.inner[1] == 0.0)
        return "sigma_b2" in self.free and not unit

    def _ranked(self, rows: int) -> list[dict[str, Any]]:
        """Return what was tried on so many rows, the best first."""
        return sorted((one for (_, n), one in self.tried.items() if n == rows), key=lambda trial: trial["error"])

    def _try(self, choice: Choice, rows: int, b2: float, c2: float) -> float:
        """Return the error with these variances, or where sigma_b2 is free with one at which the kernel is quick."""
        if "sigma_b2" in self.free and any(phi.closed_form() is None for phi in choice.activations):
            b2 = min(b2, widest(self.problems[choice.scale].X))
        return self._error(choice.moved(b2, c2), rows)

    def _error(self, choice: Choice, rows: int) -> float:
        if (choice, rows) not in self.tried:
            full = self.problems[choice.scale]
            problem = full if rows == len(full.X) else full.at(slice(rows))
            loss = loss_of(problem, None if self.codes is None else self.codes[:rows])
            ridge, error = best_ridge(NetworkKernel(choice.network, self.kernel), problem, self.ridge, loss)
            self.tried[choice, rows] = {"choice": choice, "ridge": ridge, "error": error}
        return float(self.tried[choice, rows]["error"])


def widest(X: Tensor) -> float:
    """Return the largest sigma_b2 at which a kernel without closed form is quick to compute for these rows."""
    squares = X.square().sum(1)
    return min(5.0 / max(float(squares.mean()), 1e-300), 15.0 / max(float(squares.max()), 1e-300))


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
    path = leave_one_out_path(K, right, problem.weights)

    @functools.cache
    def error(i: int) -> float:
        return float(loss(problem.left_out(path((ridge or GRID[i]) * mean))).sum())

    if ridge is not None:
        return ridge, error(0)
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

    def loss(predicted: Tensor) -> Tensor:
        return problem.weights * ((predicted - problem.mean - problem.targets) / unit).square().sum(1) / scale

    return loss


def log_loss(problem: Problem, codes: Tensor) -> Loss:
    """Return the loss of classification: minus the mean log likelihood, at the temperature that is best for it."""
    weights, t = problem.weights / problem.weights.sum(), 1.0

    def loss(predicted: Tensor) -> Tensor:
        nonlocal t  # that of a similar problem is a good start
        scores = predicted if predicted.shape[1] > 1 else torch.cat([-predicted, predicted], dim=1)
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
