"""Which rows share a table: how they are lifted, and the ranges of norms into which they are parted."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._caches import cached
from ..networks import Network
from ._limits import LIMITS
from .pointwise import KernelSpec
from .table import NormScale, Scales, Table
from .tabulate import rounded_range, table_for

Lift = tuple[float, float]
"""A factor b and a constant c: rows x stand for sqrt(b) x with one more column, sqrt(c)."""

Given = tuple[Mapping[Scales, Table], Lift]
"""Tables of ranges of norms, and how rows are lifted for them."""


def lift_of(network: Network, longest: float) -> Lift:
    """Return how rows, of squared norms up to ``longest``, are lifted for a network with sigma_b2 = 1 and no bias.

    It is quicker: DEQs that differ in these variances share a table, a homogeneous network without a bias has a
    function of the angle alone, others are smooth in the norms at a fixed angle, and with the constant no row is near
    zero.
    """
    b, c = network.drives
    return (b, c) if max(c / LIMITS.long_bias, 1e-30) <= b * longest <= 1e30 else (1.0, 0.0)


@cached(256)
def lifted(spec: KernelSpec, lift: Lift) -> KernelSpec:
    """Return the kernels as functions of lifted rows."""
    return spec if lift == (1.0, 0.0) else replace(spec, network=spec.network.varied(None, 1.0, 0.0))


def norm_range(*squares: Tensor) -> tuple[float, float]:
    """The range of the norms that are not so short beside the longest that they are evaluated one by one."""
    every = torch.cat(squares).sqrt()
    high = float(every.max())
    return float(every[every >= LIMITS.short_row * high].min()), high


def bands(norms: Tensor) -> list[tuple[float, float]]:
    """Ranges that cover these norms, none of them so wide that its table would be large.

    They are parted at gaps, and otherwise into equal ratios; near zero, kernels hardly vary with the norm.
    """
    low, high = torch.stack(torch.aminmax(norms)).tolist()
    span, widest = math.log2(max(high, LIMITS.norm_bend) / max(low, LIMITS.norm_bend)), math.log2(LIMITS.widest_band)
    if span <= widest:
        return [(low, high)]
    norms = norms.sort().values
    logs = norms.clamp_min(LIMITS.norm_bend).log2()
    gaps = torch.diff(logs)
    cut = int(gaps.argmax()) + 1
    if float(gaps.max()) < LIMITS.band_gap:
        cut = int(torch.searchsorted(logs, float(logs[0]) + span / math.ceil(span / widest), right=True))
    return [each for part in (norms[:cut], norms[cut:]) for each in bands(part)]


def tables_of(spec: KernelSpec, low: float, high: float) -> dict[Scales, Table]:
    """The tables for any norms of a range, as far as there are some."""
    low, network = max(low, LIMITS.short_row * high), spec.network
    every = torch.logspace(math.log10(low), math.log10(high), 1000, dtype=torch.float64).clamp(low, high)
    for ranges in ([(1.0, 1.0)] if network.homogeneous else [(low, high)], bands(every)):
        scales = [rounded_range(network, *ends) for ends in ranges]
        pairs = itertools.combinations_with_replacement(scales, 2)
        found = {pair: table for pair in pairs if (table := table_for(spec, pair, math.inf)) is not None}
        if found:
            break
    return found


def within(norms: Tensor, scales: Sequence[NormScale]) -> Tensor:
    """The number of the first range that holds a norm, -1 where none does."""
    found = torch.full_like(norms, -1, dtype=torch.long)
    for number, scale in reversed(list(enumerate(scales))):
        found[(norms >= scale.low * (1.0 - 1e-13)) & (norms <= scale.high * (1.0 + 1e-13))] = number
    return found


class Part(NamedTuple):
    """All points (see ``tiles.py``) with the matrices of their kernels, or a block of some rows and columns."""

    points: Any
    target: Mapping[Any, Tensor]
    rows: Tensor | None = None
    columns: Tensor | None = None
    scales: tuple[NormScale | None, NormScale | None] = (None, None)
    table: Table | None = None

    def fill(self, work: Callable[[Any, Mapping[Any, Tensor]], None]) -> None:
        """Let matrices be filled, and copy those of a block to their place."""
        points, i, j = self.points, self.rows, self.columns
        if i is None or j is None:
            work(points, self.target)
            return
        mirrored = points.symmetric and i is not j
        y = None if points.symmetric and not mirrored else points.y[j]
        block = type(points)(points.spec, points.x[i], y, points.lift)
        block.scales, block.shared = self.scales, self.table
        found = {name: values.new_empty(block.shape) for name, values in self.target.items()}
        work(block, found)
        for name, values in found.items():
            self.target[name][i[:, None], j] = values
            if mirrored:
                self.target[name][j[:, None], i] = values.T
