"""The promise of a replacement is kept: exact tails, thousands of calibrations, brute force beside each count."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from helpers import tolerance
from notsodeep.errors import CertificationError, InvalidInputError
from notsodeep.nn.certify import (
    Certificate,
    Measured,
    certify,
    check_promise,
    check_rows,
    compare_samples,
    excess_p_values,
    last_threshold,
    refusal,
    rows_needed,
    tally,
    upper_limit,
)
from notsodeep.nn.teacher import Agreement

GRID = np.linspace(0.0, 1.0, 101)


def certificate(coverage: float = 0.9, measured: int = 2000) -> Certificate:
    return Certificate(0.01, 0.95, coverage, 600, 150, measured, 1, 0.03, [("margin", 0.5, coverage)], "fixed sequence")


def measured(score: np.ndarray, differs: np.ndarray, unsteady: np.ndarray | float = 0.0) -> Measured:
    """A student alone, and the model that differs from itself."""
    last = np.broadcast_to(unsteady, score.shape)
    return Measured(score[:, None], np.stack([differs, last], 1).astype(int))


def draw(rng: np.random.Generator, rows: int, unsteady: float = 0.0) -> Measured:
    """A score that is uniform; the student differs with probability (1 - score)^2 / 3, the model from itself rarely."""
    score = rng.random(rows)
    return measured(score, rng.random(rows) < (1.0 - score) ** 2 / 3.0, rng.random(rows) < unsteady)


def risk(threshold: float, unsteady: float = 0.0) -> float:
    """The probability that replacement and model differ, of :func:`draw`."""
    return (1.0 - threshold) ** 3 / 9.0 + unsteady * threshold


@pytest.mark.parametrize(
    ("allowed", "confidence", "unsteady"), [(0.02, 0.95, 0.0), (0.01, 0.8, 0.0), (0.02, 0.9, 0.005)]
)
def test_promises_are_broken_no_more_often_than_allowed(allowed: float, confidence: float, unsteady: float) -> None:
    rng, times = np.random.default_rng(0), 1000
    found = [last_threshold(draw(rng, 500, unsteady), GRID, 1.0 - confidence, allowed) for _ in range(times)]
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
        broken += last_threshold(measured(score, differs), GRID, 0.05, 0.02) is not None
    assert broken <= binom.ppf(0.999, times, 0.05)


def test_the_sequence_is_the_loop_of_its_definition() -> None:
    rng = np.random.default_rng(2)
    for _ in range(200):
        rows = draw(rng, 300, 0.003)
        score, (differs, unsteady) = rows.scores[:, 0], rows.losses.T
        expected = None
        for threshold in GRID[::-1]:
            takes = score >= threshold
            count = int(np.where(takes, differs, unsteady).sum())
            if binom.cdf(count, 300, 0.03) > 0.05:
                break
            expected = (threshold, [int(takes.sum())], count) if takes.any() else expected
        assert last_threshold(rows, GRID, 0.05, 0.03) == expected


def test_a_stricter_promise_never_covers_more() -> None:
    rows = draw(np.random.default_rng(3), 5000)
    accepted = [last_threshold(rows, GRID, 0.05, allowed)[1] for allowed in (0.001, 0.005, 0.02, 0.1)]
    assert accepted == sorted(accepted)
    accepted = [last_threshold(rows, GRID, 1.0 - confidence, 0.01)[1] for confidence in (0.999, 0.95, 0.6)]
    assert accepted == sorted(accepted)


def test_the_curve_says_what_other_promises_would_have_had() -> None:
    """A promise reaches the last threshold before the first whose limit of Clopper and Pearson lies above it."""
    rows = draw(np.random.default_rng(4), 2000)
    record = {"distilled": 10, "chosen": 10, "student_disagreement": 0.1, "rungs": [("margin", 0.0, 1.0)]}
    found = certify(rows, GRID, (0.02, 0.95), **record)
    score, differs = rows.scores[:, 0], rows.losses[:, 0]
    limits = [upper_limit(int(differs[score >= t].sum()), 2000, 0.95) for t in GRID[::-1]]
    covered = [float((score >= t).mean()) for t in GRID[::-1]]
    for allowed, coverage in found.curve:
        passed = [limit <= allowed for limit in [*limits, 2.0]].index(False)
        assert coverage == (covered[passed - 1] if passed else 0.0)
    assert dict(found.curve)[0.02] == found.coverage
    assert found.curve[0][1] < found.coverage < found.curve[-1][1]


def test_rows_whose_scores_equal_the_threshold_are_answered_as_measured() -> None:
    rng = np.random.default_rng(6)
    raw = rng.integers(3, size=300) * 0.1
    for offset, slope in rng.normal(size=(300, 2)) ** 2:
        scaled = offset + slope * raw
        record = {"distilled": 10, "chosen": 10, "student_disagreement": 0.1, "rungs": [("own", offset, slope)]}
        found = certify(measured(scaled, raw == 0.0), scaled, (0.05, 0.95), **record)
        assert found.coverage == (raw >= found.threshold).mean() == (raw > 0.0).mean()


@pytest.mark.parametrize("labels", [False, True])
def test_promises_beyond_any_sample_have_a_number_of_rows(labels):
    assert rows_needed(1e-30, 0.95, labels=labels) > 10**30


@pytest.mark.parametrize("allowed", [0.5, 0.02, 0.001])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_rows_that_are_needed_are_the_fewest(allowed: float, confidence: float) -> None:
    n = rows_needed(allowed, confidence)
    assert upper_limit(0, n, confidence) <= allowed + tolerance()
    assert n == 1 or upper_limit(0, n - 1, confidence) > allowed
    more = rows_needed(allowed, confidence, allowed / 2)
    assert binom.cdf(math.ceil(more * allowed / 2), more, allowed) <= 1.0 - confidence
    assert more >= n


@pytest.mark.parametrize("allowed", [0.5, 0.02, 0.001])
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_promises_about_labels_are_told_how_many_rows_bets_need(allowed: float, confidence: float) -> None:
    n = rows_needed(allowed, confidence, labels=True)
    level = 1.0 - confidence
    assert excess_p_values(np.array([0]), np.array([0]), n, allowed)[0] <= level
    assert excess_p_values(np.array([0]), np.array([0]), int(0.98 * n) - 1, allowed)[0] > level
    step = 2e-6  # of the bisection
    for worse in (0, 3):
        limit = upper_limit(worse, n, confidence, labels=True)
        assert excess_p_values(np.array([worse]), np.array([0]), n, limit)[0] <= level
        assert excess_p_values(np.array([worse]), np.array([0]), n, limit - step)[0] > level
    with pytest.raises(CertificationError, match=f"takes at least {n:,} measured rows"):
        check_rows(n - 1, allowed, confidence, 1.0, labels=True)
    check_rows(n, allowed, confidence, 1.0, labels=True)


def test_what_cannot_be_promised_is_said_with_what_could() -> None:
    with pytest.raises(CertificationError, match="at least 1,497 measured rows, 5,988 in all; 5 are there") as caught:
        check_rows(5, 0.002, 0.95, 0.25)
    assert caught.value.rows == 5988
    check_rows(1497, 0.002, 0.95, 0.25)
    rng = np.random.default_rng(4)
    weak = refusal(measured(rng.random(1000), rng.random(1000) < 0.5), 0.01, 0.95, 0.0)
    assert "take a better student" in str(weak)
    assert weak.rows is None
    assert 0.2 < weak.disagreement < 0.3
    few = refusal(measured(-np.arange(1000.0), np.arange(1000) < 7), 0.01, 0.95, 0.0)
    assert 1000 < few.rows < 5000
    shaky = refusal(measured(rng.random(1000), rng.random(1000) < 0.1, rng.random(1000) < 0.04), 0.01, 0.95, 0.0)
    assert "tighten its solver" in str(shaky)


@pytest.mark.parametrize("bad", [{"disagreement": 0.0}, {"disagreement": 1.0}, {"confidence": 1.0}])
def test_impossible_promises_are_refused(bad: dict) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(bad))):
        check_promise(**{"disagreement": 0.01, "confidence": 0.95} | bad)


# -- ladders and labels ------------------------------------------------------------------------------------
def worlds(rng: np.random.Generator, rows: int, rungs: int = 2, labels: bool = False) -> Measured:
    """Scores of several rungs; a rung is worse with probability (1 - score)^2 / 3, with labels as often better by half.

    The model is worse than itself on 3 in 1,000 rows.
    """
    scores = rng.random((rows, rungs))
    uniform, chance = rng.random((rows, rungs)), (1.0 - scores) ** 2 / 3.0
    better = labels * ((uniform > chance) & (uniform < 1.5 * chance))
    last = rng.random((rows, 1)) < 0.003  # rarely
    return Measured(scores, np.hstack([(uniform < chance).astype(int) - better, last]))


def exact_risk(threshold: float, rungs: int = 2, labels: bool = False) -> float:
    """The probability of a loss, minus half of it with labels, of :func:`worlds`."""
    one, none = (1.0 - threshold) ** 3 / 9.0, threshold
    return one * sum(none**k for k in range(rungs)) * (0.5 if labels else 1.0) + 0.003 * none**rungs


def test_a_tally_counts_what_the_ladder_does() -> None:
    rng = np.random.default_rng(7)
    rows = worlds(rng, 200, 3, labels=True)
    rows.scores[rng.random(rows.scores.shape) < 0.05] = np.nan  # never sure
    answered, worse, better = tally(rows, GRID)
    for k, threshold in enumerate(GRID):
        sure = np.hstack([rows.scores >= threshold, np.ones((200, 1), bool)])
        first = sure.argmax(1)
        loss = rows.losses[np.arange(200), first]
        assert [(first == rung).sum() for rung in range(3)] == answered[:, k].tolist()
        assert (worse[k], better[k]) == ((loss == 1).sum(), (loss == -1).sum())


CASES = [(1, False), (2, False), (3, False), (1, True), (2, True)]


def broken_promises(rungs: int, labels: bool, times: int, rows: int, seed: int = 0) -> tuple[int, int]:
    """How many of so many calibrations broke their promise, and how many promised anything."""
    rng, allowed = np.random.default_rng(seed), 0.03  # share
    found = [last_threshold(worlds(rng, rows, rungs, labels), GRID, 0.1, allowed, labels) for _ in range(times)]
    risks = [exact_risk(f[0], rungs, labels) for f in found if f is not None]
    return sum(risk > allowed for risk in risks), len(risks)


@pytest.mark.parametrize(("rungs", "labels"), CASES)
def test_promises_of_ladders_and_about_labels_are_kept(rungs: int, labels: bool) -> None:
    times = 500
    broken, made = broken_promises(rungs, labels, times, 600)
    assert broken <= binom.ppf(0.999, times, 0.1)
    assert made > 0.9 * times


@pytest.mark.slow
@pytest.mark.parametrize("rows", [200, 1000, 5000])
@pytest.mark.parametrize(("rungs", "labels"), CASES)
def test_promises_are_kept_over_thousands_of_calibrations(rungs: int, labels: bool, rows: int) -> None:
    times = 4000
    broken, _ = broken_promises(rungs, labels, times, rows, seed=rows)
    assert broken <= binom.ppf(0.999, times, 0.1)


def broken_promises_about_fields(times: int, rows: int) -> tuple[int, int]:
    """How many calibrations broke their promise about fields, with no answer to rows that the student leaves.

    Of 20 pixels each has another class with probability 0.15 (1 - score); two of them may.
    """
    rng, allowed, agreement = np.random.default_rng(3), 0.03, Agreement(None, 0.1)  # shares
    grid = np.linspace(0.0, 1.0, 2001)
    chance = binom.sf(2, 20, 0.15 * (1.0 - grid))
    risk = np.append(np.cumsum(chance[::-1])[::-1][1:] / 2000, 0.0)  # of answers from a score on
    answers = torch.eye(3)[torch.from_numpy(rng.integers(3, size=(rows, 20)))].mT
    broken = made = 0
    for _ in range(times):
        scores = rng.random(rows)
        off = torch.from_numpy(rng.random((rows, 1, 20)) < 0.15 * (1.0 - scores[:, None, None]))
        losses = agreement.differs(torch.where(off, answers.roll(1, 1), answers), answers).int().numpy()
        found = last_threshold(Measured(scores[:, None], np.stack([losses, 0 * losses], 1)), GRID, 0.1, allowed)
        made += found is not None
        broken += found is not None and np.interp(found[0], grid, risk) > allowed
    return broken, made


@pytest.mark.parametrize("times", [100, pytest.param(4000, marks=pytest.mark.slow)])
def test_promises_about_fields_are_kept(times: int) -> None:
    broken, made = broken_promises_about_fields(times, 600)
    assert broken <= binom.ppf(0.999, times, 0.1)
    assert made > 0.9 * times


@pytest.mark.parametrize(("worse", "better"), [(0.03, 0.0), (0.13, 0.1), (0.3, 0.27)])
def test_bets_are_within_their_level_where_the_excess_is_what_is_allowed(worse: float, better: float) -> None:
    rng, times, rows = np.random.default_rng(8), 20_000, 800
    counts = rng.multinomial(rows, [worse, better, 1.0 - worse - better], times)
    p = excess_p_values(counts[:, 0], counts[:, 1], rows, 0.03)
    for level in (0.2, 0.05, 0.01):
        assert (p <= level).sum() <= binom.ppf(0.999, times, level)


def test_bets_on_no_loss_are_nearly_the_binomial_test() -> None:
    for rows in (100, 400, 1497):
        bets = excess_p_values(np.array([0]), np.array([0]), rows, 0.002)[0]
        exact = 0.998**rows
        assert exact <= bets + tolerance()
        assert bets <= min(1.0, 8.0 * exact)  # one of eight equal bets is as good as the binomial test
    assert excess_p_values(np.array([20]), np.array([300]), 1000, 0.01)[0] < 0.01 < 0.05  # far better than the model
    assert excess_p_values(np.array([300]), np.array([20]), 1000, 0.01)[0] == 1.0


# -- drift -------------------------------------------------------------------------------------------------
def false_alarms(level: float, times: int, batches: int) -> int:
    """How many streams without a change are ever below the level, looked at after every batch.

    The threshold, below which rows fall, was chosen on the rows that say how many to expect.
    """
    rng, alarms = np.random.default_rng(5), 0
    for _ in range(times):
        threshold, answered, _ = last_threshold(draw(rng, 2000), GRID, 0.05, 0.02)
        found = certificate(sum(answered) / 2000)
        fell, starts = [0, *rng.binomial(25, threshold, batches).cumsum().tolist()], [(0, 0)]
        for k in range(1, batches + 1):
            starts += [(25 * (k - 1), fell[k - 1])] if 25 * (k - 1) > 2 * starts[-1][0] else []
            if compare_samples(found, 25 * k, fell[k], starts).p_value < level:
                alarms += 1
                break
    return alarms


def test_drift_is_rarely_seen_where_there_is_none_and_always_where_there_is() -> None:
    assert false_alarms(0.05, 100, 20) <= binom.ppf(0.999, 100, 0.05)
    for fell in (120, 10):  # 50 are expected with a standard deviation of 7
        assert compare_samples(certificate(), 500, fell).p_value < 1e-3
    assert compare_samples(certificate(), 0, 0).p_value == 1.0
    found = compare_samples(certificate(0.9, 10_000_000), 300, 45)
    assert (found.share, found.expected) == (0.15, pytest.approx(0.1))


def test_a_late_change_is_not_lost_among_the_rows_before_it() -> None:
    whole = compare_samples(certificate(), 22_000, 2_000 + 400)
    since = compare_samples(certificate(), 22_000, 2_000 + 400, [(0, 0), (20_000, 2_000)])
    assert since.p_value < 1e-3 < whole.p_value  # a level, not a tolerance


@pytest.mark.slow
def test_drift_may_be_looked_at_after_every_batch() -> None:
    times = 1000
    assert false_alarms(0.05, times, 200) <= binom.ppf(0.999, times, 0.05)


def test_a_certificate_says_what_it_promises() -> None:
    assert "another class" in str(certificate())
    assert "at most 1.000%" in str(certificate())
    assert certificate(0.9, 2000).fall_through == 200
