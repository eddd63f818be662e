"""Scores under a training rule, ridge regression at many ridges or gradient flow at many times; decisions by them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri
from scipy.stats import qmc

from ..spectra.population import LIMITS, SAME, Array, Blocks, Pairs
from .features import LIMITS as LEARNING
from .features import LinearProblem
from .resolvent import Resolvent, errors_at_finite_p, score_covariances, score_means, solve


@dataclass(frozen=True, eq=False)
class Scores:
    """Means (N, K, outputs) and covariances (N, K, outputs, outputs) for new points, and what training reaches."""

    means: Array
    covariances: Array
    training_error: Array  # (N,)
    finite: Array  # (N, K): what the order 1/p does to the squared error
    finite_training: Array  # (N,): what it does to the training error
    doubt: Array  # (N,): what the order 1/p^2 may do to it


def ridge_scores(problem: LinearProblem, ridges: Array, targets: Array) -> Scores:
    """Return the scores at ridges gamma (N,), in the kernel's own unit."""
    return _in_parts(lambda part: _ridge_scores(problem, part, targets), ridges, _entries(problem))


def _ridge_scores(problem: LinearProblem, ridges: Array, targets: Array) -> Scores:
    at = solve(problem, problem.offsets + ridges[:, None])
    means, covariances = score_means(at, targets), score_covariances(at, SAME, targets)
    shares, squares = problem.counts / problem.counts.sum(), _squares(means, covariances, targets)
    # a training residual is gamma/(d_a + delta_a) times the one of the same point left out
    training = ridges**2 * ((at.g**2 * squares) @ shares)
    if isinstance(problem.noise, Blocks):  # the order 1/p is that of a joint spectrum nearby
        at = solve(replace(problem, noise=problem.noise.surrogate()), problem.offsets + ridges[:, None])
        squares = _squares(score_means(at, targets), score_covariances(at, SAME, targets), targets)
    errors, left, doubt = errors_at_finite_p(at, targets)
    outputs = targets.shape[1]
    finite = errors / (outputs * squares), left / (outputs * ((at.g**2 * squares) @ shares))
    return Scores(means, covariances, training, *finite, doubt)


def _squares(means: Array, covariances: Array, targets: Array) -> Array:
    """Return the squared error of a point left out, mean over outputs, (N, K)."""
    return ((targets - means) ** 2 + np.einsum("nboo->nbo", covariances)).mean(-1)


def flow_scores(problem: LinearProblem, times: Array, targets: Array) -> Scores:
    """Return the scores at times t (N,) of d f/dt = -K (f - y) from f = 0."""
    entries = 40 * _entries(problem)
    return _in_parts(lambda part: _flow_scores(problem, part, targets), times, entries)


def _flow_scores(problem: LinearProblem, times: Array, targets: Array) -> Scores:
    z, weights = contour()
    at = solve(problem, problem.offsets + (z / times[:, None]).reshape(-1, 1))
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
    stopped = _ridge_scores(problem, 1.0 / times, targets)  # a time acts like this ridge
    return Scores(scores, covariances, squares @ shares, stopped.finite, stopped.finite_training, stopped.doubt)


def _contour_sums(at: Resolvent, gains: list[Array], targets: Array) -> list[Array]:
    """Sum V over all pairs of nodes, (N, K, outputs, outputs), for each set of gains (N, nodes, K)."""
    times, nodes, _ = gains[0].shape
    first, second = np.triu_indices(nodes)
    base = nodes * np.arange(times)[:, None]
    sums = [np.zeros(())] * len(gains)
    for conjugate in (False, True):
        pairs = Pairs((base + first).ravel(), (base + second).ravel(), conjugate)
        covariances = score_covariances(at, pairs, targets)
        covariances = covariances.reshape(times, len(first), *covariances.shape[1:])
        for k, gain in enumerate(gains):
            weights = gain[:, first] * pairs.seconded(gain[:, second])
            sums[k] = sums[k] + _both_halves(weights, covariances, first == second)
    return sums


def _both_halves(weights: Array, covariances: Array, equal: Array) -> Array:
    """Return 2 Re of the sum over pairs j <= k, and over k < j: the transposes, or the adjoints of conjugate pairs."""
    whole = 2.0 * np.einsum("tqb,tqboz->tboz", weights, covariances).real
    twice = 2.0 * np.einsum("tqb,tqboz->tboz", weights * equal[:, None], covariances).real
    return whole + np.swapaxes(whole - twice, -1, -2)


def _entries(problem: LinearProblem) -> int:
    """Count the numbers that one point of the schedule needs at once."""
    noise, classes = problem.noise, len(problem.counts)
    if isinstance(noise, Blocks):
        return 2 * LIMITS.entries // 40  # one time, or forty ridges, hold their matrices together
    return max(len(noise.weights), classes**4)


def _in_parts(function: Callable[[Array], Scores], points: Array, entries: int) -> Scores:
    step = max(1, 2 * LIMITS.entries // entries)
    pieces = [function(points[start : start + step]) for start in range(0, len(points), step)]
    return Scores(*(np.concatenate([getattr(piece, name) for piece in pieces]) for name in Scores.__dataclass_fields__))


# ---- gradient flow -------------------------------------------------------------------------------------


def contour() -> tuple[Array, Array]:
    """Return the nodes z in the upper half plane of gradient flow's contour, and weights w in 2 Re sum w f(z).

    The contour is that of theory section 15.
    """
    nodes = LEARNING.contour
    theta = (np.arange(nodes // 2) + 0.5) * (2.0 * math.pi / nodes)
    z = nodes * (0.1309 - 0.1194 * theta**2 + 0.25j * theta)
    slope = nodes * (-0.2388 * theta + 0.25j)
    return z, np.exp(z) * slope * (2.0 * math.pi / nodes) / (2.0j * math.pi)


# ---- the probability that a Gaussian vector of scores is nearest to each target -----------------------
# A point is given the class whose target is nearest to its scores s: the largest of s . y_c - ||y_c||^2/2, which for
# the default targets is the largest score. Two classes need one normal integral. For more, the probability of each
# orthant is integrated one variable after the other (Genz), the outer ones at Sobol points with a fixed seed.


def confusions(means: Array, covariances: Array, targets: Array) -> tuple[Array, float]:
    """Return P(class c is chosen | class b), (N, K, K), and an estimate of its largest error.

    It takes the ``means`` (N, K, outputs) and ``covariances`` (N, K, outputs, outputs) of the scores, and the
    ``targets`` (K, outputs).
    """
    levels = means @ targets.T - 0.5 * (targets**2).sum(1)
    spreads = targets @ covariances @ targets.T
    classes = len(targets)
    if classes == 2:
        gap = levels[..., 0] - levels[..., 1]
        variance = spreads[..., 0, 0] + spreads[..., 1, 1] - 2.0 * spreads[..., 0, 1]
        first = ndtr(gap / np.sqrt(np.maximum(variance, 1e-300)))
        return np.stack([first, 1.0 - first], axis=-1), 0.0
    points = ((np.arange(LEARNING.lattice) + 0.5) / LEARNING.lattice)[:, None]
    if classes > 3:
        points = qmc.Sobol(classes - 2, seed=0).random(LEARNING.lattice)
    chosen = np.stack([_orthant(*_margins(levels, spreads, c), points) for c in range(classes)], -1)
    total = chosen.sum(-1, keepdims=True)
    return chosen / total, float(np.abs(total - 1.0).max())


def _margins(levels: Array, spreads: Array, c: int) -> tuple[Array, Array]:
    """Return mean and covariance of the lead of class c over each other class."""
    others = [k for k in range(levels.shape[-1]) if k != c]
    mean = levels[..., c, None] - levels[..., others]
    across = spreads[..., c, others]
    inner = spreads[..., others, :][..., others]
    return mean, inner - across[..., None, :] - across[..., :, None] + spreads[..., c, c, None, None]


def _orthant(mean: Array, covariance: Array, points: Array) -> Array:
    """Return P(all entries > 0) of N(mean, covariance), the hardest condition first."""
    scale = np.sqrt(np.maximum(np.einsum("...kk->...k", covariance), 1e-300))
    order = np.argsort(mean / scale, axis=-1)
    mean = np.take_along_axis(mean / scale, order, -1)
    scaled = covariance / (scale[..., :, None] * scale[..., None, :])
    scaled = np.take_along_axis(np.take_along_axis(scaled, order[..., :, None], -2), order[..., None, :], -1)
    size = mean.shape[-1]
    factor = np.linalg.cholesky(scaled + 1e-11 * np.eye(size))
    return _sequential(mean, factor, points)


def _sequential(mean: Array, factor: Array, points: Array) -> Array:
    """Average over the points the product of conditional probabilities; mean (..., k), factor (..., k, k)."""
    draws = np.zeros((*mean.shape[:-1], len(points), mean.shape[-1]))
    weight = np.ones((*mean.shape[:-1], len(points)))
    for k in range(mean.shape[-1]):
        drift = mean[..., k, None] + (draws[..., :k] @ factor[..., k, :k, None])[..., 0]
        inside = ndtr(drift / factor[..., k, k, None])
        weight *= inside
        if k < mean.shape[-1] - 1:
            # the variable is above -drift: a uniform share of the upper tail of mass `inside`
            draws[..., k] = -ndtri(np.clip(points[:, k] * inside, 1e-16, 1.0 - 1e-16))
    return weight.mean(-1)
