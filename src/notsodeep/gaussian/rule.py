"""The quadrature rule of all Gaussian expectations: the panels of the function and the normal weight.

Each piece between panel edges is analytic and short, so the rule is exact to rounding there. What lies beyond the ends
of the range, where a function that outgrows the normal density has its mass, is estimated and refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._arguments import shown
from .._arrays import as_numbers
from .._caches import cached
from ..activations.panels import LIMITS, ORDER, REACH, Panels, normal_edges, normal_nodes
from ..activations.polynomial import hermite_table
from ..errors import ConvergenceError, InvalidInputError

BLOCK = 512  # polynomials held at once, of a longer series; even, as halves of a parity are

Function = Callable[[Tensor], Tensor]


def beyond(weighted: Tensor, xi: Tensor) -> Tensor:
    """Estimate what lies past the end of the range, from the last standard deviation and the one before."""
    far = xi.abs()
    ends = torch.stack([far > REACH - 1.0, (far > REACH - 2.0) & (far <= REACH - 1.0)]).to(weighted.dtype)
    last, before = ends @ weighted.mT if xi.ndim == 1 and weighted.ndim > 1 else (ends * weighted).sum(-1)
    return torch.where(last > 0, last * (last / before.clamp_min(1e-300)), last)


def means(functions: Callable[[Tensor], Sequence[Tensor]], tau: Tensor, panels: Panels) -> Tensor:
    """E[f(tau xi)] of several functions from the same nodes, at flat scales: (functions, scales).

    An error is raised where the first of them overflows or lies beyond the range of the rule.
    """
    rows = []
    for part, xi, weights in portions(tau, panels):
        weighted = [values.detach() * weights for values in functions(part[:, None] * xi)]
        check_ends(beyond(weighted[0].abs(), xi), weighted[0].abs().sum(-1), part)
        rows.append(torch.stack([one.sum(-1) for one in weighted]))
    return torch.cat(rows, dim=1)


def portions(tau: Tensor, panels: Panels) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Scales in portions that fit into the memory that is allowed, with nodes and weights: one rule where it serves."""
    if may_share(tau, panels):
        xi, weights = shared_rule(float(tau.max()), panels)
        yield from ((part, xi, weights) for part in tau.split(LIMITS.held // (4 * len(xi)) + 1))
    else:
        yield from ((part, *normal_nodes(part, panels)) for part in chunks(tau, panels, copies=4))


def check_ends(lost: Tensor, size: Tensor, tau: Tensor) -> None:
    """Refuse a function whose mass lies at the ends of the range: it outgrows the normal density."""
    bad = ~(lost <= 1e-12 * size + 1e-290)
    if bool(bad.any()):
        raise ConvergenceError(
            f"a Gaussian expectation at scale {float(tau[int(bad.nonzero()[0])]):.4g} is not finite, or lies beyond "
            f"{REACH:.0f} standard deviations: the function grows too fast for this scale; scale the inputs down"
        )


def chunks(tau: Tensor, panels: Panels, terms: int = 0, copies: int = 1) -> Iterator[Tensor]:
    """Scales in portions whose nodes (``copies`` arrays of them) fit into the memory that is allowed."""
    if len(tau) == 1:
        yield tau
    elif len(tau):
        nodes = ORDER * (len(normal_edges(tau.max()[None], panels, terms)[0]) - 1)
        yield from tau.split(max(1, LIMITS.held // (copies * nodes)))


def normal_density(x: Tensor, tau: Tensor) -> Tensor:
    """The density of tau * xi at x; zero in the limit tau -> 0 unless x = 0."""
    scale = tau.clamp_min(1e-150)
    return torch.exp(-0.5 * (x / scale) ** 2) / (math.sqrt(2.0 * math.pi) * scale)


class SharedRule:
    """Nodes and weights that serve all scales up to a largest one, of a function with no kink off zero."""

    def __init__(self, scale: float, panels: Panels, terms: int) -> None:
        xi, weights = normal_nodes(torch.tensor([scale], dtype=torch.float64), panels, terms, shared=True)
        there = weights[0] > 0  # panels between equal edges have none
        self.nodes, self.weights, self.terms = xi[0, there], weights[0, there], terms
        self.right = self.nodes[self.nodes > 0], self.weights[self.nodes > 0]

    def polynomials(self) -> Iterable[Tensor]:
        """The weighted Hermite polynomials at the positive nodes, in blocks of orders; a small table is cached."""
        if len(self.right[0]) * self.terms <= LIMITS.held:
            return (self._table,)
        return hermite_table(*self.right, self.terms, BLOCK)

    @functools.cached_property
    def _table(self) -> Tensor:
        (table,) = hermite_table(*self.right, self.terms)
        return table


def shared_rule(scale: float, panels: Panels, terms: int = 0) -> tuple[Tensor, Tensor]:
    """Nodes and weights for all scales up to ``scale`` at once, for a function with no kink off zero."""
    rule = _shared(*_octave(scale, panels), terms)
    return rule.nodes, rule.weights


def shared_coefficients(function: Function, tau: Tensor, panels: Panels, terms: int) -> Tensor:
    """E[f(tau xi) h_k(xi)], k < terms, at scales that share a rule: (len(tau), terms); even and odd parts by turns."""
    rule = _shared(*_octave(float(tau.abs().max()), panels), terms)
    x = tau[:, None] * rule.right[0]
    right, left = function(x).detach(), function(-x).detach()
    even, odd = right + left, right - left
    out, start = torch.empty(len(tau), terms, dtype=tau.dtype), 0
    for block in rule.polynomials():
        rows = block.to(even.dtype)
        for k, half in enumerate((even, odd)):
            out[:, start + k : start + len(rows) : 2] = half @ rows[k::2].T if bool(half.any()) else 0.0
        start += len(rows)
    return out


def _octave(scale: float, panels: Panels) -> tuple[float, Panels]:
    """The scale rounded up, so that few rules serve many scales; those of f(c x) are those of f at another scale."""
    base, stretch = panels.unstretched()
    return 2.0 ** math.ceil(math.log2(max(stretch * scale, 1e-3))), base


@cached(32)
def _shared(scale: float, panels: Panels, terms: int) -> SharedRule:
    return SharedRule(scale, panels, terms)


def may_share(tau: Tensor, panels: Panels, terms: int = 1) -> bool:
    """Whether one rule serves all these scales: no kink moves, and its table of polynomials is not too large."""
    if not len(tau) or not set(panels.kinks) <= {0.0}:
        return False
    scale, base = _octave(float(tau.max()), panels)
    if scale > 4096.0:  # the rule grows with the scale
        return False
    try:
        count = len(base.edges(REACH * scale, shared=True))
    except ConvergenceError:  # too fine for all scales at once
        return False
    return ORDER * count * terms <= 4 * LIMITS.held


def as_scales(tau: Any, root: bool = False) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """Flat float64 scales, and the way back to the caller's type and shape."""
    given = as_numbers(tau, "a scale")
    flat = given.detach().to("cpu", torch.float64).reshape(-1)
    if not bool(torch.isfinite(flat).all()) or bool((flat < 0).any()):
        raise InvalidInputError(f"a scale must be finite and non-negative, got {shown(tau)}")

    def restore(values: Tensor) -> Any:
        shaped = values.detach().reshape(given.shape + values.shape[1:])
        if isinstance(tau, Tensor):
            return shaped.to(tau.device, tau.dtype if tau.is_floating_point() else torch.float64)
        return float(shaped) if shaped.ndim == 0 else shaped.numpy()

    return (flat.sqrt() if root else flat), restore
