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
    direct_pairs: int = 1024
    """Fewer pairs of rows than this are not worth a table."""
    many_pairs: float = 4096.0
    """Pairs for which a table that takes long to build is worth looking for."""
    pairs_at_once: int = 4096
    """Pairs evaluated entry by entry at once: series of 2048 terms for each are 64 megabytes."""
    open_entries: int = 1 << 18
    """Entries that wait until they are evaluated one by one."""
    held_numbers: int = 1 << 22
    """Numbers in the norm factors of rows that are stored: 32 megabytes."""
    short_row: float = 1e-6
    """Rows shorter than this share of the longest one are evaluated one by one: they are not worth a wider table."""


LIMITS = Limits()
