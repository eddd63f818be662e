"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With c = 1 / sqrt(1 + alpha^2 u^2) and z = 2 c - 1, which runs through (-1, 1], a unit is

    P(z) / c + u Q(z) + E(u) c^2 F(z) + O(u) c^2 G(z),   P, Q, F, G polynomials:

no transcendental function, and all functions of one family, so that coefficients stay of order one and single precision
loses nothing. Polynomials of high degree are written in Chebyshev's. E and O are the even and the odd function with the
singularity that a kink of the DEQ leaves behind: log|u| and sign(u), or |u| and u log|u|, or u^2 log|u| and u|u|.

:meth:`Basis.combine` serves twice: torch may differentiate, compile and export it; or, given tensors to write into, it
makes as few passes over them as it can, and takes the derivative along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._caches import cached
from ..errors import ActivationError
from .base import Parity

_HIGH = 12  # degrees above are summed by Clenshaw's rule, which takes three times as long as Horner's
_TINY = 1e-15  # log|u| is read as log(max(|u|, 1e-15)): finite at zero, with a finite gradient

Free = Callable[[str], Tensor | None]


def fresh(name: str) -> None:
    """No tensor to write into: torch makes a new one."""


@dataclass(frozen=True)
class Basis:
    """The functions of u that a unit is made of, each even or odd; in the order of its coefficients."""

    alpha: float
    degree: int
    """Of the polynomials P and Q."""
    singular: int = 0
    """How many powers of z go with each singular function."""
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
        """Coefficients of P, Q, F, G; none for the parts of the other parity."""
        even, odd = self.parity != "odd", self.parity != "even"
        return ((self.degree + 1) * even, (self.degree + 1) * odd, self.singular * even, self.singular * odd)

    @property
    def parities(self) -> tuple[int, ...]:
        """0 for an even and 1 for an odd function, in order."""
        return tuple(p for p, size in zip((0, 1, 0, 1), self.sizes, strict=True) for _ in range(size))

    @property
    def size(self) -> int:
        """How many functions there are."""
        return sum(self.sizes)

    def combine(
        self, u: Tensor, rows: Tensor, free: Free = fresh, out: Tensor | None = None, slope: Tensor | None = None
    ) -> Tensor:
        """sum_b rows[..., b] B_b(u); ``rows`` (..., size) against u (..., units).

        With tensors of the shape of u from ``free`` it is computed in them, into ``out``, which may be u, and its
        derivative in u into ``slope``; without gradients.
        """
        c = torch.addcmul(_constant(1.0, u, free), u, u, value=self.alpha**2, out=free("c"))
        c = torch.rsqrt(c, out=free("c"))
        z = torch.add(_constant(-1.0, u, free), c, alpha=2.0, out=free("z"))
        x = self._variable(u, c, free) if self.chebyshev else z
        p, q, f, g = rows.unsqueeze(-2).split(self.sizes, dim=-1)
        total = None
        if slope is not None:
            slope.zero_()
        if p.shape[-1]:
            even = self._sum(x, p, free, "total")
            if slope is not None:  # alpha^2 u c (P - 2 c P')
                change = self._sum(x, self._derived(p), free, "change").mul_(c)
                slope.addcmul_(torch.sub(even, change, alpha=2.0, out=change).mul_(c), u, value=self.alpha**2)
            total = torch.div(even, c, out=free("total"))
        if self.singular:
            total = self._plus_singular(total, u, c, z, (f, g), free, slope)
        if q.shape[-1]:
            odd = self._sum(x, q, free, "odd")
            if slope is not None:  # Q - 2 c (1 - c^2) Q'
                change = self._sum(x, self._derived(q), free, "change").mul_(c)
                slope.add_(odd).sub_(change, alpha=2.0).addcmul_(change.mul_(c), c, value=2.0)
            return _plus(total, u, odd, out)
        assert total is not None
        return total if out is None else out.copy_(total)

    def _variable(self, u: Tensor, c: Tensor, free: Free) -> Tensor:
        x = torch.mul(u, c, out=free("x"))
        x = torch.mul(x, x, out=free("x"))
        x = torch.div(x, torch.add(c, 1.0, out=free("step")), out=free("x"))
        return torch.mul(x, -4.0 * self.alpha**2, out=free("x"))

    def _plus_singular(
        self,
        total: Tensor | None,
        u: Tensor,
        c: Tensor,
        z: Tensor,
        rows: Sequence[Tensor],
        free: Free,
        slope: Tensor | None,
    ) -> Tensor | None:
        """total + E c^2 F; to ``slope`` it adds c^2 (E' F - 2 alpha^2 u E c^2 (F + c F')); O and G alike."""
        square = torch.mul(c, c, out=free("square"))
        for function, part in zip(_SINGULAR[self.order], rows, strict=True):
            if not part.shape[-1]:
                continue
            weight = horner(z, part, free("weight"))
            value = torch.mul(function.value(u, free("value")), square, out=free("value"))
            total = _plus(total, value, weight, free("total"))
            if slope is not None:
                change = horner(z, _powers_derived(part), free("change")).mul_(c).add_(weight).mul_(u).mul_(value)
                own = function.slope(u, value).mul_(weight).sub_(change, alpha=2.0 * self.alpha**2)
                slope.addcmul_(own, square)
        return total

    def _sum(self, x: Tensor, rows: Tensor, free: Free, name: str) -> Tensor:
        return _reinsch(x, rows, free(name), free("step")) if self.chebyshev else horner(x, rows, free(name))

    def _derived(self, rows: Tensor) -> Tensor:
        return rows @ _chebyshev_derivation(rows.shape[-1]).to(rows) if self.chebyshev else _powers_derived(rows)

    def grouped(self, u: Tensor, rows: Tensor) -> Tensor:
        """Units in equal groups, each with its own coefficients: u (..., units), rows (..., groups, size)."""
        groups, units = rows.shape[-2], u.shape[-1]
        if units % groups == 0:
            return self.combine(u.unflatten(-1, (groups, units // groups)), rows).flatten(-2)
        parts = u.tensor_split(groups, -1)
        return torch.cat([self.combine(part, rows[..., h, :]) for h, part in enumerate(parts)], dim=-1)

    def functions(self, u: Tensor) -> Tensor:
        """Every function by itself at the points u (n,): shape (n, size)."""
        return self.combine(u.expand(self.size, -1), torch.eye(self.size, dtype=u.dtype)).T

    @property
    def chebyshev(self) -> bool:
        """Whether P and Q are written in Chebyshev polynomials, as functions of x = 2 (z - 1)."""
        return self.degree > _HIGH

    # -- source ------------------------------------------------------------------------------------------
    def source_lines(self, name: str) -> list[str]:
        """:meth:`combine` as plain PyTorch."""
        rule = "chebyshev" if self.chebyshev else "powers"
        factors = ("1 / c", "u", *(f"{f} * c * c" for f in _SOURCE[self.order]))
        rules = (rule, rule, "powers", "powers")
        sums = [f"{factors[i]} * {rules[i]}(parts[{i}])" for i in range(4) if self.sizes[i]]
        used = {rules[i] for i in range(4) if self.sizes[i]}
        return [
            f"def {name}(u, rows):",
            f"    c = torch.rsqrt(1 + {self.alpha**2!r} * u * u)",
            "    z = 2 * c - 1",
            *([f"    x = {-4.0 * self.alpha**2!r} * u * u * c * c / (1 + c)  # 2 (z - 1)"] if self.chebyshev else []),
            *(["    log = torch.log(u.abs().clamp_min(1e-15))"] if self.singular else []),
            f"    parts = rows.split({list(self.sizes)!r}, dim=-1)",
            *(line for key, lines in _RULES.items() if key in used for line in lines),
            "",
            f"    return {' + '.join(sums)}",
        ]


# ---- polynomials ---------------------------------------------------------------------------------------


def horner(x: Tensor, rows: Tensor, out: Tensor | None = None) -> Tensor:
    """sum_i rows[..., i] x^i, one fused operation per degree."""
    *parts, total = rows.unbind(-1)
    if out is not None and not parts:
        return out.copy_(total.expand_as(out))
    for part in reversed(parts):
        total = torch.addcmul(part, total, x, out=out)
    return total.expand_as(x)


def _reinsch(x: Tensor, rows: Tensor, out: Tensor | None = None, step: Tensor | None = None) -> Tensor:
    """sum_i rows[..., i] T_i(1 + x / 2) by Clenshaw's rule in Reinsch's form, which loses nothing near x = 0."""
    first, *parts = rows.unbind(-1)
    total = torch.zeros_like(x) if out is None else out.zero_()
    ahead = torch.zeros_like(x) if step is None else step.zero_()
    for part in reversed(parts):
        ahead = torch.add(torch.addcmul(ahead, x, total, out=step), part, out=step)
        total = torch.add(total, ahead, out=out)
    return torch.add(torch.addcmul(ahead, x, total, value=0.5, out=out), first, out=out)


def _plus(total: Tensor | None, a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    """total + a b."""
    return torch.mul(a, b, out=out) if total is None else torch.addcmul(total, a, b, out=out)


def _constant(value: float, like: Tensor, free: Free) -> Tensor:
    """Made once for passes in place; compilers and transforms take a new one."""
    return like.new_full((), value) if free is fresh else _scalar(value, like.dtype, like.device)


@cached(32)
def _scalar(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.full((), value, dtype=dtype, device=device)


def _powers_derived(rows: Tensor) -> Tensor:
    """Coefficients of the derivative, from those of the powers."""
    if rows.shape[-1] == 1:
        return torch.zeros_like(rows)
    return rows[..., 1:] * torch.arange(1.0, rows.shape[-1], dtype=rows.dtype, device=rows.device)


@cached(32)
def _chebyshev_derivation(size: int) -> Tensor:
    """Chebyshev coefficients times this are those of the derivative."""
    return torch.from_numpy(np.polynomial.chebyshev.chebder(np.eye(size), axis=1))


# ---- singular functions --------------------------------------------------------------------------------


def _log(u: Tensor, out: Tensor | None) -> Tensor:
    # a floor, not a summand: optimisers of exported graphs drop a summand of this size
    return torch.log(torch.clamp(torch.abs(u, out=out), min=_TINY, out=out), out=out)


class _Singular(NamedTuple):
    """A singular function of u, into a second tensor if there is one, and its derivative, into a second tensor."""

    value: Callable[[Tensor, Tensor | None], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


_SINGULAR = (
    (
        _Singular(_log, lambda u, out: torch.mul(u, u, out=out).clamp_min_(_TINY**2).reciprocal_().mul_(u)),
        _Singular(lambda u, out: torch.sign(u, out=out), lambda u, out: out.zero_()),
    ),
    (
        _Singular(lambda u, out: torch.abs(u, out=out), lambda u, out: torch.sign(u, out=out)),
        _Singular(lambda u, out: torch.mul(_log(u, out), u, out=out), lambda u, out: _log(u, out).add_(1.0)),
    ),
    (
        _Singular(
            lambda u, out: torch.mul(torch.mul(_log(u, out), u, out=out), u, out=out),
            lambda u, out: _log(u, out).mul_(2.0).add_(1.0).mul_(u),
        ),
        _Singular(
            lambda u, out: torch.mul(torch.abs(u, out=out), u, out=out), lambda u, out: torch.abs(u, out=out).mul_(2.0)
        ),
    ),
)
_SOURCE = (("log", "torch.sign(u)"), ("u.abs()", "u * log"), ("u * u * log", "u * u.abs()"))
_RULES = {
    "powers": (
        "",
        "    def powers(coefficients):",
        "        out = torch.zeros_like(u)",
        "        for k in reversed(coefficients.unbind(-1)):",
        "            out = out * z + k[..., None]",
        "        return out",
    ),
    "chebyshev": (
        "",
        "    def chebyshev(coefficients):  # Clenshaw's rule in Reinsch's form",
        "        k = coefficients[..., None, :].unbind(-1)",
        "        out, step = torch.zeros_like(u), torch.zeros_like(u)",
        "        for i in range(len(k) - 1, 0, -1):",
        "            step = step + k[i] + x * out",
        "            out = out + step",
        "        return k[0] + step + x / 2 * out",
    ),
}
