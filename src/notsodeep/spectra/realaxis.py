"""Outside the bulk, on the real axis: gaps of the support, their edges, and the mass to their left.

In a gap every g_a is real and increases with z, so that u = -1/g_a is a coordinate of the gap, and z(u) is the inverse
map of Silverstein and Choi: it increases inside and folds at the edges of the support. A real solution belongs to a gap
if and only if dg_b/dz > 0 for every class. Near an edge the class whose g changes most is the coordinate to use.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from scipy.optimize import brentq

from ..errors import ConvergenceError
from .population import Array, Population, newton


@dataclass(frozen=True, eq=False)
class State:
    """One real solution: the coordinate u = -1/g_a, g (K,), z, the tangent d(g, z)/dg_a, whether it lies in a gap."""

    index: int  # The class a whose g is the coordinate
    u: float
    g: Array
    z: float
    tangent: Array  # dg_b/dg_a for b != a, and dz/dg_a in place a
    speed: float  # f = 1 - g_a^2 dz/dg_a: below 1 in a gap, 1 at its edges
    valid: bool
    mass: float  # Share of eigenvalues below z (exact separation)

    def seen_from(self, index: int) -> State:
        """Return the same solution with another class as coordinate."""
        if index == self.index:
            return self
        slopes = self.tangent.copy()
        rise, slopes[self.index] = float(slopes[self.index]), 1.0
        tangent = slopes / slopes[index]
        tangent[index] = rise / slopes[index]
        g = float(self.g[index])
        speed = 1.0 - g**2 * float(tangent[index])
        return replace(self, index=index, u=-1.0 / g, tangent=tangent, speed=speed)

    @property
    def together(self) -> bool:
        """Whether all g move in the same direction, as they do in a gap and across its folds."""
        return bool((np.delete(self.tangent, self.index) > 0).all())

    def dominant(self) -> int:
        """Return the class whose g changes most, relative to its size."""
        slopes = self.tangent.copy()
        slopes[self.index] = 1.0
        return int(np.abs(slopes / self.g).argmax())


@dataclass(frozen=True, eq=False)
class Curve:
    """Real solutions of z = o_b - 1/g_b + tr(C_b R)/p, followed along u = -1/g_a."""

    population: Population
    index: int  # The class a whose g is the coordinate far from the support

    def solve(self, u: float, near: State | None = None, steps: int = 40) -> State | None:
        """Return the solution at u next to ``near`` (to infinity without it); None if Newton does not converge."""
        index = self.index if near is None else near.index
        g, z = self._start(u, near)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):  # a divergent iteration returns None
            return self._newton(index, u, g, z, steps)

    def _newton(self, a: int, u: float, g: Array, z: float, steps: int) -> State | None:
        goal = self.population.last_step
        for _ in range(steps):
            try:
                jacobian, residual = self._system(g, z)
                border = jacobian.copy()
                border[:, a] = -1.0
                step = -np.linalg.solve(border, residual)
            except np.linalg.LinAlgError:
                return None
            move = np.abs(step / g)
            move[a] = abs(step[a]) / (abs(z) + abs(u))
            rounding = np.abs(residual).max() < 4e-15 * (abs(z) + float(np.abs(1.0 / g).max()))
            z += float(step[a])
            step[a] = 0.0
            g = g + step
            if not (np.isfinite(g).all() and math.isfinite(z)) or (g == 0).any():
                return None
            if move.max() < goal or (rounding and move.max() < 1e-6):
                return self._state(a, g, z, jacobian)
        return None

    def _start(self, u: float, near: State | None) -> tuple[Array, float]:
        if near is None:
            return np.full(len(self.population.ratios), -1.0 / u), u
        change = -1.0 / u - near.g[near.index]
        g = near.g + near.tangent * change
        z = near.z + near.tangent[near.index] * change
        # a predictor that changes the sign of some g leaves the gap: then start from the neighbour itself
        if (g * near.g <= 0).any() or abs(z - near.z) > 2.0 * abs(u - near.u) + abs(near.z):
            g, z = near.g.copy(), near.z
        g[near.index] = -1.0 / u
        return g, float(z)

    def _system(self, g: Array, z: float) -> tuple[Array, Array]:
        traces, slopes = self.population.traces_and_slopes(g[None])
        return np.diag(1.0 / g**2) - slopes[0], -1.0 / g + traces[0] - z

    def _state(self, a: int, g: Array, z: float, jacobian: Array) -> State:
        border = jacobian.copy()
        border[:, a] = -1.0
        tangent = -np.linalg.solve(border, jacobian[:, a])
        ratios = self.population.ratios
        mass = (ratios[g < 0].sum() - self.population.negative_share(g)) / ratios.sum()
        speed, valid = float(1.0 - g[a] ** 2 * tangent[a]), bool((tangent > 0).all())
        return State(a, -1.0 / float(g[a]), g, z, tangent, speed, valid, float(mass))

    def at(self, z: float, g: Array) -> State | None:
        """Return the gap solution at real z near g, or None when z is not in a gap."""
        population = self.population
        try:
            u, (done,) = newton(population.traces_and_slopes, np.array([[z]]), -1.0 / g[None], population.last_step)
        except np.linalg.LinAlgError:
            return None
        if not done:
            return None
        g = -1.0 / u[0]
        state = self._state(self.index, g, z, self._system(g, z)[0])
        return state if state.valid else None


@dataclass(frozen=True, eq=False)
class Gap:
    """An open interval outside the support; an end at infinity or at the atom in zero has no state."""

    curve: Curve
    inside: State
    left: State | None  # State at the right edge of the bulk below the gap
    right: State | None
    low: float
    high: float
    states: list[State] = field(default_factory=list)

    @classmethod
    def between(cls, curve: Curve, inside: State, left: State | None, right: State | None, zero: bool = False) -> Gap:
        """Build a gap in the coordinate that suits an edge; without a state, ``zero`` tells an atom from infinity."""
        edge = left or right or inside
        # next to an atom only classes that share in it have u -> 0
        index = int((-inside.z * inside.g).argmax()) if zero else edge.index
        low = left.z if left is not None else (0.0 if zero and inside.z > 0 else -math.inf)
        high = right.z if right is not None else (0.0 if zero and inside.z < 0 else math.inf)
        ends = [None if s is None else s.seen_from(index) for s in (left, right)]
        return cls(Curve(curve.population, index), inside.seen_from(index), ends[0], ends[1], low, high)

    @property
    def mass(self) -> float:
        return self.inside.mass

    def solve(self, u: float) -> State:
        """Return the solution at coordinate u of this gap."""
        known = [s for s in (self.inside, self.left, self.right, *self.states) if s is not None]
        near = min(known, key=lambda s: abs(math.log(abs(s.u / u))))
        if math.isclose(near.u, u, rel_tol=1e-14):  # an edge, where no Newton step exists, comes back rounded
            return near
        state = _walk(self.curve, near, u)
        self.states.append(state)
        return state


def _walk(curve: Curve, start: State, target: float) -> State:
    """Continue in u from a known state to the target, halving the step when Newton fails or leaves the gap."""
    state, share = start, 1.0
    at_edge = max(1e-5, 50.0 * curve.population.tolerance)  # an edge itself is known to this precision
    for _ in range(200):
        u = state.u * (target / state.u) ** share  # u keeps its sign in a gap
        reached = curve.solve(target if share == 1.0 else u, state)
        if reached is not None and _same_gap(reached, start) and (reached.valid or abs(reached.speed - 1.0) < at_edge):
            if share == 1.0:
                return reached
            state, share = reached, 1.0
        else:
            share *= 0.5
    raise ConvergenceError(
        f"the real solution could not be followed from z = {start.z:.6g} to u = {target:.6g}; "
        "the covariances may be badly scaled: check their eigenvalues"
    )


def _same_gap(state: State | None, start: State) -> bool:
    return state is not None and abs(state.mass - start.mass) < 1e-9 and bool((state.g * start.g > 0).all())


def _edge(curve: Curve, start: State, upward: bool, floor: float = 0.0) -> State | None:
    """Return the first fold met when z grows (or falls) from ``start``; None when |u| falls below ``floor`` before it.

    f^(-1/2) is affine in u for one isotropic class and nearly so in general: a secant step on it almost lands on
    the edge.
    """
    inner, step = start, 0.02
    for _ in range(500):
        if abs(inner.u) <= floor:
            return None
        growing = (inner.u > 0) == upward
        outer = curve.solve(inner.u * math.exp(step if growing else -step), inner)
        if outer is not None and _same_gap(outer, start) and outer.together:
            if outer.valid:
                best = outer.dominant()
                previous, inner = inner.seen_from(best), outer.seen_from(best)
                step = _secant(previous, inner, (inner.u > 0) == upward)
                continue
            fold = _fold(curve, inner, outer)
            if fold is not None:
                return fold
        step *= 0.5
        if step < 1e-13:  # the fold is here to working precision
            return inner
    raise ConvergenceError(f"no edge of the support was found from z = {start.z:.6g} on; check the covariances' scale")


def _secant(previous: State, inner: State, growing: bool) -> float:
    """Return the logarithmic step to just beyond the point where f^(-1/2) reaches 1 by extrapolation."""
    first, last = max(previous.speed, 1e-300) ** -0.5, max(inner.speed, 1e-300) ** -0.5
    run = inner.u - previous.u
    slope = (last - first) / run if run != 0.0 else 0.0
    target = inner.u + 1.02 * (1.0 - last) / slope if slope != 0.0 else 0.0
    ratio = target / inner.u
    towards = ratio > 1.0 if growing else 0.0 < ratio < 1.0
    return float(np.clip(abs(math.log(ratio)), 1e-12, 1.5)) if towards else 1.5


def _fold(curve: Curve, inner: State, outer: State) -> State | None:
    """Find where z(u) turns between ``inner`` (f < 1) and ``outer`` (f >= 1); None if they are not neighbours."""
    states = [inner, outer]
    # z is stationary in u at the fold: its error is the square of that of u
    exact = curve.population.last_step < 1e-12
    precision = 1e-14 if exact else curve.population.tolerance

    def excess(u: float) -> float:
        near = min(states, key=lambda s: abs(s.u - u))
        state = near if near.u == u else curve.solve(u, near)
        if state is None or not (_same_gap(state, inner) and state.together):
            raise ConvergenceError("the two states lie on different branches")
        states.append(state)
        return max(state.speed, 1e-300) ** -0.5 - 1.0

    try:
        root = brentq(excess, inner.u, outer.u, xtol=precision * abs(inner.u), rtol=precision, maxiter=80)
        excess(root)
    except ConvergenceError:
        return None
    return states[-1]


def outer_gaps(curve: Curve) -> tuple[Gap, list[Gap]]:
    """Return the gap above the support, and the gap(s) below it: two when eigenvalues sit at zero."""
    reach = 4.0 * curve.population.reach
    above, below = _far(curve, reach), _far(curve, -reach)
    top = _edge(curve, above, upward=False)
    upper = Gap.between(curve, above, top, None)
    bottom = _edge(curve, below, upward=True, floor=1e-13 * reach)
    if bottom is not None:
        return upper, [Gap.between(curve, below, None, bottom)]
    lower = Gap.between(curve, below, None, None, zero=True)
    positive = _beyond_zero(curve, lower, reach)
    return upper, [lower] if positive is None else [lower, positive]


def _far(curve: Curve, u: float) -> State:
    state = curve.solve(u)
    if state is None:
        raise ConvergenceError("the fixed point did not converge far from the support; check the covariances' scale")
    return state


def _beyond_zero(curve: Curve, lower: Gap, reach: float) -> Gap | None:
    """Return the gap between an atom at zero and the first bulk; None when the bulk touches zero (n equal to the rank).

    -z g_a(z) tends to the share of class a that sits at zero, and is analytic there.
    """
    nearest = lower.solve(-1e-12 * reach)
    classes = curve.population.ratios / curve.population.ratios.sum()
    atom = float(classes @ (-nearest.z * nearest.g))
    if atom < 1e-5:
        return None
    for exponent in range(-3, -13, -1):
        small = reach * 10.0**exponent
        one, two = lower.solve(-small), lower.solve(-2.0 * small)
        shares = -one.z * one.g
        slope = (shares + two.z * two.g) / (one.z - two.z)
        z = -one.z
        state = curve.at(z, -(shares + 2.0 * z * slope) / z)
        # any other mass belongs to a gap further up
        if state is not None and abs(state.mass - atom) < 1e-3 * atom:
            right = _edge(curve, state, upward=True)
            return Gap.between(curve, state, None, right, zero=True)
    raise ConvergenceError(
        f"the spectrum next to zero could not be resolved (mass {atom:.4g} at zero); the smallest eigenvalues of the "
        "covariances are positive but below 1e-10 of the largest: set them to zero"
    )


def find_gap(curve: Curve, z: float, g: Array) -> Gap | None:
    """Return the gap around z, from an approximate real solution; None when z turns out to lie in the bulk."""
    inside = curve.at(z, g)
    if inside is None:
        return None
    left, right = (_edge(curve, inside, upward) for upward in (False, True))
    return Gap.between(curve, inside, left, right)
