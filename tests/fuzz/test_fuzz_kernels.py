"""The other minute of the fuzzer: kernels of random networks, in a file of its own for a process of its own."""

from __future__ import annotations

import pytest

from fuzz.run import hold_or_are_refused


@pytest.mark.parametrize("first", [48, 56, *range(72, 144, 8)])  # one from 64 on is announced, and slow
def test_random_kernels_hold_or_are_refused(first: int) -> None:
    hold_or_are_refused("kernels", first, 8)
