"""Building tables of kernels on grids of norms and angles; the network and its rounded range of norms decide which.

All pairs of norms share their cosines, so each layer is integrated once, at common correlations; in between it is a
Chebyshev series of the angle, on which the recursion runs and the equation of a DEQ is solved for all entries.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import needed, nodes, polynomials, series_sum, to_coefficients
from .._progress import waiting
from ..activations import Activation
from ..errors import ConvergenceError, NotSoDeepError, log
from ..gaussian import hermite_coefficients
from ..networks import KERNELS, Kernel, Network, check_kernels
from ..networks.nodes import Cell, FixedPoint, KernelState, LayerMaps, equation
from ._limits import LIMITS
from .expectations import Layer
from .pointwise import KernelSpec, OnDiagonal, TensorDomain, equilibrium_variance, largest_rounded, mean_square
from .smoothing import pair_grid
from .table import (
    NormGrid,
    NormScale,
    NormSeries,
    Scales,
    Table,
    correlations_of,
    growth,
    product_root,
    rough_correlations,
)
from .threads import one_thread


def angle_caps(network: Network, scales: Scales) -> tuple[float, ...]:
    """The largest |r| up to which tables are tried: kernels are analytic in the angle, uniformly up to there.

    Entries beyond have series of their own, so that a table may be small.
    """
    plain = all(isinstance(phi, Activation) for phi in network.activations)
    if network.kinked or network.biased or not plain:
        return (angle_cap(network),)
    far = network.variances[1] * min(scale.high for scale in scales) ** 2 > LIMITS.far_square
    return (0.8, 0.55) if far else (1.0, 0.8, 0.55)


def angle_cap(network: Network) -> float:
    """The largest |r| of all."""
    if not network.kinked:
        return 1.0
    single = not network.implicit and len(network.activations) == 1  # for any norms
    conical = all(phi.conical for phi in network.activations)
    return 1.0 if conical and (single or network.homogeneous) else 0.95


_lock = threading.RLock()


def table_for(
    spec: KernelSpec, scales: Scales, pairs: float, dtype: torch.dtype = torch.float64, patient: bool = True
) -> Table | None:
    """The table of all kernels of a network on rounded ranges; ``None`` where none of them has full accuracy.

    If ``patient``, for many pairs it may take long to build.
    """
    network = spec.detached.network
    key = network, spec.rates, scales, dtype
    with _lock:
        octave = 2.0 ** math.floor(math.log2(min(pairs, 2.0**24)))  # as good as infinity
        deep = len(network.activations) > 1 and pairs < LIMITS.pairs_of_a_grid
        table, slow = build_table(*key, most=octave * LIMITS.points_of_a_pair if deep else math.inf)
        if patient and slow and octave >= LIMITS.many_pairs:  # integrals of entries, far fewer than pairs
            table, _ = build_table(*key, octave)
    return table if table is not None and table.has(spec.names) else None


def rounded_range(network: Network, low: float, high: float, equal: float = 1e-14) -> NormScale:
    """The range of norms whose table serves these: outwards to a grid of their logarithms, so that like data share it.

    Its step is at most 2^(1/4), and at most the range itself: norms beside a large bias hardly differ, and in a table
    for much wider ones they would be nearly equal points.
    """
    if network.homogeneous:
        return NormScale(1.0, 1.0)
    if high - low <= equal * high:
        middle = float(f"{0.5 * (low + high):.13g}")
        return NormScale(middle, middle)
    low = max(low, LIMITS.short_row * high)
    step = 2.0 ** min(-2, math.floor(math.log2(math.log2(high / low))))
    below, above = math.floor(math.log2(low) / step), math.ceil(math.log2(high) / step)
    return NormScale(2.0 ** (below * step), 2.0 ** (above * step))


# ---- building --------------------------------------------------------------------------------------------


@cached(64)
def build_table(
    network: Network,
    rates: tuple[float, ...] | None,
    scales: Scales,
    dtype: torch.dtype,
    patience: float | None = None,
    most: float = math.inf,
) -> tuple[Table | None, bool]:
    """The table of all kernels that exist, if it reaches full accuracy; whether integrals entry by entry might do.

    They are done where fewer than half of the ``patience`` are needed. Grids have at most so many points.
    """
    # the CK exists where tangent kernels diverge, and for functions that jump
    for kernels in (KERNELS, KERNELS[:1]):
        try:
            with one_thread(), waiting("tables of a kernel"):
                spec = KernelSpec(network, check_kernels(network, kernels), rates)
                table = _build(spec, scales, dtype, patience, most)
                grid = None if table is None else tuple(table.coefficients[kernels[0]].shape)
                log.debug("table of %s of %r, %s: %s", kernels, network, scales, grid)
                return table, False
        except NotSoDeepError:
            continue
        except Unresolved:
            return None, True
    return None, False


def _build(spec: KernelSpec, scales: Scales, dtype: torch.dtype, patience: float | None, most: float) -> Table | None:
    """From the smallest grid that resolves the kernels, up to the largest cosine that has one."""
    sizes = [_sizes(spec, scale, dtype) for scale in dict.fromkeys(scales)]
    if not all(sizes):
        return None
    *wider, last = angle_caps(spec.network, scales)
    for reach in wider:
        with contextlib.suppress(Unresolved):
            table = _build_to(spec, scales, dtype, patience, most, reach, sizes)
            if table is not None:
                return table
    return _build_to(spec, scales, dtype, patience, most, last, sizes)


def _sizes(spec: KernelSpec, scale: NormScale, dtype: torch.dtype) -> tuple[int, ...]:
    """How many norms may do: from those on that resolve the kernels of points with themselves, which cost little."""
    if scale.single:
        return (1,)
    sizes = (16, 20, 24, 32, 48, 72, 104, 144) if dtype == torch.float64 else (10, 12, 16, 24, 32, 48)
    room = 0.15 if spec.network.kinked else 0.0  # kinks of two points that meet ask for more than those of one
    for i, size in enumerate(sizes):
        t = scale.nodes(size)
        own = torch.stack(list(spec.diagonal(t**2).values()))
        if not bool(torch.isfinite(own).all()):
            break
        if _wanted_along(_along(t, own), _tolerance(dtype), room) == size:
            return sizes[i:]
    return ()


def _along(t: Tensor, own: Tensor, homogeneous: bool = False) -> list[NormSeries]:
    """Series in the norm of the kernels of points with themselves, from their values (kernels, norms) at nodes t."""
    # over the powers that leave least to vary, the digits of short rows are not lost beside long ones
    powers = [(2, 0)] if homogeneous else [(near, far - near) for near in (0, 2, 4) for far in range(5)]
    over, transform = torch.stack([own / growth(power, t) for power in powers]), torch.tensor(to_coefficients(len(t)))
    low, high = torch.aminmax(over, dim=2)
    best = torch.where(low > 0.0, high / low, math.inf).argmin(0).tolist()
    return [NormSeries(powers[i], transform @ over[i, k]) for k, i in enumerate(best)]


def _wanted_along(series: Iterable[NormSeries], tolerance: float, room: float = 0.0) -> int:
    """How many norms such series want, if a share of them is to be nothing."""
    return max(_wanted(one.weights.abs() / one.weights.abs().max(), tolerance, room) for one in series)


def _build_to(
    spec: KernelSpec,
    scales: Scales,
    dtype: torch.dtype,
    patience: float | None,
    most: float,
    reach: float,
    norms: Sequence[Sequence[int]],
) -> Table | None:
    """From grids of as many norms, of either side or of both, as are wanted."""
    noisy = reach == 1.0 and spec.network.kinked
    tolerance = max(2e-13 if noisy else 0.0, _tolerance(dtype))  # the angle magnifies the rounding of the cosine
    double = dtype == torch.float64
    angles = (48, 64, 128, 256) if double else (32, 48, 64, 128)
    slow = patience is not None
    options = (angles, norms[0], norms[-1])
    sizes = tuple(option[0] for option in options)
    while math.prod(sizes) * (1.0 if len(norms) == 1 else 2.0) <= (most if patience is None else patience):
        grid = _Grid(spec, scales, sizes, dtype, slow, reach)
        if not grid.finite:
            return None
        more = _wanted(grid.relative.transpose(0, 1), tolerance), *grid.wanted_norms(tolerance)
        if more == sizes:
            return grid.table(tolerance)
        if any(m > size == option[-1] for m, size, option in zip(more, sizes, options, strict=True)):
            return None
        sizes = tuple(next((n for n in s if n >= m), s[-1]) for s, m in zip(options, more, strict=True))
    return None


class _Grid:
    """The kernels at Chebyshev nodes of the norms and of the angle, and at a few norms between them for a check."""

    def __init__(
        self,
        spec: KernelSpec,
        scales: Scales,
        sizes: tuple[int, ...],
        dtype: torch.dtype,
        patient: bool,
        reach: float,
    ) -> None:
        network, (self.terms, left, right) = spec.network, sizes
        self.scales, self.reach = scales, reach
        self.check = 1e-11 if dtype == torch.float64 else 1e-7  # of the kernels of the two points with themselves
        self.homogeneous = network.homogeneous
        self.grid = grid = NormGrid(scales, (left, right), 6)
        self.x, transform = torch.from_numpy(nodes(self.terms)), torch.tensor(to_coefficients(self.terms))
        if network.odd:  # what follows from it is left out
            self.x, transform = self.x[self.terms // 2 :], 2.0 * transform[:, self.terms // 2 :]
            transform[::2] = 0.0
        along, found = sample(
            spec,
            grid.norms,
            grid.pairs,
            torch.sin(self.x * math.asin(reach)),
            tolerance=_tolerance(dtype),
            patient=patient,
        )
        self.own = torch.stack([along[kernel] for kernel in found])
        values = torch.stack(list(found.values()))
        self.kernels, self.exact = tuple(found), values[:, grid.count :]
        # relative to the diagonal, short rows keep their digits beside long ones
        weights = self.own.clamp_min(1e-300).rsqrt()[:, grid.pairs[:, : grid.count]].prod(1)
        self.coefficients = grid.coefficients(transform @ (values[:, : grid.count] * weights[..., None]).mT)
        self.finite = all(bool(torch.isfinite(v).all()) for v in (self.coefficients, self.own))
        self.relative = _relative(self.coefficients)

    def wanted_norms(self, tolerance: float) -> tuple[int, int]:
        """As many norms as there are if their last orders are nothing, else what their fall lets expect."""
        left = self._wanted_norms(0, tolerance)
        return left, left if self.scales[0] == self.scales[1] else self._wanted_norms(1, tolerance)

    def _wanted_norms(self, side: int, tolerance: float) -> int:
        if self.scales[side].single:
            return 1
        along = _wanted_along([own[side] for own in self.diagonals.values()], tolerance)
        return max(along, _wanted(self.relative.movedim(2 + side, 0), tolerance))

    def table(self, tolerance: float) -> Table | None:
        """In the better variable of the angle, without what is not needed; ``None`` if it fails between its nodes."""
        cosines = self.reach * torch.from_numpy(nodes(self.terms))
        angles = torch.asin(cosines) / math.asin(self.reach)
        to_plain = torch.tensor(to_coefficients(self.terms)) @ polynomials(self.terms, angles)
        plain = (to_plain @ self.coefficients.flatten(2)).view(self.coefficients.shape)
        most, least = (needed(c.transpose(0, 1), tolerance) for c in (_relative(plain), self.relative))
        warped = most > min(least + LIMITS.arcsine_terms, self.terms - LIMITS.spare_orders)
        found = self.coefficients[:, : least + 1] if warped else plain[:, : most + 1]
        relative = _relative(found)
        left, right = (needed(relative.movedim(side, 0), 0.01 * tolerance) for side in (2, 3))
        right = left if self.scales[0] == self.scales[1] else right
        found = found[:, :, :left, :right].contiguous()
        coefficients = dict(zip(self.kernels, found, strict=True))
        table = Table(self.scales, self.reach, warped, self.homogeneous, coefficients, self.diagonals)
        holds = table.one_function or self._holds(table, found)
        return table if holds and self._reaches_the_diagonal(table) else None

    def _reaches_the_diagonal(self, table: Table) -> bool:
        """Whether points with themselves have what they must: far out, waves fall within less than a step of angles."""
        if not table.alike or self.reach < 1.0:
            return True
        which, size = self.grid.nodes[0], self.grid.sizes[0]
        own, basis = self.own[:, which], self.scales[0].polynomials(size, self.grid.norms[which])
        seen = (basis @ self.coefficients.sum(1) * basis).sum(-1)
        return bool(((seen - 1.0).abs()[own > 0.0] <= 100.0 * self.check).all())

    @functools.cached_property
    def diagonals(self) -> dict[Kernel, tuple[NormSeries, NormSeries]]:
        """Series in the norm of the kernels of points with themselves."""
        sides = (
            _along(self.grid.norms[which], self.own[:, which], self.homogeneous)
            for which in self.grid.nodes[: 1 if self.scales[0] == self.scales[1] else 2]
        )
        each = [*zip(*sides, strict=True)]
        return {kernel: (own[0], own[-1]) for kernel, own in zip(self.kernels, each, strict=True)}

    def _holds(self, table: Table, found: Tensor) -> bool:
        """Whether the table keeps its digits between its nodes, at norms of every order of magnitude."""
        columns = slice(0, None, max(1, len(self.x) // 8))
        x = self.x[columns]
        x = x if table.warped else torch.sin(x * math.asin(self.reach)) / self.reach
        at_angles = (polynomials(found.shape[1], x) @ found.flatten(2)).unflatten(2, found.shape[2:])
        quotients = self.grid.at_checks(at_angles).mT
        left, right = (
            torch.stack([self._seen(own[side], self.scales[side], which) for own in table.along.values()]).sqrt()
            for side, which in enumerate(self.grid.between)
        )
        i, j = self.grid.checks
        off = (quotients * (left[:, i] * right[:, j])[..., None] - self.exact[:, :, columns]).abs()
        exact = self.own.sqrt()[:, self.grid.pairs[:, self.grid.count :]].prod(1)
        return bool((off <= self.check * exact[..., None]).all())

    def _seen(self, series: NormSeries, scale: NormScale, which: slice) -> Tensor:
        norms = self.grid.norms[which]
        return series.at(norms, scale.polynomials(len(series.weights), norms))


def _tolerance(dtype: torch.dtype) -> float:
    """What a table may lack, beside its largest coefficient."""
    return 2e-14 if dtype == torch.float64 else 1e-9


def _wanted(relative: Tensor, tolerance: float, room: float = 0.0) -> int:
    """How many of (orders, ...) would do: those that are there, or more by the rate at which the last half falls."""
    there = len(relative)
    if there - needed(relative, tolerance) >= max(LIMITS.spare_orders, room * there):
        return there
    size = relative.reshape(there, -1).amax(1)
    half = float(size[there // 2 : there // 2 + LIMITS.spare_orders].max())
    end = float(size[-LIMITS.spare_orders :].max())
    fall = math.log(max(half, tolerance) / max(end, tolerance)) / (there - there // 2 - 1)
    missing = math.log(max(end / tolerance, 1.0)) / fall if fall > 0.0 else math.inf
    # the fall of the coefficients quickens, so that the estimate is too large
    return there + 1 + int(min(0.7 * missing, there))


def _relative(coefficients: Tensor) -> Tensor:
    """Sizes of coefficients (kernels, ...), beside the largest of their own kernel."""
    size = coefficients.abs()
    return size / size.amax((1, 2, 3), keepdim=True).clamp_min(1e-300)


# ---- the grid: kernels at all pairs of norms and all cosines ---------------------------------------------------


def sample(
    spec: KernelSpec, t: Tensor, pairs: Tensor, cosines: Tensor, *, tolerance: float, patient: bool
) -> tuple[dict[Kernel, Tensor], dict[Kernel, Tensor]]:
    """Kernels of points of norms t with themselves, and (pairs, cosines) at norms (t[i], t[j]) of the ``pairs``.

    Raises :class:`Unresolved` where only integrals entry by entry would do, unless ``patient``.
    """
    with torch.no_grad():
        dot, squares = t[pairs].prod(0)[:, None] * cosines, t**2
        try:
            found = spec.run(Nodes(pairs, tolerance), squares, dot)
        except Unresolved:
            if not patient:
                raise
            sx, sy = squares[pairs][..., None]
            found = spec.pairwise(sx, sy, dot)
        return spec.diagonal(squares), found


class Unresolved(Exception):
    """A layer that no short series in the angle reproduces on the grid."""


class Nodes(TensorDomain):
    """All pairs of some norms at common cosines, (pairs, cosines); points are the variances at the norms."""

    def __init__(self, pairs: Tensor, tolerance: float) -> None:
        self.pairs, self.tolerance = pairs, tolerance
        self.groups: list[Any] = [slice(None)]  # pairs that share a range of correlations
        self.expected: Iterator[tuple[Expected, ...]] = iter(())  # which the layers of a cell meet, for each group

    def layer(self, phi: Activation, points: Tensor) -> LayerMaps:
        """Return the layer as a closed form, or as a series in the angle."""
        if float(points.min()) <= 0.0:
            raise Unresolved
        if phi.closed_form() is not None:
            return Layer(phi, *points[self.pairs][..., None])
        whole, expected = OnDiagonal(phi).both(points), next(self.expected, (None,) * len(self.groups))
        series = (
            _AngleSeries(phi, points, self.pairs[:, group], self.tolerance, whole, ends)
            for group, ends in zip(self.groups, expected, strict=True)
        )
        return _Groups(list(zip(self.groups, series, strict=True)))

    def through(self, phi: Activation, points: Tensor) -> Tensor:
        return mean_square(phi, "value", points)

    def units(self, layer: Any, points: Tensor) -> tuple[LayerMaps, Tensor]:
        """Leave units that see norms to integrals entry by entry."""
        raise Unresolved

    def normalised(self, points: Tensor) -> tuple[LayerMaps, Tensor]:
        return correlations_of(points, self.pairs)

    def settle(self, fixed: FixedPoint, state: KernelState) -> Tensor:
        """Solve the equation of the variances, and look ahead where kinks need to know the range of correlations."""
        q = equilibrium_variance(fixed.network, state.points)
        if fixed.network.kinked or any(phi.closed_form() is None for phi in fixed.network.activations):
            # functions of long points bend near |rho| = 1, which these need not reach where short ones do
            drive, least = fixed.drive(state.covariance), q[self.pairs].amin(0)
            sides = (side.nonzero().squeeze(1) for side in (least <= LIMITS.far_square, least > LIMITS.far_square))
            self.groups = [group for group in sides if len(group)]
            self.expected = zip(*(_range(fixed, q, self.pairs[:, g], drive[g]) for g in self.groups), strict=True)
        return q

    def solve(self, fixed: FixedPoint, cell: Any, points: Tensor, state: KernelState) -> Tensor:
        """Solve by Newton's method: far from rho = +-1 it needs no bracket; where it does, entry by entry."""
        drive, bound = fixed.drive(state.covariance), product_root(*points[self.pairs])[:, None]
        lam = torch.minimum(torch.maximum(drive, -bound), bound)
        for _ in range(LIMITS.steps):
            residual, rate = equation(cell, lam, fixed.sigma_a2, drive)
            move = residual / rate.clamp_min(1e-3)
            if float((move.abs() / bound).max()) <= LIMITS.rest_share * self.tolerance:
                break
            lam = torch.minimum(torch.maximum(lam - move, -bound), bound)
        else:
            raise Unresolved
        _check_range(cell, lam)
        return lam


def _check_range(cell: Any, lam: Tensor) -> None:
    """Raise :class:`Unresolved` where a covariance lies beyond the series of its layer."""
    for layer in cell.layers if isinstance(cell, Cell) else [cell]:
        if isinstance(layer, _Groups) and not layer.holds(lam):
            raise Unresolved
        lam = layer.value(lam) if isinstance(cell, Cell) else lam


def _range(fixed: FixedPoint, q: Tensor, pairs: Tensor, drive: Tensor) -> Iterator[tuple[float, float]]:
    """The correlations at equilibrium for the outermost norms and cosines, by layer, and some room around them."""
    qx, qy = q[pairs]
    size = product_root(qx, qy)
    few = torch.stack([size.argmin(), size.argmax(), (qx / qy).log().abs().argmax()])
    ends = torch.stack(torch.aminmax(drive[few], dim=1), dim=1)
    for rho in rough_correlations(fixed, q, pairs[:, few], ends):
        low, high = float(rho.min()), float(rho.max())
        yield low - 0.2 * (1.0 + low), high + 0.2 * (1.0 - high)


# ---- one layer -------------------------------------------------------------------------------------------


Expected = tuple[float, float] | None


def closed_enough(phi: Activation, q: Tensor, least: float) -> bool:
    """Whether there is a closed form that keeps its digits at angles from ``least`` on.

    A rounded covariance knows the angle to 1e-16 / angle; slopes vary by their own size over an angle of 1 / scale.
    """
    scale, pieces = float(q.max()) ** 0.5, phi.piecewise_linear and phi.closed_form() is None
    if pieces and bool(Layer(phi, q, q).large.any()):  # then they are integrals
        return False
    return phi.quick and (scale < LIMITS.blurred_scale or least**3 * scale > 1.0 / LIMITS.blurred_scale**2)


def layer_values(phi: Activation, q: Tensor, pairs: Tensor, angles: Tensor) -> Tensor:
    """E[phi phi] and E[phi' phi'] at pairs of variances and common angles: (2, pairs, angles)."""
    least = float(torch.minimum(angles, math.pi - angles).min())
    if not closed_enough(phi, q, least):
        try:
            return pair_grid(phi, q.sqrt(), angles)[:, pairs[0], pairs[1]]
        except ConvergenceError:  # it varies too fast
            if not phi.quick:
                raise Unresolved from None
    qx, qy = q[pairs].repeat_interleave(len(angles), dim=1)
    found = Layer(phi, qx, qy).both(product_root(qx, qy) * torch.cos(angles).repeat(pairs.shape[1]))
    return torch.stack(found).reshape(2, pairs.shape[1], -1)


class _Groups(LayerMaps):
    """A layer as series in the angle, for groups of pairs that share a range of correlations."""

    def __init__(self, parts: Sequence[tuple[Any, _AngleSeries]]) -> None:
        self.parts = parts

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        value, slope = torch.empty_like(lam), torch.empty_like(lam)
        for which, series in self.parts:
            value[which], slope[which] = series.both(lam[which])
        return value, slope

    def holds(self, lam: Tensor) -> bool:
        """Whether these covariances lie where the series are."""
        return all(series.holds(lam[which]) for which, series in self.parts)


class _AngleSeries(LayerMaps):
    """E[phi phi] and E[phi' phi'] as Chebyshev series in arcsin(rho), one for each pair of variances."""

    def __init__(
        self, phi: Activation, q: Tensor, pairs: Tensor, tolerance: float, whole: Sequence[Tensor], expected: Expected
    ) -> None:
        self.phi, self.q, self.pairs, self.tolerance = phi, q, pairs, tolerance
        self.whole, self.expected = whole, expected
        self.root = product_root(*q[pairs])[:, None]
        self.series: Tensor | None = None

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        if self.series is None:
            self.series = self._prepared(lam)
        low, high = self.ends
        rho = (lam / self.root).clamp(math.sin(low), math.sin(high))
        x2 = (torch.asin(rho) - 0.5 * (low + high)).mul_(4.0 / (high - low))
        value, slope = series_sum(self.series, x2.expand(2, -1, -1), None)
        return value, slope

    def holds(self, lam: Tensor) -> bool:
        """Whether these covariances lie where the series is."""
        rho = lam / self.root
        low, high = (math.sin(end) for end in self.ends)
        return (low <= -1.0 or float(rho.min()) >= low) and (high >= 1.0 or float(rho.max()) <= high)

    def _prepared(self, lam: Tensor) -> Tensor:
        """(orders, 2, pairs, 1)."""
        rho = lam / self.root
        low, high = (float(rho.min()), float(rho.max())) if self.expected is None else self.expected
        if not self.phi.kinks:  # equal points may lie between the pairs that were asked
            low, high = -1.0 if low < -0.9 else low, 1.0 if high > 0.9 else high
        low, high = (min(max(end, -1.0), 1.0) for end in (low, high))  # rounding may be beyond
        narrow = 1e-6  # radians: a little wider, where all correlations are one and the same
        self.ends = max(math.asin(low) - narrow, -0.5 * math.pi), min(math.asin(high) + narrow, 0.5 * math.pi)
        # kinked functions are asked for on a part of the angle, and single precision needs fewer nodes
        whole = high - low == 2.0 and self.tolerance < 1e-12
        sizes = (64, 128, 256) if whole else (32, 64, 128, 256)
        grids = [torch.sin(torch.from_numpy(nodes(size, *self.ends))) for size in sizes]
        hermite = self._hermite(max(-low, high))
        for rho in grids:
            series = torch.tensor(to_coefficients(len(rho))) @ self._values(rho, *hermite).transpose(1, 2)
            relative = series.abs() / series.abs().amax(1, keepdim=True).clamp_min(1e-300)
            length = needed(relative.transpose(0, 1), LIMITS.rest_share * self.tolerance)
            if length <= len(rho) - 3:
                return series[:, :length].transpose(0, 1)[..., None].contiguous()
        raise Unresolved

    def _hermite(self, largest: float) -> tuple[Sequence[Tensor], float]:
        """Coefficients of phi and of phi' at all variances, for correlations up to this, and what they lack."""
        exact, sure = self.phi.polynomial(), LIMITS.series_share * self.tolerance
        if exact is not None:
            return _two_series(self.phi, self.q, exact.degree + 2), 0.0
        found = _two_series(self.phi, self.q, _enough(self.phi, largest_rounded(self.q), round(largest, 2), sure))
        return found, _missing(found, self.whole)

    def _values(self, rho: Tensor, hermite: Sequence[Tensor], missing: float) -> Tensor:
        """(2, pairs, correlations): Hermite series where they have converged, integrals elsewhere."""
        terms, count = hermite[0].shape[1], self.pairs.shape[1]
        sure = rho.abs() ** terms * missing <= LIMITS.series_share * self.tolerance
        out = torch.empty(2, count, len(rho), dtype=torch.float64)
        last = math.log(1e-16) / rho.abs().clamp(1e-9, 1.0 - 1e-9).log()  # powers beyond are nothing
        shares = (64, 16, 4) if terms >= 512 else ()
        for low, high in itertools.pairwise((0, *(terms // share for share in shares), terms)):
            which = (sure & (last > low) & ((last <= high) | (high == terms))).nonzero().squeeze(1)
            steps = rho[which].repeat(high, 1)
            steps[0] = 1.0
            powers = steps.cumprod(0)
            for k, a in enumerate(hermite):
                parts = self.pairs.split(max(1, (1 << 19) // high), dim=1)
                out[k, :, which] = torch.cat([(a[i, :high] * a[j, :high]) @ powers for i, j in parts])
        if not bool(sure.all()):
            out[:, :, ~sure] = layer_values(self.phi, self.q, self.pairs, torch.acos(rho[~sure]))
        return out


@cached(256)
def _enough(phi: Activation, widest: float, largest: float, sure: float) -> int:
    """How many terms the largest variance needs, if they are few; smaller ones need fewer."""
    q = torch.tensor([widest], dtype=torch.float64)
    whole = OnDiagonal(phi).both(q)
    for terms in (64, 96, 128, 192, 256, 384, 512, 768, 1024):
        if largest**terms * _missing(_two_series(phi, q, terms), whole) <= sure:
            break
    return terms


def _two_series(phi: Activation, q: Tensor, terms: int) -> Sequence[Tensor]:
    """The Hermite coefficients of phi and of phi'."""
    a = torch.as_tensor(hermite_coefficients(phi, q, terms + 1))
    # E[phi'(sqrt(q) xi) h_k] = sqrt(k + 1) a_(k+1) / sqrt(q), by parts
    slope = a[:, 1:] * torch.arange(1, terms + 1, dtype=torch.float64).sqrt() / q.sqrt()[:, None]
    return a[:, :-1], slope


def _missing(hermite: Sequence[Tensor], whole: Sequence[Tensor]) -> float:
    """The part of E[f^2] that a series lacks: by Parseval's identity, or nothing where its terms have died out."""
    square = torch.stack([a**2 / total.clamp_min(1e-300)[:, None] for a, total in zip(hermite, whole, strict=True)])
    short = (1.0 - square.sum(2)).clamp_min(LIMITS.noise)
    tail = square[:, :, -max(4, square.shape[2] // 8) :].sum(2)
    return float(torch.where((tail <= 1e-16) & (short <= 1e-13), LIMITS.noise, short).max())
