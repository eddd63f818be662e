"""Half a minute of the fuzzer in every test run, always the same cases; ``make fuzz`` goes on for an hour."""

from __future__ import annotations

import pytest

from fuzz.arguments import calls
from fuzz.run import hold_or_are_refused, report
from fuzz.settings import SETTINGS, differs

CASES = [
    *(("kernels", first, 8) for first in (0, 16)),
    ("equivalents", 0, 200),
    *(("laws", first, 8) for first in range(0, 16, 8)),
    ("cli", 0, 8),
    ("files", 0, 40),
    ("documents", 0, 50),
    ("machines", 0, 3),
    ("derivatives", 0, 12),
    ("arguments", 0, 40),
    ("certificates", 12, 3),
    ("cells", 0, 6),
    ("modules", 0, 6),
    ("settings", 0, 2),
    ("inputs", 0, 4),
    ("twins", 0, 6),
    ("images", 0, 10),
    ("replacements", 0, 4),
    ("evidence", 0, 6),
    ("classes", 0, 3),
]


@pytest.mark.parametrize(("kind", "first", "count"), CASES)
def test_random_cases_hold_or_are_refused(kind: str, first: int, count: int) -> None:
    hold_or_are_refused(kind, first, count)


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("equivalents", 46),
        ("equivalents", 86),
        ("equivalents", 1498),
        ("laws", 664),
        ("laws", 1709),
        ("laws", 7000301),
        ("laws", 92001410),
        ("kernels", 7000197),
        ("kernels", 91000995),
        ("kernels", 103000107),
        ("arguments", 91000076),
        ("kernels", 174000382),
        ("kernels", 174000737),
        ("images", 171000490),
    ],
)
def test_cases_that_once_failed(kind: str, seed: int) -> None:
    """Scales without fourth powers, overflow, a shortened step taken for a small one, a misplaced crossing, a
    chord that ended at a real solution, terms of a series left out for the sake of larger pairs, a long row that took
    the digits of short ones, squares of variances that were no numbers."""
    assert report((kind, seed)).failure == ""


@pytest.mark.parametrize("name", sorted(calls()))
def test_calls_do_not_depend_on_settings_of_torch_and_numpy(name: str) -> None:
    assert not differs(name, SETTINGS)
