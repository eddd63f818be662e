"""Kernels differentiated in the variances of a DEQ, against differences of exact kernels and against symmetry."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import notsodeep as nsd
from helpers import differences, tolerance, ulps
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
        return nsd.kernels_of(nsd.DEQ(activation, **moved), X, kernels=(kernel,))[kernel]

    return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * STEP)


@pytest.mark.parametrize(("activation", "names"), [("relu", VARIANCES), ("silu", ["sigma_a2"])])
@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
def test_slopes_are_limits_of_differences(activation, names, kernel):
    slope = DEQSlope(nsd.DEQ(activation, **GIVEN), kernel)
    found = nsd.kernels_of(slope, X, kernels=slope.kernels)
    for name in names:
        # STEP^4 is 2e-11: near the limit of a DEQ the fifth derivative is thousands
        np.testing.assert_allclose(found[name], difference(GIVEN, name, kernel, activation), rtol=0, atol=1e-7)
        assert (found[name] == found[name].T).all()


def test_a_tied_input_variance_moves_along():
    slope = DEQSlope(nsd.DEQ("erf", 0.15), "ntk", tied=True)
    assert slope.kernels == ("sigma_a2",)
    found = nsd.kernels_of(slope, X, kernels=slope.kernels)["sigma_a2"]
    expected = difference({"sigma_a2": 0.15, "sigma_b2": 0.85}, "sigma_a2", "ntk", "erf", tied=True)
    np.testing.assert_allclose(found, expected, rtol=0, atol=10.0 * differences(STEP, accuracy=4))


def test_new_rows_against_rows():
    slope = DEQSlope(nsd.DEQ("relu", 0.15), "ntk")
    whole, block = (
        nsd.kernels_of(slope, *rows, kernels=slope.kernels)["sigma_b2"] for rows in ((X,), (X[:50], X[50:]))
    )
    np.testing.assert_allclose(block, whole[:50, 50:], rtol=0, atol=ulps())
    np.testing.assert_allclose(
        0.85 * whole, nsd.ntk(nsd.DEQ("relu", 0.15), X), rtol=0, atol=tolerance()
    )  # linear in sigma_b2


def test_a_slope_is_not_its_network():
    deq = nsd.DEQ("relu", 0.15)
    slope = DEQSlope(deq, "ntk")
    assert slope != deq
    assert slope != DEQSlope(deq, "ntk", tied=True)
    assert slope == pickle.loads(pickle.dumps(slope))
    assert repr(slope).startswith("slopes of the ntk of DEQ(")
    with pytest.raises(InvalidInputError, match="sequence out of"):
        nsd.kernels_of(slope, X, kernels=("sigma_c2",))  # zero, and so no variance that moves
    with pytest.raises(InvalidInputError, match="kernel must be"):
        DEQSlope(deq, "rbf")
