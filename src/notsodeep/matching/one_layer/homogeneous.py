"""Homogeneous networks: one kind of unit, |x| psi(w.x/|x|), has the kernel for every input of every norm.

There g_k(s, t) = s t b_k, so psi needs the Hermite coefficients +-sqrt(b_k), and the error at cosine rho is
sum_k (c_k^2 - b_k) rho^k. The first orders are bounded as a polynomial in the cosine, the later ones by their absolute
values, those beyond the table by what the kernel at rho = +-1 and Parseval's identity leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from ...activations import Parity
from ...kernels import pairwise
from ...kernels.series import norm_series, series_radius
from ...networks import Kernel, Network
from ...units import Basis, Conditioned
from ...units.projections import SINGULAR_TERMS, basis_coefficients, tail_gram
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from ..twin import Trains
from . import thresholds
from .bound import LayerDesign
from .orders import Array, grid_excess, grid_slack
from .units import FAMILY, UnitFit, gains, signs, smallest

_SIGNS = f"beyond order {SINGULAR_TERMS:,} the errors of even orders, and those of odd orders, keep their sign"


@dataclass(frozen=True)
class Profile:
    """b_k relative to the diagonal."""

    kernel: Kernel
    orders: Array
    diagonal: float
    beyond: tuple[float, float]  # what the even and the odd orders beyond the table sum up to
    aliased: float  # bound on what the Fourier transform mixed into the orders
    parity: Parity | None


def profile(network: Network, kernel: Kernel) -> Profile:
    """Return the kernel of a homogeneous network at norm one."""
    one = torch.ones(2, dtype=torch.float64)
    ends = pairwise(network, one, one, torch.tensor([1.0, -1.0], dtype=torch.float64), (kernel,), check=False)[kernel]
    series = norm_series(network, [1.0], [1.0], kernel, LIMITS.fourier_points, oversampling=1)[0]
    diagonal, opposite = ends.tolist()
    series, opposite = series / diagonal, opposite / diagonal
    orders = np.maximum(series[:SINGULAR_TERMS], 0.0)
    beyond = (0.5 * (1.0 + opposite) - orders[0::2].sum(), 0.5 * (1.0 - opposite) - orders[1::2].sum())
    damping = series_radius(network, LIMITS.fourier_points) ** LIMITS.fourier_points
    aliased = damping * max(1.0 - float(series.sum()), 0.0) / (1.0 - damping) if damping < 1.0 else LIMITS.rounding
    even, odd = (bool(orders[start::2].max() <= 1e-13) for start in (1, 0))
    return Profile(kernel, orders, diagonal, beyond, aliased, "even" if even else "odd" if odd else None)


def design(
    network: Any, kernel: Kernel, tol: float, units: Literal["auto", "conditioned", "thresholds"], trains: Trains
) -> LayerDesign:
    """Take thresholds where they are asked for, or reach a CK within ``tol``; else conditioned units."""
    tried: tuple[Tried, ...] = ()
    worthwhile = units == "auto" and kernel == "ck" and tol >= LIMITS.threshold_tolerance
    if network.plain and (units == "thresholds" or worthwhile):
        ordinary = thresholds.design(network, kernel, tol)
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
