"""From coefficients to functions: the elementary units whose Hermite coefficients are the wanted ones.

The signs of all coefficients are free. Those of phi's own make units that look like phi; where phi has no coefficient,
signs alternate as those of |u| and of u log|u| do. The wanted coefficients then fall smoothly with the order, and a
few elementary functions carry them (:class:`notsodeep.units.conditioned.Basis`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import hadamard

from ..._chebyshev import to_coefficients
from ...activations.panels import LIMITS as TABLES
from ...gaussian import hermite_coefficients
from ...kernels.pointwise import last_variance
from ...networks import Network
from ...units import Basis, Conditioned
from ...units.elementary import basis_coefficients, needed
from .._limits import LIMITS
from .orders import Array, KernelOrders, pivots

FAMILY = "conditioned"


class Allowance(NamedTuple):
    """What units may miss: less than ``enough`` is not worth larger functions, more than ``most`` is too much."""

    enough: float
    most: float


NOTHING = Allowance(0.0, 0.0)


@dataclass(frozen=True)
class UnitFit:
    """Coefficients of the functions of a basis, and what they miss."""

    basis: Basis
    values: Array  # at the nodes: (size, kinds, nodes)
    missed: float  # sum_k E_k (2 C_k + E_k) at the nodes: the first-order size of the kernel's error
    allowed: Allowance = NOTHING

    @property
    def largest(self) -> float:
        """Sum of the coefficients' sizes at any norm: they cancel each other the more the larger it is."""
        return float(np.abs(self.values).sum(0).max())

    @property
    def cost(self) -> tuple[float, bool, float]:
        """What is missed, times what single precision loses; of those that miss little, the smallest coefficients."""
        near = self.missed <= self.allowed.enough
        lost = max(1.0, self.largest / LIMITS.largest_coefficients) ** 2
        return max(self.missed, self.allowed.most) * lost, not near, self.largest if near else self.missed

    @property
    def enough(self) -> bool:
        """Whether larger functions are not worth their cost."""
        return self.missed <= self.allowed.enough and self.largest <= LIMITS.largest_coefficients


def signs(network: Network, norm: float, sizes: Array) -> Array:
    """Return one sign per order, phi's own where it has one; ``sizes`` are the wanted coefficients at that norm."""
    q = last_variance(network, torch.tensor([norm**2], dtype=torch.float64))
    hermite = np.asarray(hermite_coefficients(network.activations[-1], float(q), min(len(sizes), 1024)))
    out = np.ones(len(sizes))
    for k in range(len(sizes)):
        if k < len(hermite) and abs(hermite[k]) > 1e-3 * sizes[k] > 0.0:
            out[k] = math.copysign(1.0, hermite[k])
        elif k > 2:
            out[k] = -out[k - 2]
    return out


def wanted(target: KernelOrders, parts: Array) -> Array:
    """Return the coefficients with their signs, relative to the diagonal: (orders, kinds, nodes)."""
    sign = signs(target.network, target.high, np.abs(parts[:, -1, 0]))
    scale = np.sqrt(np.diag(target.total))
    return sign[:, None, None] * parts.transpose(0, 2, 1) / scale


def rotated(target: KernelOrders, want: Array, basis: Basis, gain: Array) -> Array:
    """Rotate the kinds of every order among themselves, towards what the functions of the basis can carry.

    Kinks away from zero leave coefficients that oscillate with the order, at a rate that depends on the norm: signs do
    not make them smooth. Fitting and rotating take turns, from units that look like phi.
    """
    phi, orders, kinds = target.network.activations[-1], len(want), want.shape[1]
    few = pivots(want.shape[2])
    hermite = np.asarray(
        hermite_coefficients(phi, last_variance(target.network, torch.from_numpy(target.nodes[few] ** 2)), orders)
    ).T
    have = np.stack(
        [np.roll(hermite, 2 * j, axis=0) * (np.arange(orders) >= 2 * j)[:, None] for j in range(kinds)], axis=1
    )
    start, ahead, table = want[:, :, few], have, gained(basis, gain, orders)[:orders]
    for turn in range(60):
        left, _, right = np.linalg.svd(ahead @ start.transpose(0, 2, 1))
        rotation, before = left @ right, have
        fitted = fit(basis, rotation @ start, gain, even=True)
        have = (table @ fitted.values.reshape(basis.size, -1)).reshape(start.shape)
        ahead = have + turn / (turn + 3.0) * (have - before)  # Nesterov's momentum: ten to fifty times nearer
    return np.asarray(rotation @ want)


def fit(basis: Basis, want: Array, gain: Array, allowed: Allowance = NOTHING, *, even: bool = False) -> UnitFit:
    """Fit all kinds and nodes at once by weighted least squares; ``gain`` is sqrt(1 + k) where hidden weights train.

    ``even``: the many small orders of a kink count more, by the roots of their sizes.
    """
    orders = len(want)
    table = gained(basis, gain, orders)
    size = np.sqrt((want**2).sum(1)).max(1)
    weight = np.maximum(size, 1e-3 * size.max())[:, None] ** (0.5 if even else 1.0)
    # orders that are not wanted count as well, but only by their sum of squares
    values, vectors = np.linalg.eigh(table[orders:].T @ table[orders:])
    beyond = weight.min() * (vectors * np.sqrt(np.maximum(values, 0.0))).T
    right = np.concatenate([want.reshape(orders, -1) * weight, np.zeros((len(beyond), want[0].size))])
    solutions = _solve(np.concatenate([table[:orders] * weight, beyond]), right)
    return min((_fit(basis, want, size, table, values, allowed) for values in solutions), key=lambda f: f.cost)


def gained(basis: Basis, gain: Array, orders: int) -> Array:
    """Return Hermite coefficients of the basis times ``gain``: all orders that count, at least as many as asked for."""
    known = basis_coefficients(basis)
    count = max(len(known) if basis.singular else needed(known), orders)
    known = known if count <= len(known) else basis_coefficients(basis, count)
    return np.asarray(known.numpy()[:count] * gain[:count, None])


def _fit(basis: Basis, want: Array, size: Array, table: Array, values: Array, allowed: Allowance) -> UnitFit:
    orders, kinds, nodes = want.shape
    error = (table @ values).reshape(-1, kinds, nodes)
    error[:orders] -= want
    missed = np.sqrt((error**2).sum(1)).max(1)
    first = float((missed[:orders] * 2.0 * size).sum() + (missed**2).sum())
    return UnitFit(basis, values.reshape(-1, kinds, nodes), first, allowed)


def _solve(design: Array, right: Array) -> Iterator[Array]:
    """Yield least squares from the singular values above each cut: small ones make large coefficients that cancel."""
    scale = np.linalg.norm(design, axis=0)
    scale[scale == 0.0] = 1.0
    u, s, v = np.linalg.svd(design / scale, full_matrices=False)
    projected = u.T @ right
    for rank in sorted({int((s > cut * s[0]).sum()) for cut in (1e-4, 1e-5, 1e-6, 1e-7, 1e-8, 1e-9, 1e-11, 1e-13)}):
        yield (v[:rank].T @ (projected[:rank] / s[:rank, None])) / scale[:, None]


def smallest(
    basis: Basis,
    want: Array,
    gain: Array,
    degrees: tuple[int, ...] = (3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28),
    alphas: tuple[float, ...] = (0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2),
    allowed: Allowance = NOTHING,
) -> UnitFit:
    """Find the fit of the lowest degree that is good enough, or the best there is, each with the best slope alpha.

    High degrees like smaller slopes. Degrees are bisected, and all is tried at a few norms.
    """
    few = want[:, :, pivots(want.shape[2])]

    def best(degree: int, tried: list[float]) -> UnitFit:
        each = (fit(replace(basis, alpha=a, degree=degree), few, gain, allowed) for a in tried)
        return min(each, key=lambda f: f.cost)

    fits: list[UnitFit] = []
    for group in ([d for d in degrees if d <= 12], [d for d in degrees if d > 12]):
        if not group:
            continue
        costs = {a: fit(replace(basis, alpha=a, degree=group[len(group) // 2]), few, gain).cost for a in alphas}
        slopes = sorted(alphas, key=costs.__getitem__)[:3]
        slopes += [a for a in alphas if a < min(slopes)][-1:]
        fits.append(best(group[-1], slopes))
        low, high = 0, len(group) - 1
        while fits[-1].enough and low < high:
            middle = (low + high) // 2
            tried = best(group[middle], slopes)
            low, high = (low, middle) if tried.enough else (middle + 1, high)
            fits += [tried] if tried.enough else []
        if fits[-1].enough:
            return fit(fits[-1].basis, want, gain, allowed)
    return fit(min(fits, key=lambda f: f.cost).basis, want, gain, allowed)


def assemble(target: KernelOrders, fitted: UnitFit) -> Conditioned:
    """Build the layer: kinds mixed by the rows of a Hadamard matrix, so that all groups of units look alike."""
    kinds = fitted.values.shape[1]
    groups = 1 << max(0, math.ceil(math.log2(kinds)))
    mix = hadamard(groups, dtype=float)[:, :kinds]
    at_nodes = fitted.values * np.sqrt(np.diag(target.total))
    chebyshev = at_nodes @ to_coefficients(len(target.nodes)).T
    mixed = np.einsum("hj,bjm->hbm", mix, chebyshev)
    coefficients = tuple(tuple(map(tuple, group)) for group in mixed.tolist())
    settings = (*astuple(fitted.basis), target.low, target.high, target.power, target.logarithmic)
    return Conditioned(coefficients, *settings)


def gains(trains: str) -> Array:
    """Return sqrt(1 + k) per order where hidden weights train as well, 1 otherwise."""
    k = np.arange(TABLES.smooth_terms)
    return np.sqrt(1.0 + k) if trains == "all" else np.ones(len(k))
