"""Kernels differentiated in the variances of a DEQ, against differences of exact kernels and against symmetry."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import VARIANCES, DEQSlope

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 6)) / 6**0.5  # 1,800 pairs: enough for a table
STEP = 2e-3
GIVEN = {"sigma_a2": 0.15, "sigma_b2": 0.7, "sigma_c2": 0.1}


def difference(values, name, kernel, activation, tied=False):
    """A central difference of fourth order: good to 1e-10 of the kernel."""

    def at(steps):
        moved = {**values, name: values[name] + steps * STEP}
        if tied:
            moved["sigma_b2"] = 1.0 - moved["sigma_a2"]
        return nsd.kernels_of(nsd.DEQ(activation, **moved), X, kinds=(kernel,))[kernel]

    return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * STEP)


@pytest.mark.parametrize(("activation", "names"), [("relu", VARIANCES), ("silu", ["sigma_a2"])])
@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
def test_slopes_are_limits_of_differences(activation, names, kernel):
    for name in names:
        slope = nsd.kernels_of(DEQSlope(nsd.DEQ(activation, **GIVEN), name), X, kinds=(kernel,))[kernel]
        np.testing.assert_allclose(slope, difference(GIVEN, name, kernel, activation), atol=1e-7)  # STEP^4 is 2e-11
        assert (slope == slope.T).all()


def test_a_tied_input_variance_moves_along():
    values = {"sigma_a2": 0.15, "sigma_b2": 0.85}
    slope = nsd.ntk(DEQSlope(nsd.DEQ("erf", 0.15), "sigma_a2", tied=True), X)
    np.testing.assert_allclose(slope, difference(values, "sigma_a2", "ntk", "erf", tied=True), atol=1e-7)


def test_the_first_bias_of_a_homogeneous_network_is_not_homogeneous():
    slope = nsd.ck(DEQSlope(nsd.DEQ("relu", 0.15), "sigma_c2"), X)
    forward = (nsd.ck(nsd.DEQ("relu", 0.15, 0.85, 1e-6), X) - nsd.ck(nsd.DEQ("relu", 0.15), X)) / 1e-6
    np.testing.assert_allclose(slope, forward, atol=2e-4)  # the shortest row has a squared norm of 0.1


def test_a_slope_is_not_its_network():
    deq = nsd.DEQ("relu", 0.15)
    slope = DEQSlope(deq, "sigma_a2")
    assert slope != deq
    assert slope != DEQSlope(deq, "sigma_a2", tied=True)
    assert slope == pickle.loads(pickle.dumps(slope))
    assert repr(slope).startswith("d/dsigma_a2 of DEQ(")
    with pytest.raises(InvalidInputError, match="has the variances"):
        DEQSlope(deq, "sigma_d2")
