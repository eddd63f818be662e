"""The calculus at complex norms: how far a kernel continues analytically in the norm of its input, and how large it is.

The feature map F(s) of an input of norm s continues to a complex norm z with |F(z)|^2 = k(z, conj z, 1), a series of
|a_k(q)|^2 in the Hermite coefficients at complex variances. It is subharmonic, so a region's boundary decides. For a
disc of norms, 2 q a_k' = k a_k + sqrt((k + 1)(k + 2)) a_(k+2) bounds the rest; Rouche's theorem the variances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arrays import Array
from .._caches import cached
from .._fixed_point import unbracketed
from ..activations import Activation
from ..activations.panels import normal_nodes
from ..gaussian.rule import project, shared_coefficients, shared_rule
from ..networks import DEQ, Kernel, Network
from ..networks.nodes import Domain, FixedPoint, KernelState, LayerMaps, Squares, equation, kernels_in
from ._limits import LIMITS

Complex = NDArray[np.complex128]


def conjugate_square(network: Any, z: Complex, kernel: Kernel, radius: float = 0.0) -> Array:
    """|F(z)|^2 = k(z, conj z, 1) at complex norms; infinite where the map does not continue, or a series does not end.

    With a ``radius``, a bound for all norms whose logarithms are so near to that of z.
    """
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        variances = _variances(network, z)
        if variances is None:
            return np.full(len(z), np.inf)
        one = np.ones(len(z))
        if network.implicit:
            reach, drive = _disc(network, z, variances[0], radius)
            layers, scale = [_Conjugate(network.activation, variances[0], reach)], np.abs(variances[0]) * (1.0 + reach)
        else:
            layers, drive, scale = _layers(network, variances, radius), one, one
        domain = _ConjugateNorms(layers, drive)
        out = scale * np.asarray(kernels_in(domain, network.expression(), None, one, (kernel,))[kernel])
    good = np.isfinite(out) & np.all([layer.settled for layer in layers], axis=0)
    return np.where(good, out, np.inf)


class _ConjugateNorms(Domain):
    """Inputs of conjugate norms, in units of the variances; the layers and the drive are known."""

    def __init__(self, layers: Sequence[_Conjugate], drive: Array) -> None:
        self.layers, self.known = iter(layers), drive

    def layer(self, phi: Activation, points: None) -> LayerMaps:
        return next(self.layers)

    def drive(self, fixed: FixedPoint, covariance: Any) -> Array:
        """Return the largest |drive / variance| in the disc."""
        return self.known

    def solve(self, fixed: FixedPoint, cell: Any, points: None, state: KernelState) -> Array:
        """Solve by Newton's method: the equation is concave, so that it increases to its least solution."""

        def residual(lam: Array) -> tuple[Array, Array]:
            left, rate = equation(cell, lam, fixed.sigma_a2, self.known)
            return left, np.where(rate > 0.0, rate, 0.0)

        lam, solved = unbracketed(residual, self.known, self.known)
        return np.where(solved, lam, np.nan)


def _variances(network: Any, z: Complex) -> list[Complex] | None:
    """What every layer receives, or ``None`` where that is not known to be analytic."""
    if network.implicit:
        q = _equilibrium(network, z) if network.plain else None
        return None if q is None else [q]
    found, q = [], z**2
    for phi in network.activations:
        found.append(q)
        q = _mean_square(phi, q)[0]
    return None if bool(np.isnan(q).any()) else found


def _equilibrium(deq: DEQ, z: Complex) -> Complex | None:
    drive, sigma_a2 = deq.drive(z**2), deq.variances[0]
    cell = deq.fixed_point.maps(Squares(_mean_square), None)
    q, settled = unbracketed(lambda q: equation(cell, q, sigma_a2, drive), drive, np.abs(drive))
    # where the slope is below one there is one solution nearby, and Newton found it
    steep = sigma_a2 * np.abs(cell.both(q)[1])
    return q if bool(settled.all() and (steep < 1.0).all()) else None


def _mean_square(phi: Activation, q: Complex) -> tuple[Complex, Complex]:
    """E[phi^2] and its derivative in q; not numbers where these are not analytic, or the rule is not accurate."""
    rotates = _continues(phi)
    steep = 12.0 if rotates else 4.0  # on the real axis the rule has to resolve an oscillating density
    if not np.all((q.real > 0.0) & (np.abs(q.imag) <= steep * q.real)):
        return np.full_like(q, np.nan), np.full_like(q, np.nan)
    return _averages(q, *(_rotated if rotates else _real)(phi, q, 1))


def _averages(q: Complex, values: Tensor, weights: Tensor, y: Tensor) -> tuple[Complex, Complex]:
    square = values**2 * weights
    rate = (square * (y * y - 1.0)).sum(-1).numpy() / (2.0 * q)
    return square.sum(-1).numpy(), rate


def _disc(deq: DEQ, z: Complex, q: Complex, radius: float) -> tuple[Array, Array]:
    """How far the variances of a disc of norms reach, relative to q, and the largest |drive / variance| there."""
    (sigma_a2, sigma_b2, sigma_c2), rise = deq.variances, _rises(deq.activation, q)
    linear, asked = np.abs(q - sigma_a2 * rise[:, 1]), sigma_b2 * np.abs(z) ** 2 * math.expm1(2.0 * radius)
    reach = asked / linear
    for _ in range(40 if radius else 0):  # increases to a limit; by Rouche one variance lies within any larger
        reach = (asked + sigma_a2 * _sum(rise[:, 2:], reach) * reach**2) / linear
    reach = np.where(reach < 0.5, reach * (1.0 + 1e-6), np.nan)
    rise = sigma_a2 * rise
    rise[:, 0] += sigma_c2
    share = _over(rise, q)
    share[:, 0] -= 1.0  # sigma_b2 z^2 / variance
    return reach, _sum(share, reach) + sigma_c2 / (np.abs(q) * (1.0 - reach))


def _layers(network: Network, variances: Sequence[Complex], radius: float) -> list[_Conjugate]:
    """The layers of an explicit network, in units of the variance that each receives; the last gives plain numbers."""
    out, reach = [], np.full(len(variances[0]), math.expm1(2.0 * radius))
    for level, (phi, q) in enumerate(zip(network.activations, variances, strict=True), 1):
        rise = _rises(phi, q)
        share = _over(rise, q)
        least = np.abs(share[:, 0]) - _sum(share[:, 1:], reach) * reach  # |next variance / variance|
        gain = np.where(least > 0.0, 1.0 / least, np.nan) if level < len(variances) else np.abs(q) * (1.0 + reach)
        out.append(_Conjugate(phi, q, reach, gain))
        reach = _sum(rise[:, 1:], reach) * reach / np.abs(rise[:, 0])
    return out


def _over(rise: Complex, q: Complex) -> Complex:
    """The power series of what has the series ``rise``, divided by q (1 + h)."""
    out = rise / q[:, None]
    for m in range(1, out.shape[1]):
        out[:, m] -= out[:, m - 1]
    return out


def _rises(phi: Activation, q: Complex) -> Complex:
    """v_m with V(q (1 + h)) = sum_m v_m h^m."""
    values, weights, y = (_rotated if _continues(phi) else _real)(phi, q, 2 * LIMITS.conjugate_powers)
    square = values**2 * weights
    found = project(square, y.to(square.dtype), 2 * LIMITS.conjugate_powers)[:, ::2].numpy()
    m = np.arange(1.0, LIMITS.conjugate_powers)
    return np.asarray(found * np.cumprod(np.append(1.0, np.sqrt((2.0 * m - 1.0) * 2.0 * m) / (2.0 * m))))


def _sum(terms: Complex, x: Array) -> Array:
    """sum_m |terms_m| x^m, where that has ended."""
    sizes = np.abs(terms) * x[:, None] ** np.arange(terms.shape[1])
    return np.where(sizes[:, -1] <= LIMITS.series_end * sizes.sum(1), sizes.sum(1), np.nan)


def _real(phi: Activation, q: Complex, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Phi at real nodes x, the complex weights there, and x / sqrt(q)."""
    variance = torch.from_numpy(q)
    inverse = 1.0 / variance
    tau = inverse.real.rsqrt()
    xi, weights = normal_nodes(tau, phi.panels(), terms)
    x, root = tau[:, None] * xi, variance.sqrt()[:, None]
    turned = weights * (tau[:, None] / root) * torch.exp(-0.5j * x * x * inverse.imag[:, None])
    return phi(x).detach(), turned, x / root


def _rotated(phi: Activation, q: Complex, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """Phi at nodes on the ray of sqrt(q), for functions that continue to it: nothing is lost to oscillation there."""
    root = torch.from_numpy(q).sqrt()[:, None]
    xi, weights = shared_rule(float(root.abs().max()), phi.panels())
    return phi.continued(root * xi).detach(), weights, xi


@cached(64)
def _continues(phi: Activation) -> bool:
    """Whether phi takes complex numbers and gives its analytic continuation: averages by both rules agree."""
    q = np.exp(1j * np.array([0.3, 0.6, 0.9])) * np.array([0.3, 1.0, 3.0])
    try:
        rotated = _averages(q, *_rotated(phi, q, 1))[0]
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    return bool(np.allclose(rotated, _averages(q, *_real(phi, q, 1))[0], rtol=1e-9, atol=0.0))


class _Conjugate(LayerMaps):
    """sum_k |a_k|^2 r^k / |q| times ``gain`` and its derivative: the layer between inputs of conjugate norms.

    It dominates the series of all variances within ``reach`` |q| of q.
    """

    def __init__(self, phi: Activation, q: Complex, reach: Array, gain: Array | float = 1.0) -> None:
        if _continues(phi):
            a = shared_coefficients(phi.continued, torch.from_numpy(q).sqrt(), phi.panels(), 480).numpy()
        else:
            terms = 160  # by the oscillating rule rounding grows with the order
            values, weights, y = _real(phi, q, terms)
            a = project(values * weights, y, terms).numpy()
        sizes, self.ended = _dominating(a / np.sqrt(q)[:, None], reach[:, None])
        self.squares: Array = sizes**2 * np.reshape(gain, (-1, 1))
        self.settled: NDArray[np.bool_] = np.ones(len(q), dtype=bool)

    def both(self, lam: Array) -> tuple[Array, Array]:
        """The sum and its derivative in lam."""
        k = np.arange(self.squares.shape[1])
        ratio = np.clip(lam, 1e-300, 4.0)
        terms = self.squares * np.exp(k * np.log(ratio)[:, None])
        first, ended = _end(k * terms)
        counted = k <= first[:, None]
        self.settled = ended & (self.ended | ~counted).all(1)
        terms = np.where(counted, terms, 0.0)
        return terms.sum(1), (k * terms).sum(1) / lam


def _dominating(a: Complex | Array, reach: Array) -> tuple[Array, NDArray[np.bool_]]:
    """Sup over |h| <= reach of |a_k(q (1 + h))| over the root of its variance, and whether its series has ended."""
    out, k = np.abs(a), np.arange(a.shape[1])
    rise, power, last = 0.5 * np.sqrt((k + 1.0) * (k + 2.0)), np.ones_like(reach), np.zeros_like(out)
    for m in range(LIMITS.conjugate_powers if reach.any() else 0):
        a = ((0.5 * (k - 1) - m) * a + rise * np.pad(a[:, 2:], ((0, 0), (0, 2)))) / (m + 1.0)
        power = power * reach
        last = np.abs(a) * power
        out += last
    return out, last <= LIMITS.series_end * out


def _end(terms: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The first order after which a window of terms is a small share of the sum so far, and whether there is one."""
    sums, window = np.cumsum(terms, axis=1), 12
    windows = sums[:, window:] - sums[:, :-window]
    small = windows <= LIMITS.series_end * sums[:, :-window]
    small[:, :4] = False
    return np.argmax(small, axis=1), np.asarray(small.any(1))
