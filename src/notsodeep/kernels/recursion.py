"""The calculus of kernels, written once (docs/theory.md, section 2).

A layer maps the covariance of its inputs to E[phi(u) phi(v)] and E[phi'(u) phi'(v)]. From these two maps follow the
kernels of explicit and of implicit networks, whatever a covariance is that adds, multiplies and divides: a tensor
(``pointwise``) or a truncated power series (``jets``, ``averages``, ``series``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ..networks import Kernel, Readout, is_tangent

Array = NDArray[Any]
Basis = tuple[tuple[int, ...], ...]
"""The exponents of monomials, the constant first."""


class LayerMaps(Protocol):
    """What a layer offers at covariances of some type."""

    def both(self, covariance: Any, /) -> tuple[Any, Any]:
        """E[phi(u) phi(v)] and its derivative E[phi'(u) phi'(v)], which share their work."""

    def value(self, covariance: Any, /) -> Any:
        """The first alone, where it takes less."""
        return self.both(covariance)[0]


class Precomputed(LayerMaps):
    """A layer at covariances at which it has been evaluated."""

    def __init__(self, value: Any, slope: Any) -> None:
        self.found = value, slope

    def both(self, covariance: Any, /) -> tuple[Any, Any]:
        """What was found."""
        return self.found


def explicit(
    covariance: Any, layers: Iterable[LayerMaps], rates: Sequence[Any], kernels: Sequence[Kernel]
) -> dict[Kernel, Any]:
    """Sigma_l = V_l(Sigma_(l-1)) and Theta_l = rate_(l+1) Sigma_l + Theta_(l-1) Sigmadot_l.

    ``rates``: of W_1 ... W_L and the readout; frozen input weights are the rate 0 of W_1.
    """
    theta = {k: (rates[0] if k == "ntk" else 0.0 * rates[0]) * covariance for k in kernels if is_tangent(k)}
    for rate, layer in zip(rates[1:], layers, strict=True):
        covariance, slope = layer.both(covariance) if theta else (layer.value(covariance), None)
        theta = {k: t * slope + rate * covariance for k, t in theta.items()}
    return {k: theta.get(k, covariance) for k in kernels}


def equation(layer: LayerMaps, covariance: Any, sigma_a2: Any, drive: Any) -> tuple[Any, Any]:
    """What is left of Lambda = sigma_a2 G(Lambda) + drive, and its derivative 1 - sigma_a2 E[phi' phi']."""
    value, slope = layer.both(covariance)
    return covariance - sigma_a2 * value - drive, 1.0 - sigma_a2 * slope


def implicit(
    covariance: Any,
    layer: LayerMaps,
    sigma_a2: Any,
    kernels: Sequence[Kernel],
    check_gap: Callable[[Any], None],
    readout: Readout = "activation",
) -> dict[Kernel, Any]:
    """The kernels of a DEQ at the covariance Lambda that solves its equation.

    Every weight matrix that enters phi contributes what it carries of Lambda, times slope / gap: B (and the bias) their
    drive, A the rest, sigma_a2 G. A readout that is one more pre-activation, with weights of its own, turns each kernel
    K into sigma_a2 K + drive. ``check_gap`` refuses gaps 1 - sigma_a2 slope that are not positive.
    """
    outer = readout == "pre-activation"
    if not any(is_tangent(k) for k in kernels):
        return {"ck": covariance if outer else layer.value(covariance)}
    value, slope = layer.both(covariance)
    gap = 1.0 - sigma_a2 * slope
    check_gap(gap)
    parts: dict[Kernel, Any] = {"ck": value, "ntk": value + covariance * slope / gap, "ntk_frozen": value / gap}
    if outer:
        frozen = covariance + (sigma_a2 * slope) * (sigma_a2 * value) / gap
        parts = {"ck": covariance, "ntk": covariance / gap, "ntk_frozen": frozen}
    return {k: parts[k] for k in kernels}


# ---- truncated power series --------------------------------------------------------------------------------


class Products:
    """Which pairs of monomials have a product in the basis, in one or several bases side by side."""

    def __init__(self, *bases: Basis) -> None:
        pairs, count = [], 0
        for basis in bases:
            place = {monomial: number for number, monomial in enumerate(basis, count)}
            for left, right in itertools.product(basis, repeat=2):
                both = tuple(i + j for i, j in zip(left, right, strict=True))
                if both in place:
                    pairs.append((place[both], place[left], place[right]))
            count += len(basis)
        product, self.first, self.second = np.array(sorted(pairs)).T
        self.starts = np.searchsorted(product, np.arange(count))

    def product(self, a: Array, b: Array) -> Array:
        """The products of two batches of coefficients, truncated to the bases."""
        return np.add.reduceat(a[..., self.first] * b[..., self.second], self.starts, axis=-1)


class Series:
    """A batch of truncated power series: coefficients on the last axis, those of several bases side by side."""

    __slots__ = ("c",)
    __array_ufunc__ = None  # arrays leave products to this class
    bases: ClassVar[tuple[Basis, ...]] = ()
    products: ClassVar[Products]

    def __init_subclass__(cls) -> None:
        if cls.bases:
            cls.products = Products(*cls.bases)

    def __init__(self, c: Array) -> None:
        self.c = c

    def __add__(self, other: Self | float) -> Self:
        return type(self)(self.c + other.c) if isinstance(other, Series) else other - -1.0 * self

    def __sub__(self, other: Self) -> Self:
        return type(self)(self.c - other.c)

    def __rsub__(self, number: float) -> Self:
        c = -self.c
        c[..., self.constants()] += number
        return type(self)(c)

    def __mul__(self, other: Self) -> Self:
        return type(self)(self.product(self.c, other.c))

    def __rmul__(self, number: Any) -> Self:
        return type(self)(number * self.c)

    def __truediv__(self, other: Self) -> Self:
        return type(self)(self.product(self.c, self.inverse(other.c)))

    @classmethod
    def constants(cls) -> list[int]:
        """Return the places of the constant terms, one per basis."""
        return [0, *itertools.accumulate(len(basis) for basis in cls.bases[:-1])]

    @classmethod
    def doublings(cls) -> int:
        """The steps after which Newton's method, which doubles the number of right degrees, has all of them."""
        return math.ceil(math.log2(1 + max(sum(monomial) for basis in cls.bases for monomial in basis)))

    @classmethod
    def product(cls, a: Array, b: Array) -> Array:
        """The products of coefficients, truncated to the bases."""
        return cls.products.product(a, b)

    @classmethod
    def inverse(cls, a: Array) -> Array:
        """1 / a by Newton's method."""
        at, out = cls.constants(), np.zeros_like(a)
        out[..., at] = 1.0 / a[..., at]
        for _ in range(cls.doublings()):
            rest = -cls.product(a, out)
            rest[..., at] += 2.0
            out = cls.product(out, rest)
        return out
