"""How well a kernel is interpolated in the norm: a theorem where the network is smooth.

The feature map F of the kernel along a ray is analytic in a sector around the positive norms (``kernels.conjugate``),
hence in the variable log s in a strip around the range. If it is bounded by M on the Bernstein ellipse of parameter
rho, its interpolant of degree n in Chebyshev points is off by at most 4 M rho^(-n) / (rho - 1) anywhere in the range;
this holds for maps into a Hilbert space as it does for functions. With that, relative to the least |F(s)|, called e,

    |k(s, t, .) - k_N(s, t, .)| <= (2 e + e^2) sqrt(k(s, s, 1) k(t, t, 1))    for all cosines at once.

M is the largest of the values at a few points of the ellipse, times ``_MARGIN``: the one number here that is sampled,
and the bound depends on it linearly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ...kernels.conjugate import conjugate_square
from ...networks import Kernel, Network

_POINTS = 11  # on the upper half of an ellipse
_MARGIN = 2.0
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
    turn = np.exp(1j * np.pi * np.arange(_POINTS) / (_POINTS - 1))
    for angle in _ANGLES:
        rho = angle / half + math.hypot(1.0, angle / half)
        rho = min(rho, 64.0)
        z = np.exp(centre + 0.5 * half * (rho * turn + 1.0 / (rho * turn)))
        size = float(np.sqrt(conjugate_square(network, z, kernel).max() / np.abs(z).min() ** (2 * power)))
        if math.isfinite(size):
            return Smoothness(rho, _MARGIN * size)
    return None
