"""Where the slope of phi jumps and the network is not homogeneous: a kind of units that the norm turns.

The NTK of a DEQ has a branch point where pre-activations become parallel, for inputs of norms s, t at the cosine

    rho*(s, t) = (sqrt(q q') - sigma_a2 E[phi(sqrt(q) xi) phi(sqrt(q') xi)] - sigma_c2) / (sigma_b2 s t) >= 1,

with equality for s = t alone, so that g_k(s, t) ~ A(s, t) k^(-3/2) rho*(s, t)^(-k): no fixed number of kinds has that
at all orders. Turned units (``activations.turned``) with <f(s), f(t)> = 1 / rho*(s, t) have it, with A of rank one.
They take over from some order on, as much as leaves the other kinds an almost positive semi-definite remainder.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from ..._chebyshev import to_coefficients
from ...activations import Basis, Turned
from ...activations.projections import SINGULAR_TERMS, tail_gram
from ...kernels.expectations import layer_of
from ...kernels.variance import equilibrium_variance
from ...networks import DEQ, is_tangent
from .target import Array, KernelOrders
from .units import UnitFit, assemble, fit, gained, gains

_STARTS = (6, 10, 15, 20, 25, 30, 40, 60, 100, 150)  # orders at which turned units have half of what they take over
_STEEP = 2.5  # how fast they take over
_ALPHAS = (0.6, 0.85, 1.0)
_DEGREE, _SINGULAR = 12, 5
_FITTED, _TERMS = 256, 4  # orders from which on sizes are expanded in 1/k, and terms of that
_DIRECTIONS, _LEFT = 5, 5e-3  # how many at most, and what may be left of 1 / rho* at the last order of the tables
_LACK = 0.1  # of all orders beyond the computed ones: what turned units may miss there
_POWER = 0.75  # coefficients of a jump fall like k to minus this


def remainders(target: KernelOrders, trains: str) -> list[KernelOrders]:
    """What turned units of several starts leave to the other kinds; none where there is nothing to turn."""
    deq = target.network
    if not (isinstance(deq, DEQ) and is_tangent(target.kernel) and trains == "readout" and target.logarithmic):
        return []
    if deq.activation.kinks != (0.0,) or target.terms <= 2 * _FITTED - 2:
        return []
    directions = _directions(1.0 / meeting(deq, target.nodes))
    size = _sizes(target)
    found = (_remainder(target, directions, size, start) for start in _STARTS)
    return [remainder for remainder in found if remainder is not None]


def remaining(remainder: KernelOrders, kinds: int) -> float:
    """What the leading directions of every order leave at the nodes, relative to the diagonal."""
    carried = (remainder.features[:, :, -kinds:] ** 2).sum((0, 2))
    return float(((np.diag(remainder.left) - carried) / np.diag(remainder.total)).max())


def meeting(deq: DEQ, s: Array) -> Array:
    """rho*(s_i, s_j): where the pre-activations of two inputs become parallel."""
    sigma_a2, sigma_b2, sigma_c2 = deq.variances
    q = equilibrium_variance(deq, torch.from_numpy(s**2)).detach()
    i, j = np.triu_indices(len(s))
    root = (q[i] * q[j]).sqrt()
    parallel = layer_of(deq.activation, q[i], q[j]).value(root)
    out = np.empty((len(s), len(s)))
    out[i, j] = out[j, i] = ((root - sigma_a2 * parallel - sigma_c2).numpy()) / (sigma_b2 * s[i] * s[j])
    return out


def _directions(cosines: Array) -> Array:
    """f(s_i) with <f(s_i), f(s_j)> near ``cosines``: (N, directions)."""
    values, vectors = np.linalg.eigh(cosines)
    small = values[::-1] * SINGULAR_TERMS <= _LEFT * len(values)
    count = min(int(np.argmax(small)) if small.any() else len(values), _DIRECTIONS)
    f = vectors[:, -count:] * np.sqrt(np.maximum(values[-count:], 0.0))
    return np.asarray(f / np.linalg.norm(f, axis=1, keepdims=True))


def _sizes(target: KernelOrders) -> Array:
    """sqrt(g_k(s, s) / k(s, s, 1)) at the nodes for all orders of the tables, by its expansion beyond those known."""
    known = np.sqrt(np.maximum(target.orders.diagonal(axis1=1, axis2=2) / np.diag(target.total), 0.0))
    out = np.zeros((SINGULAR_TERMS, len(target.nodes)))
    out[: len(known)] = known
    for parity in (0, 1):
        k = np.arange(_FITTED + parity, len(known), 2)
        beyond = np.arange(len(known) + (len(known) + parity) % 2, SINGULAR_TERMS, 2)
        found = np.linalg.lstsq(_powers(k), known[k], rcond=None)[0]
        out[beyond] = _powers(beyond) @ found
    return out


def _powers(k: NDArray[np.intp]) -> Array:
    return np.asarray((k[:, None] / _FITTED) ** -(_POWER + np.arange(_TERMS)))


def _remainder(target: KernelOrders, directions: Array, size: Array, start: float) -> KernelOrders | None:
    """``None`` where elementary functions do not carry what the orders beyond the computed ones have."""
    k = np.arange(SINGULAR_TERMS)
    ramp = 1.0 / (1.0 + (start / np.maximum(k, 1)) ** _STEEP)
    sign = 1.0 - 2.0 * (k // 2 % 2)  # those of log|u| and of sign(u)
    want, gain = ((sign * ramp)[:, None] * size)[:, None, :], gains("readout", singular=True)
    found = min((fit(Basis(a, _DEGREE, _SINGULAR, 0), want, gain) for a in _ALPHAS), key=lambda f: f.price)
    known = target.total.diagonal() - np.einsum("kaa->a", target.orders)
    if np.abs(_beyond(target, found, gain) - known).max() > _LACK * known.max():
        return None
    left = target.orders - _orders(target, found, directions, gain)
    values, vectors = np.linalg.eigh(left)
    both = ((vectors * np.abs(values)[:, None, :]) @ vectors.transpose(0, 2, 1)).sum(0)
    turned = assemble(target, found)
    nothing = ((0.0,) * len(directions),) * 4
    silent = replace(turned, coefficients=(nothing,), degree=1, singular=0)
    turns = tuple(map(tuple, (to_coefficients(len(directions)) @ directions).T.tolist()))
    return replace(target, orders=left, shared=both, beside=Turned(silent, turned, turns))


def _beyond(target: KernelOrders, found: UnitFit, gain: Array) -> Array:
    """What the turned units have at the nodes beyond the computed orders."""
    c = gained(found.basis, gain, SINGULAR_TERMS)[target.terms :] @ found.values[:, 0]
    last = np.einsum("an,ab,bn->n", found.values[:, 0], tail_gram(found.basis, False).numpy(), found.values[:, 0])
    return np.asarray(((c**2).sum(0) + last) * np.diag(target.total))


def _orders(target: KernelOrders, found: UnitFit, directions: Array, gain: Array) -> Array:
    """Those of the turned units at the nodes."""
    c = gained(found.basis, gain, SINGULAR_TERMS)[: target.terms] @ found.values[:, 0]
    c = c * np.sqrt(np.diag(target.total))
    apart = np.clip(directions @ directions.T, -1.0, 1.0)
    return np.asarray(c[:, :, None] * c[:, None, :] * apart ** np.arange(target.terms)[:, None, None])
