"""Building tables, and keeping them: a network asked again about norms it has seen pays nothing.

Which table serves a matrix depends on the network and on the range of the norms, rounded outwards, and on nothing else:
results are the same whatever was computed before.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor

from .._chebyshev import nodes, to_coefficients
from ..errors import NotSoDeepError
from ..networks import DEQ, ENN, Kernel, Network, check_kernels
from .evaluate import at_entries
from .lookup import NormScale, Table, chebyshev, coefficients_needed
from .near import NearSeries, near_series
from .pointwise import diagonal
from .sampling import Unresolved, sample
from .slopes import DEQSlope

__all__ = ["SHORT", "angle_cap", "build_table", "near_for", "rounded_range", "table_for"]

T = TypeVar("T")
_TOLERANCE = 2e-14
_NOISY_TOLERANCE = 2e-13  # kinked, near r = +-1: rounding of the cosine is magnified by the angle
_ANGLES = (64, 128, 256)  # sizes at which the decay of the coefficients is read off
_NORMS = (24, 48)
_ASIN = 11  # terms that cost as much as the arcsine
_KINK_CAP = 0.95  # kinked activations: k is analytic in the angle, but not uniformly so near r = +-1
_STEPS = 4  # ends of ranges are powers of 2^(1/4)
_KEPT = 64  # tables
SHORT = 1e-6  # of the longest row; shorter ones, evaluated one by one, are not worth a wider table
_POWERS = (0, 2, 4)  # of the norm, like one of which a kernel on the diagonal starts
_CHECKED = 6  # norms at which a finished table is held against the kernel itself
_CHECK = 1e-11  # of the kernels of the two points with themselves
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


_tables: OrderedDict[tuple[object, ...], Table | Unresolved | None] = OrderedDict()
_near: OrderedDict[tuple[object, ...], NearSeries | None] = OrderedDict()
_lock = threading.RLock()


def table_for(network: Network, rates: Sequence[float] | None, scale: NormScale, pairs: float) -> Table | None:
    """The table of all kernels of a network on a rounded range; ``None`` where none reaches full accuracy.

    A table that takes integrals entry by entry is made only for many more ``pairs`` than it has entries.
    """
    plain = network.detached() if isinstance(network, DEQ) else network
    key = plain, None if rates is None else tuple(rates), scale
    with _lock:
        found = _kept(key, lambda: build_table(plain, rates, scale))
        if isinstance(found, Unresolved):
            octave = math.floor(math.log2(min(pairs, _MANY)))
            found = None
            if 2.0**octave >= _PATIENT:
                found = _kept((*key, octave), lambda: build_table(plain, rates, scale, pairs=2.0**octave))
        return None if isinstance(found, Unresolved) else found


def near_for(network: Network, table: Table) -> NearSeries | None:
    """What serves entries beyond the reach of a table, near r = 1, if anything does."""
    if not isinstance(network, DEQ):
        return None
    plain = network.detached()
    with _lock:
        key = plain, table.norms, tuple(next(iter(table.coefficients.values())).shape)
        if key not in _near:
            _near[key] = near_series(plain, table)
            while len(_near) > _KEPT:
                _near.popitem(last=False)
        return _near[key]


def _kept(key: tuple[object, ...], build: Callable[[], Table | None]) -> Table | Unresolved | None:
    if key in _tables:
        _tables.move_to_end(key)
        return _tables[key]
    found: Table | Unresolved | None
    try:
        found = build()
    except Unresolved as slow:
        found = slow.with_traceback(None)
    _tables[key] = found
    while len(_tables) > _KEPT:
        _tables.popitem(last=False)
    return found


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


@dataclass(frozen=True)
class _Recipe:
    """What is tabulated: handed from step to step."""

    network: Network
    kinds: tuple[Kernel, ...]
    rates: Sequence[float] | None
    scale: NormScale
    reach: float
    tolerance: float
    patient: bool

    def sample(self, t: Tensor, pairs: tuple[Tensor, Tensor], cosines: Tensor) -> dict[Kernel, Tensor]:
        return sample(self.network, t, pairs, cosines, self.kinds, self.rates, patient=self.patient)

    def diagonal(self, t: Tensor) -> dict[Kernel, Tensor]:
        return diagonal(self.network, t**2, self.kinds, self.rates, check=False)

    # entries are compared with the kernel of a point with itself, also where its slopes are tabulated
    @property
    def own(self) -> _Recipe:
        if not isinstance(self.network, DEQSlope):
            return self
        return replace(self, network=self.network.deq, kinds=(self.network.kernel,))

    def by_kind(self, found: Mapping[Kernel, T]) -> dict[Kernel, T]:
        """What was found for :attr:`own`, under the names of this."""
        return dict(found) if self.own is self else dict.fromkeys(self.kinds, found[self.own.kinds[0]])

    def measure(self, t: Tensor) -> dict[Kernel, Tensor]:
        return self.by_kind(self.own.diagonal(t))


def build_table(
    network: Network, rates: Sequence[float] | None, scale: NormScale, pairs: float | None = None
) -> Table | None:
    """All kernels of a network that exist on this range of norms; ``None`` where no table reaches full accuracy.

    Raises :class:`Unresolved` where it would take integrals entry by entry; given ``pairs`` they are done, if the
    table has fewer entries than half of these.
    """
    reach = angle_cap(network)
    noisy = reach == 1.0 and any(phi.kinks for phi in network.activations)
    tolerance = _NOISY_TOLERANCE if noisy else _TOLERANCE
    for kinds in (
        network.kinds,
        network.kinds[:1],
    ):  # the CK exists where tangent kernels diverge, and for functions that jump
        try:
            kinds = check_kernels(network, kinds)
            return _build(_Recipe(network, kinds, rates, scale, reach, tolerance, pairs is not None), pairs or math.inf)
        except NotSoDeepError:
            continue
    return None


def _build(recipe: _Recipe, pairs: float) -> Table | None:
    scale, reach = recipe.scale, recipe.reach
    shape = _angles(recipe)
    size = 1 if scale.single else _norms(recipe)
    along = _along(recipe)
    measure = along if recipe.own is recipe else _along(recipe.own)
    if along is None or measure is None or shape is None or size is None or shape[0] * size * (size + 1) > pairs:
        return None
    angles, warped = shape
    t = scale.nodes(size)
    x = torch.from_numpy(nodes(angles))
    ia, ib = torch.triu_indices(size, size)
    values = recipe.sample(t, (ia, ib), _cosines(x, reach, warped))
    weights = dict.fromkeys(recipe.kinds, torch.ones_like(t))
    if not scale.single:
        weights = {k: v.rsqrt() for k, v in recipe.measure(t).items()}
    coefficients = {kind: _transform(v, weights[kind], ia, ib) for kind, v in values.items()}
    if not all(bool(torch.isfinite(c).all()) for c in coefficients.values()):
        return None
    table = Table(scale, reach, warped, recipe.network.homogeneous, coefficients, along, recipe.by_kind(measure))
    return table if scale.single or _holds(table, recipe) else None


def _holds(table: Table, recipe: _Recipe) -> bool:
    """Whether the table keeps its digits between its nodes, at norms of every order of magnitude."""
    t = torch.logspace(math.log10(table.norms.low), math.log10(table.norms.high), _CHECKED, dtype=torch.float64)
    t = t.clamp(table.norms.low, table.norms.high)
    ia, ib = torch.triu_indices(_CHECKED, _CHECKED)
    x = torch.tensor([-0.93, 0.41, 0.97], dtype=torch.float64)
    own = recipe.measure(t)
    for kind, exact in recipe.sample(t, (ia, ib), _cosines(x, table.reach, table.warped)).items():
        level = table.level(kind, 1.0, torch.float64)
        left, right = (table.side(level, kind, t, signed=k)[i] for i, k in ((ia, True), (ib, False)))
        found = torch.stack([at_entries(level, left, right, v.expand(len(ia))) for v in x], dim=1)
        scale = (own[kind][ia] * own[kind][ib]).sqrt()[:, None]
        if not bool(((found - exact).abs() <= _CHECK * scale).all()):
            return False
    return True


def _cosines(x: Tensor, reach: float, warped: bool) -> Tensor:
    return torch.sin(x * math.asin(reach)) if warped else x * reach


def _transform(values: Tensor, weights: Tensor, ia: Tensor, ib: Tensor) -> Tensor:
    """Nodal values of the upper triangle (pairs, angles) to coefficients (angles, norms, norms)."""
    angles, norms = values.shape[1], len(weights)
    full = torch.empty(angles, norms, norms, dtype=torch.float64)
    full[:, ia, ib] = full[:, ib, ia] = (values * (weights[ia] * weights[ib])[:, None]).T
    along = torch.tensor(to_coefficients(norms))
    return torch.tensordot(torch.tensor(to_coefficients(angles)), along @ full @ along.T, dims=1).contiguous()


def _along(recipe: _Recipe) -> dict[Kernel, tuple[int, Tensor]] | None:
    for size in (1,) if recipe.scale.single else _NORMS:
        t = recipe.scale.nodes(size)
        transform = torch.tensor(to_coefficients(size))
        found: dict[Kernel, tuple[int, Tensor]] = {}
        for kind, values in recipe.diagonal(t).items():
            # over the power that leaves least to vary, the digits of short rows are not lost beside long ones
            power = 0 if size == 1 else min(_POWERS, key=lambda p, v=values: _spread(v / t**p))  # type: ignore[misc]
            weights = transform @ (values / t**power)
            if size > 1 and coefficients_needed(weights, _TOLERANCE) > size - 3:
                break
            found[kind] = power, weights[: coefficients_needed(weights, 1e-15)].contiguous()
        else:
            return found
    return None


def _spread(values: Tensor) -> float:
    low, high = torch.aminmax(values)
    return float(high / low) if float(low) > 0.0 else math.inf


def _ends(scale: NormScale) -> Tensor:
    return torch.tensor([scale.low, scale.high], dtype=torch.float64)


def _angles(recipe: _Recipe) -> tuple[int, bool] | None:
    """How many terms the angle takes, and in which variable."""
    few = [0] if recipe.scale.single else [0, 0, 1], [0] if recipe.scale.single else [0, 1, 1]
    pairs = torch.tensor(few[0]), torch.tensor(few[1])
    reach, tolerance = recipe.reach, recipe.tolerance
    for size in _ANGLES:
        x, transform = torch.from_numpy(nodes(size)), torch.tensor(to_coefficients(size))
        c = transform @ torch.cat(list(recipe.sample(_ends(recipe.scale), pairs, _cosines(x, reach, True)).values())).T
        needed = _needed(c, tolerance)
        if needed is None:
            continue
        # the same polynomial in the plain cosine
        other = _needed(transform @ chebyshev(size, torch.asin(x * reach) / math.asin(reach)) @ c, tolerance)
        return (needed, True) if other is None or other > needed + _ASIN else (other, False)
    return None


def _needed(c: Tensor, tolerance: float) -> int | None:
    """How many coefficients carry each column to the tolerance, and one more; ``None`` if these are not enough."""
    if not bool(torch.isfinite(c).all()):
        return None
    relevant = (c.abs() > tolerance * c.abs().amax(0)).any(dim=1).nonzero()
    needed = int(relevant.max()) + 1 if len(relevant) else 1
    return needed + 1 if needed <= len(c) - 2 else None


def _norms(recipe: _Recipe) -> int | None:
    """How many terms the norms take."""
    cosines = recipe.reach * torch.tensor([1.0, -1.0, 0.3], dtype=torch.float64)
    for size in _NORMS:
        t = torch.cat([recipe.scale.nodes(size), _ends(recipe.scale)])
        pairs = torch.arange(size).repeat(2), torch.tensor([size, size + 1]).repeat_interleave(size)
        found, own = recipe.sample(t, pairs, cosines), recipe.measure(t)
        rows = [v / own[k].sqrt()[pairs[0]][:, None] for k, v in found.items()]
        split = torch.cat([row.reshape(2, size, -1).transpose(0, 1).flatten(1) for row in rows], dim=1)
        needed = _needed(torch.tensor(to_coefficients(size)) @ split, recipe.tolerance)
        if needed is not None:
            return needed
    return None
