"""Hermite coefficients of the elementary functions, and sums over the orders beyond any table.

A singularity at u = 0 leaves coefficients that fall like a power of k with an expansion in 1/k. The sum over all
orders beyond the table is then an integral (Euler and Maclaurin).
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .._caches import cached
from .elementary import Basis
from .panels import LIMITS, hermite_table, panel_nodes

SMOOTH_TERMS, SINGULAR_TERMS = LIMITS.smooth_terms, LIMITS.singular_terms


@cached(3)
def half_line(terms: int, graded: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes u > 0 with weights for even functions on the line, and weights * h_k(u): (terms, nodes).

    Panels halve towards zero if ``graded``, for functions that are singular there.
    """
    panels = math.ceil(LIMITS.reach * max(1.0, 1.3 * math.sqrt(terms / 512.0)))
    edges = torch.linspace(0.0, LIMITS.reach, panels + 1, dtype=torch.float64)
    if graded:
        edges = torch.cat([edges, 2.0 ** -torch.arange(1.0, 60.0, dtype=torch.float64)]).unique()
    nodes, weights = panel_nodes(edges)
    weights = weights * torch.exp(-0.5 * nodes**2) * math.sqrt(2.0 / math.pi)
    (table,) = hermite_table(nodes, weights, terms)
    return nodes, weights, table


def basis_coefficients(basis: Basis, terms: int) -> Tensor:
    """E[B_b(xi) h_k(xi)]: (terms, size), zero where the parities differ."""
    # functions of a lower degree are among those of a higher one, up to where powers become Chebyshev polynomials
    largest = next((d for d in (LIMITS.chebyshev_degree, 32) if basis.degree <= d), basis.degree)
    family = replace(basis, degree=largest)
    parts = _family_coefficients(family, terms).split(family.sizes, dim=1)
    return torch.cat([part[:, :size] for part, size in zip(parts, basis.sizes, strict=True)], dim=1)


@cached(32)
def _family_coefficients(basis: Basis, terms: int) -> Tensor:
    (nodes, _, table), odd = half_line(terms, basis.singular > 0), torch.tensor(basis.parities)
    functions, out = basis.functions(nodes), torch.zeros(terms, basis.size, dtype=torch.float64)
    for parity in (0, 1):
        own = (odd == parity).nonzero().flatten()
        out[parity::2, own] = table[parity::2] @ functions[:, own]
    return out


@cached(32)
def expansion(basis: Basis) -> Tensor:
    """|E[B_b h_k]| = k^(-q) sum_i e_i k^(-i) for large k of b's parity, signs alternating: (parity 2, size, i)."""
    known = basis_coefficients(basis, SINGULAR_TERMS)
    out = torch.zeros(2, basis.size, LIMITS.expansion, dtype=torch.float64)
    for parity in (0, 1):
        k = torch.arange(SINGULAR_TERMS // 4 * 2 + parity, SINGULAR_TERMS, 2)
        sign = 1.0 - 2.0 * ((k - parity) // 2 % 2)
        scaled = known[k] * (sign * k.double() ** decay(basis))[:, None]
        design = (SINGULAR_TERMS / k.double())[:, None] ** torch.arange(LIMITS.expansion)
        fitted = torch.linalg.lstsq(design, scaled).solution
        out[parity] = (fitted * float(SINGULAR_TERMS) ** torch.arange(LIMITS.expansion)[:, None]).T
    # smooth functions have none; those of high degree still fade within the table, which is no power of k
    out[:, : sum(basis.sizes[:-2])] = 0.0
    return out


def tail_gram(basis: Basis, slopes: bool) -> Tensor:
    """Sum of E[B_a h_k] E[B_b h_k] over k >= SINGULAR_TERMS, by Parseval's identity: (size, size).

    ``slopes``: order k counts 1 + k times, which adds E[B_a' B_b'].
    """
    known, gain = basis_coefficients(basis, SINGULAR_TERMS), torch.ones(SINGULAR_TERMS, dtype=torch.float64)
    nodes, weights, _ = half_line(SINGULAR_TERMS, basis.singular > 0)
    values = basis.functions(nodes)
    total = values.T @ (weights[:, None] * values)
    if slopes:
        gain = gain + torch.arange(SINGULAR_TERMS)
        steep = torch.autograd.functional.jvp(basis.functions, nodes, torch.ones_like(nodes))[1]
        total = total + steep.T @ (weights[:, None] * steep)
    total = total - known.T @ (gain[:, None] * known)
    same = torch.tensor(basis.parities)[:, None] == torch.tensor(basis.parities)
    return torch.where(same, total, torch.zeros_like(total))


def decay(basis: Basis) -> float:
    return 0.5 * (basis.order + 1) + 0.25


def tail_sums(power: float, count: int, rho: Tensor, parity: int) -> Tensor:
    """Sum of k^(-power-i) |rho|^k over k = first, first + 2, ... of a parity beyond the table, i < count: (count, n).

    Midpoint form of Euler and Maclaurin: the sum is half the integral from first - 1 on, plus (1/6) F'(first - 1) ...
    """
    first = SINGULAR_TERMS + (SINGULAR_TERMS + parity) % 2
    start = float(first - 1)
    x = -torch.log(rho.abs().clamp_min(1e-300))
    r, w = panel_nodes(torch.tensor([0.0, 1.0], dtype=torch.float64), 120)
    # k = start / r^2: dk = 2 start r^(-3) dr, k^(-p) = start^(-p) r^(2p)
    decay = torch.exp(-start * x[:, None] / (r * r))
    out = []
    for i in range(count):
        p = power + i
        integral = start ** (1.0 - p) * (decay * (2.0 * w * r ** (2.0 * p - 3.0))).sum(-1)
        edge = start**-p * torch.exp(-start * x)
        slope = -(p / start + x) * edge
        out.append(0.5 * integral + slope / 12.0)
    return torch.stack(out)


def needed(basis: Basis) -> int:
    """Orders that count for any coefficients: the rest is below rounding."""
    size = basis_coefficients(basis, SMOOTH_TERMS).abs().amax(1)
    left = size.flip(0).cumsum(0).flip(0)
    return max(4, int((left > 1e-17 * float(left[0])).sum()))
