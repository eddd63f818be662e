"""Learning curves of real data: kernel regression on subsets, scored on all rows, and what follows for larger sets.

The prediction of a row by all others has the closed form y_i - alpha_i/((K + gamma)^(-1))_ii (theory section 15). So
every subset is scored on all rows, those inside it by leave-one-out and those outside it as held out: all sizes share
the chance of the rows, and the slope of the curve does not suffer from it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, not_negative
from .._arrays import as_floats, as_labels
from .._words import Curve
from ..errors import ConcentrationWarning, InvalidInputError, warn
from ..kernels import kernels_of
from ..matching import Twin
from ..networks import Kernel, Network
from ..solve.dense import factorise, leave_one_out
from ..spectra.population import Array
from .features import LIMITS, check_twin

Quantity = Literal["accuracy", "mse"]


@dataclass(frozen=True, eq=False)
class PowerLaw:
    """A power law through the last five points of a curve, bent by a quarter of what a parabola says.

    Errors of kernel machines fall like power laws whose exponents change slowly: beyond the data the exponent has a
    standard deviation of its own (docs/learning.md says how often the intervals hold).
    """

    logs: Array  # Logarithms of the sizes, (5,)
    values: Array  # Logarithms of the errors, (5,)
    covariance: Array  # Covariance of the values by the chance of the rows, (5, 5)
    seen: bool  # Whether there was an error at the largest size
    nearness: Array  # Of a peak by size, (5,)

    @staticmethod
    def fit(sizes: Array, errors: Array, nearness: Array) -> PowerLaw:
        """Take the last five sizes, (N,), with the error of every row at each of them, (N, rows)."""
        few, rows = LIMITS.last, errors.shape[1]
        last = errors[-few:]
        sums = last.sum(1)
        means = np.maximum(sums, 0.5) / rows  # no errors at all: half a row
        none = np.where(sums > 0.0, 0.0, 1.0)
        chance = np.cov(last / means[:, None]) / rows + np.outer(none, none)
        return PowerLaw(np.log(sizes[-few:]), np.log(means), chance, bool(sums[-1] > 0.0), nearness[-few:])

    def at(self, sizes: Array) -> tuple[Array, Array, Array]:
        """Return the errors at these sizes (M,), and both ends of their intervals of 95 %."""
        x = np.log(sizes)
        line, parabola = (self._weights(x, degree) for degree in (1, 2))
        bend = (parabola - line) / 4.0
        weights = line + bend
        beyond = np.maximum(x - self.logs[-1], 0.0)
        chance = np.einsum("mk,kl,ml->m", weights, self.covariance, weights)
        peak = self._beside_a_peak(line)
        width = 1.96 * np.sqrt(chance + (bend @ self.values) ** 2 + (LIMITS.drift * beyond) ** 2 + peak**2)
        best = weights @ self.values
        return np.exp(best), np.exp(best - width) * self.seen, np.exp(best + width)

    def _beside_a_peak(self, line: Array) -> Array:
        """Return how far logarithms of errors, which grow like 1/(1 - rho), may leave the line by a peak, (M,).

        The nearness rho of a peak is continued as a power of n, and log(1 - rho) as a line: without a peak both agree.
        """
        amplified = -np.log1p(-np.minimum(self.nearness, 1.0 - 1e-12))
        ahead = np.exp(line @ np.log(self.nearness))
        within = amplified - self._weights(self.logs, 1) @ amplified
        beyond = -np.log1p(-np.minimum(ahead, 1.0 - 1e-12)) - line @ amplified
        return np.where(ahead < LIMITS.peak, np.hypot(beyond, np.sqrt((within**2).mean())), np.inf)

    def _weights(self, x: Array, degree: int) -> Array:
        """Return what each value counts in the least-squares polynomial at x, (M, 5)."""
        centre = self.logs.mean()
        powers = np.vander(self.logs - centre, degree + 1)
        return np.asarray(np.vander(x - centre, degree + 1) @ np.linalg.pinv(powers))


@dataclass(frozen=True, eq=False, repr=False)
class LearningEstimate(Curve):
    """A learning curve measured on subsets of data, and its continuation."""

    sizes: Array
    """Training points, (N,)."""
    accuracy: Array
    """Share of all rows that get their class, (N,)."""
    accuracy_error: Array
    """Standard error by the chance of the rows, (N,)."""
    mse: Array
    """Mean squared error, mean over outputs, (N,)."""
    mse_error: Array
    nearness: Array
    """Nearness of a double-descent peak, (N,): the largest eigenvalue of Omega (docs/theory.md, 15), 1 at a peak."""
    _laws: dict[str, PowerLaw]

    @checked
    def predict(self, n: Any, quantity: Quantity = "accuracy") -> tuple[Array, Array, Array]:
        """Extrapolate the curve to n training points (one or several): values and ends of 95 % intervals.

        Beyond a double-descent peak nothing is known: the interval contains everything, and a ``ConcentrationWarning``
        is issued.
        """
        listed = n if isinstance(n, Iterable) and getattr(n, "ndim", 1) == 1 else [n]
        best, low, high = self._laws[quantity].at(np.array(as_floats(listed, "n")))
        if np.isinf(high).any():
            warn(
                f"training nearly interpolates (nearness of a peak {self.nearness[-1]:.2f} and growing): there is a "
                "double-descent peak before these numbers of points, beyond which this curve says nothing; use a "
                "larger ridge",
                ConcentrationWarning,
            )
        if quantity == "mse":
            return best, low, high
        best = np.minimum(best, 1.0)
        return 1.0 - best, 1.0 - np.minimum(high, 1.0), 1.0 - np.minimum(low, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, for JSON."""
        arrays = ("sizes", "accuracy", "accuracy_error", "mse", "mse_error")
        return {name: getattr(self, name).tolist() for name in arrays}

    def _table(self) -> tuple[str, list[tuple[str, ...]]]:
        columns = zip(self.sizes, self.accuracy, self.accuracy_error, self.mse, self.mse_error, strict=True)
        rows = [(f"{n:.0f}", f"{100 * a:.2f} ± {100 * d:.2f}", f"{e:.4f} ± {s:.4f}") for n, a, d, e, s in columns]
        double = 2 * self.sizes[-1]
        value, low, high = (100 * float(number[0]) for number in self.predict(double))
        heading = f"continued to {double:.0f} points: {value:.2f} % ({low:.2f} to {high:.2f})"
        return heading, [("training points", "accuracy in %", "mean squared error"), *rows]


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
    """Measure the learning curve of kernel regression on data, and extrapolate it to more data.

    Parameters
    ----------
    network : DEQ, ENN or Twin
        The network as it is given; a twin is trained by its own rule (``twin.trains``).
    X : array of shape (n, p)
        Rows.
    y : array of shape (n,)
        Labels of any kind; targets are +1 for the class of a row and -1 for the others.
    kernel : "ntk", "ntk_frozen" or "ck"
        What trains. A twin has one of its own.
    ridge : float
        Relative to the mean diagonal of the kernel; positive.
    sizes : sequence of int, optional
        Sizes of the subsets, at least five; by default six from an eighth of the data to all of it.
    seed : int
        Seed of the subsets.

    Returns
    -------
    LearningEstimate
        With ``.sizes``, ``.accuracy``, ``.mse`` and ``.predict(n)``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> X, y = nsd.GaussianMixture.two_class(100, mu=4.0).sample(300, seed=0)
    >>> estimate = estimate_learning(nsd.DEQ("relu", sigma_a2=0.2), X, y, ridge=0.1)
    >>> estimate.sizes.tolist()
    [38.0, 57.0, 86.0, 131.0, 198.0, 300.0]
    """
    if not_negative("ridge", ridge) == 0.0:
        raise InvalidInputError("ridge must be positive, got 0")
    if isinstance(network, Twin):
        check_twin(network, kernel)
        K = network.kernel_matrix(X)
    else:
        K = kernels_of(network, X, kernels=(kernel,))[kernel]
    K = torch.as_tensor(K).to(torch.float64)
    labels = np.unique(as_labels(y, len(K)), return_inverse=True)[1]
    if labels.max(initial=0) < 1:
        raise InvalidInputError("y must hold labels of at least two classes, got one")
    wanted = np.array(_sizes(sizes, len(K)))
    scored = [_scored(K, labels, int(n), ridge, seed) for n in wanted]
    errors, squares, nearness = (np.stack(part) for part in zip(*scored, strict=True))
    laws = {"accuracy": PowerLaw.fit(wanted, errors, nearness), "mse": PowerLaw.fit(wanted, squares, nearness)}
    root = np.sqrt(len(K))
    # a share of 0 or 1 still has the spread of one point more or less
    share = (errors.sum(1) + 1.0) / (len(K) + 2.0)
    return LearningEstimate(
        wanted.astype(np.float64),
        1.0 - errors.mean(1),
        np.sqrt(share * (1.0 - share)) / root,
        squares.mean(1),
        squares.std(1) / root,
        nearness,
        laws,
    )


def _sizes(given: Any, n: int) -> list[int]:
    fewest = LIMITS.fewest
    if given is None:
        if n < 8 * fewest:
            raise InvalidInputError(f"a learning curve needs at least {8 * fewest} rows, got {n}")
        return [round(v) for v in np.geomspace(n / 8, n, 6)]
    sizes = sorted({int(v) for v in as_floats(given, "sizes")})
    if len(sizes) < LIMITS.last or sizes[0] < fewest or sizes[-1] > n:
        raise InvalidInputError(f"sizes must be at least five different ones from {fewest} to n = {n}, got {given!r}")
    return sizes


def _scored(K: Tensor, labels: Array, n: int, ridge: float, seed: int) -> tuple[Array, ...]:
    """Return the error and the squared error of every row, and the nearness of a peak, averaged over some subsets."""
    generator = np.random.default_rng([seed % 2**64, n])
    subsets = [generator.permutation(len(K))[:n] for _ in range(LIMITS.subsets if n < len(K) else 1)]
    scores = [_scores(K, labels, rows, ridge) for rows in subsets]
    return tuple(np.mean(part, axis=0) for part in zip(*scores, strict=True))


def _scores(K: Tensor, labels: Array, rows: Array, ridge: float) -> tuple[Array, Array, float]:
    """Train on a subset; score the rows inside it by leave-one-out and the others as held out.

    With u = 1/g and g the mean of the eigenvalues of P = (K + gamma)^(-1), du/d gamma is 1/(1 - rho) (theory section
    15), so rho, the nearness of a peak, is 1 - g^2 over the mean of their squares.
    """
    index = torch.from_numpy(rows).to(K.device)
    part = K[index][:, index]
    classes = torch.from_numpy(labels).to(K.device)
    targets = 2.0 * torch.nn.functional.one_hot(classes).to(K) - 1.0
    factor = factorise(part, ridge * float(part.diagonal().mean()))
    weights = factor.solve(targets[index])
    scores = K[:, index] @ weights
    inverse = factor.inverse()
    scores[index] = leave_one_out(targets[index], weights, inverse.diagonal())
    wrong = (scores.argmax(1) != classes).to(K)
    rho = 1.0 - float(inverse.trace()) ** 2 / (len(rows) * float((inverse**2).sum()))
    return wrong.cpu().numpy(), ((scores - targets) ** 2).mean(1).cpu().numpy(), max(rho, 1e-6)
