"""Homogeneous DEQs by ordinary units f(w.x - t |x|): how many units have which threshold is a linear programme.

The kernel of the layer is |x| |y| sum_t mu_t k_t(rho), mu_t >= 0. The largest error over a grid of angles is a
maximum of linear functions of mu.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from scipy.optimize import linprog

from ...errors import ConvergenceError
from ...kernels import pairwise
from ...networks import DEQ, ENN, Kernel, Network
from ...units import NormUnits, Thresholds
from ...units.thresholds import threshold_profiles
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from .bound import LayerDesign
from .orders import Array


def design(deq: DEQ, kernel: Kernel, tol: float) -> LayerDesign:
    """Find the smallest thresholds within ``tol``, or the best there are."""
    rho, tried = np.cos(np.linspace(0.0, np.pi, 321)), []
    wanted = at_norm_one(deq, kernel, rho)
    # the leaky ReLU that is the DEQ's own activation, up to a gain and a reflection
    a, b = float(deq.activation(np.array(1.0))), -float(deq.activation(np.array(-1.0)))
    leak = b / a if abs(a) >= abs(b) else a / b
    for reach, count in ((1.6, 33), (2.5, 41), (3.5, 57)):  # thresholds in [-reach, reach]
        tried.append(_shares(rho, wanted / wanted[0], np.linspace(-reach, reach, count), leak))
        if tried[-1][1] <= tol / 1.1:  # between the angles of the grid a little is added
            break
    layer, _ = min(tried, key=lambda pair: pair[1])
    layer = replace(layer, weights=tuple(wanted[0] * weight for weight in layer.weights))
    proof = over_cosines(deq, layer, kernel)
    reason = f"ordinary units with {len(layer.weights)} thresholds proportional to |x|"
    return LayerDesign(layer, proof, (Tried(1, proof.bound, "thresholds"),), reason)


def _shares(rho: Array, wanted: Array, thresholds: Array, leak: float) -> tuple[Thresholds, float]:
    """Return the units that are nearest to a profile, with the largest error."""
    rows, _ = threshold_profiles(rho, thresholds, leak)
    weights, _ = _programme(rows, wanted)
    large = np.flatnonzero(weights * rows[:, 0] > 1e-7)  # without smaller shares of the diagonal the others adapt
    weights, error = _programme(rows[large], wanted)
    large, weights = large[weights > 0.0], weights[weights > 0.0]
    return Thresholds(tuple(thresholds[large].tolist()), tuple(weights.tolist()), leak), error


def _programme(rows: Array, wanted: Array) -> tuple[Array, float]:
    """Find shares mu >= 0 with the least largest |rows' mu - wanted|."""
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


# ---- a proof for all angles: two kernels of homogeneous layers, compared at inputs of norm one -----------------
# Both are power series in the cosine with no negative coefficient, so that their even and their odd parts grow on
# [0, 1] and are convex there. Between two points of a grid such a part lies below its chord by at most a quarter of the
# length times the growth of its slope, which the chords of the cells beside it enclose, and by at most its own growth.


def at_norm_one(network: Network, kernel: Kernel, rho: Array) -> Array:
    """Return the kernel of inputs of norm one with these cosines."""
    one = torch.ones(len(rho), dtype=torch.float64)
    return pairwise(network, one, one, torch.from_numpy(rho), (kernel,), check=False)[kernel].numpy()


def over_cosines(network: Network, layer: NormUnits, kernel: Kernel) -> Supremum:
    """Bound the error of a layer with a trained readout, on a grid that is refined until the cells add little to it."""
    count = 256
    while True:
        # near 1, where kinks make the slopes grow like 1 / angle, the angles are squares
        rho = np.cos(0.5 * math.pi * np.linspace(1.0, 0.0, count + 1) ** 2)
        places = np.concatenate([-rho[:0:-1], rho])
        wanted, have = at_norm_one(network, kernel, places), at_norm_one(ENN([layer]), "ck", places)
        error, between = np.abs(wanted - have) / wanted[-1], (_sag(rho, wanted) + _sag(rho, have)) / wanted[-1]
        worst = int(np.argmax(error))
        sampled = float(error[worst])
        most = np.maximum(error[1:], error[:-1]) + np.concatenate([between[::-1], between])
        bound = float(most.max()) + 1e-12  # rounding of terms of order one
        if bound - sampled <= LIMITS.cosine_slack * bound or count >= LIMITS.cosine_cells or sampled < 1e-11:
            return Supremum(bound, sampled, float(places[worst]))
        count *= 2


def _sag(rho: Array, values: Array) -> Array:
    """Bound how far a kernel may be from its chords on each cell of ``rho``, from 0 to 1, and on that of -rho."""
    cells, step = len(rho) - 1, np.diff(rho)
    chords = np.diff(values[cells:]) / step
    # the slope at 0 is the first order of the odd part f: what f(h) / h has beyond it is at most h^2 of what f(1) has
    odd, square = 0.5 * (values[cells:] - values[cells::-1]), rho[1] ** 2
    first = odd[1] / rho[1] - square / (1.0 - square) * (odd[-1] - odd[1] / rho[1])
    growth = np.append(chords[1:], np.inf) - np.append(first, chords[:-1])
    return np.maximum(np.minimum(0.25 * growth, chords) * step, 0.0)
