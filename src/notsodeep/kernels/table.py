"""A kernel as a function of two norms and an angle, tabulated once and then evaluated at matrix speed.

Where k(||x||, ||y||, r) is analytic (away from r = +-1 for kinked activations) a tensor of Chebyshev coefficients
reproduces it to rounding. Nearly parallel points have series of their own, see ``caps.py``.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import (
    Workspace,
    clenshaw,
    derived,
    needed,
    nodes,
    polynomials,
    power_coefficients,
    series_sum,
    to_coefficients,
)
from ..activations import Activation
from ..gaussian import hermite_coefficients
from ..networks import Kernel
from ..networks.nodes import Divided, Domain, FixedPoint, LayerMaps
from ._limits import LIMITS
from .pointwise import mean_square

R = TypeVar("R")
_lock = threading.RLock()


@dataclass(frozen=True)
class NormScale:
    """Norms in [low, high] as a variable in [-1, 1]: linear near zero, logarithmic far out, as most kernels vary."""

    low: float
    high: float

    @property
    def single(self) -> bool:
        """Whether there is but one norm."""
        return self.low == self.high

    @property
    def width(self) -> float:
        """How much kernels vary: the difference of logarithms, but for norms near zero."""
        low, high = self._ends()
        return high - low

    def holds(self, low: float, high: float) -> bool:
        """Whether norms from ``low`` to ``high`` are covered, but for rounding."""
        return self.low * (1.0 - 1e-13) <= low and high <= self.high * (1.0 + 1e-13)

    def polynomials(self, size: int, norms: Tensor) -> Tensor:
        """The first Chebyshev polynomials of these norms: (norms, size)."""
        return torch.ones_like(norms)[:, None] if self.single else polynomials(size, self.variable(norms))

    def variable(self, norms: Tensor) -> Tensor:
        """The variable in [-1, 1]."""
        low, high = self._ends()
        return (2.0 * torch.asinh(norms / LIMITS.norm_bend) - (high + low)) / (high - low)

    def rate(self, norms: Tensor) -> Tensor:
        """The derivative of the variable."""
        low, high = self._ends()
        return 2.0 / ((high - low) * torch.hypot(norms, norms.new_tensor(LIMITS.norm_bend)))

    def nodes(self, size: int) -> Tensor:
        """Chebyshev points, as norms."""
        if self.single:
            return torch.full((size,), self.low, dtype=torch.float64)
        return LIMITS.norm_bend * torch.sinh(torch.from_numpy(nodes(size, *self._ends())))

    def _ends(self) -> tuple[float, float]:
        return math.asinh(self.low / LIMITS.norm_bend), math.asinh(self.high / LIMITS.norm_bend)


Scales = tuple[NormScale, NormScale]
"""The norms of the rows and those of the columns; equal where a kernel is symmetric."""


class NormGrid:
    """Nodes of the norms of rows and columns in pairs, and pairs of a few norms between them, where series are checked.

    Where both have the same range, only pairs of the upper triangle are there.
    """

    def __init__(self, scales: Scales, sizes: tuple[int, int], between: int) -> None:
        self.scales, self.sizes = scales, sizes
        few = 0 if all(scale.single for scale in scales) else between
        parts = [scale.nodes(size) for scale, size in zip(scales, sizes, strict=True)]
        parts += [_between(scale, few) for scale in scales]
        alike = scales[0] == scales[1]
        starts = (0, 0, sizes[0], sizes[0]) if alike else (0, sizes[0], sum(sizes), sum(sizes) + few)
        self.norms = torch.cat(parts[::2] if alike else parts)
        self.nodes = slice(0, sizes[0]), slice(starts[1], starts[1] + sizes[1])
        self.between = slice(starts[2], starts[2] + few), slice(starts[3], starts[3] + few)
        of_nodes, self.checks = (
            torch.triu_indices(*some) if alike else torch.cartesian_prod(*map(torch.arange, some)).T
            for some in (sizes, (few, few))
        )
        self.count = of_nodes.shape[1]
        self.pairs = torch.cat([of_nodes, self.checks], dim=1)
        self.pairs[:, : self.count] += torch.tensor(starts[:2])[:, None]
        self.pairs[:, self.count :] += torch.tensor(starts[2:])[:, None]
        self._which = torch.empty(sizes, dtype=torch.long)
        for i, j in (of_nodes, of_nodes.flip(0))[: 1 + alike]:
            self._which[i, j] = torch.arange(self.count)

    def coefficients(self, values: Tensor) -> Tensor:
        """The Chebyshev coefficients (..., rows, columns) in the norms, from values (..., pairs) at the nodes."""
        left, right = (torch.tensor(to_coefficients(size)) for size in self.sizes)
        return left @ values.index_select(-1, self._which.flatten()).unflatten(-1, self.sizes) @ right.T

    def at_checks(self, coefficients: Tensor) -> Tensor:
        """What such coefficients give at the pairs between the nodes: (..., pairs)."""
        sides = zip(self.scales, coefficients.shape[-2:], self.between, strict=True)
        left, right = (scale.polynomials(size, self.norms[which]) for scale, size, which in sides)
        return (left @ coefficients @ right.T)[..., self.checks[0], self.checks[1]]


def _between(scale: NormScale, count: int) -> Tensor:
    shares = (torch.arange(count, dtype=torch.float64) + 0.5) / max(1, count)
    return scale.low * (scale.high / scale.low) ** shares


@dataclass(frozen=True)
class Level:
    """One kernel for |r| <= reach: sum_m T_m(x) sum_k sign_mk f_mk(||x||) f_mk(||y||), low rank in the norms."""

    factors: Tensor  # (norm degree, total rank): columns of all m one after the other
    signs: Tensor  # (total rank,): the sign of each column's product
    ranks: tuple[int, ...]  # how many columns belong to each m
    parity: str | None  # "odd", "even": only such orders are there
    reach: float = 1.0
    warped: bool = False  # whether the angle variable is arcsin(r) rather than r
    order: int = 0  # 1: of the kernel's derivative in the angle variable
    part: tuple[float, float] = (-1.0, 1.0)  # of the angle variable's range
    others: Tensor | None = None  # the factors of the second norm, where its range is another one
    scales: Scales | None = None  # the ranges of the norms

    @classmethod
    def of(
        cls,
        coefficients: Tensor,
        dropped: float,
        reach: float = 1.0,
        warped: bool = False,
        alike: bool = True,
        **more: Any,
    ) -> Level:
        """From matrices C_m, symmetric ones if norms are ``alike``; what is dropped is below rounding."""
        parity = _parity(coefficients)
        c = coefficients if parity is None else coefficients[int(parity == "odd") :: 2]
        if alike:
            weights, left = torch.linalg.eigh(c)
            right = left
        else:
            left, weights, right = torch.linalg.svd(c, full_matrices=False)
            right = right.mT
        size = weights.abs()
        keep = size > dropped * float(size.max())
        keep.scatter_(1, size.argmax(1, keepdim=True), True)
        columns, others = (
            (vectors * size.sqrt()[:, None, :]).transpose(1, 2)[keep].T.contiguous() for vectors in (left, right)
        )
        more["others"] = None if alike else others
        return cls(columns, torch.sign(weights[keep]), tuple(keep.sum(1).tolist()), parity, reach, warped, **more)

    @functools.cached_property
    def scale(self) -> float:
        """Twice the inverse of the angle variable's range."""
        return 2.0 / (math.asin(self.reach) if self.warped else self.reach)

    @functools.cached_property
    def in_norm(self) -> Level:
        """The same with the derivatives of its factors in the norm variable."""
        others = None if self.others is None else derived(self.others)
        return replace(self, factors=derived(self.factors), others=others)

    def side(self, powers: Tensor, right: bool = False) -> Tensor:
        """The norm factors (total rank, points), given the polynomials (points, norm degree) of the norms."""
        factors = self.factors if self.others is None or not right else self.others
        return on_device(factors, powers.device).T @ powers[:, : len(factors)].T

    def variable(self, r: Tensor, workspace: Workspace) -> Tensor:
        """Twice the angle variable, from its part of the range to [-1, 1], at cosines ``r``; in the workspace."""
        (start, end), x2 = self.part, workspace("x2", r)
        shift = torch.tensor(-2.0 * (start + end) / (end - start), dtype=torch.float64)
        angle = torch.asin(r, out=x2) if self.warped else r
        return torch.add(shift, angle, alpha=2.0 * self.scale / (end - start), out=x2)

    def tile(self, left: Tensor, right: Tensor, x2: Tensor, workspace: Workspace) -> Tensor:
        """The kernel at twice the angle variable (a, b) from norm factors (a, rank), with signs, and (rank, b)."""
        parts = list(zip(left.split(self.ranks, dim=1), right.split(self.ranks), strict=True))
        return clenshaw(len(parts), lambda m, b: b.addmm_(*parts[m], beta=-1.0), x2, self.parity, workspace)

    def coefficients(self, left: Tensor, right: Tensor) -> Tensor:
        """The coefficients (orders, entries) at single entries, from norm factors (entries, rank) of both points."""
        signs, both = on_device(self.signs, left.device).split(self.ranks), (left * right).split(self.ranks, dim=1)
        return torch.stack([part @ sign for part, sign in zip(both, signs, strict=True)])

    def at(self, left: Tensor, right: Tensor, x2: Tensor) -> Tensor:
        """The kernel at single entries: the norm factors of both points, and twice the angle variable in [-1, 1]."""
        return series_sum(self.coefficients(left, right), x2, self.parity)

    def from_end(self, sign: int, angle: Tensor) -> Tensor:
        """Twice the angle variable, from its part of the range, at angles from r = ``sign``, if it reaches that."""
        (start, end), whole = self.part, sign * (1.0 - angle / (0.5 * math.pi) if self.warped else torch.cos(angle))
        return (4.0 * whole - 2.0 * (start + end)) / (end - start)


@dataclass(frozen=True)
class NormSeries:
    """A power of the norm and one of hypot(norm, bend), which turns it to another far out, times a Chebyshev series."""

    powers: tuple[int, int]
    weights: Tensor

    def at(self, norms: Tensor, powers: Tensor) -> Tensor:
        """Its values, given the polynomials of the norms."""
        return (powers[:, : len(self.weights)] @ on_device(self.weights, norms.device)).mul_(growth(self.powers, norms))

    @functools.cached_property
    def in_norm(self) -> Tensor:
        """The coefficients of its Chebyshev series' derivative."""
        return derived(self.weights)

    def log_slope(self, norms: Tensor, powers: Tensor, rate: Tensor) -> Tensor:
        """The derivative of its logarithm in the norm; ``rate``: of the norm variable."""
        value, slope = (powers[:, : len(w)] @ on_device(w, norms.device) for w in (self.weights, self.in_norm))
        (near, bent), square = self.powers, norms**2
        return near / norms + bent * norms / (square + LIMITS.norm_bend**2) + rate * slope / value


def growth(powers: tuple[int, int], norms: Tensor) -> Tensor:
    """Return norm^a hypot(norm, bend)^b."""
    near, bent = powers
    return norms**near * torch.hypot(norms, norms.new_tensor(LIMITS.norm_bend)) ** bent


@dataclass(frozen=True)
class Table:
    """The kernels of one network on ranges of norms, up to |r| = reach."""

    scales: Scales
    reach: float
    warped: bool
    homogeneous: bool
    coefficients: dict[Kernel, Tensor]  # (angles, norms, norms): over the roots of the kernels along the diagonal
    along: dict[Kernel, tuple[NormSeries, NormSeries]]  # the kernel of a point with itself, of either range
    _found: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_found": {}}

    @property
    def one_function(self) -> bool:
        """Whether the kernels depend on the angle alone (times both norms, if homogeneous)."""
        return all(scale.single for scale in self.scales)

    @property
    def alike(self) -> bool:
        """Whether the norms of rows and columns have the same range."""
        return self.scales[0] == self.scales[1]

    def has(self, names: Iterable[Kernel]) -> bool:
        """Say whether these kernels are in the table."""
        return self.coefficients.keys() >= set(names)

    def diagonal(self, kernel: Kernel, norms: Tensor) -> Tensor:
        """Kernels of points with themselves, whose norms are those of the rows."""
        series = self.along[kernel][0]
        basis = functools.partial(self.scales[0].polynomials, len(series.weights))
        return torch.cat([series.at(part, basis(part)) for part in norms.split(8192)])

    # -- between points --------------------------------------------------------------------------------------
    def level(self, kernel: Kernel, dtype: torch.dtype, low: float = -1.0, high: float = 1.0) -> Level:
        """The factors of a kernel, as many as this precision needs, for cosines from ``low`` to ``high``.

        One function of the angle needs fewer on a part of its range; others would need norm factors for each part.
        """
        part = -1.0, 1.0
        if self.one_function and low <= high:  # NaN is refused later
            steps, ends = LIMITS.part_steps, (max(-1.0, min(r / self.reach, 1.0)) for r in (low, high))
            low, high = (math.asin(r * self.reach) / math.asin(self.reach) if self.warped else r for r in ends)
            start = min(math.floor(low * steps), steps - 1)
            part = max(start, -steps) / steps, min(max(start + 1, math.ceil(high * steps)), steps) / steps
        return self.once((kernel, dtype, part), lambda: self._level(kernel, dtype, part))

    def once(self, key: Any, compute: Callable[[], R]) -> R:
        """What follows from the table, computed once."""
        with _lock:
            if key not in self._found:
                self._found[key] = compute()
            return self._found[key]

    def slope_level(self, kernel: Kernel, smooth: bool) -> Level:
        """The factors of a kernel's derivative in the angle variable, which is r itself where that is ``smooth``."""
        return self.once((kernel, smooth), lambda: self._slope_level(kernel, smooth))

    def _slope_level(self, kernel: Kernel, smooth: bool) -> Level:
        full, warped = self.coefficients[kernel], self.warped
        if warped and smooth:  # arcsin(r) has no derivative at r = +-1, the kernel has
            size = 4 * len(full)
            angles = torch.asin(self.reach * torch.from_numpy(nodes(size))) / math.asin(self.reach)
            change = torch.tensor(to_coefficients(size)) @ polynomials(len(full), angles)
            plain = (change @ full.flatten(1)).unflatten(1, full.shape[1:])
            terms = needed(plain / plain.abs().max().clamp_min(1e-300), 1e-15)
            warped = terms > size - LIMITS.spare_orders
            full = full if warped else plain[:terms]
        return self._of(derived(full), torch.float64, warped, order=1)

    def _level(self, kernel: Kernel, dtype: torch.dtype, part: tuple[float, float]) -> Level:
        full = self.coefficients[kernel]
        if part != (-1.0, 1.0):
            size = len(full)
            change = torch.tensor(to_coefficients(size)) @ polynomials(size, torch.from_numpy(nodes(size, *part)))
            full = torch.tensordot(change, full, dims=1)
        return self._of(full, dtype, self.warped, part=part)

    def _of(self, full: Tensor, dtype: torch.dtype, warped: bool, **more: Any) -> Level:
        # beside the largest entry: all that is left out of the angle, and out of the norms
        left_out, dropped = (5e-13, 3e-15) if dtype == torch.float64 else (1e-7, 1e-8)
        size = full.abs().flatten(1).sum(1)
        rest = size.flip(0).cumsum(0).flip(0)
        terms = max(1, int((rest > left_out * size.max()).sum()))
        return Level.of(full[:terms], dropped, self.reach, warped, self.alike, scales=self.scales, **more)

    def side(self, level: Level, kernel: Kernel, norms: Tensor, right: bool = False) -> Tensor:
        """The norm factors at these points, of the rows or of the ``right`` side: (total rank, n)."""
        own, along, powers = self._along(level, kernel, norms, right)
        # relative to the diagonal, short rows keep their digits beside long ones
        return level.side(powers, right).mul_(own.at(norms, along).sqrt_())

    def side_slope(self, level: Level, kernel: Kernel, norms: Tensor, right: bool = False) -> Tensor:
        """The derivatives of the norm factors in the norms: (total rank, n)."""
        own, _, powers = self._along(level, kernel, norms, right)
        rate = self.scales[right].rate(norms)
        slopes = level.in_norm.side(powers, right).mul_(rate)
        slopes.add_(level.side(powers, right).mul_(own.log_slope(norms, powers, rate).mul_(0.5)))
        return slopes.mul_(own.at(norms, powers).sqrt_())

    def _along(self, level: Level, kernel: Kernel, norms: Tensor, right: bool) -> tuple[NormSeries, Tensor, Tensor]:
        """The kernel of a point with itself, its polynomials of the norms and those of a level."""
        own, scale = self.along[kernel][right], self.scales[right]
        size = len(level.factors if level.others is None or not right else level.others)
        if level.scales is not None and level.scales[right] != scale:
            along = scale.polynomials(len(own.weights), norms)
            return own, along, level.scales[right].polynomials(size, norms)
        powers = scale.polynomials(max(size, len(own.weights)), norms)
        return own, powers, powers

    def scalars(self, level: Level, kernel: Kernel) -> Tensor:
        """The coefficients of all m where there is one function."""
        left, right = self.along[kernel]
        others = level.factors if level.others is None else level.others
        return level.signs * level.factors[0] * others[0] * (left.weights[0] * right.weights[0]).sqrt()

    def powers(self, level: Level, kernel: Kernel, dtype: torch.dtype) -> tuple[Tensor, ...] | None:
        """The same for powers of the angle variable, where they are as exact."""
        if level.parity is not None:
            return None
        digits = 1e3 if dtype == torch.float64 else 10.0
        return self.once(("powers", id(level)), lambda: power_coefficients(self.scalars(level, kernel), digits))


def on_device(part: Tensor, device: torch.device) -> Tensor:
    """Return a part of a table on the device of the rows."""
    return part if part.device == device else copied(part, part.dtype, device)


@cached(512)
def copied(part: Tensor | tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Copy a tensor, or a few numbers, to a GPU once: a copy waits until the GPU has finished all that it was given."""
    return torch.as_tensor(part, dtype=None if isinstance(part, Tensor) else torch.float64).to(device, dtype)


def _parity(c: Tensor) -> str | None:
    size = c.abs().flatten(1).amax(1)
    even, odd = (float(size[start::2].max()) if len(size) > start else 0.0 for start in (0, 1))
    if even <= 1e-13 * odd and odd > 0:
        return "odd"
    return "even" if odd <= 1e-13 * even else None  # a kernel that vanishes is even


# ---- what a table expects ----------------------------------------------------------------------------------


def rough_correlations(fixed: FixedPoint, q: Tensor, pairs: Tensor, drive: Tensor) -> list[Tensor]:
    """About the correlations that the layers of a cell meet at equilibrium, from a few Hermite coefficients."""
    domain, root = _Rough(pairs), product_root(*q[pairs])[:, None]
    cell, lam = fixed.maps(domain, q), drive.clamp(-root, root)
    for _ in range(LIMITS.steps):  # a contraction
        before, lam = lam, (drive + fixed.sigma_a2 * cell.value(lam)).clamp(-root, root)
        if float(((lam - before) / root).abs().max()) <= 1e-4:
            break
    cell.value(lam)
    return [layer.correlations for layer in domain.layers]


class _Rough(Domain):
    """Pairs of variances at a few covariances, by the first Hermite coefficients."""

    def __init__(self, pairs: Tensor) -> None:
        self.pairs, self.layers = pairs, list[_RoughLayer]()

    def layer(self, phi: Activation, points: Tensor) -> _RoughLayer:
        """Return the layer, which is noted."""
        self.layers.append(_RoughLayer(phi, points, self.pairs))
        return self.layers[-1]

    def through(self, phi: Activation, points: Tensor) -> Tensor:
        return mean_square(phi, "value", points)

    def normalised(self, points: Tensor) -> tuple[LayerMaps, Tensor]:
        return correlations_of(points, self.pairs)


class _RoughLayer(LayerMaps):
    """The first terms of a Hermite series; keeps the correlations at which it was evaluated last."""

    def __init__(self, phi: Activation, q: Tensor, pairs: Tensor) -> None:
        a = torch.as_tensor(hermite_coefficients(phi, q, 64))
        self.products, self.root = (a[pairs[0]] * a[pairs[1]])[:, None, :], product_root(*q[pairs])[:, None]
        self.orders = torch.arange(a.shape[1], dtype=torch.float64)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def value(self, lam: Tensor) -> Tensor:
        self.correlations = (lam / self.root).clamp(-1.0, 1.0)
        return (self.products * self.correlations[..., None] ** self.orders).sum(-1)


def correlations_of(q: Tensor, pairs: Tensor) -> tuple[LayerMaps, Tensor]:
    """Return the map from covariances (pairs, ...) to correlations, and variances of one."""
    return Divided(product_root(*q[pairs])[:, None]), torch.ones_like(q)


def product_root(qx: Tensor, qy: Tensor) -> Tensor:
    """sqrt(qx qy), also where the product is no number."""
    return qx.sqrt() * qy.sqrt()
