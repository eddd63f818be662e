"""A kernel as a function of two norms and an angle, tabulated once and then evaluated at matrix speed.

Every infinite-width kernel is k(||x||, ||y||, r), r the cosine between x and y. Where k is analytic (everywhere for
smooth activations; away from r = +-1 for kinked ones) a tensor of Chebyshev coefficients reproduces it to rounding:
the norm part is a product of small matrices, the angle part a short recurrence. The cost per entry does not depend on
the depth of the network or on how its activation is integrated. Homogeneous networks, and data of equal norms,
need no norm part at all: one function of r decides. Narrow ranges of the cosine, and single precision, need fewer
terms: from the one table follow its :class:`Level` objects.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from numpy.polynomial.chebyshev import chebvander
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from .._chebyshev import nodes, to_coefficients
from ..networks import Kernel

_REACHES = (0.125, 0.25, 0.5, 0.7, 0.8, 0.9)  # of the cosine; beyond, all that the table has
_SPARE = 2  # orders that must be nothing
ASIN = 11  # terms that cost as much as the arcsine
_BEND = 0.7  # the norm at which linear becomes logarithmic
_FEW = 64  # points
_ROWS = 8192  # whose norm parts are held at once
_TERMS = {torch.float64: 5e-13, torch.float32: 1e-7}  # all that is left out of the angle, beside the largest entry
_RANKS = {torch.float64: 3e-15, torch.float32: 1e-8}  # and out of the norms
_copies: WeakIdKeyDictionary = WeakIdKeyDictionary()


@dataclass(frozen=True)
class NormScale:
    """Norms in [low, high] as a variable in [-1, 1]: linear near zero, logarithmic far out, as most kernels vary."""

    low: float
    high: float

    @property
    def single(self) -> bool:
        """Whether there is but one norm."""
        return self.low == self.high

    def position(self, norms: Tensor) -> Tensor:
        """Of these norms in [-1, 1]."""
        low, high = self._ends()
        return (2.0 * torch.asinh(norms / _BEND) - (high + low)) / (high - low)

    def nodes(self, size: int) -> Tensor:
        """Chebyshev points, as norms."""
        if self.single:
            return torch.full((size,), self.low, dtype=torch.float64)
        return _BEND * torch.sinh(torch.from_numpy(nodes(size, *self._ends())))

    def holds(self, low: float, high: float) -> bool:
        """Whether norms from ``low`` to ``high`` lie inside, but for rounding."""
        return self.low * (1.0 - 1e-13) <= low and high <= self.high * (1.0 + 1e-13)

    def _ends(self) -> tuple[float, float]:
        return math.asinh(self.low / _BEND), math.asinh(self.high / _BEND)


@dataclass(frozen=True)
class Series:
    """sum_m T_m(x) sum_k f_mk(||x||) f_mk(||y||) sign_mk: Chebyshev in the angle, low rank in the norms."""

    factors: Tensor
    """(norm degree, total rank): columns of all m one after the other."""
    signs: Tensor
    """(total rank,): the sign of each column's product."""
    ranks: tuple[int, ...]
    """How many columns belong to each m."""

    def weights(self, signed: bool, device: torch.device) -> Tensor:
        """The columns, with their signs or without."""
        factors = placed(self.factors, device)
        return factors * placed(self.signs, device) if signed else factors

    @functools.cached_property
    def sums(self) -> Tensor:
        """(terms, total rank), of zeros and ones: which columns are added up for each m."""
        terms = torch.arange(len(self.ranks))
        return (terms[:, None] == terms.repeat_interleave(torch.tensor(self.ranks))).double()

    def scalars(self) -> list[float]:
        """The coefficients when there is no norm part."""
        return (self.sums @ (self.factors[0] ** 2 * self.signs)).tolist()


@dataclass(frozen=True)
class Level:
    """One kernel for |r| <= reach, with as many terms as that needs."""

    series: Series
    reach: float
    warped: bool
    """Whether the angle variable is arcsin(r) rather than r."""
    parity: str | None
    """``"odd"``, ``"even"``: only such orders are there, and the recurrence runs in T_2."""

    @property
    def cost(self) -> float:
        """Of an entry, in terms."""
        return len(self.series.ranks) + ASIN * self.warped

    def scale(self) -> float:
        """Twice the inverse of the angle variable's range."""
        return 2.0 / (math.asin(self.reach) if self.warped else self.reach)


@dataclass(frozen=True)
class Table:
    """The kernels of one network on a range of norms, up to |r| = reach."""

    norms: NormScale
    reach: float
    warped: bool
    homogeneous: bool
    coefficients: dict[Kernel, Tensor]
    """(angles, norms, norms): of the kernel over the roots of both diagonal values."""
    along: dict[Kernel, tuple[int, Tensor]]
    """The kernel of a point with itself over a power of the norm, and the series of that quotient in the norm."""
    measure: dict[Kernel, tuple[int, Tensor]]
    """The same of what the coefficients are relative to: the kernel, where the table is of its slopes."""
    _levels: dict[Any, Level] = field(default_factory=dict, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_levels": {}}

    @property
    def kinds(self) -> tuple[Kernel, ...]:
        """The kernels it holds."""
        return tuple(self.coefficients)

    @property
    def one_function(self) -> bool:
        """Whether the kernels depend on the angle alone (times both norms, if homogeneous)."""
        return self.norms.single

    def shorter(self, norms: Tensor) -> Tensor | None:
        """Which of these rows are shorter than the table covers, if any: zeros, and those beside far longer ones."""
        found = norms < self.norms.low * (1.0 - 1e-9)
        return None if self.homogeneous or not bool(found.any()) else found

    # -- the diagonal ----------------------------------------------------------------------------------------
    def diagonal(self, kind: Kernel, norms: Tensor) -> Tensor:
        """Kernels of points with themselves."""
        power, weights = self.along[kind]
        weights = placed(weights, norms.device)
        if self.norms.single:
            return weights[0] * norms**2 if self.homogeneous else weights[0].expand_as(norms).clone()
        parts = [chebyshev(len(weights), self.norms.position(part)) @ weights for part in norms.split(_ROWS)]
        return torch.cat(parts).mul_(norms**power)

    def reaches(self, below: float) -> list[float]:
        """Of the levels that are smaller."""
        return [reach for reach in _REACHES if reach < below]

    # -- between points --------------------------------------------------------------------------------------
    def level(self, kind: Kernel, largest: float, dtype: torch.dtype) -> Level:
        """The smallest level that holds cosines up to ``largest``."""
        reach = next((r for r in _REACHES if largest <= r < self.reach), self.reach)
        key = kind, reach, dtype
        if key not in self._levels:  # two threads may both compute it; they find the same
            self._levels[key] = self._restricted(kind, reach, dtype)
        return self._levels[key]

    def side(self, level: Level, kind: Kernel, norms: Tensor, signed: bool) -> Tensor:
        """The norm factors at these points: (total rank, n); the product of one signed and one unsigned side counts."""
        factors, (power, weights) = level.series.weights(signed, norms.device), self.measure[kind]
        powers = chebyshev(max(len(factors), len(weights)), self.norms.position(norms)).T
        # relative to the diagonal, short rows keep their digits beside long ones
        along = (placed(weights, norms.device) @ powers[: len(weights)]).mul_(norms**power)
        return (factors.T @ powers[: len(factors)]).mul_(along.sqrt_())

    def _restricted(self, kind: Kernel, reach: float, dtype: torch.dtype) -> Level:
        """In the variable in which it is cheaper."""
        variables = {self.warped, False} if reach < self.reach else {self.warped}
        found = (self._in_variable(kind, reach, dtype, warped) for warped in variables)
        return min((level for level in found if level is not None), key=lambda level: level.cost)

    def _in_variable(self, kind: Kernel, reach: float, dtype: torch.dtype, warped: bool) -> Level | None:
        """``None`` where the cosine needs far more terms than the angle."""
        full = self.coefficients[kind]
        if reach < self.reach:
            x = torch.from_numpy(nodes(len(full) if warped == self.warped else 2 * len(full)))
            x = torch.sin(x * math.asin(reach)) if warped else x * reach
            place = torch.asin(x) / math.asin(self.reach) if self.warped else x / self.reach
            transform = torch.tensor(to_coefficients(len(x))) @ chebyshev(len(full), place)
            full = torch.tensordot(transform, full, dims=1)
        size = full.abs().flatten(1).sum(1)
        rest = size.flip(0).cumsum(0).flip(0)
        needed = max(1, int((rest > _TERMS[dtype] * size.max()).sum()))
        if warped != self.warped and needed > len(full) - _SPARE:
            return None
        full = full[:needed]
        parity = _parity(full)
        kept = full if parity is None else full[int(parity == "odd") :: 2]
        return Level(compressed(kept, _RANKS[dtype]), reach, warped, parity)


def placed(part: Tensor, device: torch.device) -> Tensor:
    """A part of a table where the rows are, copied once: a copy waits for all that a GPU does."""
    if part.device == device:
        return part
    kept = _copies.setdefault(part, {})
    if device not in kept:
        kept[device] = part.to(device)
    return kept[device]


def coefficients_needed(c: Tensor, tolerance: float) -> int:
    """How many of the leading ones carry every entry of (angles, norms, norms), or (norms, ...), to the tolerance.

    The entries are coefficients in the norms too: they are compared with the largest of all.
    """
    size = c.abs().flatten(1).amax(1) if c.ndim > 1 else c.abs()
    relevant = (size > tolerance * size.max()).nonzero()
    return int(relevant.max()) + 1 if len(relevant) else 1  # a kernel may vanish to the last digit


def _parity(c: Tensor) -> str | None:
    size = c.abs().flatten(1).amax(1)
    even, odd = (float(size[start::2].max()) if len(size) > start else 0.0 for start in (0, 1))
    if even <= 1e-13 * odd and odd > 0:
        return "odd"
    return "even" if odd <= 1e-13 * even else None  # a kernel that vanishes is even


def compressed(coefficients: Tensor, dropped: float) -> Series:
    """Symmetric matrices C_m as sums of few signed squares; what is dropped is below rounding."""
    weights, vectors = torch.linalg.eigh(coefficients)
    size = weights.abs()
    keep = size > dropped * float(size.max())
    keep.scatter_(1, size.argmax(1, keepdim=True), True)
    columns = (vectors * size.sqrt()[:, None, :]).transpose(1, 2)[keep]
    return Series(columns.T.contiguous(), torch.sign(weights[keep]), tuple(keep.sum(1).tolist()))


def chebyshev(size: int, x: Tensor) -> Tensor:
    """T_0 ... T_(size-1) at these points, as columns."""
    if x.is_cuda:  # one launch; the rounding of k arccos(x) meets coefficients that fall with k
        return torch.cos(torch.acos(x.clamp(-1.0, 1.0))[:, None] * torch.arange(size, dtype=x.dtype, device=x.device))
    if len(x) <= _FEW:
        return torch.from_numpy(chebvander(x.numpy(), size - 1))
    rows = torch.empty(max(size, 2), len(x), dtype=x.dtype)
    rows[0], rows[1] = 1.0, x
    for k in range(2, size):
        torch.mul(x, rows[k - 1], out=rows[k]).mul_(2.0).sub_(rows[k - 2])
    return rows[:size].T
