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
from ..activations.panels import LIMITS, hermite_table, panel_nodes
from .elementary import Basis

SINGULAR_TERMS = LIMITS.singular_terms


def table_terms(basis: Basis) -> int:
    """Return how many orders a table has.

    Polynomials of degree d oscillate like cos(sqrt(2) d alpha u) at zero, whose orders lie around 2 (d alpha)^2.
    """
    if basis.singular:
        return SINGULAR_TERMS
    return min(1024 * math.ceil((1.5 * basis.degree * basis.alpha + 14.0) ** 2 / 1024.0), LIMITS.smooth_terms)


def step(basis: Basis) -> float:
    """Return the step of the midpoint rule for these functions; 0: panels that halve towards a singularity at zero.

    For a function f, analytic where |Im u| <= a, the rule is off by at most 2 / (exp(2 pi a / step) - 1) times the
    integral of |f| along Im u = a (Trefethen and Weideman, 2014). For a = 1 / (2 alpha) it holds |c| <= 1.16 and
    |z| <= 3.32 there, so that |T_i(z)| <= exp(1.92 i): squares of functions with coefficients of sum one are integrated
    to 1e-16.
    """
    points = basis.alpha * (3.84 * basis.degree + 40.0) / math.pi
    return 0.0 if basis.singular else min(2.0**-6, 2.0 ** -math.ceil(math.log2(points)))


@cached(4)
def half_line(terms: int, step: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return nodes u > 0 with weights for even functions on the line, and weights * h_k(u): (terms, nodes)."""
    if step:
        nodes = step * (torch.arange(math.ceil(LIMITS.reach / step), dtype=torch.float64) + 0.5)
        weights = torch.full_like(nodes, step)
    else:
        count = math.ceil(LIMITS.reach * 1.3 * math.sqrt(terms / 512.0))
        edges = torch.linspace(0.0, LIMITS.reach, count + 1, dtype=torch.float64)
        halves = 2.0 ** -torch.arange(1.0, 60.0, dtype=torch.float64)
        nodes, weights = panel_nodes(torch.cat([edges, halves]).unique())
    weights = weights * torch.exp(-0.5 * nodes**2) * math.sqrt(2.0 / math.pi)
    (table,) = hermite_table(nodes, weights, terms)
    return nodes, weights, table


def basis_coefficients(basis: Basis, terms: int = 0) -> Tensor:
    """Return E[B_b(xi) h_k(xi)]: (terms, size), zero where the parities differ; as many as a table has if not given."""
    # functions of a lower degree are among those of a higher one, up to where powers become Chebyshev polynomials
    largest = next((d for d in (LIMITS.chebyshev_degree, 32) if basis.degree <= d), basis.degree)
    family = replace(basis, degree=largest)
    terms = terms or table_terms(basis)
    parts = _family_coefficients(family, max(terms, table_terms(family)))[:terms].split(family.sizes, dim=1)
    return torch.cat([part[:, :size] for part, size in zip(parts, basis.sizes, strict=True)], dim=1)


@cached(32)
def _family_coefficients(basis: Basis, terms: int) -> Tensor:
    (nodes, _, table), odd = half_line(terms, step(basis)), torch.tensor(basis.parities)
    functions, out = basis.functions(nodes), torch.zeros(terms, basis.size, dtype=torch.float64)
    for parity in (0, 1):
        same = (odd == parity).nonzero().flatten()
        out[parity::2, same] = table[parity::2] @ functions[:, same]
    return out


@cached(32)
def expansion(basis: Basis) -> Tensor:
    """Return e, |E[B_b h_k]| = k^(-q) sum_i e_i k^(-i) for large k of b's parity, signs alternating: (2, size, i)."""
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


@cached(8)
def parseval_root(basis: Basis, slopes: bool) -> Tensor:
    """Return A with A' A = E[B_a B_b], all orders together, or with E[B_a' B_b'] of the slopes: (rows, size)."""
    nodes, weights, _ = half_line(table_terms(basis), step(basis))
    if slopes:
        values = torch.autograd.functional.jvp(basis.functions, nodes, torch.ones_like(nodes))[1]
    else:
        values = basis.functions(nodes)
    odd = torch.tensor(basis.parities)
    return torch.cat([weights.sqrt()[:, None] * values * (odd == parity) for parity in (0, 1)])


def tail_gram(basis: Basis, slopes: bool) -> Tensor:
    """Sum of E[B_a h_k] E[B_b h_k] over the orders beyond the table, by Parseval's identity: (size, size).

    ``slopes``: order k counts k times, as it does in E[B_a' B_b'].
    """
    root, known = parseval_root(basis, slopes), basis_coefficients(basis)
    gain = torch.arange(len(known), dtype=torch.float64) if slopes else torch.ones(len(known), dtype=torch.float64)
    return root.T @ root - known.T @ (gain[:, None] * known)


@cached(32)
def remainder(basis: Basis, slopes: bool) -> Tensor | None:
    """Return what ``tail_gram`` has and ``expansion`` lacks, by parity: (2, size, size); ``None``: only rounding."""
    gram, smooth, odd = tail_gram(basis, slopes), sum(basis.sizes[:2]), torch.tensor(basis.parities)
    gram[smooth:, smooth:] = 0.0
    size = parseval_root(basis, slopes).square().sum(0).sqrt()
    if bool((gram.abs() <= 3e-14 * size[:, None] * size).all()):
        return None
    return torch.stack([torch.where((odd == p)[:, None] & (odd == p), gram, 0.0) for p in (0, 1)])


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


def needed(table: Tensor) -> int:
    """Count the rows of coefficients (terms, any) above rounding."""
    size = table.abs().amax(1)
    left = size.flip(0).cumsum(0).flip(0)
    return max(4, int((left > 1e-17 * float(left[0])).sum()))
