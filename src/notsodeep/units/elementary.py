"""The elementary functions that norm-conditioned units are made of (theory, section 13).

With c = 1 / sqrt(1 + alpha^2 u^2) and z = 2 c - 1 a unit is P(z) / c + u Q(z) + (E(u) F(z) + O(u) G(z)) c^2 with
polynomials P, Q, F, G, whose coefficients are of order one. The singular functions E (even) and O (odd) are log|u|
and sign(u), or |u| and u log|u|, or u^2 log|u| and u|u|.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .._arguments import positive_int
from .._caches import cached
from ..activations.base import Parity
from ..activations.panels import LIMITS, hermite_table, panel_nodes
from ..errors import ActivationError

SINGULAR_TERMS = LIMITS.singular_terms


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


# ---- Hermite coefficients, and sums over the orders beyond any table --------------------------------------------
# A singularity at u = 0 leaves coefficients that fall like a power of k with an expansion in 1/k. The sum over all
# orders beyond the table is then an integral (Euler and Maclaurin).


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
