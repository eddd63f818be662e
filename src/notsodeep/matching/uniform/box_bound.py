"""Derivative bounds on a box, for activations whose slope is continuous (docs/uniform.md, "On a box").

A level is described by s(|x|) = |x| sigma(|x|), the scale of its pre-activations, and by the correlation rho of a
pair. A layer acts on unit-variance variables through psi_s(xi) = phi(s xi) / s. Its derivatives in s are made of the
homogeneity defect chi(u) = u phi'(u) - phi(u), which vanishes for ReLU and for every linear part, so that the bounds
are small for all activations in use:

    d psi/ds = chi(u) / s^2,   d2 psi/ds2 = (u^2 phi''(u) - 2 chi(u)) / s^3,   u = s xi,

and by Price's theorem d/drho E[psi psi'] = E[phi'(u) phi'(v)], d2/drho2 = E[s phi''(u) s' phi''(v)]. Cauchy-Schwarz
turns all of them into one-dimensional norms N[g] = sqrt(E g(s xi)^2), and on a cell s1 <= s <= s2 these are at most
sqrt(s2/s1) times their value at s2, because the normal densities are so ordered.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...activations import Activation
from ...errors import InvalidInputError
from ...networks import DEQ
from .arc import Array
from .box import rule, values


class CoarseGridError(InvalidInputError):
    """The derivative bounds need smaller cells of norm (or the box is too wide for them)."""


@dataclass(frozen=True)
class Jet:
    """Bounds on |f|, |f'|, |f''| per pair of norm cells, along |x| (rows) or along the angle."""

    value: Array
    first: Array
    second: Array

    def __add__(self, other: Jet) -> Jet:
        return Jet(self.value + other.value, self.first + other.first, self.second + other.second)

    def __mul__(self, other: Jet) -> Jet:
        return Jet(
            self.value * other.value,
            self.first * other.value + self.value * other.first,
            self.second * other.value + 2.0 * self.first * other.first + self.value * other.second,
        )

    def times(self, factor: float) -> Jet:
        return Jet(factor * self.value, factor * self.first, factor * self.second)

    def under_one(self, a: float) -> Jet:
        """1 / (1 - a f), for a |f| < 1."""
        least = 1.0 - a * self.value
        if bool((least <= 0).any()):
            raise CoarseGridError(
                "no certificate on this box: sigma_a2 E[phi'^2] may reach 1; lower sigma_a2 or the norms"
            )
        first = a * self.first
        return Jet(1.0 / least, first / least**2, a * self.second / least**2 + 2.0 * first**2 / least**3)


@dataclass(frozen=True)
class Line:
    """A positive function of the norm on cells: its range, and bounds on its first two derivatives."""

    low: Array
    high: Array
    first: Array
    second: Array

    def __mul__(self, other: Line) -> Line:
        return Line(
            self.low * other.low,
            self.high * other.high,
            self.first * other.high + self.high * other.first,
            self.second * other.high + 2.0 * self.first * other.first + self.high * other.second,
        )

    def __add__(self, other: Line) -> Line:
        return Line(self.low + other.low, self.high + other.high, self.first + other.first, self.second + other.second)

    def times(self, factor: float) -> Line:
        return Line(factor * self.low, factor * self.high, factor * self.first, factor * self.second)

    def power(self, exponent: float) -> Line:
        """f^exponent, of either sign."""
        ends = np.stack([self.low**exponent, self.high**exponent])
        one = np.maximum(self.low ** (exponent - 1.0), self.high ** (exponent - 1.0)) * abs(exponent)
        two = np.maximum(self.low ** (exponent - 2.0), self.high ** (exponent - 2.0)) * abs(exponent * (exponent - 1.0))
        return Line(ends.min(0), ends.max(0), one * self.first, one * self.second + two * self.first**2)

    def one_minus(self, a: float) -> Line:
        """1 - a f, which must stay positive."""
        low = 1.0 - a * self.high
        if bool((low <= 0).any()):
            raise CoarseGridError("no certificate on this box: sigma_a2 E[phi'^2] or E[phi^2] is too large")
        return Line(low, 1.0 - a * self.low, a * self.first, a * self.second)

    def and_(self, other: Line) -> Line:
        """What is known of a function that both describe."""
        return Line(
            np.maximum(self.low, other.low),
            np.minimum(self.high, other.high),
            np.minimum(self.first, other.first),
            np.minimum(self.second, other.second),
        )

    def pair(self, along_norm: bool) -> Jet:
        """f(|x|) f(|y|) as |x| moves, or as the angle does."""
        value = np.outer(self.high, self.high)
        if not along_norm:
            return Jet(value, np.zeros_like(value), np.zeros_like(value))
        return Jet(value, np.outer(self.first, self.high), np.outer(self.second, self.high))


def identity(norms: Array) -> Line:
    """|x| itself."""
    one = np.ones(len(norms) - 1)
    return Line(norms[:-1], norms[1:], one, np.zeros_like(one))


class Sizes:
    """The one-dimensional norms of a layer on cells of its input scale."""

    def __init__(self, phi: Activation, s: Line, with_slopes: bool) -> None:
        _require_slope(phi, with_slopes)
        if not bool((s.low > 0).all()):
            raise CoarseGridError("the grid of norms is too coarse for a certificate; narrow the range of norms")
        self._s, self._rule = s, rule(8)
        u = s.high[:, None] * self._rule.nodes
        f, g, c = (values(phi, u, order) for order in range(3))
        defect = u * g - f
        self.d1 = self._norm(defect) / s.low**2
        ends = self._root(values(phi, s.low[:, None] * self._rule.nodes)) / s.low, self._root(f) / s.high
        self.n_low, self.n_high = self._range(*ends, self.d1)
        self.d2 = self._norm(u * u * c - 2.0 * defect) / s.low**3
        self.rise = self._rise(phi, ends)
        self.z1, self.z2 = self._norm(u * g) / s.low, self._norm(u * u * c) / s.low**2
        self.f_low, self.f_high = self._range(ends[0] * s.low, ends[1] * s.high, self.z1)
        self.a1, self.a2 = self._turning()
        self.m1 = self._norm(g)
        self.b1 = self._norm(u * c) / s.low
        self.c0 = s.high * self._norm(c)
        if with_slopes:
            self._slopes(phi, u, c)

    def _slopes(self, phi: Activation, u: Array, c: Array) -> None:
        third = values(phi, u, 3)
        ends = self._root(values(phi, self._s.low[:, None] * self._rule.nodes, 1)), self._root(values(phi, u, 1))
        self.m1_low, self.m1 = self._range(*ends, self.b1)
        self.b2 = self._norm(u * u * third) / self._s.low**2
        self.c1 = self._norm(c + u * third)
        self.c2 = self._s.high**2 * self._norm(third)

    def _root(self, g: Array) -> Array:
        return np.sqrt((g * g) @ self._rule.weights)

    def _norm(self, g: Array) -> Array:
        """N[g] on the cell, g given at the nodes of its upper end."""
        return self._root(g) * np.sqrt(self._s.high / self._s.low)

    def _range(self, at_low: Array, at_high: Array, speed: Array) -> tuple[Array, Array]:
        """Range on the cell of a function of s from its ends: inside it moves by at most half the cell times its
        speed."""
        reach = 0.5 * (self._s.high - self._s.low) * speed
        low = np.minimum(at_low, at_high) - reach
        if bool((low <= 0).any()):
            raise CoarseGridError("the grid of norms is too coarse for a certificate; narrow the range of norms")
        return low, np.maximum(at_low, at_high) + reach

    def _turning(self) -> tuple[Array, Array]:
        """Bounds on the first two derivatives in s of the unit vector along phi(s xi).

        For any multiple with norm n and derivatives of norms d1, d2 they are at most d1/n and d2/n + 2 (d1/n)^2. We
        may take phi(s xi) / s (better for near-homogeneous phi) or phi(s xi) itself (better if phi(0) != 0).
        """
        a1 = np.minimum(self.d1 / self.n_low, self.z1 / self.f_low)
        one = self.d2 / self.n_low + 2.0 * (self.d1 / self.n_low) ** 2
        return a1, np.minimum(one, self.z2 / self.f_low + 2.0 * (self.z1 / self.f_low) ** 2)

    def _rise(self, phi: Activation, ends: tuple[Array, Array]) -> Array:
        """An upper bound on dn/ds = E[phi chi] / (s^3 n), at least 0: falling gains (softplus) need no allowance."""
        out = np.zeros_like(self.d1)
        for s, n in zip((self._s.low, self._s.high), ends, strict=True):
            u = s[:, None] * self._rule.nodes
            f = values(phi, u)
            out = np.maximum(out, (f * (u * values(phi, u, 1) - f)) @ self._rule.weights / (s**3 * n))
        return out + 0.5 * (self._s.high - self._s.low) * (self.d2 + self.d1**2 / self.n_low)

    def gain(self, s: Line) -> Line:
        """n = sqrt(E phi(s xi)^2) / s along the norm."""
        return self._along(self.n_low, self.n_high, self.d1, self.d2, s)

    def output(self, s: Line) -> Line:
        """sqrt(E phi(s xi)^2) along the norm."""
        return self._along(self.f_low, self.f_high, self.z1, self.z2, s)

    def slope_norm(self, s: Line) -> Line:
        """sqrt(E phi'(s xi)^2) along the norm."""
        return self._along(self.m1_low, self.m1, self.b1, self.b2, s)

    @staticmethod
    def _along(low: Array, high: Array, one: Array, two: Array, s: Line) -> Line:
        """The norm of a vector with derivatives of norms one and two in s: |n'| <= one, |n''| <= two + one^2/n."""
        return Line(low, high, one * s.first, (two + one**2 / low) * s.first**2 + one * s.second)


def _require_slope(phi: Activation, with_slopes: bool) -> None:
    rough = (*phi.value_jumps(), *phi.slope_jumps())
    if any(abs(j) > 1e-9 for j in rough):
        raise InvalidInputError(
            f"no uniform certificate for {phi!r}: its slope jumps at {phi.kinks} and it is not homogeneous. "
            "Use match (a mixture) or match_sphere (unit norm), or an activation with a continuous slope"
        )
    if with_slopes and phi.kinks:
        raise InvalidInputError(
            f"no uniform certificate for the NTK of {phi!r}: its second derivative jumps at {phi.kinks}. "
            "Ask for kernel='ck'"
        )


@dataclass(frozen=True)
class Level:
    """s and sigma = s / |x| along the norm (each known in its own way), and the correlation's jet."""

    scale: Line
    sigma: Line
    rho: Jet


def inputs(norms: Array, along_norm: bool) -> Level:
    one = np.ones(len(norms) - 1)
    square = np.ones((len(one), len(one)))
    zero = np.zeros_like(square)
    rho = Jet(square, zero, zero) if along_norm else Jet(square, square, square)
    return Level(identity(norms), Line(one, one, 0.0 * one, 0.0 * one), rho)


def after_layer(level: Level, sizes: Sizes, norms: Array, along_norm: bool) -> Level:
    """The level behind a layer, from the unit vectors along phi(s xi)."""
    s = level.scale
    a1, a2, m = sizes.a1, sizes.a2, sizes.m1 / sizes.n_low
    mixed = sizes.b1 / sizes.n_low + m * sizes.d1 / sizes.n_low
    bend = sizes.c0 / sizes.n_low
    steep = np.outer(m, m)
    rho = chain(level.rho, s if along_norm else None, a1, a2, np.outer(mixed, m), steep, np.outer(bend, bend))
    sigma = level.sigma * sizes.gain(s)
    return Level(sizes.output(s).and_(identity(norms) * sigma), sigma, Jet(np.ones_like(steep), rho.first, rho.second))


def chain(rho: Jet, s: Line | None, one: Array, two: Array, mixed: Array, steep: Array, bend: Array) -> Jet:
    """A function of (s, rho): |f_s| <= one, |f_ss| <= two, |f_s rho| <= mixed, |f_rho| <= steep, |f_rho rho| <=
    bend."""
    first = steep * rho.first
    second = steep * rho.second + bend * rho.first**2
    if s is not None:
        s1, s2 = s.first[:, None], s.second[:, None]
        one, two = (v if v.ndim == 2 else v[:, None] for v in (one, two))
        first = first + one * s1
        second = second + two * s1**2 + 2.0 * mixed * s1 * rho.first + one * s2
    return Jet(np.zeros_like(first), first, second)


def slopes(level: Level, sizes: Sizes, along_norm: bool) -> Jet:
    """E[phi'(u) phi'(v)] along the norm or the angle."""
    s = level.scale if along_norm else None
    m = sizes.m1
    out = chain(
        level.rho, s, np.outer(sizes.b1, m), np.outer(sizes.b2, m), np.outer(sizes.c1, sizes.c0),
        np.outer(sizes.c0, sizes.c0), np.outer(sizes.c2, sizes.c2),
    )  # fmt: skip
    return Jet(np.outer(m, m), out.first, out.second)


# ---- the DEQ ---------------------------------------------------------------------------------------------


def equilibrium(deq: DEQ, norms: Array, scales: Array, along_norm: bool, with_slopes: bool) -> tuple[Level, Sizes]:
    """The DEQ's level; ``scales`` are its s = sqrt(P) at the norms.

    s = |x| m(s), m = sqrt(b / (1 - a n^2)), and rho = a E[psi psi'] + b w w' cos(angle), w = |x| / s = 1 / m.
    """
    a, b = float(deq.sigma_a2), float(deq.sigma_b2)
    sizes, s, sigma = _equilibrium_scale(deq, norms, scales, with_slopes)
    least = 1.0 - a * np.outer(sizes.m1, sizes.m1)
    if bool((least <= 0).any()):
        raise CoarseGridError(f"no certificate for {deq!r} on this box: sigma_a2 E[phi'^2] may reach 1")
    # rho = <g(x), g(y)> with the unit vectors g = (sin(eta) f, cos(eta) x/|x|), sin(eta) = sqrt(a) n, f the unit
    # vector along phi(s xi)
    n = sizes.gain(s)
    cosine = np.sqrt(1.0 - a * n.high**2)
    mix1 = np.sqrt(a) * n.first / cosine
    mix2 = np.sqrt(a) * n.second / cosine + a * n.first**2 * np.sqrt(a) * n.high / cosine**3
    turn1, turn2 = sizes.a1 * s.first, sizes.a2 * s.first**2 + sizes.a1 * s.second
    sine = np.sqrt(a) * n.high
    one = np.sqrt(mix1**2 + (sine * turn1) ** 2)[:, None]
    two = (mix2 + mix1**2 + 2.0 * mix1 * turn1 + sine * turn2)[:, None]
    square = np.ones_like(least)
    if not along_norm:
        one, two = b * np.outer(1.0 / sigma.low, 1.0 / sigma.low), b * np.outer(1.0 / sigma.low, 1.0 / sigma.low)
    first = one / least * square
    mixed = a * np.outer(sizes.b1 * s.first, sizes.m1) if along_norm else 0.0 * square
    second = (two + 2.0 * mixed * first + a * np.outer(sizes.c0, sizes.c0) * first**2) / least
    return Level(s, sigma, Jet(square, first, second)), sizes


def _equilibrium_scale(deq: DEQ, norms: Array, scales: Array, with_slopes: bool) -> tuple[Sizes, Line, Line]:
    """Ranges and speeds of s: a range that the speed found on it confirms is valid, because s is continuous."""
    low, high, cell = np.minimum(scales[:-1], scales[1:]), np.maximum(scales[:-1], scales[1:]), np.diff(norms)
    reach = cell * np.maximum(scales[1:] / norms[1:], scales[:-1] / norms[:-1])
    s = Line(low - reach, high + reach, np.ones_like(low), np.zeros_like(low))
    sigma = s
    for _ in range(3):
        sizes = Sizes(deq.activation, s, with_slopes)
        first, sigma = _scale_by_gain(deq, norms, s, sizes)
        second = _scale_by_square(deq, norms, s, sizes)
        known = first.and_(second)
        reach = 0.5 * cell * known.first
        if bool((low - reach < s.low).any() or (high + reach > s.high).any() or not np.isfinite(reach).all()):
            raise CoarseGridError(
                f"no certificate for {deq!r} on this box: narrow the range of norms or lower sigma_a2"
            )
        s = Line(low - reach, high + reach, known.first, known.second)
    return Sizes(deq.activation, s, with_slopes), s, sigma.and_(_over_norm(s, norms))


def _over_norm(s: Line, norms: Array) -> Line:
    """sigma = s / |x| from s: sigma' = (s' - sigma)/|x| and sigma'' = (s'' - 2 sigma')/|x|, s' not negative."""
    low, high = s.low / norms[1:], s.high / norms[:-1]
    first = np.maximum(s.first, high) / norms[:-1]
    return Line(low, high, first, (s.second + 2.0 * first) / norms[:-1])


def _scale_by_gain(deq: DEQ, norms: Array, s: Line, sizes: Sizes) -> tuple[Line, Line]:
    """s and sigma from s = |x| m(s), m = sqrt(b / (1 - a n^2)): sharp where phi is nearly homogeneous."""
    a, b = float(deq.sigma_a2), float(deq.sigma_b2)
    unit = Line(s.low, s.high, np.ones_like(s.low), np.zeros_like(s.low))
    m = (sizes.gain(unit).power(2.0).one_minus(a).power(-0.5)).times(np.sqrt(b))
    least = 1.0 - norms[1:] * m.high * a * sizes.n_high * sizes.rise / (1.0 - a * sizes.n_high**2)
    speed = np.where(least > 0, m.high / np.maximum(least, 1e-300), np.inf)
    bending = (2.0 * m.first * speed + norms[1:] * m.second * speed**2) / np.maximum(least, 1e-300)
    found = Line(s.low, s.high, speed, bending)
    return found, Line(m.low, m.high, m.first * speed, m.second * speed**2 + m.first * bending)


def _scale_by_square(deq: DEQ, norms: Array, s: Line, sizes: Sizes) -> Line:
    """s from s^2 = a Q(s) + b |x|^2, Q = E[phi(s xi)^2]: s' (2s - a Q') = 2b|x|; sharp where phi(0) != 0."""
    a, b = float(deq.sigma_a2), float(deq.sigma_b2)
    least = 2.0 * (s.low - a * sizes.f_high * sizes.z1)
    speed = np.where(least > 0, 2.0 * b * norms[1:] / np.maximum(least, 1e-300), np.inf)
    curved = 2.0 * a * (sizes.z1**2 + sizes.f_high * sizes.z2) * speed**2
    return Line(s.low, s.high, speed, (np.maximum(2.0 * b, 2.0 * speed**2) + curved) / np.maximum(least, 1e-300))
