"""A few cases of the fuzzer in every test run; ``make fuzz`` goes on for an hour."""

from __future__ import annotations

import pytest

from fuzz.run import report

CASES = [
    ("kernels", 0, 8),
    ("kernels", 16, 8),
    ("equivalents", 0, 8),
    ("laws", 0, 4),
    ("cli", 0, 3),
    ("files", 0, 20),
    ("documents", 0, 20),
    ("machines", 0, 4),
    ("tables", 0, 2),
    ("arguments", 0, 10),
]


@pytest.mark.parametrize(("kind", "first", "count"), CASES)
def test_random_cases_hold_or_are_refused(kind: str, first: int, count: int) -> None:
    found = [report((kind, seed)) for seed in range(first, first + count)]
    failures = {f"--case {r.kind} {r.seed}": r.failure for r in found if r.failure}
    assert not failures
    assert sum(r.inputs for r in found) > 0


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("equivalents", 46),
        ("equivalents", 86),
        ("equivalents", 1498),
        ("laws", 664),
        ("laws", 1709),
        ("laws", 7000301),
        ("kernels", 7000197),
    ],
)
def test_cases_that_once_failed(kind: str, seed: int) -> None:
    """Scales without fourth powers, overflow, a shortened step taken for a small one, a misplaced crossing, a
    chord that ended at a real solution, terms of a series left out for the sake of larger pairs."""
    assert report((kind, seed)).failure == ""
