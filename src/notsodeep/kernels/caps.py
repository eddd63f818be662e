"""Kernels of nearly parallel points, where a product of series in norms and angle would need too many terms.

There a kernel varies with the distance D of the points beside their norms, D^2 = |x - y|^2 / (||x|| ||y||), on a length
that shrinks with the scale of the inputs, and bends at D = 0 if an activation has kinks. At fixed D it is smooth in the
mean of the logarithms of the norms, and in the share of D^2 that is due to the norms. So series in these three
variables, on intervals of D that double away from zero, resolve it; each costs a few thousand single entries.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .._chebyshev import needed, nodes, to_coefficients
from ..networks import Kernel
from ._limits import LIMITS
from .pointwise import KernelSpec
from .table import Table


@dataclass(frozen=True)
class Box:
    """Series of the kernels on an interval of distances, over the roots of the kernels along the diagonal."""

    coefficients: Tensor  # (kernels, distances, shares * norms)
    shape: tuple[int, int]  # shares, norms

    def at(self, kernel: int, distance: Tensor, share: Tensor, norm: Tensor) -> Tensor:
        """A kernel at variables in [-1, 1]."""
        out = []
        for part in zip(*(v.split(1 << 12) for v in (distance, share, norm)), strict=True):
            sizes = (self.coefficients.shape[1], *self.shape)
            d, s, t = (_polynomials(size, v) for size, v in zip(sizes, part, strict=True))
            both = (s[:, None] * t).flatten(0, 1)
            out.append((self.coefficients[kernel] @ both).mul_(d).sum(0))
        return torch.cat(out)


def _polynomials(size: int, x: Tensor) -> Tensor:
    """The first Chebyshev polynomials of many numbers, (size, numbers): by recurrence in a quarter of the time."""
    out = torch.empty(max(size, 2), len(x), dtype=x.dtype)
    out[0], out[1] = 1.0, x
    for k in range(2, size):
        torch.mul(out[k - 1], x, out=out[k]).mul_(2.0).sub_(out[k - 2])
    return out[:size]


class Cap:
    """The kernels of a network for cosines beyond the reach of a table, near r = ``sign``."""

    def __init__(self, spec: KernelSpec, table: Table, sign: int) -> None:
        self.spec, self.sign, self.names, self.reach = spec, sign, table.kernels, table.reach
        self.low, self.high = (math.log(end) for end in (table.norms.low, table.norms.high))
        self._boxes: dict[int, Box | None] = {}

    def kernels(
        self, names: tuple[Kernel, ...], nx: Tensor, ny: Tensor, apart: Tensor, own: dict[Kernel, Tensor]
    ) -> tuple[Tensor, dict[Kernel, Tensor]]:
        """Which entries have a series, and their kernels; ``apart``: 1 - |r|, ``own``: the roots along the diagonal."""
        x, y = nx.log(), ny.log()
        rise = 4.0 * torch.sinh(0.5 * (x - y)).square()
        distance = (rise + 2.0 * apart).sqrt()
        first = self.first
        level = torch.ceil(torch.log2((distance / first).clamp_min(1.0))).long()
        known, found = torch.zeros_like(level, dtype=torch.bool), {name: torch.empty_like(nx) for name in names}
        for one in torch.unique(level).tolist():
            box = self.box(one)
            if box is None:
                continue
            which = (level == one).nonzero().squeeze(1)
            known[which] = True
            low, high = self.interval(one)
            d, w = distance[which], apart[which]
            share = rise[which] / (d * d).clamp_min(1e-300) if high <= 1.0 else w / (1.0 - self.reach)
            start, end = self.norms(one)
            at = (2.0 * d - (low + high)) / (high - low), 2.0 * share - 1.0
            norm = (x[which] + y[which] - (start + end)) / (end - start)
            for name in names:
                found[name][which] = box.at(self.names.index(name), *at, norm) * own[name][which]
        where = known.nonzero().squeeze(1)
        return where, {name: values[where] for name, values in found.items()}

    @functools.cached_property
    def first(self) -> float:
        """The end of the first interval: within it nothing happens to functions of inputs at this scale."""
        scale = math.sqrt(self.spec.network.input_variance) * math.exp(self.high)
        return 2.0 ** -max(1, math.ceil(math.log2(2.0 * scale)))

    def interval(self, level: int) -> tuple[float, float]:
        """The distances of an interval."""
        return (0.0 if level == 0 else self.first * 2.0 ** (level - 1)), self.first * 2.0**level

    def norms(self, level: int) -> tuple[float, float]:
        """The means of the logarithms of the norms, with a little room: their nodes do not reach the ends."""
        return self.low - 1e-9, self.high + 1e-9

    def box(self, level: int) -> Box | None:
        """The series on an interval, computed once; ``None`` where they fail."""
        if level not in self._boxes:
            self._boxes[level] = self._build(level)
        return self._boxes[level]

    def _build(self, level: int) -> Box | None:
        wide = self.high - self.low
        sizes = LIMITS.cap_distances, LIMITS.cap_shares, (16 if wide < 0.75 else 24 if wide < 2.5 else 36)
        axes = [torch.from_numpy(nodes(size)) for size in sizes]
        values = self._values(level, *torch.cartesian_prod(*axes).T)
        if values is None:
            return None
        c = values.unflatten(1, sizes)
        for axis, size in enumerate(sizes, 1):
            c = torch.tensordot(c, torch.tensor(to_coefficients(size)), dims=([axis], [1])).movedim(-1, axis)
        size = c.abs() / c.abs().amax((1, 2, 3), keepdim=True).clamp_min(1e-300)
        keep = [needed(size.movedim(axis, 0), LIMITS.cap_tolerance) for axis in (1, 2, 3)]
        c = c[:, : keep[0], : keep[1], : keep[2]]
        box = Box(c.flatten(2).contiguous(), (keep[1], keep[2]))
        return box if self._holds(level, box) else None

    def _holds(self, level: int, box: Box) -> bool:
        """Whether the series are right between their nodes."""
        at = torch.rand(3, 24, generator=torch.Generator().manual_seed(level), dtype=torch.float64) * 2.0 - 1.0
        at[0, :4], at[1, 4:8] = -1.0, 1.0
        exact = self._values(level, *at)
        if exact is None:
            return False
        off = [(box.at(k, *at) - values).abs().max() for k, values in enumerate(exact)]
        return bool(torch.stack(off).max() <= LIMITS.cap_error)

    def _values(self, level: int, distance: Tensor, share: Tensor, norm: Tensor) -> Tensor | None:
        """The kernels over the roots along the diagonal at variables in [-1, 1]: (kernels, points)."""
        (low, high), (start, end) = self.interval(level), self.norms(level)
        d, share = 0.5 * (low + high + (high - low) * distance), 0.5 * (1.0 + share)
        mean = 0.5 * (start + end + (end - start) * norm)
        rise = share * d * d if high <= 1.0 else d * d - 2.0 * share * (1.0 - self.reach)
        turn = 0.5 * (d * d - rise)  # 1 - |r|
        lean = 2.0 * torch.asinh(0.5 * rise.clamp_min(0.0).sqrt())
        s, t = torch.exp(2.0 * mean + lean), torch.exp(2.0 * mean - lean)
        spec = KernelSpec(self.spec.network, self.names, self.spec.rates)
        found = spec.pairwise(s, t, self.sign * torch.exp(2.0 * mean) * (1.0 - turn))
        own = spec.diagonals(torch.stack([s, t]))
        values = torch.stack([found[name] / (own[name][0] * own[name][1]).sqrt() for name in self.names])
        return values if bool(torch.isfinite(values).all()) else None
