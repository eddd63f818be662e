"""The tuning numbers of this room."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Numbers that decide how estimators choose what the user leaves open."""

    calibration_rows: int = 1000  # that get leave-one-out predictions in every fit: a temperature is one number
    survey_rows: int = 300  # on which all kernels are compared: an eigendecomposition takes 10 ms
    selection_rows: tuple[int, int] = (600, 1000)  # on which the best are: a quarter of the rows, but within this range
    finalists: int = 2  # that are compared on these
    ridge_power: float = 0.6  # the best ridge falls as this power of the number of rows (measured on images and tables)
    corrections: tuple[float, ...] = (0.25, 0.06)  # of the ridge, tried on all rows where the sample was a small part
    least_rows: int = 30  # for features to be looked for
    folds: int = 3  # of the sample on which learned features are judged
    rounds: int = 8  # of learning at most
    least_gain: float = 0.02  # by which a round must lower the error; after two that do not, no more follow
    feature_ridge: float = 0.01  # at most, of the machines whose gradients are taken
    feature_rows: int = 3000  # from which features are learned
    gradient_rows: tuple[int, int] = (200, 500)  # that represent all in the mean of outer products: of folds, at last
    gradient_outputs: int = 32  # directions of many outputs
    gradient_block: int = 512  # rows whose slopes are in memory at a time
    norm_margin: float = 1.1  # features cover norms of new rows that leave the range of the first ones by this factor


LIMITS = Limits()
