"""The bound for every pair of inputs of every dimension: suprema of functions of one variable, the norm.

|k - k_twin| <= |k - k_N| + |k_N - k_P| + |k_P - k_twin|, relative to sqrt(k(x, x) k(y, y)):

- k_N is the interpolant in the norms (``Target.interpolation``, and ``Target.aliased`` for its Fourier coefficients);
- k_P its projection. The remainder of every order is positive semi-definite, so it is at most the largest deficit
  delta(s) / k(s, s, 1), a quotient of two polynomials; all orders that are left out are part of delta;
- the shipped units differ from the projection by e_k(s) in order k, which makes at most sum_k E_k (2 C_k + E_k), E_k
  and C_k the suprema of |e_k| and of the wanted |c_k| over s. The shipped coefficients are polynomials of the same
  degree, so this is about the very function that is evaluated. The orders beyond any table sum up to what Parseval's
  identity leaves.

Between the points of a grid of Chebyshev angles a polynomial of degree n is bounded by Bernstein's inequality: with
h the spacing it exceeds the larger neighbour by at most (n h)^2 / 8 of its maximum norm.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...activations.projections import tail_gram
from .factor import deficit
from .target import Array, Target, quadratic
from .units import Fit, gained, wanted

_ROUNDING = 1e-13  # of the sums over orders and nodes, all of order one
_FALLING = "between the norms that were computed, Chebyshev coefficients go on falling as their last four do"


@dataclass(frozen=True)
class Proof:
    """A bound, the largest error seen, and at which norm."""

    bound: float
    sampled: float
    norm: float
    assumes: str = ""
    """What the bound takes for granted; empty for a proof."""


def projection_bound(target: Target, parts: Array) -> float:
    """The largest relative deficit over the whole range."""
    left = np.maximum(quadratic(target.grid[1], deficit(target, parts)), 0.0)
    return float(_quotient(left[None], target.diagonal, 2 * target.degree)[0]) + _ROUNDING


def certify(target: Target, parts: Array, found: Fit, gain: Array) -> Proof:
    """Of the layer that :func:`units.assemble` makes of ``found``."""
    rows = target.grid[1]
    scale = np.sqrt(np.diag(target.total))
    want = wanted(target, parts) * scale
    table = gained(found.basis, gain, len(want))
    have = (table @ (found.values * scale).reshape(len(found.values), -1)).reshape(-1, *want.shape[1:])
    error = have.copy()
    error[: len(want)] -= want
    size_e, size_c = (np.sqrt(_suprema(target, part)) for part in (error, want))
    units = float((2.0 * size_e[: len(want)] * size_c).sum() + (size_e**2).sum())
    units += _beyond(target, found, trained=bool(gain[-1] > 1.0))
    apart = target.interpolation
    # the first two are relative to the interpolant's diagonal
    bound = (projection_bound(target, parts) + units) * (1.0 + apart) + apart + 2.0 * target.aliased
    flat = have.reshape(-1, len(target.nodes))
    own = quadratic(rows, flat.T @ flat)
    seen = np.abs(target.diagonal - own) / target.diagonal
    worst = int(np.argmax(seen))
    proven = target.smoothness is not None or len(target.nodes) == 1
    return Proof(bound, float(seen[worst]), float(target.grid[0][worst]), "" if proven else _FALLING)


def _beyond(target: Target, found: Fit, trained: bool) -> float:
    """sup_s of the orders of singular units beyond the table: what all of them have, less those in it."""
    if not found.basis.singular:
        return 0.0
    values, vectors = np.linalg.eigh(tail_gram(found.basis, trained).numpy())
    roots = (vectors * np.sqrt(np.maximum(values, 0.0))).T
    at_nodes = found.values * np.sqrt(np.diag(target.total))
    parts = np.einsum("ab,bjn->ajn", roots, at_nodes).reshape(1, -1, len(target.nodes))
    return float(_suprema(target, parts)[0])


def _suprema(target: Target, parts: Array) -> Array:
    """sup_s |parts_k(s)|^2 / k(s, s, 1) for every order, from values at the nodes (orders, kinds, nodes)."""
    alive = np.flatnonzero(np.abs(parts).max((1, 2)) > 0.0)
    out = np.zeros(len(parts))
    for chunk in np.array_split(alive, max(1, len(alive) // 128)):
        square = ((parts[chunk] @ target.grid[1].T) ** 2).sum(1)
        out[chunk] = _quotient(square, target.diagonal, 2 * target.degree)
    return out


def _quotient(top: Array, bottom: Array, degree: int) -> Array:
    """sup of top / bottom, polynomials of this degree given on the grid; top (rows, grid)."""
    h = np.pi / (len(bottom) - 1)
    slack = (degree * h) ** 2 / 8.0
    whole = 1.0 / (1.0 - slack)
    least = np.minimum(bottom[1:], bottom[:-1]) - slack * whole * bottom.max()
    most = np.maximum(top[:, 1:], top[:, :-1]) + slack * whole * top.max(1, keepdims=True)
    return np.asarray((most / least).max(1))
