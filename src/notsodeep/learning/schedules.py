"""Scores under a training rule: ridge regression at many ridges, gradient flow at many times."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from .. import _chebyshev
from ..spectra.population import Array, Commuting, Dense
from .bulk import second_of
from .features import LinearProblem
from .resolvent import Resolvent, score_covariances, score_means, solve

__all__ = ["NODES", "Scores", "contour", "flow_scores", "interpolated", "ridge_scores"]

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
    shape = (len(times), len(z), len(targets))
    means = score_means(at, targets).reshape(*shape[:2], *targets.shape)
    # a point left out has the score s(z), and training on it too the residual (y - s(z)) g(z): exp(-t K) y by contour
    new = np.broadcast_to((weights / z)[None, :, None], shape)
    old = (weights / times[:, None])[..., None] * at.g.reshape(shape)
    covariances, spread = _contour_sums(at, [new, old], targets)
    residuals = 2.0 * np.einsum("tjb,tjbo->tbo", old, targets - means).real
    squares = (residuals**2 + np.einsum("tboo->tbo", spread)).mean(-1)
    shares = problem.counts / problem.counts.sum()
    scores = 2.0 * np.einsum("tjb,tjbo->tbo", new, means).real
    return Scores(scores, covariances, squares @ shares)


def _ridges(problem: LinearProblem, z: Array, times: Array) -> Array:
    """o_a + z/t for all nodes of all times, (N nodes, K)."""
    moved: Array = (z / times[:, None]).reshape(-1, 1)
    return problem.offsets + moved


def _contour_sums(at: Resolvent, gains: list[Array], targets: Array) -> list[Array]:
    """Sums of V over all pairs of nodes, (N, K, outputs, outputs), for each set of gains (N, nodes, K)."""
    times, nodes, _ = gains[0].shape
    first, second = np.triu_indices(nodes)
    base = nodes * np.arange(times)[:, None]
    i, j = (base + first).ravel(), (base + second).ravel()
    sums = [np.zeros(())] * len(gains)
    for conjugate in (False, True):
        found = score_covariances(at, i, j, targets, conjugate)
        found = found.reshape(times, len(first), *found.shape[1:])
        for k, gain in enumerate(gains):
            weights = gain[:, first] * second_of(gain[:, second], conjugate)
            sums[k] = sums[k] + _both_halves(weights, found, first == second)
    return sums


def _both_halves(weights: Array, found: Array, own: Array) -> Array:
    """2 Re of the sum over pairs j <= k, and over k < j: the transposes, or the adjoints of conjugate pairs."""
    whole = 2.0 * np.einsum("tqb,tqboz->tboz", weights, found).real
    twice = 2.0 * np.einsum("tqb,tqboz->tboz", weights * own[:, None], found).real
    out: Array = whole + np.swapaxes(whole - twice, -1, -2)
    return out


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
    return _chebyshev.interpolated(lambda logs: function(np.exp(logs)), np.log(points), tolerance, degree=16)


# ---- gradient flow -------------------------------------------------------------------------------------


NODES = 16
"""Error below 1e-7 of the scores; it falls by a factor of 2.85 with every node."""


def contour() -> tuple[Array, Array]:
    """Training in time as a contour of complex ridges (theory section 15).

    Gradient flow on the squared error from zero has the dual weights K^(-1) (I - exp(-t K)) y. With the parabola
    z = N (0.1309 - 0.1194 theta^2 + 0.25 i theta), theta at the N midpoints of (-pi, pi), it is

        (1/(2 pi i)) oint (e^z/z) (K + z/t)^(-1) dz,

    and exp(-s K) = (1/(2 pi i)) oint e^z (1/s) (K + z/s)^(-1) dz. Nodes come in conjugate pairs: the N/2 in the upper
    half plane are returned, and dz/(2 pi i) with e^z: weights of f in 2 Re sum w f(z).
    """
    theta = (np.arange(NODES // 2) + 0.5) * (2.0 * math.pi / NODES)
    z = NODES * (0.1309 - 0.1194 * theta**2 + 0.25j * theta)
    slope = NODES * (-0.2388 * theta + 0.25j)
    return z, np.exp(z) * slope * (2.0 * math.pi / NODES) / (2.0j * math.pi)
