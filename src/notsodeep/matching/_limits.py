"""The tuning numbers of the three routes, each with its origin."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Tolerances, sizes and starting values; the results do not depend on small changes of them."""

    # ---- match ----
    smallest_number: float = 1e-4
    """Numbers below this share of the diagonal are compared on this scale: the kernel hardly sees them."""
    feasible: float = 1e-11
    """Relative residual at which a design meets its equations: a hundred times the rounding of the jets."""
    accepted: float = 1e-9
    """Relative deviation at which a finished network is certified: the accuracy of the quadrature of its moments."""
    zero: float = 1e-13
    """A number below this share of the diagonal is zero: the activation is odd (c2, c3) or even (c1)."""
    fluctuation: float = 0.1
    """Expected relative size of norm fluctuations and of cosines: 0.11 and 0.06 on the papers' mixture at p = 1000."""
    off_diagonal: float = 20.0
    """Weight of deviations off the diagonal, which add up over the points of a class, against those on it."""
    good_next_order: float = 1e-5
    """Cost of the next orders above which learning rates of polynomial layers are worth having."""
    polynomial_degree: int = 5
    """Three orders solve the equations; the fourth and the fifth improve the next orders of the kernel."""
    skip_range: float = math.log(8.0)
    """Searched range of the logarithm of the scale of the activation, to either side of the DEQ's own."""
    near_next_order: float = 1e-7
    """Cost at which nothing better is looked for: kernels are then within 3e-4 on the papers' mixture."""

    # ---- match_one_layer, a range of norms ----
    most_kinds: int = 8
    """Kinds of units that are tried; smooth kernels need two to four."""
    pivots: int = 16
    """Norms that carry a smooth kernel to rounding."""
    rank: int = 12
    """Directions that one order of a kernel may need; the later ones are below rounding."""
    grid_cells: int = 48
    """Grid cells per node for suprema; the gap between two grid points then adds less than 1 % to a bound."""
    resolution: float = 1e-3
    """Share of the tolerance that truncation and interpolation may take."""
    unit_share: float = 0.1
    """Share of what the kinds leave that the elementary functions may add."""
    worthwhile: float = 0.8
    """A design that costs more has to lower the bound to this share."""
    largest_coefficients: float = 40.0
    """Sum of coefficient sizes up to which single precision keeps 1e-5."""
    rounding: float = 1e-13
    """Rounding of the sums over orders and nodes, whose terms are of order one."""

    # ---- match_one_layer, homogeneous networks ----
    fourier_points: int = 65536
    """Points of the Fourier transform of a homogeneous kernel; its orders fall like k^(-5/2)."""
    threshold_tolerance: float = 1e-5
    """The smallest tolerance for which thresholds are tried before conditioned units: what they reach."""
    cosine_slack: float = 0.005
    """Share of the bound that the proof for all cosines may add to the largest error on its grid."""
    cosine_cells: int = 4096
    """Cells of cosines of one sign at most: the smallest angle, 1e-7, is then well above the rounding of its cosine."""


LIMITS = Limits()
