"""The promise of a replacement is kept: exact tails, thousands of calibrations, brute force beside each count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binom, norm

from helpers import tolerance
from notsodeep.errors import CertificationError, InvalidInputError
from notsodeep.nn.certify import (
    Certificate,
    check_promise,
    check_rows,
    compare_samples,
    last_threshold,
    refusal,
    rows_needed,
    upper_limit,
)

GRID = np.linspace(0.0, 1.0, 101)


def certificate(coverage: float = 0.9, measured: int = 2000) -> Certificate:
    return Certificate(0.01, 0.95, coverage, 600, 150, measured, 1, 0.03, 0.5, "margin", "fixed sequence")


def draw(rng: np.random.Generator, rows: int, unsteady: float = 0.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A score that is uniform; the student differs with probability (1 - score)^2 / 3, the model from itself rarely."""
    score = rng.random(rows)
    return score, rng.random(rows) < (1.0 - score) ** 2 / 3.0, rng.random(rows) < unsteady


def risk(threshold: float, unsteady: float = 0.0) -> float:
    """The probability that replacement and model differ, of :func:`draw`."""
    return (1.0 - threshold) ** 3 / 9.0 + unsteady * threshold


@pytest.mark.parametrize(
    ("allowed", "confidence", "unsteady"), [(0.02, 0.95, 0.0), (0.01, 0.8, 0.0), (0.02, 0.9, 0.005)]
)
def test_promises_are_broken_no_more_often_than_allowed(allowed: float, confidence: float, unsteady: float) -> None:
    rng, times = np.random.default_rng(0), 2000
    found = [last_threshold(*draw(rng, 500, unsteady), GRID, 1.0 - confidence, allowed) for _ in range(times)]
    reached = [risk(f[0], unsteady) for f in found if f is not None]
    broken = sum(r > allowed for r in reached)
    assert broken <= binom.ppf(0.999, times, 1.0 - confidence)
    assert broken >= 0.2 * (1.0 - confidence) * times  # nor is the test far too cautious
    assert len(reached) > 0.9 * times


def test_the_least_favourable_case_is_within_its_level() -> None:
    """Every threshold is worse than what is asked for, by as little as can be: any promise is a broken one."""
    rng, times = np.random.default_rng(1), 2000
    broken = 0
    for _ in range(times):
        score, differs = np.ones(400), rng.random(400) < 0.0201
        broken += last_threshold(score, differs, np.zeros(400, bool), GRID, 0.05, 0.02) is not None
    assert broken <= binom.ppf(0.999, times, 0.05)


def test_the_sequence_is_the_loop_of_its_definition() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        score, differs, unsteady = draw(rng, 300, 0.003)
        expected = None
        for threshold in GRID[::-1]:
            takes = score >= threshold
            count = int(np.where(takes, differs, unsteady).sum())
            if binom.cdf(count, 300, 0.03) > 0.05:
                break
            expected = (threshold, int(takes.sum()), count) if takes.any() else expected
        assert last_threshold(score, differs, unsteady, GRID, 0.05, 0.03) == expected


def test_a_stricter_promise_never_covers_more() -> None:
    rows = draw(np.random.default_rng(3), 5000)
    accepted = [last_threshold(*rows, GRID, 0.05, allowed)[1] for allowed in (0.001, 0.005, 0.02, 0.1)]
    assert accepted == sorted(accepted)
    accepted = [last_threshold(*rows, GRID, 1.0 - confidence, 0.01)[1] for confidence in (0.999, 0.95, 0.6)]
    assert accepted == sorted(accepted)


@pytest.mark.parametrize("allowed", [0.5, 0.02, 0.001])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_rows_that_are_needed_are_the_fewest(allowed: float, confidence: float) -> None:
    n = rows_needed(allowed, confidence)
    assert upper_limit(0, n, confidence) <= allowed + tolerance()
    assert n == 1 or upper_limit(0, n - 1, confidence) > allowed
    more = rows_needed(allowed, confidence, allowed / 2)
    assert binom.cdf(math.ceil(more * allowed / 2), more, allowed) <= 1.0 - confidence
    assert more >= n


def test_what_cannot_be_promised_is_said_with_what_could() -> None:
    with pytest.raises(CertificationError, match="at least 1,497 measured rows, 5,988 in all; 5 are there") as caught:
        check_rows(5, 0.002, 0.95, 0.25)
    assert caught.value.rows == 5988
    check_rows(1497, 0.002, 0.95, 0.25)
    rng = np.random.default_rng(4)
    weak = refusal(rng.random(1000), rng.random(1000) < 0.5, np.zeros(1000, bool), 0.01, 0.95, 0.0)
    assert "take a better student" in str(weak)
    assert weak.rows is None
    assert 0.2 < weak.disagreement < 0.3
    few = refusal(-np.arange(1000.0), np.arange(1000) < 7, np.zeros(1000, bool), 0.01, 0.95, 0.0)
    assert 1000 < few.rows < 5000
    shaky = refusal(rng.random(1000), rng.random(1000) < 0.1, rng.random(1000) < 0.04, 0.01, 0.95, 0.0)
    assert "tighten its solver" in str(shaky)


@pytest.mark.parametrize("bad", [{"disagreement": 0.0}, {"disagreement": 1.0}, {"confidence": 1.0}, {"tolerance": 0.0}])
def test_impossible_promises_are_refused(bad: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        check_promise(**{"disagreement": 0.01, "confidence": 0.95, "tolerance": None} | bad)


def test_drift_is_rarely_seen_where_there_is_none_and_always_where_there_is() -> None:
    rng = np.random.default_rng(5)
    level, times = 0.01, 1000
    alarms = 0
    for _ in range(times):
        measured = certificate(1.0 - rng.binomial(2000, 0.1) / 2000)
        alarms += compare_samples(measured, 500, rng.binomial(500, 0.1)).p_value < level
    assert alarms <= binom.ppf(0.999, times, level)
    for fell in (120, 15):  # 50 are expected with a standard deviation of 7: nine and four and a half of them away
        assert compare_samples(certificate(), 500, fell).p_value < 2.0 * norm.sf(4.0)
    assert compare_samples(certificate(), 0, 0).p_value == 1.0


def test_drift_against_a_known_share_is_the_binomial_test() -> None:
    """With ever more measured rows the exact test of two samples becomes that of one."""
    found = compare_samples(certificate(0.9, 10_000_000), 300, 45)
    assert found.p_value == pytest.approx(2.0 * binom.sf(44, 300, 0.1), rel=1e-3)  # 300 rows against ten million
    assert (found.share, found.expected) == (0.15, pytest.approx(0.1))


def test_a_certificate_says_what_it_promises() -> None:
    assert "another class" in str(certificate())
    assert "at most 1.000%" in str(certificate())
    assert certificate(0.9, 2000).fall_through == 200
