"""How well a kernel is interpolated in the norm: a theorem where the network is smooth.

The feature map F of the kernel along a ray is analytic in a sector around the positive norms (``kernels.conjugate``),
hence in the variable log s in a strip around the range. If it is bounded by M on the Bernstein ellipse of parameter
rho, its interpolant of degree n in Chebyshev points is off by at most 4 M rho^(-n) / (rho - 1) anywhere in the range;
this holds for maps into a Hilbert space as it does for functions. With that, relative to the least |F(s)|, called e,

    |k(s, t, .) - k_N(s, t, .)| <= (2 e + e^2) sqrt(k(s, s, 1) k(t, t, 1))    for all cosines at once.

M is the largest of the bounds on discs that cover the ellipse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...kernels.conjugate import conjugate_square
from ...networks import Kernel, Network

_DISCS = 32  # that cover the upper half of an ellipse
_PARTS, _LEVELS = 4, 3  # where a disc has no bound, smaller ones are tried
_ANGLES = (0.72, 0.6, 0.46, 0.34, 0.24)  # half openings of the sector in which the ellipse lies


@dataclass(frozen=True)
class Smoothness:
    """The feature map is at most ``size`` on the ellipse of parameter ``rho`` around the range of log norms."""

    rho: float
    size: float

    def interpolation(self, degree: int, diagonal: float) -> float:
        """Bound on the error of the interpolated kernel, relative to a diagonal of at least ``diagonal``."""
        off = 4.0 * self.size * self.rho**-degree / (self.rho - 1.0) / math.sqrt(diagonal)
        return 2.0 * off + off**2


def continued(network: Network, kernel: Kernel, low: float, high: float, power: int) -> Smoothness | None:
    """The largest sector to which F(s) / s^power continues, or ``None``: kinks, or a range that begins at zero."""
    if not 0.0 < low < high or any(phi.kinks for phi in network.activations):
        return None
    centre, half = 0.5 * (math.log(high) + math.log(low)), 0.5 * (math.log(high) - math.log(low))
    for angle in _ANGLES:
        rho = min(angle / half + math.hypot(1.0, angle / half), 64.0)
        size = _largest(network, kernel, centre, half, rho, power)
        if math.isfinite(size):
            return Smoothness(rho, size)
    return None


def _largest(network: Network, kernel: Kernel, centre: float, half: float, rho: float, power: int) -> float:
    """A bound of |F(z) / z^power| on an ellipse, from discs that cover it; infinite where there is none."""
    step, most = math.pi / _DISCS, 0.0
    place = step * (np.arange(_DISCS) + 0.5)
    for level in range(_LEVELS):
        turn = rho * np.exp(1j * place)
        z = np.exp(centre + 0.5 * half * (turn + 1.0 / turn))
        if level == 0 and not np.isfinite(conjugate_square(network, z, kernel)).all():
            break
        radius = 0.25 * half * (rho + 1.0 / rho) * step  # the speed of the ellipse is at most twice that / step
        squares = conjugate_square(network, z, kernel, radius) / (np.abs(z) * math.exp(-radius)) ** (2 * power)
        without = ~np.isfinite(squares)
        most = max(most, float(squares[~without].max(initial=0.0)))
        if not without.any():
            return math.sqrt(most)
        step /= _PARTS
        place = (place[without][:, None] + step * (np.arange(_PARTS) - 0.5 * (_PARTS - 1))).ravel()
    return math.inf
