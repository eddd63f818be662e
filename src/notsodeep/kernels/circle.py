"""Power series of the cosine at pairs of norms, from a circle of complex cosines (theory, section 13).

For inputs of norms s, t and cosine rho every kernel of every network is k(s, t, rho) = sum_k g_k(s, t) rho^k, every g_k
a positive semi-definite function of the norms. The calculus of kernels holds for complex rho as well, so the g_k are
Fourier coefficients of k on a circle: the Hermite series of each layer is evaluated at complex correlations, and the
equation of a DEQ is solved there by Newton's method.

On the unit circle coefficient k carries g_(k+M) + g_(k+2M) + ... of a series sampled at M points; on a circle of radius
r < 1 these are damped by r^M while rounding grows by r^(-k). ``series.py`` computes the same order by order, with
relative accuracy in each; here it is absolute, and many pairs and orders cost little.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..activations import Activation
from ..errors import ConvergenceError
from ..gaussian import hermite_coefficients
from ..networks import DEQ, ENN, Kernel, Network, check_kernels
from .recursion import LayerMaps, equation, explicit, implicit
from .variance import equilibrium_variance, mean_square

__all__ = ["norm_series", "on_circle", "series_radius"]

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
_HERMITE = 1024  # Hermite coefficients that the quadrature still resolves
_DAMPED = 14.0  # r^M = exp(-14) where a series falls slowly; rounding then grows by exp(14 k / M)
_SLIGHTLY = 2.0
_STEPS = 60


def norm_series(
    network: Network, s: Any, t: Any, kernel: Kernel, terms: int, *, oversampling: int = 4, damped: bool = False
) -> Array:
    """g_0 ... g_(terms-1) at the pairs of norms (s_i, t_i): shape (pairs, terms); ``damped``: :func:`series_radius`.

    >>> import notsodeep as nsd
    >>> norm_series(nsd.ENN(["relu"]), [1.0], [2.0], "ck", 3).round(6)
    array([[0.31831 , 0.5     , 0.159155]])
    """
    check_kernels(network, (kernel,))
    size = oversampling * terms
    radius = series_radius(network, size, damped)
    values = on_circle(network, np.asarray(s, float), np.asarray(t, float), kernel, size, radius)
    # k is real on the real axis, so half the circle decides
    return np.fft.irfft(values.conj(), n=size, axis=1)[:, :terms] * radius ** -np.arange(terms)


def series_radius(network: Network, size: int, damped: bool = False) -> float:
    """The circle to sample: the unit circle for smooth activations, a smaller one where the orders fall slowly.

    ``damped``: a slightly smaller one for smooth activations too, so that what is mixed into the orders can be told
    from what the kernel at rho = 1 has beyond them.
    """
    if any(phi.kinks for phi in network.activations):
        return math.exp(-_DAMPED / size)
    return math.exp(-_SLIGHTLY / size) if damped else 1.0


def on_circle(network: Network, s: Array, t: Array, kernel: Kernel, size: int, radius: float = 1.0) -> Complex:
    """The kernel at cosines radius * exp(2 pi i m / size), m = 0 ... size/2, for every pair: (pairs, size/2 + 1)."""
    z = radius * np.exp(2j * np.pi * np.arange(size // 2 + 1) / size)
    gram = (s * t)[:, None] * z
    if isinstance(network, DEQ):
        return _implicit(network, s, t, gram, kernel)
    return np.asarray(explicit(gram, _layers(network, s, t), (1.0,) * (network.depth + 1), (kernel,))[kernel])


def _layers(enn: ENN, s: Array, t: Array) -> Iterator[LayerMaps]:
    qx, qy = torch.from_numpy(s**2), torch.from_numpy(t**2)
    for phi in enn.activations:
        yield _layer(phi, qx.numpy(), qy.numpy())
        qx, qy = mean_square(phi, "value", qx), mean_square(phi, "value", qy)


def _implicit(deq: DEQ, s: Array, t: Array, gram: Complex, kernel: Kernel) -> Complex:
    norms, which = np.unique(np.concatenate([s, t]), return_inverse=True)
    qx, qy = np.split(equilibrium_variance(deq, torch.from_numpy(norms**2)).detach().numpy()[which], 2)
    layer = _layer(deq.activation, qx, qy)
    sigma_a2, drive = deq.variances[0], deq.drive(gram)
    lam, scale = drive.copy(), np.sqrt(qx * qy)[:, None]
    for _ in range(_STEPS):  # plain Newton: complex numbers have no bracket
        rest, rate = equation(layer, lam, sigma_a2, drive)
        move = rest / rate
        lam -= move
        if float(np.max(np.abs(move) / scale)) <= 1e-9:  # quadratic: the next step would be below rounding
            return np.asarray(implicit(lam, layer, sigma_a2, (kernel,), lambda gap: None)[kernel])
    raise ConvergenceError(
        f"the covariance equation of {deq!r} did not converge on the circle of complex cosines; {deq.advice}"
    )


# ---- one layer at complex covariances --------------------------------------------------------------------


def _layer(phi: Activation, qx: Array, qy: Array) -> LayerMaps:
    """At complex covariances, rows of which belong to the pairs (qx, qy)."""
    root = np.sqrt(qx * qy)[:, None]
    slopes = phi.two_slopes
    if slopes is not None:
        return _ArcCosine(*slopes, root)
    distinct, which = np.unique(np.concatenate([qx, qy]), return_inverse=True)
    largest = 2.0 ** (math.ceil(4.0 * math.log2(max(float(distinct[-1]), 1e-300))) / 4.0)
    a = np.asarray(hermite_coefficients(phi, distinct, _hermite_terms(phi, largest)))
    ix, iy = np.split(which, 2)
    return _HermiteSeries(a[ix] * a[iy], root, phi.parity is not None)


@functools.lru_cache(maxsize=64)
def _hermite_terms(phi: Activation, q: float) -> int:
    """How many Hermite coefficients count at the largest variance, by their squares."""
    if phi.kinks:
        return _HERMITE
    for most in (256, _HERMITE):
        square = np.asarray(hermite_coefficients(phi, q, most)) ** 2
        left = np.cumsum(square[::-1])[::-1]
        terms = int(np.searchsorted(-left, -1e-17 * left[0])) + 1
        if terms < most:
            break
    return max(4, min(_HERMITE, terms))


class _HermiteSeries(LayerMaps):
    """sum_k a_k rho^k and its derivative in lam; only every second order for odd and even functions."""

    def __init__(self, a: Array, root: Array, symmetric: bool) -> None:
        self.root, self.step = root, 2 if symmetric else 1
        self.first = int(symmetric and not np.any(a[:, 0::2]))
        self.columns = np.ascontiguousarray(a[:, self.first :: self.step].T)[:, :, None]

    def both(self, lam: Complex) -> tuple[Complex, Complex]:
        rho = lam / self.root
        x = rho * rho if self.step == 2 else rho
        value, slope = np.zeros_like(rho), np.zeros_like(rho)
        for column in self.columns[::-1]:
            slope *= x
            slope += value
            value *= x
            value += column
        if self.step == 2:
            slope *= 2.0 * rho
        if self.first:
            value, slope = value * rho, value + slope * rho
        return value, slope / self.root


class _ArcCosine(LayerMaps):
    """The arc-cosine kernels of theory, section 7b, continued to the unit disc."""

    def __init__(self, a: float, b: float, root: Array) -> None:
        self.a, self.b, self.root = a, b, root

    def both(self, lam: Complex) -> tuple[Complex, Complex]:
        a, b, rho = self.a, self.b, lam / self.root
        angle = np.pi - np.arccos(rho)
        bend = np.sqrt(1.0 - rho) * np.sqrt(1.0 + rho) + angle * rho
        share = angle / np.pi
        value = self.root * ((a - b) ** 2 / (2.0 * np.pi) * bend + a * b * rho)
        return value, np.asarray(0.5 * (a * a + b * b) * share + a * b * (1.0 - share), complex)
