"""What no network of plain odd layers can reach, of any depth.

The kernel of a network of odd layers is, for fixed norms, a series in odd powers of rho with non-negative coefficients,
and its first coefficient is of rank one in the norms: m(x, y)^2 = m(x, x) m(y, y). A linear programme says how small
m(low, low) and m(high, high) and how large m(low, high) can be if the kernel is within eps of the DEQ's at these norms.
Where even then m(low, high)^2 < m(low, low) m(high, high), no such network exists.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.optimize import linprog

import notsodeep as nsd
from notsodeep.errors import InvalidInputError

from ._runner import Document, Point, Setup, Study
from ._style import COLOURS, panels, shared_legend, word

Array = NDArray[np.float64]
_POINTS, _DEGREE = 200, 61


def odd_lower_bound(deq: nsd.DEQ, norms: tuple[float, float], steps: int = 14) -> float:
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


def _profile(deq: nsd.DEQ, norms: tuple[float, float], pair: tuple[int, int], cosine: Array) -> Array:
    """The CK at the two norms of a pair, divided by the geometric mean of the diagonals."""
    x, y = (norms[i] for i in pair)
    first = np.array([[x, 0.0]])
    others = y * np.stack([cosine, np.sqrt(1.0 - cosine**2)], axis=1)
    size = nsd.ck(deq, first)[0, 0] * nsd.ck(deq, others[:1])[0, 0]
    return nsd.ck(deq, first, others)[0] / math.sqrt(size)


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


def points(setup: Setup) -> list[Point]:
    """One point per activation and sigma_a2, with the bound for two ranges of norms."""

    def bounds(activation: str, sigma_a2: float, norms: Any) -> dict[str, Any]:
        deq = nsd.DEQ(activation, sigma_a2)
        return {"bounds": {f"{low} to {high}": odd_lower_bound(deq, (low, high)) for low, high in norms}}

    return [
        Point.of(f"{name}/{sigma_a2}", {"activation": name, "sigma_a2": sigma_a2, "norms": BOXES}, bounds)
        for name, sigma_a2 in (CASES[:2] if setup.quick else CASES)
    ]


def draw(document: Document) -> dict[str, Figure]:
    """What no explicit network of odd layers can beat."""
    figure, ax = panels((7.0, 3.6), "A limit of plain odd layers, of any depth")
    points = list(document["points"].values())
    cases = [f"{word(p['settings']['activation'])}, $\\sigma_a^2$ = {p['settings']['sigma_a2']:.3g}" for p in points]
    for place, point in enumerate(points):
        for (box, bound), marker in zip(point["numbers"]["bounds"].items(), "os", strict=True):
            ax.semilogx(bound, place, marker, color=COLOURS["twin" if marker == "o" else "DEQ"], label=f"norms {box}")
    ax.set_yticks(range(len(points)), cases)
    ax.set_xlabel("no network of odd layers is nearer than this")
    shared_legend(figure, ax)
    return {"": figure}


STUDY = Study(
    shows="what no network of odd layers can reach",
    quick="5 s",
    full="20 s",
    points=points,
    draw=draw,
)
