"""Chebyshev interpolation against NumPy's own, and against the functions themselves."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from helpers import tolerance, ulps
from notsodeep._chebyshev import interpolated, nodes, to_coefficients


@pytest.mark.parametrize("size", [1, 2, 17, 64])
def test_the_transform_is_that_of_numpy(size):
    values = np.exp(nodes(size))
    expected = chebyshev.chebinterpolate(np.exp, size - 1)
    np.testing.assert_allclose(to_coefficients(size) @ values, expected, rtol=0, atol=ulps())


def test_a_smooth_function_is_asked_at_few_points():
    asked = []

    def function(x):
        asked.append(len(x))
        return np.stack([np.sin(x), np.exp(-x)], axis=1)

    points = np.linspace(0.3, 4.0, 1000)
    found = interpolated(function, points, 1e-12, degree=16)
    np.testing.assert_allclose(found, np.stack([np.sin(points), np.exp(-points)], axis=1), rtol=0, atol=tolerance())
    assert sum(asked) < 100


def test_a_rough_function_and_equal_points_are_asked_directly():
    points = np.linspace(-1.0, 1.0, 100)
    np.testing.assert_array_equal(interpolated(np.abs, points, 1e-12, degree=16), np.abs(points))
    np.testing.assert_array_equal(interpolated(np.abs, np.ones(50), 1e-12, degree=4), np.ones(50))
