"""The tuning numbers of the three routes, each with its origin."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Tolerances, sizes and starting values; the results do not depend on small changes of them."""

    # ---- match ----
    smallest_number: float = 1e-4  # of the diagonal, which hides smaller numbers: they are compared on this scale
    feasible: float = 1e-11  # relative residual of a design that meets its equations: 100 times the rounding of jets
    accepted: float = 1e-9  # relative deviation at which a twin is certified: the accuracy of quadrature
    zero: float = 1e-13  # share of the diagonal below which a number is zero: activations are odd or even
    fluctuation: float = 0.1  # expected size: norms .11 and cosines .06 on the papers' mixture at p = 1000
    off_diagonal: float = 20.0  # weight of deviations off the diagonal, which add up over a class, against those on it
    good_next_order: float = 1e-5  # cost of the next orders above which learning rates are worth having
    polynomial_degree: int = 5  # three orders solve the equations; the others improve the next orders of the kernel
    skip_range: float = math.log(8.0)  # of the logarithm of the scale, to either side of the DEQ's own
    near_next_order: float = 1e-7  # cost at which nothing better is looked for: kernels are then within 3e-4

    # ---- match_one_layer, a range of norms ----
    most_kinds: int = 8  # kinds of units that are tried; smooth kernels need two to four
    pivots: int = 16  # norms that carry a smooth kernel to rounding
    rank: int = 12  # directions that one order of a kernel may need; the later ones are below rounding
    grid_cells: int = 48  # per node, for suprema: the gap between two points then adds less than 1 % to a bound
    resolution: float = 1e-3  # share of the tolerance that truncation and interpolation may take
    unit_share: float = 0.1  # share of what the kinds leave that the elementary functions may add
    worthwhile: float = 0.8  # a design that costs more has to lower the bound to this share
    largest_coefficients: float = 40.0  # sum of coefficient sizes up to which single precision keeps 1e-5
    rounding: float = 1e-13  # rounding of the sums over orders and nodes, whose terms are of order one

    # ---- match_one_layer, homogeneous networks ----
    fourier_points: int = 65536  # of the transform of a homogeneous kernel, whose orders fall like k^(-5/2)
    threshold_tolerance: float = 1e-5  # the least for which thresholds are tried before conditioned units: their reach
    cosine_slack: float = 0.005  # share of the bound that the proof for all cosines may add to what its grid shows
    cosine_cells: int = 4096  # of cosines of one sign: the least angle, 1e-7, is well above the rounding of its cosine

    # ---- match_one_layer, all norms ----
    rates: tuple[float, float] = (0.8, 1.6)  # range of the learning rates that are tried for an NTK


LIMITS = Limits()
