"""A proof for all norms: boxes of both norms and the cosine cover the domain, with a bound on each.

The covariance M of the units solves the equation of the DEQ up to eps = (sigma_a2 E[phi phi] + drive - M) / (tau tau'),
and the equation is a contraction, so the kernels differ by at most a / (1 - a) |eps| / (mu mu'), where a bounds
sigma_a2 E[phi' phi'] and mu^2 is the share of the feedback in the variance tau^2 (docs/one_layer.md, "All norms").
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.polynomial import chebyshev

from ..._progress import track
from ...activations import Activation
from ...gaussian import hermite_coefficients, means
from ...kernels.pointwise import mean_square
from ...networks import DEQ
from ...units import Feedback
from .orders import Array


def prove(deq: DEQ, layer: Feedback, seen: float) -> float:
    """Bound |k - k_layer| / sqrt(k(x, x) k(y, y)) for all inputs; infinite where there is no bound.

    The cells of norms are so fine that they add a few per cent to the largest error that was ``seen``.
    """
    limits = _Far.of(deq.activation)
    if limits is None or deq.biased or math.sqrt(deq.variances[0]) * limits.lipschitz >= 1.0:
        return math.inf
    nodes, fine = np.linspace(math.log(_Cells.low), math.log(_Cells.high), 65), 1
    while True:
        cells = _Cells.of(deq, layer, nodes, limits, fine)
        a = deq.variances[0] * cells.slope[1:-1] ** 2
        added = (cells.bends * cells.most).sum(0)[1:-1] / cells.least[1:-1] ** 2 * a / (1.0 - a)
        wide = (added > 0.04 * max(seen, 2e-3)) | (cells.least[1:-1] <= 0.0)
        if fine > 1 or len(nodes) > 1000:
            break
        fine = 1 if wide.any() else 200
        nodes = np.sort(np.concatenate([nodes, (0.5 * (nodes[1:] + nodes[:-1]))[wide]]))
    bounds = _cover(deq, cells, _Nodes(deq, layer, np.exp(nodes)), limits)
    if math.isfinite(limits.step):
        bounds[:, -1] = _steps(deq, layer, cells, limits)
    return float(bounds.max())


@dataclass(frozen=True)
class _Far:
    """What is known of an activation far out, where it is two straight lines."""

    lipschitz: float
    curvature: float  # sup |phi''|
    radial: float  # sup |x phi'(x) - phi(x)|, which bounds a bounded activation, too: (phi / x)' = (x phi' - phi) / x^2
    slope: float  # the root of E[phi'^2] at infinite scale
    spread: float  # sup_tau tau E[(phi' - slope at infinity)^2]
    step: float  # of a bounded activation, sup_tau tau E[(phi - step)^2]; infinite for others

    @staticmethod
    def of(phi: Activation) -> _Far | None:
        suprema = None if any(phi.slope_jumps()) or not phi.continuous else phi.suprema
        if suprema is None:
            return None
        low, high = (float(phi.derivative(side * 1e6)) for side in (-1.0, 1.0))
        bounded = max(abs(low), abs(high)) < 1e-9
        below, above = (float(phi(side * 1e9)) if bounded else 0.0 for side in (-1.0, 1.0))

        def gaps(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
            up = z > 0
            return (phi.derivative(z) - torch.where(up, high, low)) ** 2, (phi(z) - torch.where(up, above, below)) ** 2

        far = 1e6
        spread, step = (far * means(gaps, torch.tensor([far], dtype=torch.float64), phi.panels())[:, 0]).tolist()
        return _Far(
            phi.lipschitz,
            *suprema,
            math.hypot(low, high) / math.sqrt(2.0),
            1.01 * spread,
            1.01 * step if bounded else math.inf,
        )


def _at(deq: DEQ, layer: Feedback, s: Array) -> tuple[Array, Array, Array]:
    """Return tau, the direction n of the pre-activation (4, norms), and mu."""
    norms = torch.from_numpy(s)
    parts = np.stack([part.numpy() for part in layer.amplitudes(norms)])
    q = np.stack([layer.drive * s, s * parts[0], s * parts[1], parts[2]])
    tau = np.sqrt((q**2).sum(0))
    square = mean_square(deq.activation, "value", torch.from_numpy(tau**2)).numpy()
    return tau, q / tau, np.sqrt(deq.variances[0] * square) / tau


@dataclass(frozen=True)
class _Cells:
    """Bounds on every cell of norms: one from zero to the first node, those between nodes, one beyond the last."""

    low: ClassVar[float] = 1e-9
    high: ClassVar[float] = 1e8  # the outer nodes
    last: ClassVar[float] = 1e9  # from here on a bounded activation is a step
    bends: Array  # how far U = sigma_a phi / tau and n lie from their linear interpolants: (2, cells)
    most: Array  # suprema of mu = |U| and of |n| without the drive: (2, cells)
    least: Array  # the infimum of mu
    slope: Array  # the supremum of |phi'|
    moved: Array  # how much phi' changes up to the nearer node
    apart: Array  # how far the variance may be from the DEQ's, as a share of it

    @staticmethod
    def of(deq: DEQ, layer: Feedback, nodes: Array, limits: _Far, fine: int) -> _Cells:
        h, phi, enclosure = np.diff(nodes), deq.activation, _Enclosure.of(layer, np.exp(nodes))
        sigma_a, lipschitz = math.sqrt(deq.variances[0]), limits.lipschitz
        places = np.append((nodes[:-1, None] + h[:, None] * np.arange(fine) / fine).ravel(), nodes[-1])
        _, n, mu = _at(deq, layer, np.exp(places))
        seen = np.abs((n[1:] ** 2).sum(0) - mu**2)
        mu, seen_ends, seen = mu[::fine], seen[[0, -1]], seen[:-1].reshape(-1, fine).max(1)
        (low, high), (speed, bend, pull, jerk) = enclosure.tau[:, 1:-1], enclosure.rates[:, 1:-1]
        ratio, turn = np.sqrt(high / low), enclosure.turn

        def parts(z: torch.Tensor) -> list[torch.Tensor]:
            slope, curved = phi.derivative(z), z * phi.second_derivative(z)
            radial = z * slope - phi(z)
            return [v**2 for v in (slope, phi.second_derivative(z), curved, radial, z * curved - radial)]

        # the density at a scale is at most high / low times that at the largest one
        roots = ratio * means(parts, torch.from_numpy(high), phi.panels()).sqrt().numpy()
        slope, curved, along, radial, twice = roots
        first = sigma_a * (slope * speed + pull * radial / low)
        second = math.sqrt(3.0) * high * speed**2 * curved + 2.0 * pull * speed * along + slope * bend
        second = sigma_a * (second + (pull**2 * twice + jerk * radial) / low)
        tail = math.sqrt(limits.spread / high[-1])
        # the outer cells: phi(tau g) / tau is nearly linear in g, and a step or a bend further out
        start = math.log1p(_Cells.low) + turn[0]
        shrinks = 2.0 * start * radial[0] / enclosure.tau[0, 0] if layer.offset else 2.0 * limits.curvature * high[0]
        ends = sigma_a * (lipschitz * turn[[0, -1]] + [shrinks, (1.0 + turn[-1]) * limits.radial / low[-1]])
        ends = np.stack([ends, turn[[0, -1]]])
        inner = [np.maximum(mu[1:], mu[:-1]) + 0.5 * h * first, enclosure.share[1:-1]]
        most = _framed(np.stack(inner), [mu[[0, -1]] + ends[0], enclosure.share[[0, -1]]])
        curve = 2.0 * (inner[1] * bend + speed**2 + inner[0] * second + first**2)
        outer = 2.0 * (most[:, [0, -1]] * ends).sum(0) + seen_ends
        apart = _framed((seen + (h / fine) ** 2 / 8.0 * curve)[None], outer[None])[0]
        apart += 1e-9 * most[0] ** 2  # rounding
        least = np.minimum(mu[1:], mu[:-1]) - 0.5 * h * first
        changed = start * along[0] if layer.offset else limits.curvature * high[0]
        return _Cells(
            _framed(h**2 / 8.0 * np.stack([second, bend]), ends),
            most,
            _framed(least[None], (mu[[0, -1]] - ends[0])[None])[0],
            np.minimum(_framed(slope[None], [[lipschitz, limits.slope + tail]])[0], lipschitz),
            _framed((np.log(ratio) * along)[None], [[changed, 2.0 * tail]])[0],
            apart / (1.0 - sigma_a * lipschitz),
        )


def _framed(inner: Array, ends: Any) -> Array:
    """Return the values of the cells between nodes, and before and behind them those of the outer cells."""
    ends = np.asarray(ends)
    return np.concatenate([ends[:, :1], inner, ends[:, 1:]], axis=1)


@dataclass(frozen=True)
class _Enclosure:
    """Bounds on the polynomials of the units, from their Taylor expansions at the centres of the cells."""

    tau: Array  # lower and upper bounds of tau: (2, cells)
    rates: Array  # bounds on |n'|, |n''|, |(log tau)'|, |(log tau)''| in the logarithm of the norm: (4, cells)
    turn: Array  # how far n turns within a cell
    share: Array  # the supremum of |n| without the drive

    @staticmethod
    def of(layer: Feedback, s: Array) -> _Enclosure:
        edges, offset = np.concatenate([[-1.0], (s - 1.0) / (s + 1.0), [1.0]]), layer.offset
        left, right = edges[:-1], edges[1:]
        rows, half = np.array(layer.parts).T, 0.5 * (right - left)
        degree = np.arange(len(rows))
        series = [
            chebyshev.chebval(0.5 * (left + right), chebyshev.chebder(rows, k)) / math.factorial(k) for k in degree
        ]
        sizes = np.abs(series).transpose(1, 0, 2)  # (rows, orders, cells)
        powers = half ** degree[:, None]
        spread = (sizes * powers)[:, 1:].sum(1)
        slope = (sizes[:, 1:] * degree[1:, None] * powers[:-1]).sum(1)
        curve = (sizes[:, 2:] * (degree[2:] * degree[1:-1])[:, None] * powers[:-2]).sum(1)
        drive, zero = np.full((1, len(left)), layer.drive), np.zeros((1, len(left)))
        low = np.concatenate([drive, np.maximum(sizes[:, 0] - spread, 0.0)])
        high = np.concatenate([drive, sizes[:, 0] + spread])
        slope, curve = np.concatenate([zero, slope]), np.concatenate([zero, curve])
        scale = np.stack([np.append(0.0, s), np.append(s, np.inf)]) + offset
        if offset:  # tau n / (s + 1): the directions have a factor s / (s + 1)
            y0, y1 = 0.5 * (1.0 + left), 0.5 * (1.0 + right)
            curve[:3] = slope[:3] + y1 * curve[:3]
            slope[:3] = 0.5 * high[:3] + y1 * slope[:3]
            low[:3], high[:3] = y0 * low[:3], y1 * high[:3]
        least, most, steep, bent = (np.sqrt((part**2).sum(0)) for part in (low, high, slope, curve))
        step = 0.5 * (1.0 - np.clip(0.0, left, right) ** 2)  # dx / d log s
        speed, bend = step * steep / least, (step**2 * bent + step * steep) / least
        pull = (y1 if offset else 1.0) + speed
        jerk = (0.5 * step if offset else 0.0) + bend + 2.0 * speed**2
        share = np.sqrt((high[1:] ** 2).sum(0)) / least
        rates = np.stack([speed, bend + 3.0 * speed**2, pull, jerk])
        return _Enclosure(scale * [least, most], rates, 2.0 * half * steep / least, share)


class _Nodes:
    """Eps, E[phi' phi'] and the correlation of the units at all pairs of nodes and a grid of cosines."""

    terms, angles, fine = 512, 64, 2048  # Hermite coefficients, cells of angles, cells of correlations

    def __init__(self, deq: DEQ, layer: Feedback, s: Array) -> None:
        phi, sigma_a2, count = deq.activation, deq.variances[0], len(s)
        tau, n, mu = _at(deq, layer, s)
        a = hermite_coefficients(phi, torch.from_numpy(tau**2), self.terms).numpy() / tau[:, None]
        roots = np.sqrt(np.arange(self.terms))
        whole = mean_square(phi, "slope", torch.from_numpy(tau**2)).numpy()
        lost = np.sqrt(np.maximum(mu**2 / sigma_a2 - (a**2).sum(1), 0.0) + 1e-14)
        steep = np.maximum(whole - ((roots * a) ** 2).sum(1), 0.0) + 1e-13
        self.sigma_a2, self.lost, self.orders = sigma_a2, steep, (roots * a) ** 2
        cosines = np.cos(np.linspace(0.0, np.pi, self.angles + 1))
        shape = (count, count, self.angles + 1)
        self.m, self.eps, self.slope = np.empty(shape), np.empty(shape), np.empty(shape)
        for i in range(count):
            m = (n[:3, i] @ n[:3, i:])[:, None] * cosines + (n[3, i] * n[3, i:])[:, None]
            keep = int(np.flatnonzero(np.abs(a[i]) > 1e-17)[-1]) + 1
            value, slope = np.zeros_like(m), np.zeros_like(m)
            for k in range(keep - 1, -1, -1):
                slope *= m
                slope += value
                value *= m
                value += a[i, k] * a[i:, k, None]
            far = np.minimum(np.abs(m), 1.0) ** self.terms
            feedback = (n[1:3, i] @ n[1:3, i:])[:, None] * cosines + (n[3, i] * n[3, i:])[:, None]
            missed = (lost[i] * lost[i:])[:, None] * far
            eps = np.abs(sigma_a2 * value - feedback) + sigma_a2 * missed
            slope = np.abs(slope) + np.sqrt(steep[i] * steep[i:])[:, None] * far
            for table, values in ((self.m, m), (self.eps, eps), (self.slope, slope)):
                table[i, i:] = table[i:, i] = values
        places = np.cos(np.linspace(0.0, np.pi, self.fine + 1))
        powers = np.abs(places) ** np.arange(1, self.terms - 1)[:, None]
        self.table = np.sign(places) * (self.orders[:, 2:] @ powers)  # E[phi' phi'] without its first order

    def change(self, i: Any, low: Array, high: Array) -> Array:
        """Return the variation of E[phi'(u) phi'(v)] between two correlations, at equal norms."""
        low, high = np.clip(low, -1.0, 1.0), np.clip(high, -1.0, 1.0)
        up = np.floor(np.arccos(high) * (self.fine / np.pi)).astype(np.intp)
        down = np.minimum(np.ceil(np.arccos(low) * (self.fine / np.pi)), self.fine).astype(np.intp)
        lost = self.lost[i] * np.maximum(np.abs(low), np.abs(high)) ** (self.terms - 1)
        return np.asarray(self.table[i, up] - self.table[i, down] + lost)

    def corner(self, i: int, j: Array) -> tuple[Array, Array, Array, Array]:
        """Bound eps, E[phi' phi'] and the correlation over the cells of cosines at these nodes."""
        m, eps, slope = (table[i, j] for table in (self.m, self.eps, self.slope))
        low, high = np.minimum(m[:, 1:], m[:, :-1]), np.maximum(m[:, 1:], m[:, :-1])
        # a function whose slope varies by v departs from its chord by at most v / 4 of the length
        varied = np.sqrt(self.change(i, low, high) * self.change(j[:, None], low, high))
        chord = self.sigma_a2 * 0.25 * (high - low) * varied
        return np.maximum(eps[:, 1:], eps[:, :-1]) + chord, np.maximum(slope[:, 1:], slope[:, :-1]), low, high


def _cover(deq: DEQ, cells: _Cells, grid: _Nodes, limits: _Far) -> Array:
    """Bound all boxes; return the largest bound of each pair of cells of norms."""
    sigma_a2, count = deq.variances[0], len(cells.least)
    first, last = np.maximum(np.arange(count) - 1, 0), np.minimum(np.arange(count), count - 2)
    lost = math.sqrt(sigma_a2) * limits.lipschitz * cells.apart / np.maximum(cells.least, 1e-300)
    worst = np.zeros((count, count))
    for i in track(range(count), count, "a bound for all norms"):
        j = np.arange(i, count)
        pairs = [(a, b[j]) for a, b in itertools.product((first[i], last[i]), (first, last))]
        eps, slope, low, high = zip(*(grid.corner(a, b) for a, b in pairs), strict=True)
        most = np.max(eps, axis=0) + 3.0 * (cells.apart[i] + cells.apart[j])[:, None]
        most += (cells.bends[:, [i]] * cells.most[:, j] + cells.bends[:, j] * cells.most[:, [i]]).sum(0)[:, None]
        coarse = (cells.slope[i] * cells.slope[j])[:, None]
        slack = (cells.bends[1, i] + cells.bends[1, j])[:, None] + most / (1.0 - sigma_a2 * coarse)
        ends = np.min(low, axis=0) - slack, np.max(high, axis=0) + slack
        varied = [np.sqrt(grid.change(a, *ends) * grid.change(b[:, None], *ends)) for a, b in pairs]
        moved = (cells.moved[i] * cells.slope[j] + cells.moved[j] * cells.slope[i])[:, None]
        a = sigma_a2 * np.minimum(np.max(slope, axis=0) + np.max(varied, axis=0) + moved, coarse)
        mu = np.maximum(cells.least[i] * cells.least[j], 1e-300)[:, None]
        worst[i, j] = (a / (1.0 - a) * most / mu).max(1) + lost[i] + lost[j]
    return worst * (1.0 + 4.0 * lost[1:-1].max())


def _steps(deq: DEQ, layer: Feedback, cells: _Cells, limits: _Far) -> Array:
    """Bound pairs with one norm beyond the last node, of a bounded activation.

    There |eps| is at most the feedback of the DEQ and that of the units, and E[phi' phi'] is small. Beyond ``last``
    both kernels are nearly those of a step.
    """
    sigma_a, end, rows = math.sqrt(deq.variances[0]), _Cells.high, np.array(layer.parts).T
    tau, _, mu = (float(part[..., 0].max()) for part in _at(deq, layer, np.array([end])))
    steep = np.abs(chebyshev.chebval(1.0, chebyshev.chebder(rows))) + np.arange(len(rows)) ** 4 @ np.abs(rows) / end
    # of tau |n|, no drive
    far = float(np.linalg.norm(_Cells.last * np.abs(chebyshev.chebval(1.0, rows)) + 2.0 * steep))
    share = far / (mu * tau)
    ratio, top = cells.most[1] / np.maximum(cells.least, 1e-300), np.arange(len(cells.least)) == len(cells.least) - 1
    stretch, apart = 1.01 * _Cells.last / end, 2.0 * (1.0 + share**2) / (1.0 - sigma_a * limits.lipschitz)
    off = 3.0 * stretch * np.where(top, apart, cells.apart / np.maximum(cells.least, 1e-300) / mu) + 3.0 * apart
    a = sigma_a**2 * cells.slope * cells.slope[-1]
    lost = sigma_a * limits.lipschitz * (np.where(top, 0.0, cells.apart / cells.least) + 2.0 * mu * apart)
    angle = 2.0 * far / (layer.drive * _Cells.last)
    step = math.sqrt(limits.step / (layer.drive * _Cells.last)) + limits.radial * math.sqrt(angle / math.pi)
    return a / (1.0 - a) * (1.0 + np.where(top, share, ratio) * share + off) + lost + 8.0 * step * sigma_a / (mu * tau)
