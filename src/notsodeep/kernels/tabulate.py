"""Building tables, and keeping them: a network asked again about norms it has seen pays nothing.

Which table serves a matrix depends on the network and on the range of the norms, rounded outwards, and on nothing else:
results are the same whatever was computed before.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import needed, nodes, polynomials, to_coefficients
from ..errors import NotSoDeepError
from ..networks import ENN, Kernel, Network, check_kernels
from ._limits import LIMITS
from .pointwise import KernelSpec
from .sampling import Unresolved, sample
from .table import NormScale, NormSeries, Table, re_expanded

__all__ = ["angle_cap", "build_table", "one_thread", "rounded_range", "table_for"]


def angle_cap(network: Network) -> float:
    """The largest |r| up to which a table is used: the kernel is analytic in the angle, uniformly up to there."""
    if not network.kinked:
        return 1.0
    first = network.activations[0]
    single = isinstance(network, ENN) and network.depth == 1 and set(first.kinks) <= {0.0}  # for any norms
    elementwise = all(phi.elementwise for phi in network.activations)  # others bring logarithms of the angle
    return 1.0 if elementwise and (single or network.homogeneous) else 0.95


# ---- keeping -----------------------------------------------------------------------------------------------


_lock = threading.RLock()


def table_for(spec: KernelSpec, scale: NormScale, pairs: float, dtype: torch.dtype = torch.float64) -> Table | None:
    """The table of all kernels of a network on a rounded range; ``None`` where none of them has full accuracy.

    A table that takes integrals entry by entry is made only for many more ``pairs`` than it has entries.
    """
    key = spec.detached.network, spec.rates, scale, dtype
    with _lock:
        table, slow = build_table(*key)
        octave = 2.0 ** math.floor(math.log2(min(pairs, 2.0**24)))  # as good as infinity
        if slow and octave >= LIMITS.many_pairs:
            table, _ = build_table(*key, octave)
    return table if table is not None and all(kernel in table.kernels for kernel in spec.names) else None


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small operations, thousands of them: more threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def rounded_range(network: Network, low: float, high: float, equal: float = 1e-14) -> NormScale:
    """The range of norms whose table serves these: outwards to powers of 2^(1/4), so that like data share it.

    >>> import notsodeep as nsd
    >>> rounded_range(nsd.DEQ("tanh", 0.2), 0.75, 1.9)
    NormScale(low=0.7071067811865476, high=2.0)
    """
    if network.homogeneous:
        return NormScale(1.0, 1.0)
    if high - low <= equal * high:
        middle = float(f"{0.5 * (low + high):.13g}")
        return NormScale(middle, middle)
    below = 2.0 ** (math.floor(4 * math.log2(max(low, LIMITS.short_row * high))) / 4)
    above = 2.0 ** (math.ceil(4 * math.log2(high)) / 4)
    return NormScale(below, above)


# ---- building --------------------------------------------------------------------------------------------


@cached(64)
def build_table(
    network: Network,
    rates: tuple[float, ...] | None,
    scale: NormScale,
    dtype: torch.dtype,
    patience: float | None = None,
) -> tuple[Table | None, bool]:
    """All kernels of a network that exist on this range of norms, or ``None`` where no table reaches full accuracy.

    Returned beside it: whether there might be one that takes integrals entry by entry, which are done where fewer than
    half of the ``patience`` are needed.
    """
    # the CK exists where tangent kernels diverge, and for functions that jump
    for kernels in (network.kernels, network.kernels[:1]):
        try:
            with one_thread():
                spec = KernelSpec(network, check_kernels(network, kernels), rates)
                return _build(spec, scale, dtype, patience), False
        except NotSoDeepError:
            continue
        except Unresolved:
            return None, True
    return None, False


def _build(spec: KernelSpec, scale: NormScale, dtype: torch.dtype, patience: float | None) -> Table | None:
    """From the smallest grid that resolves the kernels."""
    reach = angle_cap(spec.network)
    noisy = reach == 1.0 and spec.network.kinked
    tolerance = max(2e-13 if noisy else 0.0, _tolerance(dtype))  # the angle magnifies the rounding of the cosine
    double = dtype == torch.float64
    angles = (48, 64, 128, 256) if double else (32, 48, 64, 128)
    sizes: tuple[int, ...] = (16, 20, 24, 32, 48) if double else (10, 12, 16, 24, 32, 48)
    # where entries are expensive the smallest grids are tried first, else those that most networks need on such a range
    slow = patience is not None
    likely = 0 if slow else sum(scale.high > width * scale.low for width in (1.5, 4.0))
    norms = (1,) if scale.single else sizes[likely:]
    size, terms = norms[0], angles[0]
    while patience is None or terms * size * (size + 1) <= patience:
        grid = _Grid(spec, scale, reach, size, terms, dtype, patient=slow)
        if not grid.finite:
            return None
        more = grid.wanted_angles(tolerance), grid.wanted_norms(tolerance)
        if more == (terms, size):
            return grid.table(tolerance)
        if (more[0] > terms and terms == angles[-1]) or (more[1] > size and size == norms[-1]):
            return None
        terms, size = (next((n for n in s if n >= m), s[-1]) for s, m in zip((angles, norms), more, strict=True))
    return None


class _Grid:
    """The kernels at Chebyshev nodes of the norms and of the angle, and at a few norms between them for a check."""

    def __init__(
        self,
        spec: KernelSpec,
        scale: NormScale,
        reach: float,
        size: int,
        terms: int,
        dtype: torch.dtype,
        patient: bool,
    ) -> None:
        network = spec.network
        self.scale, self.reach, self.size, self.terms = scale, reach, size, terms
        self.check = 1e-11 if dtype == torch.float64 else 1e-7  # of the kernels of the two points with themselves
        self.homogeneous = network.homogeneous
        between = 0 if scale.single else 6  # norms at which the finished table is compared with the kernel
        ends = math.log10(scale.low), math.log10(scale.high)
        others = torch.logspace(*ends, between, dtype=torch.float64).clamp(scale.low, scale.high)
        self.t = torch.cat([scale.nodes(size), others])
        ia, ib = torch.triu_indices(size, size)
        self.checks = torch.triu_indices(between, between)
        self.x, transform = torch.from_numpy(nodes(terms)), torch.tensor(to_coefficients(terms))
        if network.odd:  # what follows from it is left out
            self.x, transform = self.x[terms // 2 :], 2.0 * transform[:, terms // 2 :]
            transform[::2] = 0.0
        self.along, found = sample(
            spec,
            self.t,
            torch.cat([torch.stack([ia, ib]), self.checks + size], dim=1),
            torch.sin(self.x * math.asin(reach)),
            tolerance=_tolerance(dtype),
            patient=patient,
        )
        self.own = torch.stack([self.along[kernel] for kernel in found])
        values = torch.stack(list(found.values()))
        self.kernels, self.exact = tuple(found), values[:, len(ia) :]
        # relative to the diagonal, short rows keep their digits beside long ones
        weights = self.own[:, :size].clamp_min(1e-300).rsqrt()
        upper = (values[:, : len(ia)] * (weights[:, ia] * weights[:, ib])[..., None]) @ transform.T
        which = torch.empty(size, size, dtype=torch.long)
        which[ia, ib] = which[ib, ia] = torch.arange(len(ia))
        self.norm = torch.tensor(to_coefficients(size))
        half = upper.mT.contiguous().index_select(2, which.flatten()).unflatten(2, which.shape) @ self.norm.T
        self.coefficients = half.transpose(2, 3) @ self.norm.T  # (kernels, angles, norms, norms)
        self.finite = all(bool(torch.isfinite(v).all()) for v in (self.coefficients, self.own))
        self.relative = _relative(self.coefficients)

    def wanted_angles(self, tolerance: float) -> int:
        """As many as there are if the last orders of the angle are nothing, else what their fall lets expect."""
        return _wanted(self.relative.transpose(0, 1), tolerance)

    def wanted_norms(self, tolerance: float) -> int:
        """As many norms as there are if their last orders are nothing, else what their fall lets expect."""
        if self.scale.single:
            return self.size
        series = [one.weights.abs() / one.weights.abs().max() for one in self.diagonals.values()]
        return max(_wanted(part, tolerance) for part in (self.relative.movedim(2, 0), *series))

    def table(self, tolerance: float) -> Table | None:
        """In the better variable of the angle, without what is not needed; ``None`` if it fails between its nodes."""
        to_plain = re_expanded(self.terms, (self.reach, True), (self.reach, False), self.terms)
        plain = (to_plain @ self.coefficients.flatten(2)).view(self.coefficients.shape)
        most, least = (needed(c.transpose(0, 1), tolerance) for c in (_relative(plain), self.relative))
        warped = most > min(least + LIMITS.arcsine_terms, self.terms - LIMITS.spare_orders)
        found = self.coefficients[:, : least + 1] if warped else plain[:, : most + 1]
        if not self.scale.single:
            keep = needed(_relative(found).movedim(2, 0), 0.01 * tolerance)
            found = found[:, :, :keep, :keep].contiguous()
        coefficients = dict(zip(self.kernels, found, strict=True))
        table = Table(self.scale, self.reach, warped, self.homogeneous, coefficients, self.diagonals)
        return table if self.scale.single or self._holds(table, found) else None

    @functools.cached_property
    def diagonals(self) -> dict[Kernel, NormSeries]:
        """Series in the norm of the kernels of points with themselves."""
        t, own = self.t[: self.size], self.own[:, : self.size]
        # over the power that leaves least to vary, the digits of short rows are not lost beside long ones
        powers = (2,) if self.homogeneous else (0, 2, 4)
        over = torch.stack([own / t**power for power in powers])
        low, high = torch.aminmax(over, dim=2)
        best = torch.where(low > 0.0, high / low, math.inf).argmin(0).tolist()
        return {
            kernel: NormSeries(powers[i], self.norm @ over[i, k])
            for k, (kernel, i) in enumerate(zip(self.kernels, best, strict=True))
        }

    def _holds(self, table: Table, found: Tensor) -> bool:
        """Whether the table keeps its digits between its nodes, at norms of every order of magnitude."""
        columns = slice(0, None, max(1, len(self.x) // 8))
        x = self.x[columns]
        x = x if table.warped else torch.sin(x * math.asin(self.reach)) / self.reach
        t, (ia, ib) = self.t[self.size :], self.checks
        powers = self.scale.polynomials(self.size, t)
        basis = powers[:, : found.shape[2]]
        at_angles = (polynomials(found.shape[1], x) @ found.flatten(2)).unflatten(2, found.shape[2:])
        quotients = (basis @ at_angles @ basis.T)[:, :, ia, ib].transpose(1, 2)
        size = torch.stack([series.at(t, powers) for series in table.along.values()]).sqrt()
        off = (quotients * (size[:, ia] * size[:, ib])[..., None] - self.exact[:, :, columns]).abs()
        exact = self.own[:, self.size :].sqrt()
        return bool((off <= self.check * (exact[:, ia] * exact[:, ib])[..., None]).all())


def _tolerance(dtype: torch.dtype) -> float:
    """What a table may lack, beside its largest coefficient."""
    return 2e-14 if dtype == torch.float64 else 1e-9


def _wanted(relative: Tensor, tolerance: float) -> int:
    """How many of (orders, ...) would do: those that are there, or more by the rate at which the last half falls."""
    there = len(relative)
    if there - needed(relative, tolerance) >= LIMITS.spare_orders:
        return there
    size = relative.reshape(there, -1).amax(1)
    half, end = (
        float(size[there // 2 : there // 2 + LIMITS.spare_orders].max()),
        float(size[-LIMITS.spare_orders :].max()),
    )
    fall = math.log(max(half, tolerance) / max(end, tolerance)) / (there - there // 2 - 1)
    missing = math.log(max(end / tolerance, 1.0)) / fall if fall > 0.0 else math.inf
    # the fall of the coefficients quickens, so that the estimate is too large
    return there + 1 + int(min(0.7 * missing, there))


def _relative(coefficients: Tensor) -> Tensor:
    """Sizes of coefficients (kernels, ...), beside the largest of their own kernel."""
    size = coefficients.abs()
    return size / size.amax((1, 2, 3), keepdim=True).clamp_min(1e-300)
