"""How often two networks differ, bounded from a sample: exact tails, no assumption on either of them.

A ladder of cheaper networks answers a row by the first of them whose score reaches a threshold, and by the model, or
not at all, where none does. For each threshold the number of rows on which that differs from the model is binomial.
Thresholds are tested from the most cautious one on, each at the full level, until the first test fails: this fixed
sequence needs no union bound (Angelopoulos et al. 2021, Learn then Test, section 4.1; Bauer 1991).

A promise about labels speaks of the mean of d = [the ladder is wrong] - [the model is wrong], which is -1, 0 or 1. For
every bet 0 < b <= 1 / (1 - allowed) the product of 1 - b (d - allowed) has an expectation of at most one if the mean of
d is not below what is allowed; so has the average over several bets, and its reciprocal is a p-value (Waudby-Smith and
Ramdas 2024). With no loss it is the binomial one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.special import betaln, logsumexp, xlog1py, xlogy
from scipy.stats import beta, binom

from .._arguments import check_settings, finite, positive_int
from .._arrays import Array
from ..errors import CertificationError, InvalidInputError
from .model import LIMITS
from .teacher import Agreement

_MOST_ROWS = 10**12  # that a certificate may speak of
_PROMISES = (0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1)  # of the curve of a certificate
_CHANCE = 1e-5  # with which the share of fall-through of the measured rows may lie outside its interval


class Rung(NamedTuple):
    """One of the networks that answer: its score, from which value on it answers, the share of the measured rows."""

    score: str
    threshold: float
    share: float


@dataclass(frozen=True)
class Certificate:
    """Hold what a replacement promises, and on what the promise rests.

    For inputs like those that were measured P(replacement and model differ) <= ``disagreement``, at this ``confidence``
    in the draw of the measured rows.

    Attributes
    ----------
    disagreement, confidence : float
        What is promised.
    coverage, student_disagreement : float
        The shares of the measured rows that some rung answered, and on which the student alone differed.
    distilled, chosen, measured, seen : int
        The rows that trained the student, chose scores and thresholds, were tested, and differed in the test.
    rungs : sequence of (score, threshold, share)
        For the student and each further rung of the ladder: how sure it is, from which value on it answers, and the
        share of the measured rows that it answered.
    method : str
        How the promise was tested.
    tolerance, share : float
        The error that counts as agreement (None compares classes), and the share of pixels that may be beyond it.
    labels, abstains : bool
        Whether the promise is about true labels: P(wrong) is at most P(the model is wrong) + ``disagreement``. Whether
        rows that no rung answers get no answer.
    curve : sequence of (disagreement, coverage)
        The coverage that other promises would have had, each by itself, at the same confidence.

    Examples
    --------
    >>> from notsodeep.nn import Certificate
    >>> Certificate(0.01, 0.95, 0.9, 600, 150, 500, 1, 0.03, [("margin", 2.5, 0.9)], "fixed sequence").fall_through
    50
    """

    disagreement: float
    confidence: float
    coverage: float
    distilled: int
    chosen: int
    measured: int
    seen: int
    student_disagreement: float
    rungs: Sequence[Any]
    method: str
    tolerance: float | None = None
    share: float | None = None
    labels: bool = False
    abstains: bool = False
    curve: Sequence[Any] = ()

    def __post_init__(self) -> None:
        check_settings(self)
        check_promise(self.disagreement, self.confidence)
        for name in ("distilled", "chosen", "measured", "seen"):
            least = int(name == "measured")
            positive_int(name, getattr(self, name), least, self.measured if name == "seen" else _MOST_ROWS)
        rungs = tuple(_rung(entry) for entry in self.rungs)
        shares = (self.coverage, self.student_disagreement, *(rung.share for rung in rungs))
        if not rungs or not all(0.0 <= share <= 1.0 for share in shares):
            raise InvalidInputError(f"a certificate has rungs and shares between 0 and 1, got {self.rungs}, {shares}")
        for number in (self.tolerance, self.share):
            if number is not None and not 0.0 < number < math.inf:
                raise InvalidInputError(f"tolerance and share must be positive numbers, got {number!r}")
        object.__setattr__(self, "rungs", rungs)
        object.__setattr__(self, "curve", finite("curve", self.curve, depth=2))
        if not all(len(pair) == 2 and 0.0 <= min(pair) <= max(pair) <= 1.0 for pair in self.curve):
            raise InvalidInputError(f"a curve holds pairs of shares between 0 and 1, got {self.curve!r:.80}")

    @property
    def fall_through(self) -> int:
        """The number of measured rows that no rung answered."""
        return round((1.0 - self.coverage) * self.measured)

    @property
    def score(self) -> str:
        """How sure the student is."""
        return str(self.rungs[0].score)

    @property
    def threshold(self) -> float:
        """The score from which on the student answers."""
        return float(self.rungs[0].threshold)

    def __str__(self) -> str:
        what = str(Agreement(self.tolerance, self.share))
        worse = (
            "wrong answers (against labels) on at most {} more of the inputs like those measured than the model's own"
        )
        than = "{} on at most {} of inputs like those measured"
        promised = f"{self.disagreement:.3%}"
        told = worse.format(promised) if self.labels else than.format(what, promised)
        names = ["student", *(f"rung {k}" for k in range(2, len(self.rungs) + 1))]
        lines = [
            f"{name:10}answers {rung.share:.2%} (score {rung.score!r} from {rung.threshold:.4g} on)"
            for name, rung in zip(names, self.rungs, strict=True)
        ]
        lines[0] += f"; alone it differs on {self.student_disagreement:.2%}"
        if self.abstains:
            lines.append(f"{'others':10}{1.0 - self.coverage:.2%} get no answer")
        return "\n".join(
            [
                f"promised  {told}, at confidence {self.confidence:g}",
                f"rests on  {self.measured:,} measured rows ({self.seen} {'worse' if self.labels else 'differed'}); "
                f"{self.distilled:,} rows distilled, {self.chosen:,} chose the score; {self.method}",
                *lines,
            ]
        )


def _rung(entry: Any) -> Rung:
    if not isinstance(entry, tuple | list) or len(entry) != 3 or not isinstance(entry[0], str):
        raise InvalidInputError(f"a rung is (score, threshold, share), got {entry!r:.80}")
    if entry[0] not in LIMITS.scores:
        raise InvalidInputError(f"a score is one of {LIMITS.scores}, got {entry[0]!r:.80}")
    return Rung(entry[0], *(finite(name, value) for name, value in zip(("threshold", "share"), entry[1:], strict=True)))


class Measured(NamedTuple):
    """What was measured of every row: the score of each rung, on one scale, and the loss of each rung and of the rest.

    A loss is 1 where the answer is not the model's (with labels: wrong and the model right), -1 where it is right and
    the model wrong, else 0. The last column belongs to rows that no rung answers: the model, asked again among others.
    """

    scores: Array
    losses: Array


def certify(rows: Measured, thresholds: Array, promise: tuple[float, float], **record: Any) -> Certificate:
    """Return the certificate of the most generous threshold that can be promised; ``record`` holds its other entries.

    ``thresholds`` come from other rows. ``promise`` is the disagreement with its confidence. The entry ``rungs`` of
    the record holds (score, offset, slope) of every rung: its score is offset + slope x on the common scale.
    """
    n, none = len(rows.scores), (math.inf, [0] * rows.scores.shape[1], 0)
    tried = {
        allowed: last_threshold(rows, thresholds, 1.0 - promise[1], allowed, record.get("labels", False)) or none
        for allowed in sorted({promise[0], *_PROMISES})
    }
    threshold, answered, seen = tried[promise[0]]
    coverage = sum(answered) / n
    if coverage < LIMITS.least_coverage:
        raise refusal(rows, *promise, coverage, record.get("labels", False))
    rungs = [  # a score that equals the threshold answers, however the common scale is rounded
        (name, (threshold - offset - 1e-15 * (abs(threshold) + abs(offset))) / slope, count / n)
        for (name, offset, slope), count in zip(record.pop("rungs"), answered, strict=True)
    ]
    method = f"fixed sequence of thresholds, {'bets' if record.get('labels') else 'exact binomial tails'}"
    record["curve"] = [(allowed, sum(answered) / n) for allowed, (_, answered, _) in tried.items()]
    return Certificate(*promise, coverage, measured=n, seen=seen, rungs=rungs, method=method, **record)


# ---- the test ------------------------------------------------------------------------------------------------


def last_threshold(
    rows: Measured, thresholds: Array, level: float, disagreement: float, labels: bool = False
) -> tuple[float, list[int], int] | None:
    """Return the most generous threshold that the sequence reaches from above, or None if the first one fails."""
    cautious_first = np.unique(thresholds)[::-1]
    answered, worse, better = tally(rows, cautious_first)
    n = len(rows.scores)
    passed = p_values(worse, better, n, disagreement, labels) <= level
    last = (len(passed) if passed.all() else int(np.argmin(passed))) - 1
    if last < 0 or not answered[:, last].any():
        return None
    return float(cautious_first[last]), answered[:, last].tolist(), int(worse[last])


def tally(rows: Measured, thresholds: Array) -> tuple[Array, Array, Array]:
    """Return for every threshold how many rows each rung answers, and how many have a loss of 1 and of -1."""
    scores = np.where(np.isnan(rows.scores), -np.inf, rows.scores)
    rungs, below = scores.shape[1], np.full(len(scores), -np.inf)
    answered = np.zeros((rungs, len(thresholds)), dtype=int)
    worse, better = (np.full(len(thresholds), int((rows.losses[:, -1] == sign).sum())) for sign in (1, -1))
    for k in range(rungs):
        above = np.maximum(below, scores[:, k])  # rung k answers where below < threshold <= above
        for values, sign in ((above, 1), (below, -1)):
            answered[k] += sign * _reaching(values, np.ones(len(values), dtype=int), thresholds)
            for count, loss in ((worse, 1), (better, -1)):
                count += sign * _reaching(values, (rows.losses[:, k] == loss).astype(int), thresholds)
        below = above
    for count, loss in ((worse, 1), (better, -1)):
        count -= _reaching(below, (rows.losses[:, -1] == loss).astype(int), thresholds)
    return answered, worse, better


def _reaching(values: Array, weights: Array, thresholds: Array) -> Array:
    """Return for every threshold the sum of the weights of the values that reach it."""
    order = np.argsort(-values, kind="stable")
    sums = np.concatenate([[0], np.cumsum(weights[order])])
    return sums[np.searchsorted(-values[order], -thresholds, side="right")]


def p_values(worse: Any, better: Any, rows: float, allowed: float, labels: bool) -> Array:
    """Return p-values of "the replacement is worse on a share of at least ``allowed``", by one of the two tests."""
    return excess_p_values(worse, better, rows, allowed) if labels else binom.cdf(worse, rows, allowed)


def excess_p_values(worse: Any, better: Any, rows: float, allowed: float) -> Array:
    """Return p-values of "the mean of d is at least ``allowed``" for so many rows of d = 1 and d = -1."""
    bets = (1.0 - 1e-12) / (1.0 - allowed) * 0.5 ** np.arange(8)[:, None]
    grown = xlog1py(worse, -bets * (1.0 - allowed)) + xlog1py(better, bets * (1.0 + allowed))
    grown = grown + xlog1py(rows - worse - better, bets * allowed)
    return np.exp(np.minimum(0.0, math.log(len(bets)) - logsumexp(grown, axis=0)))


def rows_needed(disagreement: float, confidence: float, rate: float = 0.0, labels: bool = False) -> int:
    """Return how many rows, within a hundredth, certify ``disagreement`` if a share ``rate`` below it is worse."""
    rows = math.ceil(math.log1p(-confidence) / math.log1p(-disagreement))
    while p_values(float(math.ceil(rate * rows)), 0.0, float(rows), disagreement, labels) > 1.0 - confidence:
        rows = math.ceil(1.01 * rows)  # which may be more than an integer of a machine holds
    return rows


def upper_limit(worse: int, rows: int, confidence: float, labels: bool = False) -> float:
    """Return the least share that so many worse rows certify (without labels: Clopper and Pearson, one side)."""
    if worse >= rows:
        return 1.0
    low, high = worse / rows, 1.0
    while labels and high - low > 1e-6:
        middle = 0.5 * (low + high)
        passes = p_values(worse, 0, rows, middle, labels) <= 1.0 - confidence
        low, high = (low, middle) if passes else (middle, high)
    return high if labels else float(beta.ppf(confidence, worse + 1, rows - worse))


def check_promise(disagreement: float, confidence: float) -> None:
    """Refuse promises that no sample can keep."""
    for name, value in (("disagreement", disagreement), ("confidence", confidence)):
        if not 1e-300 < value < 1.0:
            raise InvalidInputError(
                f"{name} must lie strictly between 0 and 1, got {value!r}: from finitely many rows nothing can be "
                "promised to happen never, or with certainty"
            )


def check_rows(measured: int, disagreement: float, confidence: float, share: float, labels: bool = False) -> None:
    """Refuse a sample that could not certify even a perfect student; ``share`` of the rows given are measured."""
    needed = rows_needed(disagreement, confidence, labels=labels)
    if measured < needed:
        possible = upper_limit(0, measured, confidence, labels)
        given = math.ceil(needed / share)
        in_all = "" if given == needed else f", {given:,} in all"
        raise CertificationError(
            f"a disagreement of {disagreement:.3%} at confidence {confidence:g} takes at least {needed:,} measured "
            f"rows{in_all}; {measured:,} are there. They could certify at best {possible:.2%}. Give more rows, or "
            "promise less",
            rows=given,
            disagreement=possible,
        )


def refusal(
    rows: Measured, disagreement: float, confidence: float, coverage: float, labels: bool = False
) -> CertificationError:
    """Return the error that says what could be promised if the student answered the surer half of the rows."""
    n, worse, others = len(rows.scores), rows.losses[:, 0] == 1, rows.losses[:, -1] == 1
    half = np.argsort(-rows.scores[:, 0], kind="stable")[: (n + 1) // 2]
    seen = int(worse[half].sum() + others.sum() - others[half].sum())
    possible = upper_limit(seen, n, confidence, labels)
    enough = rows_needed(disagreement, confidence, seen / n, labels) if seen < disagreement * n else None
    advice = f"about {enough:,} measured rows would do" if enough else "more rows will not help: take a better student"
    if float(np.mean(others)) >= disagreement:
        advice = "the model itself answers so many rows differently when its batches change: tighten its solver"
    return CertificationError(
        f"a disagreement of {disagreement:.3%} at confidence {confidence:g} leaves the student {coverage:.1%} of the "
        f"rows. If it answered the surer half of the {n:,} measured ones, {seen} would differ, which certifies "
        f"{possible:.2%}; {advice}",
        rows=enough,
        disagreement=possible,
        coverage=coverage,
    )


# ---- afterwards ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drift:
    """How the rows seen since calibration compare with those that were measured.

    ``fall_through`` counts rows that no rung answered, ``expected`` is their share among the measured ones. However
    often one looks, and whenever one stops, ``p_value`` falls below p with a probability of at most p unless the share
    has changed.
    """

    rows: int
    fall_through: int
    expected: float
    p_value: float

    @property
    def share(self) -> float:
        """The share of the rows seen that no rung answered."""
        return self.fall_through / self.rows if self.rows else math.nan


def compare_samples(
    certificate: Certificate, rows: int, fall_through: int, starts: Sequence[tuple[int, int]] = ((0, 0),)
) -> Drift:
    """Return a test of the rows seen against those measured that is valid at every look.

    For a known share p the likelihood ratio of a Beta(1/2, 1/2) mixture against p is a martingale, which exceeds 1 / a
    with a probability of at most a (Ville). The share is known up to an interval, from which it is missing by chance.
    So that a late change is not lost among many rows before it, the test is a mean of such ratios, one for the rows
    since each of ``starts``, which are the rows seen before with their fall-through. A ratio to come counts as one.
    """
    before, n = certificate.fall_through, certificate.measured
    low = float(beta.ppf(_CHANCE / 2.0, before, n - before + 1)) if before else 0.0
    high = 1.0 - float(beta.ppf(_CHANCE / 2.0, n - before, before + 1)) if before < n else 1.0
    grown = [-math.log(len(starts) + 1.0)]
    for k, start in enumerate(starts, 1):
        some, fell = rows - start[0], fall_through - start[1]
        likely = min(max(fell / some, low), high) if some else low
        against = xlogy(fell, likely) + xlogy(some - fell, 1.0 - likely)
        ratio = float(betaln(fell + 0.5, some - fell + 0.5) - betaln(0.5, 0.5) - against)
        grown.append(ratio - math.log(k * (k + 1.0)))
    return Drift(rows, fall_through, before / n, min(1.0, math.exp(min(0.0, -float(logsumexp(grown)))) + _CHANCE))
