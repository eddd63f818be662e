"""The transform to Chebyshev coefficients against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import chebyshev

from helpers import ulps
from notsodeep._chebyshev import nodes, to_coefficients


@pytest.mark.parametrize("size", [1, 2, 17, 64])
def test_the_transform_is_that_of_numpy(size):
    values = np.exp(nodes(size))
    expected = chebyshev.chebinterpolate(np.exp, size - 1)
    np.testing.assert_allclose(to_coefficients(size) @ values, expected, rtol=0, atol=ulps())
