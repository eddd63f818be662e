"""Truncated power series as numbers of the calculus: they add, multiply and divide."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, Self

import numpy as np

from .._arrays import Array

Basis = tuple[tuple[int, ...], ...]
"""The exponents of monomials, the constant first."""


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

    def __rtruediv__(self, number: float) -> Self:
        return type(self)(number * self.inverse(self.c))

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
