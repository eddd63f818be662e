"""The quadratic layer of the workshop paper: its numbers by the paper's own formulas, and its distance."""

from __future__ import annotations

import math

import numpy as np
import pytest

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import InfeasibleMatchError
from notsodeep.kernels import power_series, sphere_diagonal
from studies.sphere import quadratic_layer, unit_rows

PHI = nsd.activation("relu").affine(gain=math.sqrt(2.0))


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
def test_it_has_the_numbers_of_the_deq(kernel: str) -> None:
    """Its alpha, beta, mu by the paper's formulas for the explicit network."""
    d, deq = 1200, nsd.DEQ(PHI, 0.2)
    m = nsd.gaussian.moments(quadratic_layer(deq, kernel, d).activations[0], 1.0)
    full = kernel == "ntk"
    alpha = m.mean**2 + (3 if full else 1) * m.curvature**2 / (2 * d)
    beta = (2 if full else 1) * m.slope**2
    mu = m.variance - m.slope**2 + (m.slope_square - m.slope**2 if full else 0.0)
    k = power_series(deq, 3, kernel)
    wanted = (k[0] + k[2] / d, k[1], sphere_diagonal(deq, kernel) - k[0] - k[1])
    assert (alpha, beta, mu) == pytest.approx(wanted, rel=tolerance())


def test_it_is_close_in_high_dimension() -> None:
    deq, distances = nsd.DEQ(PHI, 0.1), []
    for d in (50, 200):
        X = unit_rows(d, d)
        truth = nsd.ck(deq, X)
        gap = np.linalg.norm(truth - nsd.ck(quadratic_layer(deq, "ck", d), X), 2)
        distances.append(gap / np.linalg.norm(truth, 2))
    assert distances[1] < 0.5 * distances[0]


def test_an_odd_deq_has_none() -> None:
    with pytest.raises(InfeasibleMatchError, match="alpha >= mu/d"):
        quadratic_layer(nsd.DEQ("tanh", 0.2), "ck", 100)
