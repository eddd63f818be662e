"""Learning curves beyond the data: error a + b n^(-c) with a, b >= 0, and every curve that the points allow."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from ..spectra.population import Array

__all__ = ["PowerLaw", "fit_power_law"]

_EXPONENTS = np.linspace(0.02, 1.5, 75)
_FLOORS = np.linspace(0.0, 1.0, 41)
_ALLOWED = 4.0  # chi^2 above the best fit: two standard errors in one direction


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """Curves a + b n^(-c) compatible with the measured errors; the first is the best."""

    curves: Array
    """(M, 3): a, b, c."""

    def at(self, sizes: Array) -> tuple[Array, Array, Array]:
        """Best value, lowest and highest of the compatible curves, each (N,)."""
        a, b, c = self.curves.T[..., None]
        values = a + b * np.asarray(sizes, dtype=np.float64) ** -c
        return values[0], values.min(0), values.max(0)


def fit_power_law(sizes: Array, errors: Array, spreads: Array) -> PowerLaw:
    """Weighted least squares for every exponent, and for floors between zero and the best one's.

    >>> law = fit_power_law(np.array([100.0, 200.0, 400.0]), np.array([0.3, 0.2, 0.15]), np.full(3, 0.01))
    >>> [round(float(v[0]), 3) for v in law.at([400.0])]
    [0.15, 0.132, 0.169]
    """
    weights = 1.0 / np.maximum(spreads, 1e-9 * errors.max() + 1e-300)
    rows, misfits = [], []
    for c in _EXPONENTS:
        falling = sizes**-c
        (free, _), _ = nnls(np.stack([np.ones_like(falling), falling], 1) * weights[:, None], errors * weights)
        top = float(errors.min())
        for floor in (free, *(top * _FLOORS)):
            b = max(float((weights**2 * falling) @ (errors - floor) / ((weights * falling) ** 2).sum()), 0.0)
            rows.append((floor, b, c))
            misfits.append(float((((floor + b * falling - errors) * weights) ** 2).sum()))
    order = np.argsort(misfits, kind="stable")
    kept = [k for k in order if misfits[k] <= misfits[order[0]] + _ALLOWED]
    return PowerLaw(np.array([rows[k] for k in kept]))
