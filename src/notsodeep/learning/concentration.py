"""Whether the mixture is high-dimensional enough: the test of what the theory takes as constant.

The equivalent replaces the term D (x . y)^2/2 of the kernel by its mean over pairs and counts the rest as ridge. For
that, no feature x_i x_j may be learnt on its own. The strongest belongs to the largest eigenvalue of the covariances:
n points see it with the weight n D (||C||/p)^2, against the ridge o_a + gamma. It vanishes as p grows unless the data
has low effective rank, as images have.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConcentrationError, ConcentrationWarning, InvalidInputError
from ..spectra.sources import Source
from .features import LinearProblem

__all__ = ["Check", "Concentration", "concentration"]

Check = Literal["warn", "raise", "ignore"]


@dataclass(frozen=True)
class Concentration:
    """The strength of the strongest quadratic feature relative to the ridge; the theory needs it small."""

    strength: float
    LIMIT = 2.0
    """Beyond it predictions were wrong by more than half a point (docs/learning.md)."""

    @property
    def holds(self) -> bool:
        return self.strength <= self.LIMIT

    def report(self, check: Check) -> None:
        """Warn or raise where the theory does not hold."""
        if check not in get_args(Check):
            raise InvalidInputError(f"check must be one of {get_args(Check)}, got {check!r}")
        if self.holds or check == "ignore":
            return
        message = (
            f"the mixture has too low an effective rank for this prediction: (x . y)^2 does not concentrate, its "
            f"strongest feature is {self.strength:.3g} times the ridge (at most {self.LIMIT:g} is trusted). "
            "Predicted accuracies are then too high as a rule; use estimate_learning on data instead, a larger ridge, "
            "or an odd activation, which has no such term"
        )
        if check == "raise":
            raise ConcentrationError(message, self.strength)
        warnings.warn(message, ConcentrationWarning, stacklevel=3)


def concentration(problem: LinearProblem, source: Source, lift: float) -> Concentration:
    """The test for n points and the smallest ridge ``lift`` (of the kernel's own unit) that is asked for."""
    ridge = float(problem.offsets.mean()) + lift
    share = source.population.scale / source.p
    return Concentration(2.0 * source.n * abs(problem.bend) * share**2 / ridge)
