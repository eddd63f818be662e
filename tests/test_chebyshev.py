"""The transform to Chebyshev coefficients against NumPy's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.polynomial import chebyshev

from helpers import ulps
from notsodeep._chebyshev import Workspace, nodes, power_coefficients, power_sum, to_coefficients


@pytest.mark.parametrize("size", [1, 2, 17, 64])
def test_the_transform_is_that_of_numpy(size):
    values = np.exp(nodes(size))
    expected = chebyshev.chebinterpolate(np.exp, size - 1)
    np.testing.assert_allclose(to_coefficients(size) @ values, expected, rtol=0, atol=ulps())


def test_a_sum_by_powers_is_that_of_numpy_or_is_refused():
    x = torch.linspace(-1.0, 1.0, 501, dtype=torch.float64)
    parts = torch.from_numpy(chebyshev.chebinterpolate(lambda t: 1.0 / (t + 1.6), 35))  # they fall by 2.8 each
    powers = power_coefficients(parts)
    assert powers is not None
    expected = chebyshev.chebval(x.numpy(), parts.numpy())
    np.testing.assert_allclose(power_sum(powers, 2.0 * x, Workspace()), expected, rtol=ulps(), atol=0)
    assert power_coefficients(torch.ones(36, dtype=torch.float64)) is None
