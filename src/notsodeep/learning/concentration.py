"""Whether the mixture is high-dimensional enough: the test of what the theory takes as constant.

The equivalent replaces the term D (x . y)^2/2 of the kernel by its mean over pairs and counts the rest as ridge. For
that, no feature x_i x_j may be learnt on its own, and the rest must be small as a matrix. The strongest feature belongs
to the largest eigenvalue of the covariances: n points see it with the weight n D (||C||/p)^2. The random entries have
the standard deviation D T/(sqrt(2) p), hence the norm sqrt(2 n) D T/p. Both are held against the ridge o_a + gamma.
They vanish as p grows with n, unless the data has low effective rank, as images have.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Literal, get_args

from ..errors import ConcentrationError, ConcentrationWarning, InvalidInputError
from ..spectra.sources import Source
from .features import LinearProblem

__all__ = ["Check", "Concentration", "concentration"]

Check = Literal["warn", "raise", "ignore"]
_WITHOUT, _WITH_PRODUCTS = 1.0, 5.0  # trusted where products x_i x_j are neglected, and where the strong ones are kept


@dataclass(frozen=True)
class Concentration:
    """The strength of what is neglected of (x . y)^2, relative to the ridge; the theory needs it small."""

    strength: float
    limit: float
    """Beyond it predictions were wrong by more than a point (docs/learning.md)."""

    @property
    def holds(self) -> bool:
        return self.strength <= self.limit

    def report(self, check: Check) -> None:
        """Warn or raise where the theory does not hold."""
        if check not in get_args(Check):
            raise InvalidInputError(f"check must be one of {get_args(Check)}, got {check!r}")
        if self.holds or check == "ignore":
            return
        message = (
            f"the mixture has too low an effective rank for this prediction: (x . y)^2 does not concentrate, what is "
            f"neglected of it is {self.strength:.3g} times the ridge (at most {self.limit:g} is trusted). Predicted "
            "accuracies may be wrong by points; use estimate_learning on data instead, a larger ridge, or an odd "
            "activation, which has no such term"
        )
        if check == "raise":
            raise ConcentrationError(message, self.strength)
        warnings.warn(message, ConcentrationWarning, stacklevel=3)


def concentration(problem: LinearProblem, source: Source, lift: float) -> Concentration:
    """The test for n points and the smallest ridge ``lift`` (of the kernel's own unit) that is asked for."""
    ridge = float(problem.offsets.mean()) + lift
    share, shares = source.population.scale / source.p, source.counts / source.n
    entries = float(shares @ source.T @ shares) / source.p
    strength = 2.0 * abs(problem.bend) / ridge * (source.n * share**2 + math.sqrt(2.0 * source.n) * entries)
    return Concentration(strength, _WITH_PRODUCTS if problem.products else _WITHOUT)
