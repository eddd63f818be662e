"""Building tables, and keeping them: a network asked again about norms it has seen pays nothing.

Which table serves a matrix depends on the network and on the range of the norms, rounded outwards, and on nothing else:
results are the same whatever was computed before.
"""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from .._chebyshev import nodes, to_coefficients
from ..errors import NotSoDeepError
from ..networks import DEQ, ENN, Kernel, Network, check_kernels
from .lookup import ASIN, NormScale, Table, chebyshev, coefficients_needed
from .near import NearSeries, near_series
from .pointwise import diagonal
from .sampling import Unresolved, sample
from .slopes import DEQSlope

__all__ = ["SHORT", "angle_cap", "build_table", "forget_tables", "near_for", "one_thread", "rounded_range", "table_for"]

_TOLERANCE = {torch.float64: 2e-14, torch.float32: 1e-9}
_NOISY_TOLERANCE = 2e-13  # kinked, near r = +-1: rounding of the cosine is magnified by the angle
_ANGLES = {torch.float64: (48, 64, 128, 256), torch.float32: (32, 48, 64, 128)}  # sizes of grids
_NORMS = {torch.float64: (16, 20, 24, 32, 48), torch.float32: (10, 12, 16, 24, 32, 48)}
_WIDTHS = (1.5, 4.0, math.inf)  # of ranges: most networks need the first, second and third of the sizes there
_SPARE = 2  # orders of a grid that must be nothing
_MOST_MISSED = 0.7  # the fall of the coefficients quickens: an estimate of those that are missing is too large
_KINK_CAP = 0.95  # kinked activations: k is analytic in the angle, but not uniformly so near r = +-1
_STEPS = 4  # ends of ranges are powers of 2^(1/4)
_KEPT = 64  # tables
SHORT = 1e-6  # of the longest row; shorter ones, evaluated one by one, are not worth a wider table
_POWERS = (0, 2, 4)  # of the norm, like one of which a kernel on the diagonal starts
_CHECKED = 6  # norms at which a finished table is held against the kernel itself
_CHECK = {torch.float64: 1e-11, torch.float32: 1e-7}  # of the kernels of the two points with themselves
_PATIENT, _MANY = 4096.0, 2.0**24  # pairs of points for which a slow table is worth looking for; as good as infinity


def angle_cap(network: Network) -> float:
    """The largest |r| up to which a table is used."""
    smooth = not any(phi.kinks for phi in network.activations)
    if not smooth and not all(phi.elementwise for phi in network.activations):
        return _KINK_CAP  # logarithms in the angle
    return 1.0 if smooth or network.homogeneous or _single_kinked_layer(network) else _KINK_CAP


def _single_kinked_layer(network: Network) -> bool:
    """One layer with its kinks at zero is analytic in the angle up to r = +-1, for any norms."""
    return isinstance(network, ENN) and network.depth == 1 and set(network.activations[0].kinks) <= {0.0}


# ---- keeping -----------------------------------------------------------------------------------------------


Made = TypeVar("Made")
_tables: OrderedDict[tuple[object, ...], Table | Unresolved | None] = OrderedDict()
_near: OrderedDict[tuple[object, ...], NearSeries | None] = OrderedDict()
_lock = threading.RLock()


def table_for(
    network: Network,
    rates: Sequence[float] | None,
    scale: NormScale,
    pairs: float,
    dtype: torch.dtype = torch.float64,
) -> Table | None:
    """The table of all kernels of a network on a rounded range; ``None`` where none has the accuracy of ``dtype``.

    A table that takes integrals entry by entry is made only for many more ``pairs`` than it has entries.
    """
    plain = network.detached() if isinstance(network, DEQ) else network
    key = plain, None if rates is None else tuple(rates), scale, dtype
    with _lock:
        found = _kept(_tables, key, lambda: _attempted(plain, rates, scale, dtype))
        if isinstance(found, Unresolved):
            octave = math.floor(math.log2(min(pairs, _MANY)))
            found = None
            if 2.0**octave >= _PATIENT:
                found = _kept(_tables, (*key, octave), lambda: _attempted(plain, rates, scale, dtype, 2.0**octave))
        return None if isinstance(found, Unresolved) else found


def near_for(
    network: Network, table: Table, sign: int, pairs: float, dtype: torch.dtype = torch.float64
) -> NearSeries | None:
    """What serves entries beyond the reach of a table, near r = ``sign``, if anything does and ``pairs`` are many."""
    if pairs < _PATIENT or not isinstance(network, DEQ) or isinstance(network, DEQSlope):
        return None
    plain = network.detached()
    with _lock:
        return _kept(_near, (plain, table.norms, sign, dtype), lambda: near_series(plain, table, sign, dtype))


def forget_tables() -> None:
    """Drop all tables that are kept: the next call builds its own again."""
    with _lock:
        _tables.clear()
        _near.clear()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Small operations, thousands of them: more threads would mostly wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _kept(kept: OrderedDict[tuple[object, ...], Made], key: tuple[object, ...], build: Callable[[], Made]) -> Made:
    """What was made for this key, or is made now; what was not asked for longest gives way."""
    if key in kept:
        kept.move_to_end(key)
        return kept[key]
    with one_thread():
        found = kept[key] = build()
    while len(kept) > _KEPT:
        kept.popitem(last=False)
    return found


def _attempted(
    network: Network, rates: Sequence[float] | None, scale: NormScale, dtype: torch.dtype, pairs: float | None = None
) -> Table | Unresolved | None:
    """The table, or what says that it would be slow."""
    try:
        return build_table(network, rates, scale, dtype, pairs)
    except Unresolved as slow:
        return slow.with_traceback(None)


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
    below = 2.0 ** (math.floor(_STEPS * math.log2(max(low, SHORT * high))) / _STEPS)
    above = 2.0 ** (math.ceil(_STEPS * math.log2(high)) / _STEPS)
    return NormScale(below, above)


# ---- building --------------------------------------------------------------------------------------------


def build_table(
    network: Network, rates: Sequence[float] | None, scale: NormScale, dtype: torch.dtype, pairs: float | None = None
) -> Table | None:
    """All kernels of a network that exist on this range of norms; ``None`` where no table reaches full accuracy.

    Raises :class:`Unresolved` where it would take integrals entry by entry; given ``pairs`` they are done, as long as
    they are fewer than half of these.
    """
    # the CK exists where tangent kernels diverge, and for functions that jump
    for kinds in (network.kinds, network.kinds[:1]):
        try:
            kinds = check_kernels(network, kinds)
            return _build(network, kinds, rates, scale, dtype, pairs)
        except NotSoDeepError:
            continue
    return None


def _build(
    network: Network,
    kinds: tuple[Kernel, ...],
    rates: Sequence[float] | None,
    scale: NormScale,
    dtype: torch.dtype,
    pairs: float | None,
) -> Table | None:
    """From the smallest grid that resolves the kernels."""
    reach = angle_cap(network)
    kinked = any(phi.kinks for phi in network.activations)
    noisy = reach == 1.0 and kinked
    tolerance = max(_NOISY_TOLERANCE if noisy else 0.0, _TOLERANCE[dtype])
    # where entries are dear the smallest grids are tried first
    likely = 0 if pairs is not None else next(i for i, width in enumerate(_WIDTHS) if scale.high <= width * scale.low)
    norms = (1,) if scale.single else _NORMS[dtype][likely:]
    angles = _ANGLES[dtype]
    size, terms = norms[0], angles[0]
    while pairs is None or terms * size * (size + 1) <= pairs:
        grid = _Grid(network, kinds, rates, scale, reach, size, terms, dtype, patient=pairs is not None)
        if not grid.finite:
            return None
        more = grid.wanted_angles(tolerance), grid.wanted_norms(tolerance)
        if more == (terms, size):
            return grid.table(tolerance, network.homogeneous)
        if (more[0] > terms and terms == angles[-1]) or (more[1] > size and size == norms[-1]):
            return None
        terms, size = (next((n for n in s if n >= m), s[-1]) for s, m in zip((angles, norms), more, strict=True))
    return None


class _Grid:
    """The kernels at Chebyshev nodes of the norms and of the angle, and at a few norms between them for a check."""

    def __init__(
        self,
        network: Network,
        kinds: tuple[Kernel, ...],
        rates: Sequence[float] | None,
        scale: NormScale,
        reach: float,
        size: int,
        terms: int,
        dtype: torch.dtype,
        patient: bool,
    ) -> None:
        self.scale, self.reach, self.size, self.check = scale, reach, size, _CHECK[dtype]
        self.t = scale.nodes(size)
        if not scale.single:
            between = torch.logspace(math.log10(scale.low), math.log10(scale.high), _CHECKED, dtype=torch.float64)
            self.t = torch.cat([self.t, between.clamp(scale.low, scale.high)])
        ia, ib = torch.triu_indices(size, size)
        ja, jb = torch.triu_indices(len(self.t) - size, len(self.t) - size) + size
        self.checks = ja, jb
        pairs = torch.cat([ia, ja]), torch.cat([ib, jb])
        self.x, transform = torch.from_numpy(nodes(terms)), torch.tensor(to_coefficients(terms))
        if _odd(network):  # what follows from it is left out
            self.x, transform = self.x[terms // 2 :], 2.0 * transform[:, terms // 2 :]
            transform[::2] = 0.0
        cosines = torch.sin(self.x * math.asin(reach))
        self.along, found = sample(
            network, self.t, pairs, cosines, kinds, rates, tolerance=_TOLERANCE[dtype], patient=patient
        )
        self.own = self.along  # what entries are compared with: the kernel, where its slopes are tabulated
        if isinstance(network, DEQSlope):
            one = diagonal(network.deq, self.t**2, (network.kernel,), rates, check=False)
            self.own = dict.fromkeys(kinds, one[network.kernel])
        self.norm, self.terms = torch.tensor(to_coefficients(size)), terms
        values = torch.stack(list(found.values()))
        self.kinds, self.exact = tuple(found), values[:, len(ia) :]
        # relative to the diagonal, short rows keep their digits beside long ones
        self.measure = torch.stack([self.own[kind] for kind in found])
        weights = torch.ones(len(found), 1) if scale.single else self.measure[:, :size].rsqrt()
        upper = (values[:, : len(ia)] * (weights[:, ia] * weights[:, ib])[..., None]) @ transform.T
        which = torch.empty(size, size, dtype=torch.long)
        which[ia, ib] = which[ib, ia] = torch.arange(len(ia))
        half = upper.mT.contiguous().index_select(2, which.flatten()).unflatten(2, which.shape) @ self.norm.T
        self.coefficients = half.transpose(2, 3) @ self.norm.T  # (kinds, angles, norms, norms)
        self.finite = all(
            bool(torch.isfinite(v).all()) for v in (self.coefficients, self.measure, *self.along.values())
        )
        self.relative = _relative(self.coefficients)

    def wanted_angles(self, tolerance: float) -> int:
        """As many as there are if the last orders of the angle are nothing, else what their fall lets expect."""
        return _wanted(self.relative.transpose(0, 1), tolerance)

    def wanted_norms(self, tolerance: float) -> int:
        """The same of the norms."""
        if self.scale.single:
            return self.size
        series = [weights.abs() / weights.abs().max() for one in self.diagonals for _, weights in one.values()]
        return max(_wanted(part, tolerance) for part in (self.relative.movedim(2, 0), *series))

    def table(self, tolerance: float, homogeneous: bool) -> Table | None:
        """In the better variable of the angle, without what is not needed; ``None`` if it fails between its nodes."""
        warped, found = self._best_variable(tolerance)
        if not self.scale.single:
            keep = coefficients_needed(_relative(found).movedim(2, 0), 0.01 * tolerance)
            found = found[:, :, :keep, :keep].contiguous()
        along, measure = self.diagonals
        coefficients = dict(zip(self.kinds, found, strict=True))
        table = Table(self.scale, self.reach, warped, homogeneous, coefficients, along, measure)
        return table if self.scale.single or self._holds(table, found) else None

    def _best_variable(self, tolerance: float) -> tuple[bool, Tensor]:
        shape = self.coefficients.shape
        plain = (_to_plain(self.terms, self.reach) @ self.coefficients.flatten(2)).view(shape)
        most, least = (coefficients_needed(c.transpose(0, 1), tolerance) for c in (_relative(plain), self.relative))
        warped = most > min(least + ASIN, self.terms - _SPARE)
        chosen, needed = (self.coefficients, least) if warped else (plain, most)
        return warped, chosen[:, : needed + 1]

    @functools.cached_property
    def diagonals(self) -> tuple[dict[Kernel, tuple[int, Tensor]], dict[Kernel, tuple[int, Tensor]]]:
        """Series in the norm of values on the diagonal: of the kernels, and of what they are compared with."""
        along = self._series(self.along)
        return along, along if self.own is self.along else self._series(self.own)

    def _series(self, diagonals: dict[Kernel, Tensor]) -> dict[Kernel, tuple[int, Tensor]]:
        t = self.t[: self.size]
        own = torch.stack([values[: self.size] for values in diagonals.values()])
        # over the power that leaves least to vary, the digits of short rows are not lost beside long ones
        powers = (0,) if self.scale.single else _POWERS
        over = torch.stack([own / t**power for power in powers])
        low, high = torch.aminmax(over, dim=2)
        best = torch.where(low > 0.0, high / low, math.inf).argmin(0).tolist()
        return {
            kind: (powers[i], self.norm @ over[i, k]) for k, (kind, i) in enumerate(zip(diagonals, best, strict=True))
        }

    def _holds(self, table: Table, found: Tensor) -> bool:
        """Whether the table keeps its digits between its nodes, at norms of every order of magnitude."""
        columns = slice(0, None, max(1, len(self.x) // 8))
        x = self.x[columns]
        x = x if table.warped else torch.sin(x * math.asin(self.reach)) / self.reach
        t = self.t[self.size :]
        ja, jb = self.checks
        ia, ib = ja - self.size, jb - self.size
        basis = chebyshev(self.size, self.scale.position(t))
        lookup = basis[:, : found.shape[2]]
        at_angles = (chebyshev(found.shape[1], x) @ found.flatten(2)).unflatten(2, found.shape[2:])
        quotients = (lookup @ at_angles @ lookup.T)[:, :, ia, ib].transpose(1, 2)
        size = torch.stack([(basis @ weights).mul_(t**power) for power, weights in table.measure.values()]).sqrt()
        off = (quotients * (size[:, ia] * size[:, ib])[..., None] - self.exact[:, :, columns]).abs()
        return bool((off <= self.check * (self.measure[:, ja] * self.measure[:, jb]).sqrt()[..., None]).all())


def _odd(network: Network) -> bool:
    """Whether all its kernels are odd functions of the cosine."""
    plain = not isinstance(network, DEQSlope) and (isinstance(network, ENN) or network.variances[2] == 0.0)
    return plain and all(phi.parity == "odd" for phi in network.activations)


def _wanted(relative: Tensor, tolerance: float) -> int:
    """How many of (orders, ...) would do: those that are there, or more by the rate at which the last half falls."""
    there = len(relative)
    if there - coefficients_needed(relative, tolerance) >= _SPARE:
        return there
    size = relative.flatten(1).amax(1) if relative.ndim > 1 else relative
    half, end = float(size[there // 2 : there // 2 + _SPARE].max()), float(size[-_SPARE:].max())
    fall = math.log(max(half, tolerance) / max(end, tolerance)) / (there - there // 2 - 1)
    missing = math.log(max(end / tolerance, 1.0)) / fall if fall > 0.0 else math.inf
    return there + 1 + int(min(_MOST_MISSED * missing, there))


def _relative(coefficients: Tensor) -> Tensor:
    """Sizes of coefficients (kinds, ...), beside the largest of their kind."""
    size = coefficients.abs()
    return size / size.amax((1, 2, 3), keepdim=True).clamp_min(1e-300)


@functools.lru_cache(maxsize=16)
def _to_plain(terms: int, reach: float) -> Tensor:
    """From series in the angle to series in its sine."""
    x = torch.from_numpy(nodes(terms))
    return torch.tensor(to_coefficients(terms)) @ chebyshev(terms, torch.asin(x * reach) / math.asin(reach))
