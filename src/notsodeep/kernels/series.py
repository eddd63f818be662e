"""The calculus in power series of the cosine (docs/theory.md, sections 7 and 13).

At given norms every kernel is k = sum_k g_k r^k, r the cosine of the angle. It holds for complex r as well, so the g_k
are Fourier coefficients of k on a circle. Sampled at M points of a circle of radius r, coefficient k carries
g_(k+M) + g_(k+2M) + ... too, damped by r^M, while rounding grows by r^(-k).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._arguments import checked, positive_int, shown
from .._arrays import Array, as_numbers
from .._fixed_point import unbracketed
from ..activations import Activation
from ..activations.forms import arc_profile
from ..errors import ConvergenceError, InvalidInputError
from ..gaussian import hermite_coefficients
from ..networks import Kernel, Network, check_kernel, check_kernels
from ..networks.nodes import Divided, Domain, FixedPoint, KernelState, LayerMaps, equation, kernels_in
from ._limits import LIMITS
from .pointwise import diagonal, equilibrium_variance, largest_rounded, mean_square, pairwise

Complex = NDArray[np.complex128]


@checked
def power_series(network: Network, terms: int, kernel: Kernel = "ck", norm: Any = 1.0, other: Any = None) -> Array:
    """g_0 ... g_(terms-1) of k(x, y) = sum_k g_k cos(x, y)^k, for all inputs with ||x|| = ``norm``, ||y|| = ``other``.

    Norms may be arrays, which are broadcast; the coefficients are the last axis, those below rounding are zero.

    >>> import notsodeep as nsd
    >>> [round(float(g), 6) for g in power_series(nsd.ENN("relu"), 5)]
    [0.159155, 0.25, 0.079577, 0.0, 0.006631]
    >>> power_series(nsd.DEQ("tanh", 0.2), 8, "ntk", norm=np.ones((3, 1)), other=np.linspace(0.5, 2.0, 4)).shape
    (3, 4, 8)
    """
    check_kernel(network, kernel)
    positive_int("terms", terms, 1, LIMITS.series_terms)
    left, right = np.broadcast_arrays(_norms(norm), _norms(norm if other is None else other))
    size = max(8 * terms, 4096)
    radius, pieces = math.exp(-24.0 / size), [np.zeros((0, terms))]
    at_once = max(1, LIMITS.held_numbers // (4 * size))
    for start in range(0, left.size, at_once):
        s, t = (side.ravel()[start : start + at_once] for side in (left, right))
        _check_resolved(network, terms, kernel, s, t)
        g = _on_fourier_grid(network, s, t, kernel, size, radius)[:, :terms]
        noise = 4e-16 * np.abs(g).max(1, keepdims=True) * radius ** -np.arange(terms)
        pieces.append(np.where(np.abs(g) > noise, g, 0.0))
    return np.concatenate(pieces).reshape(*left.shape, terms)


def _check_resolved(network: Network, terms: int, kernel: Kernel, s: Array, t: Array) -> None:
    """Refuse kernels that diverge, layers that receive nothing, and orders beyond the Hermite coefficients."""
    squares = torch.from_numpy(np.concatenate([s, t]) ** 2)
    along = diagonal(network, squares, (kernel,), check=False)[kernel]
    if not bool((along > 0.0).all()):
        raise InvalidInputError(f"{network!r} is zero for every input: a layer receives nothing")
    if all(phi.two_slopes is not None or not phi.kinks for phi in network.activations):
        return
    sx, sy = squares.chunk(2)
    cross = pairwise(network, sx, sy, torch.zeros_like(sx), check=False)["ck"]
    left, right = diagonal(network, squares, check=False)["ck"].sqrt().chunk(2)
    far = float((cross.abs() / (left * right)).max())
    # the weights of Hermite coefficients in an order are a negative binomial law, whose tail is known
    if terms + 50.0 + 12.0 * math.sqrt(terms) > LIMITS.series_terms * (1.0 - far) and far > 1e-9:
        raise ConvergenceError(
            f"{terms} terms need more than {LIMITS.series_terms} Hermite coefficients of {network!r}, because "
            f"orthogonal inputs have the correlation {far:.3g}; ask for fewer terms or centre the network"
        )


def sphere_diagonal(network: Network, kernel: Kernel = "ck") -> float:
    """The kernel of a point of norm one with itself: the sum of all coefficients."""
    return float(diagonal(network, torch.ones((), dtype=torch.float64), (kernel,), check=False)[kernel])


def _norms(norm: Any) -> Array:
    array = np.asarray(as_numbers(norm, "norm").detach().cpu(), dtype=np.float64)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise InvalidInputError(f"norm must be positive and finite, got {shown(norm)}")
    return array


def norm_series(
    network: Network, s: Any, t: Any, kernel: Kernel, terms: int, *, oversampling: int = 4, damped: bool = False
) -> Array:
    """g_0 ... g_(terms-1) at the pairs of norms (s_i, t_i): shape (pairs, terms); ``damped``: :func:`series_radius`."""
    check_kernels(network, (kernel,))
    size = oversampling * terms
    radius = series_radius(network, size, damped)
    return _on_fourier_grid(network, np.asarray(s, float), np.asarray(t, float), kernel, size, radius)[:, :terms]


def _on_fourier_grid(network: Network, s: Array, t: Array, kernel: Kernel, size: int, radius: float) -> Array:
    values = on_circle(network, s, t, kernel, size, radius)
    # k is real on the real axis, so half the circle decides
    return np.fft.irfft(values.conj(), n=size, axis=1) * radius ** -np.arange(size)


def series_radius(network: Network, size: int, damped: bool = False) -> float:
    """The circle to sample: smaller than 1 where the orders fall slowly; ``damped``: slightly smaller in any case."""
    if network.kinked:
        return math.exp(-14.0 / size)  # rounding then grows by exp(14 k / size)
    return math.exp(-2.0 / size) if damped else 1.0


def on_circle(network: Network, s: Array, t: Array, kernel: Kernel, size: int, radius: float = 1.0) -> Complex:
    """The kernel at cosines radius * exp(2 pi i m / size), m = 0 ... size/2, for every pair: (pairs, size/2 + 1)."""
    odd = size % 4 == 0 and network.odd  # k(-conj z) = -conj k(z): a quarter of the circle decides
    z = radius * np.exp(2j * np.pi * np.arange(size // (4 if odd else 2) + 1) / size)
    domain, points = _Circle(len(z)), np.stack([s, t]) ** 2
    expression = network.detached().expression()
    values = np.asarray(kernels_in(domain, expression, points, (s * t)[:, None] * z, (kernel,))[kernel])
    return np.concatenate([values, -values[:, -2::-1].conj()], axis=1) if odd else values


class _Circle(Domain):
    """Complex cosines, (pairs, cosines); points are the variances of both sides, (2, pairs)."""

    name = "a power series in the cosine"

    def __init__(self, size: int) -> None:
        self.size = size

    def layer(self, phi: Activation, points: Array) -> LayerMaps:
        """Return the layer, continued to complex correlations."""
        return _circle_layer(phi, points[0], points[1], self.size)

    def through(self, phi: Activation, points: Array) -> Array:
        return mean_square(phi, "value", torch.from_numpy(points)).numpy()

    def normalised(self, points: Array) -> tuple[LayerMaps, Array]:
        return Divided(np.sqrt(points[0] * points[1])[:, None]), np.ones_like(points)

    def settle(self, fixed: FixedPoint, state: KernelState) -> Array:
        return equilibrium_variance(fixed.network, torch.from_numpy(state.points)).numpy()

    def solve(self, fixed: FixedPoint, cell: Any, points: Array, state: KernelState) -> Complex:
        """Solve by Newton's method, from the drive."""
        drive, scale = fixed.drive(state.covariance), np.sqrt(points[0] * points[1])[:, None]
        lam, settled = unbracketed(lambda lam: equation(cell, lam, fixed.sigma_a2, drive), drive, scale)
        if not bool(settled.all()):
            deq = fixed.network
            raise ConvergenceError(
                f"the covariance equation of {deq!r} did not converge on the circle of complex cosines; {deq.advice}"
            )
        return lam


def _circle_layer(phi: Activation, qx: Array, qy: Array, points: int) -> LayerMaps:
    """At complex covariances, rows of so many points that belong to the pairs (qx, qy)."""
    root = np.sqrt(qx * qy)[:, None]
    slopes = phi.two_slopes
    if slopes is not None:
        return _ArcCosine(*slopes, root)
    q = np.stack([qx, qy])
    left, right = hermite_coefficients(phi, q, _hermite_terms(phi, largest_rounded(q)))
    return _HermiteSeries(left * right, root, phi.parity is not None, max(8, 1024 // points))


def _hermite_terms(phi: Activation, q: float) -> int:
    """How many Hermite coefficients count at the largest variance, by their squares."""
    if phi.kinks:
        return LIMITS.series_terms
    for most in (256, LIMITS.series_terms):
        square = np.asarray(hermite_coefficients(phi, q, most)) ** 2
        left = np.cumsum(square[::-1])[::-1]
        terms = int(np.searchsorted(-left, -1e-17 * left[0])) + 1
        if terms < most:
            break
    return max(4, min(LIMITS.series_terms, terms))


class _HermiteSeries(LayerMaps):
    """sum_k a_k rho^k and its derivative in lam, pairs of about equal length together, by products of blocks."""

    def __init__(self, a: Array, root: Array, symmetric: bool, together: int) -> None:
        self.root, self.step = root, 2 if symmetric else 1
        self.first = int(symmetric and not np.any(a[:, 0::2]))
        rows = a[:, self.first :: self.step]
        left = np.cumsum(np.abs(rows)[:, ::-1], axis=1)[:, ::-1]
        terms = np.maximum((left > 1e-17 * left[:, :1]).sum(1), 2)
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
