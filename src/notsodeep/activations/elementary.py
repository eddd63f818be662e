"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With v = tanh(alpha u), w = 1 - v^2 and y = 1 - 2 v^2 a unit is

    A(y) + u v B(y) + v C(y) + u D(y) + E(u) w F(y) + O(u) w G(y),   A ... G polynomials:

all polynomials in v, and u times them. They are written in powers of y, which runs through [-1, 1], and in its
Chebyshev polynomials where the degree is high: coefficients stay small, and with them what single precision loses.
E and O are the even and
the odd function with the singularity that a kink of the DEQ leaves behind: log|u| and sign(u), or |u| and u log|u|, or
u^2 log|u| and u|u|.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Parity

__all__ = ["Basis"]

_HIGH = 12  # degrees above are summed by Clenshaw's rule, which takes twice the time of Horner's
_GROWING = 2  # then polynomials of high degree in v come near u times such polynomials, and few of these are taken
_TINY = 1e-30  # log|u| is read as log(max(u^2, 1e-30)) / 2: finite at zero, with a finite gradient


@dataclass(frozen=True)
class Basis:
    """The functions of u that a unit is made of, each even or odd; in the order of its coefficients."""

    alpha: float
    degree: int
    """Of the polynomials in v."""
    singular: int = 0
    """How many powers of y go with each singular function."""
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
    def sizes(self) -> tuple[int, ...]:
        """Coefficients of A, B, C, D, F, G; none for the parts of the other parity."""
        even, odd = self.parity != "odd", self.parity != "even"
        long, short = self.degree // 2 + 1, (self.degree + 1) // 2
        most = _GROWING if self.degree > _HIGH else long  # of the functions that grow with u
        b, d = min(short, most), min(long, most)
        return (long * even, b * even, short * odd, d * odd, self.singular * even, self.singular * odd)

    @property
    def parities(self) -> tuple[int, ...]:
        """0 for an even and 1 for an odd function, in order."""
        return tuple(p for p, size in zip((0, 0, 1, 1, 0, 1), self.sizes, strict=True) for _ in range(size))

    @property
    def size(self) -> int:
        """How many functions there are."""
        return sum(self.sizes)

    def combine(self, u: Tensor, rows: Tensor) -> Tensor:
        """sum_b rows[..., b] B_b(u); ``rows`` (..., size) against u (..., units)."""
        v = torch.tanh(self.alpha * u)
        y = torch.addcmul(v.new_ones(()), v, v, value=-2.0)  # every pass over the units counts
        sum_up: Callable[[Tensor, Tensor], Any] = _clenshaw if self.degree > _HIGH else _horner
        a, b, c, d, f, g = (sum_up(y, part) for part in rows.split(self.sizes, dim=-1))
        out = a if b is None else torch.addcmul(a, u * v, b)
        if c is not None and d is not None:
            odd = torch.addcmul(v * c, u, d)
            out = odd if out is None else out + odd
        return out if not self.singular else torch.addcmul(out, 1.0 + y, self._singular(u, f, g), value=0.5)

    def _singular(self, u: Tensor, f: Any, g: Any) -> Any:
        even, odd = _SINGULAR[self.order](u)
        if f is None or g is None:
            return even * f if g is None else odd * g
        return torch.addcmul(even * f, odd, g)

    def source_lines(self, name: str) -> list[str]:
        """:meth:`combine` as plain PyTorch."""
        parts = ("1", "u * v", "v", "u", *(f"{f} * (0.5 + 0.5 * y)" for f in _SOURCE[self.order]))
        sums = [f"({factor}) * polynomial({i})" for i, factor in enumerate(parts) if self.sizes[i]]
        log = ["    log = 0.5 * torch.log((u * u).clamp_min(1e-30))"] if self.singular else []
        return [
            f"def {name}(u, rows):",
            f"    v = torch.tanh({self.alpha!r} * u)",
            "    y = 1 - 2 * v * v",
            *log,
            f"    parts = rows.split({list(self.sizes)!r}, dim=-1)",
            "",
            "    def polynomial(i):",
            *(_CLENSHAW_SOURCE if self.degree > _HIGH else _HORNER_SOURCE),
            "",
            f"    return {' + '.join(sums)}",
        ]

    def functions(self, u: Tensor) -> Tensor:
        """Every function by itself at the points u (n,): shape (n, size)."""
        return self.combine(u.expand(self.size, -1), torch.eye(self.size, dtype=u.dtype)).T


def _horner(x: Tensor, rows: Tensor) -> Any:
    """sum_i rows[..., i] x^i, one fused operation per degree; ``None`` without coefficients."""
    if rows.shape[-1] == 0:
        return None
    parts = rows.unsqueeze(-2).unbind(-1)
    out = parts[-1]
    for part in parts[-2::-1]:
        out = torch.addcmul(part, out, x)
    return out.expand_as(x)


def _clenshaw(x: Tensor, rows: Tensor) -> Any:
    """sum_i rows[..., i] T_i(x); ``None`` without coefficients."""
    if rows.shape[-1] == 0:
        return None
    parts = rows.unsqueeze(-2).unbind(-1)
    here, before = torch.zeros_like(x), torch.zeros_like(x)
    for part in parts[:0:-1]:
        here, before = torch.addcmul(part - before, here, x, value=2.0), here
    return torch.addcmul(parts[0] - before, here, x)


def _log(u: Tensor) -> Tensor:
    # a floor, not a summand: optimisers of exported graphs drop a summand of this size
    return 0.5 * torch.log((u * u).clamp_min(_TINY))


_HORNER_SOURCE = (
    "        out = torch.zeros_like(u)",
    "        for c in reversed(parts[i].unbind(-1)):",
    "            out = out * y + c[..., None]",
    "        return out",
)
_CLENSHAW_SOURCE = (
    "        c = parts[i][..., None, :].unbind(-1)",
    "        out, before = torch.zeros_like(u), torch.zeros_like(u)",
    "        for k in range(len(c) - 1, 0, -1):",
    "            out, before = c[k] + 2 * y * out - before, out",
    "        return c[0] + y * out - before",
)
_SOURCE = {0: ("log", "torch.sign(u)"), 1: ("u.abs()", "u * log"), 2: ("u * u * log", "u * u.abs()")}
_SINGULAR: dict[int, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    0: lambda u: (_log(u), torch.sign(u)),
    1: lambda u: (u.abs(), u * _log(u)),
    2: lambda u: (u * u * _log(u), u * u.abs()),
}
