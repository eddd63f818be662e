"""Fits on a box: residual layers x + g phi(s x) + c, then one layer phi(s x) + d x + e, phi the DEQ's own activation.

The DEQ's pre-activations have the covariance Lambda = s2a E[phi phi] + s2b x.y; a residual layer is an explicit
stand-in for this equation, and the last layer repeats what the DEQ does with Lambda. Odd activations need no shifts.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares, nnls

from ...activations import Activation
from ...networks import DEQ
from . import minimax
from .arc import Array
from .box import Pairs, deq_at, enn_at

FIT_TERMS = 40
FIT_NORMS, FIT_ANGLES = 6, 17


@dataclass(frozen=True)
class BoxProblem:
    """Kernels of a DEQ on a coarse grid of the box, Chebyshev points in the norms, equidistant angles."""

    deq: DEQ
    kinds: tuple[str, ...]
    norms: tuple[float, float]
    depth: int
    terms: int = FIT_TERMS

    @property
    def shifts(self) -> bool:
        return self.deq.activation.parity != "odd"

    @functools.cached_property
    def pairs(self) -> Pairs:
        low, high = self.norms
        cheb = -np.cos(math.pi * np.arange(FIT_NORMS) / (FIT_NORMS - 1))
        return Pairs.tensor(0.5 * (low + high) + 0.5 * (high - low) * cheb, np.linspace(0.0, math.pi, FIT_ANGLES))

    @functools.cached_property
    def _reference(self) -> tuple[list[Array], list[Array]]:
        found = deq_at(self.deq, self.pairs, self.terms, self.kinds)
        roots = [np.sqrt(self.pairs.product(found.diagonals[k])) for k in self.kinds]
        return [found.kernels[k] / r for k, r in zip(self.kinds, roots, strict=True)], roots

    @property
    def targets(self) -> list[Array]:
        return self._reference[0]

    def blocks(self, parameters: Array) -> list[Array]:
        found = enn_at(self.activations(parameters), self.pairs, self.terms, self.kinds)
        return [found.kernels[k] / r for k, r in zip(self.kinds, self._reference[1], strict=True)]

    # -- parameters: (gain, scale[, shift]) per residual layer, (scale, skip[, shift]) for the last ------------
    @property
    def per_layer(self) -> int:
        return 3 if self.shifts else 2

    @property
    def lower(self) -> Array:
        return np.array(([0.0, 0.05, -4.0][: self.per_layer]) * (self.depth - 1) + [0.05, -2.0, -4.0][: self.per_layer])

    @property
    def upper(self) -> Array:
        return np.array(([4.0, 2.5, 4.0][: self.per_layer]) * (self.depth - 1) + [2.5, 2.0, 4.0][: self.per_layer])

    def activations(self, parameters: Array) -> list[Activation]:
        phi, size = self.deq.activation, self.per_layer
        rows = [[*map(float, parameters[i : i + size]), 0.0][:3] for i in range(0, len(parameters), size)]
        hidden = [phi.affine(gain=g, scale=s, skip=1.0, shift=c) for g, s, c in rows[:-1]]
        scale, skip, shift = rows[-1]
        return [*hidden, phi.affine(gain=1.0, scale=scale, skip=skip, shift=shift)]

    def starts(self, shallow: Sequence[float] | None) -> list[list[float]]:
        """One more residual layer in front of the shallower optimum."""
        scale = math.sqrt(float(self.deq.sigma_b2))
        zero = [0.0] if self.shifts else []
        last = [scale, 0.02, *zero]
        if self.depth == 1 or shallow is None:
            return [[*([0.4, scale, *zero] * (self.depth - 1)), *last]]
        if self.depth == 2:
            return [[0.5, scale, *zero, *last]]
        return [[0.1, scale, *zero, *shallow]]


def fit_box(problem: BoxProblem, shallow: Sequence[float] | None = None) -> minimax.Solution:
    """Least squares to arrive, linear programmes to balance the extremes."""
    starts = [_least_squares(problem, s) for s in problem.starts(shallow)]
    return minimax.solve(problem, starts, steps=30)


def _least_squares(problem: BoxProblem, start: Sequence[float]) -> list[float]:
    def residual(x: Array) -> Array:
        out = []
        for block, target in zip(problem.blocks(x), problem.targets, strict=True):
            weights, _ = nnls(block.T, target)
            out.append(weights @ block - target)
        return np.concatenate(out)

    low, high = problem.lower, problem.upper
    return least_squares(residual, np.clip(start, low + 1e-6, high - 1e-6), bounds=(low, high), max_nfev=40).x.tolist()
