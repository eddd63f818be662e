"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With c = 1 / sqrt(1 + alpha^2 u^2) and z = 2 c - 1 a unit is P(z) / c + u Q(z) + (E(u) F(z) + O(u) G(z)) c^2 with
polynomials P, Q, F, G, whose coefficients are of order one. The singular functions E (even) and O (odd) are log|u|
and sign(u), or |u| and u log|u|, or u^2 log|u| and u|u|.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import positive_int
from ..activations.base import Parity
from ..activations.panels import LIMITS
from ..errors import ActivationError


@dataclass(frozen=True)
class Basis:
    """The functions of u that a unit is made of, each even or odd; in the order of its coefficients."""

    alpha: float
    degree: int  # of the polynomials P and Q
    singular: int = 0  # how many powers of z multiply each singular function
    order: int = 1  # the singular functions: log|u| and sign(u) (0), |u| and u log|u| (1), u^2 log|u| and u|u| (2)
    parity: Parity | None = None  # if only functions of one parity are taken

    def __post_init__(self) -> None:
        positive_int("degree", self.degree, 1, LIMITS.degree)
        positive_int("singular", self.singular, 0, LIMITS.degree)
        most = LIMITS.fineness / (self.degree + 10)
        if not (1e-3 <= self.alpha <= most and self.order in (0, 1, 2)):
            raise ActivationError(f"a basis needs alpha from 0.001 to {most:.4g}, order 0, 1 or 2; got {self!r}")
        if self.parity not in (None, "odd", "even"):
            raise ActivationError(f"parity must be 'odd', 'even' or None, got {self.parity!r}")

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of coefficients of P, Q, F, G; parts of the other parity have none."""
        even, odd = self.parity != "odd", self.parity != "even"
        return ((self.degree + 1) * even, (self.degree + 1) * odd, self.singular * even, self.singular * odd)

    @property
    def parities(self) -> tuple[int, ...]:
        """The parity of each function: 0 if it is even, 1 if it is odd."""
        return tuple(p for p, size in zip((0, 1, 0, 1), self.sizes, strict=True) for _ in range(size))

    @property
    def size(self) -> int:
        """The number of functions."""
        return sum(self.sizes)

    def combine(self, u: Tensor, rows: Tensor) -> Tensor:
        """Return sum_b rows[..., b] B_b(u), for ``rows`` of shape (..., size) and u of shape (..., units)."""
        one = u.new_ones(())
        c = torch.addcmul(one, u, u, value=self.alpha**2).rsqrt()
        z = torch.add(-one, c, alpha=2.0)
        if self.chebyshev:
            smooth, x = _reinsch, (u * c).square() / (1.0 + c) * (-4.0 * self.alpha**2)  # x = 2 (z - 1)
        else:
            smooth, x = horner, z
        p, q, f, g = rows.unsqueeze(-2).split(self.sizes, dim=-1)
        even, odd = _SINGULAR[self.order]
        total = smooth(x, p) / c if self.sizes[0] else torch.zeros_like(u)
        if self.sizes[1]:
            total = torch.addcmul(total, u, smooth(x, q))
        if self.sizes[2]:
            total = torch.addcmul(total, even(u) * c * c, horner(z, f))
        if self.sizes[3]:
            total = torch.addcmul(total, odd(u) * c * c, horner(z, g))
        return total

    def grouped(self, u: Tensor, rows: Tensor) -> Tensor:
        """Combine units in equal groups with coefficients of their own: u (..., units), rows (..., groups, size)."""
        groups, units = rows.shape[-2], u.shape[-1]
        if units % groups == 0:
            return self.combine(u.unflatten(-1, (groups, units // groups)), rows).flatten(-2)
        parts = u.tensor_split(groups, -1)
        return torch.cat([self.combine(part, rows[..., h, :]) for h, part in enumerate(parts)], dim=-1)

    def functions(self, u: Tensor) -> Tensor:
        """Return every function at the points u (n,): shape (n, size)."""
        return self.combine(u.expand(self.size, -1), torch.eye(self.size, dtype=u.dtype)).T

    @property
    def chebyshev(self) -> bool:
        """Whether P and Q are written in Chebyshev polynomials, as functions of x = 2 (z - 1)."""
        return self.degree > LIMITS.chebyshev_degree

    # -- source ------------------------------------------------------------------------------------------
    def source_lines(self, name: str) -> list[str]:
        """Return :meth:`combine` as PyTorch source, with the sums that it needs."""
        smooth = (_reinsch, "x") if self.chebyshev else (horner, "z")
        sums = (smooth, smooth, (horner, "z"), (horner, "z"))
        factors = ("1 / c", "u", *(f"{f} * c * c" for f in _SOURCE[self.order]))
        parts = [i for i in range(4) if self.sizes[i]]
        rules = {sums[i][0].__name__: sums[i][0] for i in parts}.values()
        sources = [inspect.getsource(rule).replace(": Tensor", "").replace(" -> Tensor", "") for rule in rules]
        terms = (f"{factors[i]} * {sums[i][0].__name__}({sums[i][1]}, parts[{i}])" for i in parts)
        return [
            *(line for source in sources for line in (*source.splitlines(), "", "")),
            f"def {name}(u, rows):",
            f"    c = torch.rsqrt(1 + {self.alpha**2!r} * u * u)",
            "    z = 2 * c - 1",
            *([f"    x = {-4.0 * self.alpha**2!r} * u * u * c * c / (1 + c)  # 2 (z - 1)"] if self.chebyshev else []),
            *(["    log = torch.log(u.abs().clamp_min(1e-15))"] if self.singular else []),
            f"    parts = rows[..., None, :].split({list(self.sizes)!r}, dim=-1)",
            f"    return {' + '.join(terms)}",
        ]


def horner(x: Tensor, rows: Tensor) -> Tensor:
    """Return sum_i rows[..., i] x^i, one fused operation per degree."""
    *parts, total = rows.unbind(-1)
    for part in reversed(parts):
        total = torch.addcmul(part, total, x)
    return total.expand_as(x)


def _reinsch(x: Tensor, rows: Tensor) -> Tensor:
    """Return sum_i rows[..., i] T_i(1 + x / 2) by Clenshaw's rule in Reinsch's form: exact near x = 0, too."""
    first, *parts = rows.unbind(-1)
    total = ahead = torch.zeros_like(x)
    for part in reversed(parts):
        ahead = torch.addcmul(ahead, x, total) + part
        total = total + ahead
    return torch.addcmul(ahead, x, total, value=0.5) + first


def _log(u: Tensor) -> Tensor:
    # finite at zero, with a finite gradient; not a summand, since optimisers of exported graphs drop small ones
    return torch.log(u.abs().clamp_min(1e-15))


_SINGULAR: tuple[tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]], ...] = (
    (_log, torch.sign),
    (torch.abs, lambda u: u * _log(u)),
    (lambda u: u * u * _log(u), lambda u: u * u.abs()),
)
_SOURCE = (("log", "torch.sign(u)"), ("u.abs()", "u * log"), ("u * u * log", "u * u.abs()"))
