"""Kernels of nearly parallel points, where one series in the angle would need too many terms.

There a kernel varies on a length that shrinks with the scale of the inputs. A bias is one more input, so the angle is
that between the points with it; at a fixed angle a kernel is smooth in the two norms. So series on intervals of the
angle that double away from zero resolve it; each costs a few thousand single entries.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from .._chebyshev import nodes, polynomials, to_coefficients
from ..networks import Kernel
from ._limits import LIMITS
from .pointwise import KernelSpec
from .table import Level, Table


class Cap:
    """The kernels of a network for cosines beyond the reach of a table, near r = ``sign``."""

    def __init__(self, spec: KernelSpec, table: Table, sign: int) -> None:
        self.sign, self.names = sign, table.kernels
        self.spec = KernelSpec(spec.network, self.names, spec.rates)
        self.gain, self.bias = spec.network.input_variance, spec.network.bias_variance
        ends = (self.gain * end**2 + self.bias for end in (table.norms.low, table.norms.high))
        self.low, self.high = (0.5 * math.log(end) for end in ends)
        self._levels: dict[int, dict[Kernel, Level] | None] = {}

    def kernels(
        self, names: tuple[Kernel, ...], nx: Tensor, ny: Tensor, apart: Tensor, own: dict[Kernel, Tensor]
    ) -> tuple[Tensor, dict[Kernel, Tensor]]:
        """Which entries have a series, and their kernels; ``apart``: 1 - |r|, ``own``: the roots along the diagonal."""
        x, y = (self.gain * n * n + self.bias for n in (nx, ny))
        # the squared chord of the angle between one point and the other (or its opposite), with their bias
        rise = (x - y).square() / (x.sqrt() + y.sqrt()).square() if self.bias else (nx - ny).square() * self.gain
        square = self.gain * ((nx - ny).square() + 2.0 * nx * ny * apart) + 2.0 * (1 - self.sign) * self.bias
        chord = (square - rise) / (x.sqrt() * y.sqrt())
        angle = 2.0 * torch.asin(0.5 * chord.clamp(0.0, 4.0).sqrt())
        interval = torch.ceil(torch.log2((angle / self.first).clamp_min(1.0))).long()
        known, found = torch.zeros_like(interval, dtype=torch.bool), {name: torch.empty_like(nx) for name in names}
        for one in torch.unique(interval).tolist():
            levels = self.levels(one)
            if levels is None:
                continue
            which = (interval == one).nonzero().squeeze(1)
            known[which] = True
            left, right = (self._norms(v[which]) for v in (x, y))
            start, end = self.interval(one)
            x2 = 2.0 * (2.0 * angle[which] - (start + end)) / (end - start)
            for name in names:
                level = levels[name]
                found[name][which] = level.at(level.side(left), level.side(right), x2) * own[name][which]
        where = known.nonzero().squeeze(1)
        return where, {name: values[where] for name, values in found.items()}

    def _norms(self, squares: Tensor) -> Tensor:
        """The polynomials of norms, given their squares with the bias."""
        return polynomials(self.size, (squares.log() - (self.low + self.high)) / (self.high - self.low))

    @property
    def size(self) -> int:
        """How many norms resolve the kernels."""
        wide = self.high - self.low
        return 12 if wide < 0.4 else 18 if wide < 1.0 else 26 if wide < 2.0 else 36

    @functools.cached_property
    def first(self) -> float:
        """The end of the first interval: within it nothing happens to functions of inputs at this scale."""
        return 2.0 ** -max(1, math.ceil(math.log2(2.0 * math.exp(self.high))))

    def interval(self, number: int) -> tuple[float, float]:
        """The angles of an interval."""
        return (0.0 if number == 0 else self.first * 2.0 ** (number - 1)), self.first * 2.0**number

    def levels(self, number: int) -> dict[Kernel, Level] | None:
        """The series on an interval, computed once; ``None`` where they fail."""
        if number not in self._levels:
            self._levels[number] = self._build(number)
        return self._levels[number]

    def _build(self, number: int) -> dict[Kernel, Level] | None:
        size, terms = self.size, LIMITS.cap_angles
        (start, end), at = self.interval(number), torch.from_numpy(nodes(size, self.low, self.high))
        ia, ib = torch.triu_indices(size, size)
        angles = torch.from_numpy(nodes(terms, start, end))
        values = self._values(at[ia][:, None], at[ib][:, None], angles) if end <= math.pi else None
        if values is None:
            return None
        grid = values.new_empty(len(values), size, size, terms)
        grid[:, ia, ib] = grid[:, ib, ia] = values
        along, across = torch.tensor(to_coefficients(size)), torch.tensor(to_coefficients(terms))
        c = along @ (grid.permute(0, 3, 1, 2)) @ along.T
        c = torch.einsum("mn,knab->kmab", across, c)
        levels = {name: Level.of(part, 1e-15) for name, part in zip(self.names, c, strict=True)}
        return levels if self._holds(number, levels) else None

    def _holds(self, number: int, levels: dict[Kernel, Level]) -> bool:
        """Whether the series are right between their nodes."""
        at = torch.rand(3, 24, generator=torch.Generator().manual_seed(number), dtype=torch.float64)
        (start, end), x, y = self.interval(number), *(self.low + (self.high - self.low) * at[:2])
        exact = self._values(x, y, start + (end - start) * at[2])
        if exact is None:
            return False
        left, right = (self._norms(torch.exp(2.0 * v)) for v in (x, y))
        found = [levels[k].at(levels[k].side(left), levels[k].side(right), 4.0 * at[2] - 2.0) for k in self.names]
        return bool((torch.stack(found) - exact).abs().max() <= LIMITS.cap_error)

    def _values(self, x: Tensor, y: Tensor, angle: Tensor) -> Tensor | None:
        """The kernels at logarithms of norms and angles, all with the bias, over the roots along the diagonal."""
        first, second = ((torch.exp(2.0 * v) - self.bias) / self.gain for v in (x, y))
        dot = (self.sign * torch.exp(x + y) * torch.cos(angle) - self.bias) / self.gain
        found, left, right = self.spec.pairwise(first, second, dot), *map(self.spec.diagonals, (first, second))
        values = torch.stack([found[name] / (left[name] * right[name]).sqrt() for name in self.names])
        return values if bool(torch.isfinite(values).all()) else None
