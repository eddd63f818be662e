"""The tuning numbers of this room."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Numbers that decide speed and memory, not results."""

    direct_rows: int = 10_000  # Cholesky is faster than iterating up to here (theory, section 16)
    highest_rank: int = 2000  # of the default preconditioner: a larger factor costs more than the steps it saves
    panel: int = 2048  # rows of a stored panel: its diagonal block is 2 % of the triangle of 60,000 rows
    entries: int = 1 << 24  # of a kernel block computed at once: 128 MiB in float64
    diagonal_block: int = 512  # rows of a symmetric block computed for its diagonal alone
    cache_bytes: int = 1 << 22  # of a piece that one core reads twice from its cache
    pivot_block: int = 128  # pivots proposed at once: one block of columns instead of many single ones
    assumed_memory: int = 1 << 32  # bytes, where the system does not tell: most computers have twice that
    negligible: float = 1e-10  # share of a diagonal that is rounding


LIMITS = Limits()
