"""Kernels of random networks, in a file of its own for a process of its own."""

from __future__ import annotations

import pytest

from fuzz.run import hold_or_are_refused

QUICK = (48, 72, 88, 112)
MORE = (8, 24, 32, 40, 56, 80, 96, 104, 120, 128, 136)  # one from 64 on is announced, and slow


@pytest.mark.parametrize("first", [*QUICK, *(pytest.param(first, marks=pytest.mark.slow) for first in MORE)])
def test_random_kernels_hold_or_are_refused(first: int) -> None:
    hold_or_are_refused("kernels", first, 8)
