"""Quadratics, and polynomials written in the orthonormal Hermite basis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Activation, Parity, _finite, _register


@_register
@dataclass(frozen=True)
class Quadratic(Activation):
    """phi(x) = a x^2 + b x + c."""

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    name: ClassVar[str] = "quadratic"

    def __post_init__(self) -> None:
        _finite(self, a=self.a, b=self.b, c=self.c)

    @property
    def lipschitz(self) -> float:
        return abs(self.b) if self.a == 0.0 else math.inf

    @property
    def parity(self) -> Parity | None:
        return "even" if self.b == 0.0 else "odd" if self.a == 0.0 == self.c else None

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
        object.__setattr__(self, "coefficients", tuple(float(c) for c in self.coefficients))
        _finite(self, scale=self.scale, **{f"coefficients[{i}]": c for i, c in enumerate(self.coefficients)})
        if not self.coefficients or self.scale <= 0:
            raise ActivationError(f"Hermite: needs coefficients and a positive scale, got {self!r}")

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        return max((k for k, c in enumerate(self.coefficients) if c != 0.0), default=0)

    @property
    def lipschitz(self) -> float:
        if self.degree > 1:
            return math.inf
        return abs(self.coefficients[1]) / self.scale if self.degree == 1 else 0.0

    @property
    def parity(self) -> Parity | None:
        if not any(self.coefficients[0::2]):
            return "odd"
        return "even" if not any(self.coefficients[1::2]) else None

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
