"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With c = 1 / sqrt(1 + alpha^2 u^2) and z = 2 c - 1 a unit is P(z) / c + u Q(z) + (E(u) F(z) + O(u) G(z)) c^2 with
polynomials P, Q, F, G, whose coefficients are of order one. The singular functions E (even) and O (odd) are log|u|
and sign(u), or |u| and u log|u|, or u^2 log|u| and u|u|.
"""

from __future__ import annotations

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

    @property
    def settings(self) -> tuple[float, tuple[int, ...], int, bool]:
        """What :func:`elementary` takes; above some degree P and Q are written in Chebyshev polynomials."""
        return self.alpha, self.sizes, self.order, self.degree > LIMITS.chebyshev_degree

    def functions(self, u: Tensor) -> Tensor:
        """Return every function at the points u (n,): shape (n, size)."""
        return elementary(u.expand(self.size, -1), torch.eye(self.size, dtype=u.dtype), *self.settings).T


# ---- functions of torch alone, which pytorch_code prints --------------------------------------------------------


def horner(x: Tensor, rows: Tensor) -> Tensor:
    """Return sum_i rows[..., i] x^i, one fused operation per degree."""
    *parts, total = rows.unbind(-1)
    for part in reversed(parts):
        total = torch.addcmul(part, total, x)
    return total.expand_as(x)


def reinsch(x: Tensor, rows: Tensor) -> Tensor:
    """Return sum_i rows[..., i] T_i(1 + x / 2) by Clenshaw's rule in Reinsch's form: exact near x = 0, too."""
    first, *parts = rows.unbind(-1)
    total = ahead = torch.zeros_like(x)
    for part in reversed(parts):
        ahead = torch.addcmul(ahead, x, total) + part
        total = total + ahead
    return torch.addcmul(ahead, x, total, value=0.5) + first


def even_singular(u: Tensor, order: int) -> Tensor:
    """Return log|u| (order 0), |u| (1) or u^2 log|u| (2)."""
    if order == 1:
        return u.abs()
    # finite at zero, with a finite gradient; not a summand, since optimisers of exported graphs drop small ones
    log = torch.log(u.abs().clamp_min(1e-15))
    return u * u * log if order else log


def odd_singular(u: Tensor, order: int) -> Tensor:
    """Return sign(u) (order 0), u log|u| (1) or u|u| (2)."""
    if order == 1:
        return u * torch.log(u.abs().clamp_min(1e-15))
    return u * u.abs() if order else torch.sign(u)


def elementary(u: Tensor, rows: Tensor, alpha: float, sizes: tuple[int, ...], order: int, polynomials: bool) -> Tensor:
    """Return P / c + u Q + (E F + O G) c^2 at u (..., units), where ``rows`` (..., size) are the coefficients.

    c = 1 / sqrt(1 + alpha^2 u^2), and P, Q, F, G are polynomials in 2 c - 1; P and Q are sums of Chebyshev
    ``polynomials``, or of powers. E and O are the singular functions of this order.
    """
    one = u.new_ones(())
    c = torch.addcmul(one, u, u, value=alpha**2).rsqrt()
    z = torch.add(-one, c, alpha=2.0)
    smooth, x = (reinsch, (u * c).square() / (1.0 + c) * (-4.0 * alpha**2)) if polynomials else (horner, z)  # 2 (z - 1)
    p, q, f, g = rows.unsqueeze(-2).split(sizes, dim=-1)
    total = smooth(x, p) / c if sizes[0] else torch.zeros_like(u)
    if sizes[1]:
        total = torch.addcmul(total, u, smooth(x, q))
    if sizes[2]:
        total = torch.addcmul(total, even_singular(u, order) * c * c, horner(z, f))
    if sizes[3]:
        total = torch.addcmul(total, odd_singular(u, order) * c * c, horner(z, g))
    return total
