"""Linear, ReLU and its leaky relatives, hard tanh and swish, and any continuous piecewise linear function."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ActivationError
from .base import Activation, Parity, register
from .forms import ClosedForm, Dual, arc_cosine
from .polynomial import Polynomial, Quadratic

Breaks = tuple[tuple[float, tuple[float, ...]], ...]


@dataclass(frozen=True)
class TwoSlopes(Activation):
    """An activation a x for x > 0 and b x for x < 0; this class is abstract."""

    def closed_form(self) -> ClosedForm | None:
        return None if self.two_slopes is None else functools.partial(arc_cosine, *self.two_slopes)

    def _closed_means(self, q: Tensor) -> Dual:
        assert self.two_slopes is not None
        a, b = self.two_slopes
        return (a - b) * torch.sqrt(q / (2.0 * math.pi)), torch.full_like(q, 0.5 * (a + b))

    @property
    def breaks(self) -> Breaks | None:
        return None if self.two_slopes is None else ((0.0, (0.0, self.two_slopes[0] - self.two_slopes[1])),)


@register
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
    torch_module: ClassVar[type[nn.Module]] = nn.Identity
    parity: ClassVar[Parity] = "odd"
    homogeneity: ClassVar[float] = 1.0

    @property
    def slope_range(self) -> tuple[float, float]:
        return (self.slope, self.slope)

    def _value(self, x: Tensor) -> Tensor:
        return self.slope * x

    def _slope(self, x: Tensor) -> Tensor:
        return torch.full_like(x, self.slope)

    @property
    def two_slopes(self) -> tuple[float, float]:
        return (self.slope, self.slope)

    def polynomial(self) -> Polynomial:
        return Quadratic(0.0, self.slope, 0.0)

    def _source(self, x: str) -> str:
        return f"{self.slope!r} * {x}"


@register
@dataclass(frozen=True)
class ReLU(TwoSlopes):
    """phi(x) = max(x, 0).

    Examples
    --------
    >>> ReLU().kinks, ReLU().homogeneity
    ((0.0,), 1.0)
    """

    name: ClassVar[str] = "relu"
    torch_functions: ClassVar = (torch.relu, functional.relu)
    torch_module: ClassVar[type[nn.Module]] = nn.ReLU
    two_slopes: ClassVar[tuple[float, float]] = (1.0, 0.0)
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    homogeneity: ClassVar[float] = 1.0

    def _slope(self, x: Tensor) -> Tensor:
        return (x > 0).to(x.dtype)


@register
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
    torch_functions: ClassVar = (functional.leaky_relu,)
    torch_module: ClassVar[type[nn.Module]] = nn.LeakyReLU
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    homogeneity: ClassVar[float] = 1.0

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

    @property
    def two_slopes(self) -> tuple[float, float]:
        return (self.gain, self.slope)

    def _source(self, x: str) -> str:
        return f"torch.where({x} > 0, {self.gain!r} * {x}, {self.slope!r} * {x})"

    @classmethod
    def from_module(cls, module: Any) -> Self:
        return cls(slope=module.negative_slope)


@register
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
    torch_functions: ClassVar = (functional.hardtanh,)
    torch_module: ClassVar[type[nn.Module]] = nn.Hardtanh
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

    @classmethod
    def from_module(cls, module: Any) -> Self | None:
        return cls(c=module.max_val) if module.min_val == -module.max_val else None


@register
@dataclass(frozen=True)
class PiecewiseLinear(TwoSlopes):
    """A continuous function that is linear between knots.

    Parameters
    ----------
    knots : tuple of float
        The kinks, in increasing order.
    slopes : tuple of float
        The slopes before, between and after the knots, one more than there are knots.
    at_zero : float, default 0
        The value phi(0).

    Examples
    --------
    >>> PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, 1.0, 0.5)).lipschitz
    1.0
    """

    knots: tuple[float, ...] = (0.0,)
    slopes: tuple[float, ...] = (0.0, 1.0)
    at_zero: float = 0.0
    name: ClassVar[str] = "piecewise_linear"
    aliases: ClassVar[tuple[str, ...]] = ("piecewise",)
    piecewise_linear: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
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
        out = self._slope_at_zero * x
        for knot, bend in self._bends:
            out = out + bend * torch.relu(knot - x if knot < 0 else x - knot)
        return out + self.at_zero if self.at_zero else out

    @property
    def _slope_at_zero(self) -> float:
        """The slope just below zero; from there outwards nothing cancels, however small x is."""
        return self.slopes[sum(knot < 0 for knot in self.knots)]

    @property
    def _bends(self) -> list[tuple[float, float]]:
        """Each knot with the change of slope there."""
        pairs = zip(self.knots, self.slopes, self.slopes[1:], strict=False)
        return [(knot, right - left) for knot, left, right in pairs]

    def _slope(self, x: Tensor) -> Tensor:
        table = torch.tensor(self.slopes, dtype=x.dtype, device=x.device)
        knots = torch.tensor(self.knots, dtype=x.dtype, device=x.device)
        return table[torch.bucketize(x, knots)]

    @property
    def breaks(self) -> Breaks:
        return tuple((knot, (0.0, bend)) for knot, bend in self._bends)

    @property
    def two_slopes(self) -> tuple[float, float] | None:
        return (self.slopes[-1], self.slopes[0]) if self.homogeneity == 1.0 else None

    def _source(self, x: str) -> str:
        terms = [f"{self._slope_at_zero!r} * {x}"]
        for knot, bend in self._bends:
            beyond = f"{knot!r} - {x}" if knot < 0 else f"{x} - {knot!r}"
            terms.append(f"{bend!r} * torch.relu({beyond})")
        return " + ".join([*terms, *([repr(self.at_zero)] if self.at_zero else [])]).replace("+ -", "- ")


@register
@dataclass(frozen=True)
class HardSwish(Activation):
    """phi(x) = x * clip(x + 3, 0, 6) / 6: zero, a parabola, the identity (Howard et al., 2019).

    Examples
    --------
    >>> HardSwish().kinks
    (-3.0, 3.0)
    """

    name: ClassVar[str] = "hard_swish"
    aliases: ClassVar[tuple[str, ...]] = ("hardswish",)
    torch_functions: ClassVar = (functional.hardswish,)
    torch_module: ClassVar[type[nn.Module]] = nn.Hardswish
    kinks: ClassVar[tuple[float, ...]] = (-3.0, 3.0)
    slope_range: ClassVar[tuple[float, float]] = (-0.5, 1.5)
    breaks: ClassVar[Breaks] = ((-3.0, (0.0, -0.5, 1.0 / 3.0)), (3.0, (0.0, -0.5, -1.0 / 3.0)))

    def _slope(self, x: Tensor) -> Tensor:
        return torch.where(x.abs() < 3.0, x / 3.0 + 0.5, (x > 0).to(x.dtype))
