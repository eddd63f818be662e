"""Features that a kernel machine learns: the directions in which its outputs vary (theory, section 21).

A machine f = K(., X) a is fitted, M = mean of grad f grad f' over rows and outputs is computed from the exact slopes of
the kernel, and the next machine sees the rows M^(1/2) x (Radhakrishnan and others 2024). Whether this helps, in how
many rounds, and whether M is diagonal, is decided by errors on rows that M did not see: leave-one-out errors fall even
where M follows the noise of the rows it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..solve import NetworkKernel
from ._limits import LIMITS
from .machine import FittedMachine, Problem, fit_machine
from .selection import best_ridge, extrapolated, loss_of
from .specification import sample_of, scales_of

Kind = Literal["diagonal", "full"]
Wanted = Literal["auto", "diagonal", "full"] | None


@dataclass(frozen=True, eq=False)
class Features:
    """Rows become x r for the root r of M, (p, p), or (p,) where M is diagonal; it keeps the mean squared norm one."""

    root: Tensor

    def __call__(self, X: Tensor) -> Tensor:
        """Return the rows as the kernel sees them, (n, p)."""
        root = self.root.to(X)
        return X * root if root.ndim == 1 else X @ root

    @property
    def matrix(self) -> Tensor:
        """M, (p, p), of trace p."""
        M = self.root.diag() if self.root.ndim == 1 else self.root
        return M @ M * (len(M) / float(self.root.square().sum()))


def outer_products(machine: FittedMachine, weights: Tensor, kind: Kind, most: int) -> Tensor:
    """Return the sum over outputs and the weighted mean over rows of grad f grad f', (p, p), or its diagonal, (p,).

    It is that of coefficients of which the largest is 1, since a factor of M changes nothing.

    With the slopes k_c in x . y and k_q in |x|^2, grad f(x) = sum_i a_i (k_c(x, x_i) x_i + 2 k_q(x, x_i) x). At
    ``most`` so many random rows count. M is the same for outputs that are rotated: of many, the largest directions
    are taken.
    """
    X, p = machine.X, machine.X.shape[1]
    a = machine.coefficients / (float(machine.coefficients.abs().max()) or 1.0)  # no square over- or underflows
    if a.shape[1] > LIMITS.gradient_outputs:
        a = a @ torch.linalg.svd(a, full_matrices=False).Vh[: LIMITS.gradient_outputs].T
    index = torch.randperm(len(X), generator=torch.Generator().manual_seed(0))[:most].to(X.device)
    M = X.new_zeros(p) if kind == "diagonal" else X.new_zeros(p, p)
    for part in index.split(LIMITS.gradient_block):
        rows, share = X[part], weights[part].sqrt()[:, None]
        slopes = machine.kernel.slopes(rows, X)
        radial = 2.0 * (slopes.square @ a)
        for j in range(a.shape[1]):
            gradients = share * ((slopes.inner * a[:, j]) @ X + radial[:, j : j + 1] * rows)
            M += gradients.square().sum(0) if kind == "diagonal" else gradients.T @ gradients
    return M / weights[index].sum()


def following(machine: FittedMachine, problem: Problem, before: Features | None, kind: Kind, most: int) -> Features:
    """Return the features of the next round, for the rows of ``problem`` as they were before the first.

    A large ridge leaves little of f but its straight part, so that M is made with a small one.
    """
    if machine.ridge > LIMITS.feature_ridge:
        machine = fit_machine(machine.kernel, problem.seen(before), LIMITS.feature_ridge, "cholesky")
    M = outer_products(machine, problem.weights, kind, most)
    M = M / (float(M.abs().max()) or 1.0)
    if kind == "diagonal":
        root = M.sqrt() if before is None else M.sqrt() * before.root
    else:
        M = M if before is None else before.root @ M @ before.root
        values, vectors = torch.linalg.eigh(0.5 * (M + M.T))
        root = (vectors * values.clamp_min(0.0).sqrt()) @ vectors.T
    X, w = problem.X, problem.weights
    size = float(w @ Features(root)(X).square().sum(1) / w.sum())
    return Features(root / math.sqrt(size)) if size > 0.0 else Features(X.new_ones(X.shape[1]))  # f is constant


@dataclass(eq=False)
class Rounds:
    """Rounds of learning on the folds of a sample, each with predictions of rows that M did not see."""

    kernel: NetworkKernel
    problem: Problem  # of a sample of the rows, in random order
    codes: Tensor | None
    ridge: float | None  # the given one, if it is not free
    ridges: dict[tuple[Kind | None, int], float] = field(default_factory=dict)
    shares: dict[tuple[Kind | None, int], Tensor] = field(default_factory=dict)  # of each row in the error

    def choose(self, kinds: Sequence[Kind], forced: bool) -> tuple[Kind | None, int]:
        """Return the kind and the number of rounds; unless ``forced``, none if they do not win by a standard error."""
        n = len(self.problem.X)
        self.parts = [torch.arange(n) % LIMITS.folds == fold for fold in range(LIMITS.folds)]
        plain: list[Any] = [(None, self._machine(part, None)) for part in self.parts]
        self._note((None, 0), plain)
        for kind in kinds:
            self._run(kind, plain)
        order = sorted((key for key in self.shares if key[1]), key=lambda key: float(self.shares[key].sum()))
        diagonal = [key for key in order if key[0] == "diagonal"]
        best = order[0] if not diagonal or self._wins(order[0], diagonal[0]) else diagonal[0]
        return best if forced or self._wins(best, (None, 0)) else (None, 0)

    def _run(self, kind: Kind, states: list[Any]) -> None:
        """Go on until two rounds in a row do not help, or another kind is far better."""
        best = least = min(float(shares.sum()) for shares in self.shares.values())
        idle = 0
        for number in range(1, LIMITS.rounds + 1):
            after = []
            for fold, (features, machine) in zip(self.parts, states, strict=True):
                fresh = following(machine, self.problem.at(~fold), features, kind, LIMITS.gradient_rows[0])
                after.append((fresh, self._machine(fold, fresh)))
            states = after
            self._note((kind, number), states)
            error = float(self.shares[kind, number].sum())
            idle = 0 if error < (1.0 - LIMITS.least_gain) * least else idle + 1
            if idle == 2 or (number > 1 and error > 2.0 * best):
                break
            least = min(least, error)

    def _machine(self, fold: Tensor, features: Features | None) -> FittedMachine:
        """Fit to the rows outside a fold, with a ridge of its own."""
        problem = self.problem.at(~fold).seen(features)
        codes = None if self.codes is None else self.codes[~fold]
        ridge = self.ridge or best_ridge(self.kernel, problem, None, loss_of(problem, codes))[0]
        return fit_machine(self.kernel, problem, ridge, "cholesky")

    def _note(self, key: tuple[Kind | None, int], states: list[Any]) -> None:
        """Store the ridge of a round, and what every row adds to the error of predictions without it."""
        predicted = torch.empty_like(self.problem.targets)
        for fold, (features, machine) in zip(self.parts, states, strict=True):
            rows = self.problem.X[fold]
            predicted[fold] = machine.predict(rows if features is None else features(rows))
        self.shares[key] = loss_of(self.problem, self.codes)(predicted)
        self.ridges[key] = math.exp(sum(math.log(machine.ridge) for _, machine in states) / len(states))

    def _wins(self, key: tuple[Kind | None, int], other: tuple[Kind | None, int]) -> bool:
        """Return whether the error is lower by more than a standard error."""
        gain = self.shares[other] - self.shares[key]
        return float(gain.sum()) > float(gain.std()) * len(gain) ** 0.5

    def ridge_at(self, key: tuple[Kind | None, int], total: int) -> float:
        """Return the ridge of a round for so many rows."""
        rows = len(self.problem.X) * (LIMITS.folds - 1) // LIMITS.folds
        return self.ridge or extrapolated({rows: self.ridges[key]}, total)

    def learn(self, problem: Problem, kind: Kind, number: int) -> Features:
        """Run the rounds that were chosen on all rows, or on a part of many."""
        sample = problem if len(problem.X) <= LIMITS.feature_rows else problem.at(slice(-LIMITS.feature_rows, None))
        features: Features | None = None
        for before in range(number):
            ridge = self.ridge_at((kind if before else None, before), len(sample.X))
            machine = fit_machine(self.kernel, sample.seen(features), ridge, "cholesky")
            features = following(machine, sample, features, kind, LIMITS.gradient_rows[1])
        assert features is not None
        return features


def learn_features(
    kernel: NetworkKernel, problem: Problem, codes: Tensor | None, ridge: float | None, wanted: Wanted
) -> tuple[Features | None, dict[str, Any]]:
    """Return features that are wanted, or of the kind that wins, and a record with the ridge for all rows."""
    (n, p), able = problem.X.shape, len(scales_of("auto", kernel.network)) > 1  # inputs are free, and may be mixed
    if wanted is None or (wanted == "auto" and (not able or n < LIMITS.least_rows or p == 1)):
        return None, {}
    if not able or n < LIMITS.folds * 2:
        raise InvalidInputError(
            f"features={wanted!r} needs a DEQ or an ENN, whose inputs may be mixed, and {LIMITS.folds * 2} rows or more"
        )
    most = LIMITS.selection_rows[1]
    sample = sample_of(n, most, most).to(problem.X.device)
    rounds = Rounds(kernel, problem.at(sample), None if codes is None else codes[sample], ridge)
    kind, number = rounds.choose(("diagonal", "full") if wanted == "auto" else (wanted,), forced=wanted != "auto")
    if kind is None:
        return None, {}
    features = rounds.learn(problem, kind, number)
    return features, {"features": kind, "rounds": number, "ridge": rounds.ridge_at((kind, number), n)}
