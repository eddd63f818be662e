"""Activations with their scales pulled out: phi(s x) = gain * f(x) with an f of as few passes as possible.

The scales 1/sqrt(m) of an explicit network and the gains of its activations cost one pass over memory each if they
are applied one by one; here they end up as a single number in front of the readout. Without gradients the functions
may overwrite their argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..activations import Activation, Affine, HardTanh, Hermite, LeakyReLU, Linear, Quadratic, ReLU

__all__ = ["fuse"]

_HIGHEST_DEGREE = 8  # monomials are accurate up to here; beyond, Clenshaw's recurrence of the activation itself

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Leaky:
    """x for x > 0, slope * x below."""

    slope: float

    def __call__(self, x: Tensor) -> Tensor:
        return functional.leaky_relu(x, self.slope, inplace=not torch.is_grad_enabled())


@dataclass(frozen=True)
class Clip:
    """clip(x, -c, c)."""

    c: float

    def __call__(self, x: Tensor) -> Tensor:
        return x.clamp(-self.c, self.c) if torch.is_grad_enabled() else x.clamp_(-self.c, self.c)


@dataclass(frozen=True)
class Polynomial:
    """sum_k coefficients[k] x^k by Horner's rule; the degree is at least one."""

    coefficients: tuple[float, ...]

    def __call__(self, x: Tensor) -> Tensor:
        out = x * self.coefficients[-1] + self.coefficients[-2]
        for c in self.coefficients[-3::-1]:
            out = out * x + c if torch.is_grad_enabled() else out.mul_(x).add_(c)
        return out


@dataclass(frozen=True)
class Scaled:
    """phi(scale * x)."""

    phi: Activation
    scale: float

    def __call__(self, x: Tensor) -> Tensor:
        return self.phi(x if self.scale == 1.0 else self.scale * x)


@dataclass(frozen=True)
class Shifted:
    """f(x) + shift."""

    base: Function
    shift: float

    def __call__(self, x: Tensor) -> Tensor:
        out = self.base(x)
        return out + self.shift if torch.is_grad_enabled() else out.add_(self.shift)


def identity(x: Tensor) -> Tensor:
    return x


def fuse(phi: Activation, scale: float = 1.0) -> tuple[Function, float]:
    """(f, gain) with phi(scale * x) = gain * f(x), scale > 0.

    >>> from notsodeep.activations import LeakyReLU
    >>> fuse(LeakyReLU(slope=0.5, gain=2.0), scale=0.1)
    (Leaky(slope=0.25), 0.2)
    """
    if isinstance(phi, Linear):
        return identity, phi.slope * scale
    if isinstance(phi, ReLU):
        return Leaky(0.0), scale
    if isinstance(phi, LeakyReLU) and phi.gain != 0.0:
        return Leaky(phi.slope / phi.gain), phi.gain * scale
    if isinstance(phi, HardTanh):
        return Clip(phi.c / scale), phi.a * scale
    if isinstance(phi, Quadratic):
        return Polynomial((phi.c, phi.b * scale, phi.a * scale**2)), 1.0
    if isinstance(phi, Hermite) and 1 <= phi.degree <= _HIGHEST_DEGREE:
        return Polynomial(_monomials(phi, scale)), 1.0
    if isinstance(phi, Affine) and phi.skip == 0.0 and phi.gain != 0.0:
        base, gain = fuse(phi.base, phi.scale * scale)
        gain *= phi.gain
        return (base, gain) if phi.shift == 0.0 or gain == 0.0 else (Shifted(base, phi.shift / gain), gain)
    return Scaled(phi, scale), 1.0


def _monomials(phi: Hermite, scale: float) -> tuple[float, ...]:
    """Coefficients of phi(scale x) in powers of x, from h_{k+1} = (t h_k - sqrt(k) h_{k-1}) / sqrt(k + 1)."""
    size = phi.degree + 1
    total = [0.0] * size
    before, current = [0.0] * size, [1.0] + [0.0] * (size - 1)
    for k in range(size):
        total = [t + phi.coefficients[k] * c for t, c in zip(total, current, strict=True)]
        shifted = [0.0, *current[:-1]]
        following = [(s - math.sqrt(k) * b) / math.sqrt(k + 1) for s, b in zip(shifted, before, strict=True)]
        before, current = current, following
    return tuple(t * (scale / phi.scale) ** k for k, t in enumerate(total))
