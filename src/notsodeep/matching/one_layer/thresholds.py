"""Homogeneous DEQs by ordinary units f(w.x - t |x|): how many units have which threshold is a linear programme.

The kernel of the layer is |x| |y| sum_t mu_t k_t(rho), mu_t >= 0; gated units bring |x| |y| rho k_t'(rho), as tangent
kernels have it. The largest error over all angles is a maximum of linear functions of mu.

The certificate: between the points of a grid of angles the error exceeds the larger neighbour by at most h^2/8 of its
second derivative. With P = k_t' <= P(xi > t) and e = exp(-t^2/(1 + cos a)) <= exp(-t^2/2), in the angle a

    k_t'' = sin(a) e / (2 pi) - P cos(a),    (rho P)' = -P sin(a) - cos(a) e / (2 pi),
    (rho P)'' = -P cos(a) + sin(a) e / pi - cos(a) e' / (2 pi),   |e'| <= min(t^2 tan(a/2)/(1 + cos a), 0.58/|t|).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.special import ndtr

from ...activations import Thresholds
from ...activations.thresholds import threshold_profiles
from ...errors import ConvergenceError
from ...networks import DEQ, Kernel, is_tangent
from .._limits import LIMITS
from ..certificates import Proof, Tried
from .arcs import Array, Bounds, HomogeneousDEQ, supremum
from .bound import LayerDesign


@dataclass(frozen=True)
class Shares:
    """A solution of the linear programme, relative to the diagonal."""

    thresholds: Array
    weights: Array
    gated: NDArray[np.bool_]
    """Which shares belong to gated units; these come last."""
    error: float


def design(deq: DEQ, kernel: Kernel, tol: float) -> LayerDesign:
    """The smallest thresholds within ``tol``, or the best there are."""
    reduced, best = HomogeneousDEQ.of(deq), None
    leak = _leak(reduced.bend)
    for reach, count in ((1.6, 33), (2.5, 41), (3.5, 57)):  # thresholds in [-reach, reach]
        found = _shares(reduced, kernel, leak, np.linspace(-reach, reach, count))
        if best is None or found.error < best.error:
            best = found
        if best.error <= tol / (1.0 + 4.0 * LIMITS.threshold_slack):
            break
    assert best is not None
    weights = (reduced.diagonal(kernel) * best.weights).tolist()
    layer = Thresholds(tuple(best.thresholds.tolist()), tuple(weights), leak, int(best.gated.sum()))
    proof = certify(reduced, kernel, leak, best)
    reason = f"ordinary units with {len(weights)} thresholds proportional to |x|"
    row = Tried(1, proof.bound, "thresholds")
    return LayerDesign(layer, proof, (row,), reason)


def _leak(bend: float) -> float:
    """The leaky ReLU of this bend, (1 - leak)^2 / (1 + leak^2): the DEQ's own, up to a gain and a reflection."""
    if abs(bend - 1.0) < 1e-12:
        return 0.0
    return (1.0 - math.sqrt(bend * (2.0 - bend))) / (1.0 - bend)


def _shares(deq: HomogeneousDEQ, kernel: Kernel, leak: float, thresholds: Array) -> Shares:
    """The shares of the units and, for a tangent kernel, of gated ones."""
    rho = np.cos(np.linspace(0.0, np.pi, 321))
    wanted = deq.profile(deq.equilibrium(rho), kernel)
    value, slope = threshold_profiles(rho, thresholds, leak)
    plain = np.zeros(len(thresholds), dtype=bool)
    if not is_tangent(kernel):
        return _pruned(value, wanted, thresholds, plain)
    rows, gated = np.concatenate([value, rho * slope]), np.concatenate([plain, ~plain])
    return _pruned(rows, wanted, np.tile(thresholds, 2), gated)


def _pruned(rows: Array, wanted: Array, thresholds: Array, gated: NDArray[np.bool_]) -> Shares:
    """The solution without the shares below 1e-7 of the diagonal, the others adapted."""
    weights, _ = _programme(rows, wanted)
    kept = np.flatnonzero(weights * rows[:, 0] > 1e-7)
    weights, error = _programme(rows[kept], wanted)
    alive = weights > 0.0
    return Shares(thresholds[kept[alive]], weights[alive], gated[kept[alive]], error)


def _programme(rows: Array, wanted: Array) -> tuple[Array, float]:
    """Shares mu >= 0 with the least largest |rows' mu - wanted|."""
    columns = (rows / rows[:, :1]).T  # of diagonal one
    unit = float(np.abs(wanted).max())
    level = np.ones((len(wanted), 1))
    inequality = np.block([[columns, -level], [-columns, -level]])
    side, cost = np.concatenate([wanted, -wanted]) / unit, np.append(np.zeros(len(rows)), 1.0)
    for accuracy in (1e-10, 1e-9, 1e-7):  # the solver gives up now and then where it is asked for all digits
        options = {"primal_feasibility_tolerance": accuracy, "dual_feasibility_tolerance": accuracy}
        solved = linprog(cost, A_ub=inequality, b_ub=side, method="highs", options=options)
        if solved.x is not None:
            mu = np.maximum(solved.x[:-1] * unit, 0.0)
            return mu / rows[:, 0], float(np.abs(columns @ mu - wanted).max())
    raise ConvergenceError("the linear programme of the thresholds was not solved")


# ---- the certificate -------------------------------------------------------------------------------------


def certify(deq: HomogeneousDEQ, kernel: Kernel, leak: float, shares: Shares) -> Proof:
    """Bound the error of the layer for every angle."""

    def twin(rho: Array) -> Array:
        value, slope = threshold_profiles(rho, shares.thresholds.tolist(), leak)
        return np.asarray(shares.weights @ np.where(shares.gated[:, None], rho * slope, value))

    return supremum(deq, kernel, twin, lambda angle: _bounds(angle, leak, shares), LIMITS.threshold_slack)


def _bounds(angle: Array, leak: float, shares: Shares) -> Bounds:
    """Bounds on the derivatives of the layer's kernel in the angle, cell by cell; none on its value."""
    high = angle[1:]
    first, second = np.zeros(len(high)), np.zeros(len(high))
    for t, weight, gated in zip(*(v.tolist() for v in (shares.thresholds, shares.weights, shares.gated)), strict=True):
        own = _derivatives(t, leak, high)[gated]
        first += weight * own[0]
        second += weight * own[1]
    return Bounds(np.full_like(first, np.inf), first, second)


def _derivatives(t: float, leak: float, high: Array) -> tuple[Sequence[Array | float], Sequence[Array | float]]:
    """(first, second) of k_t and of rho k_t' on cells that end at the angles ``high``."""
    up, jump = float(ndtr(-t)), (1.0 - leak) ** 2
    most = abs(leak**2 + 2.0 * leak * (1.0 - leak) * up) + jump * up  # of |k_t'|
    bell = jump * math.exp(-0.5 * t * t) / (2.0 * math.pi)
    near = np.maximum(1.0 + np.cos(high), 1e-300)
    steep = np.minimum(t * t * np.tan(np.minimum(0.5 * high, 1.57)) / near, 0.58 / max(abs(t), 1e-12))
    return (most, most + bell), (most + bell, most + 2.0 * bell + jump * steep / (2.0 * math.pi))
