"""Gauss-Legendre panels that end at the kinks of a function and are as short as its features.

The panels are found once per activation, octave by octave away from zero, from the decay of Legendre coefficients; a
function that follows straight lines far out needs none there. :func:`normal_nodes` adds what the normal weight needs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._caches import cached
from ..errors import ConvergenceError
from .forms import Function

_FAR = 2.0**13  # where a function that follows a straight line far out must have reached it


@dataclass(frozen=True)
class Limits:
    """The tuning numbers of activations and of their Gaussian expectations."""

    order: int = 20  # nodes of a panel: a function like a polynomial of degree 39 there is integrated exactly
    reach: float = 13.0  # standard deviations: exp(-13^2 / 4) < 1e-18, enough against sqrt(weight) h_k too
    unresolved: float = 1e-9  # last coefficients of a resolved panel: those that the rule misses are 1e-18 then
    shortest: float = 2.0**-10  # the shortest panel: with 20 nodes it resolves waves of length 1e-4
    most: int = 1 << 13  # panels in an octave: more would take a second to evaluate
    joined: int = 256  # panels of which it is asked whether fewer do
    terms: int = 1 << 17  # Hermite coefficients at most: so many take two seconds at each scale
    held: int = 1 << 21  # numbers held at once: 16 MB
    block: int = 1 << 16  # numbers worked on at once: ten results of this size fit a second-level cache
    chebyshev_degree: int = 12  # above it, powers would lose digits in single precision, Chebyshev sums do not
    degree: int = 64  # of the polynomials of a unit
    fineness: float = 256.0  # alpha (degree + 10) of its functions: their tables take 330 MB then
    smooth_terms: int = 6144  # Hermite coefficients of smooth units at most: degree 32 with alpha 1.2 needs them
    singular_terms: int = 4096  # of units with a kink: beyond, ``expansion`` orders in 1/k are exact to 1e-15
    expansion: int = 5


LIMITS = Limits()
ORDER, REACH = LIMITS.order, LIMITS.reach


@cached(16)
def legendre(order: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on [-1, 1] (float64, CPU)."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


def panel_nodes(edges: Tensor, order: int = ORDER) -> tuple[Tensor, Tensor]:
    """Return a composite rule on sorted ``edges`` (..., m+1): nodes and Lebesgue weights, each (..., m * order)."""
    x, w = legendre(order)
    half = 0.5 * (edges[..., 1:] - edges[..., :-1])
    mid = 0.5 * (edges[..., 1:] + edges[..., :-1])
    nodes = mid[..., None] + half[..., None] * x
    weights = half[..., None] * w.expand_as(nodes)
    return nodes.flatten(-2), weights.flatten(-2)


class Panels:
    """The kinks of a function, and the panels on which it looks like a polynomial; this class is abstract."""

    kinks: tuple[float, ...]

    def edges(self, reach: float, shared: bool = False) -> Tensor:
        """Return panel edges up to ``reach`` on both sides, unsorted; ``shared``: fine enough for any stretch."""
        raise NotImplementedError

    def unstretched(self) -> tuple[Panels, float]:
        """Return panels of some g and a factor c with f(x) = g(c x)."""
        return self, 1.0


@dataclass(frozen=True)
class Straight(Panels):
    """The panels of a function that is linear between its kinks."""

    kinks: tuple[float, ...]

    def edges(self, reach: float, shared: bool = False) -> Tensor:
        return torch.tensor([0.0, *self.kinks], dtype=torch.float64)


@dataclass(frozen=True)
class Stretched(Panels):
    """The panels of f(scale * x), from those of f."""

    base: Panels
    scale: float

    @property
    def kinks(self) -> tuple[float, ...]:  # type: ignore[override]
        return tuple(k / self.scale for k in self.base.kinks)

    def edges(self, reach: float, shared: bool = False) -> Tensor:
        return self.base.edges(self.scale * reach, shared) / self.scale

    def unstretched(self) -> tuple[Panels, float]:
        base, factor = self.base.unstretched()
        return base, factor * self.scale


def normal_nodes(tau: Tensor, panels: Panels, terms: int = 0, shared: bool = False) -> tuple[Tensor, Tensor]:
    """Return nodes xi and weights, (len(tau), N), of E[f(tau xi)], for Hermite polynomials up to ``terms`` in f."""
    tau = tau.detach().to(torch.float64).cpu()
    nodes, weights = panel_nodes(normal_edges(tau, panels, terms, shared).sort(dim=1).values)
    return nodes, weights * torch.exp(-0.5 * nodes * nodes) / math.sqrt(2.0 * math.pi)


def normal_edges(tau: Tensor, panels: Panels, terms: int = 0, shared: bool = False) -> Tensor:
    """Return the edges between those nodes, unsorted: (len(tau), panels + 1)."""
    scale = tau.clamp_min(1e-150)[:, None]
    pieces = math.ceil(2.0 * REACH * max(1.0, math.sqrt(terms / 512.0)))
    base = torch.linspace(-REACH, REACH, pieces + 1, dtype=torch.float64)
    inner = panels.edges(REACH * float(scale.max()) if len(tau) else 1.0, shared)
    return torch.cat([base.expand(len(tau), -1), (inner / scale).clamp(-REACH, REACH)], dim=1)


@dataclass(frozen=True)
class Tails:
    """A function that is a straight line beyond ``reach``, to rounding: intercept and slope on either side."""

    reach: float
    left: tuple[float, float]
    right: tuple[float, float]


class Resolved(Panels):
    """Equal panels in every octave away from zero, as many as given functions need, found as they are asked for."""

    def __init__(
        self, functions: Sequence[Function], kinks: tuple[float, ...], tails: Tails | None, label: str
    ) -> None:
        self._functions, self.kinks, self._tails, self._label = functions, kinks, tails, label
        self._counts: list[int] = []
        self._largest = [0.0] * len(functions)

    def edges(self, reach: float, shared: bool = False) -> Tensor:
        positive, most, low = [0.0], 1, 0.0
        for octave in range(1021):  # up to 2^1020
            needed = 0 if low >= reach else self.count(octave)
            # stretched, a panel may straddle two octaves: twice as many keep it short enough in both
            most = max(most, 2 * needed)
            count = most if shared and low < reach else needed
            if count == 0:
                break
            high = 2.0**octave
            positive += [low + (high - low) * (i + 1) / count for i in range(count)]
            low = high
            if len(positive) > 4 * LIMITS.most:
                raise self._unresolved(reach)
        out = torch.tensor(positive, dtype=torch.float64)
        return torch.cat([-out.flip(0), out[1:], torch.tensor(self.kinks, dtype=torch.float64)])

    def count(self, octave: int) -> int:
        """Count panels on [0, 1] (octave 0) or [2^(octave - 1), 2^octave], on either side; 0: straight from here on."""
        while len(self._counts) <= octave:
            self._counts.append(self._needed(len(self._counts)))
        return self._counts[octave]

    def _needed(self, octave: int) -> int:
        low, high = (0.0, 1.0) if octave == 0 else (2.0 ** (octave - 1), 2.0**octave)
        if self._tails is not None and low >= self._tails.reach:
            return 0
        count = self._counts[-1] if self._counts else 1
        count = max(1, count // 2)
        while (high - low) / count >= LIMITS.shortest and count <= LIMITS.most:
            if self._resolves(low, high, count):
                return count
            count *= 2
        raise self._unresolved(high)

    def _resolves(self, low: float, high: float, count: int) -> bool:
        step = np.linspace(low, high, count + 1)
        inside = [k for k in self.kinks if low < abs(k) < high]
        cuts = np.unique([*step, *(k for k in inside if k > 0)]), np.unique([*-step, *(k for k in inside if k < 0)])
        x = torch.cat([panel_nodes(torch.from_numpy(c))[0] for c in cuts])
        return _resolved(self._functions, x, self._largest)

    def _unresolved(self, reach: float) -> ConvergenceError:
        return ConvergenceError(
            f"{self._label} varies too fast for Gaussian expectations that reach |x| = {reach:.3g}: its panels there "
            f"would be shorter than {LIMITS.shortest:.1e} or more than {LIMITS.most}; scale the inputs down"
        )


def _resolved(functions: Sequence[Function], x: Tensor, largest: list[float]) -> bool:
    """Say whether the last coefficients on panels are small beside the ``largest`` values so far, which are updated."""
    good = True
    for i, function in enumerate(functions):
        values = function(x).detach().reshape(-1, ORDER)
        if not bool(torch.isfinite(values).all()):
            return False
        largest[i] = max(largest[i], float(values.abs().max()))
        rough = (values @ to_legendre(ORDER).T)[:, -4:].abs().max()
        good = good and float(rough) <= LIMITS.unresolved * largest[i] + 1e-300
    return good


def joined(functions: Sequence[Function], edges: Tensor, kinks: Tensor) -> Tensor:
    """Return fewer of these sorted edges, from zero outwards, where longer panels resolve the functions too."""
    if len(edges) > LIMITS.joined:
        return edges
    keep, largest, fixed = [0.0], [0.0] * len(functions), set(kinks.tolist())
    for side in (edges[edges >= 0.0], edges[edges <= 0.0].flip(0)):
        start = 0.0
        for here, after in itertools.pairwise(side[1:].tolist()):
            ends = torch.tensor(sorted((start, after)), dtype=torch.float64)
            if here in fixed or not _resolved(functions, panel_nodes(ends)[0], largest):
                keep.append(start := here)
        keep += side[-1:].tolist()
    return torch.tensor(sorted(set(keep)), dtype=torch.float64)


@cached(4)
def to_legendre(order: int) -> Tensor:
    """Return the matrix from values at the nodes to Legendre coefficients."""
    x, w = (part.numpy() for part in legendre(order))
    k = np.arange(order)
    return torch.from_numpy((np.polynomial.legendre.legvander(x, order - 1) * w[:, None] * (k + 0.5)).T.copy())


def find_tails(value: Function, slope: Function, kinks: Sequence[float]) -> Tails | None:
    """Return the straight lines that a function follows far out, or ``None``."""
    far = torch.tensor([-_FAR, _FAR], dtype=torch.float64)
    a = slope(far).detach()
    if not bool(torch.isfinite(a).all()):
        return None
    beyond = [2.0**j for j in range(8) if 2.0**j > max((abs(k) for k in kinks), default=0.0)]
    for reach in beyond:
        at = torch.tensor([-reach, reach], dtype=torch.float64)
        b = value(at).detach() - a * at
        b = torch.where(b.abs() <= 1e-14 * (1.0 + (a * at).abs()), torch.zeros_like(b), b)
        if _straight(value, slope, a, b, reach):
            return Tails(reach, (float(b[0]), float(a[0])), (float(b[1]), float(a[1])))
    return None


def _straight(value: Function, slope: Function, a: Tensor, b: Tensor, reach: float) -> bool:
    steps = reach * 2.0 ** torch.linspace(0.0, math.log2(_FAR / reach), 400, dtype=torch.float64)
    x = torch.stack([-steps, steps])
    line = a[:, None] * x + b[:, None]
    off = (value(x).detach() - line).abs() <= 1e-15 * (1.0 + line.abs() + b.abs()[:, None])
    bent = (slope(x).detach() - a[:, None]).abs() <= 1e-15 * (1.0 + a.abs()[:, None])
    return bool(off.all()) and bool(bent.all())


def hermite_table(x: Tensor, first: Tensor, terms: int, block: int | None = None) -> Iterator[Tensor]:
    """Yield blocks of first * h_k(x), k < terms, at flat points; h_(k+1) = (x h_k - sqrt(k) h_(k-1)) / sqrt(k + 1)."""
    before, here = torch.zeros_like(x), first
    for start in range(0, terms, block or terms):
        rows = torch.empty(min(block or terms, terms - start), len(x), dtype=x.dtype)
        for k, row in enumerate(rows, start):
            row.copy_(here)
            before, here = row, (x * row).sub_(before, alpha=math.sqrt(k)).div_(math.sqrt(k + 1))
        yield rows
