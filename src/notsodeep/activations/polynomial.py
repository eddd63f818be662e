"""Quadratics, and polynomials written in the orthonormal Hermite basis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .._arguments import shown
from ..errors import ActivationError
from .base import Activation, Parity


@dataclass(frozen=True)
class Polynomial(Activation):
    """A polynomial; this class is abstract."""

    @property
    def degree(self) -> int:
        """The degree of the polynomial."""
        raise NotImplementedError

    def derived(self) -> Polynomial:
        """Return phi' as an activation."""
        raise NotImplementedError

    def wrapped(self, gain: float, scale: float, skip: float, shift: float) -> Polynomial:
        """Gain * phi(scale * x) + skip * x + shift."""
        raise NotImplementedError

    def polynomial(self) -> Polynomial:
        return self

    def _slope(self, x: Tensor) -> Tensor:
        return self.derived()._value(x)

    def coefficients_at(self, tau: Tensor, terms: int) -> Tensor:
        """Return the Hermite coefficients E[phi(tau xi) h_k(xi)], k < terms: (len(tau), terms)."""
        raise NotImplementedError

    def _mean(self, tau: float) -> float:
        return float(self.coefficients_at(torch.tensor([tau], dtype=torch.float64), 1))

    def closed_moments(self, tau: Tensor) -> list[Tensor]:
        # by Parseval's identity
        first = self.derived()
        value, slope, curvature = (f.coefficients_at(tau, self.degree + 1) for f in (self, first, first.derived()))
        slope_square = (slope**2).sum(-1)
        square_curvature = 2.0 * (slope_square + (value * curvature).sum(-1))
        variance = (value[:, 1:] ** 2).sum(-1)
        square = value[:, 0] ** 2 + variance
        return [value[:, 0], square, variance, slope[:, 0], curvature[:, 0], slope_square, square_curvature]


@dataclass(frozen=True)
class Quadratic(Polynomial):
    """phi(x) = a x^2 + b x + c.

    Parameters
    ----------
    a : float, default 1
    b, c : float, default 0

    Examples
    --------
    >>> Quadratic(1.0, 0.0, -1.0).parity
    'even'
    """

    a: float = 1.0
    b: float = 0.0
    c: float = 0.0
    name: ClassVar[str] = "quadratic"

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
        return 2 if self.a != 0.0 else int(self.b != 0.0)

    def derived(self) -> Quadratic:
        return Quadratic(0.0, 2.0 * self.a, self.b)

    def wrapped(self, gain: float, scale: float, skip: float, shift: float) -> Quadratic:
        steep = gain * scale
        return Quadratic(steep * scale * self.a, steep * self.b + skip, gain * self.c + shift)

    def coefficients_at(self, tau: Tensor, terms: int) -> Tensor:
        out = torch.zeros(len(tau), terms, dtype=torch.float64)
        exact = [self.a * tau**2 + self.c, self.b * tau, math.sqrt(2.0) * self.a * tau**2]
        out[:, :3] = torch.stack(exact, dim=1)[:, :terms]
        return out

    def _value(self, x: Tensor) -> Tensor:
        return (self.a * x + self.b) * x + self.c

    def _source(self, x: str) -> str:
        return f"({self.a!r} * {x} + {self.b!r}) * {x} + {self.c!r}"


@dataclass(frozen=True)
class Hermite(Polynomial):
    """phi(x) = sum_k coefficients[k] h_k(x / scale), where h_k are the orthonormal Hermite polynomials.

    Parameters
    ----------
    coefficients : tuple of float
    scale : float, default 1
        A positive number.

    Examples
    --------
    >>> Hermite((0.0, 1.0, 0.5)).degree
    2
    """

    coefficients: tuple[float, ...] = (0.0, 1.0)
    scale: float = 1.0
    name: ClassVar[str] = "hermite"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.coefficients or not 1e-30 <= self.scale <= 1e30:  # as inputs have
            raise ActivationError(f"Hermite: needs coefficients and a scale from 1e-30 to 1e30, got {shown(self)}")
        if len(self.coefficients) > 171:  # 171! leaves double precision
            raise ActivationError(
                f"Hermite: takes at most 171 coefficients, degree 170, got {len(self.coefficients)}: higher powers "
                "leave double precision"
            )

    @property
    def degree(self) -> int:
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

    def derived(self) -> Hermite:
        # h_k' = sqrt(k) h_{k-1}
        lowered = tuple(math.sqrt(k) * c / self.scale for k, c in enumerate(self.coefficients))[1:]
        return Hermite(lowered or (0.0,), self.scale)

    def wrapped(self, gain: float, scale: float, skip: float, shift: float) -> Hermite:
        width = self.scale / scale
        coefficients = [gain * c for c in self.coefficients] + [0.0] * max(0, 2 - len(self.coefficients))
        coefficients[0] += shift
        coefficients[1] += skip * width
        return Hermite(tuple(coefficients), width)

    def coefficients_at(self, tau: Tensor, terms: int) -> Tensor:
        out = torch.zeros(len(tau), terms, dtype=torch.float64)
        s = tau / self.scale
        for k, c in enumerate(self.coefficients):
            # h_k(s x) = sum_m s^(k-2m) ((s^2-1)/2)^m sqrt(k!/(k-2m)!)/m! h_(k-2m)(x)
            for m in range(k // 2 + 1):
                j = k - 2 * m
                if j < terms and c != 0.0:
                    factor = math.exp(0.5 * (math.lgamma(k + 1) - math.lgamma(j + 1)) - math.lgamma(m + 1))
                    out[:, j] += c * factor * s**j * (0.5 * (s * s - 1.0)) ** m
        return out

    def _value(self, x: Tensor) -> Tensor:
        x = x / self.scale
        if torch.compiler.is_compiling():
            # a graph cannot refuse rows: beyond, where h_k(x) > sqrt(max), it is constant
            top = 0.5 * (math.log(torch.finfo(x.dtype).max) + math.lgamma(self.degree + 1))
            x = x.clamp(-(most := math.exp(top / max(1, self.degree))), most)
        b1 = b2 = torch.zeros_like(x)  # by the three-term recurrence, summed backwards (Clenshaw)
        for k, c in reversed([*enumerate(self.coefficients)]):
            b1, b2 = c + x * b1 / math.sqrt(k + 1) - math.sqrt((k + 1) / (k + 2)) * b2, b1
        return b1

    def source_lines(self, name: str) -> list[str]:
        return [  # by the three-term recurrence: many orders would lose their digits as powers
            f"def {name}(x):",
            f"    coefficients = {list(self.coefficients[: self.degree + 1])!r}",
            f"    x, before, here, total = x / {self.scale!r}, torch.zeros_like(x), torch.ones_like(x), 0.0",
            "    for k, c in enumerate(coefficients):",
            "        total = total + c * here",
            "        before, here = here, (x * here - math.sqrt(k) * before) / math.sqrt(k + 1)",
            "    return total",
        ]
