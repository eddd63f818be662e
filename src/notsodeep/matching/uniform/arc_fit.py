"""Fits of homogeneous layers to the one function that decides: bends per layer, weights per term."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ...networks import Kernel
from ..arc import Array, HomogeneousDEQ, grid, terms
from . import minimax

FIT_CELLS = 160


@dataclass(frozen=True)
class Fit:
    """Bends per layer, weights per term and kernel, and the largest error on the fitting grid."""

    bends: Array
    weights: tuple[Array, ...]
    error: float


@dataclass(frozen=True)
class Problem:
    """One or several kernels of a DEQ to be met by one network."""

    deq: HomogeneousDEQ
    kinds: tuple[Kernel, ...]
    lower: float = 0.0
    upper: float = 2.0

    @property
    def targets(self) -> list[Array]:
        _, rho = grid(FIT_CELLS)
        return [self.deq.profile(rho, kind) for kind in self.kinds]

    def blocks(self, parameters: Array) -> list[Array]:
        _, rho = grid(FIT_CELLS)
        return [terms(rho, parameters, kind) for kind in self.kinds]


def fit(problem: Problem, starts: Iterable[Sequence[float]]) -> Fit:
    """The best local minimax fit from several starting bends."""
    found = minimax.solve(problem, starts)
    return Fit(found.parameters, found.weights, found.error)


def deeper_starts(problem: Problem, shallow: Fit | None) -> list[list[float]]:
    """Starts for one more layer: a short step before, after or inside the shallower optimum."""
    h, c0 = problem.deq.step, problem.deq.bend
    if shallow is None:
        return [[min(2.0, c0 + 0.2 * h)], [min(2.0, c0 + h)]]
    step = min(0.3, 0.5 * h)
    inside = [np.insert(shallow.bends, i, step).tolist() for i in range(len(shallow.bends) + 1)]
    if len(shallow.bends) == 1:
        inside += [[min(h, 1.0), c0], [c0, min(h, 1.0)], [0.5 * c0, 0.5 * c0]]
    return inside


def fit_depth(problem: Problem, depth: int, shallow: Fit | None = None) -> Fit:
    """Fit by continuation in depth, from the fit one layer shallower (found here if not given)."""
    if depth > 1 and (shallow is None or len(shallow.bends) != depth - 1):
        shallow = fit_depth(problem, depth - 1)
    return fit(problem, deeper_starts(problem, shallow if depth > 1 else None))
