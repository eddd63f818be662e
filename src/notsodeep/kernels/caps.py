"""Kernels of nearly parallel points, where one series in the angle would need too many terms.

There a kernel varies on a length that shrinks with the scale of the inputs; at a fixed angle it is smooth in the two
norms. So series on intervals of the angle that double away from zero resolve it. All of them share the layer between
the nodes of the norms, whose own series are in a graded variable of the angle.
"""

from __future__ import annotations

import copy
import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from .._chebyshev import needed, nodes, series_sum, to_coefficients
from .._progress import waiting
from ..activations import Activation
from ..activations.forms import wave_means
from ..activations.panels import legendre
from ..networks import Kernel, Network
from ..networks.nodes import FixedPoint, KernelState, LayerMaps
from ._limits import LIMITS
from .expectations import BOTH, Layer
from .pointwise import KernelSpec, OnDiagonal, PairDomain, TensorDomain, equilibrium_variance, mean_square
from .smoothing import pair_means, parallel_gap
from .table import Level, NormGrid, Scales, Table, product_root
from .tabulate import Nodes, Unresolved, closed_enough, layer_values

_MOST = 64  # nodes of the norms


class Cap:
    """The kernels of a network for cosines beyond the reach of a table, near r = ``sign``, on a part of its norms."""

    def __init__(self, spec: KernelSpec, table: Table, sign: int, scales: Scales) -> None:
        self.table, self.names, self.scales = table, tuple(table.coefficients), scales
        self.single = all(scale.single for scale in scales)
        self.spec = KernelSpec(spec.network, self.names, spec.rates)
        least, largest = (f(s.high for s in self.scales) * math.sqrt(spec.network.variances[1]) for f in (min, max))
        # whether kinks off zero are met, by points of different norms at angles that are not zero
        self.far = not self.single and any(
            0.0 < abs(c) < 9.5 * largest for phi in spec.network.activations for c in phi.kinks
        )
        self.sign = sign
        wide = max(scale.width for scale in self.scales)
        density = 20.0 if self.far else 7.0 if spec.network.kinked else 6.0
        self._set_size(min(_MOST, 8 + math.ceil(density * wide)))
        # the end of the first interval: within it nothing happens to functions of inputs at this scale
        self.first = 2.0 ** -max(1, math.ceil(math.log2(max(1.0, 2.0 * least))))
        # kinks off zero are at nearly the same place for points of nearly the same norm: it takes smaller angles to
        # tell them apart
        self.uncertain = LIMITS.far_intervals if self.far else 0
        self.first *= 2.0**-self.uncertain
        self._levels: dict[int, dict[Kernel, Level] | None] = {}
        self._lock = threading.RLock()  # the layers are shared

    def _set_size(self, size: int) -> None:
        """Take so many nodes of the norms."""
        left, right = (1 if scale.single else size for scale in self.scales)
        self.size, self.grid = size, NormGrid(self.scales, (left, right), 3)
        self.domain = Corner(self.grid.pairs, self.sign, math.acos(self.table.reach))
        own = self.spec.diagonal(self.grid.norms**2)
        roots = torch.stack([own[name] for name in self.names]).sqrt()
        self.roots = roots[:, self.grid.pairs].prod(1)[..., None]

    def number(self, angle: float) -> int:
        """The interval of an angle."""
        return max(0, math.ceil(math.log2(max(angle, 1e-300) / self.first)))

    def intervals(self, angle: Tensor) -> Iterator[tuple[Tensor, dict[Kernel, Level] | None, Tensor]]:
        """Entries by the interval of their angles: which they are, its series, and twice their variable."""
        interval = torch.ceil(torch.log2((angle / self.first).clamp_min(1.0))).long()
        for one in torch.unique(interval).tolist():
            which, (start, end) = (interval == one).nonzero().squeeze(1), self.interval(one)
            yield which, self.levels(one), 2.0 * (2.0 * angle[which] - (start + end)) / (end - start)

    @functools.cached_property
    def layer(self) -> LayerSeries | None:
        """The layer at equilibrium, where kernels have none: kinks at zero make cones of them, but not of it."""
        network: Any = self.spec.network
        if not network.implicit or not network.plain:
            return None
        try:
            return LayerSeries(self) if set(network.activation.kinks) == {0.0} else None
        except Unresolved:
            return None

    def interval(self, number: int) -> tuple[float, float]:
        """The angles of an interval."""
        return (0.0 if number == 0 else self.first * 2.0 ** (number - 1)), self.first * 2.0**number

    def levels(self, number: int) -> dict[Kernel, Level] | None:
        """The series on an interval, computed once; ``None`` where they fail."""
        with self._lock:
            if number not in self._levels and number <= self.uncertain and self.levels(number + 1) is None:
                self._levels[number] = None  # closer to the kinks it is no easier
            if number not in self._levels:
                try:
                    with waiting("series of nearly parallel points"):
                        self._levels[number] = self._build(*self.interval(number))
                except Unresolved:
                    self._levels[number] = None
            return self._levels[number]

    def _build(self, start: float, end: float) -> dict[Kernel, Level] | None:
        if end > math.pi or (start == 0.0 and self.far):
            return None
        smooth, terms = not self.spec.network.kinked, LIMITS.cap_angles
        while True:
            found = self.domain.kernels(self.spec, self.grid.norms, torch.from_numpy(nodes(terms, start, end)))
            values = torch.stack([found[name] for name in self.names]) / self.roots
            if not bool(torch.isfinite(values).all()):
                return None
            series = values @ torch.tensor(to_coefficients(terms)).T
            if not float(series[..., -2:].abs().max()) <= LIMITS.cap_error:
                if not smooth or terms > LIMITS.cap_angles:
                    return None
                terms *= 2
                continue
            try:
                return dict(zip(self.names, self.in_norms(series), strict=True))
            except Unresolved:
                if not smooth or self.single or self.size == _MOST:
                    raise
                self._set_size(min(_MOST, self.size + self.size // 2))

    def in_norms(self, series: Tensor) -> list[Level]:
        """Series in the angle at pairs of norms, (functions, pairs, orders), as series in the norms as well."""
        values, count = series.mT, self.grid.count
        c = self.grid.coefficients(values[..., :count])
        between = self.grid.at_checks(c) - values[..., count:]
        if not float(between.abs().sum(1).max() if between.numel() else 0.0) <= LIMITS.cap_error:
            raise Unresolved
        return [Level.of(part, 1e-15, alike=self.scales[0] == self.scales[1], scales=self.scales) for part in c]


class Corner(Nodes):
    """All pairs of some norms at common cosines near ``sign``; the layers are kept for the next cosines."""

    def __init__(self, pairs: Tensor, sign: int, widest: float) -> None:
        super().__init__(pairs, 2e-14)
        self.sign, self.widest, self.layers, self.met = sign, widest, list[LayerMaps](), 0
        # a covariance, and 1 - |rho| of it without the rounding of rho
        self.exact: tuple[Tensor | None, Tensor] = None, torch.empty(0)

    def kernels(self, spec: KernelSpec, norms: Tensor, angles: Tensor) -> dict[Kernel, Tensor]:
        """Kernels at all pairs of norms and angles from the end: (pairs, angles)."""
        with torch.no_grad():
            product, apart = norms[self.pairs].prod(0)[:, None], 2.0 * torch.sin(0.5 * angles).square()
            dot = self.sign * product * torch.cos(angles)
            self.exact, self.met = (dot, apart.expand_as(dot)), 0
            return spec.run(self, norms**2, dot)

    def layer(self, phi: Activation, points: Tensor) -> LayerMaps:
        """Return the layer, which is known from the second time on."""
        if self.met == len(self.layers):
            closed = phi.closed_form() is not None and closed_enough(phi, points, 0.0)
            self.layers.append(Layer(phi, *points[self.pairs][..., None]) if closed else _Graded(self, phi, points))
        self.met += 1
        return self.layers[self.met - 1]

    def settle(self, fixed: FixedPoint, state: KernelState) -> Tensor:
        return equilibrium_variance(fixed.network, state.points)

    def solve(self, fixed: FixedPoint, cell: Any, points: Tensor, state: KernelState) -> Tensor:
        """Solve for what a covariance lacks of its bound, where there is one layer: a difference would lose digits."""
        if not isinstance(cell, _Graded):
            return super().solve(fixed, cell, points, state)
        drive = fixed.drive(state.points)[self.pairs][..., None]
        given = fixed, drive, cell.own[self.pairs][..., None], self.exact[1], self.sign, cell.near
        # kinks off zero have a series for each interval, which would have to reach to a start far away
        lack, bound = solve_lack(*given, close=self.sign > 0 and bool(set(cell.phi.kinks) - {0.0}))
        lam = self.sign * (bound - lack)
        self.exact = lam, lack / bound
        return lam


def solve_lack(
    fixed: FixedPoint,
    drive: Tensor,
    own: Tensor,
    apart: Tensor,
    sign: int | Tensor,
    layer: Callable[[Tensor], tuple[Tensor, Tensor]],
    close: bool = False,
) -> tuple[Tensor, Tensor]:
    """What the covariances of pairs lack of the product of the deviations, and that product.

    Parameters
    ----------
    fixed : FixedPoint
        The equation.
    drive, own : tensors of shape (2, ...)
        The shares b ||x||^2 of the inputs in the variances, and E[phi^2].
    apart : tensor
        1 - |r| of the inputs.
    sign : {1, -1} or tensor
        Which of r = 1 and r = -1 is near.
    layer : callable
        E[phi phi] and E[phi' phi'] at 1 - |rho|.
    close : bool
        Begin where E[phi phi] is the product of the roots of E[phi^2] at either point, nearly so for parallel ones.
    """
    # q = b n^2 + e, and sqrt(q q') - b n n' (1 - apart) is a sum of positive terms
    (bx, by), (ex, ey) = drive, fixed.sigma_a2 * own
    bound, input = product_root(bx + ex, by + ey), product_root(bx, by)
    room = (bx * ey + by * ex + ex * ey) / (bound + input) + input * apart
    start = torch.maximum(room - product_root(ex, ey), input * apart) if close else room
    lack, last = torch.minimum(start, bound), math.inf
    for _ in range(LIMITS.steps):
        value, slope = layer(lack / bound)
        move = (lack - room + sign * fixed.sigma_a2 * value) / (1.0 - fixed.sigma_a2 * slope).clamp_min(1e-3)
        lack = torch.minimum((lack - move).clamp_min(0.0), 2.0 * bound)
        before, last = last, float((move.abs() / bound).max())
        if last <= LIMITS.tolerance or before <= last <= 25.0 * LIMITS.tolerance:  # what is evaluated knows no better
            return lack, bound
    raise Unresolved


class ClosePairs(PairDomain):
    """Pairs whose angle is known better than their covariance tells, for networks of one layer without a bias.

    ``lack``: what the cosines of the inputs lack of +-1, with the signs of these.
    """

    def __init__(self, lack: Tensor) -> None:
        self.apart, self.sign = lack.abs(), torch.where(torch.signbit(lack), -1.0, 1.0).to(lack)

    @staticmethod
    def serve(network: Network) -> bool:
        """Say whether this is such a network."""
        one = network.plain or (not network.implicit and len(network.activations) == 1)
        return one and not network.biased and network.activations[0].continuous

    def layer(self, phi: Activation, points: Sequence[Tensor]) -> LayerMaps:
        """Return the layer, which is evaluated at 1 - |rho|."""
        return _CloseLayer(self, phi, *points)

    def solve(self, fixed: FixedPoint, cell: Any, points: Sequence[Tensor], state: KernelState) -> Tensor:
        """Solve for what a covariance lacks of its bound."""
        if not isinstance(cell, _CloseLayer):
            return super().solve(fixed, cell, points, state)
        if fixed.sigma_a2 == 0.0:  # nothing to solve
            return fixed.drive(state.covariance)
        drive = torch.stack([fixed.drive(s) for s in state.points])
        own = torch.stack([mean_square(cell.phi, "value", q) for q in points])
        lack, bound = solve_lack(fixed, drive, own, self.apart, self.sign, cell.near)
        blurred = (lack / bound < _blur(fixed.network)).nonzero().squeeze(1)
        if len(blurred):
            some = drive[:, blurred], own[:, blurred], self.apart[blurred], self.sign[blurred]
            lack[blurred] = _small_lack(fixed, cell.phi, [q[blurred] for q in points], *some, lack[blurred])
        self.apart = lack / bound
        return self.sign * (bound - lack)


def _blur(network: Network) -> float:
    """1 - |rho| below which E[phi' phi'], which falls with the angle at kinks, sees the rounding of E[phi phi]."""
    return LIMITS.blurred_lack if network.kinked else 0.0


def _small_lack(
    fixed: FixedPoint,
    phi: Activation,
    points: Sequence[Tensor],
    drive: Tensor,
    own: Tensor,
    apart: Tensor,
    sign: Tensor,
    lack: Tensor,
) -> Tensor:
    """What :func:`solve_lack` returns, where the rounding of E[phi phi] hides it: from differences of roughly ``lack``.

    E[phi phi] differs from that of parallel points by the mean of E[phi' phi'] times the lack. Over x with the angle
    sinh(x) / scale, slopes vary on a length of one: a rule of few nodes is enough.
    """
    (bx, by), (ex, ey) = drive, fixed.sigma_a2 * own
    bound, input, inner = product_root(bx + ex, by + ey), product_root(bx, by), product_root(ex, ey)
    turned = (product_root(bx, ey) - product_root(by, ex)).square() / (bound + input + inner)
    room = turned + fixed.sigma_a2 * parallel_gap(phi, points[0], points[1], sign, own) + input * apart
    slope, widest = torch.zeros_like(lack), (2.0 * lack / bound * torch.minimum(points[0], points[1])).sqrt()
    end = torch.asinh(widest.clamp_min(1e-8))
    for place, weight in zip(*legendre(3 if float(end.max()) < 0.02 else 6), strict=True):
        x = 0.5 * (1.0 + float(place)) * end
        share = torch.sinh(x) / torch.sinh(end)  # of the angle
        near = share**2 * lack / bound
        rho, spread = sign * (1.0 - near), (near * (2.0 - near)).sqrt()
        found = pair_means(phi, ("slope",), ("slope",), points[0], points[1], rho, spread)[0]
        slope += float(weight) * end * share * torch.cosh(x) / torch.sinh(end) * found
    return room / (1.0 - fixed.sigma_a2 * slope)  # slopes move by no more than the angle: once is enough


class _CloseLayer(LayerMaps):
    """E[phi phi] and E[phi' phi'] at 1 - |rho|, by quadrature."""

    def __init__(self, domain: ClosePairs, phi: Activation, qx: Tensor, qy: Tensor) -> None:
        self.domain, self.phi, self.variances = domain, phi, (qx, qy)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        return self.near(self.domain.apart)

    def near(self, apart: Tensor) -> tuple[Tensor, Tensor]:
        """Return both at 1 - |rho|."""
        if self.phi.is_wave:
            return _waves(self.phi, self.variances, apart, self.domain.sign)
        rho, spread = self.domain.sign * (1.0 - apart), (apart * (2.0 - apart)).sqrt()
        value, slope = pair_means(self.phi, BOTH, BOTH, *self.variances, rho, spread)
        return value, slope


def _waves(
    phi: Activation, variances: tuple[Tensor, Tensor], apart: Tensor, sign: int | Tensor
) -> tuple[Tensor, Tensor]:
    """Return E[phi phi] and E[phi' phi'] of a sine or cosine at two variances and 1 - |rho|."""
    ahead, (rx, ry) = torch.as_tensor(sign, device=apart.device) > 0, (q.sqrt() for q in variances)
    below, above = (torch.where(same, apart, 2.0 - apart) for same in (ahead, ~ahead))
    sines, cosines = wave_means(rx, ry, below, above)
    return (sines, cosines) if phi.parity == "odd" else (cosines, sines)


class LayerSeries:
    """The layer of a DEQ near rho = +-1 as series in the norms and in the angle at equilibrium."""

    def __init__(self, cap: Cap) -> None:
        deq: Any = cap.spec.network
        self.cap, self.deq, self.phi = cap, deq, deq.activation
        known = [layer for layer in cap.domain.layers if isinstance(layer, _Graded) and len(layer.series)]
        q = equilibrium_variance(deq, cap.grid.norms**2)
        self.graded = known[0] if known else _Graded(cap.domain, self.phi, q)
        self.graded.near(torch.zeros(1, dtype=torch.float64))  # which finds its series
        self.graded = copy.copy(self.graded)  # others may have to widen it
        self.levels = cap.in_norms(self.graded.series.squeeze(-1).permute(1, 2, 0) / self.graded.sizes)

    def kernels(
        self, names: tuple[Kernel, ...], nx: Tensor, ny: Tensor, angle: Tensor
    ) -> tuple[Tensor, dict[Kernel, Tensor]]:
        """Which entries the series hold, and their kernels; the angle is that to the nearer end."""
        entries = _Entries(self, torch.stack([nx, ny]), 2.0 * torch.sin(0.5 * angle).square())
        dot = self.cap.domain.sign * nx * ny * torch.cos(angle)
        with torch.no_grad():
            try:
                found = KernelSpec(self.deq, names, None).run(entries, torch.stack([nx, ny]) ** 2, dot)
            except Unresolved:
                return torch.zeros(0, dtype=torch.long), dict.fromkeys(names, nx[:0])
        known = entries.known.nonzero().squeeze(1)
        return known, {name: values[known] for name, values in found.items()}


class _Entries(TensorDomain, LayerMaps):
    """Single pairs of norms and angles, with the layer between them."""

    def __init__(self, series: LayerSeries, norms: Tensor, apart: Tensor) -> None:
        self.series, self.apart = series, apart
        self.own, sides, grid = torch.empty_like(norms), list[list[Tensor]](), series.cap.grid
        for right, some in enumerate(norms):
            distinct, inverse = torch.unique(some, return_inverse=True)
            powers = grid.scales[right].polynomials(grid.sizes[right], distinct)
            both = OnDiagonal(series.phi).both(equilibrium_variance(series.deq, distinct**2))
            self.own[right] = both[0][inverse]
            parts = zip(series.levels, both, strict=True)
            sides.append([level.side(powers, bool(right)).mul_(part.sqrt()).T[inverse] for level, part in parts])
        self.coefficients = [level.coefficients(*pair) for level, *pair in zip(series.levels, *sides, strict=True)]
        self.values, self.known = self.near(apart), apart >= 0.0

    def layer(self, phi: Activation, points: Tensor) -> LayerMaps:
        return self

    def settle(self, fixed: FixedPoint, state: KernelState) -> Tensor:
        """Return the squared norms: the variances are known."""
        return state.points

    def solve(self, fixed: FixedPoint, cell: Any, points: Tensor, state: KernelState) -> Tensor:
        sign = self.series.cap.domain.sign
        lack, bound = solve_lack(fixed, fixed.drive(points), self.own, self.apart, sign, self.near)
        apart = lack / bound
        self.known = (self.series.graded.variable(apart) <= 2.0) & (apart >= _blur(fixed.network))
        self.values = self.near(apart)
        return sign * (bound - lack)

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        return self.values

    def near(self, apart: Tensor) -> tuple[Tensor, Tensor]:
        """Return the layer at 1 - |rho|, as far as the series reach."""
        x2 = self.series.graded.variable(apart).clamp_max(2.0)
        parts = zip(self.coefficients, self.series.levels, strict=True)
        value, slope = (series_sum(coefficients, x2, level.parity) for coefficients, level in parts)
        return value, slope


class _Graded(LayerMaps):
    """E[phi phi] and E[phi' phi'] as series in asinh(chord / bend), chord^2 = 2 (1 - |rho|), for pairs of variances."""

    def __init__(self, domain: Corner, phi: Activation, q: Tensor) -> None:
        if float(q.min()) <= 0.0:
            raise Unresolved
        self.domain, self.phi, self.q = domain, phi, q
        self.root, whole = product_root(*q[domain.pairs])[:, None], torch.stack(OnDiagonal(phi).both(q))
        self.own, self.sizes = whole[0], whole.sqrt()[:, domain.pairs].prod(1)[..., None]
        self.bend = 1.0 / max(1.0, float(q[domain.pairs].amin(0).max()) ** 0.5)  # the longer point sees no more
        self.ends, self.series, self.hopeless = (math.inf, 0.0), torch.empty(0), False

    def both(self, lam: Tensor) -> tuple[Tensor, Tensor]:
        known, apart = self.domain.exact
        return self.near(apart if lam is known else 1.0 - self.domain.sign * lam / self.root)

    def near(self, apart: Tensor) -> tuple[Tensor, Tensor]:
        """Return E[phi phi] and E[phi' phi'] at 1 - |rho|."""
        if self.phi.is_wave:
            qx, qy = self.q[self.domain.pairs][..., None]
            return _waves(self.phi, (qx, qy), apart, self.domain.sign)
        low, high = torch.aminmax(self._place(apart))
        if float(low) < self.ends[0] or float(high) > self.ends[1]:
            self._prepare(float(low), float(high))
        value, slope = series_sum(self.series, self.variable(apart).expand(2, *self.root.shape[:1], -1))
        return value, slope

    def _place(self, apart: Tensor) -> Tensor:
        return torch.asinh((2.0 * apart.clamp(0.0, 2.0)).sqrt() / self.bend)

    def variable(self, apart: Tensor) -> Tensor:
        """Twice the variable of the series, in [-1, 1] where they hold."""
        low, high = self.ends
        return 2.0 * (2.0 * self._place(apart) - (low + high)) / (high - low)

    def _values(self, angles: Tensor) -> Tensor:
        """E[phi phi] and E[phi' phi'] at angles from the end; near pi these would lose digits."""
        parity = self.phi.parity
        there = angles if self.domain.sign > 0 or parity is not None else math.pi - angles
        values = layer_values(self.phi, self.q, self.domain.pairs, there)
        if self.domain.sign < 0 and parity is not None:
            values[0 if parity == "odd" else 1] *= -1.0
        return values

    def _prepare(self, low: float, high: float) -> None:
        if self.hopeless:
            raise Unresolved
        if set(self.phi.kinks) <= {0.0}:
            # often only the widest angles are asked for, and not once more
            low = 0.0 if self.phi.kinks or len(self.series) else max(0.0, low - 1.5)
            high = max(high, math.asinh(1.6 * self.domain.widest / self.bend))
        else:  # for points of different norms, kinks off zero meet at angles that are not zero
            low = 0.8 * low
        high = min(high + 0.1, math.asinh(2.0 / self.bend))
        sizes = (16, 24, 32, 48, 64, 96, 128, 192)
        likely = sum(size < 12.0 + 10.0 * (high - low) for size in sizes[:-1])
        for size in sizes[likely : likely + 2]:
            chord = self.bend * torch.sinh(torch.from_numpy(nodes(size, low, high)))
            angles = 2.0 * torch.asin((0.5 * chord).clamp_max(1.0))
            values = self._values(angles)
            series = torch.tensor(to_coefficients(size)) @ values.transpose(1, 2)
            relative = (series.abs() / self.sizes.mT.clamp_min(1e-300)).transpose(0, 1)
            length = needed(relative, 0.02 * LIMITS.cap_error)
            if length <= size - 3:
                break
        else:  # functions that do not settle on straight lines see the rounding of their argument
            length = needed(relative, 0.0 if self.phi.tails() is not None else LIMITS.tolerance / self.bend)
        if length <= size - 3:
            self.ends, self.series = (low, high), series[:, :length].transpose(0, 1)[..., None].contiguous()
            return
        self.hopeless = low == 0.0  # another time it would be the same
        raise Unresolved
