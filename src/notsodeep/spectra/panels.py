"""The density of one bulk as a piecewise polynomial in an angle.

With x = middle - half cos(theta) the density times dx/dtheta is analytic at square-root edges and at a hard edge in
zero alike, so that Chebyshev panels in theta converge geometrically; panels are halved where they do not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from .._chebyshev import nodes as chebyshev_nodes
from .._chebyshev import to_coefficients
from .population import Array

__all__ = ["NODES", "Bulk", "chebyshev_coefficients", "chebyshev_integral", "nodes"]

NODES = 16
_NEAREST = 1e-8


def nodes(start: Array, stop: Array) -> Array:
    """Angles of the interpolation nodes of each panel, shape (panels, NODES)."""
    return chebyshev_nodes(NODES, start[:, None], stop[:, None])  # without the ends, where Newton would be singular


def chebyshev_coefficients(values: Array) -> Array:
    """Coefficients of the interpolants through values at the nodes, along the last axis."""
    coefficients: Array = values @ to_coefficients(NODES).T
    return coefficients


def chebyshev_integral(coefficients: Array) -> Array:
    """Integrals over [-1, 1]."""
    order = np.arange(coefficients.shape[-1])
    weights = np.where(order % 2 == 0, 2.0 / (1.0 - order.astype(float) ** 2 + (order == 1)), 0.0)
    integrals: Array = coefficients @ weights
    return integrals


@dataclass(frozen=True, eq=False)
class Bulk:
    """One interval of the support and the law on it."""

    low: float
    high: float
    mass: float
    breaks: Array
    """Ends of the panels, angles from 0 to pi."""
    coefficients: Array
    """(panels, NODES): density per angle."""
    integrals: Array
    """(panels, NODES + 1): its antiderivatives, zero at the left end of each panel."""
    cumulated: Array
    """Mass to the left of each panel."""

    @classmethod
    def build(cls, low: float, high: float, mass: float, breaks: Array, coefficients: Array) -> Bulk:
        half = 0.5 * np.diff(breaks)
        integrals = np.stack([chebyshev.chebint(c, lbnd=-1.0) for c in coefficients]) * half[:, None]
        masses = integrals.sum(axis=1)  # every T_k(1) is one
        scale = mass / masses.sum()
        cumulated = np.concatenate([[0.0], np.cumsum(masses)[:-1]]) * scale
        return cls(low, high, mass, breaks, coefficients * scale, integrals * scale, cumulated)

    def angle(self, x: Array) -> Array:
        middle, half = 0.5 * (self.low + self.high), 0.5 * (self.high - self.low)
        angles: Array = np.arccos(np.clip((middle - x) / half, -1.0, 1.0))
        return angles

    def position(self, angle: Array) -> Array:
        # low + width sin^2(angle/2): accurate next to a lower edge close to zero
        position: Array = self.low + (self.high - self.low) * np.sin(0.5 * angle) ** 2
        return position

    def density(self, x: Array) -> Array:
        # a point that rounding puts on an edge, from inside, is as near to it as points can be told apart
        angle = np.clip(self.angle(x), _NEAREST, np.pi - _NEAREST)
        value = self._evaluate(self.coefficients, angle) / (0.5 * (self.high - self.low) * np.sin(angle))
        inside = (x > self.low) & (x < self.high)
        return np.where(inside, np.maximum(value, 0.0), 0.0)

    def cdf(self, x: Array) -> Array:
        """Mass of this bulk up to x."""
        return self._cumulative(self.angle(x))

    def quantile(self, mass: Array) -> Array:
        """Where the mass of this bulk reaches ``mass``, by bisection in the angle."""
        low, high = np.zeros_like(mass), np.full_like(mass, np.pi)
        for _ in range(54):
            middle = 0.5 * (low + high)
            left = self._cumulative(middle) < mass
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        return self.position(0.5 * (low + high))

    def _cumulative(self, angle: Array) -> Array:
        panel = self._panel(angle)
        return np.clip(self.cumulated[panel] + self._evaluate(self.integrals, angle), 0.0, self.mass)

    def _panel(self, angle: Array) -> Array:
        panel: Array = np.clip(np.searchsorted(self.breaks, angle, side="right") - 1, 0, len(self.breaks) - 2)
        return panel

    def _evaluate(self, coefficients: Array, angles: Array) -> Array:
        angle = angles.ravel()
        panel = self._panel(angle)
        start, stop = self.breaks[panel], self.breaks[panel + 1]
        local = np.clip((2.0 * angle - start - stop) / (stop - start), -1.0, 1.0)
        value: Array = chebyshev.chebval(local, coefficients[panel].T, tensor=False)
        return value.reshape(angles.shape)
