"""What no odd explicit network can beat.

The kernel of a network of odd layers is, for fixed norms, a series in odd powers of rho with non-negative
coefficients, and its first coefficient is of rank one in the norms: m(x, y)^2 = m(x, x) m(y, y). A linear programme
says how small m(low, low) and m(high, high) and how large m(low, high) can be if the kernel is within eps of the
DEQ's at these norms; where even then m(low, high)^2 < m(low, low) m(high, high), no such network exists, of any depth.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from ..errors import InvalidInputError
from ..kernels import pairwise
from ..networks import DEQ
from ..plots.figures import draw_odd
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "odd_lower_bound"]

Array = NDArray[np.float64]
_POINTS, _DEGREE = 200, 61


def odd_lower_bound(deq: DEQ, norms: tuple[float, float], steps: int = 14) -> float:
    """A lower bound on the relative CK error of every odd explicit network, from the pairs of the two norms alone."""
    if deq.activation.parity != "odd":
        raise InvalidInputError(f"the argument needs an odd activation, got {deq.activation!r}")
    cosine = np.cos(np.linspace(0.0, 0.5 * math.pi, _POINTS))
    powers = np.stack([cosine**k for k in range(1, _DEGREE, 2)], axis=1)
    low, mixed, high = (_profile(deq, norms, pair, cosine) for pair in ((0, 0), (0, 1), (1, 1)))

    def possible(eps: float) -> bool:
        ends = [_first(powers, low, eps, 1.0), _first(powers, high, eps, 1.0), _first(powers, mixed, eps, -1.0)]
        return None not in ends and ends[2] ** 2 >= ends[0] * ends[1]  # type: ignore[operator]

    below, above = 0.0, 0.1
    for _ in range(steps):
        middle = 0.5 * (below + above)
        below, above = (below, middle) if possible(middle) else (middle, above)
    return below


def _profile(deq: DEQ, norms: tuple[float, float], pair: tuple[int, int], cosine: Array) -> Array:
    """The CK at the two norms of a pair, divided by the geometric mean of the diagonals."""
    x, y = (norms[i] for i in pair)
    first = torch.tensor([x * x] * len(cosine) + [x * x, y * y], dtype=torch.float64)
    second = torch.tensor([y * y] * len(cosine) + [x * x, y * y], dtype=torch.float64)
    inner = torch.tensor([*(x * y * cosine), x * x, y * y], dtype=torch.float64)
    *values, at_x, at_y = pairwise(deq, first, second, inner, ("ck",))["ck"].tolist()
    return np.array(values) / math.sqrt(at_x * at_y)


def _first(powers: Array, target: Array, eps: float, sign: float) -> float | None:
    """The extreme first coefficient of a non-negative odd series within eps of the target."""
    cost = np.zeros(powers.shape[1])
    cost[0] = sign
    solved = linprog(
        cost, A_ub=np.vstack([powers, -powers]), b_ub=np.concatenate([target + eps, eps - target]), method="highs"
    )
    return None if solved.x is None else float(solved.x[0])


# ---- points --------------------------------------------------------------------------------------------------


BOXES = ((0.5, 1.5), (0.8, 1.2))
CASES = (("tanh", 0.1), ("tanh", 0.2), ("erf", 0.1865), ("arctan", 0.2), ("sin", 0.2))


def points(setup: Setup) -> list[Point]:
    """One point per activation and sigma_a2, with the bound for two ranges of norms."""

    def point(name: str, sigma_a2: float) -> Point:
        settings = {"activation": name, "sigma_a2": sigma_a2, "norms": BOXES}
        return Point(f"{name}/{sigma_a2}", settings, lambda: {"bounds": _bounds(DEQ(name, sigma_a2))})

    return [point(*case) for case in (CASES[:2] if setup.quick else CASES)]


def _bounds(deq: DEQ) -> dict[str, float]:
    return {f"{low} to {high}": odd_lower_bound(deq, (low, high)) for low, high in BOXES}


EXPERIMENT = Experiment("uniform_odd", "What no explicit network of odd layers can reach", points, draw_odd)
