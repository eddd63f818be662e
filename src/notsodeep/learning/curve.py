"""Learning curves before training: accuracy and error against n, ridge or time, for several networks side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.optimize import nnls

from .._arguments import checked
from .._arrays import as_numbers
from ..errors import InvalidInputError
from ..matching import Twin
from ..mixtures import GaussianMixture
from ..networks import Kernel, Network
from ..spectra.population import Array
from .features import Check
from .predict import LearningPrediction, predict_learning

Axis = Literal["n", "ridge", "times"]
Networks = Network | Twin | Mapping[str, Network | Twin]


@dataclass(frozen=True)
class Best:
    """The best point of a curve."""

    point: float
    """The number of samples, the ridge or the stopping time."""
    accuracy: float
    mse: float


@dataclass(frozen=True, eq=False, repr=False)
class LearningCurve:
    """Predicted curves of M networks at N points."""

    axis: Axis
    points: Array
    """(N,), in increasing order."""
    names: tuple[str, ...]
    accuracy: Array
    """(M, N)"""
    mse: Array
    """(M, N)"""
    training_error: Array
    """(M, N)"""
    kernel: Kernel

    @checked
    def best(self, by: Literal["accuracy", "mse"] = "accuracy") -> dict[str, Best]:
        """The point of highest accuracy, or lowest error, of each network: the best ridge, the best stopping time."""
        where = self.accuracy.argmax(1) if by == "accuracy" else self.mse.argmin(1)
        return {
            name: Best(float(self.points[k]), float(self.accuracy[m, k]), float(self.mse[m, k]))
            for m, (name, k) in enumerate(zip(self.names, where, strict=True))
        }

    @checked
    def samples_needed(self, accuracy: float) -> dict[str, int | None]:
        """The fewest samples with this accuracy, by interpolation in log n; None if the curve does not reach it."""
        if self.axis != "n":
            raise InvalidInputError(f"samples are counted on a curve over n, this one runs over {self.axis}")
        if not 0.0 < accuracy < 1.0:
            raise InvalidInputError(f"accuracy is a share between 0 and 1, got {accuracy!r}")
        return {name: self._first(row, accuracy) for name, row in zip(self.names, self.accuracy, strict=True)}

    def _first(self, row: Array, accuracy: float) -> int | None:
        reached = np.flatnonzero(row >= accuracy)
        if not len(reached):
            return None
        k = int(reached[0])
        if k == 0:
            return int(self.points[0])
        part = (accuracy - row[k - 1]) / (row[k] - row[k - 1])
        low, high = np.log(self.points[k - 1 : k + 1])
        return int(np.ceil(np.exp(low + part * (high - low))))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        rows = {
            name: {
                "accuracy": self.accuracy[m].tolist(),
                "mse": self.mse[m].tolist(),
                "training_error": self.training_error[m].tolist(),
            }
            for m, name in enumerate(self.names)
        }
        return {"kernel": self.kernel, "axis": self.axis, "points": self.points.tolist(), "networks": rows}

    def __str__(self) -> str:
        head = f"{self.axis:>12}" + "".join(f"{name:>24}" for name in self.names)
        rows = [f"predicted from the {self.kernel}: accuracy in %, mean squared error", head]
        for k, point in enumerate(self.points):
            cells = [f"{100 * a:14.2f} {e:9.4f}" for a, e in zip(self.accuracy[:, k], self.mse[:, k], strict=True)]
            rows.append(f"{point:12.5g}" + "".join(cells))
        return "\n".join(rows)

    def __repr__(self) -> str:
        return f"LearningCurve({self.kernel} over {self.axis}, {len(self.points)} points, {', '.join(self.names)})"


@checked
def learning_curve(
    networks: Networks,
    mixture: GaussianMixture,
    n: Any,
    kernel: Kernel = "ntk",
    *,
    ridge: Any = None,
    times: Any = None,
    targets: Any = None,
    check: Check = "warn",
) -> LearningCurve:
    """Predicted accuracy and error against whichever of ``n``, ``ridge`` and ``times`` is an array.

    Parameters
    ----------
    networks : one network or twin, or several by name: ``{"DEQ": deq, "twin": twin, "plain": twin.plain}``
    n : number of training points, or an array of them
    ridge, times, targets, check : as in :func:`predict_learning`

    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(400, mu=2.0, cov=4.0)
    >>> curve = learning_curve({"relu": nsd.DEQ("relu", 0.2), "tanh": nsd.DEQ("tanh", 0.2)}, mix, [200, 800, 3200])
    >>> curve.accuracy.round(2).tolist()
    [[0.81, 0.86, 0.89], [0.78, 0.83, 0.89]]
    >>> curve.samples_needed(0.85)
    {'relu': 669, 'tanh': 1283}
    """
    named = networks if isinstance(networks, Mapping) else {_name(networks): networks}
    if not named:
        raise InvalidInputError("a learning curve needs at least one network")
    axis, points = _axis(n, ridge, times)
    rows = [_row(g, mixture, n, kernel, axis, points, (ridge, times, targets, check)) for g in named.values()]
    accuracy, mse, training_error = (np.stack([getattr(row, name) for row in rows]) for name in _FIELDS)
    return LearningCurve(axis, points, tuple(named), accuracy, mse, training_error, kernel)


_FIELDS = ("accuracy", "mse", "training_error")


@dataclass(frozen=True)
class _Row:
    accuracy: Array
    mse: Array
    training_error: Array


def _row(
    network: Network | Twin,
    mixture: GaussianMixture,
    n: Any,
    kernel: Kernel,
    axis: Axis,
    points: Array,
    options: tuple[Any, Any, Any, Check],
) -> LearningPrediction | _Row:
    """One network along the axis."""
    ridge, times, targets, check = options
    if axis != "n":
        ridge, times = (points, times) if axis == "ridge" else (ridge, points)
        return predict_learning(network, mixture, n, kernel, ridge=ridge, times=times, targets=targets, check=check)
    found = [
        predict_learning(network, mixture, int(k), kernel, ridge=ridge, times=times, targets=targets, check=check)
        for k in points
    ]
    return _Row(*(np.array([getattr(f, name) for f in found]) for name in _FIELDS))


def _name(network: Network | Twin) -> str:
    return "twin" if isinstance(network, Twin) else repr(network)


def _axis(n: Any, ridge: Any, times: Any) -> tuple[Axis, Array]:
    asked: dict[Axis, Any] = {"n": n, "ridge": ridge, "times": times}
    given = {name: as_numbers(value, name) for name, value in asked.items() if value is not None}
    arrays = [name for name, value in given.items() if value.ndim == 1]
    if len(arrays) != 1:
        raise InvalidInputError(
            f"a curve runs over exactly one of n, ridge and times: give one array, got {len(arrays)}"
        )
    points: Array = np.unique(given[arrays[0]].detach().cpu().numpy().astype(np.float64))
    if arrays[0] == "n" and ((points < 1) | (points != np.round(points))).any():
        raise InvalidInputError(f"n must be whole positive numbers, got {n!r}")
    return arrays[0], points


# ---- beyond the data -----------------------------------------------------------------------------------


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
