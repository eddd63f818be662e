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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._fixed_point import unbracketed
from ..activations import Activation
from ..activations.forms import arc_profile
from ..errors import ConvergenceError
from ..gaussian import hermite_coefficients
from ..networks import DEQ, Kernel, Network, check_kernels
from .recursion import LayerMaps, equation, explicit, implicit
from .variance import at_each_layer, equilibrium_variance

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
_HERMITE = 1024  # Hermite coefficients that the quadrature still resolves
_DAMPED = 14.0  # r^M = exp(-14) where a series falls slowly; rounding then grows by exp(14 k / M)
_SLIGHTLY = 2.0
_NOTHING = 1e-17  # of a series: what may be left out
_TOGETHER = 1024  # cosines, and 8 pairs at least: their powers stay in a cache


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
    if network.kinked:
        return math.exp(-_DAMPED / size)
    return math.exp(-_SLIGHTLY / size) if damped else 1.0


def on_circle(network: Network, s: Array, t: Array, kernel: Kernel, size: int, radius: float = 1.0) -> Complex:
    """The kernel at cosines radius * exp(2 pi i m / size), m = 0 ... size/2, for every pair: (pairs, size/2 + 1)."""
    odd = size % 4 == 0 and network.odd  # k(-conj z) = -conj k(z): a quarter of the circle decides
    z = radius * np.exp(2j * np.pi * np.arange(size // (4 if odd else 2) + 1) / size)
    gram, squares = (s * t)[:, None] * z, (torch.from_numpy(s**2), torch.from_numpy(t**2))
    if isinstance(network, DEQ):
        found = _implicit(network, equilibrium_variance(network, torch.stack(squares)).numpy(), gram, kernel)
    else:
        layers = (_layer(phi, qx.numpy(), qy.numpy(), len(z)) for phi, (qx, qy) in at_each_layer(network, *squares))
        found = np.asarray(explicit(gram, layers, (1.0,) * (network.depth + 1), (kernel,))[kernel])
    return np.concatenate([found, -found[:, -2::-1].conj()], axis=1) if odd else found


def _implicit(deq: DEQ, q: Array, gram: Complex, kernel: Kernel) -> Complex:
    layer, scale = _layer(deq.activation, q[0], q[1], gram.shape[1]), np.sqrt(q[0] * q[1])[:, None]
    sigma_a2, drive = deq.variances[0], deq.drive(gram)
    lam, settled = unbracketed(lambda lam: equation(layer, lam, sigma_a2, drive), drive, scale)
    if not bool(settled.all()):
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge on the circle of complex cosines; {deq.advice}"
        )
    return np.asarray(implicit(lam, layer, sigma_a2, (kernel,), lambda gap: None)[kernel])


# ---- one layer at complex covariances --------------------------------------------------------------------


def _layer(phi: Activation, qx: Array, qy: Array, points: int) -> LayerMaps:
    """At complex covariances, rows of so many points that belong to the pairs (qx, qy)."""
    root = np.sqrt(qx * qy)[:, None]
    slopes = phi.two_slopes
    if slopes is not None:
        return _ArcCosine(*slopes, root)
    q = np.stack([qx, qy])
    largest = 2.0 ** (math.ceil(4.0 * math.log2(max(float(q.max()), 1e-300))) / 4.0)
    left, right = hermite_coefficients(phi, q, _hermite_terms(phi, largest))
    return _HermiteSeries(left * right, root, phi.parity is not None, max(8, _TOGETHER // points))


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
    """sum_k a_k rho^k and its derivative in lam; only every second order for odd and even functions.

    Pairs that need about as many orders are summed up together, by powers within blocks of orders: these are matrix
    products, and only the blocks are left to Horner's rule.
    """

    def __init__(self, a: Array, root: Array, symmetric: bool, together: int) -> None:
        self.root, self.step = root, 2 if symmetric else 1
        self.first = int(symmetric and not np.any(a[:, 0::2]))
        rows = a[:, self.first :: self.step]
        left = np.cumsum(np.abs(rows)[:, ::-1], axis=1)[:, ::-1]
        terms = np.maximum((left > _NOTHING * left[:, :1]).sum(1), 2)
        place = np.argsort(terms, kind="stable")
        self.parts = [(i, _blocks(rows[i, : terms[i[-1]]])) for i in np.array_split(place, -(-len(place) // together))]

    def both(self, lam: Complex) -> tuple[Complex, Complex]:
        rho = lam / self.root
        x = rho * rho if self.step == 2 else rho
        value, slope = np.empty_like(rho), np.empty_like(rho)
        for i, blocks in self.parts:
            value[i], slope[i] = _sums(blocks, x[i])
        if self.step == 2:
            slope *= 2.0 * rho
        if self.first:
            value, slope = value * rho, value + slope * rho
        return value, slope / self.root


def _blocks(rows: Array) -> Array:
    """Coefficients of the series and of its derivative in blocks of equal size: (pairs, 2 * blocks, size)."""
    pairs, terms = rows.shape
    size = math.ceil(math.sqrt(2.0 * terms))
    out = np.zeros((2, pairs, -(-terms // size) * size))
    out[0, :, :terms] = rows
    out[1, :, : terms - 1] = rows[:, 1:] * np.arange(1.0, terms)
    return np.ascontiguousarray(out.reshape(2, pairs, -1, size).transpose(1, 0, 2, 3)).reshape(pairs, -1, size)


def _sums(blocks: Array, x: Complex) -> tuple[Complex, Complex]:
    pairs, _, size = blocks.shape
    powers = np.empty((pairs, size + 1, x.shape[1]), complex)
    powers[:, 0] = 1.0
    for k in range(size):
        np.multiply(powers[:, k], x, out=powers[:, k + 1])
    inner = (blocks @ powers[:, :size].view(float)).view(complex).reshape(pairs, 2, -1, x.shape[1])
    out, step = inner[:, :, -1], powers[:, None, size]
    for k in range(inner.shape[2] - 2, -1, -1):
        out = out * step + inner[:, :, k]
    return out[:, 0], out[:, 1]


class _ArcCosine(LayerMaps):
    """The arc-cosine kernels of theory, section 7b, continued to the unit disc."""

    def __init__(self, a: float, b: float, root: Array) -> None:
        self.a, self.b, self.root = a, b, root

    def both(self, lam: Complex) -> tuple[Complex, Complex]:
        value, slope = arc_profile(self.a, self.b, torch.from_numpy(lam / self.root))
        return self.root * value.numpy(), slope.numpy()
