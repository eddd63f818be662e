"""How well a network will learn a mixture, before anything is trained (theory section 15)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from .._arguments import checked
from .._arrays import as_numbers
from .._words import Curve, as_html
from ..errors import ConcentrationWarning, InvalidInputError, warn
from ..matching import Twin
from ..mixtures import GaussianMixture, MixtureStatistics
from ..networks import Kernel, Network
from ..spectra.population import Array
from ..spectra.products import Concentration
from ..spectra.sources import source_of
from .features import LIMITS, check_twin, limit_problem, linear_problem
from .schedules import confusions, flow_scores, ridge_scores


@dataclass(frozen=True, eq=False, repr=False)
class LearningPrediction:
    """Predicted results of a network of infinite width on new points, at one ridge or time or at several.

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
    """Mean squared error on new points, mean over outputs; with its order 1/p, unlike means and covariances."""
    training_error: Any
    """Mean squared error on the training points, mean over outputs; with its order 1/p."""
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

    def _repr_html_(self) -> str:
        names = ("ridge" if self.times is None else "times", "accuracy", "mse", "training_error")
        rows = [("network", repr(self.network)), ("n", self.n), ("p", self.p)]
        return as_html(f"LearningPrediction, {self.kernel}", [*rows, *((m, _short(getattr(self, m))) for m in names)])


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
    refined: bool = True,
) -> LearningPrediction:
    """Predict accuracy, error and scores of kernel regression on n points of a mixture, without drawing a point.

    A ``ConcentrationWarning`` is issued if the effective rank of the mixture is too low for the theory, or if training
    is so close to interpolation that the expansion of the error in 1/p does not converge.

    Parameters
    ----------
    network : DEQ, ENN or Twin
        The network as it is given, centred or not; a twin is trained by its own rule (``twin.trains``).
    mixture : GaussianMixture or MixtureStatistics
        Source of the points; the rows of statistics give means and covariances.
    n : int, optional
        Number of training points, in classes as the mixture weighs them; that of the statistics unless given.
    kernel : "ntk", "ntk_frozen" or "ck"
        What trains: all weights, all but the input weights, or the readout alone. A twin has one of its own.
    ridge : float or array of shape (N,), optional
        Relative to the mean diagonal of the kernel; 1e-3 if ``times`` is not given either.
    times : float or array of shape (N,), optional
        Train by gradient flow from zero instead, d f/dt = -K (f - y), up to these times.
    targets : array of shape (K, outputs), optional
        The targets of each class; by default +1 for the class of a point and -1 for the others. A new point is assigned
        to the class whose target is nearest to its scores.
    refined : bool
        ``True`` expands the kernel for every pair of classes, as it is at finite p. ``False`` is the limit of theory
        section 15, of the centred network.

    Returns
    -------
    LearningPrediction
        With ``.accuracy``, ``.mse``, ``.means`` and ``.covariances`` of the scores.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(400, mu=2.0, cov=4.0)
    >>> prediction = predict_learning(nsd.DEQ("relu", sigma_a2=0.2), mix, n=800, ridge=1e-2)
    >>> round(prediction.accuracy, 2)
    0.86
    """
    net, trained, rates = _training(network, kernel)
    source = source_of(mixture, n)
    wanted = _targets(targets, len(source.counts))
    if not refined and isinstance(network, Twin):
        raise InvalidInputError("refined=False is the limit of a network; give twin.network, or refined=True")
    problem = linear_problem(net, source, trained, rates) if refined else limit_problem(net, source, trained)
    points, scalar, flow = _schedule(ridge, times)
    test = problem.concentration(1.0 / points.max() if flow else problem.diagonal * points.min())
    test.report(_DOUBTFUL)
    train, unit = (flow_scores, 1.0) if flow else (ridge_scores, problem.diagonal)
    scores = train(problem, points * unit, wanted)
    _report_interpolation(float(scores.doubt.max()), source.p)
    shares = mixture.weights if isinstance(mixture, GaussianMixture) else source.shares
    pairs = [confusions(m[None], v[None], wanted) for m, v in zip(scores.means, scores.covariances, strict=True)]
    confusion = np.concatenate([chances for chances, _ in pairs])
    squares = ((scores.means - wanted) ** 2 + np.einsum("nboo->nbo", scores.covariances)).mean(-1)
    squares = squares * scores.finite if refined else squares
    training = scores.training_error * (scores.finite_training if refined else 1.0)
    shown = _unwrapped if scalar else np.asarray
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
        training_error=shown(training),
        quadrature_error=max(error for _, error in pairs),
        concentration=test,
    )


_DOUBTFUL = (
    "Errors may be off by several percent and accuracies by points; use estimate_learning on data instead, or a larger "
    "ridge"
)


def _report_interpolation(doubt: float, p: int) -> None:
    """Warn where the next order of the error, after that of 1/p, may be large."""
    if doubt > LIMITS.doubt:
        warn(
            f"training nearly interpolates: at p = {p} the squared error may be off by about {doubt:.1%}, and more in "
            "single data sets; use a larger ridge, or estimate_learning on data",
            ConcentrationWarning,
        )


# ---- what was asked -------------------------------------------------------------------------------------------


def _training(given: Network | Twin, kernel: Kernel) -> tuple[Network, Kernel, tuple[float, ...] | None]:
    """Return the network, the kernel that its training has, and the learning rates of a twin."""
    if not isinstance(given, Twin):
        return given, kernel, None
    check_twin(given, kernel)
    return (given.network, "ck", None) if given.trains == "readout" else (given.network, kernel, given.learning_rates)


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
    """Return the points, whether one number was given, and whether they are times."""
    if ridge is not None and times is not None:
        raise InvalidInputError("give ridge= for ridge regression or times= for gradient flow, not both")
    flow = times is not None
    name, given = ("times", times) if flow else ("ridge", 1e-3 if ridge is None else ridge)
    points: Array = as_numbers(given, name).detach().cpu().numpy().astype(np.float64)
    if points.ndim > 1 or points.size == 0 or not np.isfinite(points).all() or (points < 0).any():
        raise InvalidInputError(f"{name} must be one or more finite numbers, none negative, got {given!r}")
    if flow and (points == 0).any():
        raise InvalidInputError("times must be positive: at time zero every score is zero")
    return points.reshape(-1), points.ndim == 0, flow


def _unwrapped(values: Array) -> Any:
    return float(values[0]) if values.ndim == 1 else values[0]


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else f"[{value[0]:.4g} ... {value[-1]:.4g}]"


# ---- curves over the number of points, the ridge or the time, for several networks ----------------------------

Axis = Literal["n", "ridge", "times"]


@dataclass(frozen=True, eq=False, repr=False)
class LearningCurve(Curve):
    """Predicted curves of M networks, (M, N), at N points in increasing order."""

    axis: Axis
    points: Array
    names: tuple[str, ...]
    accuracy: Array
    mse: Array
    training_error: Array
    kernel: Kernel

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers, for JSON."""
        networks = {
            name: {field: getattr(self, field)[m].tolist() for field in _FIELDS} for m, name in enumerate(self.names)
        }
        return {"kernel": self.kernel, "axis": self.axis, "points": self.points.tolist(), "networks": networks}

    def _table(self) -> tuple[str, list[tuple[str, ...]]]:
        columns = zip(self.points, self.accuracy.T, self.mse.T, strict=True)
        rows = [(f"{x:.5g}", *(f"{100 * a:.2f} {e:9.4f}" for a, e in zip(*pair, strict=True))) for x, *pair in columns]
        return f"predicted from the {self.kernel}: accuracy in %, mean squared error", [(self.axis, *self.names), *rows]

    def __repr__(self) -> str:
        return f"LearningCurve({self.kernel} over {self.axis}, {len(self.points)} points, {', '.join(self.names)})"


_FIELDS = ("accuracy", "mse", "training_error")


@checked
def learning_curve(
    networks: Network | Twin | Mapping[str, Network | Twin],
    mixture: GaussianMixture,
    n: Any,
    kernel: Kernel = "ntk",
    *,
    ridge: Any = None,
    times: Any = None,
    targets: Any = None,
) -> LearningCurve:
    """Predict accuracy and error against whichever of ``n``, ``ridge`` and ``times`` is an array.

    Parameters
    ----------
    networks : DEQ, ENN, Twin, or a mapping of names to them
        One network, or several: ``{"DEQ": deq, "twin": twin, "plain": twin.plain}``.
    mixture : GaussianMixture
        Source of the points.
    n : int or array of shape (N,)
        Number of training points.
    kernel : "ntk", "ntk_frozen" or "ck"
        What trains.
    ridge, times, targets : optional
        As in :func:`predict_learning`.

    Returns
    -------
    LearningCurve

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(400, mu=2.0, cov=4.0)
    >>> curve = learning_curve({"relu": nsd.DEQ("relu", 0.2), "tanh": nsd.DEQ("tanh", 0.2)}, mix, [200, 800, 3200])
    >>> curve.accuracy.round(2).tolist()
    [[0.81, 0.86, 0.89], [0.78, 0.83, 0.89]]
    """
    if not isinstance(networks, Mapping):
        networks = {"twin" if isinstance(networks, Twin) else networks.title: networks}
    if not networks:
        raise InvalidInputError("a learning curve needs at least one network")
    axis, points = _axis(n, ridge, times)
    # ridges and times are solved together, numbers of points one by one
    runs: list[dict[str, Any]] = [{"n": int(k)} for k in points] if axis == "n" else [{axis: points}]
    given = {"n": n, "ridge": ridge, "times": times, "targets": targets, "kernel": kernel}
    predictions = [[predict_learning(g, mixture, **(given | run)) for run in runs] for g in networks.values()]
    rows = {field: np.array([np.hstack([getattr(q, field) for q in row]) for row in predictions]) for field in _FIELDS}
    return LearningCurve(axis, points, tuple(networks), kernel=kernel, **rows)


def _axis(n: Any, ridge: Any, times: Any) -> tuple[Axis, Array]:
    asked: dict[Axis, Any] = {"n": n, "ridge": ridge, "times": times}
    given = {name: as_numbers(value, name) for name, value in asked.items() if value is not None}
    arrays = [name for name, value in given.items() if value.ndim == 1]
    if len(arrays) != 1:
        raise InvalidInputError(
            f"a curve runs over exactly one of n, ridge and times: give one array, got {len(arrays)}"
        )
    points: Array = np.unique(given[arrays[0]].detach().cpu().numpy().astype(np.float64))
    if not len(points):
        raise InvalidInputError(f"a curve needs points: {arrays[0]} is empty")
    if arrays[0] == "n" and not ((points >= 1) & (points < 2**63) & (points == np.round(points))).all():
        raise InvalidInputError(f"n must be whole positive numbers, got {n!r}")
    return arrays[0], points
