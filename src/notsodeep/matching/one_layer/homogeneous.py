"""Homogeneous networks: one kind of unit, |x| psi(w.x/|x|), has the kernel for every input of every norm.

There g_k(s, t) = s t b_k, so psi needs the Hermite coefficients +-sqrt(b_k), and the error at cosine rho is
sum_k (c_k^2 - b_k) rho^k. The first orders are bounded as a polynomial in the cosine, the later ones by their absolute
values, those beyond the table by what the kernel at rho = +-1 and Parseval's identity leave. Ordinary units
f(w.x - t |x|) cost less, and a grid of angles proves their bound.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from scipy.optimize import linprog

from ...activations import Parity
from ...errors import ConvergenceError
from ...kernels import pairwise
from ...kernels.series import norm_series, series_radius
from ...networks import ENN, Kernel, Network
from ...units import Basis, Conditioned, NormUnits, Thresholds
from ...units.elementary import SINGULAR_TERMS, basis_coefficients, tail_gram
from ...units.thresholds import threshold_profiles
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from ..twin import Trains
from .bound import LayerDesign
from .orders import Array, grid_excess, grid_slack, parity_of
from .units import FAMILY, UnitFit, gains, signs, smallest

_SIGNS = f"beyond order {SINGULAR_TERMS:,} the errors of even orders, and those of odd orders, keep their sign"


@dataclass(frozen=True)
class Profile:
    """b_k relative to the diagonal."""

    orders: Array
    diagonal: float
    beyond: tuple[float, float]  # what the even and the odd orders beyond the table sum up to
    aliased: float  # bound on what the Fourier transform mixed into the orders
    parity: Parity | None


def profile(network: Network, kernel: Kernel) -> Profile:
    """Return the kernel of a homogeneous network at norm one."""
    series = norm_series(network, [1.0], [1.0], kernel, LIMITS.fourier_points, oversampling=1)[0]
    diagonal, opposite = at_norm_one(network, kernel, np.array([1.0, -1.0])).tolist()
    series, opposite = series / diagonal, opposite / diagonal
    orders = np.maximum(series[:SINGULAR_TERMS], 0.0)
    beyond = (0.5 * (1.0 + opposite) - orders[0::2].sum(), 0.5 * (1.0 - opposite) - orders[1::2].sum())
    damping = series_radius(network, LIMITS.fourier_points) ** LIMITS.fourier_points
    aliased = damping * max(1.0 - float(series.sum()), 0.0) / (1.0 - damping) if damping < 1.0 else LIMITS.rounding
    return Profile(orders, diagonal, beyond, aliased, parity_of(orders))


def design(
    network: Any, kernel: Kernel, tol: float, units: Literal["auto", "conditioned", "thresholds"], trains: Trains
) -> LayerDesign:
    """Take thresholds where they are asked for, or reach a CK within ``tol``; else conditioned units."""
    tried: tuple[Tried, ...] = ()
    worthwhile = units == "auto" and kernel == "ck" and tol >= LIMITS.threshold_tolerance
    if network.plain and (units == "thresholds" or worthwhile):
        ordinary = _thresholds(network, tol)
        if units == "thresholds":
            return replace(ordinary, reason=f"{ordinary.reason}, as asked for")
        if ordinary.proof.bound <= tol:
            cheaper = f"within tol = {tol:.3g} and cheaper than units='conditioned'"
            return replace(ordinary, reason=f"{ordinary.reason}, {cheaper}")
        tried = ordinary.rows
    layer, proof = min(_growing(network, kernel, trains, tol), key=lambda pair: pair[1].bound)
    rows = (*tried, Tried(1, proof.bound, FAMILY))
    reason = "homogeneous: one kind of units is exact for all norms, up to the elementary function that is evaluated"
    return LayerDesign(layer, proof, rows, reason)


def _growing(network: Network, kernel: Kernel, trains: Trains, tol: float) -> Iterator[tuple[Conditioned, Supremum]]:
    """Yield units of growing size, up to the first within a tenth of ``tol`` or the largest."""
    data = profile(network, kernel)
    smooth = float(data.orders[16:].sum()) <= 1e-15
    gain = gains(trains)[:SINGULAR_TERMS]
    order = 0 if kernel == "ntk_frozen" or (kernel == "ntk" and trains == "readout") else 1
    roots = np.sqrt(data.orders)
    sign = signs(network, 1.0, roots)
    choices = (sign * roots)[None, :, None, None]
    if data.parity is None:  # the odd orders beyond the first may have either sign
        choices = np.repeat(choices, 2, axis=0)
        choices[1, 3::2] *= -1.0
    for degree, singular in ((6, 3), (6, 5), (8, 5), (10, 5)):
        basis = Basis(1.0, degree, 0 if smooth else singular, order, data.parity)
        fits = [smallest(basis, want, gain, degrees=(degree,), alphas=(0.4, 0.5, 0.6)) for want in choices]
        best = min(fits, key=lambda f: f.missed)
        proof = _certify(data, best, gain)
        values = best.values[:, 0, :] * np.sqrt(data.diagonal)
        yield Conditioned((tuple(map(tuple, values.tolist())),), *astuple(best.basis)), proof
        if proof.bound <= 0.1 * tol:
            break


def _certify(data: Profile, fitted: UnitFit, gain: Array) -> Supremum:
    values, trained = fitted.values[:, 0, 0], bool(gain[-1] > 1.0)
    have = (basis_coefficients(fitted.basis, SINGULAR_TERMS).numpy() @ values * gain) ** 2
    gap = have - data.orders
    gram, odd = sum(tail_gram(fitted.basis, s).numpy() for s in (False, True)[: 1 + trained]), fitted.basis.parities
    halves = [np.where(np.array(odd) == p, values, 0.0) for p in (0, 1)]
    tails = [float(v @ gram @ v - left) for v, left in zip(halves, data.beyond, strict=True)]
    cells, together = 2048, 128  # orders that are bounded together
    rho = np.cos(np.linspace(0.0, np.pi, cells + 1))
    first = np.polynomial.polynomial.polyval(rho, gap[:together])
    most = float(np.abs(first).max()) * (1.0 + grid_excess(grid_slack(together - 1, cells)))
    bound = most + float(np.abs(gap[together:]).sum()) + sum(map(abs, tails)) + 2.0 * data.aliased + LIMITS.rounding
    errors = np.polynomial.polynomial.polyval(rho[::4], gap)
    errors[[0, -1]] += tails[0] + tails[1], tails[0] - tails[1]  # elsewhere the powers are nothing
    errors = np.abs(errors)
    worst = int(np.argmax(errors))
    return Supremum(bound, float(errors[worst]), float(rho[4 * worst]), _SIGNS if fitted.basis.singular else "")


# ---- ordinary units with thresholds ------------------------------------------------------------------------------


def _thresholds(deq: Any, tol: float) -> LayerDesign:
    """Find the fewest thresholds whose CK is within ``tol``, or the best there are.

    The kernel of the layer is |x| |y| sum_t mu_t k_t(rho), mu_t >= 0. The largest error over a grid of angles is a
    maximum of linear functions of mu: how many units have which threshold is a linear programme.
    """
    rho, tried = np.cos(np.linspace(0.0, np.pi, 321)), []
    wanted = at_norm_one(deq, "ck", rho)
    # the leaky ReLU that is the DEQ's own activation, up to a gain and a reflection
    a, b = float(deq.activation(np.array(1.0))), -float(deq.activation(np.array(-1.0)))
    leak = b / a if abs(a) >= abs(b) else a / b
    for reach, count in ((1.6, 33), (2.5, 41), (3.5, 57)):  # thresholds in [-reach, reach]
        tried.append(_shares(rho, wanted / wanted[0], np.linspace(-reach, reach, count), leak))
        if tried[-1][1] <= tol / 1.1:  # between the angles of the grid a little is added
            break
    layer, _ = min(tried, key=lambda pair: pair[1])
    layer = replace(layer, weights=tuple(wanted[0] * weight for weight in layer.weights))
    proof = over_cosines(deq, layer)
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


def over_cosines(network: Network, layer: NormUnits) -> Supremum:
    """Bound the error of the CK of a layer, on a grid that is refined until the cells add little to it."""
    count = 256
    while True:
        # near 1, where kinks make the slopes grow like 1 / angle, the angles are squares
        rho = np.cos(0.5 * math.pi * np.linspace(1.0, 0.0, count + 1) ** 2)
        places = np.concatenate([-rho[:0:-1], rho])
        wanted, have = (at_norm_one(each, "ck", places) for each in (network, ENN([layer])))
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
