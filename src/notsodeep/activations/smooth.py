"""Sigmoids, the smooth relatives of ReLU, and waves."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from .base import Activation, Parity
from .forms import ClosedForm, Dual, Smoothed, arc_sine, gelu_pair, smoothed_elu, wave_pair
from .logistic import NOISE, WEIGHTS, silu_pair, softplus_pair, tanh_pair

_SQRT_2 = math.sqrt(2.0)
_SQRT_2PI = math.sqrt(2.0 * math.pi)


@dataclass(frozen=True)
class Tanh(Activation):
    """phi(x) = tanh(x)."""

    name: ClassVar[str] = "tanh"
    torch_forms: ClassVar = (torch.tanh, functional.tanh, nn.Tanh)
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    suprema: ClassVar[tuple[float, float] | None] = (4.0 / math.sqrt(27.0), 1.0)

    def _slope(self, x: Tensor) -> Tensor:
        return 1.0 - torch.tanh(x) ** 2

    def mixed_form(self) -> ClosedForm:
        return tanh_pair

    def _closed_means(self, q: Tensor) -> Dual:
        return torch.zeros_like(q), 4.0 * (1.0 / torch.sqrt(4.0 * q[..., None] + NOISE)) @ WEIGHTS / _SQRT_2PI


@dataclass(frozen=True)
class Arctan(Activation):
    """phi(x) = arctan(x)."""

    name: ClassVar[str] = "arctan"
    aliases: ClassVar[tuple[str, ...]] = ("atan",)
    torch_forms: ClassVar = (torch.atan, torch.arctan)
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    suprema: ClassVar[tuple[float, float] | None] = (9.0 / (8.0 * math.sqrt(3.0)), 0.5 * math.pi)

    def _slope(self, x: Tensor) -> Tensor:
        return 1.0 / (1.0 + x * x)


@dataclass(frozen=True)
class Erf(Activation):
    """phi(x) = erf(x), the Gauss error function."""

    name: ClassVar[str] = "erf"
    torch_forms: ClassVar = (torch.erf,)
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (0.0, 2.0 / math.sqrt(math.pi))
    suprema: ClassVar[tuple[float, float] | None] = (2.0 * math.sqrt(2.0 / (math.pi * math.e)), 1.0)

    def _slope(self, x: Tensor) -> Tensor:
        return 2.0 / math.sqrt(math.pi) * torch.exp(-x * x)

    def closed_form(self) -> ClosedForm:
        return arc_sine

    def _closed_means(self, q: Tensor) -> Dual:
        return torch.zeros_like(q), 2.0 / math.sqrt(math.pi) / torch.sqrt(1.0 + 2.0 * q)


@dataclass(frozen=True)
class Sigmoid(Activation):
    """phi(x) = 1 / (1 + exp(-x))."""

    name: ClassVar[str] = "sigmoid"
    torch_forms: ClassVar = (torch.sigmoid, nn.Sigmoid)
    slope_range: ClassVar[tuple[float, float]] = (0.0, 0.25)
    suprema: ClassVar[tuple[float, float] | None] = (1.0 / math.sqrt(108.0), 1.0)

    def _slope(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 - s)

    def canonical(self) -> Activation:
        """Return tanh(x/2)/2 + 1/2, which shows that phi is odd about its mean."""
        return Tanh().affine(gain=0.5, scale=0.5, shift=0.5)

    def mixed_form(self) -> ClosedForm | None:
        return self.canonical().mixed_form()

    def _closed_means(self, q: Tensor) -> Dual:
        return self.canonical()._closed_means(q)

    def centred(self, at: float) -> Activation:
        """Return phi - 1/2, at every scale."""
        return self.canonical().centred(at)


@dataclass(frozen=True)
class SiLU(Activation):
    """phi(x) = x * sigmoid(x), also called swish."""

    name: ClassVar[str] = "silu"
    aliases: ClassVar[tuple[str, ...]] = ("swish",)
    torch_forms: ClassVar = (functional.silu, nn.SiLU)
    slope_range: ClassVar[tuple[float, float]] = (-0.09983932012886692, 1.099839320128867)
    suprema: ClassVar[tuple[float, float] | None] = (0.5, 0.4392288398906453)  # y^2 - 1, y tanh(y) = 1

    def _slope(self, x: Tensor) -> Tensor:
        s = torch.sigmoid(x)
        return s * (1.0 + x * (1.0 - s))

    def mixed_form(self) -> ClosedForm:
        return silu_pair

    def _closed_means(self, q: Tensor) -> Dual:
        mean = (q[..., None] / torch.sqrt(q[..., None] + NOISE)) @ WEIGHTS / _SQRT_2PI
        return mean, torch.full_like(q, 0.5)


@dataclass(frozen=True)
class GELU(Activation):
    """phi(x) = x * Phi(x), where Phi is the normal distribution function."""

    name: ClassVar[str] = "gelu"
    torch_forms: ClassVar = (functional.gelu, nn.GELU)
    slope_range: ClassVar[tuple[float, float]] = (-0.12890414518515478, 1.1289041451851548)
    suprema: ClassVar[tuple[float, float] | None] = (2.0 / _SQRT_2PI, 2.0 / (math.e * _SQRT_2PI))

    def _slope(self, x: Tensor) -> Tensor:
        return 0.5 * torch.erfc(-x / _SQRT_2) + x * torch.exp(-0.5 * x * x) / _SQRT_2PI

    def closed_form(self) -> ClosedForm:
        return gelu_pair

    def _closed_means(self, q: Tensor) -> Dual:
        return q / torch.sqrt(2.0 * math.pi * (1.0 + q)), torch.full_like(q, 0.5)


@dataclass(frozen=True)
class ELU(Activation):
    """phi(x) = x for x > 0 and alpha * (exp(x) - 1) for x < 0.

    Parameters
    ----------
    alpha : float, default 1

    Examples
    --------
    >>> ELU(alpha=0.5).slope_jumps()
    (0.5,)
    """

    alpha: float = 1.0
    name: ClassVar[str] = "elu"
    torch_forms: ClassVar = (functional.elu, nn.ELU)
    module_fields: ClassVar = {"alpha": "alpha"}
    kinks: ClassVar[tuple[float, ...]] = (0.0,)

    @property
    def slope_range(self) -> tuple[float, float]:
        return (min(0.0, self.alpha), max(1.0, self.alpha))

    @property
    def suprema(self) -> tuple[float, float]:
        return (abs(self.alpha), abs(self.alpha))

    def _value(self, x: Tensor) -> Tensor:
        return _elu(x, self.alpha)

    def _slope(self, x: Tensor) -> Tensor:
        below = torch.exp(x.clamp(max=0.0))
        return below if self.alpha == 1.0 else torch.where(x > 0, 1.0, self.alpha * below)

    def smoothed(self, mean: Tensor, noise: Tensor) -> Smoothed:
        return smoothed_elu(self.alpha, mean, noise)

    def _source(self, x: str) -> str:
        return f"torch.nn.functional.elu({x}, {self.alpha!r})"


def _elu(x: Tensor, alpha: float) -> Tensor:
    """Keep small numbers in double precision, which torch 2.6 loses as exp(x) - 1; its gradients are quicker."""
    if x.dtype != torch.float64:
        return functional.elu(x, alpha)
    return torch.relu(x) + alpha * torch.expm1(x.clamp(max=0.0))


@dataclass(frozen=True)
class SELU(Activation):
    """phi(x) = lambda * ELU(x; alpha) with the self-normalising constants of Klambauer et al. (2017)."""

    name: ClassVar[str] = "selu"
    torch_forms: ClassVar = (functional.selu, nn.SELU)
    kinks: ClassVar[tuple[float, ...]] = (0.0,)
    alpha: ClassVar[float] = 1.6732632423543772
    gain: ClassVar[float] = 1.0507009873554805
    slope_range: ClassVar[tuple[float, float]] = (0.0, alpha * gain)

    def _value(self, x: Tensor) -> Tensor:
        return self.gain * _elu(x, self.alpha)

    def _slope(self, x: Tensor) -> Tensor:
        return self.gain * torch.where(x > 0, 1.0, self.alpha * torch.exp(x.clamp(max=0.0)))

    def smoothed(self, mean: Tensor, noise: Tensor) -> Smoothed:
        value, slope, curvature = smoothed_elu(self.alpha, mean, noise)
        return self.gain * value, self.gain * slope, self.gain * curvature


@dataclass(frozen=True)
class Softplus(Activation):
    """phi(x) = log(1 + exp(x))."""

    name: ClassVar[str] = "softplus"
    torch_forms: ClassVar = (functional.softplus, nn.Softplus)
    slope_range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    suprema: ClassVar[tuple[float, float] | None] = (0.25, math.log(2.0))

    def _value(self, x: Tensor) -> Tensor:
        return torch.logaddexp(x, torch.zeros_like(x))

    def _slope(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def mixed_form(self) -> ClosedForm:
        return softplus_pair

    def _closed_means(self, q: Tensor) -> Dual:
        return torch.sqrt(q[..., None] + NOISE) @ WEIGHTS / _SQRT_2PI, torch.full_like(q, 0.5)


@dataclass(frozen=True)
class Mish(Activation):
    """phi(x) = x * tanh(log(1 + exp(x))) (Misra, 2019)."""

    name: ClassVar[str] = "mish"
    torch_forms: ClassVar = (functional.mish, nn.Mish)
    slope_range: ClassVar[tuple[float, float]] = (-0.11252612238946255, 1.088498161251728)
    suprema: ClassVar[tuple[float, float] | None] = (0.65, 0.48)  # with |phi'''| <= 24, |x phi''| <= 7

    def _value(self, x: Tensor) -> Tensor:
        return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))

    def _slope(self, x: Tensor) -> Tensor:
        t = torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
        return t + x * torch.sigmoid(x) * (1.0 - t * t)


# ---- waves: all their Gaussian expectations come from E[exp(i t xi)] = exp(-t^2/2) --------------------------


@dataclass(frozen=True)
class _Wave(Activation):
    """A sine or a cosine, so that phi'' = -phi."""

    is_wave: ClassVar[bool] = True
    slope_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def closed_form(self) -> ClosedForm:
        return wave_pair

    def smoothed(self, mean: Tensor, noise: Tensor) -> Smoothed:
        fall = torch.exp(-0.5 * noise * noise)
        value = fall * self._value(mean)
        return value, fall * self._slope(mean), -value

    def closed_moments(self, tau: Tensor) -> list[Tensor]:
        q = tau**2
        (mean, slope), (square, steep) = self._closed_means(q), self.closed_form()(q, q, q)
        variance = square if self.parity == "odd" else 0.5 * torch.expm1(-q) ** 2
        return [mean, square, variance, slope, -mean, steep, 2.0 * (steep - square)]


@dataclass(frozen=True)
class Sin(_Wave):
    """phi(x) = sin(x)."""

    name: ClassVar[str] = "sin"
    aliases: ClassVar[tuple[str, ...]] = ("sine",)
    torch_forms: ClassVar = (torch.sin,)
    parity: ClassVar[Parity] = "odd"

    def _slope(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def _closed_means(self, q: Tensor) -> Dual:
        return torch.zeros_like(q), torch.exp(-0.5 * q)


@dataclass(frozen=True)
class Cos(_Wave):
    """phi(x) = cos(x)."""

    name: ClassVar[str] = "cos"
    aliases: ClassVar[tuple[str, ...]] = ("cosine",)
    torch_forms: ClassVar = (torch.cos,)
    parity: ClassVar[Parity] = "even"

    def _slope(self, x: Tensor) -> Tensor:
        return -torch.sin(x)

    def closed_form(self) -> ClosedForm:
        return lambda *q: wave_pair(*q)[::-1]

    def _closed_means(self, q: Tensor) -> Dual:
        return torch.exp(-0.5 * q), torch.zeros_like(q)
