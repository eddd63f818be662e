"""Quadratics, and polynomials written in the orthonormal Hermite basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Activation, Parity, _numbers, _register, _sequences


@_register
@dataclass(frozen=True)
class Quadratic(Activation):
    """phi(x) = a x^2 + b x + c."""

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    name: ClassVar[str] = "quadratic"

    def __post_init__(self) -> None:
        _numbers(self, "a", "b", "c")

    @property
    def slope_range(self) -> tuple[float, float]:
        return (self.b, self.b) if self.a == 0.0 else (-math.inf, math.inf)

    @property
    def parity(self) -> Parity | None:
        return "even" if self.b == 0.0 else "odd" if self.a == 0.0 == self.c else None

    @property
    def homogeneity(self) -> float | None:
        if self.c != 0.0 or (self.a != 0.0 and self.b != 0.0):
            return None
        return 2.0 if self.a != 0.0 else 1.0

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return 2 if self.a != 0.0 else int(self.b != 0.0)

    def derived(self) -> Quadratic:
        """phi' as an activation."""
        return Quadratic(0.0, 2.0 * self.a, self.b)

    def _mean(self, tau: float) -> float:
        return self.a * tau**2 + self.c

    def _value(self, x: Tensor) -> Tensor:
        return (self.a * x + self.b) * x + self.c

    def _slope(self, x: Tensor) -> Tensor:
        return 2.0 * self.a * x + self.b

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.full_like(x, 2.0 * self.a)


@_register
@dataclass(frozen=True)
class Hermite(Activation):
    """phi(x) = sum_k coefficients[k] h_k(x / scale), h_k the orthonormal Hermite polynomials."""

    coefficients: tuple[float, ...] = (0.0, 1.0)
    scale: float = 1.0
    name: ClassVar[str] = "hermite"

    def __post_init__(self) -> None:
        _sequences(self, "coefficients")
        _numbers(self, "scale")
        if not self.coefficients or self.scale <= 0:
            raise ActivationError(f"Hermite: needs coefficients and a positive scale, got {self!r}")

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return max((k for k, c in enumerate(self.coefficients) if c != 0.0), default=0)

    @property
    def slope_range(self) -> tuple[float, float]:
        if self.degree > 1:  # one end is finite for odd degrees; no use is made of it
            return (-math.inf, math.inf)
        slope = self.coefficients[1] / self.scale if self.degree == 1 else 0.0
        return (slope, slope)

    @property
    def homogeneity(self) -> float | None:
        return 1.0 if self.degree <= 1 and self.coefficients[0] == 0.0 else None

    @property
    def parity(self) -> Parity | None:
        if not any(self.coefficients[0::2]):
            return "odd"
        return "even" if not any(self.coefficients[1::2]) else None

    def _mean(self, tau: float) -> float:
        # E[h_k(s xi)] = ((s^2 - 1)/2)^(k/2) sqrt(k!)/(k/2)! for even k, from the generating function
        half = 0.5 * ((tau / self.scale) ** 2 - 1.0)
        evens = enumerate(self.coefficients[0::2])
        return sum(c * half**m * math.sqrt(math.factorial(2 * m)) / math.factorial(m) for m, c in evens)

    def derived(self) -> Hermite:
        """phi' as a Hermite activation: h_k' = sqrt(k) h_{k-1}."""
        lowered = tuple(math.sqrt(k) * c / self.scale for k, c in enumerate(self.coefficients))[1:]
        return Hermite(lowered or (0.0,), self.scale)

    def _value(self, x: Tensor) -> Tensor:
        return _clenshaw(self.coefficients, x / self.scale)

    def _slope(self, x: Tensor) -> Tensor:
        return self.derived()._value(x)

    def _curvature(self, x: Tensor) -> Tensor:
        return self.derived().derived()._value(x)


def _clenshaw(coefficients: Sequence[float], x: Tensor) -> Tensor:
    """sum_k c_k h_k(x) from h_{k+1} = (x h_k - sqrt(k) h_{k-1}) / sqrt(k + 1), summed backwards."""
    b1 = b2 = torch.zeros_like(x)
    for k in range(len(coefficients) - 1, -1, -1):
        b1, b2 = coefficients[k] + x * b1 / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * b2, b1
    return b1
