"""Linear, ReLU and leaky ReLU, hard tanh and hard swish."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ActivationError
from .base import Activation, Parity
from .forms import ClosedForm, Dual, arc_cosine
from .polynomial import Polynomial, Quadratic

Breaks = tuple[tuple[float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class TwoSlopes(Activation):
    """An activation a x for x > 0 and b x for x < 0; this class is abstract."""

    homogeneity: ClassVar[float] = 1.0

    @property
    def two_slopes(self) -> tuple[float, float]:
        raise NotImplementedError

    @property
    def slope_range(self) -> tuple[float, float]:
        return min(self.two_slopes), max(self.two_slopes)

    @property
    def parity(self) -> Parity | None:
        a, b = self.two_slopes
        return "odd" if a == b else "even" if a == -b else None

    def _slope(self, x: Tensor) -> Tensor:
        a, b = self.two_slopes
        return b + (a - b) * (x > 0).to(x.dtype)

    def closed_form(self) -> ClosedForm:
        return functools.partial(arc_cosine, *self.two_slopes)

    def _closed_means(self, q: Tensor) -> Dual:
        a, b = self.two_slopes
        return (a - b) * torch.sqrt(q / (2.0 * math.pi)), torch.full_like(q, 0.5 * (a + b))


@dataclass(frozen=True)
class Linear(TwoSlopes):
    """phi(x) = slope * x.

    Parameters
    ----------
    slope : float, default 1

    Examples
    --------
    >>> Linear(2.0).lipschitz
    2.0
    """

    slope: float = 1.0
    name: ClassVar[str] = "linear"
    aliases: ClassVar[tuple[str, ...]] = ("identity",)
    torch_forms: ClassVar = (nn.Identity,)

    def _value(self, x: Tensor) -> Tensor:
        return self.slope * x

    @property
    def two_slopes(self) -> tuple[float, float]:
        return (self.slope, self.slope)

    def polynomial(self) -> Polynomial:
        return Quadratic(0.0, self.slope, 0.0)

    def _source(self, x: str) -> str:
        return f"{self.slope!r} * {x}"


@dataclass(frozen=True)
class ReLU(TwoSlopes):
    """phi(x) = max(x, 0)."""

    name: ClassVar[str] = "relu"
    torch_forms: ClassVar = (torch.relu, functional.relu, nn.ReLU)
    two_slopes: ClassVar[tuple[float, float]] = (1.0, 0.0)
    kinks: ClassVar[tuple[float, ...]] = (0.0,)


@dataclass(frozen=True)
class LeakyReLU(TwoSlopes):
    """phi(x) = gain * x for x > 0 and slope * x for x < 0.

    Parameters
    ----------
    slope : float, default 0.01
    gain : float, default 1

    Examples
    --------
    >>> LeakyReLU(slope=0.1).slope_range
    (0.1, 1.0)
    """

    slope: float = 0.01
    gain: float = 1.0
    name: ClassVar[str] = "leaky_relu"
    aliases: ClassVar[tuple[str, ...]] = ("lrelu", "leakyrelu")
    torch_forms: ClassVar = (functional.leaky_relu, nn.LeakyReLU)
    module_fields: ClassVar = {"slope": "negative_slope"}
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    def _value(self, x: Tensor) -> Tensor:
        return torch.where(x > 0, self.gain * x, self.slope * x)

    @property
    def two_slopes(self) -> tuple[float, float]:
        return (self.gain, self.slope)

    def _source(self, x: str) -> str:
        return f"torch.where({x} > 0, {self.gain!r} * {x}, {self.slope!r} * {x})"


@dataclass(frozen=True)
class HardTanh(Activation):
    """phi(x) = a * clip(x, -c, c).

    Parameters
    ----------
    a : float, default 1
    c : float, default 1
        A positive number.

    Examples
    --------
    >>> HardTanh(a=0.5, c=2.0).kinks
    (-2.0, 2.0)
    """

    a: float = 1.0
    c: float = 1.0
    name: ClassVar[str] = "hard_tanh"
    aliases: ClassVar[tuple[str, ...]] = ("hardtanh", "htanh")
    torch_forms: ClassVar = (functional.hardtanh, nn.Hardtanh)
    module_fields: ClassVar = {"c": "max_val"}
    piecewise_linear: ClassVar[bool] = True
    parity: ClassVar[Parity] = "odd"

    def __post_init__(self) -> None:
        super().__post_init__()
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

    @property
    def breaks(self) -> Breaks:
        return ((-self.c, (0.0, self.a)), (self.c, (0.0, -self.a)))

    def _source(self, x: str) -> str:
        return f"{self.a!r} * {x}.clamp({-self.c!r}, {self.c!r})"


@dataclass(frozen=True)
class HardSwish(Activation):
    """phi(x) = x * clip(x + 3, 0, 6) / 6: zero, a parabola, the identity (Howard et al., 2019)."""

    name: ClassVar[str] = "hard_swish"
    aliases: ClassVar[tuple[str, ...]] = ("hardswish",)
    torch_forms: ClassVar = (functional.hardswish, nn.Hardswish)
    kinks: ClassVar[tuple[float, ...]] = (-3.0, 3.0)
    slope_range: ClassVar[tuple[float, float]] = (-0.5, 1.5)
    breaks: ClassVar[Breaks] = ((-3.0, (0.0, -0.5, 1.0 / 3.0)), (3.0, (0.0, -0.5, -1.0 / 3.0)))

    def _slope(self, x: Tensor) -> Tensor:
        return torch.where(x.abs() < 3.0, x / 3.0 + 0.5, (x > 0).to(x.dtype))
