"""Derivatives of exact kernels at any pair of points: in both squared norms, and twice in the inner product.

The calculus in power series c_ijk u^i v^j e^k around a pair, i, j <= 1 and k <= 2: ||x||^2 = s_x + u,
||y||^2 = s_y + v, x . y = d + e. A layer is its Hermite series sum_m A_m(q_x) A_m(q_y) r^m, of which all derivatives
are known: those in r by Price's theorem, and dA_m/dq = sqrt((m+1)(m+2)) A_(m+2)/2 with q = 1 at the pair. No
difference is taken.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .._arrays import sheltered
from ..activations import Activation
from ..gaussian import hermite_coefficients
from ..networks import ENN, Kernel, Network, check_kernel, rates_of
from .jets import product_table
from .pointwise import equilibrium
from .recursion import LayerMaps, equation, explicit, implicit
from .variance import equilibrium_variance, mean_square

Array = NDArray[np.float64]

_BASIS = tuple((i, j, k) for i in range(2) for j in range(2) for k in range(3))
_LAST = 4  # u v e^2: higher powers of what deviates from the pair vanish
_FEWEST, _MOST = 64, 2048  # Hermite terms
_CHUNK = 1 << 22  # terms times pairs held at once


@sheltered
def kernel_derivatives(
    network: Network,
    kernel: Kernel,
    sx: Array,
    sy: Array,
    dot: Array,
    learning_rates: Sequence[float] | None = None,
) -> Array:
    """Entry [..., i, j, k] is the kernel's derivative by ||x||^2 (i), ||y||^2 (j) and x . y (k); shape (..., 2, 2, 3).

    The points must not be parallel: the derivatives of kinked activations diverge there.
    """
    check_kernel(network, kernel)
    sx, sy, dot = np.broadcast_arrays(sx, sy, dot)
    columns = [np.ravel(v).astype(float) for v in (sx, sy, dot)]
    rates = rates_of(network, learning_rates)
    count = max(1, len(columns[0]) * _MOST // _CHUNK)
    parts = zip(*(np.array_split(column, count) for column in columns), strict=True)
    pieces = [_around(network, kernel, x, y, d, rates).c for x, y, d in parts]
    found: Array = np.concatenate(pieces).reshape(*sx.shape, 2, 2, 3)
    return found * np.array([1.0, 1.0, 2.0])  # k! of Taylor's formula


def _around(
    network: Network, kernel: Kernel, sx: Array, sy: Array, dot: Array, rates: Sequence[float] | None
) -> _Series:
    inner = _Series.of(dot, {(0, 0, 1): 1.0})
    if isinstance(network, ENN):
        layers = _layers(network, (sx, np.ones_like(sx)), (sy, np.ones_like(sy)))
        return explicit(inner, layers, rates or (), (kernel,))[kernel]
    qx, qy, lam = (v.numpy() for v in equilibrium(network, *(torch.from_numpy(v) for v in (sx, sy, dot))))
    grow = functools.partial(_with_rate, functools.partial(equilibrium_variance, network))
    layer = _Layer(network.activation, (qx, grow(sx)[1]), (qy, grow(sy)[1]))
    s2a, covariance, drive = network.variances[0], _Series.of(lam), network.drive(inner)
    for _ in range(3):  # Newton doubles the number of right degrees, of which there are four
        rest, rate = equation(layer, covariance, s2a, drive)
        covariance = covariance - rest / rate
    return implicit(covariance, layer, s2a, (kernel,), lambda gap: None)[kernel]


def _layers(enn: ENN, qx: tuple[Array, Array], qy: tuple[Array, Array]) -> Iterator[LayerMaps]:
    """Each layer at the variances that reach it, which come with their slopes in the inputs' squared norms."""
    for phi in enn.activations:
        yield _Layer(phi, qx, qy)
        square = functools.partial(mean_square, phi, "value")
        (x, dx), (y, dy) = _with_rate(square, qx[0]), _with_rate(square, qy[0])
        qx, qy = (x, dx * qx[1]), (y, dy * qy[1])


def _with_rate(function: Callable[[Tensor], Tensor], x: Array) -> tuple[Array, Array]:
    with torch.enable_grad():
        at = torch.from_numpy(x).requires_grad_(True)
        value = function(at)
        (rate,) = torch.autograd.grad(value.sum(), at)
    return value.detach().numpy(), rate.numpy()


class _Layer(LayerMaps):
    """Expectations of one activation around pairs of variances, each with its slope in the squared norm of an input."""

    def __init__(self, phi: Activation, qx: tuple[Array, Array], qy: tuple[Array, Array]) -> None:
        self.phi, self.qx, self.qy = phi, qx, qy
        self.root = np.sqrt(qx[0] * qy[0])
        self._taylor: list[_Series] | None = None

    def both(self, covariance: _Series) -> tuple[_Series, _Series]:
        """(value, slope) by Taylor's formula around the correlation of the pair."""
        if self._taylor is None:  # the correlations of the pairs stay, whatever deviates from them
            self._taylor = _expanded(self.phi, self.qx, self.qy, covariance.c[:, 0] / self.root)
        taylor = self._taylor
        deviation = _Series(covariance.c / self.root[:, None])
        deviation.c[:, 0] = 0.0
        value = slope = _Series(np.zeros_like(covariance.c))
        for k in range(_LAST, -1, -1):
            value = value * deviation + taylor[k]
            slope = slope * deviation + (k + 1.0) * taylor[k + 1]
        return value, (1.0 / self.root) * slope


def _expanded(phi: Activation, qx: tuple[Array, Array], qy: tuple[Array, Array], rho: Array) -> list[_Series]:
    """The coefficients of (r - rho)^k in sum_m A_m(q_x) A_m(q_y) r^m, as series in u and v."""
    terms = _terms(float(np.abs(rho).max()))
    (ax, bx), (ay, by) = _rows(phi, *qx, terms), _rows(phi, *qy, terms)
    products = {(0, 0): ax * ay, (1, 0): bx * ay, (0, 1): ax * by, (1, 1): bx * by}
    m = np.arange(terms)
    power, found = rho[:, None] ** m, []
    for k in range(_LAST + 2):
        weights = np.zeros_like(power)
        weights[:, k:] = power[:, : terms - k] * [math.comb(int(n), k) for n in m[k:]]
        series = {(i, j, 0): (weights * product).sum(1) for (i, j), product in products.items()}
        found.append(_Series.of(series.pop((0, 0, 0)), series))
    return found


def _terms(rho: float) -> int:
    """How many powers of rho count, times m^5 from five derivatives."""
    if rho >= 1.0:
        return _MOST
    return min(_MOST, max(_FEWEST, math.ceil(80.0 / -math.log(max(rho, 1e-12)))))


def _rows(phi: Activation, q: Array, rate: Array, terms: int) -> tuple[Array, Array]:
    """A_m at the variances q, and how it moves with the squared norm of the input."""
    distinct, which = np.unique(q, return_inverse=True)
    a = np.asarray(hermite_coefficients(phi, distinct, terms + 2))[which]
    m = np.arange(terms)
    moves = 0.5 * np.sqrt((m + 1.0) * (m + 2.0)) * a[:, 2:]
    return a[:, :-2], moves * (rate / q)[:, None]


@dataclass(frozen=True, eq=False)
class _Series:
    """Truncated power series around many pairs: coefficients (pairs, monomials)."""

    c: Array

    __array_ufunc__ = None  # arrays leave products to this class

    @staticmethod
    def of(constant: Array, others: dict[tuple[int, int, int], Any] | None = None) -> _Series:
        c = np.zeros((len(constant), len(_BASIS)))
        c[:, 0] = constant
        for monomial, coefficient in (others or {}).items():
            c[:, _BASIS.index(monomial)] = coefficient
        return _Series(c)

    def __add__(self, other: _Series | float) -> _Series:
        if isinstance(other, _Series):
            return _Series(self.c + other.c)
        return _Series(self.c + other * (np.arange(len(_BASIS)) == 0))

    def __sub__(self, other: _Series) -> _Series:
        return _Series(self.c - other.c)

    def __rsub__(self, number: float) -> _Series:
        return -1.0 * self + number

    def __mul__(self, other: _Series) -> _Series:
        first, second, starts = product_table(_BASIS)
        return _Series(np.add.reduceat(self.c[:, first] * other.c[:, second], starts, axis=1))

    def __rmul__(self, number: float | Array) -> _Series:
        return _Series(np.asarray(number).reshape(-1, 1) * self.c)

    def __truediv__(self, other: _Series) -> _Series:
        inverse = _Series.of(1.0 / other.c[:, 0])
        for _ in range(3):
            inverse = inverse * (2.0 - other * inverse)
        return self * inverse
