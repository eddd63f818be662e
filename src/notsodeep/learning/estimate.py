"""Learning curves of real data: exact leave-one-out on subsets, and what they say about larger ones.

The prediction of a row by all others has the closed form y_i - alpha_i/((K + gamma)^(-1))_ii (theory section 15), so a
subset of n points gives n tests of training on n - 1 points without a refit and without a test set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, not_negative
from .._arrays import as_floats, as_labels
from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..matching import Twin
from ..networks import Kernel, Network
from ..solve import factorise
from ..solve.dense import leave_one_out
from ..spectra.population import Array
from .curve import fit_power_law

_SMALLEST = 16
_DRAWS = 8


@dataclass(frozen=True)
class HeldOut:
    """What the smaller subsets said about the largest before it was looked at."""

    n: int
    accuracy: float
    low: float
    high: float
    measured: float

    @property
    def inside(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, eq=False, repr=False)
class LearningEstimate:
    """Measured points, and their continuation."""

    sizes: Array
    """Training points, (N,)."""
    accuracy: Array
    """Leave-one-out, (N,)."""
    accuracy_error: Array
    """Standard error, (N,)."""
    mse: Array
    mse_error: Array
    held_out: HeldOut
    """The check of the interval on the largest subset."""
    stretch: float
    """How much wider than the compatible curves the interval is, after the check."""

    def predict(self, n: Any) -> tuple[Array, Array, Array]:
        """Accuracy at n training points, and the ends of its interval.

        The interval holds every curve a + b n^(-c) that the measured points allow within two standard errors, widened
        by as much as the largest subset needed when it was held out.
        """
        listed = n if isinstance(n, Iterable) and getattr(n, "ndim", 1) == 1 else [n]
        sizes: Array = np.array(as_floats(listed, "n"))
        best, low, high = fit_power_law(self.sizes, 1.0 - self.accuracy, self.accuracy_error).at(sizes)
        return _widened(1.0 - best, 1.0 - high, 1.0 - low, self.stretch)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, for JSON."""
        arrays = ("sizes", "accuracy", "accuracy_error", "mse", "mse_error")
        held = {**asdict(self.held_out), "inside": self.held_out.inside}
        return {name: getattr(self, name).tolist() for name in arrays} | {"held_out": held, "stretch": self.stretch}

    def __str__(self) -> str:
        rows = ["leave-one-out: training points, accuracy in %, mean squared error"]
        for k, n in enumerate(self.sizes):
            accuracy = f"{100 * self.accuracy[k]:7.2f} ± {100 * self.accuracy_error[k]:.2f}"
            rows.append(f"{n:10.0f} {accuracy}   {self.mse[k]:.4f} ± {self.mse_error[k]:.4f}")
        h = self.held_out
        rows.append(
            f"held out: at {h.n} the others said {100 * h.accuracy:.2f} ({100 * h.low:.2f} to {100 * h.high:.2f}) %, "
            f"measured {100 * h.measured:.2f} %"
        )
        return "\n".join(rows)


@checked
def estimate_learning(
    network: Network | Twin,
    X: Any,
    y: Any,
    kernel: Kernel = "ntk",
    *,
    ridge: float = 1e-3,
    sizes: Any = None,
    seed: int = 0,
) -> LearningEstimate:
    """The learning curve of kernel regression on data, from the data alone.

    Parameters
    ----------
    network : DEQ, ENN or Twin, as it is given
    X, y : rows and labels (any names); targets are +1 for the class of a row and -1 for the others
    ridge : relative to the mean diagonal of the kernel
    sizes : sizes of the subsets, at least four; by default six from an eighth of the data to all of it
    seed : of the subsets

    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(100, mu=4.0)
    >>> X, y = mix.sample(300, seed=0)
    >>> found = estimate_learning(nsd.DEQ("relu", sigma_a2=0.2), X, y, ridge=0.1)
    >>> found.sizes.tolist()
    [37.0, 56.0, 85.0, 130.0, 197.0, 299.0]
    """
    net, rates = (network.network, network.learning_rates) if isinstance(network, Twin) else (network, None)
    if not_negative("ridge", ridge) == 0.0:
        raise InvalidInputError("ridge must be positive, got 0")
    K = torch.as_tensor(kernels_of(net, X, kernels=(kernel,), learning_rates=rates)[kernel]).to(torch.float64)
    labels = np.unique(as_labels(y, len(K)), return_inverse=True)[1]
    if labels.max(initial=0) < 1:
        raise InvalidInputError("y must hold labels of at least two classes, got one")
    wanted = _sizes(sizes, len(K))
    points = np.array([_subsets(K, labels, n, ridge, seed) for n in wanted])
    return _finished(np.array(wanted) - 1.0, points)


def _finished(sizes: Array, points: Array) -> LearningEstimate:
    accuracy, accuracy_error, mse, mse_error = points.T
    before = fit_power_law(sizes[:-1], 1.0 - accuracy[:-1], accuracy_error[:-1]).at(sizes[-1:])
    best, high, low = (1.0 - float(part[0]) for part in before)
    measured, error = float(accuracy[-1]), 2.0 * float(accuracy_error[-1])
    reach = high - best if measured > best else best - low
    # what the interval, with two standard errors of the measurement itself, would have had to be wider
    stretch = max(1.0, (abs(measured - best) - error) / max(reach, 1e-12)) if abs(measured - best) > error else 1.0
    held = HeldOut(round(float(sizes[-1])), best, low - error, high + error, measured)
    return LearningEstimate(sizes, accuracy, accuracy_error, mse, mse_error, held, stretch)


def _widened(best: Array, low: Array, high: Array, stretch: float) -> tuple[Array, Array, Array]:
    return best, np.maximum(best - stretch * (best - low), 0.0), np.minimum(best + stretch * (high - best), 1.0)


def _sizes(given: Any, n: int) -> list[int]:
    if given is None:
        if n < 8 * _SMALLEST:
            raise InvalidInputError(f"a learning curve needs at least {8 * _SMALLEST} rows, got {n}")
        return [round(v) for v in np.geomspace(n / 8, n, 6)]
    sizes = sorted({int(v) for v in as_floats(given, "sizes")})
    if len(sizes) < 4 or sizes[0] < _SMALLEST or sizes[-1] > n:
        raise InvalidInputError(
            f"sizes must be at least four different ones from {_SMALLEST} to n = {n}, got {given!r}"
        )
    return sizes


def _subsets(K: Tensor, labels: Array, n: int, ridge: float, seed: int) -> tuple[float, float, float, float]:
    """Mean and standard error of accuracy and squared error over subsets of n rows."""
    generator = np.random.default_rng([seed % 2**64, n])
    draws = min(_DRAWS, max(1, len(K) // n))
    order = generator.permutation(len(K))  # disjoint parts: their rows are independent
    parts = [_left_out(K, labels, order[k * n : (k + 1) * n], ridge) for k in range(draws)]
    hits, squares = (np.concatenate([part[k] for part in parts]) for k in (0, 1))
    count = math.sqrt(len(hits))
    # a share of 0 or 1 still has the spread of one point more or less
    share = (hits.sum() + 1.0) / (len(hits) + 2.0)
    return (
        float(hits.mean()),
        math.sqrt(share * (1 - share)) / count,
        float(squares.mean()),
        float(squares.std() / count),
    )


def _left_out(K: Tensor, labels: Array, rows: Array, ridge: float) -> tuple[Array, Array]:
    """Whether each row gets its class from the others, and its squared error."""
    index = torch.from_numpy(rows)
    part = K[index][:, index]
    targets = 2.0 * torch.eye(int(labels.max()) + 1, dtype=torch.float64)[torch.from_numpy(labels[rows])] - 1.0
    factor = factorise(part, ridge * float(part.diagonal().mean()))
    scores = leave_one_out(targets, factor.solve(targets), factor.inverse().diagonal())
    hits = (scores.argmax(1).numpy() == labels[rows]).astype(np.float64)
    return hits, ((scores - targets) ** 2).mean(1).numpy()
