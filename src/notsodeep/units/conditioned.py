"""Units that see the norm of their input (theory, section 13).

A unit is psi(u; s) at u = w.x/|x|, s = |x|: an elementary function of u (``elementary.py``) whose few coefficients are
polynomials in the norm. With psi_h(u; s) = sum_k c_hk(s) h_k(u) in the group h of units, a layer has the kernel
mean_h sum_k c_hk(s) c_hk(t) rho^k.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..activations.base import Parity
from ..activations.panels import LIMITS
from ..errors import ActivationError
from .elementary import (
    Basis,
    basis_coefficients,
    decay,
    elementary,
    even_singular,
    expansion,
    horner,
    needed,
    odd_singular,
    reinsch,
    remainder,
    tail_sums,
)
from .norm_units import NormUnits


def chebyshev(x: Tensor, size: int) -> Tensor:
    """Return T_0(x) ... by T_{i + j} = 2 T_i T_j - T_{i - j}; compilers repeat shared terms, so chains are short."""
    columns = [torch.ones_like(x), x]
    for m in range(2, size):
        columns.append(2.0 * columns[m // 2] * columns[m - m // 2] - columns[m % 2])
    return torch.stack(columns[:size], dim=-1)


def conditioned_table(like: Tensor, width: int, coefficients: tuple[tuple[tuple[float, ...], ...], ...]) -> Tensor:
    """Return the coefficients, (Chebyshev orders, groups * size), which do not depend on the width."""
    return torch.tensor(coefficients, dtype=torch.float64).permute(2, 0, 1).flatten(1).to(like)


def conditioned_rows(
    norm: Tensor, table: Tensor, groups: int, low: float, high: float, power: int, logarithmic: bool
) -> Tensor:
    """Return the coefficients of the functions of u at these norms (...,): (..., groups, size)."""
    wide = norm
    if len(table) == 1 or low == high:
        out = table[0].to(norm).expand(*norm.shape, -1)
    else:
        wide = norm if norm.device.type == "mps" else norm.double()  # coefficients may cancel each other
        inside = wide.clamp(low, high)
        first, last = (math.log(low), math.log(high)) if logarithmic else (low, high)
        place = ((inside.log() if logarithmic else inside) - 0.5 * (last + first)) / (0.5 * (last - first))
        out = chebyshev(place, len(table)) @ table.to(wide)
    out = out * wide.unsqueeze(-1) if power else out
    return out.to(norm.dtype).unflatten(-1, (groups, -1))


def conditioned_units(
    before: Tensor,
    x: Tensor,
    table: Tensor,
    basis: tuple[float, tuple[int, ...], int, bool],
    norms: tuple[int, float, float, int, bool],
) -> Tensor:
    """Return elementary functions of u = w.x/|x| whose coefficients depend on |x|, in equal groups of units."""
    norm = torch.linalg.vector_norm(x, dim=-1)
    # smaller norms are taken as this one, so that derivatives stay finite
    u = before / norm.clamp_min(max(torch.finfo(norm.dtype).tiny ** 0.5, 1e-30)).unsqueeze(-1)
    rows = conditioned_rows(norm, table, *norms)
    groups, units = rows.shape[-2], u.shape[-1]
    if units % groups == 0:
        return elementary(u.unflatten(-1, (groups, units // groups)), rows, *basis).flatten(-2)
    parts = u.tensor_split(groups, -1)
    return torch.cat([elementary(part, rows[..., h, :], *basis) for h, part in enumerate(parts)], dim=-1)


@dataclass(frozen=True, repr=False)
class Conditioned(NormUnits):
    """A layer of units psi_h(w.x/|x|; |x|) in equal groups h.

    ``coefficients[h][b][m]`` multiplies the function b of the basis and the Chebyshev polynomial T_m of the norm, or of
    its logarithm, on [low, high]; norms beyond are read as the nearer end (the factor |x|^power is not). ``low ==
    high`` means that the coefficients do not depend on the norm.
    """

    coefficients: tuple[tuple[tuple[float, ...], ...], ...]
    alpha: float = 1.0
    degree: int = 1
    singular: int = 0
    order: int = 1
    symmetry: Parity | None = None
    low: float = 1.0
    high: float = 1.0
    power: int = 1
    logarithmic: bool = False
    name: ClassVar[str] = "norm_conditioned"
    functions: ClassVar = (
        *(horner, reinsch, chebyshev, even_singular, odd_singular, elementary, conditioned_rows),
        *(conditioned_table, conditioned_units),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sizes = {len(row) for group in self.coefficients for row in group}
        if {len(group) for group in self.coefficients} != {self.basis.size} or len(sizes) != 1:
            raise ActivationError(
                f"Conditioned: every group takes {self.basis.size} rows of coefficients of one length, "
                f"got {[[len(row) for row in group] for group in self.coefficients]}"
            )
        if not (0.0 <= self.low <= self.high and self.power in (0, 1)):
            raise ActivationError(f"Conditioned: needs 0 <= low <= high and power 0 or 1, got {self!r}")
        if self.logarithmic and not self.low > 0.0:
            raise ActivationError(f"Conditioned: a logarithm of the norm needs low > 0, got {self!r}")

    @functools.cached_property
    def basis(self) -> Basis:
        """The functions of u."""
        return Basis(self.alpha, self.degree, self.singular, self.order, self.symmetry)

    @property
    def groups(self) -> int:
        """The number of groups of units."""
        return len(self.coefficients)

    def __repr__(self) -> str:
        span = "all norms" if self.low == self.high else f"norms {self.low:.4g} to {self.high:.4g}"
        kink = f", {self.singular} singular powers of order {self.order}" if self.singular else ""
        return (
            f"Conditioned({self.groups} group{'s' if self.groups > 1 else ''} of units, degree {self.degree} in "
            f"1/sqrt(1 + {self.alpha**2:.4g} u^2){kink}, {span})"
        )

    @property
    def span(self) -> tuple[float, float] | None:
        return (self.low, self.high) if self.low < self.high else None

    @property
    def kinks(self) -> tuple[float, ...]:
        return (0.0,) if self.singular else ()

    @property
    def parity(self) -> Parity | None:
        return self.symmetry

    @property
    def homogeneity(self) -> float | None:
        return float(self.power) if self.low == self.high else None

    @property
    def continuous(self) -> bool:
        return not (self.singular and self.order == 0)

    @property
    def constants(self) -> tuple[Any, ...]:
        return (self.coefficients,)

    @property
    def settings(self) -> tuple[Any, ...]:
        return self.basis.settings, (self.groups, self.low, self.high, self.power, self.logarithmic)

    @functools.cached_property
    def _table(self) -> Tensor:
        with torch.inference_mode(False):
            return self.table(torch.empty(0, dtype=torch.float64), 0)

    @functools.cached_property
    def orders(self) -> Tensor:
        """The Hermite coefficients of the functions of u, as many as these units have above rounding."""
        with torch.inference_mode(False):
            known = basis_coefficients(self.basis)
            if self.singular or remainder(self.basis, False) is not None:
                return known
            # at no norm is a polynomial above the sum of its Chebyshev coefficients
            table = torch.tensor(self.coefficients, dtype=torch.float64)
            sizes = torch.einsum("kb,hbm->hkm", known, table).abs().sum(2).amax(0)
            return known[: needed(sizes.square()[:, None] * torch.arange(1.0, len(known) + 1.0)[:, None])]

    def rows(self, norm: Tensor) -> Tensor:
        """Return the coefficients of the functions of u at these norms (...,): shape (..., groups, size)."""
        return conditioned_rows(norm, self._table, *self.settings[1])

    def layer(self, qx: Tensor, qy: Tensor) -> ConditionedLayer:
        return ConditionedLayer(self, qx, qy)


class ConditionedLayer:
    """E[psi psi] and its derivative in lam at a batch of squared norms (flat float64 CPU tensors)."""

    def __init__(self, phi: Conditioned, qx: Tensor, qy: Tensor) -> None:
        self.phi, self.qx, self.qy = phi, qx, qy
        self._table = phi.orders
        self.terms = len(self._table)

    def value(self, lam: Tensor) -> Tensor:
        """Return E[psi(u; s) psi(v; t)]."""
        return self._sum(lam, False)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        """Return E[psi(u; s) psi(v; t)] and its derivative in lam, which is what a trained W sees."""
        return self._sum(lam, False), self._sum(lam, True)

    def _sum(self, lam: Tensor, derived: bool) -> Tensor:
        qx, qy = self.qx.clamp_min(1e-60), self.qy.clamp_min(1e-60)
        sx, sy, root = qx.sqrt(), qy.sqrt(), (qx * qy).sqrt()
        rho = (lam / root).clamp(-1.0, 1.0)  # of a row with itself exactly 1, which sx * sy would miss
        place = rho.detach().abs().argsort()  # small cosines together: they need few orders
        total = self._pieces(sx[place], sy[place], rho[place], derived)[place.argsort()]
        if self.phi.homogeneity is not None:
            total = total * root**self.phi.power
        return total / root if derived else total

    def _pieces(self, sx: Tensor, sy: Tensor, rho: Tensor, derived: bool) -> Tensor:
        """Return the sums, so many pairs at a time that their orders fit into memory."""
        size = max(1, LIMITS.held // (self.terms * self.phi.groups))
        if self.phi.homogeneity is not None:
            rows = self.phi.rows(torch.ones(1, dtype=torch.float64))
            shared = self._orders(rows, rows, self.terms)
            return torch.cat([self._series(shared, rows, rows, r, derived) for r in rho.split(size)])
        (x, i), (y, j) = (_distinct(s) for s in (sx, sy))
        left, right, pairs = self.phi.rows(x), self.phi.rows(y), len(x) * len(y)
        chunks = list(zip(i.split(size), j.split(size), rho.split(size), strict=True))
        if pairs <= min(2 * len(rho), LIMITS.held // self.terms):  # few norms: the orders of all their pairs at once
            a, b = ((rows @ self._table.T).permute(2, 0, 1) for rows in (left, right))
            shared = (a @ b.mT).flatten(1) / self.phi.groups
            orders = (shared[: _enough(r, self.terms)].index_select(1, i * len(y) + j) for i, j, r in chunks)
        else:
            orders = (self._orders(left[i], right[j], _enough(r, self.terms)) for i, j, r in chunks)
        series = zip(orders, chunks, strict=True)
        return torch.cat([self._series(t, left[i], right[j], r, derived) for t, (i, j, r) in series])

    def _orders(self, left: Tensor, right: Tensor, terms: int) -> Tensor:
        """Return t_k = mean_h c_hk c_hk, (terms, pairs), from rows (pairs, groups, size)."""
        a, b = (rows @ self._table[:terms].T for rows in (left, right))
        return (a * b).mean(1).T.contiguous()

    def _series(self, orders: Tensor, left: Tensor, right: Tensor, rho: Tensor, derived: bool) -> Tensor:
        """Return sum_k t_k rho^k, or its derivative in rho."""
        products = orders[: _enough(rho, self.terms)]
        if derived:
            products = products[1:] * torch.arange(1.0, len(products), dtype=torch.float64)[:, None]
        out = horner(rho, products.T)
        if (rest := remainder(self.phi.basis, derived)) is not None:
            # beyond the table, all that Parseval's identity leaves: one order of each parity
            known = torch.stack([((left @ gram) * right).sum(-1).mean(-1) for gram in rest])
            place = self.terms - int(derived)
            out = out + known[0] * rho**place + known[1] * rho ** (place + 1)
        return out + self._tail(left, right, rho, derived) if self.phi.singular else out

    def _tail(self, left: Tensor, right: Tensor, rho: Tensor, derived: bool) -> Tensor:
        power = 2.0 * decay(self.phi.basis) - float(derived)
        total, expanded = torch.zeros_like(rho), expansion(self.phi.basis)
        for parity in (0, 1):
            a, b = left @ expanded[parity], right @ expanded[parity]
            sums = tail_sums(power, LIMITS.expansion, rho, parity)
            share = torch.zeros_like(rho)
            for i in range(LIMITS.expansion):
                # the product of two expansions in 1/k
                weight = (a[..., : i + 1] * b[..., : i + 1].flip(-1)).sum(-1).mean(-1)
                share = share + weight * sums[i]
            odd = parity != int(derived)  # rho^k and rho^(k-1) have opposite parity
            share = share / rho.abs().clamp_min(1e-300) if derived else share
            total = total + (torch.sign(rho) * share if odd else share)
        return torch.where(rho.abs() > 0.98, total, torch.zeros_like(total))


def _distinct(s: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct values and where each stands; torch.unique has no gradient."""
    return (s, torch.arange(len(s))) if s.requires_grad else torch.unique(s, return_inverse=True)


def _enough(rho: Tensor, terms: int) -> int:
    """Return the number of orders that are above rounding at these cosines."""
    most = float(rho.detach().abs().max()) if rho.numel() else 0.0
    return terms if most >= 0.99 else max(4, min(terms, int(-44.0 / math.log(max(most, 1e-9)))))
