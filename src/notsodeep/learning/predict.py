"""How well a network will learn a mixture, before anything is trained (theory section 15)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .._arguments import checked
from .._arrays import as_numbers
from ..errors import InvalidInputError
from ..matching import Twin
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import Kernel, Network
from ..spectra.population import Array, NonCommuting
from ..spectra.sources import Source, source_of
from .features import Check, Concentration, LinearProblem, concentration, limit_problem, linear_problem
from .schedules import Scores, confusions, flow_scores, interpolated, ridge_scores


@dataclass(frozen=True, eq=False, repr=False)
class LearningPrediction:
    """What a network of infinite width will do on new points, at one ridge or time, or at many.

    With arrays of ridges or times every field has their axis in front; with a number it has none.
    """

    network: Network
    kernel: Kernel
    n: int
    p: int
    ridge: Any
    """Relative to the mean diagonal of the kernel; None for gradient flow."""
    times: Any
    """Times of gradient flow, d f/dt = -K (f - y); None for ridge regression."""
    targets: Array
    """(K, outputs)."""
    means: Array
    """Mean score by class, (K, outputs)."""
    covariances: Array
    """Covariance of the scores by class, (K, outputs, outputs)."""
    confusion: Array
    """P(class c is chosen | class b), (K, K)."""
    accuracy: Any
    """Share of new points that get their class; classes weigh as in the mixture."""
    mse: Any
    """Mean squared error on new points, mean over outputs."""
    training_error: Any
    """Mean squared error on the training points, mean over outputs."""
    quadrature_error: float
    """Estimated error of the probabilities themselves; zero for two classes."""
    concentration: Concentration
    """Whether the data is high-dimensional enough, as a number."""

    def __repr__(self) -> str:
        rule = f"ridge={_short(self.ridge)}" if self.times is None else f"times={_short(self.times)}"
        return (
            f"LearningPrediction({self.kernel}, n={self.n}, p={self.p}, {rule}, accuracy={_short(self.accuracy)}, "
            f"mse={_short(self.mse)}, training_error={_short(self.training_error)})"
        )


@checked
def predict_learning(
    network: Network | Twin,
    mixture: GaussianMixture | MixtureStatistics,
    n: int | None = None,
    kernel: Kernel = "ntk",
    *,
    ridge: Any = None,
    times: Any = None,
    targets: Any = None,
    check: Check = "warn",
    refined: bool = True,
) -> LearningPrediction:
    """Accuracy, error and scores of kernel regression on n points of a mixture, without drawing a point.

    Parameters
    ----------
    network : DEQ, ENN or Twin, taken as it is given, centred or not; a twin brings its learning rates
    mixture : a ``GaussianMixture``, or ``MixtureStatistics``, whose rows then give means and covariances
    n : number of training points, in classes as the mixture weighs them
    kernel : "ntk" (all weights trained), "ntk_frozen" or "ck" (readout alone)
    ridge : relative to the mean diagonal of the kernel, a number or an array; 1e-3 if ``times`` is not given either
    times : train by gradient flow from zero instead, d f/dt = -K (f - y); a number or an array
    targets : (K, outputs), what a point of class a shall be given; by default +1 for its class and -1 for the others.
        A new point gets the class whose target is nearest to its scores
    check : what to do where the mixture has too low an effective rank for the theory: "warn", "raise" or "ignore"
    refined : expand the kernel for every pair of classes, as it is at finite p; False is the limit of theory section 15
        to the letter, of the centred network

    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(400, mu=2.0, cov=4.0)
    >>> found = predict_learning(nsd.DEQ("relu", sigma_a2=0.2), mix, n=800, ridge=1e-2)
    >>> round(found.accuracy, 3)
    0.857
    """
    net, rates = _network(network)
    source = source_of(mixture, n)
    classes = len(source.counts)
    wanted = _targets(targets, classes)
    problem = _problem(net, source, kernel, rates, refined)
    points, scalar, flow = _schedule(ridge, times)
    test = concentration(problem, source, 1.0 / points.max() if flow else problem.diagonal * points.min())
    test.report(check)
    scores = _scores(problem, points, wanted, flow)
    shares = mixture.weights if isinstance(mixture, GaussianMixture) else source.shares
    confusion, error = _confusion(scores, wanted)
    squares = ((scores.means - wanted) ** 2 + np.einsum("nboo->nbo", scores.covariances)).mean(-1)
    shown = _unwrapped if scalar else _same
    return LearningPrediction(
        network=net,
        kernel=kernel,
        n=source.n,
        p=source.p,
        ridge=None if flow else shown(points),
        times=shown(points) if flow else None,
        targets=wanted,
        means=shown(scores.means),
        covariances=shown(scores.covariances),
        confusion=shown(confusion),
        accuracy=shown(np.einsum("nbb,b->n", confusion, shares)),
        mse=shown(squares @ shares),
        training_error=shown(scores.training_error),
        quadrature_error=error,
        concentration=test,
    )


# ---- what was asked -------------------------------------------------------------------------------------------


def _problem(
    network: Network, source: Source, kernel: Kernel, rates: tuple[float, ...] | None, refined: bool
) -> LinearProblem:
    if refined:
        return linear_problem(network, source, kernel, rates)
    if rates is not None:
        raise InvalidInputError("refined=False knows no learning rates; give the network itself, or refined=True")
    return limit_problem(network, source, kernel)


def _network(given: Network | Twin) -> tuple[Network, tuple[float, ...] | None]:
    if isinstance(given, Twin):
        return given.network, given.learning_rates
    return given, None


def _targets(given: Any, classes: int) -> Array:
    if classes < 2:
        raise InvalidInputError("learning needs at least two classes, the mixture has one")
    if given is None:
        return 2.0 * np.eye(classes) - 1.0
    targets = as_numbers(given, "targets").detach().cpu().numpy().astype(np.float64)
    targets = targets[:, None] if targets.ndim == 1 else targets
    if targets.ndim != 2 or len(targets) != classes or not np.isfinite(targets).all():
        raise InvalidInputError(
            f"targets have one row of finite numbers for each of the {classes} classes, got shape {targets.shape}"
        )
    if len(np.unique(targets, axis=0)) < classes:
        raise InvalidInputError("two classes have the same target: no score can tell them apart")
    return targets


def _schedule(ridge: Any, times: Any) -> tuple[Array, bool, bool]:
    """The points, whether one number was given, and whether they are times."""
    if ridge is not None and times is not None:
        raise InvalidInputError("give ridge= for ridge regression or times= for gradient flow, not both")
    flow = times is not None
    name, given = ("times", times) if flow else ("ridge", 1e-3 if ridge is None else ridge)
    try:
        points = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} must be a number or an array of numbers, got {given!r}") from None
    if points.ndim > 1 or points.size == 0 or not np.isfinite(points).all() or (points < 0).any():
        raise InvalidInputError(f"{name} must be one or more finite numbers, none negative, got {given!r}")
    if flow and (points == 0).any():
        raise InvalidInputError("times must be positive: at time zero every score is zero")
    return points.reshape(-1), points.ndim == 0, flow


def _unwrapped(values: Array) -> Any:
    return float(values[0]) if values.ndim == 1 else values[0]


def _same(values: Array) -> Any:
    return values


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"[{value[0]:.4g} ... {value[-1]:.4g}]"


# ---- many points from few -------------------------------------------------------------------------------------


def _scores(problem: LinearProblem, points: Array, targets: Array, flow: bool) -> Scores:
    def rows(at: Array) -> Array:
        found = flow_scores(problem, at, targets) if flow else ridge_scores(problem, at * problem.diagonal, targets)
        return found.flat()

    return Scores.from_flat(_many(rows, points, _tolerance(problem)), *targets.shape)


def _confusion(scores: Scores, targets: Array) -> tuple[Array, float]:
    pairs = [confusions(m[None], v[None], targets) for m, v in zip(scores.means, scores.covariances, strict=True)]
    return np.concatenate([c for c, _ in pairs]), max(e for _, e in pairs)


def _tolerance(problem: LinearProblem) -> float:
    return 1e-5 if isinstance(problem.noise, NonCommuting) else 1e-9


def _many(function: Any, points: Array, tolerance: float) -> Array:
    if (points == 0).any() or len(points) < 2:
        return function(points)
    return interpolated(function, points, tolerance)
