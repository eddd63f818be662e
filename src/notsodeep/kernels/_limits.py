"""The tuning numbers of this room, each with the reason for its size."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Sizes, tolerances and thresholds of the computation of kernels."""

    tolerance: float = 4e-15
    """Relative error of an expectation: twenty units of float64."""
    noise: float = 2e-15
    """Rounding hides anything smaller in Parseval's identity."""
    slow_evaluations: int = 1 << 26
    """Evaluations of an activation that take seconds."""
    nodes_of_a_pair: int = 1 << 24
    """Evaluations for one pair of inputs: more would not fit into the memory that is allowed."""


LIMITS = Limits()
