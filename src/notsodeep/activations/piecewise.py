"""Linear, ReLU and its leaky relatives, hard tanh, and any continuous piecewise linear function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Activation, Parity, _numbers, _register, _sequences


@_register
@dataclass(frozen=True)
class Linear(Activation):
    """phi(x) = slope * x."""

    slope: float = 1.0
    name: ClassVar[str] = "linear"
    parity: ClassVar[Parity] = "odd"
    homogeneity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _numbers(self, "slope")

    @property
    def slope_range(self) -> tuple[float, float]:
        return (self.slope, self.slope)

    def _value(self, x: Tensor) -> Tensor:
        return self.slope * x

    def _slope(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.slope)

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@_register
@dataclass(frozen=True)
class ReLU(Activation):
    """phi(x) = max(x, 0)."""

    name: ClassVar[str] = "relu"
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    homogeneity: ClassVar[float] = 1.0

    def _value(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def _slope(self, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@_register
@dataclass(frozen=True)
class LeakyReLU(Activation):
    """phi(x) = gain * x for x > 0 and slope * x for x < 0."""

    slope: float = 0.01
    gain: float = 1.0
    name: ClassVar[str] = "leaky_relu"
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    homogeneity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        _numbers(self, "slope", "gain")

    @property
    def slope_range(self) -> tuple[float, float]:
        return (min(self.slope, self.gain), max(self.slope, self.gain))

    @property
    def parity(self) -> Parity | None:
        return "odd" if self.slope == self.gain else "even" if self.slope == -self.gain else None

    def _value(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, self.gain * x, self.slope * x)

    def _slope(self, x: Tensor) -> Tensor:
        return self.slope + (self.gain - self.slope) * (x > 0).to(x.dtype)

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@_register
@dataclass(frozen=True)
class HardTanh(Activation):
    """phi(x) = a * clip(x, -c, c)."""

    a: float = 1.0
    c: float = 1.0
    name: ClassVar[str] = "hard_tanh"
    parity: ClassVar[Parity] = "odd"

    def __post_init__(self) -> None:
        _numbers(self, "a", "c")
        if self.c <= 0:
            raise ActivationError(f"HardTanh: c must be positive, got {self.c!r}")

    @property
    def kinks(self) -> tuple[float, ...]:
        return (-self.c, self.c)

    @property
    def slope_range(self) -> tuple[float, float]:
        return (min(0.0, self.a), max(0.0, self.a))

    def _value(self, x: Tensor) -> Tensor:
        return self.a * x.clamp(-self.c, self.c)

    def _slope(self, x: Tensor) -> Tensor:
        return self.a * (x.abs() < self.c).to(x.dtype)

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)


@_register
@dataclass(frozen=True)
class PiecewiseLinear(Activation):
    """Continuous, linear between ``knots``: ``slopes`` has one more entry; ``at_zero`` is phi(0)."""

    knots: tuple[float, ...] = (0.0,)
    slopes: tuple[float, ...] = (0.0, 1.0)
    at_zero: float = 0.0
    name: ClassVar[str] = "piecewise_linear"

    def __post_init__(self) -> None:
        _sequences(self, "knots", "slopes")
        _numbers(self, "at_zero")
        if len(self.slopes) != len(self.knots) + 1:
            raise ActivationError(
                f"PiecewiseLinear: {len(self.knots)} knots need {len(self.knots) + 1} slopes, got {len(self.slopes)}"
            )
        if any(b <= a for a, b in zip(self.knots, self.knots[1:], strict=False)):
            raise ActivationError(f"PiecewiseLinear: knots must increase, got {self.knots}")

    @property
    def kinks(self) -> tuple[float, ...]:
        return self.knots

    @property
    def slope_range(self) -> tuple[float, float]:
        return (min(self.slopes), max(self.slopes))

    @property
    def parity(self) -> Parity | None:
        mirrored = tuple(-k for k in reversed(self.knots)) == self.knots
        if mirrored and self.slopes == self.slopes[::-1] and self.at_zero == 0.0:
            return "odd"
        if mirrored and self.slopes == tuple(-s for s in self.slopes[::-1]):
            return "even"
        return None

    @property
    def homogeneity(self) -> float | None:
        return 1.0 if set(self.knots) <= {0.0} and self.at_zero == 0.0 else None

    def _value(self, x: Tensor) -> Tensor:
        out = self.at_zero + self.slopes[0] * x
        for knot, left, right in zip(self.knots, self.slopes, self.slopes[1:], strict=False):
            out = out + (right - left) * (torch.relu(x - knot) - max(-knot, 0.0))
        return out

    def _slope(self, x: Tensor) -> Tensor:
        table = torch.tensor(self.slopes, dtype=x.dtype, device=x.device)
        knots = torch.tensor(self.knots, dtype=x.dtype, device=x.device)
        return table[torch.bucketize(x, knots)]

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)
