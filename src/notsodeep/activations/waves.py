"""Sine and cosine, whose Gaussian expectations all come from E[exp(i t xi)] = exp(-t^2/2)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .base import Activation, Parity, register
from .forms import ClosedForm, Dual, wave_pair


@register
@dataclass(frozen=True)
class Sin(Activation):
    """phi(x) = sin(x)."""

    name: ClassVar[str] = "sin"
    written: ClassVar[str] = "torch.sin"
    aliases: ClassVar[tuple[str, ...]] = ("sine",)
    torch_functions: ClassVar = (torch.sin,)
    parity: ClassVar[Parity] = "odd"
    slope_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def _slope(self, x: Tensor) -> Tensor:
        return torch.cos(x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -torch.sin(x)

    def closed_form(self) -> ClosedForm:
        return wave_pair

    def closed_means(self, q: Tensor) -> Dual:
        return torch.zeros_like(q), torch.exp(-0.5 * q)

    def closed_moments(self, tau: Tensor) -> list[Tensor]:
        damped, twice, small, large = _damping(tau)
        zero = torch.zeros_like(tau)
        return [zero, small, small, damped, zero, large, 2.0 * twice]

    def closed_coefficients(self, tau: Tensor, terms: int, derivative: bool = False) -> Tensor:
        return _coefficients(int(derivative), tau, terms)


@register
@dataclass(frozen=True)
class Cos(Activation):
    """phi(x) = cos(x)."""

    name: ClassVar[str] = "cos"
    written: ClassVar[str] = "torch.cos"
    aliases: ClassVar[tuple[str, ...]] = ("cosine",)
    torch_functions: ClassVar = (torch.cos,)
    parity: ClassVar[Parity] = "even"
    slope_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)

    def _slope(self, x: Tensor) -> Tensor:
        return -torch.sin(x)

    def _curvature(self, x: Tensor) -> Tensor:
        return -torch.cos(x)

    def _mean(self, tau: float) -> float:
        return math.exp(-0.5 * tau**2)

    def closed_form(self) -> ClosedForm:
        return _cos_pair

    def closed_means(self, q: Tensor) -> Dual:
        return torch.exp(-0.5 * q), torch.zeros_like(q)

    def closed_moments(self, tau: Tensor) -> list[Tensor]:
        damped, twice, small, large = _damping(tau)
        variance = 0.5 * torch.expm1(-(tau**2)) ** 2
        return [damped, large, variance, torch.zeros_like(tau), -damped, small, -2.0 * twice]

    def closed_coefficients(self, tau: Tensor, terms: int, derivative: bool = False) -> Tensor:
        return _coefficients(1 + int(derivative), tau, terms)


def _cos_pair(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
    odd, even = wave_pair(qx, qy, lam)
    return even, odd


def _damping(tau: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """exp(-tau^2/2), exp(-2 tau^2), E[sin^2] and E[cos^2]."""
    twice = torch.exp(-2.0 * tau**2)
    return torch.exp(-0.5 * tau**2), twice, -0.5 * torch.expm1(-2.0 * tau**2), 0.5 * (1.0 + twice)


def _coefficients(quarter: int, tau: Tensor, terms: int) -> Tensor:
    """E[sin(tau xi + quarter pi/2) h_k(xi)] = sin((k + quarter) pi/2) tau^k exp(-tau^2/2) / sqrt(k!)."""
    k = torch.arange(terms, dtype=torch.float64)
    sign = torch.tensor([(0.0, 1.0, 0.0, -1.0)[(j + quarter) % 4] for j in range(terms)], dtype=torch.float64)
    log_size = k * torch.log(tau.clamp_min(1e-150))[:, None] - 0.5 * tau[:, None] ** 2 - 0.5 * torch.lgamma(k + 1.0)
    return sign * torch.exp(log_size)
