"""Outside the bulk, on the real axis: gaps of the support, their edges, and the mass to their left.

In a gap every g_a is real and grows with z (Silverstein and Choi), and so does u_a = -1/g_a; towards an edge dz/du_a
falls like a square root. A real solution belongs to a gap if and only if dg_a/dz > 0 for every class.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field

import numpy as np

from ..errors import ConvergenceError
from .population import Array, Population, newton, reach, traces_and_slopes


@dataclass(frozen=True, eq=False)
class State:
    """One real solution in a gap."""

    z: float
    g: Array  # (K,)
    slope: Array  # dg/dz, positive
    mass: float  # Share of eigenvalues below z (exact separation)

    @property
    def speed(self) -> Array:
        """The derivatives dz/du_a: one far out, zero at an edge."""
        return self.g**2 / self.slope

    @property
    def size(self) -> float:
        """The least |u_a|."""
        return float(np.abs(1.0 / self.g).min())


def state_at(population: Population, z: float, u: Array, steps: int = 40) -> State | None:
    """Return the solution at z near u = -1/g, or None when z is not in a gap."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a divergent iteration returns None
        try:
            answers = functools.partial(traces_and_slopes, population)
            last = min(population.last_step, 1e-9)  # beside an edge errors grow
            ends, (done,) = newton(answers, np.array([[z]]), u[None], last, steps=steps)
            g = -1.0 / ends[0]
            if not done or not np.isfinite(g).all():
                return None
            slopes = answers(g[None])[1][0]
            slope = np.linalg.solve(np.diag(1.0 / g**2) - slopes, np.ones(len(g)))
        except np.linalg.LinAlgError:
            return None
    if not (slope > 0.0).all():
        return None
    ratios = population.ratios
    mass = (ratios[g < 0].sum() - population.negative_share(g)) / ratios.sum()
    return State(z, g, slope, float(mass))


def _moved(population: Population, start: State, z: float) -> State | None:
    """Return the solution at z of the gap that holds ``start``, if one step leads there."""
    state = state_at(population, z, -1.0 / start.g + (z - start.z) / start.speed, steps=12)
    same = state is not None and abs(state.mass - start.mass) < 1e-9 and bool((state.g * start.g > 0).all())
    return state if same else None


@dataclass(frozen=True, eq=False)
class Gap:
    """An open interval outside the support; ``states`` holds what is known of it, one beside each edge among them."""

    population: Population
    low: float
    high: float
    states: list[State] = field(default_factory=list)

    @property
    def mass(self) -> float:
        """The share of eigenvalues below the gap."""
        return self.states[0].mass

    @property
    def ends(self) -> tuple[State, State]:
        """The lowest and the highest state that is known."""
        return min(self.states, key=lambda s: s.z), max(self.states, key=lambda s: s.z)

    def solve(self, z: float) -> State:
        """Return the solution at z, by steps from the nearest known one that are halved where they fail."""
        state, share = min(self.states, key=lambda s: abs(s.z - z)), 1.0
        for _ in range(200):
            if state.z == z:
                return state
            reached = _moved(self.population, state, z if share == 1.0 else state.z + share * (z - state.z))
            if reached is None:
                share *= 0.5
            else:
                state, share = reached, min(1.0, 2.0 * share)
                self.states.append(state)
        raise ConvergenceError(
            f"the real solution could not be followed to z = {z:.6g}; the covariances may be badly scaled: check their "
            "eigenvalues"
        )


def _edge(population: Population, start: State, side: float, floor: float = 0.0) -> tuple[float, State]:
    """Return the end of the gap above (``side`` 1) or below a state, and the state beside it.

    (1 - dz/du)^(-1/2) is affine in u for one isotropic class, and nearly so in general: the step to where it is one, at
    the edge, almost lands there. Where some |u| falls below ``floor`` first, the end is zero.
    """
    here, step = start, 0.02 * start.size
    for _ in range(500):
        ahead = _moved(population, here, here.z + side * step)
        if ahead is None:
            step *= 0.5
            if step < 1e-15 * here.size:  # the edge is here to working precision
                return here.z, here
            continue
        k = int(ahead.speed.argmin())
        first, last = (math.expm1(-0.5 * math.log1p(-min(float(s.speed[k]), 1.0 - 1e-12))) for s in (here, ahead))
        run = abs(float(1.0 / here.g[k] - 1.0 / ahead.g[k]))
        left = last**2 * run / ((1.0 + last) * (first - last)) if last < first else math.inf
        here = ahead
        if here.size <= floor:
            return 0.0, here
        if left <= 1e-11 * here.size:
            edge = here.z + side * left
            return edge if abs(edge) > 1e-9 * floor else 0.0, here
        step = min(0.98 * left, 4.0 * step)
    raise ConvergenceError(f"no edge of the support was found from z = {start.z:.6g} on; check the covariances' scale")


def _gap(population: Population, inside: State, sides: tuple[float, ...] = (-1.0, 1.0), floor: float = 0.0) -> Gap:
    """Return the gap around a state; it is open on a side that is not asked for."""
    ends, states = {-1.0: -math.inf, 1.0: math.inf}, [inside]
    for side in sides:
        ends[side], beside = _edge(population, inside, side, floor)
        states.append(beside)
    return Gap(population, ends[-1.0], ends[1.0], states)


def outer_gaps(population: Population) -> tuple[Gap, list[Gap]]:
    """Return the gap above the support, and the gap(s) below it: two when eigenvalues sit at zero."""
    far = 4.0 * reach(population)
    above, below = (state_at(population, z, np.full(len(population.ratios), z)) for z in (far, -far))
    if above is None or below is None:
        raise ConvergenceError("the fixed point did not converge far from the support; check the covariances' scale")
    upper, lower = _gap(population, above, (-1.0,)), _gap(population, below, (1.0,), 1e-13 * far)
    positive = _beyond_zero(population, lower, far) if lower.high == 0.0 else None
    return upper, [lower] if positive is None else [lower, positive]


def _beyond_zero(population: Population, lower: Gap, far: float) -> Gap | None:
    """Return the gap between an atom at zero and the first bulk; None when there is no atom.

    -z g_a(z) tends to the share of class a that sits at zero, and is analytic there.
    """
    nearest = lower.ends[1]
    classes = population.ratios / population.ratios.sum()
    atom = float(classes @ (-nearest.z * nearest.g))
    if atom < 1e-5:
        return None
    for exponent in range(-3, -13, -1):
        small = far * 10.0**exponent
        one, two = lower.solve(-small), lower.solve(-2.0 * small)
        shares = -one.z * one.g
        slope = (shares + two.z * two.g) / (one.z - two.z)
        state = state_at(population, small, small / (shares + 2.0 * small * slope))
        # any other mass belongs to a gap further up
        if state is not None and abs(state.mass - atom) < 1e-3 * atom:
            above = _gap(population, state, (1.0,))
            return Gap(population, 0.0, above.high, above.states)
    raise ConvergenceError(
        f"the spectrum next to zero could not be resolved (mass {atom:.4g} at zero); the smallest eigenvalues of the "
        "covariances are positive but below 1e-10 of the largest: set them to zero"
    )


def find_gap(population: Population, z: float, g: Array) -> Gap | None:
    """Return the gap around z, from an approximate real solution; None when z turns out to lie in the bulk."""
    inside = state_at(population, z, -1.0 / g)
    return None if inside is None else _gap(population, inside)
