"""The order 1/p of the test error, which the deterministic equivalent leaves out (theory section 15).

Let the target be one more feature, of weight s, and a new row of class b have the weight e in Q. The test error of the
class is d^2 F/de ds of F = E log det(D + Z Z'). The equivalent has F_0, where dF_0/de = delta_b, so that the error is
du_b/ds; F_1 is the next order. Derivatives by s are complex steps, which round nothing.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..spectra.population import SAME, Array, Commuting
from .features import LongerRows
from .resolvent import Resolvent

_STEP = 1e-30j  # s


def errors_at_finite_p(at: Resolvent, targets: Array) -> tuple[Array, Array, Array]:
    """Return the test error by class (N, K), the training error over gamma^2, and what the order 1/p^2 may be of them.

    Errors are sums over outputs; the training error is -d^2 F/d gamma ds times gamma^2/n, so it has the same orders.
    """
    problem, ridges = at.problem, 1.0 / at.g - at.traces
    assert isinstance(problem.noise, Commuting)
    classes, ratios, p = len(problem.counts), problem.ratios, problem.p
    problem = replace(problem, noise=_with_targets(problem.noise, p * targets @ targets.T))
    longer = problem.longer
    omega = at.pair(SAME).couplings * (ratios * at.g**2)[:, None, :]
    start = Resolvent(problem, problem.noise, at.g + 0.0j)
    u = 1.0 / at.g + np.linalg.solve(np.eye(classes) - omega, (ridges + start.traces - 1.0 / at.g)[..., None])[..., 0]
    end = Resolvent(problem, problem.noise, 1.0 / u)
    couplings, along, uneven = _parts(end, longer)
    weights = ratios / u**2
    inverse = np.linalg.inv(np.eye(classes) - couplings * weights[:, None, :])
    # F_1 = log det(I - Omega)/2 + sum_a n_a g_a^2 ((m_a' Q m_a)^2/p^2 - U_a/2): its slopes in u, and in g through Q
    by_u = (np.einsum("naa->na", inverse) - 1.0) / u - weights / u * (2.0 / p * along**2 - p * uneven)
    by_g = np.empty_like(u)
    for c in range(classes):
        ends = [Resolvent(problem, problem.noise, (1.0 + step * np.eye(classes)[c]) / u) for step in (1e-4, -1e-4)]
        pairs = zip(*(_parts(each, longer) for each in ends), strict=True)
        slope, bend, rise = ((one - two).T * 0.5e4 * u[:, c] for one, two in pairs)
        by_g[:, c] = -0.5 * np.einsum("ban,nba,nb->n", slope, inverse, weights)
        by_g[:, c] += (weights * (2.0 / p * along * bend.T - 0.5 * p * rise.T)).sum(1)
    moved_u = -inverse @ couplings / p  # by e of each class
    moved_g = np.eye(classes) / problem.counts - moved_u / u[:, :, None] ** 2
    more = np.einsum("na,nab->nb", by_u, moved_u) + np.einsum("na,nab->nb", by_g, moved_g)
    by_ridge = inverse.sum(2)
    left = (problem.counts / u + (by_u - by_g / u**2) * by_ridge).sum(1) / problem.counts.sum()
    gap = 1.0 - np.abs(np.linalg.eigvals(omega)).max(axis=1)
    return (u + more).imag / _STEP.imag, -left.imag / _STEP.imag, 1.0 / (p * gap) ** 2


def _with_targets(noise: Commuting, grams: Array) -> Commuting:
    classes = len(grams)
    return noise.plus(Commuting(noise.ratios, np.zeros((1, classes)), np.zeros(1), _STEP * grams[None]))


def _parts(at: Resolvent, longer: LongerRows | None) -> tuple[Array, Array, Array]:
    """Return the couplings, m_a' Q m_a, and U_a, the variance of u by norms beyond that of Gaussian features."""
    along = np.einsum("naa->na", at.means)
    return at.pair(SAME).couplings, along, 0.0 * along if longer is None else _uneven(at, longer)


def _uneven(at: Resolvent, longer: LongerRows) -> Array:
    target = np.zeros((1, at.g.shape[1]))
    values, plain = (np.vstack([part, target]) for part in (longer.values, longer.plain))
    moved = at.traces_of(values) - at.traces + longer.offsets
    return moved**2 - (at.traces_of(plain) - at.traces) ** 2
