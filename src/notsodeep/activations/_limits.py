"""The tuning numbers of the activations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes and thresholds, with the reason for each."""

    block: int = 1 << 16
    """Units per core that are evaluated at once: ten intermediate results of this size fit a second-level cache."""


LIMITS = Limits()
