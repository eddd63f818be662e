"""Kernels of networks that are not homogeneous, on a box: norms in [low, high]^2, all angles.

A level is known by its variances p_i at a few norms and its covariances at (norm, norm, angle); a layer acts through
its Hermite coefficients a_k(p_i): E[phi(u) phi(v)] = sum_k a_k(p_i) a_k(p_j) rho^k, whose truncation error is known
exactly, because sum_k a_k(p)^2 = E[phi^2].
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...activations import Activation
from ...activations.panels import panel_nodes
from ...errors import ConvergenceError
from ...networks import DEQ
from .arc import Array

Indices = NDArray[np.intp]

_REACH = 13.0
_CHUNK = 4096  # pairs whose Hermite products stay in the cache


@dataclass(frozen=True)
class Rule:
    """Nodes and weights of a standard normal, and the weighted orthonormal Hermite functions (nodes, terms)."""

    nodes: Array
    weights: Array
    basis: Array

    @property
    def terms(self) -> int:
        return self.basis.shape[1]


@functools.lru_cache(maxsize=8)
def rule(terms: int, panel: float = 0.5) -> Rule:
    """Gauss-Legendre panels with an edge at zero, where ELU has its kink at every scale."""
    edges = torch.arange(-_REACH, _REACH + 0.5 * panel, panel, dtype=torch.float64)
    nodes, lengths = (x.numpy() for x in panel_nodes(edges, 16))
    weights = lengths * np.exp(-0.5 * nodes * nodes) / math.sqrt(2.0 * math.pi)
    basis = np.empty((len(nodes), terms))
    before, here = np.zeros_like(nodes), weights.copy()
    for k in range(terms):
        basis[:, k] = here
        before, here = here, (nodes * here - math.sqrt(k) * before) / math.sqrt(k + 1)
    return Rule(nodes, weights, basis)


def values(phi: Activation, points: Array, order: int = 0) -> Array:
    """phi or one of its derivatives on the smooth pieces."""
    x = torch.from_numpy(np.ascontiguousarray(points))
    if order == 0:
        return phi._value(x).numpy()
    if order == 1:
        return phi._slope(x).numpy()
    if order == 2:
        return phi._curvature(x).numpy()
    with torch.enable_grad():
        x = x.requires_grad_(True)
        out = phi._curvature(x)
        for _ in range(order - 2):
            if not out.requires_grad:
                return np.zeros_like(points)
            (out,) = torch.autograd.grad(out.sum(), x, create_graph=True)
    return out.detach().numpy()


@dataclass(frozen=True)
class Layer:
    """A layer at given variances: Hermite coefficients, E[phi^2], E[phi'^2], E[phi''^2] (without point masses)."""

    coefficients: Array
    square: Array
    slope_square: Array
    curvature_square: Array

    def missing(self, variances: Array) -> tuple[float, float]:
        """What truncation can hide: the largest tail of E[phi^2] and of E[phi'^2] = sum_k k a_k^2 / p."""
        power = self.coefficients**2
        tail = self.square - power.sum(-1)
        slope_tail = self.slope_square - (power * np.arange(power.shape[1])).sum(-1) / variances
        return max(float(tail.max()), 0.0), max(float(slope_tail.max()), 0.0)


def layer(phi: Activation, variances: Array, r: Rule) -> Layer:
    x = np.sqrt(variances)[:, None] * r.nodes
    f, g, c = (values(phi, x, order) for order in range(3))
    return Layer(f @ r.basis, (f * f) @ r.weights, (g * g) @ r.weights, (c * c) @ r.weights)


@dataclass(frozen=True)
class Pairs:
    """Pairs of inputs: a few norms, the indices of either input's norm, and the cosines of their angles."""

    norms: Array
    first: Indices
    second: Indices
    cosine: Array

    @staticmethod
    def tensor(norms: Array, angles: Array) -> Pairs:
        """All pairs of norms and all angles."""
        i, j = np.triu_indices(len(norms))
        return Pairs(norms, np.repeat(i, len(angles)), np.repeat(j, len(angles)), np.tile(np.cos(angles), len(i)))

    def product(self, per_norm: Array) -> Array:
        """f(x) f(y) for a function of the norm."""
        return per_norm[self.first] * per_norm[self.second]

    def part(self, which: slice) -> Pairs:
        return Pairs(self.norms, self.first[which], self.second[which], self.cosine[which])

    def expect(self, given: Layer, rho: Array) -> tuple[Array, Array]:
        """E[phi(u) phi(v)] and its derivative in rho (which is sqrt(P Q) E[phi'(u) phi'(v)]), by Horner."""
        products = np.ascontiguousarray((given.coefficients[self.first] * given.coefficients[self.second]).T)
        out, slope = products[-1].copy(), np.zeros_like(rho)
        for row in products[-2::-1]:
            slope = slope * rho + out
            out = out * rho + row
        return out, slope


@dataclass(frozen=True)
class Evaluated:
    """Kernels at pairs, the diagonal per norm (for a twin: of every term), and the accumulated truncation error."""

    kernels: dict[str, Array]
    diagonals: dict[str, Array]
    missing: float


def deq_at(deq: DEQ, pairs: Pairs, terms: int, kinds: Sequence[str] = ("ck",)) -> Evaluated:
    """The DEQ's kernels: diagonal by a scalar fixed point, then Newton pair by pair."""
    r = rule(terms)
    a2, phi = float(deq.sigma_a2), deq.activation
    p = deq_variances(deq, pairs.norms**2, r)
    given = layer(phi, p, r)
    square, steep = given.square, given.slope_square
    ends = {"ck": square, "ntk": square + p * steep / (1.0 - a2 * steep), "ntk_frozen": square / (1.0 - a2 * steep)}
    parts = [_deq_part(deq, pairs.part(slice(i, i + _CHUNK)), p, given) for i in range(0, len(pairs.cosine), _CHUNK)]
    kernels = {k: np.concatenate([part[k] for part in parts]) for k in kinds}
    # a truncation error of E[phi phi] moves the fixed point by at most itself / (1 - s2a sup E[phi' phi'])
    least = 1.0 - a2 * float(steep.max())
    tail, slope_tail = given.missing(p)
    lost = tail / least
    if any(k != "ck" for k in kinds):
        wrong = slope_tail + float(given.curvature_square.max()) * a2 * lost
        lost = 2.0 * lost / least + float(np.maximum(p, square).max()) * wrong / least**2
    return Evaluated(kernels, {k: ends[k] for k in kinds}, lost)


def _deq_part(deq: DEQ, pairs: Pairs, p: Array, given: Layer) -> dict[str, Array]:
    a2, b2 = float(deq.sigma_a2), float(deq.sigma_b2)
    root = np.sqrt(pairs.product(p))
    drive = b2 * pairs.product(pairs.norms) * pairs.cosine / root
    rho = np.clip(drive, -1.0, 1.0)
    for _ in range(60):
        value, slope = pairs.expect(given, rho)
        move = (a2 * value / root + drive - rho) / (1.0 - a2 * slope / root)
        rho = np.clip(rho + move, -1.0, 1.0)
        if float(np.abs(move).max()) < 1e-8:
            break
    else:
        raise ConvergenceError(f"the kernel equation of {deq!r} did not converge")
    ck, slope = pairs.expect(given, rho)
    dot = slope / root
    return {"ck": ck, "ntk": ck + root * rho * dot / (1.0 - a2 * dot), "ntk_frozen": ck / (1.0 - a2 * dot)}


def deq_variances(deq: DEQ, squares: Array, r: Rule) -> Array:
    """P = s2a E[phi(sqrt(P) xi)^2] + s2b |x|^2 by Newton."""
    a2, b2, phi = float(deq.sigma_a2), float(deq.sigma_b2), deq.activation
    p, move = b2 * squares, b2 * squares
    for _ in range(200):
        x = np.sqrt(p)[:, None] * r.nodes
        f = values(phi, x)
        # d E[phi^2]/dp = E[phi phi' xi] / sqrt(p): no second derivative, hence right at kinks
        rate = a2 * ((f * values(phi, x, 1) * r.nodes) @ r.weights) / np.sqrt(p)
        move = (a2 * ((f * f) @ r.weights) + b2 * squares - p) / np.maximum(1.0 - rate, 0.05)
        p = np.maximum(p + move, 0.5 * p)
        if not np.isfinite(p).all() or float(np.abs(move / p).max()) < 1e-15:
            break
    if np.isfinite(p).all() and float(np.abs(move / p).max()) < 1e-13:
        return p
    raise ConvergenceError(f"the variances of {deq!r} did not converge; sigma_a2 may be too large for this activation")


def enn_at(activations: Sequence[Activation], pairs: Pairs, terms: int, kinds: Sequence[str] = ("ck",)) -> Evaluated:
    """The explicit network's kernels as terms (W_1 ... W_L, readout; one row for the CK), each (count, pairs)."""
    r = rule(terms)
    p, ends, steeps, layers = pairs.norms**2, [pairs.norms**2], [], []
    for phi in activations:
        given = layer(phi, p, r)
        layers.append((given, p))
        p = given.square
        ends.append(p)
        steeps.append(given.slope_square)
    parts = [_enn_part(pairs.part(slice(i, i + _CHUNK)), layers, kinds) for i in range(0, len(pairs.cosine), _CHUNK)]
    kernels = {k: np.concatenate([part[k] for part in parts], axis=1) for k in kinds}
    lost = max(_lost(layers, k) for k in kinds)
    return Evaluated(kernels, {k: network_terms(ends, steeps, k) for k in kinds}, lost)


def _lost(layers: Sequence[tuple[Layer, Array]], kind: str) -> float:
    """What truncation can do to a term: errors of the covariances and of the slopes, carried to the output."""
    cov, term, size = 0.0, 0.0, float(layers[0][1].max())
    for given, p in layers:
        tail, slope_tail = given.missing(p)
        steep = float(given.slope_square.max())
        wrong = slope_tail + float(given.curvature_square.max()) * cov
        cov = tail + steep * cov
        # a term entering here is at most ``size``; it is multiplied by a slope of at most ``steep``, known up to
        # ``wrong``
        term = max(term * (steep + wrong) + size * wrong, cov)
        size = max(size * steep, float(given.square.max()))
    return cov if kind == "ck" else term


def _enn_part(pairs: Pairs, layers: Sequence[tuple[Layer, Array]], kinds: Sequence[str]) -> dict[str, Array]:
    cov = pairs.product(pairs.norms) * pairs.cosine
    entering, slopes = [cov], []
    for given, p in layers:
        root = np.sqrt(pairs.product(p))
        cov, slope = pairs.expect(given, np.clip(cov / root, -1.0, 1.0))
        slopes.append(slope / root)
        entering.append(cov)
    return {k: network_terms(entering, slopes, k) for k in kinds}


def network_terms(entering: Sequence[Array], slopes: Sequence[Array], kind: str) -> Array:
    """What each trained weight matrix contributes: the covariance entering it times the slopes of the layers above."""
    rows, product = [entering[-1]], np.ones_like(entering[-1])
    if kind != "ck":
        for level in range(len(slopes) - 1, -1 if kind == "ntk" else 0, -1):
            product = product * slopes[level]
            rows.append(entering[level] * product)
    return np.stack(rows[::-1])
