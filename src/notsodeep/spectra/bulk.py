"""All bulks of the noise Gram matrix: edges, gaps between them, and the density on each.

The density of one bulk is a piecewise polynomial in an angle. With x = middle - half cos(theta) the density times
dx/dtheta is analytic at square-root edges and at a hard edge in zero alike, so that Chebyshev panels in theta converge
geometrically; panels are halved where they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from .. import _chebyshev
from ..errors import ConvergenceError
from .population import LIMITS, Array, Population, solve_inside, start_inside
from .realaxis import Gap, find_gap, outer_gaps

Panel = tuple[float, float, Array]
"""Its ends, angles, and the coefficients of the density per angle."""


def _nodes(start: Array, stop: Array) -> Array:
    """Return the angles of the interpolation nodes of each panel, shape (panels, LIMITS.nodes)."""
    # without the ends, where Newton would be singular
    return _chebyshev.nodes(LIMITS.nodes, start[:, None], stop[:, None])


@dataclass(frozen=True, eq=False)
class Bulk:
    """One interval of the support and the law on it."""

    low: float
    high: float
    mass: float
    breaks: Array  # Ends of the panels, angles from 0 to pi
    coefficients: Array  # (panels, LIMITS.nodes): density per angle
    integrals: Array  # (panels, LIMITS.nodes + 1): its antiderivatives, zero at the left end of each panel
    cumulated: Array  # Mass to the left of each panel

    @classmethod
    def build(cls, low: float, high: float, mass: float, panels: Sequence[Panel], tolerance: float) -> Bulk:
        """Join finished panels; what the density integrates to must be the mass known from the gaps."""
        starts, _, series = zip(*sorted(panels, key=lambda panel: panel[0]), strict=True)
        breaks, coefficients = np.array([*starts, np.pi]), np.stack(series)
        # the density vanishes at every edge but a hard one in zero: a line takes the error of the end panels away
        if low > 0.0:
            coefficients[0, :2] += chebyshev.chebval(-1.0, coefficients[0]) * np.array([-0.5, 0.5])
        coefficients[-1, :2] -= chebyshev.chebval(1.0, coefficients[-1]) * 0.5
        half = 0.5 * np.diff(breaks)
        integrals = np.stack([chebyshev.chebint(c, lbnd=-1.0) for c in coefficients]) * half[:, None]
        masses = integrals.sum(axis=1)  # every T_k(1) is one
        total = float(masses.sum())
        if abs(total - mass) > max(1e3 * tolerance, 1e-6) * mass:
            raise ConvergenceError(
                f"the density on ({low:.6g}, {high:.6g}) integrates to {total:.8g} instead of {mass:.8g}; "
                "the covariances may be badly scaled: check their eigenvalues"
            )
        scale = mass / total
        cumulated = np.concatenate([[0.0], np.cumsum(masses)[:-1]]) * scale
        return cls(low, high, mass, breaks, coefficients * scale, integrals * scale, cumulated)

    def angle(self, x: Array) -> Array:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        return np.arccos(np.clip((middle - x) / half, -1.0, 1.0))

    def density(self, x: Array) -> Array:
        # an angle of 1e-8 is the nearest to an edge that rounding leaves
        angle = np.clip(self.angle(x), 1e-8, np.pi - 1e-8)
        value = self._evaluate(self.coefficients, angle) / (0.5 * (self.high - self.low) * np.sin(angle))
        inside = (x > self.low) & (x < self.high)
        return np.where(inside, np.maximum(value, 0.0), 0.0)

    def cdf(self, x: Array) -> Array:
        """Return the mass of this bulk up to x."""
        angle = self.angle(x)
        before = self.cumulated[self._panel(angle)]
        return np.clip(before + self._evaluate(self.integrals, angle), 0.0, self.mass)

    def _panel(self, angle: Array) -> Array:
        return np.clip(np.searchsorted(self.breaks, angle, side="right") - 1, 0, len(self.breaks) - 2)

    def _evaluate(self, coefficients: Array, angles: Array) -> Array:
        angle = angles.ravel()
        panel = self._panel(angle)
        start, stop = self.breaks[panel], self.breaks[panel + 1]
        local = np.clip((2.0 * angle - start - stop) / (stop - start), -1.0, 1.0)
        value: Array = chebyshev.chebval(local, coefficients[panel].T, tensor=False)
        return value.reshape(angles.shape)


# ---- all bulks -----------------------------------------------------------------------------------------

Guess = Callable[[Array], Array]
"""Starting values of g at real points."""


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """Limiting law of W W', rows w_i = C_a^(1/2) N(0, I)/sqrt(p)."""

    bulks: tuple[Bulk, ...]
    gaps: tuple[Gap, ...]  # Every interval outside the support, from -infinity to infinity
    zero: float  # Mass of the atom at zero


def noise_law(population: Population) -> NoiseLaw:
    """Find the edges from outside, then panels inside; a panel that meets a gap splits the bulk there.

    The mass of each bulk is known exactly from the gaps on both sides, so nothing can be missed unnoticed.
    """
    upper, lower = outer_gaps(population)
    guess = _guess(population, lower[-1].high, upper.low)
    gaps, bulks = [*lower, upper], []
    pending = [(lower[-1], upper)]
    while pending:
        left, right = pending.pop()
        piece = _fill(population, guess, left, right)
        if isinstance(piece, Gap):
            gaps.append(piece)
            pending += [(left, piece), (piece, right)]
        else:
            bulks.append(piece)
    zero = lower[1].mass if len(lower) == 2 else 0.0
    return NoiseLaw(tuple(sorted(bulks, key=lambda b: b.low)), tuple(sorted(gaps, key=lambda g: g.low)), zero)


def _guess(population: Population, low: float, high: float) -> Guess:
    """Return starting values by a descent from above; a surrogate is asked at the points that correspond."""
    surrogate = population.surrogate()
    if surrogate is population:
        return lambda x: start_inside(population, x)[0]
    upper, lower = outer_gaps(surrogate)
    stretch = (upper.low - lower[-1].high) / (high - low)
    return lambda x: start_inside(surrogate, lower[-1].high + stretch * (x - low))[0]


def _fill(population: Population, guess: Guess, left: Gap, right: Gap) -> Bulk | Gap:
    """Return the bulk between two gaps, or a gap found inside it."""
    low, high, mass = left.high, right.low, right.mass - left.mass
    done: list[Panel] = []
    breaks = _first_breaks(high - low, low if left.low < 0 else low - left.low, right.high - high)
    starts, stops = breaks[:-1], breaks[1:]
    near: Array | None = None
    shares = population.ratios / population.ratios.sum()
    for depth in range(LIMITS.halvings):
        angles = _nodes(starts, stops)
        x = (low + (high - low) * np.sin(0.5 * angles) ** 2).ravel()
        g, missed = _solve(population, x, guess(x) if near is None else near)
        gap = _gap_among(population, x[missed], g[missed])
        if gap is not None:
            return gap
        g = g.reshape(*angles.shape, -1)
        jacobian = 0.5 * (high - low) * np.sin(angles)
        coefficients = (g.imag @ shares) / np.pi * jacobian @ _chebyshev.to_coefficients(LIMITS.nodes).T
        tail = np.abs(coefficients[:, -3:]).max(axis=1) * (stops - starts)
        good = (tail < population.tolerance * mass) | (depth == LIMITS.halvings - 1)
        done += zip(starts[good], stops[good], coefficients[good], strict=True)
        if good.all():
            break
        starts, stops, near = _halve(starts[~good], stops[~good], g[~good])
        if len(starts) > LIMITS.panels:
            raise ConvergenceError(
                f"the density on ({low:.6g}, {high:.6g}) is not resolved by {len(starts)} panels; "
                "the covariances may be badly scaled: check their eigenvalues"
            )
    return Bulk.build(low, high, mass, done, population.tolerance)


def _first_breaks(width: float, below: float, above: float) -> Array:
    """Return the ends of the first panels, graded towards an edge that has zero or another bulk near it.

    At a distance d beyond an edge the density has its next singularity, at an imaginary angle 2 asinh(sqrt(d/width));
    panels that grow with the distance from it converge all at the same rate.
    """
    out = [0.0, np.pi]
    for distance, mirrored in ((below, False), (above, True)):
        if 0.0 < distance < np.inf:
            angle = 2.7 * 2.0 * float(np.arcsinh(np.sqrt(distance / width)))
            while angle < 0.4 * np.pi and len(out) < 40:
                out.append(np.pi - angle if mirrored else angle)
                angle *= 5.0
    return np.array(sorted(out if len(out) > 2 else [0.0, 0.5 * np.pi, np.pi]))


def _solve(population: Population, x: Array, near: Array) -> tuple[Array, Array]:
    """Return solutions at x from values nearby, and which of them failed even from a fresh start."""
    g, good = solve_inside(population, x, near)
    again = np.flatnonzero(~good)
    if len(again):
        g[again], good[again] = start_inside(population, x[again])
    return g, ~good


def _gap_among(population: Population, x: Array, g: Array) -> Gap | None:
    """Return a gap that holds one of the points that have no complex solution."""
    for i in np.argsort(np.abs(g.imag / g.real).max(axis=1)):
        gap = find_gap(population, float(x[i]), g[i].real)
        if gap is not None:
            return gap
    if len(x):
        raise ConvergenceError(f"no solution was found at {len(x)} points of the support, the first z = {x[0]:.6g}")
    return None


def _halve(starts: Array, stops: Array, g: Array) -> tuple[Array, Array, Array]:
    """Return the two halves of each panel, and g interpolated at their nodes."""
    middle = 0.5 * (starts + stops)
    new_starts = np.stack([starts, middle], axis=1).ravel()
    new_stops = np.stack([middle, stops], axis=1).ravel()
    local = _nodes(np.array([-1.0, 0.0]), np.array([0.0, 1.0])).ravel()
    values = (
        np.swapaxes(g, 1, 2)
        @ _chebyshev.to_coefficients(LIMITS.nodes).T
        @ chebyshev.chebvander(local, LIMITS.nodes - 1).T
    )
    guess = np.swapaxes(values, 1, 2).reshape(-1, g.shape[-1])
    return new_starts, new_stops, np.where(guess.imag > 0, guess, guess.conj() + 1e-12j)
