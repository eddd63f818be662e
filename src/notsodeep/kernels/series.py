"""The calculus in power series of the cosine (docs/theory.md, sections 7 and 13).

At given norms every kernel is k = sum_k g_k r^k, r the cosine of the angle, every g_k a positive semi-definite
function of the norms (Schoenberg). A layer acts on the series of its input's covariance by composition with
F(rho) = sum_k a_k(q) a_k(q') rho^k, a_k the Hermite coefficients at the two variances.

:func:`power_series` composes series order by order: nearly everything adds and multiplies non-negative numbers, so
every coefficient has its own relative accuracy. :func:`norm_series` has absolute accuracy, and many pairs and orders
cost little. The calculus holds for complex r as well, so the g_k are Fourier coefficients of k on a circle, where the
Hermite series of each layer is evaluated and the equation of a DEQ is solved by Newton's method. On the unit circle
coefficient k carries g_(k+M) + g_(k+2M) + ... of a series sampled at M points; on a circle of radius r < 1 these are
damped by r^M while rounding grows by r^(-k).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import gammaln

from .._arguments import whole
from .._arrays import isolated_settings
from .._fixed_point import unbracketed
from ..activations import Activation
from ..activations.forms import arc_profile
from ..errors import ConvergenceError, InvalidInputError
from ..gaussian import hermite_coefficients
from ..networks import DEQ, ENN, Kernel, Network, check_kernel, check_kernels, rates_of
from ._limits import LIMITS
from .pointwise import at_each_layer, diagonal, equilibrium, equilibrium_variance, largest_rounded
from .recursion import LayerMaps, Series, equation, explicit, implicit

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]


@isolated_settings
def power_series(network: Network, terms: int, kernel: Kernel = "ck", norm: Any = 1.0, other: Any = None) -> Array:
    """g_0 ... g_(terms-1) of k(x, y) = sum_k g_k cos(x, y)^k, for all inputs with ||x|| = ``norm``, ||y|| = ``other``.

    The network is taken as it is, centred or not. Norms may be arrays, which are broadcast; the coefficients are the
    last axis of the result. At equal norms (``other`` left out) they are non-negative.

    >>> import notsodeep as nsd
    >>> [round(float(g), 6) for g in power_series(nsd.ENN("relu"), 5)]
    [0.159155, 0.25, 0.079577, 0.0, 0.006631]
    >>> power_series(nsd.DEQ("tanh", 0.2), 8, "ntk", norm=np.ones((3, 1)), other=np.linspace(0.5, 2.0, 4)).shape
    (3, 4, 8)
    """
    check_kernel(network, kernel)
    whole("terms", terms, 1, LIMITS.series_terms)
    left, right = np.broadcast_arrays(_norms(norm), _norms(norm if other is None else other))
    pieces = [np.zeros((0, terms))]
    for start in range(0, left.size, LIMITS.pairs_at_once):
        part = slice(start, start + LIMITS.pairs_at_once)
        pieces.append(_kernel(network, terms, kernel, left.ravel()[part], right.ravel()[part]).c)
    return np.concatenate(pieces).reshape(*left.shape, terms)


def sphere_diagonal(network: Network, kernel: Kernel = "ck", norm: float = 1.0) -> float:
    """The kernel of a point with itself: the sum of all coefficients at equal norms."""
    square = torch.tensor(float(_norms(norm)) ** 2, dtype=torch.float64)
    return float(diagonal(network, square, (kernel,), check=False)[kernel])


def _norms(norm: Any) -> Array:
    array = np.asarray(norm, dtype=np.float64)
    if not (np.isfinite(array).all() and (array > 0).all()):
        raise InvalidInputError(f"norm must be positive and finite, got {norm!r}")
    return array


def _kernel(network: Network, terms: int, kernel: Kernel, left: Array, right: Array) -> PowerSeries:
    dot = np.zeros((len(left), terms))
    dot[:, 1:2] = (left * right)[:, None]
    sx, sy = torch.from_numpy(left**2), torch.from_numpy(right**2)
    if not isinstance(network, DEQ):
        return explicit(PowerSeries(dot), _layers(network, sx, sy, terms), rates_of(network, None), (kernel,))[kernel]
    qx, qy, orthogonal = equilibrium(network, sx, sy, torch.zeros_like(sx))
    layer, sigma_a2 = SeriesLayer(network.activation, qx, qy, terms), network.variances[0]
    drive = network.drive(PowerSeries(dot))
    noise = 1e-16 * layer.scale[:, 0]
    covariance = _solve(layer, sigma_a2, drive, np.where(orthogonal.abs().numpy() > noise, orthogonal, 0.0))

    def check_gap(gap: PowerSeries) -> None:
        # the series diverges at rho = 1 if the gap closes there
        diagonal(network, torch.cat([sx, sy]), (kernel,), check=False)

    return implicit(covariance, layer, sigma_a2, (kernel,), check_gap, network.readout)[kernel]


def _layers(enn: ENN, sx: torch.Tensor, sy: torch.Tensor, terms: int) -> Iterator[SeriesLayer]:
    for phi, (qx, qy) in at_each_layer(enn, sx, sy):
        if float(torch.minimum(qx, qy).min()) <= 0.0:
            raise InvalidInputError(f"{enn!r} is zero for every input: a layer receives nothing")
        yield SeriesLayer(phi, qx, qy, terms)


def _solve(layer: SeriesLayer, sigma_a2: float, drive: PowerSeries, orthogonal: Array) -> PowerSeries:
    """The covariance from its constant term, by Newton: the number of right coefficients doubles every step."""
    terms, right = drive.c.shape[1], 1
    covariance = PowerSeries(np.zeros_like(drive.c))
    covariance.c[:, 0] = orthogonal
    while right < terms:
        right = min(2 * right, terms)
        part = covariance.first(right)
        rest, rate = equation(layer, part, sigma_a2, drive.first(right))
        covariance.c[:, :right] = (part - rest / rate).c
        covariance.c[:, 0] = orthogonal
    # one more sweep in the form that only adds positive numbers: small coefficients get their own relative accuracy
    sweep = (sigma_a2 * layer.value(covariance) + drive).c
    own = sigma_a2 * layer.both(covariance.first(1))[1].c
    sweep[:, 1:] = (sweep[:, 1:] - own * covariance.c[:, 1:]) / (1.0 - own)
    sweep[:, 0] = orthogonal
    return PowerSeries(sweep)


# ---- one layer -----------------------------------------------------------------------------------------------


class SeriesLayer(LayerMaps):
    """An activation at pairs of variances: F(rho) = E[phi(u) phi(v)] as a Taylor series where rho starts.

    The coefficients f_k = sum_m binom(m, k) a_m(q) a_m(q') centre^(m-k) are held times (1 - |centre|)^k. As
    |rho - centre| <= 1 - |centre| on the unit disc, nothing overflows, and the weights binom(m, k) centre^(m-k)
    (1 - |centre|)^k are those of a negative binomial law, whose tail is known. ``terms``: of the longest covariance.
    """

    def __init__(self, phi: Activation, qx: torch.Tensor, qy: torch.Tensor, terms: int) -> None:
        self.phi, self.qx, self.qy, self.keep = phi, qx, qy, terms + 1
        self.scale: Array = torch.sqrt(qx * qy).numpy()[:, None]
        self._known: tuple[Array, Array] | None = None

    def value(self, covariance: PowerSeries) -> PowerSeries:
        """F(rho(r)), truncated like the covariance; its constant term must be the one first asked for."""
        taylor, reach = self._taylor(covariance)
        return PowerSeries(_compose(taylor, covariance.c / (self.scale * reach)))

    def both(self, covariance: PowerSeries) -> tuple[PowerSeries, PowerSeries]:
        """F(rho(r)) and F'(rho(r)) / sqrt(q q')."""
        taylor, reach = self._taylor(covariance)
        unit, derivative = self.scale * reach, np.arange(1, taylor.shape[1]) * taylor[:, 1:]
        return self.value(covariance), PowerSeries(_compose(derivative, covariance.c / unit) / unit)

    def _taylor(self, covariance: PowerSeries) -> tuple[Array, Array]:
        if self._known is None:
            self._known = self._expand(covariance.c[:, :1] / self.scale)
        return self._known

    def _expand(self, centre: Array) -> tuple[Array, Array]:
        far, keep, most = float(np.abs(centre).max(initial=0.0)), self.keep, LIMITS.series_terms
        reach = np.maximum(1.0 - np.abs(centre), 1e-300)
        size = keep if far == 0.0 else min(most, math.ceil((keep + 50.0 + 12.0 * math.sqrt(keep)) / (1.0 - far)))
        left, right = hermite_coefficients(self.phi, torch.stack([self.qx, self.qy]), size).numpy()
        products = left * right
        if far == 0.0:
            return products, reach
        k, m = np.arange(keep)[:, None], np.arange(size)[None, :]
        gap = np.maximum(m - k, 0)
        choose = np.where(m >= k, gammaln(m + 1.0) - gammaln(k + 1.0) - gammaln(gap + 1.0), -np.inf)
        taylor = np.empty((len(centre), keep))
        for row, (c, r, p) in enumerate(zip(centre[:, 0], reach[:, 0], products, strict=True)):
            weights = np.exp(choose + gap * math.log(max(abs(c), 1e-300)) + k * math.log(r))
            parts = (weights if c >= 0 else weights * (-1.0) ** gap) * p
            if float(np.abs(parts[:, -16:]).sum(1).max()) > 1e-16 * float(np.abs(p).sum()):
                raise ConvergenceError(
                    f"{keep - 1} terms need more than {most} Hermite coefficients of {self.phi!r}, because orthogonal "
                    f"inputs have the correlation {c:.3g}; ask for fewer terms or centre the network"
                )
            taylor[row] = parts.sum(1)
        return taylor, reach


# ---- truncated at a fixed order ------------------------------------------------------------------------------


class PowerSeries(Series):
    """sum_k c_k r^k up to a fixed order, a batch of them: ``c`` is (batch, terms)."""

    def first(self, terms: int) -> PowerSeries:
        """The leading terms, as a copy."""
        return PowerSeries(self.c[:, :terms].copy())

    @classmethod
    def product(cls, a: Array, b: Array) -> Array:
        size = a.shape[1]
        if len(a) == 1:
            return np.convolve(a[0], b[0])[None, :size]
        if 4 * len(a) <= size:
            return np.stack([np.convolve(left, right)[:size] for left, right in zip(a, b, strict=True)])
        out = a[:, :1] * b
        for k in range(1, size):
            out[:, k:] += a[:, k, None] * b[:, : size - k]
        return out

    @classmethod
    def inverse(cls, a: Array) -> Array:
        """Coefficient by coefficient; all terms are positive if a_0 is and the others are not."""
        out = np.zeros_like(a)
        out[:, 0] = 1.0 / a[:, 0]
        for k in range(1, a.shape[1]):
            out[:, k] = -out[:, 0] * (a[:, 1 : k + 1] * out[:, k - 1 :: -1]).sum(1)
        return out


def _compose(taylor: Array, inner: Array) -> Array:
    """sum_k taylor_k (inner - inner_0)^k by Horner; the k-th power starts at order k, so the work shrinks with k."""
    size = inner.shape[1]
    delta = inner.copy()
    delta[:, 0] = 0.0
    out = np.zeros_like(inner)
    for k in range(min(taylor.shape[1], size) - 1, -1, -1):
        # only the first size - k coefficients of this partial sum reach the result
        room = size - k
        out[:, :room] = PowerSeries.product(out[:, :room], delta[:, :room])
        out[:, 0] += taylor[:, k]
    return out


# ---- on a circle of complex cosines ------------------------------------------------------------------------


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
        return math.exp(-14.0 / size)  # rounding then grows by exp(14 k / size)
    return math.exp(-2.0 / size) if damped else 1.0


def on_circle(network: Network, s: Array, t: Array, kernel: Kernel, size: int, radius: float = 1.0) -> Complex:
    """The kernel at cosines radius * exp(2 pi i m / size), m = 0 ... size/2, for every pair: (pairs, size/2 + 1)."""
    odd = size % 4 == 0 and network.odd  # k(-conj z) = -conj k(z): a quarter of the circle decides
    z = radius * np.exp(2j * np.pi * np.arange(size // (4 if odd else 2) + 1) / size)
    gram, squares = (s * t)[:, None] * z, (torch.from_numpy(s**2), torch.from_numpy(t**2))
    if isinstance(network, DEQ):
        found = _equilibrium(network, equilibrium_variance(network, torch.stack(squares)).numpy(), gram, kernel)
    else:
        layers = (
            _circle_layer(phi, qx.numpy(), qy.numpy(), len(z)) for phi, (qx, qy) in at_each_layer(network, *squares)
        )
        found = np.asarray(explicit(gram, layers, (1.0,) * (network.depth + 1), (kernel,))[kernel])
    return np.concatenate([found, -found[:, -2::-1].conj()], axis=1) if odd else found


def _equilibrium(deq: DEQ, q: Array, gram: Complex, kernel: Kernel) -> Complex:
    layer, scale = _circle_layer(deq.activation, q[0], q[1], gram.shape[1]), np.sqrt(q[0] * q[1])[:, None]
    sigma_a2, drive = deq.variances[0], deq.drive(gram)
    lam, settled = unbracketed(lambda lam: equation(layer, lam, sigma_a2, drive), drive, scale)
    if not bool(settled.all()):
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge on the circle of complex cosines; {deq.advice}"
        )
    return np.asarray(implicit(lam, layer, sigma_a2, (kernel,), lambda gap: None, deq.readout)[kernel])


# ---- a layer at complex covariances --------------------------------------------------------------------


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
    """sum_k a_k rho^k and its derivative in lam; only every second order for odd and even functions.

    Pairs that need about as many orders are summed up together, by powers within blocks of orders: these are matrix
    products, and only the blocks are left to Horner's rule.
    """

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
