"""Newton's method for many equations in one unknown at once, inside a bracket.

Complex numbers have no bracket (:func:`unbracketed`). Other loops are for equilibria, which are vectors
(``_equilibrium.py``), and for Stieltjes transforms, which are coupled, one per class (``spectra/population.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ._arrays import Array

Equation = Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]]
"""(x, which) -> residual and its slope at x; ``which`` are the numbers of the equations asked for, ``None`` all."""

_STILL = 4e-16  # a step below this part of the size of x is rounding


@dataclass(frozen=True)
class Root:
    """The end of an iteration; a caller that needs the root raises an error unless ``converged``."""

    value: Tensor
    residual: float  # the largest, relative to the size of its unknown
    steps: int
    converged: bool


def newton(
    equation: Equation,
    start: Tensor,
    low: Tensor,
    high: Tensor,
    size: Tensor | None = None,
    *,
    flattest: float = 1e-3,
    far: Tensor | None = None,
    steps: int = 100,
    still: float = _STILL,
) -> Root:
    """Find a root of each equation in [low, high]; the residual is not positive at ``low``, not negative at ``high``.

    A Newton step that leaves the bracket, or meets a slope that is not a number, is replaced by bisection (by
    doubling, while ``high`` is infinite). ``size`` is what residuals are compared with, |x| unless given; slopes below
    ``flattest`` are taken as that; beyond ``far`` the search is given up. A step below ``still`` is the last one: of a
    function without kinks 1e-8 will do, since the error that it leaves is of the order of its square.
    """
    roots, sizes, active = start.clone(), size, torch.arange(len(start), device=start.device)
    x, last = start, torch.full_like(start, math.inf)
    for step in range(1, steps + 1):
        residual, slope = equation(x, None if len(x) == len(roots) else active)
        scale, wrong = x.abs() if size is None else size, residual.abs()
        low, high = torch.where(residual <= 0, x, low), torch.where(residual >= 0, x, high)
        trial = x - residual / slope.clamp_min(flattest)
        middle = torch.where(torch.isinf(high), 2.0 * x + start, 0.5 * (low + high))
        there = torch.where((trial >= low) & (trial <= high), trial, middle)
        move = (there - x).abs()
        # near duplicates of kinked layers every digit of a residual counts
        rests = (move <= still * scale) | (high - low <= _STILL * scale) | (wrong <= 0.5 * _STILL * scale)
        stalled = (wrong >= last) & (move <= 25.0 * _STILL * scale)  # what is evaluated knows no better
        settled = torch.isfinite(residual) & (rests | stalled)
        x, last = there, wrong
        done = int(settled.sum())
        if done == len(x):
            roots[active] = x
            return Root(roots, _relative(residual, scale), step, True)
        if far is not None and bool((x > far).any()):
            break
        if 2 * done > len(x):  # go on with the others
            roots[active], left = x, ~settled
            active, x, last, low, high, start = (part[left] for part in (active, x, last, low, high, start))
            size, far = (None if part is None else part[left] for part in (size, far))
    roots[active] = x
    residual = equation(roots, None)[0]
    worst = _relative(residual, roots.abs() if sizes is None else sizes)
    return Root(roots, worst, step, worst <= 1e-13)


def unbracketed(
    equation: Callable[[Array], tuple[Array, Array]], start: Array, size: Array
) -> tuple[Array, NDArray[np.bool_]]:
    """Run Newton's method alone, from ``start``; return where it ended, and which of the equations have settled there.

    A step of 1e-9 of the ``size`` is the last one: the next would be below rounding.
    """
    x = start
    for _ in range(60):
        residual, slope = equation(x)
        move = residual / slope
        x = x - move
        if not bool(np.any(np.abs(move) > 1e-9 * size)):
            break
    return x, np.asarray(np.abs(move) <= 1e-9 * size)


def _relative(residual: Tensor, scale: Tensor) -> float:
    worst = float((residual.abs() / scale.clamp_min(1e-300)).max()) if len(residual) else 0.0
    return math.inf if math.isnan(worst) else worst
