"""The one loop: roots to rounding, brackets kept, and a record that says when there is none."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers import ulps
from notsodeep._fixed_point import newton


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=12))
def test_many_roots_at_once(targets):
    aim = numbers(*targets)

    def cube(x, which):
        return x**3 - (aim if which is None else aim[which]), 3 * x**2

    root = newton(cube, torch.ones_like(aim), torch.zeros_like(aim), torch.full_like(aim, 11.0))
    assert root.converged
    torch.testing.assert_close(root.value, aim ** (1 / 3), rtol=ulps(), atol=0.0)


def test_steps_outside_the_bracket_are_replaced_by_bisection():
    # the slope of arctan far out throws Newton's method away: plain steps from 10 diverge
    seen = []

    def equation(x, _):
        seen.append(float(x))
        return torch.atan(x - 1.0), 1.0 / (1.0 + (x - 1.0) ** 2)

    root = newton(equation, numbers(10.0), numbers(-20.0), numbers(20.0), numbers(1.0), flattest=1e-12)
    assert root.converged
    assert float(root.value) == pytest.approx(1.0, abs=ulps(4))
    assert all(-20.0 <= x <= 20.0 for x in seen)


def test_an_open_bracket_is_doubled():
    root = newton(lambda x, _: (x - 1e6, torch.full_like(x, 1e9)), numbers(1.0), numbers(0.0), numbers(math.inf))
    assert not root.converged  # a slope that is far too steep makes steps that are far too short
    assert root.steps == 100
    root = newton(lambda x, _: (x - 1e6, torch.full_like(x, math.nan)), numbers(1.0), numbers(0.0), numbers(math.inf))
    assert root.converged
    assert float(root.value) == pytest.approx(1e6, rel=ulps(4), abs=0)


@pytest.mark.parametrize("far", [None, 1e6])
def test_no_root_is_reported_not_invented(far):
    limit = None if far is None else numbers(far)
    root = newton(
        lambda x, _: (-1.0 - x, -torch.ones_like(x)), numbers(1.0), numbers(0.0), numbers(math.inf), far=limit
    )
    assert not root.converged
    assert root.residual > 0.5
    root = newton(lambda x, _: (x * math.nan, x), numbers(1.0), numbers(0.0), numbers(2.0))
    assert not root.converged
    assert root.residual == math.inf
