"""A kernel as a function of two norms and an angle, tabulated once and then evaluated at matrix speed.

Every infinite-width kernel is k(||x||, ||y||, r), r the cosine between x and y. Where k is analytic (everywhere for
smooth activations; away from r = +-1 for kinked ones) a tensor of Chebyshev coefficients reproduces it to rounding:
the norm part is a product of small matrices, the angle part a short recurrence. The cost per entry does not depend on
the depth of the network or on how its activation is integrated. Homogeneous networks, and data of equal norms,
need no norm part at all: one function of r decides.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..activations import Activation
from ..networks import DEQ, ENN, Network
from .equations import diagonal, pairwise

__all__ = ["Table", "build_table", "is_homogeneous", "tabulated_diagonal"]

_TOLERANCE = 5e-14
_NOISY_TOLERANCE = 2e-13  # kinked, near r = +-1: rounding of the cosine is magnified by the angle
_PROBES = (16, 32, 64)  # sizes at which the decay of the coefficients is read off
_LARGEST = 48  # norms: more would make the table dearer than what it saves
_PLAIN_UP_TO = 0.7  # below this |r| the cosine itself is a good variable; beyond it the angle is
Sampler = Callable[..., dict[str, Tensor]]
_KINK_CAP = 0.95  # kinked activations: k is analytic in the angle, but not uniformly so near r = +-1


def _activations(network: Network) -> Sequence[Activation]:
    return (network.activation,) if isinstance(network, DEQ) else network.activations


def is_homogeneous(network: Network) -> bool:
    """Whether k(cx, y) = c k(x, y) for all c > 0."""
    return all(phi.homogeneity == 1.0 for phi in _activations(network))


def angle_cap(network: Network) -> float:
    """The largest |r| up to which a table is used."""
    smooth = not any(phi.kinks for phi in _activations(network))
    return 1.0 if smooth or is_homogeneous(network) or _single_kinked_layer(network) else _KINK_CAP


def _single_kinked_layer(network: Network) -> bool:
    """One layer with its kinks at zero is analytic in the angle up to r = +-1, for any norms."""
    return isinstance(network, ENN) and network.depth == 1 and set(network.activations[0].kinks) <= {0.0}


@dataclass(frozen=True)
class Table:
    """Chebyshev coefficients (angle, norm, norm) per kernel."""

    coefficients: dict[str, Tensor]
    low: float
    high: float
    reach: float
    """Largest |r| covered."""
    warped: bool
    """Whether the angle variable is arcsin(r) rather than r."""
    homogeneous: bool

    def to(self, device: Any, dtype: torch.dtype) -> Table:
        moved = {kind: c.to(device, dtype) for kind, c in self.coefficients.items()}
        return Table(moved, self.low, self.high, self.reach, self.warped, self.homogeneous)

    def norm_basis(self, norms: Tensor) -> Tensor:
        """Chebyshev polynomials of the norms: (n, size)."""
        size = next(iter(self.coefficients.values())).shape[1]
        if size == 1:
            return torch.ones(len(norms), 1, dtype=norms.dtype, device=norms.device)
        return _chebyshev(size, (2.0 * norms - (self.high + self.low)) / (self.high - self.low))

    def position(self, r: Tensor) -> Tensor:
        """Twice the angle variable on [-1, 1], as the recurrence wants it; overwrites ``r``."""
        if self.warped:
            return r.asin_().mul_(2.0 / math.asin(self.reach))
        return r.mul_(2.0 / self.reach)


def clenshaw(coefficients: Tensor, left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
    """sum_m T_m(x) left C_m right' for a tile, x2 = 2x: left (a, s), right (b, s), coefficients (m, s, s)."""
    if left.shape[1] == 1:
        return _clenshaw_scalar([float(c) for c in coefficients.flatten().tolist()], x2)
    mixed = torch.matmul(left, coefficients)  # (m, a, s)
    turned = right.T.contiguous()
    b2 = mixed[-1] @ turned
    if len(mixed) == 1:
        return b2
    b1 = (mixed[-2] @ turned).addcmul_(x2, b2)
    for m in range(len(mixed) - 3, 0, -1):
        b2.addmm_(mixed[m], turned, beta=-1.0).addcmul_(x2, b1)
        b1, b2 = b2, b1
    if len(mixed) == 2:
        # sum = c_0 + x c_1 with b1 = c_0 + 2 x c_1 built above
        return b1.addcmul_(x2, b2, value=-0.5)
    return b2.addmm_(mixed[0], turned, beta=-1.0).addcmul_(x2, b1, value=0.5)


def _clenshaw_scalar(c: Sequence[float], x2: Tensor) -> Tensor:
    if len(c) == 1:
        return torch.full_like(x2, c[0])
    b2 = torch.full_like(x2, c[-1])
    if len(c) == 2:
        return b2.mul_(x2).mul_(0.5).add_(c[0])
    b1 = torch.mul(x2, c[-1]).add_(c[-2])
    for m in range(len(c) - 3, 0, -1):
        b2.neg_().addcmul_(x2, b1).add_(c[m])
        b1, b2 = b2, b1
    return b2.neg_().addcmul_(x2, b1, value=0.5).add_(c[0])


@functools.cache
def fused() -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """The same sum as one compiled loop over the tile: no intermediate tile is written."""
    return torch.compile(_clenshaw_unrolled, dynamic=True)


def _clenshaw_unrolled(coefficients: Tensor, left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
    mixed = torch.matmul(left, coefficients)
    turned = right.T.contiguous()
    size, count = left.shape[1], len(coefficients)
    b1 = b2 = torch.zeros_like(x2)
    for m in range(count - 1, -1, -1):
        c = mixed[m, :, 0, None] * turned[0]
        for s in range(1, size):
            c = c + mixed[m, :, s, None] * turned[s]
        b1, b2 = c + (x2 if m else 0.5 * x2) * b1 - b2, b1
    return b1


# ---- building --------------------------------------------------------------------------------------------


def build_table(
    network: Network,
    kinds: Sequence[str],
    rates: Sequence[float] | None,
    low: float,
    high: float,
    reach: float,
    pairs: float = math.inf,
) -> Table | None:
    """The table for norms in [low, high] and |r| <= reach.

    ``None`` where it would not reach full accuracy, or would cost more than the ``pairs`` it is meant for.
    """
    homogeneous = is_homogeneous(network)
    if homogeneous:
        low = high = 1.0
    elif high - low <= 1e-14 * high:
        low = high = 0.5 * (low + high)
    reach = min(max(reach, 0.05) * (1.0 + 1e-12), 1.0)
    warped = reach > _PLAIN_UP_TO

    def sample(tx: Tensor, ty: Tensor, x: Tensor) -> dict[str, Tensor]:
        r = torch.sin(x * math.asin(reach)) if warped else x * reach
        return pairwise(network, tx**2, ty**2, tx * ty * r, kinds, rates, check=False)

    tolerance = _NOISY_TOLERANCE if warped and any(phi.kinks for phi in _activations(network)) else _TOLERANCE
    angles = _angle_size(sample, low, high, tolerance)
    norms = 1 if low == high else _norm_size(sample, low, high, tolerance)
    if angles is None or norms is None or angles * norms * (norms + 1) // 2 > pairs:
        return None
    t = _nodes(norms, low, high)
    ia, ib = torch.triu_indices(norms, norms)
    x = _nodes(angles, -1.0, 1.0)
    values = sample(t[ia][:, None], t[ib][:, None], x[None, :])
    coefficients = {kind: _transform(v, ia, ib, norms) for kind, v in values.items()}
    return Table(coefficients, low, high, reach, warped, homogeneous)


def _transform(values: Tensor, ia: Tensor, ib: Tensor, norms: int) -> Tensor:
    """Nodal values of the upper triangle (pairs, angles) to coefficients (angles, norms, norms)."""
    angles = values.shape[1]
    full = torch.empty(angles, norms, norms, dtype=torch.float64)
    full[:, ia, ib] = values.T
    full[:, ib, ia] = values.T
    along = _to_coefficients(norms)
    return torch.tensordot(_to_coefficients(angles), along @ full @ along.T, dims=1).contiguous()


def _nodes(size: int, low: float, high: float) -> Tensor:
    """Chebyshev points of the first kind."""
    x = torch.cos(math.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size)
    return 0.5 * (high + low) + 0.5 * (high - low) * x


def _to_coefficients(size: int) -> Tensor:
    """The matrix from values at Chebyshev points to Chebyshev coefficients."""
    k = np.arange(size)
    matrix = 2.0 / size * np.cos(np.pi * np.outer(k, k + 0.5) / size)
    matrix[0] *= 0.5
    return torch.from_numpy(matrix)


def _degree_needed(rows: Callable[[int], Tensor], tolerance: float) -> int | None:
    """How many Chebyshev coefficients carry each row to the tolerance, read off one generous expansion."""
    for size in _PROBES:
        c = (rows(size) @ _to_coefficients(size).T).abs()
        relevant = (c > tolerance * c.amax(-1, keepdim=True)).any(dim=0).nonzero()
        needed = int(relevant.max()) + 1
        if needed <= size - 2:
            return needed + 1
    return None


def _angle_size(sample: Sampler, low: float, high: float, tolerance: float) -> int | None:
    tx = torch.tensor([low, low, high], dtype=torch.float64)[:, None]
    ty = torch.tensor([low, high, high], dtype=torch.float64)[:, None]
    if low == 0.0:  # a zero vector has no angle
        tx, ty = tx[2:], ty[2:]
    return _degree_needed(lambda n: torch.cat(list(sample(tx, ty, _nodes(n, -1.0, 1.0)[None]).values())), tolerance)


def _norm_size(sample: Sampler, low: float, high: float, tolerance: float) -> int | None:
    other = torch.tensor([low, high, high, high], dtype=torch.float64)[:, None]
    x = torch.tensor([1.0, 1.0, -1.0, 0.3], dtype=torch.float64)[:, None]
    if low == 0.0:
        other, x = other[1:], x[1:]
    size = _degree_needed(lambda n: torch.cat(list(sample(_nodes(n, low, high)[None], other, x).values())), tolerance)
    return None if size is None or size > _LARGEST else size


def tabulated_diagonal(
    network: Network, s: Tensor, kinds: Sequence[str], rates: Sequence[float] | None
) -> dict[str, Tensor]:
    """Kernels of points with themselves; interpolated in the norm when there are many points."""
    if is_homogeneous(network):
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
            return dict(zip(kinds, (basis @ w for w in weights), strict=True))
    return diagonal(network, s, kinds, rates, check=False)


def _chebyshev(size: int, x: Tensor) -> Tensor:
    columns = [torch.ones_like(x), x]
    while len(columns) < size:
        columns.append(2.0 * x * columns[-1] - columns[-2])
    return torch.stack(columns[:size], dim=1)
