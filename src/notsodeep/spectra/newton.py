"""The fixed point by Newton's method: one loop for the bulk, for its gaps and for learning; and where it starts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .population import Array, Population

Answers = Callable[[Array], tuple[Array, Array]]
"""From g (N, K) to the traces and how they fall with every g_b, as ``Population.traces_and_slopes``."""

_HEIGHTS = 10.0 ** -np.arange(9.0)  # imaginary parts, relative to the size of the support
_FLAT = 1e-9  # Im u beside |u| below which a point lies outside the support, or too close to an edge to tell


def newton(
    answers: Answers, z: Array, u: Array, last: float, *, inside: bool = False, steps: int = 40
) -> tuple[Array, Array]:
    """Solve z = u + traces(-1/u) for u = -1/g, (N, K), from ``u``; all points at once, converged ones leave.

    A point has converged after a step of size ``last`` relative to |u|, or, if solutions ``inside`` the bulk are asked
    for, relative to Im u, which then stays positive. Returns the solutions, and which of them have converged.
    """
    u, done = u.copy(), np.zeros(len(u), dtype=bool)
    for _ in range(steps):
        active = np.flatnonzero(~done)
        if not len(active):
            break
        now = u[active]
        traces, slopes = answers(-1.0 / now)
        residual = now + traces - z[active]
        system = np.eye(now.shape[1]) - slopes / now[:, None, :] ** 2
        step = -np.linalg.solve(system, residual[..., None])[..., 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            # short of zero, and of the real axis
            room = np.abs(now) / np.abs(step)
            if inside:
                room = np.minimum(room, np.where(step.imag < 0, -now.imag / step.imag, np.inf))
        u[active] = now + step * np.minimum(1.0, 0.9 * room.min(axis=1))[:, None]
        size = np.abs(step) / (now.imag if inside else np.abs(now))
        rounding = np.abs(residual) < 2e-15 * (np.abs(traces) + np.abs(now))
        done[active] = (size.max(axis=1) < last) | rounding.all(axis=1) | (inside & ~_upright(u[active]))
    return u, done & (_upright(u) if inside else np.isfinite(u).all(axis=1))


def _upright(u: Array) -> Array:
    return np.asarray((u.imag > _FLAT * np.abs(u)).all(axis=1))


def solve_inside(population: Population, z: Array, g: Array, steps: int = 40) -> tuple[Array, Array]:
    """Solutions with Im g > 0, unique on the real axis, from g (N, K) nearby; and which of them are reliable.

    A point where Im g collapses lies outside the support; it is not reliable, and g is the last iterate.
    """
    last = 100.0 * population.tolerance  # Newton squares it
    u, good = newton(population.traces_and_slopes, z[:, None], -1.0 / g, last, inside=True, steps=steps)
    return -1.0 / u, good


def start_inside(population: Population, x: Array) -> tuple[Array, Array]:
    """Solutions at the real points x from nothing: a descent from far above the axis."""
    heights = 1j * population.reach * _HEIGHTS
    g = np.repeat(-1.0 / (x + heights[0])[:, None], len(population.ratios), axis=1)
    for height in heights:
        g, _ = solve_inside(population, x + height, g, steps=12)
    return solve_inside(population, x, g)
