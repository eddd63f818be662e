"""The bound for every pair of inputs of every dimension: suprema of functions of one variable, the norm.

|k - k_twin| <= |k - k_N| + |k_N - k_P| + |k_P - k_twin|, relative to sqrt(k(x, x) k(y, y)): k_N is the interpolant in
the norms, k_P its projection on the kinds of units (docs/one_layer.md, "The certificate"). Between the points of a grid
of Chebyshev angles with spacing h, a polynomial of degree n exceeds the larger neighbour by at most (n h)^2 / 8 of its
maximum norm, in every variable (Bernstein).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..._caches import cached
from ..._chebyshev import nodes as chebyshev_nodes
from ..._chebyshev import to_coefficients
from ...units.elementary import parseval_root
from ...units.norm_units import NormUnits
from .._limits import LIMITS
from ..certificates import Supremum, Tried
from .orders import Array, KernelOrders, grid_excess, grid_slack, quadratic
from .units import UnitFit, gained


@dataclass(frozen=True)
class LayerDesign:
    """A layer, what is known of it, all that was tried, and why it was taken."""

    layer: NormUnits
    proof: Supremum
    rows: tuple[Tried, ...]  # the last one is the layer's own
    reason: str
    rates: tuple[float, ...] | None = None
    """Learning rates of the hidden weights and of the readout; ``None`` where all are 1."""


def projection_bound(target: KernelOrders, parts: Array) -> float:
    """Return the largest relative deficit over the whole range."""
    left = np.maximum(quadratic(target.grid[1], target.deficit(parts)), 0.0)
    return float(_quotient(left[None], target)[0]) + LIMITS.rounding


def certify(target: KernelOrders, parts: Array, want: Array, fitted: UnitFit, gain: Array) -> Supremum:
    """Bound the error of the layer that :func:`units.assemble` makes of ``fitted``.

    ``fitted`` is fitted to ``want``, which are the ``parts`` up to signs or rotations among the kinds of each order.
    """
    if not target.least.min() > 0.0:
        return Supremum(math.inf, math.inf, target.low)
    rows = target.grid[1]
    scale = np.sqrt(np.diag(target.total))
    want = want * scale
    table = gained(fitted.basis, gain, len(want))
    have = (table @ (fitted.values * scale).reshape(len(fitted.values), -1)).reshape(-1, *want.shape[1:])
    reach = projection_bound(target, parts)
    flat, total = have.reshape(-1, len(target.nodes)), _whole(target, fitted, trained=bool(gain[-1] > 1.0))
    # Parseval: orders beyond the table are what the units have, less those in it
    beyond = np.abs(quadratic(rows, total - flat.T @ flat))
    whole = _difference(target, want, have, reach) + float(_quotient(beyond[None], target)[0])
    whole += LIMITS.rounding * max(1.0, fitted.largest / LIMITS.largest_coefficients)
    # where the diagonal is small, sums of terms as large as it is elsewhere cancel
    whole += LIMITS.rounding * (float(target.diagonal.max() / target.least.min()) - 1.0)
    apart = target.interpolation
    # all is relative to the interpolant's diagonal, which is so near to the kernel's
    bound = (whole + apart + 2.0 * target.aliased) / (1.0 - apart) if apart < 1.0 else float("inf")
    seen = np.abs(quadratic(rows, target.total - total)) / target.diagonal
    worst = int(np.argmax(seen))
    return Supremum(bound, float(seen[worst]), float(target.grid[0][worst]), target.assumes)


def _difference(target: KernelOrders, want: Array, have: Array, reach: float) -> float:
    """Bound the difference of the interpolant and the kernel of the layer, relative to the diagonal.

    ``want`` (K, J, N) leaves ``reach``; ``have`` may have more orders.
    """
    orders = len(want)
    each = _each(target, want, have, 3e-4 * reach)
    beyond = np.cumsum(each[::-1])[::-1]
    ours, theirs = (part.reshape(-1, len(target.nodes)) for part in (have, want))
    seen = float((np.abs(quadratic(target.grid[1], ours.T @ ours - theirs.T @ theirs)) / target.diagonal).max())
    level = reach + seen
    most, coarse = float(beyond[0]), 0.02 * level  # so much may be bounded coarsely
    first = min(orders, int((beyond > coarse).sum()))
    for fine in (3, 6):  # cells per degree
        if most - seen <= 0.03 * level:  # little is left to gain
            break
        # the last orders one by one
        bound = _largest(target, want[:first], have[:first], fine, coarse)
        most = min(most, bound + float(each[first:].sum()))
    if most <= 0.08 * reach or target.network.kinked:
        return reach + most
    # what the kinds leave and what the units miss may cancel
    carried = target.features.transpose(0, 2, 1)
    left = projection_bound(target, target.features) + float(each[orders:].sum())
    return min(reach + most, _largest(target, carried, have[:orders], 6, coarse) + left)


def _each(target: KernelOrders, want: Array, have: Array, coarse: float) -> Array:
    """Bound |e_k| (2 |c_k| + |e_k|) order by order; by Lebesgue's constant where that adds up to ``coarse`` only."""
    error, wished = have.copy(), np.zeros_like(have)
    error[: len(want)] -= want
    wished[: len(want)] = want
    lebesgue = 1.0 + 2.0 / np.pi * np.log(target.degree + 2.0)
    least = float(target.floor(4 * len(target.nodes)).min())
    if least > 0.0:
        e, c = (lebesgue**2 * (part**2).sum(1).max(1) / least for part in (error, wished))
        place = np.argsort(e + 2.0 * np.sqrt(e * c))
        exact = place[np.cumsum((e + 2.0 * np.sqrt(e * c))[place]) > coarse]
    else:
        e, c, exact = np.empty(len(have)), np.empty(len(have)), np.arange(len(have))
    e[exact], c[exact] = _suprema(target, error[exact]), _suprema(target, wished[exact])
    return np.asarray(e + 2.0 * np.sqrt(e * c))


def _largest(target: KernelOrders, want: Array, have: Array, fine: int, coarse: float) -> float:
    """Bound, over both norms and the cosine, |sum_k (have_k have_k' - want_k want_k') rho^k|, relative.

    Chebyshev coefficients of high degree in the norms and in the cosine are summed up instead, as long as they are
    below ``coarse``.
    """
    matrix, coarse = to_coefficients(len(target.nodes)), coarse * float(target.diagonal.min())
    have, want = have @ matrix.T, want @ matrix.T
    gap = have.transpose(0, 2, 1) @ have - want.transpose(0, 2, 1) @ want
    sizes = np.cumsum(np.cumsum(np.abs(gap).sum(0), 0), 1).diagonal()
    count = int((sizes[-1] - sizes > coarse).sum()) + 1
    across = fine * max(count, len(target.nodes) // 2)  # the diagonal varies, too
    low = target.floor(across)
    if low.min() <= 0.0:
        return float("inf")
    flat = _powers(len(gap)) @ gap[:, :count, :count].reshape(len(gap), -1)
    left = np.append(np.cumsum(np.abs(flat).sum(1)[::-1])[::-1], 0.0)
    degree = max(int((left > coarse).sum()), 1)
    flat, cells = flat[:degree], fine * degree
    half = not (flat[0::2].any() and flat[1::2].any())
    angles = np.pi * np.arange((cells + 1) // 2 + 1 if half else cells + 1) / cells
    rows = np.cos(np.outer(np.pi * np.arange(across + 1) / across, np.arange(count)))
    bent = rows * np.arange(count) ** 2 * (np.pi / across) ** 2 / 8.0
    tops = np.zeros((3, across + 1, across + 1))  # of the function, and of its bends in a norm and in the cosine
    for part in np.array_split(angles, 1 + len(angles) * len(rows) ** 2 // (1 << 20)):
        cosines = np.cos(np.outer(part, np.arange(degree)))
        turns = cosines * np.arange(degree) ** 2 * (np.pi / cells) ** 2 / 8.0
        values, turned = ((matrix @ flat).reshape(-1, count, count) for matrix in (cosines, turns))
        largest = (np.abs(a @ inner @ rows.T).max(0) for a, inner in ((rows, values), (bent, values), (rows, turned)))
        tops = np.maximum(tops, list(largest))
    excess = grid_excess(2.0 * grid_slack(count - 1, across) + grid_slack(degree - 1, cells))
    tops = np.maximum(tops[:, 1:], tops[:, :-1])
    value, one, turn = np.maximum(tops[:, :, 1:], tops[:, :, :-1])
    most = float(((value + one + one.T + turn) / np.sqrt(np.outer(low, low))).max())
    beside = excess * (2.0 * float(one.max()) + float(turn.max())) + float(sizes[-1] - sizes[count - 1] + left[degree])
    return most + beside / float(low.min())


@cached(8)
def _powers(count: int) -> Array:
    """Return Chebyshev coefficients of rho^k, k < count, in the columns."""
    orders = np.arange(count)
    powers = to_coefficients(count) @ chebyshev_nodes(count)[:, None] ** orders
    return np.where((orders[:, None] + orders) % 2 == 0, powers, 0.0)


def _whole(target: KernelOrders, fitted: UnitFit, trained: bool) -> Array:
    """Return the kernel of the units at parallel inputs with the norms of the nodes, all orders together: (N, N).

    By quadrature of the units (:func:`elementary.step` bounds its error), not from a table of orders.
    """
    at_nodes = (fitted.values * np.sqrt(np.diag(target.total))).reshape(len(fitted.values), -1)
    roots = [parseval_root(fitted.basis, slopes).numpy() for slopes in (False, True)[: 1 + trained]]
    flat = (np.concatenate(roots) @ at_nodes).reshape(-1, len(target.nodes))
    return np.asarray(flat.T @ flat)


def _suprema(target: KernelOrders, parts: Array) -> Array:
    """Return sup_s |parts_k(s)|^2 / k(s, s, 1) for every order, from values at the nodes (orders, kinds, nodes)."""
    out = np.zeros(len(parts))
    for chunk in np.array_split(np.arange(len(parts)), max(1, len(parts) // 128)):
        square = ((parts[chunk] @ target.grid[1].T) ** 2).sum(1)
        out[chunk] = _quotient(square, target)
    return out


def _quotient(top: Array, target: KernelOrders) -> Array:
    """Bound polynomials, given on the grid (rows, grid), relative to the diagonal; infinite where that may vanish."""
    excess = grid_excess(grid_slack(2 * target.degree, len(target.diagonal) - 1))
    most = np.maximum(top[:, 1:], top[:, :-1]) + excess * top.max(1, keepdims=True)
    if not target.least.min() > 0.0:
        return np.full(len(top), np.inf)
    return np.asarray((most / target.least).max(1))
