"""How often two networks differ, bounded from a sample: exact binomial tails, no assumption on either of them.

For each threshold of the score the number of rows on which the replacement differs is binomial. Thresholds are tested
from the most cautious one on, each at the full level, until the first test fails: this fixed sequence needs no union
bound (Angelopoulos et al. 2021, Learn then Test, section 4.1; Bauer 1991).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta, binom, hypergeom

from .._arguments import check_settings
from ..errors import CertificationError, InvalidInputError
from .model import LIMITS

Array = NDArray[Any]


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
        The shares of the measured rows that the student answered, and on which it alone differed from the model.
    distilled, chosen, measured, seen : int
        The rows that trained the student, chose score and thresholds, were tested, and differed in the test.
    threshold, tolerance : float
        The score from which on the student answers; the error that counts as agreement (None compares classes).
    score, method : str
        How sure the student is, and how the promise was tested.

    Examples
    --------
    >>> from notsodeep.nn import Certificate
    >>> Certificate(0.01, 0.95, 0.9, 600, 150, 500, 1, 0.03, 2.5, "margin", "fixed sequence").fall_through
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
    threshold: float
    score: str
    method: str
    tolerance: float | None = None

    def __post_init__(self) -> None:
        check_settings(self)
        check_promise(self.disagreement, self.confidence, self.tolerance)

    @property
    def fall_through(self) -> int:
        """The number of measured rows that the model had to answer."""
        return round((1.0 - self.coverage) * self.measured)

    def __str__(self) -> str:
        what = "another class" if self.tolerance is None else f"an output off by more than {self.tolerance:g}"
        return (
            f"promised  {what} than the model's on at most {self.disagreement:.3%} of inputs like those measured, at "
            f"confidence {self.confidence:g}\n"
            f"rests on  {self.measured:,} measured rows ({self.seen} differed); {self.distilled:,} rows distilled, "
            f"{self.chosen:,} chose the score; {self.method}\n"
            f"student   answers {self.coverage:.2%} (score {self.score!r} from {self.threshold:.4g} on); alone it "
            f"differs on {self.student_disagreement:.2%}"
        )


def certify(
    scores: Array, differs: Array, unsteady: Array, thresholds: Array, promise: tuple[float, float], **record: Any
) -> Certificate:
    """Return the certificate of the most generous threshold that can be promised; ``record`` holds its other entries.

    The first three arrays have one entry per measured row: the score, whether the student's answer is not the model's,
    and whether the model's own answer, asked again among other rows, is not what it was. ``thresholds`` come from other
    rows. ``promise`` is the disagreement with its confidence.
    """
    found = last_threshold(scores, differs, unsteady, thresholds, 1.0 - promise[1], promise[0])
    threshold, accepted, seen = found or (math.inf, 0, 0)
    coverage = accepted / len(scores)
    if coverage < LIMITS.least_coverage:
        raise refusal(scores, differs, unsteady, *promise, coverage)
    counted: dict[str, Any] = {"measured": len(scores), "seen": seen, "student_disagreement": float(differs.mean())}
    method = "fixed sequence of thresholds, exact binomial tails"
    return Certificate(promise[0], promise[1], coverage, threshold=threshold, method=method, **counted, **record)


# ---- the test ------------------------------------------------------------------------------------------------


def last_threshold(
    score: Array, student_differs: Array, model_differs: Array, thresholds: Array, level: float, disagreement: float
) -> tuple[float, int, int] | None:
    """Return the most generous threshold that the sequence reaches from above, or None if the first one fails."""
    cautious_first = np.unique(thresholds)[::-1]
    order = np.argsort(-score, kind="stable")
    accepted = np.searchsorted(-score[order], -cautious_first, side="right")
    wrong, unsteady = (np.concatenate([[0], np.cumsum(part[order])]) for part in (student_differs, model_differs))
    differing = wrong[accepted] + unsteady[-1] - unsteady[accepted]
    passed = binom.cdf(differing, len(score), disagreement) <= level
    last = (len(passed) if passed.all() else int(np.argmin(passed))) - 1
    if last < 0 or accepted[last] == 0:
        return None
    return float(cautious_first[last]), int(accepted[last]), int(differing[last])


def rows_needed(disagreement: float, confidence: float, rate: float = 0.0) -> int:
    """Return how many rows, within a hundredth, certify ``disagreement`` if a share ``rate`` below it differs."""
    rows = math.ceil(math.log1p(-confidence) / math.log1p(-disagreement))
    while binom.cdf(math.ceil(rate * rows), rows, disagreement) > 1.0 - confidence:
        rows = math.ceil(1.01 * rows)
    return rows


def upper_limit(differing: int, rows: int, confidence: float) -> float:
    """Return the largest share that so many differing rows are compatible with (Clopper and Pearson, one side)."""
    return 1.0 if differing >= rows else float(beta.ppf(confidence, differing + 1, rows - differing))


def check_promise(disagreement: float, confidence: float, tolerance: float | None) -> None:
    """Refuse promises that no sample can keep."""
    for name, value in (("disagreement", disagreement), ("confidence", confidence)):
        if not 0.0 < value < 1.0:
            raise InvalidInputError(
                f"{name} must lie strictly between 0 and 1, got {value!r}: from finitely many rows nothing can be "
                "promised to happen never, or with certainty"
            )
    if tolerance is not None and not 0.0 < tolerance < math.inf:
        raise InvalidInputError(f"tolerance must be a positive number, got {tolerance!r}")


def check_rows(measured: int, disagreement: float, confidence: float, share: float) -> None:
    """Refuse a sample that could not certify even a perfect student; ``share`` of the rows given are measured."""
    needed = rows_needed(disagreement, confidence)
    if measured < needed:
        possible = upper_limit(0, measured, confidence) if measured else 1.0
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
    score: Array, differs: Array, unsteady: Array, disagreement: float, confidence: float, coverage: float
) -> CertificationError:
    """Return the error that says what could be promised if the student answered the surer half of the rows."""
    n, half = len(score), np.argsort(-score, kind="stable")[: (len(score) + 1) // 2]
    seen = int(differs[half].sum() + unsteady.sum() - unsteady[half].sum())
    possible = upper_limit(seen, n, confidence)
    enough = rows_needed(disagreement, confidence, seen / n) if seen < disagreement * n else None
    advice = f"about {enough:,} measured rows would do" if enough else "more rows will not help: take a better student"
    if float(np.mean(unsteady)) >= disagreement:
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

    ``fall_through`` counts rows that the model had to answer, ``expected`` is their share among the measured ones, and
    ``p_value`` the probability of a difference as large between two samples of one population (exact, two-sided).
    """

    rows: int
    fall_through: int
    expected: float
    p_value: float

    @property
    def share(self) -> float:
        """The share of the rows seen that the model had to answer."""
        return self.fall_through / self.rows if self.rows else math.nan


def compare_samples(certificate: Certificate, rows: int, fall_through: int) -> Drift:
    """Return Fisher's exact test of the rows seen against those measured: a binomial test of two samples."""
    before = certificate.fall_through
    law = hypergeom(certificate.measured + rows, before + fall_through, rows)
    tail = min(float(law.cdf(fall_through)), float(law.sf(fall_through - 1)))
    return Drift(rows, fall_through, before / certificate.measured, min(1.0, 2.0 * tail))
