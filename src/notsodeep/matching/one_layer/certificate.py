"""The bound for every pair of inputs of every dimension: suprema of functions of one variable, the norm.

|k - k_twin| <= |k - k_N| + |k_N - k_P| + |k_P - k_twin|, relative to sqrt(k(x, x) k(y, y)):

- k_N is the interpolant in the norms (``Target.interpolation``, and ``Target.aliased`` for its Fourier coefficients);
- k_P its projection. The remainder of every order is positive semi-definite, so it is at most the largest deficit
  delta(s) / k(s, s, 1), a quotient of two polynomials; all orders that are left out are part of delta;
- the shipped coefficients are polynomials of the same degree, so this is about the very function that is evaluated. The
  two kernels differ by the sum over orders of at most |e_k| (2 |c_k| + |e_k|); where that is no small share of the
  deficit, by the maximum of a polynomial in both norms and the cosine, taken on a grid. Orders that only the shipped
  functions have are bounded one by one, those beyond any table by what Parseval's identity leaves.

Between the points of a grid of Chebyshev angles a polynomial of degree n is bounded by Bernstein's inequality: with
h the spacing it exceeds the larger neighbour by at most (n h)^2 / 8 of its maximum norm, in every variable.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._chebyshev import to_coefficients
from ...activations.projections import tail_gram
from .factor import deficit
from .target import Array, Target, quadratic
from .units import Fit, gained

_ROUNDING = 1e-13  # of the sums over orders and nodes, all of order one
_FINE = (3, 5)  # cells per degree where polynomials of several variables are bounded
_LITTLE = 0.15  # of the deficit: bounding more closely what is less than this does not pay
_SPARED = 0.2  # of that: what may be bounded coarsely
_ENTRIES = 1 << 20  # held at once


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


def certify(target: Target, parts: Array, want: Array, found: Fit, gain: Array) -> Proof:
    """Of the layer that :func:`units.assemble` makes of ``found``, fitted to ``want``, which are the ``parts`` up to
    signs or rotations among the kinds of each order."""
    rows = target.grid[1]
    scale = np.sqrt(np.diag(target.total))
    want = want * scale
    table = gained(found.basis, gain, len(want))
    have = (table @ (found.values * scale).reshape(len(found.values), -1)).reshape(-1, *want.shape[1:])
    reach = projection_bound(target, parts)
    little = _LITTLE * max(reach, found.allowed.wish)
    units = _apart(target, want, have, little) + _beyond(target, found, trained=bool(gain[-1] > 1.0))
    apart = target.interpolation
    # the first two are relative to the interpolant's diagonal
    bound = (reach + units) * (1.0 + apart) + apart + 2.0 * target.aliased
    flat = have.reshape(-1, len(target.nodes))
    own = quadratic(rows, flat.T @ flat)
    seen = np.abs(quadratic(rows, target.left) - own) / target.diagonal
    worst = int(np.argmax(seen))
    return Proof(bound, float(seen[worst]), float(target.grid[0][worst]), target.assumes)


def _apart(target: Target, want: Array, have: Array, little: float) -> float:
    """sup of the difference of the two kernels, relative to the diagonal; (K, J, N), and more orders of ``have``."""
    orders = len(want)
    error = have.copy()
    error[:orders] -= want
    each = _suprema(target, error)
    each[:orders] += 2.0 * np.sqrt(each[:orders] * _suprema(target, want))
    beyond = np.cumsum(each[::-1])[::-1]
    most, first = float(beyond[0]), min(orders, int((beyond > _SPARED * little).sum()))
    for fine in _FINE:
        if most > little:
            # the last orders one by one
            found = _largest(target, want[:first], have[:first], fine, _SPARED * little)
            most = min(most, found + float(each[first:].sum()))
    return most


def _largest(target: Target, want: Array, have: Array, fine: int, spared: float) -> float:
    """sup over both norms and the cosine of |sum_k (have_k have_k' - want_k want_k') rho^k|, relative.

    Chebyshev coefficients of high degree in the norms are summed up instead, as long as they are below ``spared``.
    """
    gap = have.transpose(0, 2, 1) @ have - want.transpose(0, 2, 1) @ want
    matrix = to_coefficients(len(target.nodes))
    gap = matrix @ gap @ matrix.T
    sizes = np.cumsum(np.cumsum(np.abs(gap).sum(0), 0), 1).diagonal()
    orders, count = len(gap), int((sizes[-1] - sizes > spared * target.diagonal.min()).sum()) + 1
    low = _floor(target, fine * count)
    if low.min() <= 0.0:
        return float("inf")
    cells, half = fine * orders, not (gap[0::2].any() and gap[1::2].any())
    rows = np.cos(np.outer(np.pi * np.arange(fine * count + 1) / (fine * count), np.arange(count)))
    cosines = np.cos(np.pi * np.arange((cells + 1) // 2 + 1 if half else cells + 1) / cells)
    flat, most, top = gap[:, :count, :count].reshape(orders, -1), 0.0, 0.0
    for part in np.array_split(cosines, 1 + len(cosines) * len(rows) ** 2 // _ENTRIES):
        coefficients = (part[:, None] ** np.arange(orders) @ flat).reshape(-1, count, count)
        found = np.abs(rows @ coefficients @ rows.T).max(0)
        corners = np.maximum(found[1:], found[:-1])
        corners = np.maximum(corners[:, 1:], corners[:, :-1])
        most, top = max(most, float((corners / np.sqrt(np.outer(low, low))).max())), max(top, float(found.max()))
    excess = grid_excess(2.0 * grid_slack(count - 1, fine * count) + grid_slack(orders - 1, cells))
    return most + (excess * top + float(sizes[-1] - sizes[count - 1])) / float(low.min())


def _floor(target: Target, cells: int) -> Array:
    """A lower bound of the diagonal in every one of these cells, from cells within them as fine as it takes.

    Over a long range of norms the diagonal is small at one end beside its maximum, to which the slack is relative.
    """
    for finer in (1, 4, 16, 64):
        values = quadratic(target.at(finer * cells)[1], target.total)
        low = _least(values, 2 * target.degree).reshape(cells, finer).min(1)
        if low.min() > 0.5 * values.min():
            break
    return low


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
    excess = grid_excess(grid_slack(degree, len(bottom) - 1))
    most = np.maximum(top[:, 1:], top[:, :-1]) + excess * top.max(1, keepdims=True)
    return np.asarray((most / _least(bottom, degree)).max(1))


def grid_slack(degree: int, cells: int) -> float:
    """Bernstein: how much of its maximum norm a polynomial may exceed the larger end of a cell of angles."""
    return (degree * np.pi / cells) ** 2 / 8.0


def grid_excess(slack: float) -> float:
    """The same as a share of the maximum on the grid."""
    return slack / (1.0 - slack) if slack < 1.0 else float("inf")


def _least(values: Array, degree: int) -> Array:
    """A lower bound of a polynomial in every cell."""
    return np.minimum(values[1:], values[:-1]) - grid_excess(grid_slack(degree, len(values) - 1)) * values.max()
