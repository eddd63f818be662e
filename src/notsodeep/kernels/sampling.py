"""Layers on grids of norms and angles: what tables are made from, and what serves entries beyond their reach.

All pairs of norms share their cosines, so each layer is integrated once, at common correlations: its Hermite series
there is one matrix product for all pairs. In between it is a Chebyshev series of the angle, on which the recursion of
an explicit network runs and the equation of a DEQ is solved, for all entries at once.

Near r = +-1 the kernel of a DEQ whose activation has a kink at zero has a cone, which no table follows. As a function
of the angle at equilibrium it is analytic. So :class:`NearSeries` tabulates the layer there.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .._caches import cached
from .._chebyshev import needed, nodes, series_sum, to_coefficients
from ..activations import Activation
from ..activations.forms import correlation
from ..gaussian import hermite_coefficients
from ..gaussian.rule import BLOCK, may_share
from ..networks import DEQ, Kernel, Network
from ._limits import LIMITS
from .expectations import Layer
from .plane import polar_grid
from .pointwise import (
    KernelSpec,
    OnDiagonal,
    at_each_layer,
    equilibrium_variance,
    gap_check,
    largest_rounded,
    solve_covariance,
)
from .recursion import LayerMaps, Precomputed, equation, explicit, implicit
from .table import Level, NormScale, Table


def sample(
    spec: KernelSpec, t: Tensor, pairs: Tensor, cosines: Tensor, *, tolerance: float, patient: bool
) -> tuple[dict[Kernel, Tensor], dict[Kernel, Tensor]]:
    """Kernels of points of norms t with themselves, and at norms (t[i], t[j]) for each of the ``pairs`` (2, ...).

    The second are at all ``cosines``: (pairs, cosines) each; series leave out less than the ``tolerance``. Raises
    :class:`ConvergenceError` where the equations have no solution, and :class:`Unresolved` where only integrals entry
    by entry would do, unless ``patient``.
    """
    ia, ib = pairs
    network, kernels = spec.network, spec.names
    with torch.no_grad():
        dot = (t[ia] * t[ib])[:, None] * cosines
        squares = t**2
        try:
            if isinstance(network, DEQ):
                q = equilibrium_variance(network, squares)
                own = Precomputed(*OnDiagonal(network.activation).both(q))
                along = implicit(q, own, network.variances[0], kernels, gap_check(network), network.readout)
                return along, _implicit(network, q, own, ia, ib, dot, kernels, tolerance)
            layers = (_layer(phi, q, ia, ib, tolerance) for phi, (q,) in at_each_layer(network, squares))
            found = explicit(dot, layers, spec.rates or (), kernels)
        except Unresolved:
            if not patient:
                raise
            found = spec.pairwise(squares[ia][:, None], squares[ib][:, None], dot)
        return spec.diagonal(squares), found


class Unresolved(Exception):
    """A layer that no short series in the angle reproduces on the grid."""


def _implicit(
    deq: DEQ,
    q: Tensor,
    own: Precomputed,
    ia: Tensor,
    ib: Tensor,
    dot: Tensor,
    kernels: Sequence[Kernel],
    tolerance: float,
) -> dict[Kernel, Tensor]:
    drive, sigma_a2 = deq.drive(dot), deq.variances[0]
    bound = _root(q[ia], q[ib])[:, None]
    layer = _layer(deq.activation, q, ia, ib, tolerance, own, functools.partial(_range, deq, q, ia, ib, drive))
    lam = torch.minimum(torch.maximum(drive, -bound), bound)
    for _ in range(LIMITS.steps):  # far from rho = +-1 Newton needs no bracket; where it does, entry by entry
        found = layer.both(lam)
        rest, rate = equation(Precomputed(*found), lam, sigma_a2, drive)
        move = rest / rate.clamp_min(1e-3)
        if float((move.abs() / bound).max()) <= LIMITS.rest_share * tolerance:
            break
        lam = torch.minimum(torch.maximum(lam - move, -bound), bound)
    else:
        raise Unresolved
    if isinstance(layer, _AngleSeries) and not layer.holds(lam):
        raise Unresolved
    return implicit(lam, Precomputed(*found), sigma_a2, kernels, gap_check(deq), deq.readout)


def _range(deq: DEQ, q: Tensor, ia: Tensor, ib: Tensor, drive: Tensor) -> tuple[float, float]:
    """The correlations at equilibrium for the outermost norms and cosines, and some room around them."""
    size = _root(q[ia], q[ib])
    few = torch.stack([size.argmin(), size.argmax(), (q[ia] / q[ib]).log().abs().argmax()])
    ends = torch.stack(torch.aminmax(drive[few], dim=1), dim=1)
    rho = rough_correlations(deq, q, ia[few], ib[few], ends)
    low, high = float(rho.min()), float(rho.max())
    return low - 0.2 * (1.0 + low), high + 0.2 * (1.0 - high)


def rough_correlations(deq: DEQ, q: Tensor, ia: Tensor, ib: Tensor, drive: Tensor) -> Tensor:
    """About the correlations at equilibrium, from a few Hermite coefficients."""
    root = _root(q[ia], q[ib])[:, None]
    terms = 64
    a = torch.as_tensor(hermite_coefficients(deq.activation, q, terms))
    products = (a[ia] * a[ib])[:, None, :] * deq.variances[0] / root[:, :, None]
    push, orders = drive / root, torch.arange(terms, dtype=torch.float64)
    rho = push.clamp(-1.0, 1.0)
    for _ in range(LIMITS.steps):  # a contraction
        before, rho = rho, (push + (products * rho[..., None] ** orders).sum(-1)).clamp(-1.0, 1.0)
        if float((rho - before).abs().max()) <= 1e-4:
            break
    return rho


# ---- one layer -------------------------------------------------------------------------------------------


def _layer(
    phi: Activation,
    q: Tensor,
    ia: Tensor,
    ib: Tensor,
    tolerance: float,
    own: Precomputed | None = None,
    expected: Callable[[], tuple[float, float]] | None = None,
) -> LayerMaps:
    """``own``: the layer on the diagonal; ``expected``: gives the correlations that will be asked for."""
    if not phi.elementwise or float(q.min()) <= 0.0:
        raise Unresolved
    if phi.closed_form() is not None:
        return Layer(phi, q[ia][:, None], q[ib][:, None])
    whole = (own or OnDiagonal(phi)).both(q)
    return _AngleSeries(phi, q, ia, ib, tolerance, whole, expected if phi.kinks else None)


class _AngleSeries(LayerMaps):
    """E[phi phi] and E[phi' phi'] as Chebyshev series in arcsin(rho), one for each pair of variances."""

    def __init__(
        self,
        phi: Activation,
        q: Tensor,
        ia: Tensor,
        ib: Tensor,
        tolerance: float,
        whole: tuple[Tensor, Tensor],
        expected: Callable[[], tuple[float, float]] | None,
    ) -> None:
        self.phi, self.q, self.ia, self.ib, self.tolerance = phi, q, ia, ib, tolerance
        self.whole, self.expected = whole, expected
        self.root = _root(q[ia], q[ib])[:, None]
        self.odd = None if phi.parity is None else int(phi.parity == "even")  # phi, or phi'
        self.series: Tensor | None = None

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        if self.series is None:
            self.series = self._prepared(lam)
        low, high = self.ends
        rho = (lam / self.root).clamp(math.sin(low), math.sin(high))
        x2 = (torch.asin(rho) - 0.5 * (low + high)).mul_(4.0 / (high - low))
        found = series_sum(self.series, x2.expand(2, -1, -1), None if self.odd is None else "even")
        if self.odd is not None:
            found[self.odd].mul_(x2).mul_(0.5)
        return found[0], found[1]

    def holds(self, lam: Tensor) -> bool:
        """Whether these covariances lie where the series is."""
        rho = lam / self.root
        low, high = (math.sin(end) for end in self.ends)
        return (low <= -1.0 or float(rho.min()) >= low) and (high >= 1.0 or float(rho.max()) <= high)

    def _prepared(self, lam: Tensor) -> Tensor:
        """(orders, 2, pairs, 1)."""
        low, high = -1.0, 1.0
        if self.phi.kinks:  # their series do not reach the ends: the interval is what is needed
            rho = lam / self.root
            low, high = (float(rho.min()), float(rho.max())) if self.expected is None else self.expected()
        if self.phi.parity is not None:
            low, high = min(low, -high), max(high, -low)
        narrow = 1e-6  # radians: a little wider, where all correlations are one and the same
        self.ends = (
            max(math.asin(max(low, -1.0)) - narrow, -0.5 * math.pi),
            min(math.asin(min(high, 1.0)) + narrow, 0.5 * math.pi),
        )
        # kinked functions are asked for on a part of the angle, and single precision needs fewer nodes
        sizes = (64, 128, 256) if self.tolerance < 1e-12 and not self.phi.kinks else (32, 64, 128, 256)
        grids = [torch.sin(torch.from_numpy(nodes(size, *self.ends))) for size in sizes]
        hermite = self._hermite(max(-low, high), grids[0])
        for rho in grids:
            series = torch.tensor(to_coefficients(len(rho))) @ self._values(rho, *hermite).transpose(1, 2)
            relative = series.abs() / series.abs().amax(1, keepdim=True).clamp_min(1e-300)
            length = needed(relative.transpose(0, 1), LIMITS.rest_share * self.tolerance)
            if length <= len(rho) - 3:
                series = series[:, : length + length % 2]
                series = series if self.odd is None else _even_orders(series, self.odd)
                return series.transpose(0, 1)[..., None].contiguous()
        raise Unresolved

    def _hermite(self, largest: float, rho: Tensor) -> tuple[Sequence[Tensor], float]:
        """Coefficients of phi and of phi' at all variances, for correlations up to this, and what they lack.

        Many of them are expensive: where the widest variance alone leaves too many pairs at ``rho`` to be
        integrated one by one, :class:`Unresolved` is raised before.
        """
        exact, sure = self.phi.polynomial(), LIMITS.series_share * self.tolerance
        if exact is not None:
            return _two_series(self.phi, self.q, exact.degree + 2), 0.0
        widest = largest_rounded(self.q)
        terms, missing = _enough(self.phi, widest, round(largest, 2), sure)
        if len(self.ia) * int((rho.abs() ** terms * missing > 100.0 * sure).sum()) > LIMITS.lone_entries:
            raise Unresolved
        found = _two_series(self.phi, self.q, terms)
        return found, _missing(found, self.whole)

    def _values(self, rho: Tensor, hermite: Sequence[Tensor], missing: float) -> Tensor:
        """(2, pairs, correlations): Hermite series where they have converged, one by one elsewhere."""
        terms, parity = hermite[0].shape[1], self.phi.parity
        sure = rho.abs() ** terms * missing <= LIMITS.series_share * self.tolerance
        if int((~sure).sum()) * len(self.ia) > LIMITS.lone_entries:
            raise Unresolved
        out = torch.empty(2, len(self.ia), len(rho), dtype=torch.float64)
        every = 1 if parity is None else 2
        last = math.log(1e-16) / rho.abs().clamp(1e-9, 1.0 - 1e-9).log()  # powers beyond are nothing
        parts = (64, 16, 4) if terms >= 512 else ()
        for low, high in itertools.pairwise((0, *(terms // part for part in parts), terms)):
            which = (sure & (last > low) & ((last <= high) | (high == terms))).nonzero().squeeze(1)
            steps = rho[which].repeat(high, 1)
            steps[0] = 1.0
            powers = steps.cumprod(0)
            for k, a in enumerate(hermite):
                first = 0 if parity is None else int((parity == "odd") != bool(k))
                used, rising = a[:, first:high:every], powers[first::every]
                rows = zip(*(part.split(max(1, (1 << 19) // high)) for part in (self.ia, self.ib)), strict=True)
                out[k, :, which] = torch.cat([(used[i] * used[j]) @ rising for i, j in rows])
        if not bool(sure.all()):
            few = rho[~sure]
            qx, qy = (self.q[i].repeat_interleave(len(few)) for i in (self.ia, self.ib))
            found = Layer(self.phi, qx, qy).both(_root(qx, qy) * few.repeat(len(self.ia)))
            out[:, :, ~sure] = torch.stack(found).reshape(2, len(self.ia), -1)
        return out


def _even_orders(series: Tensor, odd: int) -> Tensor:
    """Coefficients of an even and an odd function (2, orders, pairs), the odd one divided by x, which is even too.

    T_(2m+1) / x = 2 T_(2m) - 2 T_(2m-2) + ... +- T_0.
    """
    found = series[:, ::2].clone()
    falling = series[odd, 1::2]
    signs = torch.ones(len(falling), 1, dtype=torch.float64)
    signs[1::2] = -1.0
    found[odd] = 2.0 * signs * (signs * falling).flip(0).cumsum(0).flip(0)
    found[odd, 0] *= 0.5
    return found


def _root(qx: Tensor, qy: Tensor) -> Tensor:
    """sqrt(qx qy), also where the product is no number."""
    return qx.sqrt() * qy.sqrt()


@cached(256)
def _enough(phi: Activation, widest: float, largest: float, sure: float) -> tuple[int, float]:
    """How many terms the largest variance needs, smaller ones need fewer, and what these leave out."""
    q = torch.tensor([widest], dtype=torch.float64)
    whole = OnDiagonal(phi).both(q)
    powers = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
    longest = (8192, 16384) if may_share(q.sqrt(), phi.panels(), BLOCK) else ()  # where one rule serves all scales
    for terms in powers + longest:
        missing = _missing(_two_series(phi, q, terms), whole)
        if largest**terms * missing <= sure:
            break
    return terms, missing


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


@dataclass(frozen=True)
class NearSeries:
    """E[phi phi] and E[phi' phi'] for angles at equilibrium between ``angles``."""

    deq: DEQ
    norms: NormScale
    angles: tuple[float, float]
    levels: tuple[Level, Level]

    def kernels(
        self, table: Table, nx: Tensor, ny: Tensor, r: Tensor, kernels: Sequence[Kernel]
    ) -> dict[Kernel, Tensor]:
        """At entries with these norms, and cosines on the side of the series (flat float64)."""
        sigma_a2 = self.deq.variances[0]
        own = [table.diagonal("ck", t) for t in (nx, ny)]
        if self.deq.readout == "activation":
            own = [sigma_a2 * g + self.deq.drive(t * t) for g, t in zip(own, (nx, ny), strict=True)]
        qx, qy = own
        left, right = (self.norms.polynomials(len(self.levels[0].factors), t) for t in (nx, ny))
        layer = _Entries(self, qx, qy, [(level.side(left), level.side(right)) for level in self.levels])
        lam = solve_covariance(self.deq, layer, self.deq.drive(nx * ny * r), (qx * qy).sqrt())
        return implicit(lam, layer, sigma_a2, kernels, gap_check(self.deq), self.deq.readout)


def near_series(deq: Network, scale: NormScale, reach: float, dtype: torch.dtype) -> NearSeries | None:
    """The series for cosines between ``reach`` and the +-1 beyond, or ``None`` where they do not converge."""
    if not isinstance(deq, DEQ) or scale.single or scale.high > 30.0 * scale.low:
        return None
    phi = deq.activation
    # with a closed form entry by entry is quick
    if not phi.elementwise or set(phi.kinks) != {0.0} or not phi.continuous or phi.closed_form() is not None:
        return None
    wide = dtype == torch.float64
    for size, terms in ((18, 14), (28, 18), (40, 24)) if wide else ((12, 10), (16, 13), (24, 18)):
        found = _series(deq, scale, reach, size, terms, 2e-14 if wide else 1e-9)
        if found is not None:
            return found
    return None


def _series(deq: DEQ, scale: NormScale, reach: float, size: int, terms: int, short: float) -> NearSeries | None:
    phi, t = deq.activation, scale.nodes(size)
    q = equilibrium_variance(deq, t**2)
    ia, ib = torch.tensor([0, 0, size - 1]), torch.tensor([0, size - 1, size - 1])
    cosines = torch.tensor([reach, math.copysign(1.0, reach)], dtype=torch.float64)
    rho = rough_correlations(deq, q, ia, ib, deq.drive((t[ia] * t[ib])[:, None] * cosines))
    low, high = math.acos(float(rho.max())), math.acos(float(rho.min()))
    room = 0.4 * (high - low)
    low, high = (0.0, high + room) if reach > 0 else (max(0.0, low - room), min(math.pi, high + room))
    if reach > 0 and high > 0.45 * math.pi:
        return None
    beta = 0.5 * (high + low) - 0.5 * (high - low) * torch.from_numpy(nodes(terms))
    across, along = torch.tensor(to_coefficients(terms)), torch.tensor(to_coefficients(size))
    levels = []
    for values in polar_grid((phi, phi.derivative), phi.panels(), q.sqrt(), beta):
        c = torch.tensordot(across, along @ values.permute(2, 0, 1) @ along.T, dims=1)
        last = max(float(c[-2:].abs().max()), float(c[:, -2:].abs().max()))
        if last > short * float(c.abs().max()):
            return None
        levels.append(Level.of(0.5 * (c + c.transpose(1, 2)), 1e-15))
    return NearSeries(deq, scale, (low, high), (levels[0], levels[1]))


class _Entries(LayerMaps):
    """The layer at single entries, given the norm factors of phi and of phi' on both sides."""

    def __init__(self, series: NearSeries, qx: Tensor, qy: Tensor, sides: Sequence[tuple[Tensor, Tensor]]) -> None:
        self.series, self.qx, self.qy, self.sides = series, qx, qy, sides

    def subset(self, which: Tensor) -> _Entries:
        """Select some of the entries."""
        sides = [(a[:, which], b[:, which]) for a, b in self.sides]
        return _Entries(self.series, self.qx[which], self.qy[which], sides)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        low, high = self.series.angles
        angle = torch.acos(correlation(self.qx, self.qy, lam)).clamp(low, high)
        x2 = 2.0 - 4.0 * (angle - low) / (high - low)
        value, slope = (level.at(*side, x2) for level, side in zip(self.series.levels, self.sides, strict=True))
        return value, slope
