"""The quadrature rule of all Gaussian expectations: the panels of the function and the normal weight.

Each piece between panel edges is analytic and short, so the rule is exact to rounding there. What lies beyond the ends
of the range, where a function that outgrows the normal density has its mass, is estimated and refused.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, positive_int, shown
from .._arrays import as_numbers
from .._caches import cached
from ..activations import Activation, ActivationLike, Affine, activation
from ..activations.forms import Function
from ..activations.panels import LIMITS, ORDER, REACH, Panels, hermite_table, normal_edges, normal_nodes
from ..errors import ConvergenceError, InvalidInputError

BLOCK = 512  # polynomials held at once, of a longer series; even, as halves of a parity are


def beyond(weighted: Tensor, xi: Tensor) -> Tensor:
    """Estimate what lies past the end of the range, from the last standard deviation and the one before.

    A function that is zero up to nine standard deviations begins there, and does not outgrow the normal density.
    """
    far = xi.abs()
    parts = far > REACH - 1.0, (far > REACH - 2.0) & (far <= REACH - 1.0), far < 9.0
    ends = torch.stack(parts).to(weighted.dtype)
    last, before, inside = ends @ weighted.mT if xi.ndim == 1 and weighted.ndim > 1 else (ends * weighted).sum(-1)
    return torch.where((last > 0) & (inside > 0), last * (last / before.clamp_min(1e-300)), 0.0 * last)


def means(functions: Callable[[Tensor], Sequence[Tensor]], tau: Tensor, panels: Panels) -> Tensor:
    """Return E[f(tau xi)] of several functions from the same nodes, (functions, scales); the first must be in range."""
    rows = []
    for part, xi, weights in portions(tau, panels):
        weighted = [values.detach() * weights for values in functions(part[:, None] * xi)]
        check_ends(beyond(weighted[0].abs(), xi), weighted[0].abs().sum(-1), part)
        rows.append(torch.stack([one.sum(-1) for one in weighted]))
    return torch.cat(rows, dim=1)


def portions(tau: Tensor, panels: Panels) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield scales in portions that fit into the memory, with nodes and weights: one rule where it serves."""
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
    """Yield scales in portions whose nodes (``copies`` arrays of them) fit into the memory that is allowed."""
    if len(tau) == 1:
        yield tau
    elif len(tau):
        nodes = ORDER * (len(normal_edges(tau.max()[None], panels, terms)[0]) - 1)
        yield from tau.split(max(1, LIMITS.held // (copies * nodes)))


def normal_density(x: Tensor, tau: Tensor) -> Tensor:
    """Return the density of tau * xi at x; zero in the limit tau -> 0 unless x = 0."""
    scale = tau.clamp_min(1e-150)
    return torch.exp(-0.5 * (x / scale) ** 2) / (math.sqrt(2.0 * math.pi) * scale)


def finite(values: Tensor, phi: Activation) -> Tensor:
    """Return ``values``, or raise an error if one of them overflowed."""
    if not bool(torch.isfinite(values).all()):
        raise ConvergenceError(f"a Gaussian expectation of {phi!r} overflows at this scale")
    return values


class SharedRule:
    """Nodes and weights that serve all scales up to a largest one, of a function with no kink off zero."""

    def __init__(self, scale: float, panels: Panels, terms: int) -> None:
        xi, weights = normal_nodes(torch.tensor([scale], dtype=torch.float64), panels, terms, shared=True)
        there = weights[0] > 0  # panels between equal edges have none
        self.nodes, self.weights, self.terms = xi[0, there], weights[0, there], terms
        self.right = self.nodes[self.nodes > 0], self.weights[self.nodes > 0]

    def polynomials(self) -> Iterable[Tensor]:
        """Return weighted Hermite polynomials at the positive nodes, in blocks of orders; a small table is cached."""
        if len(self.right[0]) * self.terms <= LIMITS.held:
            return (self._table,)
        return hermite_table(*self.right, self.terms, BLOCK)

    @functools.cached_property
    def _table(self) -> Tensor:
        (table,) = hermite_table(*self.right, self.terms)
        return table


def shared_rule(scale: float, panels: Panels, terms: int = 0) -> tuple[Tensor, Tensor]:
    """Return nodes and weights for all scales up to ``scale`` at once, for a function with no kink off zero."""
    rule = _shared(*_octave(scale, panels), terms)
    return rule.nodes, rule.weights


def shared_coefficients(function: Function, tau: Tensor, panels: Panels, terms: int) -> Tensor:
    """Return E[f(tau xi) h_k(xi)], k < terms, at scales that share a rule: (len(tau), terms); even and odd by turns."""
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
    """Return the scale rounded up, so that few rules serve many; those of f(c x) are those of f at another scale."""
    base, stretch = panels.unstretched()
    if not stretch * scale < 1e300:
        raise ConvergenceError("the pre-activations are beyond the range of float64; scale the inputs down")
    return 2.0 ** math.ceil(math.log2(max(stretch * scale, 1e-3))), base


@cached(32)
def _shared(scale: float, panels: Panels, terms: int) -> SharedRule:
    return SharedRule(scale, panels, terms)


def may_share(tau: Tensor, panels: Panels, terms: int = 1) -> bool:
    """Say whether one rule serves all these scales: no kink moves, and its table of polynomials is not too large."""
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
    """Return flat float64 scales, and the way back to the caller's type and shape."""
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


@checked
def hermite_coefficients(phi: ActivationLike, q: Any, terms: int, derivative: bool = False) -> Any:
    """Return the Hermite coefficients E[phi(sqrt(q) xi) h_k(xi)], k < terms, or those of phi': q.shape + (terms,).

    >>> a = hermite_coefficients("relu", 1.0, 3)
    >>> [round(float(c), 6) for c in a]
    [0.398942, 0.5, 0.282095]
    """
    phi = activation(phi)
    terms = positive_int("terms", terms, 1, LIMITS.terms)
    scales, restore = as_scales(q, root=True)
    distinct, where = torch.unique(scales, return_inverse=True)
    return restore(coefficients_at(phi, distinct, terms, derivative)[where])


def coefficients_at(phi: Activation, tau: Tensor, terms: int, derivative: bool = False) -> Tensor:
    """Return E[phi(tau xi) h_k(xi)] at flat scales tau: shape (len(tau), terms)."""
    return finite(_without_parity(_coefficients(phi, tau, terms, derivative), phi, derivative), phi)


def _coefficients(phi: Activation, tau: Tensor, terms: int, derivative: bool) -> Tensor:
    phi = phi.canonical()
    exact = phi.polynomial()
    if exact is not None:
        return (exact.derived() if derivative else exact).coefficients_at(tau, terms)
    if isinstance(phi, Affine):
        inner = _without_parity(_coefficients(phi.base, phi.scale * tau, terms, derivative), phi.base, derivative)
        out = phi.gain * (phi.scale * inner if derivative else inner)
        if derivative:
            out[:, 0] += phi.skip
            return out
        out[:, 0] += phi.shift
        if terms > 1:
            out[:, 1] += phi.skip * tau
        return out
    if derivative and not phi.continuous:
        raise InvalidInputError(f"{phi!r} jumps: its derivative has no Hermite coefficients; only the CK is defined")
    function = phi.derivative if derivative else phi
    tau = tau.clamp_min(1e-150) if derivative else tau
    if not phi.breaks:
        return function_coefficients(function, tau, phi.panels(), terms)
    breaks = [(place, jumps[int(derivative) :]) for place, jumps in phi.breaks]
    lowest = min(terms, max(len(jumps) for _, jumps in breaks))  # beyond the degree only jumps are left
    low = function_coefficients(function, tau, phi.panels(), lowest)
    return torch.cat([low, _by_parts(breaks, tau, terms)[:, lowest:]], dim=1) if terms > lowest else low


def _by_parts(breaks: Sequence[tuple[float, Sequence[float]]], tau: Tensor, terms: int) -> Tensor:
    """Return E[f(tau xi) h_k(xi)] of polynomials that meet at breaks, for k beyond their degree: (len(tau), terms)."""
    # E[g h_k] = E[g' h_(k-1)] / sqrt(k); a jump of f^(j) at c is a point mass, where h_(k-1-j) is taken at c / tau
    places = torch.tensor([place for place, _ in breaks], dtype=torch.float64)
    orders = max(len(jumps) for _, jumps in breaks)
    jumps = torch.tensor([[*jumps, *(0.0,) * (orders - len(jumps))] for _, jumps in breaks], dtype=torch.float64)
    k = torch.arange(terms, dtype=torch.float64)
    rows = [torch.zeros(0, terms, dtype=torch.float64)]
    for part in tau.split(max(1, LIMITS.held // (terms * len(places)))):
        z = (places / part.clamp_min(1e-150)[:, None]).clamp(-38.0, 38.0)  # beyond, the normal density is no number
        h = torch.from_numpy(_hermite_functions(z.flatten().numpy(), terms)).view(*z.shape, terms)
        out, weight = torch.zeros(len(part), terms, dtype=torch.float64), torch.ones_like(k)
        for j in range(orders):
            weight = weight / (k - j).clamp_min(1.0).sqrt()
            out[:, j + 1 :] += (
                (h[:, :, : terms - j - 1] * jumps[:, j, None]).sum(1) * weight[j + 1 :] * part[:, None] ** j
            )
        rows.append(out)
    return torch.cat(rows)


def _hermite_functions(x: np.ndarray, terms: int) -> np.ndarray:
    """Return the normal density times h_0, h_1, ... at these points, (points, terms): half the time of torch here."""
    found = np.empty((max(terms, 2), *x.shape))
    found[0] = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    found[1] = x * found[0]
    for k in range(1, terms - 1):
        np.multiply(x, found[k], out=found[k + 1])
        found[k + 1] -= math.sqrt(k) * found[k - 1]
        found[k + 1] *= 1.0 / math.sqrt(k + 1)
    return found[:terms].T.copy()


def function_coefficients(function: Function, tau: Tensor, panels: Panels, terms: int) -> Tensor:
    """Return E[f(tau xi) h_k(xi)], k < terms, for flat scales tau: shape (len(tau), terms)."""
    if may_share(tau, panels, min(terms, BLOCK)):  # one rule, and one table of Hermite polynomials, serves all scales
        parts = tau.split(max(1, LIMITS.held // (4 * len(shared_rule(float(tau.max()), panels, terms)[0]))))
        return torch.cat([shared_coefficients(function, part, panels, terms) for part in parts])
    rows = [torch.zeros(0, terms, dtype=torch.float64)]
    for part in chunks(tau, panels, terms, copies=4):
        nodes, weights = normal_nodes(part, panels, terms)
        rows.append(project(function(part[:, None] * nodes).detach() * weights, nodes, terms))
    return torch.cat(rows)


def _without_parity(coefficients: Tensor, phi: Activation, derivative: bool) -> Tensor:
    """Put exact zeros where the symmetry of phi says so."""
    if phi.parity is not None:
        coefficients[:, int((phi.parity == "even") != derivative) :: 2] = 0.0
    return coefficients


def project(weighted: Tensor, xi: Tensor, terms: int) -> Tensor:
    """Sum over nodes of weighted * h_k(xi), h_k by recurrence: shape (rows, terms)."""
    out = torch.zeros(len(weighted), terms, dtype=weighted.dtype)
    width = max(1, LIMITS.block // max(1, len(weighted)))
    for here, x in zip(weighted.split(width, dim=1), xi.expand_as(weighted).split(width, dim=1), strict=True):
        before, here = torch.zeros_like(here), here.clone()
        for k in range(terms):
            out[:, k] += here.sum(-1)
            # h_(k+1) = (x h_k - sqrt(k) h_(k-1)) / sqrt(k + 1), over the one that is no longer needed
            before.mul_(-math.sqrt(k / (k + 1))).addcmul_(x, here, value=1.0 / math.sqrt(k + 1))
            before, here = here, before
    return out
