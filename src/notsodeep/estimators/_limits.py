"""The tuning numbers of this room."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Numbers that decide how estimators choose what the user leaves open."""

    calibration_rows: int = 1000  # that get leave-one-out predictions in every fit: a temperature is one number
    selection_rows: int = 1000  # on which variances and ridge are chosen: an eigendecomposition takes 0.2 s
    norm_margin: float = 1.1  # features cover norms of new rows that leave the range of the first ones by this factor


LIMITS = Limits()
