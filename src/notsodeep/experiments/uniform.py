"""Twins without data.

``uniform_depth``: accuracy of plain layers against depth, for homogeneous DEQs: certified bounds of one to six
leaky-ReLU layers, also beyond the contraction range.

``uniform_odd``: what no odd explicit network can beat. The kernel of a network of odd layers is, for fixed norms, a
series in odd powers of rho with non-negative coefficients, and its first coefficient is of rank one in the norms:
m(x, y)^2 = m(x, x) m(y, y). A linear programme says how small m(low, low) and m(high, high) and how large m(low, high)
can be if the kernel is within eps of the DEQ's at these norms; where even then m(low, high)^2 < m(low, low)
m(high, high), no such network exists, of any depth.

``python -m notsodeep.experiments.uniform OUT.json`` makes the table of ReLU twins that ships with the library.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import linprog

from .._files import write_text
from ..activations import activation
from ..errors import InvalidInputError
from ..kernels import pairwise
from ..matching import kernel_names
from ..matching.arc import HomogeneousDEQ
from ..matching.arc_fit import BendFit, Problem, deeper_starts, fit
from ..matching.uniform import certified
from ..networks import DEQ, KERNELS, Kernel
from ..plots.figures.twins import draw_odd, draw_uniform
from .runner import Experiment, Point, Setup

Array = NDArray[np.float64]
FRACTIONS = (0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95)
"""Of the contraction limit."""
BEYOND = (0.5, 1.0, 1.5, 1.9)
SLOPE = 0.2  # of the leaky ReLU


def homogeneous_rows(name: str, sigma_a2: float, kernel: Kernel, depths: int = 6) -> Iterator[dict[str, Any]]:
    """Certified bounds of one homogeneous DEQ, for twins of growing depth."""
    phi = activation("leaky_relu", slope=SLOPE) if name == "leaky_relu" else activation(name)
    reduced = HomogeneousDEQ.of(DEQ(phi, sigma_a2, 1.0))
    shallow: BendFit | None = None
    for depth in range(1, depths + 1):
        found = certified(reduced, kernel, depth, 0.0, shallow, precise=True)
        shallow = found.fit
        yield {"depth": depth, "bound": found.bound, "sampled": found.sampled, "bends": found.fit.bends.tolist()}


def depth_points(setup: Setup) -> list[Point]:
    """One point per activation, sigma_a2 and kernel; each holds all depths."""

    def point(name: str, sigma_a2: float, kernel: Kernel, depths: int) -> Point:
        settings = {"activation": name, "sigma_a2": sigma_a2, "kernel": kernel, "norms": "all", "depths": depths}
        key = f"{name}/{sigma_a2:.4g}/{kernel}"
        return Point(key, settings, lambda: {"rows": list(homogeneous_rows(name, sigma_a2, kernel, depths))})

    if setup.quick:
        return [point("relu", s, "ck", 3) for s in (0.05, 0.2)]
    inside = [(name, f * 0.25) for name in ("relu", "leaky_relu") for f in FRACTIONS]
    pairs = [*inside[: len(FRACTIONS)], *(("relu", s) for s in BEYOND), *inside[len(FRACTIONS) :]]
    return [point(name, sigma_a2, kernel, 6) for name, sigma_a2 in pairs for kernel in KERNELS]


# ---- odd layers ----------------------------------------------------------------------------------------------

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


BOXES = ((0.5, 1.5), (0.8, 1.2))
CASES = (("tanh", 0.1), ("tanh", 0.2), ("erf", 0.1865), ("arctan", 0.2), ("sin", 0.2))


def odd_points(setup: Setup) -> list[Point]:
    """One point per activation and sigma_a2, with the bound for two ranges of norms."""

    def bounds(activation: str, sigma_a2: float, norms: Any) -> dict[str, Any]:
        deq = DEQ(activation, sigma_a2)
        return {"bounds": {f"{low} to {high}": odd_lower_bound(deq, (low, high)) for low, high in norms}}

    return [
        Point.of(f"{name}/{sigma_a2}", {"activation": name, "sigma_a2": sigma_a2, "norms": BOXES}, bounds)
        for name, sigma_a2 in (CASES[:2] if setup.quick else CASES)
    ]


# ---- the table that ships with the library -------------------------------------------------------------------

LAST = 0.96  # feedback; sigma_a2 = 1.92 for ReLU


def _nodes(count: int) -> list[float]:
    """Feedbacks from near 0 to LAST, closer together near 0, where the optimal rates change fastest relative to their
    size."""
    return [LAST * (1.0 - math.cos(0.5 * math.pi * (i + 1) / count)) for i in range(count)]


def _branch(kernel: str, feedbacks: Sequence[float], shallow: Sequence[BendFit] | None) -> list[BendFit]:
    """Fits along the nodes: continuation upwards, then downwards, keeping the better of the two at every node."""
    fits: list[BendFit | None] = [None] * len(feedbacks)
    kinds = kernel_names(kernel)
    for order in (range(len(feedbacks)), range(len(feedbacks) - 1, -1, -1)):
        previous: BendFit | None = None
        for i in order:
            problem = Problem(HomogeneousDEQ(feedbacks[i], 1.0, 1.0), kinds)
            here = fits[i]
            starts = [] if previous is None else [previous.bends.tolist()]
            if here is None:
                starts += deeper_starts(problem, None if shallow is None else shallow[i]) if i % 8 == 0 else []
            found = fit(problem, starts) if starts else here
            if here is None or (found is not None and found.error < 0.999 * here.error):
                fits[i] = found
            previous = fits[i]
    return _repaired(kernel, [f for f in fits if f is not None], feedbacks, shallow)


def _repaired(
    kernel: str, fits: list[BendFit], feedbacks: Sequence[float], shallow: Sequence[BendFit] | None
) -> list[BendFit]:
    """Refit nodes that stand out above their neighbours or above the shallower network, which is a special case."""
    out = list(fits)
    for _ in range(2):
        for i, here in enumerate(out):
            near = [out[k] for k in (i - 1, i + 1) if 0 <= k < len(out)]
            starts = [f.bends.tolist() for f in near]
            level = max(f.error for f in near)
            if shallow is not None:
                bends = shallow[i].bends
                starts += [np.insert(bends, k, 0.0).tolist() for k in range(len(bends) + 1)]
                level = min(level, 1.001 * shallow[i].error)
            if here.error > level:
                found = fit(Problem(HomogeneousDEQ(feedbacks[i], 1.0, 1.0), kernel_names(kernel)), starts)
                out[i] = found if found.error < here.error else here
    return out


def uniform_table(
    count: int = 120,
    depths: Sequence[int] = (1, 2, 3, 4),
    kernels: Sequence[str] = ("ck", "ntk", "ntk_frozen", "both"),
    report: Callable[[str], None] = print,
) -> dict[str, Any]:
    """The document that :mod:`notsodeep.matching.uniform` reads."""
    feedbacks = _nodes(count)
    rows = []
    for kernel in kernels:
        shallow: list[BendFit] | None = None
        for depth in depths:
            shallow = _branch(kernel, feedbacks, shallow)
            rows.append(_row(kernel, depth, shallow))
            worst = max(f.error for f in shallow)
            report(f"{kernel} {depth} layers: errors {min(f.error for f in shallow):.1e} to {worst:.1e}")
    digits = [float(f"{x:.17g}") for x in feedbacks]
    return {"table": "uniform twins of ReLU", "version": 1, "feedback": digits, "branches": rows}


def _row(kernel: str, depth: int, fits: Sequence[BendFit]) -> dict[str, Any]:
    columns = len(fits[0].weights)
    return {
        "kernel": kernel,
        "depth": depth,
        "bends": _rounded(np.stack([f.bends for f in fits], axis=1)),
        "weights": [_rounded(np.stack([f.weights[i] for f in fits], axis=1)) for i in range(columns)],
        "error": [float(f"{f.error:.4g}") for f in fits],
    }


def _rounded(values: np.ndarray) -> list[list[float]]:
    return [[float(f"{x:.11g}") for x in row] for row in values]


EXPERIMENTS = (
    Experiment("uniform_depth", depth_points, draw_uniform),
    Experiment("uniform_odd", odd_points, draw_odd),
)

if __name__ == "__main__":
    write_text(Path(sys.argv[1]), json.dumps(uniform_table(), separators=(",", ":")) + "\n")
