"""How many fresh rows lie outside the range of norms read off a sample, without and with the margin of ``norm_range``.

    NOTSODEEP_DATA=FOLDER python -m benchmarks.norm_range

Means over 100 random samples of the training rows, of fresh rows per 10,000.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

import notsodeep as nsd
from notsodeep.errors import DataError
from studies._data import load

from .kernels import show


def data() -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """The name, the norms of the training rows and those of fresh rows."""
    rng = np.random.default_rng(0)
    for name in ("digits", "mnist", "fashion_mnist"):
        try:
            found = load(name)
        except DataError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            continue
        for kind, each in (("raw", found), ("standardised", found.standardised())):
            yield (
                f"{name}, {kind}",
                *(np.linalg.norm(rows.astype(float), axis=1) for rows in (each.X_train, each.X_test)),
            )
    for features in (10, 784):
        yield (
            f"Gaussian, {features} features",
            *(np.linalg.norm(rng.standard_normal((10_000, features)), axis=1) for _ in range(2)),
        )
    yield "Student's t, 5 degrees", *(np.linalg.norm(rng.standard_t(5, (10_000, 10)), axis=1) for _ in range(2))


def outside(known: np.ndarray, fresh: np.ndarray, size: int, seed: int) -> tuple[float, float]:
    """Fresh rows per 10,000 outside the extremes of a sample, and outside its range with the margin."""
    some = np.random.default_rng(seed).choice(known, size, replace=False)
    ends = (some.min(), some.max()), nsd.matching.norm_range(some[:, None])
    without, margin = (1e4 * float(np.mean((fresh < low) | (fresh > high))) for low, high in ends)
    return without, margin


if __name__ == "__main__":
    rows = []
    for name, known, fresh in data():
        for size in (100, 300):
            found = np.array([outside(known, fresh, size, seed) for seed in range(100)])
            (without, margin), (worst, worst_margin) = found.mean(0), found.max(0)
            worsts = {"worst_without": worst, "worst_with": worst_margin}
            rows.append({"data": name, "rows": size, "without": without, "with": margin, **worsts})
    show("fresh rows outside the range, per 10,000", rows)
