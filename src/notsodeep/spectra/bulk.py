"""All bulks of the noise Gram matrix: edges, gaps between them, and the density on each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..errors import ConvergenceError
from .complexplane import solve_inside, start_inside
from .panels import Bulk, chebyshev_coefficients, chebyshev_integral, nodes
from .population import Array, Population
from .realaxis import Curve, Gap, find_gap, outer_gaps

__all__ = ["NoiseLaw", "noise_law"]

Starter = Callable[[Array], Array]

_DEPTH = 30  # halvings of a panel
_MOST_PANELS = 1024  # to be halved at once; a law with many bulks has some dozens


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """Limiting law of W W', rows w_i = C_a^(1/2) N(0, I)/sqrt(p)."""

    bulks: tuple[Bulk, ...]
    gaps: tuple[Gap, ...]
    """Every interval outside the support, from -infinity to infinity."""
    zero: float
    """Mass of the atom at zero."""


@dataclass(eq=False)
class _Panels:
    """Finished panels of one bulk."""

    starts: list[float]
    stops: list[float]
    coefficients: list[Array]


def noise_law(population: Population, index: int) -> NoiseLaw:
    """Edges first, from outside; then panels inside; a panel that meets a gap splits the bulk there.

    The mass of each bulk is known exactly from the gaps on both sides, so nothing can be missed unnoticed.
    """
    curve = Curve(population, index)
    upper, lower = outer_gaps(curve)
    starter = _starter(population, index, lower[-1].high, upper.low)
    gaps, bulks = [*lower, upper], []
    pending = [(lower[-1], upper)]
    while pending:
        left, right = pending.pop()
        found = _fill(curve, starter, left, right)
        if isinstance(found, Gap):
            gaps.append(found)
            pending += [(left, found), (found, right)]
        else:
            bulks.append(found)
    zero = lower[1].mass if len(lower) == 2 else 0.0
    return NoiseLaw(tuple(sorted(bulks, key=lambda b: b.low)), tuple(sorted(gaps, key=lambda g: g.low)), zero)


def _starter(population: Population, index: int, low: float, high: float) -> Starter:
    """Starting values of g at real points; a surrogate is asked at the points that correspond to them."""
    surrogate = population.surrogate()
    if surrogate is population:
        return lambda x: start_inside(population, x, high - low)
    upper, lower = outer_gaps(Curve(surrogate, index))
    stretch = (upper.low - lower[-1].high) / (high - low)
    return lambda x: start_inside(surrogate, lower[-1].high + stretch * (x - low), upper.low)


def _fill(curve: Curve, starter: Starter, left: Gap, right: Gap) -> Bulk | Gap:
    """The bulk between two gaps, or a gap found inside it."""
    population = curve.population
    low, high, mass = left.high, right.low, right.mass - left.mass
    done = _Panels([], [], [])
    breaks = _first_breaks(high - low, low if left.low < 0 else low - left.low, right.high - high)
    starts, stops = breaks[:-1], breaks[1:]
    guess: Array | None = None
    shares = population.ratios / population.ratios.sum()
    for depth in range(_DEPTH):
        angles = nodes(starts, stops)
        x = (low + (high - low) * np.sin(0.5 * angles) ** 2).ravel()
        g, missed = _solve(population, starter, x, guess)
        gap = _gap_among(curve, x[missed], g[missed])
        if gap is not None:
            return gap
        g = g.reshape(*angles.shape, -1)
        jacobian = 0.5 * (high - low) * np.sin(angles)
        coefficients = chebyshev_coefficients((g.imag @ shares) / np.pi * jacobian)
        tail = np.abs(coefficients[:, -3:]).max(axis=1) * (stops - starts)
        good = (tail < population.tolerance * mass) | (depth == _DEPTH - 1)
        done.starts += list(starts[good])
        done.stops += list(stops[good])
        done.coefficients += list(coefficients[good])
        if good.all():
            return _assemble(low, high, mass, done, population.tolerance)
        starts, stops, guess = _halve(starts[~good], stops[~good], g[~good])
        if len(starts) > _MOST_PANELS:
            raise ConvergenceError(
                f"the density on ({low:.6g}, {high:.6g}) is not resolved by {len(starts)} panels; "
                "the covariances may be badly scaled: check their eigenvalues"
            )
    raise AssertionError("unreachable")


def _first_breaks(width: float, below: float, above: float) -> Array:
    """Ends of the first panels, graded towards an edge that has zero or another bulk near it.

    At a distance d beyond an edge the density has its next singularity, at an imaginary angle 2 asinh(sqrt(d/width));
    panels that grow with the distance from it converge all at the same rate.
    """
    out = [0.0, np.pi]
    for room, mirrored in ((below, False), (above, True)):
        if 0.0 < room < np.inf:
            angle = 2.7 * 2.0 * float(np.arcsinh(np.sqrt(room / width)))
            while angle < 0.4 * np.pi and len(out) < 40:
                out.append(np.pi - angle if mirrored else angle)
                angle *= 5.0
    return np.array(sorted(out if len(out) > 2 else [0.0, 0.5 * np.pi, np.pi]))


def _solve(population: Population, starter: Starter, x: Array, guess: Array | None) -> tuple[Array, Array]:
    """Solutions at x, and which of them failed even from a fresh start."""
    g, good = solve_inside(population, x, starter(x) if guess is None else guess)
    if guess is not None and not good.all():
        again = np.flatnonzero(~good)
        g[again], good[again] = solve_inside(population, x[again], starter(x[again]))
    return g, ~good


def _gap_among(curve: Curve, x: Array, g: Array) -> Gap | None:
    """A gap that holds one of the points that have no complex solution."""
    for i in np.argsort(np.abs(g.imag / g.real).max(axis=1)):
        gap = find_gap(curve, float(x[i]), g[i].real)
        if gap is not None:
            return gap
    if len(x):
        raise ConvergenceError(f"no solution was found at {len(x)} points of the support, the first z = {x[0]:.6g}")
    return None


def _halve(starts: Array, stops: Array, g: Array) -> tuple[Array, Array, Array]:
    """The two halves of each panel, and g interpolated at their nodes."""
    middle = 0.5 * (starts + stops)
    new_starts = np.stack([starts, middle], axis=1).ravel()
    new_stops = np.stack([middle, stops], axis=1).ravel()
    coefficients = chebyshev_coefficients(np.swapaxes(g, 1, 2))  # (panels, K, NODES)
    local = nodes(np.array([-1.0, 0.0]), np.array([0.0, 1.0])).ravel()
    values = coefficients @ np.polynomial.chebyshev.chebvander(local, coefficients.shape[-1] - 1).T
    guess = np.swapaxes(values, 1, 2).reshape(-1, g.shape[-1])
    return new_starts, new_stops, np.where(guess.imag > 0, guess, guess.conj() + 1e-12j)


def _assemble(low: float, high: float, mass: float, panels: _Panels, tolerance: float) -> Bulk:
    order = np.argsort(panels.starts)
    breaks = np.append(np.array(panels.starts)[order], np.pi)
    coefficients = np.stack([panels.coefficients[i] for i in order])
    found = float((chebyshev_integral(coefficients) * 0.5 * np.diff(breaks)).sum())
    if abs(found - mass) > max(1e3 * tolerance, 1e-6) * mass:
        raise ConvergenceError(
            f"the density on ({low:.6g}, {high:.6g}) integrates to {found:.8g} instead of {mass:.8g}; "
            "the covariances may be badly scaled: check their eigenvalues"
        )
    return Bulk.build(low, high, mass, breaks, coefficients)
