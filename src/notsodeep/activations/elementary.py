"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With c = 1 / sqrt(1 + alpha^2 u^2) and z = 2 c - 1, which runs through (-1, 1], a unit is

    P(z) / c + u Q(z) + E(u) c^2 F(z) + O(u) c^2 G(z),   P, Q, F, G polynomials:

no transcendental function, and all functions of one family, so that coefficients stay of order one and single precision
loses nothing. Polynomials of high degree are written in Chebyshev's. E and O are the even and the odd function with the
singularity that a kink of the DEQ leaves behind: log|u| and sign(u), or |u| and u log|u|, or u^2 log|u| and u|u|.

:meth:`Basis.combine` is the definition, which torch may differentiate, compile and export; :meth:`Basis.evaluate_` does
the same in place, with the derivative if it is wanted: passes over the units are all that counts there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import ActivationError
from .base import Parity

_HIGH = 12  # degrees above are summed by Clenshaw's rule, which takes three times as long as Horner's
_TINY = 1e-30  # log|u| is read as log(max(u^2, 1e-30)) / 2: finite at zero, with a finite gradient


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

    def combine(self, u: Tensor, rows: Tensor) -> Tensor:
        """sum_b rows[..., b] B_b(u); ``rows`` (..., size) against u (..., units)."""
        c = torch.rsqrt(torch.addcmul(u.new_ones(()), u, u, value=self.alpha**2))
        z = 2.0 * c - 1.0
        x = u * u * c * c / (1.0 + c) * (-4.0 * self.alpha**2) if self.chebyshev else z
        p, q, f, g = rows.unsqueeze(-2).split(self.sizes, dim=-1)
        terms = [self._sum(x, p) / c] if p.shape[-1] else []
        terms += [u * self._sum(x, q)] if q.shape[-1] else []
        if self.singular:
            even, odd = _SINGULAR[self.order](u)
            terms += [even * c * c * _horner(z, f)] if f.shape[-1] else []
            terms += [odd * c * c * _horner(z, g)] if g.shape[-1] else []
        return functools.reduce(torch.add, terms)

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

    @property
    def _sum(self) -> Callable[[Tensor, Tensor], Tensor]:
        return _reinsch if self.chebyshev else _horner

    # -- in place ----------------------------------------------------------------------------------------
    def buffers(self, slopes: bool) -> int:
        """How many tensors of the size of u :meth:`evaluate_` needs."""
        return 4 + 2 * self.chebyshev + (3 if self.singular else 0) + slopes

    def evaluate_(self, u: Tensor, rows: Tensor, free: Sequence[Tensor], slope: Tensor | None = None) -> None:
        """:meth:`combine` over u itself, and its derivative in u into ``slope``; without gradients.

        ``free`` are :meth:`buffers` tensors of the shape of u, whose contents are lost.
        """
        c, z, even, odd, *rest = free
        torch.addcmul(_constant(1.0, u.dtype, u.device), u, u, value=self.alpha**2, out=c).rsqrt_()
        torch.add(_constant(-1.0, u.dtype, u.device), c, alpha=2.0, out=z)
        x = self._variable_(u, c, rest.pop(), even) if self.chebyshev else z
        p, q, f, g = rows.unsqueeze(-2).split(self.sizes, dim=-1)
        if slope is not None:
            slope.zero_()
        if p.shape[-1]:
            self._sum_(x, p, even, rest)
            if slope is not None:  # alpha^2 u c (P - 2 c P')
                change = self._sum_(x, self._derived(p), rest[-1], rest).mul_(c)
                slope.addcmul_(torch.sub(even, change, alpha=2.0, out=change).mul_(c), u, value=self.alpha**2)
            even.div_(c)
        elif self.singular:
            even.zero_()
        if q.shape[-1]:
            self._sum_(x, q, odd, rest)
            if slope is not None:  # Q - 2 c (1 - c^2) Q'
                change = self._sum_(x, self._derived(q), rest[-1], rest).mul_(c)
                slope.add_(odd).sub_(change, alpha=2.0).addcmul_(change.mul_(c), c, value=2.0)
        if self.singular:
            self._singular_(u, c, z, (f, g), even, rest, slope)
        if not q.shape[-1]:
            u.copy_(even)
        elif p.shape[-1] or self.singular:
            torch.addcmul(even, u, odd, out=u)
        else:
            u.mul_(odd)

    def _variable_(self, u: Tensor, c: Tensor, out: Tensor, free: Tensor) -> Tensor:
        torch.mul(u, u, out=out).mul_(c).mul_(c).mul_(-4.0 * self.alpha**2)
        return out.div_(torch.add(c, 1.0, out=free))

    def _singular_(
        self,
        u: Tensor,
        c: Tensor,
        z: Tensor,
        rows: Sequence[Tensor],
        total: Tensor,
        free: Sequence[Tensor],
        slope: Tensor | None,
    ) -> None:
        """Adds E c^2 F to ``total``, and c^2 (E' F - 2 alpha^2 u E c^2 (F + c F')) to ``slope``; O and G alike."""
        value, weight, square, *rest = free
        torch.mul(c, c, out=square)
        for function, part in zip(_SINGULAR_[self.order], rows, strict=True):
            if not part.shape[-1]:
                continue
            _horner_(z, part, weight)
            total.addcmul_(function.value(u, value).mul_(square), weight)
            if slope is not None:
                change = _horner_(z, _powers_derived(part), rest[0]).mul_(c).add_(weight).mul_(u).mul_(value)
                own = function.slope(u, value).mul_(weight).sub_(change, alpha=2.0 * self.alpha**2)
                slope.addcmul_(own, square)

    def _sum_(self, x: Tensor, rows: Tensor, out: Tensor, free: Sequence[Tensor]) -> Tensor:
        return _reinsch_(x, rows, out, free[0]) if self.chebyshev else _horner_(x, rows, out)

    def _derived(self, rows: Tensor) -> Tensor:
        return rows @ _chebyshev_derivation(rows.shape[-1]).to(rows) if self.chebyshev else _powers_derived(rows)

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
            *(["    log = 0.5 * torch.log((u * u).clamp_min(1e-30))"] if self.singular else []),
            f"    parts = rows.split({list(self.sizes)!r}, dim=-1)",
            *(line for key, lines in _RULES.items() if key in used for line in lines),
            "",
            f"    return {' + '.join(sums)}",
        ]


# ---- polynomials ---------------------------------------------------------------------------------------


def _horner(x: Tensor, rows: Tensor) -> Tensor:
    """sum_i rows[..., i] x^i, one fused operation per degree."""
    parts = rows.unbind(-1)
    out = parts[-1]
    for part in parts[-2::-1]:
        out = torch.addcmul(part, out, x)
    return out.expand_as(x)


def _reinsch(x: Tensor, rows: Tensor) -> Tensor:
    """sum_i rows[..., i] T_i(1 + x / 2) by Clenshaw's rule in Reinsch's form, which loses nothing near x = 0."""
    parts = rows.unbind(-1)
    out, step = torch.zeros_like(x), torch.zeros_like(x)
    for part in parts[:0:-1]:
        step = torch.addcmul(step + part, x, out)
        out = out + step
    return torch.addcmul(step + parts[0], x, out, value=0.5)


def _horner_(x: Tensor, rows: Tensor, out: Tensor) -> Tensor:
    """:func:`_horner` into ``out``."""
    parts = rows.unbind(-1)
    if len(parts) == 1:
        return out.copy_(parts[0].expand_as(out))
    torch.addcmul(parts[-2], parts[-1], x, out=out)
    for part in parts[-3::-1]:
        torch.addcmul(part, out, x, out=out)
    return out


def _reinsch_(x: Tensor, rows: Tensor, out: Tensor, free: Tensor) -> Tensor:
    """:func:`_reinsch` into ``out``."""
    parts = rows.unbind(-1)
    step = free.zero_()
    out.zero_()
    for part in parts[:0:-1]:
        out.add_(step.addcmul_(x, out).add_(part))
    return torch.addcmul(step, x, out, value=0.5, out=out).add_(parts[0])


@functools.lru_cache(maxsize=32)
def _constant(value: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.full((), value, dtype=dtype, device=device)


def _powers_derived(rows: Tensor) -> Tensor:
    """Coefficients of the derivative, from those of the powers."""
    if rows.shape[-1] == 1:
        return torch.zeros_like(rows)
    return rows[..., 1:] * torch.arange(1.0, rows.shape[-1], dtype=rows.dtype, device=rows.device)


@functools.lru_cache(maxsize=32)
def _chebyshev_derivation(size: int) -> Tensor:
    """Chebyshev coefficients times this are those of the derivative."""
    return torch.from_numpy(np.polynomial.chebyshev.chebder(np.eye(size), axis=1))


# ---- singular functions --------------------------------------------------------------------------------


def _log(u: Tensor) -> Tensor:
    # a floor, not a summand: optimisers of exported graphs drop a summand of this size
    return 0.5 * torch.log((u * u).clamp_min(_TINY))


def _log_(u: Tensor, out: Tensor) -> Tensor:
    return torch.abs(u, out=out).clamp_min_(_TINY**0.5).log_()


@dataclass(frozen=True)
class _Singular:
    """A singular function and its derivative, each from u into a second tensor."""

    value: Callable[[Tensor, Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


_LOG = _Singular(_log_, lambda u, out: torch.mul(u, u, out=out).clamp_min_(_TINY).reciprocal_().mul_(u))
_SIGN = _Singular(lambda u, out: torch.sign(u, out=out), lambda u, out: out.zero_())
_ABS = _Singular(lambda u, out: torch.abs(u, out=out), lambda u, out: torch.sign(u, out=out))
_U_LOG = _Singular(lambda u, out: _log_(u, out).mul_(u), lambda u, out: _log_(u, out).add_(1.0))
_SQUARE_LOG = _Singular(
    lambda u, out: _log_(u, out).mul_(u).mul_(u), lambda u, out: _log_(u, out).mul_(2.0).add_(1.0).mul_(u)
)
_SIGNED_SQUARE = _Singular(lambda u, out: torch.abs(u, out=out).mul_(u), lambda u, out: torch.abs(u, out=out).mul_(2.0))
_SINGULAR_ = ((_LOG, _SIGN), (_ABS, _U_LOG), (_SQUARE_LOG, _SIGNED_SQUARE))
_SINGULAR: tuple[Callable[[Tensor], tuple[Tensor, Tensor]], ...] = (
    lambda u: (_log(u), torch.sign(u)),
    lambda u: (u.abs(), u * _log(u)),
    lambda u: (u * u * _log(u), u * u.abs()),
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
