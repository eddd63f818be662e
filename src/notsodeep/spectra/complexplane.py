"""Inside the bulk: the solution of the fixed point on the real axis with Im g > 0, which is unique there."""

from __future__ import annotations

import numpy as np

from .population import Array, Dense, Population

_HEIGHTS = tuple(10.0 ** (-0.5 * k) for k in range(18))  # imaginary parts, relative to the width of the support


def solve_inside(population: Population, x: Array, start: Array) -> tuple[Array, Array]:
    """Newton at the real points x from ``start`` (N, K): the solutions, and which of them are reliable.

    A point where Im g collapses lies outside the support, or too close to an edge to tell; it is reported as not
    reliable, with g the last iterate.
    """
    if not isinstance(population, Dense):
        return _newton(population, x.astype(complex), start, steps=40)
    g, good = _chord(population, x, start)
    again = np.flatnonzero(~good)  # a chord may end at a real solution, which Newton's whole steps pass by
    g[again], good[again] = _newton(population, x[again].astype(complex), start[again], steps=40)
    return g, good


def start_inside(population: Population, x: Array, width: float) -> Array:
    """Solutions at the real points x from nothing: a descent from far above the axis, where the map contracts."""
    z = x + 1j * width * _HEIGHTS[0]
    g = np.repeat(-1.0 / z[:, None], len(population.ratios), axis=1)
    for _ in range(30):
        g = 0.5 * g + 0.5 / (population.traces(g) - z[:, None])
    for height in _HEIGHTS:
        g, _ = _newton(population, x + 1j * width * height, g, steps=12)
    return _newton(population, x.astype(complex), g, steps=40)[0]


def _newton(population: Population, z: Array, start: Array, steps: int) -> tuple[Array, Array]:
    """Damped so that Im g stays positive; all points at once, converged ones leave."""
    g = start.copy()
    done = np.zeros(len(z), dtype=bool)
    for _ in range(steps):
        active = np.flatnonzero(~done)
        if not len(active):
            break
        now = g[active]
        traces, couplings = population.traces_and_couplings(now)
        residual = traces - 1.0 / now - z[active, None]
        step, size = _newton_step(now, residual, couplings * population.ratios)
        g[active] = now + step
        rounding = (np.abs(residual) < 2e-15 * (np.abs(traces) + np.abs(1.0 / now))).all(axis=1)
        done[active] = (size < population.last_step) | rounding
    return g, done & _upright(g)


def _newton_step(g: Array, residual: Array, coupled: Array) -> tuple[Array, Array]:
    """The Newton step, shortened where it would leave the upper half plane or more than double g; and its whole size.

    A step that is short because it was shortened says nothing of how near the solution is.
    """
    square = g**2
    system = np.eye(g.shape[1]) - square[:, :, None] * coupled
    whole: Array = -np.linalg.solve(system, (square * residual)[:, :, None])[:, :, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(whole.imag < 0, -0.9 * g.imag / whole.imag, np.inf).min(axis=1)
        trust = (np.abs(g) / np.abs(whole)).min(axis=1)
    return whole * np.minimum(1.0, np.minimum(room, trust))[:, None], np.abs(whole / g).max(axis=1)


def _upright(g: Array, least: float = 1e-9) -> Array:
    return np.asarray(np.isfinite(g).all(axis=1) & (g.imag > least * np.abs(g)).all(axis=1))


def _chord(population: Population, x: Array, start: Array) -> tuple[Array, Array]:
    """One point after the other, from the middle outwards, each start corrected by what its neighbour's start missed.

    The Jacobian, the expensive part, is handed on and renewed only when convergence slows down.
    """
    g = start.copy()
    done = np.zeros(len(x), dtype=bool)
    coupled: Array | None = None
    for i in np.argsort(np.abs(x - np.median(x))):
        if done.any():
            j = np.flatnonzero(done)[np.abs(x[done] - x[i]).argmin()]
            corrected = start[i] * (g[j] / start[j])
            g[i] = np.where(corrected.imag > 0, corrected, start[i])
        g[i], done[i], coupled = _chord_point(population, float(x[i]), g[i], coupled)
    return g, done & _upright(g, population.tolerance)


def _chord_point(population: Population, x: float, g: Array, coupled: Array | None) -> tuple[Array, bool, Array | None]:
    """Broyden's method on the traces: coupled stands for -d traces/dg, shape (1, K, K)."""
    before: float | None = None
    old: tuple[Array, Array] | None = None
    for _ in range(30):
        now = g[None]
        fresh = coupled is None
        if coupled is None:
            traces, couplings = population.traces_and_couplings(now)
            coupled = couplings * population.ratios
        else:
            traces = population.traces(now)
            if old is not None:
                moved = (now - old[0])[0]
                missed = -(traces - old[1])[0] - coupled[0] @ moved
                coupled = coupled + np.outer(missed, moved.conj())[None] / np.vdot(moved, moved).real
        old = (now, traces)
        step, sizes = _newton_step(now, traces - 1.0 / now - x, coupled)
        g, size = (now + step)[0], float(sizes[0])
        rate = size if fresh else 0.2 if before is None else min(1.0, size / before)  # of the error, in this step
        if size * rate < 0.1 * population.tolerance:
            return g, True, coupled
        if rate > 0.5 or size > 0.5:
            coupled = None
        before = size
    return g, False, coupled
