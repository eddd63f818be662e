"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With v = tanh(alpha u) and w = 1 - v^2:

    A(v) + u B(v) + E(u) w C(w) + O(u) w D(w),   A, B, C, D polynomials.

E and O are the even and the odd function with the singularity that a kink of the DEQ leaves behind: log|u| and sign(u),
or |u| and u log|u|, or u^2 log|u| and u|u|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Parity

__all__ = ["Basis"]

_TINY = 1e-30  # log|u| is read as log(u^2 + 1e-30) / 2: finite at zero, with a finite gradient


@dataclass(frozen=True)
class Basis:
    """The functions of u that a unit is made of, each even or odd; in the order of its coefficients."""

    alpha: float
    degree: int
    """Of A and B."""
    singular: int = 0
    """How many powers of w go with each singular function."""
    order: int = 1
    """0: log|u|, sign(u); 1: |u|, u log|u|; 2: u^2 log|u|, u|u|."""
    parity: Parity | None = None
    """Only the functions of this parity."""

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and self.degree >= 1 and self.singular >= 0 and self.order in (0, 1, 2)):
            raise ActivationError(f"a basis needs alpha > 0, degree >= 1, singular >= 0, order 0, 1 or 2; got {self!r}")
        if self.parity not in (None, "odd", "even"):
            raise ActivationError(f"parity must be 'odd', 'even' or None, got {self.parity!r}")

    @property
    def parities(self) -> tuple[int, ...]:
        """0 for an even and 1 for an odd function, in order."""
        return tuple(p for part in self._parts() for p in part)

    @property
    def size(self) -> int:
        return len(self.parities)

    def _parts(self) -> tuple[list[int], ...]:
        """Parities of A, B, C, D."""
        wanted = {"odd": {1}, "even": {0}, None: {0, 1}}[self.parity]
        powers = range(self.degree + 1)
        first = [i % 2 for i in powers if i % 2 in wanted]
        second = [(i + 1) % 2 for i in powers if (i + 1) % 2 in wanted]
        return first, second, [0] * self.singular * (0 in wanted), [1] * self.singular * (1 in wanted)

    def combine(self, u: Tensor, rows: Tensor) -> Tensor:
        """sum_b rows[..., b] B_b(u); ``rows`` (..., size) against u (..., units)."""
        v = torch.tanh(self.alpha * u)
        a, b, c, d = rows.split([len(part) for part in self._parts()], dim=-1)
        square = v * v
        if self.parity is None:
            out = torch.addcmul(_polynomial(v, a), u, _polynomial(v, b))
        elif self.parity == "odd":
            out = torch.addcmul(v * _polynomial(square, a), u, _polynomial(square, b))
        else:
            out = torch.addcmul(_polynomial(square, a), u * v, _polynomial(square, b))
        return out + self._singular(u, 1.0 - square, c, d) if self.singular else out

    def _singular(self, u: Tensor, w: Tensor, c: Tensor, d: Tensor) -> Tensor:
        even, odd = _SINGULAR[self.order](u)
        terms = [f * _polynomial(w, rows) for f, rows in ((even, c), (odd, d)) if rows.shape[-1]]
        return w * (terms[0] if len(terms) == 1 else terms[0] + terms[1])

    def functions(self, u: Tensor) -> Tensor:
        """Every function by itself at the points u (n,): shape (n, size)."""
        return self.combine(u.expand(self.size, -1), torch.eye(self.size, dtype=u.dtype)).T


def _polynomial(x: Tensor, rows: Tensor) -> Tensor:
    """sum_i rows[..., i] x^i by Horner's rule, one fused operation per degree."""
    parts = rows.unsqueeze(-2).unbind(-1)
    out = parts[-1]
    if len(parts) == 1:
        return out.expand_as(x)
    for part in parts[-2::-1]:
        out = torch.addcmul(part, out, x)
    return out


def _log(u: Tensor) -> Tensor:
    return 0.5 * torch.log(u * u + _TINY)


_SINGULAR: dict[int, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    0: lambda u: (_log(u), torch.sign(u)),
    1: lambda u: (u.abs(), u * _log(u)),
    2: lambda u: (u * u * _log(u), u * u.abs()),
}
