"""Hermite coefficients a_k(q) = E[phi(sqrt(q) xi) h_k(xi)], h_k the orthonormal Hermite polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import whole
from .._arrays import isolated_settings
from ..activations import Activation, ActivationLike, Affine, activation
from ..activations.panels import LIMITS, Panels, normal_nodes
from ..errors import InvalidInputError
from .integrals import finite
from .rule import BLOCK, as_scales, chunks, may_share, shared_coefficients, shared_rule


@isolated_settings
def hermite_coefficients(phi: ActivationLike, q: Any, terms: int, derivative: bool = False) -> Any:
    """Return the Hermite coefficients a_k(q) = E[phi(sqrt(q) xi) h_k(xi)], k < terms.

    Parameters
    ----------
    phi : str, Activation or callable
        The activation.
    q : float, array or tensor
        The variance, or several.
    terms : int
        The number of coefficients.
    derivative : bool, default False
        Whether the coefficients are those of phi'.

    Returns
    -------
    array or tensor of shape q.shape + (terms,)

    Examples
    --------
    >>> a = hermite_coefficients("relu", 1.0, 3)
    >>> [round(float(c), 6) for c in a]
    [0.398942, 0.5, 0.282095]
    """
    phi = activation(phi)
    terms = whole("terms", terms)
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
    """E[f(tau xi) h_k(xi)] of polynomials that meet at breaks, for k beyond their degree: (len(tau), terms).

    E[g h_k] = E[g' h_(k-1)] / sqrt(k); a jump of f^(j) at c is a point mass, where h_(k-1-j) is taken at c / tau.
    """
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
    """The normal density times h_0, h_1, ... at these points: (points, terms)."""
    found = np.empty((max(terms, 2), *x.shape))
    found[0] = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    found[1] = x * found[0]
    for k in range(1, terms - 1):
        np.multiply(x, found[k], out=found[k + 1])
        found[k + 1] -= math.sqrt(k) * found[k - 1]
        found[k + 1] *= 1.0 / math.sqrt(k + 1)
    return found[:terms].T.copy()


def function_coefficients(function: Callable[[Tensor], Tensor], tau: Tensor, panels: Panels, terms: int) -> Tensor:
    """E[f(tau xi) h_k(xi)], k < terms, for flat scales tau: shape (len(tau), terms)."""
    if may_share(tau, panels, min(terms, BLOCK)):  # one rule, and one table of Hermite polynomials, serves all scales
        parts = tau.split(max(1, LIMITS.held // (4 * len(shared_rule(float(tau.max()), panels, terms)[0]))))
        return torch.cat([shared_coefficients(function, part, panels, terms) for part in parts])
    rows = [torch.zeros(0, terms, dtype=torch.float64)]
    for part in chunks(tau, panels, terms, copies=4):
        nodes, weights = normal_nodes(part, panels, terms)
        rows.append(project(function(part[:, None] * nodes).detach() * weights, nodes, terms))
    return torch.cat(rows)


def _without_parity(coefficients: Tensor, phi: Activation, derivative: bool) -> Tensor:
    """Exact zeros where the symmetry of phi says so."""
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
