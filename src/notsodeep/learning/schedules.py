"""Scores under a training rule: ridge regression at many ridges, gradient flow at many times."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.polynomial import chebyshev

from ..spectra.population import Array, Commuting, Dense
from .features import LinearProblem
from .flow import contour
from .resolvent import Resolvent, solve
from .scores import score_covariances, score_means

__all__ = ["Scores", "flow_scores", "interpolated", "ridge_scores"]

_CHUNK = 4_000_000  # entries of a temporary array


@dataclass(frozen=True, eq=False)
class Scores:
    """Means (N, K, outputs) and covariances (N, K, outputs, outputs) for new points, and the training error (N,)."""

    means: Array
    covariances: Array
    training_error: Array

    def flat(self) -> Array:
        """One row of numbers for every point."""
        parts = (self.means, self.covariances, self.training_error)
        return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)

    @staticmethod
    def from_flat(rows: Array, classes: int, outputs: int) -> Scores:
        """The inverse of :meth:`flat`."""
        one, two = classes * outputs, classes * outputs * (outputs + 1)
        means = rows[:, :one].reshape(-1, classes, outputs)
        return Scores(means, rows[:, one:two].reshape(-1, classes, outputs, outputs), rows[:, two])


def ridge_scores(problem: LinearProblem, ridges: Array, targets: Array) -> Scores:
    """At ridges gamma (N,), in the kernel's own unit."""
    return _in_parts(lambda part: _ridge_scores(problem, part, targets), ridges, _entries(problem))


def _ridge_scores(problem: LinearProblem, ridges: Array, targets: Array) -> Scores:
    at, every = solve(problem, problem.offsets + ridges[:, None]), np.arange(len(ridges))
    means, covariances = score_means(at, targets), score_covariances(at, every, every, targets)
    # a training residual is gamma/(d_a + delta_a) times the one of the same point left out
    squares = ((targets - means) ** 2 + np.einsum("nboo->nbo", covariances)).mean(-1)
    shares = problem.counts / problem.counts.sum()
    return Scores(means, covariances, ((ridges[:, None] * at.g) ** 2 * squares) @ shares)


def flow_scores(problem: LinearProblem, times: Array, targets: Array) -> Scores:
    """At times t (N,) of d f/dt = -K (f - y) from f = 0."""
    entries = 40 * _entries(problem)
    return _in_parts(lambda part: _flow_scores(problem, part, targets), times, entries)


def _flow_scores(problem: LinearProblem, times: Array, targets: Array) -> Scores:
    z, weights = contour()
    at = solve(problem, _ridges(problem, z, times))
    gains = np.tile(weights / z, len(times)).reshape(len(times), -1)
    means = 2.0 * np.einsum("tj,tjbo->tbo", gains, score_means(at, targets).reshape(*gains.shape, *targets.shape)).real
    covariances = _contour_pairs(at, gains, targets, False) + _contour_pairs(at, gains, targets, True)
    return Scores(means, covariances, _flow_training_error(problem, times, targets))


def _ridges(problem: LinearProblem, z: Array, times: Array) -> Array:
    """o_a + z/t for all nodes of all times, (N nodes, K)."""
    moved: Array = (z / times[:, None]).reshape(-1, 1)
    return problem.offsets + moved


def _contour_pairs(at: Resolvent, gains: Array, targets: Array, conjugate: bool) -> Array:
    """2 Re of the sum over pairs of nodes; the pair (k, j) is the transpose of (j, k), or its adjoint."""
    times, nodes = gains.shape
    first, second = np.triu_indices(nodes)
    base = nodes * np.arange(times)[:, None]
    found = score_covariances(at, (base + first).ravel(), (base + second).ravel(), targets, conjugate)
    found = found.reshape(times, len(first), *found.shape[1:])
    weights = gains[:, first] * (gains[:, second].conj() if conjugate else gains[:, second])
    whole = 2.0 * np.einsum("tq,tqboz->tboz", weights, found).real
    own = 2.0 * np.einsum("tq,tqboz->tboz", weights * (first == second), found).real
    out: Array = whole + np.swapaxes(whole - own, -1, -2)
    return out


def _flow_training_error(problem: LinearProblem, times: Array, targets: Array) -> Array:
    """||exp(-t K) y||^2 per entry: one resolvent at twice the time."""
    z, weights = contour()
    at = solve(problem, _ridges(problem, z, 2.0 * times))
    residuals = targets - score_means(at, targets)  # of a point left out
    forms = ((targets * residuals).mean(-1) * at.g) @ (problem.counts / problem.counts.sum())
    total: Array = 2.0 * (forms.reshape(len(times), -1) @ weights).real / (2.0 * times)
    return np.maximum(total, 0.0)


def _entries(problem: LinearProblem) -> int:
    """Numbers that one point of the schedule needs at once."""
    noise, classes = problem.noise, len(problem.counts)
    if isinstance(noise, Dense):
        return _CHUNK // 40  # one time, or forty ridges, hold their matrices together
    assert isinstance(noise, Commuting)
    return max(len(noise.weights), classes**4)


def _in_parts(function: Callable[[Array], Scores], points: Array, entries: int) -> Scores:
    step = max(1, _CHUNK // entries)
    parts = [function(points[start : start + step]) for start in range(0, len(points), step)]
    return Scores(*(np.concatenate([getattr(part, name) for part in parts]) for name in Scores.__dataclass_fields__))


def interpolated(function: Callable[[Array], Array], points: Array, tolerance: float) -> Array:
    """A smooth function of log(points), (N,) -> (N, numbers), from Chebyshev nodes where they are fewer than points."""
    low, high, degree = np.log(points.min()), np.log(points.max()), 16
    while 2 * degree < len(points):
        nodes = chebyshev.chebpts1(degree + 1)
        found = np.linalg.solve(
            chebyshev.chebvander(nodes, degree), function(np.exp(low + (high - low) * (nodes + 1.0) / 2.0))
        )
        if np.abs(found[-3:]).max() <= tolerance * np.abs(found).max():
            at = 2.0 * (np.log(points) - low) / (high - low) - 1.0
            out: Array = chebyshev.chebvander(at, degree) @ found
            return out
        degree *= 2
    return function(points)
