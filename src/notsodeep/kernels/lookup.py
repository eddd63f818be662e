"""A kernel as a function of two norms and an angle, tabulated once and then evaluated at matrix speed.

Every infinite-width kernel is k(||x||, ||y||, r), r the cosine between x and y. Where k is analytic (everywhere for
smooth activations; away from r = +-1 for kinked ones) a tensor of Chebyshev coefficients reproduces it to rounding:
the norm part is a product of small matrices, the angle part a short recurrence. The cost per entry does not depend on
the depth of the network or on how its activation is integrated. Homogeneous networks, and data of equal norms,
need no norm part at all: one function of r decides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._chebyshev import nodes, to_coefficients
from ..networks import ENN, Kernel, Network
from .pointwise import diagonal, pairwise

__all__ = ["Table", "build_table", "tabulated_diagonal"]

_TOLERANCE = 5e-14
_NOISY_TOLERANCE = 2e-13  # kinked, near r = +-1: rounding of the cosine is magnified by the angle
_PROBES = (16, 32, 64)  # sizes at which the decay of the coefficients is read off
_PROBED = 0.125  # of the pairs a table is meant for may be spent on asking how large it would be, twice
_CHECKED = 6  # norms at which a finished table is held against the kernel itself
_CHECK = 1e-10  # of the kernels of the two points with themselves
_LARGEST = 48  # norms: more would make the table dearer than what it saves
_PLAIN_UP_TO = 0.7  # below this |r| the cosine itself is a good variable; beyond it the angle is
Sampler = Callable[..., dict[Kernel, Tensor]]
_KINK_CAP = 0.95  # kinked activations: k is analytic in the angle, but not uniformly so near r = +-1


def angle_cap(network: Network) -> float:
    """The largest |r| up to which a table is used."""
    smooth = not any(phi.kinks for phi in network.activations)
    if not smooth and not all(phi.elementwise for phi in network.activations):
        return _KINK_CAP  # logarithms in the angle
    return 1.0 if smooth or network.homogeneous or _single_kinked_layer(network) else _KINK_CAP


def _single_kinked_layer(network: Network) -> bool:
    """One layer with its kinks at zero is analytic in the angle up to r = +-1, for any norms."""
    return isinstance(network, ENN) and network.depth == 1 and set(network.activations[0].kinks) <= {0.0}


@dataclass(frozen=True)
class Series:
    """One kernel as sum_m T_m(x) sum_k f_mk(||x||) g_mk(||y||): Chebyshev in the angle, low rank in the norms."""

    factors: Tensor
    """(norm degree, total rank): columns of all m one after the other."""
    signs: Tensor
    """(total rank,): the sign of each column's product."""
    ranks: tuple[int, ...]
    """How many columns belong to each m."""

    def scalars(self) -> list[float]:
        """The coefficients when there is no norm part."""
        values = (self.factors[0] ** 2 * self.signs).tolist()
        ends = np.cumsum((0, *self.ranks))
        return [sum(values[a:b]) for a, b in itertools.pairwise(ends)]


@dataclass(frozen=True)
class Table:
    """What is needed to evaluate the kernels of one network on norms in [low, high] and |r| <= reach."""

    series: dict[Kernel, Series]
    low: float
    high: float
    reach: float
    warped: bool
    """Whether the angle variable is arcsin(r) rather than r."""
    homogeneous: bool

    @property
    def one_function(self) -> bool:
        """Whether the kernels depend on the angle alone (times both norms, if homogeneous)."""
        return self.low == self.high

    def side(self, kind: Kernel, norms: Tensor, signed: bool) -> Tensor:
        """The norm factors at these points: (n, total rank); the product of one signed and one unsigned side counts."""
        series = self.series[kind]
        size = len(series.factors)
        x = (2.0 * norms - (self.high + self.low)) / (self.high - self.low)
        factors = series.factors * series.signs if signed else series.factors
        return _chebyshev(size, x) @ factors.to(norms.device)

    def position(self, r: Tensor) -> Tensor:
        """Twice the angle variable on [-1, 1], as the recurrence wants it; overwrites ``r``."""
        if self.warped:
            return r.asin_().mul_(2.0 / math.asin(self.reach))
        return r.mul_(2.0 / self.reach)


def clenshaw(ranks: Sequence[int], left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
    """sum_m T_m(x) left_m right_m' on a tile, x2 = 2x; left (a, rank) and right (rank, b) hold the columns of all m."""
    ends = np.cumsum((0, *ranks))
    parts = [(left[:, a:b], right[a:b]) for a, b in itertools.pairwise(ends)]
    b2 = torch.zeros_like(x2)
    b1 = torch.mm(*parts[-1])
    for m in range(len(parts) - 2, -1, -1):
        # b_m = c_m + 2 x b_(m+1) - b_(m+2), and the sum is c_0 + x b_1 - b_2
        b2.addmm_(*parts[m], beta=-1.0).addcmul_(x2, b1, value=1.0 if m else 0.5)
        b1, b2 = b2, b1
    return b1


def clenshaw_scalar(c: Sequence[float], x2: Tensor) -> Tensor:
    """sum_m c_m T_m(x), x2 = 2x."""
    b2, b1 = torch.zeros_like(x2), torch.full_like(x2, c[-1])
    constants = torch.tensor(c, dtype=x2.dtype, device=x2.device)
    for m in range(len(c) - 2, -1, -1):
        torch.sub(constants[m], b2, out=b2).addcmul_(x2, b1, value=1.0 if m else 0.5)
        b1, b2 = b2, b1
    return b1


def _unrolled(ranks: tuple[int, ...], left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
    b1 = b2 = torch.zeros_like(x2)
    end = sum(ranks)
    for m in range(len(ranks) - 1, -1, -1):
        start = end - ranks[m]
        c = (x2 if m else 0.5 * x2) * b1 - b2
        for k in range(start, end):
            c = c + left[:, k, None] * right[k]
        b1, b2, end = c, b1, start
    return b1


def _unrolled_scalar(c: Tensor, x2: Tensor) -> Tensor:
    b1 = b2 = torch.zeros_like(x2)
    for m in range(len(c) - 1, -1, -1):
        b1, b2 = c[m] + (x2 if m else 0.5 * x2) * b1 - b2, b1
    return b1


@functools.cache
def fused() -> Callable[..., Tensor]:
    """:func:`clenshaw` as one compiled loop: no intermediate tile is written."""
    return torch.compile(_unrolled, dynamic=True)


@functools.cache
def fused_scalar() -> Callable[..., Tensor]:
    """:func:`clenshaw_scalar` as one compiled loop."""
    return torch.compile(_unrolled_scalar, dynamic=True)


# ---- building --------------------------------------------------------------------------------------------


def build_table(
    network: Network,
    kinds: Sequence[Kernel],
    rates: Sequence[float] | None,
    low: float,
    high: float,
    reach: float,
    pairs: float = math.inf,
) -> Table | None:
    """The table for norms in [low, high] and |r| <= reach.

    ``None`` where it would not reach full accuracy, or would cost more than the ``pairs`` it is meant for.
    """
    homogeneous = network.homogeneous
    if homogeneous:
        low = high = 1.0
    elif high - low <= 1e-14 * high:
        low = high = 0.5 * (low + high)
    reach = min(max(reach, 0.05) * (1.0 + 1e-12), 1.0)
    warped = reach > _PLAIN_UP_TO

    def sample(tx: Tensor, ty: Tensor, x: Tensor) -> dict[Kernel, Tensor]:
        r = torch.sin(x * math.asin(reach)) if warped else x * reach
        return pairwise(network, tx**2, ty**2, tx * ty * r, kinds, rates, check=False)

    def own(t: Tensor) -> dict[Kernel, Tensor]:
        return diagonal(network, t**2, kinds, rates, check=False)

    tolerance = _NOISY_TOLERANCE if warped and any(phi.kinks for phi in network.activations) else _TOLERANCE
    angles = _angle_size(sample, low, high, tolerance, _PROBED * pairs)
    if angles is None:
        return None
    norms = 1 if low == high else _norm_size(sample, low, high, tolerance, _PROBED * pairs)
    if norms is None or angles * norms * (norms + 1) // 2 > pairs:
        return None
    t = _nodes(norms, low, high)
    ia, ib = torch.triu_indices(norms, norms)
    x = _nodes(angles, -1.0, 1.0)
    values = sample(t[ia][:, None], t[ib][:, None], x[None, :])
    series = {kind: _compress(_transform(v, ia, ib, norms)) for kind, v in values.items()}
    table = Table(series, low, high, reach, warped, homogeneous)
    return table if table.one_function or _holds(table, sample, own) else None


def _holds(table: Table, sample: Sampler, own: Callable[[Tensor], dict[Kernel, Tensor]]) -> bool:
    """Whether the table keeps its digits between short and long rows too, beside the scale of their own kernels.

    Nodes are even in the norm and coefficients are cut off beside the largest one. A kernel that grows fast with the
    norm, or that varies on norms far below the largest, is only found out at norms of every order of magnitude.
    """
    t = torch.logspace(math.log10(table.low), math.log10(table.high), _CHECKED, dtype=torch.float64)
    t = t.clamp(table.low, table.high)
    x = torch.linspace(-0.93, 0.97, _CHECKED**2, dtype=torch.float64).reshape(_CHECKED, _CHECKED)
    scales = {kind: values.sqrt() for kind, values in own(t).items()}
    for kind, exact in sample(t[:, None], t[None, :], x).items():
        found = clenshaw(
            table.series[kind].ranks, table.side(kind, t, signed=True), table.side(kind, t, signed=False).T, 2.0 * x
        )
        if not bool(((found - exact).abs() <= _CHECK * scales[kind][:, None] * scales[kind]).all()):
            return False
    return True


def _compress(coefficients: Tensor) -> Series:
    """Symmetric matrices C_m as sums of few signed squares; what is dropped is below rounding."""
    floor = 1e-16 * float(coefficients.abs().max())
    columns, signs, ranks = [], [], []
    for matrix in coefficients:
        weights, vectors = torch.linalg.eigh(matrix)
        keep = weights.abs() > floor
        keep[int(weights.abs().argmax())] = True
        columns.append(vectors[:, keep] * weights[keep].abs().sqrt())
        signs.append(torch.sign(weights[keep]))
        ranks.append(int(keep.sum()))
    return Series(torch.cat(columns, dim=1), torch.cat(signs), tuple(ranks))


def _transform(values: Tensor, ia: Tensor, ib: Tensor, norms: int) -> Tensor:
    """Nodal values of the upper triangle (pairs, angles) to coefficients (angles, norms, norms)."""
    angles = values.shape[1]
    full = torch.empty(angles, norms, norms, dtype=torch.float64)
    full[:, ia, ib] = values.T
    full[:, ib, ia] = values.T
    along = _to_coefficients(norms)
    return torch.tensordot(_to_coefficients(angles), along @ full @ along.T, dims=1).contiguous()


def _nodes(size: int, low: float, high: float) -> Tensor:
    return torch.from_numpy(nodes(size, low, high))


def _to_coefficients(size: int) -> Tensor:
    return torch.tensor(to_coefficients(size))


def _degree_needed(rows: Callable[[int], Tensor], tolerance: float, largest: float = math.inf) -> int | None:
    """How many Chebyshev coefficients carry each row to the tolerance, read off one generous expansion."""
    for size in (size for size in _PROBES if size <= largest):
        c = (rows(size) @ _to_coefficients(size).T).abs()
        if not bool(torch.isfinite(c).all()):
            return None
        relevant = (c > tolerance * c.amax(-1, keepdim=True)).any(dim=0).nonzero()
        needed = int(relevant.max()) + 1 if len(relevant) else 1  # a kernel may vanish to the last digit
        if needed <= size - 2:
            return needed + 1
    return None


def _angle_size(sample: Sampler, low: float, high: float, tolerance: float, budget: float) -> int | None:
    tx = torch.tensor([low, low, high], dtype=torch.float64)[:, None]
    ty = torch.tensor([low, high, high], dtype=torch.float64)[:, None]
    if low == 0.0:  # a zero vector has no angle
        tx, ty = tx[2:], ty[2:]

    def rows(size: int) -> Tensor:
        return torch.cat(list(sample(tx, ty, _nodes(size, -1.0, 1.0)[None]).values()))

    return _degree_needed(rows, tolerance, budget / len(tx))


def _norm_size(sample: Sampler, low: float, high: float, tolerance: float, budget: float) -> int | None:
    other = torch.tensor([low, high, high, high], dtype=torch.float64)[:, None]
    x = torch.tensor([1.0, 1.0, -1.0, 0.3], dtype=torch.float64)[:, None]
    if low == 0.0:
        other, x = other[1:], x[1:]

    def rows(size: int) -> Tensor:
        return torch.cat(list(sample(_nodes(size, low, high)[None], other, x).values()))

    size = _degree_needed(rows, tolerance, budget / len(other))
    return None if size is None or size > _LARGEST else size


def tabulated_diagonal(
    network: Network, s: Tensor, kinds: Sequence[Kernel], rates: Sequence[float] | None
) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves; interpolated in the norm when there are many points."""
    if network.homogeneous:
        one = diagonal(network, torch.ones(1, dtype=torch.float64), kinds, rates, check=False)
        return {kind: s * value for kind, value in one.items()}
    t = s.sqrt()
    low, high = float(t.min()), float(t.max())
    if len(s) > 2 * _PROBES[-1] and high > low:

        def rows(size: int) -> Tensor:
            return torch.stack(
                list(diagonal(network, _nodes(size, low, high) ** 2, kinds, rates, check=False).values())
            )

        size = _degree_needed(rows, _TOLERANCE)
        if size is not None:
            weights = rows(size) @ _to_coefficients(size).T
            basis = _chebyshev(size, (2.0 * t - (high + low)) / (high - low))
            found = dict(zip(kinds, (basis @ w for w in weights), strict=True))
            shortest = t.topk(_CHECKED, largest=False).indices  # where digits relative to the largest are lost first
            exact = diagonal(network, s[shortest], kinds, rates, check=False)
            if all(bool((found[k][shortest] - e).abs().le(_CHECK * e).all()) for k, e in exact.items()):
                return found
    return diagonal(network, s, kinds, rates, check=False)


def _chebyshev(size: int, x: Tensor) -> Tensor:
    columns = [torch.ones_like(x), x]
    while len(columns) < size:
        columns.append(2.0 * x * columns[-1] - columns[-2])
    return torch.stack(columns[:size], dim=1)
