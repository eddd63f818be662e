"""Sigmoids, the smooth relatives of ReLU, and the trigonometric functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Activation, Parity, _numbers, _register

_SQRT_2 = math.sqrt(2.0)
_SQRT_2PI = math.sqrt(2.0 * math.pi)


@_register
@dataclass(frozen=True)
class Tanh(Activation):
    """phi(x) = tanh(x)."""

    name: ClassVar[str] = "tanh"
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def _slope(self, x: Tensor) -> Tensor:
        return 1.0 - torch.tanh(x) ** 2

    def _curvature(self, x: Tensor) -> Tensor:
        t = torch.tanh(x)
        return -2.0 * t * (1.0 - t * t)


@_register
@dataclass(frozen=True)
class Arctan(Activation):
    """phi(x) = arctan(x)."""

    name: ClassVar[str] = "arctan"
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        return torch.atan(x)

    def _slope(self, x: Tensor) -> Tensor:
        return 1.0 / (1.0 + x * x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -2.0 * x / (1.0 + x * x) ** 2


@_register
@dataclass(frozen=True)
class Erf(Activation):
    """phi(x) = erf(x), the Gauss error function."""

    name: ClassVar[str] = "erf"
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 2.0 / math.sqrt(math.pi))

    def _value(self, x: Tensor) -> Tensor:
        return torch.erf(x)

    def _slope(self, x: Tensor) -> Tensor:
        return 2.0 / math.sqrt(math.pi) * torch.exp(-x * x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -2.0 * x * self._slope(x)


@_register
@dataclass(frozen=True)
class Sigmoid(Activation):
    """phi(x) = 1 / (1 + exp(-x))."""

    name: ClassVar[str] = "sigmoid"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 0.25)

    def _value(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def _slope(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 - s)

    def _curvature(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 - s) * (1.0 - 2.0 * s)

    def as_tanh(self) -> Activation:
        """The same function as tanh(x/2)/2 + 1/2, which shows that it is odd about its mean."""
        return Tanh().affine(gain=0.5, scale=0.5, shift=0.5)

    def centred(self, at: float) -> Activation:
        """phi - 1/2, at every scale."""
        return self.as_tanh().centred(at)


@_register
@dataclass(frozen=True)
class SiLU(Activation):
    """phi(x) = x * sigmoid(x), also called swish."""

    name: ClassVar[str] = "silu"
    slope_range: ClassVar[tuple[float, float]] = (-0.09983932012886692, 1.099839320128867)

    def _value(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x)

    def _slope(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 + x * (1.0 - s))

    def _curvature(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 - s) * (2.0 + x * (1.0 - 2.0 * s))


@_register
@dataclass(frozen=True)
class GELU(Activation):
    """phi(x) = x * Phi(x), Phi the normal distribution function."""

    name: ClassVar[str] = "gelu"
    slope_range: ClassVar[tuple[float, float]] = (-0.12890414518515478, 1.1289041451851548)

    def _value(self, x: Tensor) -> Tensor:
        return torch.nn.functional.gelu(x)

    def _slope(self, x: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-x / _SQRT_2) + x * torch.exp(-0.5 * x * x) / _SQRT_2PI

    def _curvature(self, x: Tensor) -> Tensor:
        return (2.0 - x * x) * torch.exp(-0.5 * x * x) / _SQRT_2PI


@_register
@dataclass(frozen=True)
class ELU(Activation):
    """phi(x) = x for x > 0 and alpha * (exp(x) - 1) for x < 0."""

    alpha: float = 1.0
    name: ClassVar[str] = "elu"
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def __post_init__(self) -> None:
        _numbers(self, "alpha")

    @property
    def slope_range(self) -> tuple[float, float]:
        return (min(0.0, self.alpha), max(1.0, self.alpha))

    def _value(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, x, self.alpha * torch.expm1(x.clamp(max=0.0)))

    def _slope(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, 1.0, self.alpha * torch.exp(x.clamp(max=0.0)))

    def _curvature(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, 0.0, self.alpha * torch.exp(x.clamp(max=0.0)))


@_register
@dataclass(frozen=True)
class SELU(Activation):
    """phi(x) = lambda * ELU(x; alpha) with the self-normalising constants of Klambauer et al. (2017)."""

    name: ClassVar[str] = "selu"
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    alpha: ClassVar[float] = 1.6732632423543772
    gain: ClassVar[float] = 1.0507009873554805
    slope_range: ClassVar[tuple[float, float]] = (0.0, alpha * gain)

    def _value(self, x: Tensor) -> Tensor:
        return self.gain * torch.where(x > 0, x, self.alpha * torch.expm1(x.clamp(max=0.0)))

    def _slope(self, x: Tensor) -> Tensor:
        return self.gain * torch.where(x > 0, 1.0, self.alpha * torch.exp(x.clamp(max=0.0)))

    def _curvature(self, x: Tensor) -> Tensor:
        return self.gain * torch.where(x > 0, 0.0, self.alpha * torch.exp(x.clamp(max=0.0)))


@_register
@dataclass(frozen=True)
class Softplus(Activation):
    """phi(x) = log(1 + exp(x))."""

    name: ClassVar[str] = "softplus"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    def _slope(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def _curvature(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 - s)


@_register
@dataclass(frozen=True)
class Sin(Activation):
    """phi(x) = sin(x)."""

    name: ClassVar[str] = "sin"
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        return torch.sin(x)

    def _slope(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -torch.sin(x)


@_register
@dataclass(frozen=True)
class Cos(Activation):
    """phi(x) = cos(x)."""

    name: ClassVar[str] = "cos"
    parity: ClassVar[Parity] = "even"
    slope_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def _value(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def _slope(self, x: Tensor) -> Tensor:
        return -torch.sin(x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -torch.cos(x)

    def _mean(self, tau: float) -> float:
        return math.exp(-0.5 * tau**2)
