"""Homogeneous networks: one kind of unit, |x| psi(w.x/|x|), has the kernel for every input of every norm.

There g_k(s, t) = s t b_k, so psi needs the Hermite coefficients +-sqrt(b_k), and the error at cosine rho is
sum_k (c_k^2 - b_k) rho^k: at most the sum of the absolute differences. Beyond the computed orders both series are
sums over even and over odd orders of terms that have settled to one sign; what they sum up to is known exactly from the
kernels at rho = 1 and rho = -1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...activations import Basis, Conditioned, Parity
from ...activations.projections import SINGULAR_TERMS, basis_coefficients
from ...kernels import pairwise
from ...kernels.circle import norm_series
from ...networks import Kernel, Network
from .certificate import Proof
from .units import Fit, candidates, gains, signs

Array = np.ndarray
_FOURIER = 65536
_SIZES = ((6, 3), (6, 5), (8, 5), (10, 5))  # degree, singular powers
_ROUNDING = 1e-13
_ALPHAS = (0.4, 0.5, 0.6)  # the best ones lie here for all sigma_a2 and slopes tried


@dataclass(frozen=True)
class Profile:
    """b_k relative to the diagonal, and the kernel at rho = 1, -1."""

    kernel: Kernel
    orders: Array
    diagonal: float
    opposite: float
    parity: Parity | None


def profile(network: Network, kernel: Kernel) -> Profile:
    """The kernel of a homogeneous network at norm one."""
    one = torch.ones(2, dtype=torch.float64)
    ends = pairwise(network, one, one, torch.tensor([1.0, -1.0], dtype=torch.float64), (kernel,), check=False)[kernel]
    series = norm_series(network, [1.0], [1.0], kernel, SINGULAR_TERMS, oversampling=_FOURIER // SINGULAR_TERMS)[0]
    diagonal, opposite = ends.tolist()
    orders = np.maximum(series / diagonal, 0.0)
    even = bool(orders[1::2].max() <= 1e-13)
    odd = bool(orders[0::2].max() <= 1e-13)
    return Profile(kernel, orders, diagonal, opposite / diagonal, "even" if even else "odd" if odd else None)


def design(network: Network, kernel: Kernel, trains: str, tol: float) -> list[tuple[Conditioned, Proof]]:
    """Units of growing size, up to the first within a tenth of ``tol`` or the largest."""
    data = profile(network, kernel)
    smooth = float(data.orders[16:].sum()) <= 1e-15
    gain = gains(trains, singular=True)
    order = 0 if kernel == "ntk" and trains == "readout" else 1
    order = 0 if kernel == "ntk_frozen" else order
    sign = signs(network, 1.0, np.sqrt(data.orders))
    out = []
    for degree, singular in _SIZES:
        basis = Basis(1.0, degree, 0 if smooth else singular, order, data.parity)
        found = min((_fitted(basis, data, s, gain) for s in _choices(sign, data)), key=lambda f: f.missed)
        layer = _layer(found, data)
        out.append((layer, _certify(layer, data, found, gain)))
        if out[-1][1].bound <= 0.1 * tol:
            break
    return out


def _choices(sign: Array, data: Profile) -> list[Array]:
    """The odd orders beyond the first may have either sign."""
    if data.parity is not None:
        return [sign]
    flipped = sign.copy()
    flipped[3::2] *= -1.0
    return [sign, flipped]


def _fitted(basis: Basis, data: Profile, sign: Array, gain: Array) -> Fit:
    want = (sign * np.sqrt(data.orders))[:, None, None]
    return next(candidates(basis, want, gain, degrees=(basis.degree,), alphas=_ALPHAS))


def _layer(found: Fit, data: Profile) -> Conditioned:
    values = found.values[:, 0, :] * np.sqrt(data.diagonal)
    b = found.basis
    return Conditioned((tuple(map(tuple, values.tolist())),), b.alpha, b.degree, b.singular, b.order, b.parity)


def _certify(layer: Conditioned, data: Profile, found: Fit, gain: Array) -> Proof:
    table = basis_coefficients(found.basis, SINGULAR_TERMS).numpy()
    have = (table @ found.values[:, 0, 0] * gain) ** 2
    ends = _ends(layer, trained=bool(gain[-1] > 1.0)) / data.diagonal
    gap = have - data.orders
    signed = np.where(np.arange(SINGULAR_TERMS) % 2, -gap, gap)
    rest = ends - np.array([1.0, data.opposite]) - np.array([gap.sum(), signed.sum()])
    # even and odd orders beyond the table: half the sum and half the difference of what is left at rho = 1 and -1
    tail = 0.5 * abs(rest[0] + rest[1]) + 0.5 * abs(rest[0] - rest[1])
    bound = float(np.abs(gap).sum() + tail) + _ROUNDING
    rho = np.cos(np.linspace(0.0, np.pi, 401))
    errors = np.abs(np.polynomial.polynomial.polyval(rho, gap))
    worst = int(np.argmax(errors))
    return Proof(bound, float(errors[worst]), float(rho[worst]))


def _ends(layer: Conditioned, trained: bool) -> Array:
    one = torch.ones(2, dtype=torch.float64)
    at = layer.layer(one, one)
    rho = torch.tensor([1.0, -1.0], dtype=torch.float64)
    total = at.value(rho)
    return (total + rho * at.slope(rho) if trained else total).numpy()
