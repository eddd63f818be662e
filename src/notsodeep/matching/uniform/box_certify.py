"""The certificate on a box: branch and bound over cells of (norm, norm, angle) with derivative bounds inside them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...activations import Activation
from ...networks import DEQ
from .arc import Array
from .box import Indices, Pairs, deq_at, deq_variances, enn_at, rule
from .box_bound import CoarseGridError, Jet, Level, Line, Sizes, after_layer, equilibrium, inputs, slopes

ROUNDING = 1e-11
_BASES = (32, 64, 128)  # cells of norm on which the derivatives are bounded: the first that is fine enough
_LEVELS = 6
_BUDGET = 800_000  # cells of one level
_PLAIN = rule(8)


@dataclass(frozen=True)
class Candidate:
    """What is compared: a DEQ, an explicit network with a weight per term, a kernel, a range of norms."""

    deq: DEQ
    activations: Sequence[Activation]
    weights: Array
    kind: str
    norms: tuple[float, float]


@dataclass(frozen=True)
class BoxSupremum:
    """``bound`` holds on the whole box; ``sampled`` was attained at the pair of norms and the cosine given."""

    bound: float
    sampled: float
    norm_x: float
    norm_y: float
    rho: float


@dataclass(frozen=True)
class Limits:
    """On each pair of base cells: sup of the second derivatives of the relative error along both norms together and
    the angle."""

    norms: Array
    angle: Array
    least: float
    """a safe lower bound of k_deq(x, x)"""

    def upper(self, corner: Array, i: Indices, j: Indices, step: float, turn: float, missing: float) -> Array:
        """Bound inside cells of the given size, from the largest relative error at their corners."""
        inside = 0.125 * step**2 * self.norms[i, j] + 0.125 * turn**2 * self.angle[i, j]
        return corner + inside + missing / self.least + ROUNDING


def certify_box(given: Candidate, terms: int, *, goal: float = 0.0, relative: float = 0.15) -> BoxSupremum:
    """sup on the box of |k_deq - sum_j weights_j term_j| / sqrt(k_deq(x, x) k_deq(y, y)).

    Cells are halved in all directions until none can exceed ``goal``, or the largest error seen by more than
    ``relative``.
    """
    limits = _limits(given)
    low, high = given.norms
    base = len(limits.norms)
    step = (high - low) / base
    balance = math.sqrt(float((limits.angle / limits.norms).max()))
    angles = min(256, max(16, math.ceil(math.pi / step * balance)))
    i, j = np.triu_indices(base)
    cells = np.stack([a.ravel() for a in np.broadcast_arrays(i[:, None], j[:, None], np.arange(angles)[None, :])])
    best, bound = BoxSupremum(0.0, 0.0, low, low, 1.0), 0.0
    for level in range(_LEVELS):
        corner, missing, seen = _corner_errors(given, cells, base << level, angles << level, terms)
        best = seen if seen.sampled > best.sampled else best
        turn = math.pi / (angles << level)
        upper = limits.upper(corner, cells[0] >> level, cells[1] >> level, step / (1 << level), turn, missing)
        goal = max(goal, best.sampled * (1.0 + relative) + 1e-10, _affordable(upper))
        open_cells = (upper > goal) & (level < _LEVELS - 1)
        bound = max(bound, float(upper[~open_cells].max(initial=0.0)))
        if not open_cells.any():
            break
        cells = _halve(cells[:, open_cells])
    return BoxSupremum(bound, best.sampled, best.norm_x, best.norm_y, best.rho)


def _affordable(upper: Array) -> float:
    """The lowest goal for which halving the cells above it stays within the budget."""
    most = _BUDGET // 8
    return 0.0 if len(upper) <= most else float(np.partition(upper, len(upper) - most)[len(upper) - most])


def _halve(cells: Indices) -> Indices:
    """Eight children of every cell; by symmetry only those with |x| <= |y|."""
    corners = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")).reshape(3, 8)
    children = (2 * cells[:, :, None] + corners[:, None, :]).reshape(3, -1)
    return children[:, children[0] <= children[1]]


def _corner_errors(
    given: Candidate, cells: Indices, count: int, turns: int, terms: int
) -> tuple[Array, float, BoxSupremum]:
    """The largest relative error at the corners of each cell; every corner is evaluated once."""
    corners = np.stack(np.meshgrid([0, 1], [0, 1], [0, 1], indexing="ij")).reshape(3, 8)
    x, y, t = cells[:, :, None] + corners[:, None, :]
    x, y = np.minimum(x, y), np.maximum(x, y)
    code = (x * (count + 1) + y) * (turns + 1) + t
    unique, where = np.unique(code, return_inverse=True)
    pair, t = np.divmod(unique, turns + 1)
    norms = np.linspace(*given.norms, count + 1)
    pairs = Pairs(norms, pair // (count + 1), pair % (count + 1), np.cos(math.pi * t / turns))
    error, missing = relative_error(given, pairs, terms)
    worst = int(np.argmax(error))
    spot = (float(norms[pairs.first[worst]]), float(norms[pairs.second[worst]]), float(pairs.cosine[worst]))
    return error[where.reshape(code.shape)].max(axis=1), missing, BoxSupremum(0.0, float(error[worst]), *spot)


def relative_error(given: Candidate, pairs: Pairs, terms: int) -> tuple[Array, float]:
    """|k_deq - k_twin| / sqrt(k_deq k_deq) at pairs, and the absolute truncation error behind it."""
    kinds = (given.kind,)
    of_deq, of_twin = deq_at(given.deq, pairs, terms, kinds), enn_at(given.activations, pairs, terms, kinds)
    gap = np.abs(of_deq.kernels[given.kind] - given.weights @ of_twin.kernels[given.kind])
    missing = of_deq.missing + float(np.sum(given.weights)) * of_twin.missing
    return gap / np.sqrt(pairs.product(of_deq.diagonals[given.kind])), missing


# ---- derivative bounds -----------------------------------------------------------------------------------


def _limits(given: Candidate) -> Limits:
    for base in _BASES[:-1]:
        try:
            return _limits_on(given, base)
        except CoarseGridError:
            continue
    return _limits_on(given, _BASES[-1])


def _limits_on(given: Candidate, base: int) -> Limits:
    norms = np.linspace(*given.norms, base + 1)
    seconds = [_relative_jet(given, norms, along_norm).second for along_norm in (True, False)]
    one = np.zeros(1, dtype=np.intp)
    ends = deq_at(given.deq, Pairs(norms, one, one, np.ones(1)), 8, (given.kind,)).diagonals[given.kind]
    # half the smallest diagonal at the nodes: what lies between them is not far from it, and only rounding hangs on it
    return Limits(seconds[0] + seconds[0].T, seconds[1], 0.5 * float(ends.min()))


def _relative_jet(given: Candidate, norms: Array, along_norm: bool) -> Jet:
    """The jet of k_deq / sqrt(k_deq k_deq) plus that of k_twin / sqrt(k_deq k_deq)."""
    with_slopes = given.kind != "ck"
    p = deq_variances(given.deq, norms**2, _PLAIN)
    level, sizes = equilibrium(given.deq, norms, np.sqrt(p), along_norm, with_slopes)
    after = after_layer(level, sizes, norms, along_norm)
    if not with_slopes:
        return after.rho + _twin_jet(given, norms, along_norm, after)
    a = float(given.deq.sigma_a2)
    dot = slopes(level, sizes, along_norm)
    steep = sizes.slope_norm(level.scale).power(2.0)
    inverse, outer = dot.under_one(a), steep.one_minus(a).power(-1.0)

    def root(inner: Line, last: Line) -> Line:
        """sqrt(k_deq(x, x)), or this over |x|."""
        if given.kind == "ntk_frozen":
            return (last.power(2.0) * outer).power(0.5)
        return (last.power(2.0) + inner.power(2.0) * steep * outer).power(0.5)

    unit = Level(root(level.scale, after.scale), root(level.sigma, after.sigma), after.rho)
    if given.kind == "ntk_frozen":
        own = after.rho * inverse * _ratio(after, unit).pair(along_norm)
    else:
        inner = level.rho * dot * inverse * _ratio(level, unit).pair(along_norm)
        own = after.rho * _ratio(after, unit).pair(along_norm) + inner
    return own + _twin_jet(given, norms, along_norm, unit)


def _ratio(level: Level, unit: Level) -> Line:
    """The quotient of two scales, by the better of its two descriptions."""
    return (level.scale * unit.scale.power(-1.0)).and_(level.sigma * unit.sigma.power(-1.0))


def _twin_jet(given: Candidate, norms: Array, along_norm: bool, unit: Level) -> Jet:
    """The twin's terms, each with its scales divided by those of ``unit``, sqrt(k_deq(x, x))."""
    with_slopes = given.kind != "ck"
    levels, dots = [inputs(norms, along_norm)], []
    for phi in given.activations:
        sizes = Sizes(phi, levels[-1].scale, with_slopes)
        if with_slopes:
            dots.append(slopes(levels[-1], sizes, along_norm))
        levels.append(after_layer(levels[-1], sizes, norms, along_norm))
    total = (levels[-1].rho * _ratio(levels[-1], unit).pair(along_norm)).times(float(given.weights[-1]))
    lowest = {"ck": len(given.activations), "ntk": 0, "ntk_frozen": 1}[given.kind]
    product: Jet | None = None
    for index in range(len(given.activations) - 1, lowest - 1, -1):
        product = dots[index] if product is None else product * dots[index]
        term = levels[index].rho * product * _ratio(levels[index], unit).pair(along_norm)
        total = total + term.times(float(given.weights[index - lowest]))
    return total
