"""The deterministic equivalent of ridge regression on a Gaussian mixture, classes with their own ridge d_a.

With S_a = Sigma_a + m_a m_a' and g_a = 1/(d_a + delta_a) the fixed point is delta_a = tr(S_a Q)/p, where Q = (I + sum_a
(n_a/p) g_a S_a)^(-1). The means have rank K: with R of ``spectra/population.py``, B = m' R m, H = diag((n_a/p) g_a) and
W = (H^(-1) + B)^(-1), Q = R - R m W m' R and Q m = R m (I + H B)^(-1).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ..errors import ConvergenceError
from ..spectra.population import SAME, Array, Blocks, BlocksAt, Commuting, CommutingAt, Pairs, Population, newton
from .features import LIMITS, LinearProblem, LongerRows


@dataclass(frozen=True, eq=False)
class Pair:
    """Two resolvents Q_i and Q_j together, for many pairs."""

    couplings: Array  # tr(S_a Q_i S_c Q_j)/p, (pairs, K, K)
    forms: Array  # m_a' Q_i Sigma_b Q_j m_c, (pairs, K for b, K, K)
    noises: Array  # tr(S_a Q_i Sigma_b Q_j)/p, (pairs, K for a, K for b)


@dataclass(frozen=True, eq=False)
class Resolvent:
    """Q at the points g, (N, K)."""

    problem: LinearProblem
    noise: Population
    g: Array

    @cached_property
    def bulk(self) -> CommutingAt | BlocksAt:
        """R, the part of the covariances."""
        return self.noise.at(self.g)

    @cached_property
    def _turn(self) -> Array:
        """The matrices (I + H B)^(-1)."""
        weights = (self.problem.ratios * self.g)[:, :, None]
        return np.linalg.inv(np.eye(self.g.shape[1]) + weights * self.bulk.means())

    @cached_property
    def _weights(self) -> Array:
        """The matrices W = (I + H B)^(-1) H."""
        return self._turn * (self.problem.ratios * self.g)[:, None, :]

    @cached_property
    def means(self) -> Array:
        """m_a' Q m_c, (N, K, K)."""
        return self.bulk.means() @ self._turn

    @cached_property
    def traces(self) -> Array:
        """delta_a = tr(S_a Q)/p, (N, K)."""
        removed = np.einsum("nac,nbca->nb", self._weights, self.bulk.forms(SAME))
        added = np.einsum("naa->na", self.means)
        return self.bulk.traces() + (added - removed) / self.problem.p

    def traces_of(self, values: Array) -> Array:
        """Return tr(S_a Q)/p for other eigenvalues (r, K), in a joint spectrum; (N, K)."""
        assert isinstance(self.bulk, CommutingAt)
        noise, rows = self.bulk.of, self.bulk.of.within[0]
        along = np.tensordot(self._weights, noise.mean_grams[rows], axes=((1, 2), (1, 2)))
        removed = along * self.bulk.inverse[:, rows] ** 2 @ values[rows]
        means = np.einsum("naa->na", self.means)
        return (noise.weights * self.bulk.inverse) @ values + (means - removed) / self.problem.p

    def pair(self, pairs: Pairs) -> Pair:
        """Return what two of the points have together."""
        forms, p = self.bulk.forms(pairs), self.problem.p
        first, second = pairs.one(self._weights), pairs.two(self._weights)
        crossed = np.einsum("nac,nbcd,nde,nfae->nbf", first, forms, second, forms, optimize=True)
        turned = Pairs(pairs.second, pairs.first, pairs.conjugate)
        back = pairs.seconded(self.bulk.bent(turned.one(self._weights), turned))
        bent = self.bulk.bent(first, pairs) + back
        noise = self.bulk.couplings(pairs) + (crossed - bent) / p
        forms = np.swapaxes(pairs.one(self._turn), 1, 2)[:, None] @ forms @ pairs.two(self._turn)[:, None]
        along = np.einsum("nbaa->nab", forms)
        noises = noise + along / p
        products = pairs.one(self.means) * pairs.two(self.means)
        return Pair(noises + (np.swapaxes(along, 1, 2) + products) / p, forms, noises)

    def slopes(self) -> Array:
        """Return how delta falls with every g_c: (n_c/p) tr(S_a Q S_c Q)/p, (N, K, K)."""
        return self.pair(SAME).couplings * self.problem.ratios


def solve(problem: LinearProblem, ridges: Array) -> Resolvent:
    """Find the fixed point at ridges d, (N, K), positive or complex off the negative axis.

    For positive ridges Newton's method from above decreases to the solution. A complex one is reached by turning
    there from the real ridge of the same size.
    """
    start = np.abs(ridges) + Resolvent(problem, problem.noise, np.zeros((1, len(problem.counts)))).traces
    if isinstance(problem.noise, Blocks):
        cheap = problem.noise.surrogate()
        u = _iterate(problem, problem.noise, ridges, _follow(problem, cheap, ridges, start), cheap)
    else:
        u = _follow(problem, problem.noise, ridges, start)
    return Resolvent(problem, problem.noise, 1.0 / u)


def _follow(problem: LinearProblem, noise: Commuting, ridges: Array, start: Array) -> Array:
    u = _iterate(problem, noise, np.abs(ridges), start, noise)
    if not np.iscomplexobj(ridges):
        return u
    sizes, angles = np.abs(ridges), np.angle(ridges)
    u = u.astype(ridges.dtype)
    for turn in np.arange(1, LIMITS.turns + 1) / LIMITS.turns:
        u = _iterate(problem, noise, sizes * np.exp(1j * turn * angles), u, noise)
    return u


def _iterate(problem: LinearProblem, noise: Population, ridges: Array, start: Array, slopes: Commuting) -> Array:
    """Solve u = d + delta(1/u) for u = 1/g, which is the fixed point of spectra at z = -d.

    ``slopes`` gives the derivative. For matrices that is a cheap population nearby: the steps still shrink quickly,
    and none needs the K products of matrices that the derivative is made of.
    """

    def answers(g: Array) -> tuple[Array, Array]:
        at = Resolvent(problem, noise, g)
        return at.traces, (at if noise is slopes else Resolvent(problem, slopes, g)).slopes()

    u, done = newton(answers, -ridges, -start, last=1e-12 if noise is slopes else 1e-9, steps=60)
    if not done.all():
        raise ConvergenceError(
            f"the fixed point of the learning curve was not reached at {int((~done).sum())} of {len(u)} points; use a "
            "larger ridge, or report this mixture"
        )
    return -u


# ---- scores of a new point, class by class -------------------------------------------------------------


def score_means(at: Resolvent, targets: Array) -> Array:
    """Return G_b = sum_a (n_a/p) g_a (m_a' Q m_b) y_a, (N, K, outputs)."""
    weights = at.problem.ratios * at.g
    return np.einsum("na,nab,ao->nbo", weights, at.means, targets, optimize=True)


def score_covariances(at: Resolvent, pairs: Pairs, targets: Array) -> Array:
    """Return V_b between the scores by the first resolvents and by the second ones, (pairs, K, outputs, outputs).

    The first term is the noise of independent training points, the second what their common mean directions add.
    """
    ratios, g1, g2 = at.problem.ratios, pairs.one(at.g), pairs.two(at.g)
    means1, means2, pair = pairs.one(at.means), pairs.two(at.means), at.pair(pairs)
    both = ratios * g1 * g2
    feedback = pair.couplings * both[:, None, :]
    # eta_ab: response of class a to the noise of a test point of class b
    eta = np.linalg.solve(np.eye(g1.shape[1]) - feedback, pair.noises)
    spread = np.einsum("na,nab->nba", both, eta)
    sandwiched = pair.forms + np.einsum("nac,nce->ncae", means1, means2)  # m' Q_i S_c Q_j m
    response = pair.forms + np.einsum("nbc,ncae->nbae", spread, sandwiched, optimize=True)
    first = np.einsum("nab,na,nac->nbac", eta, g2, means2)
    second = np.einsum("ncb,nc,nac->nbac", eta, g1, means1)
    core = (response - first - second) * (ratios * g1)[:, None, :, None] * (ratios * g2)[:, None, None, :]
    core[:, :, range(g1.shape[1]), range(g1.shape[1])] += spread
    return np.einsum("nbac,ao,cq->nboq", core, targets, targets, optimize=True)


# ---- the order 1/p of the test error, which the equivalent leaves out ------------------------------------------
# Let the target be one more feature, of weight s, and a new row of class b have the weight e in Q. The test error of
# the class is d^2 F/de ds of F = E log det(D + Z Z'). The equivalent has F_0, where dF_0/de = delta_b, so that the
# error is du_b/ds; F_1 is the next order. Derivatives by s are complex steps, which round nothing (theory section 15).

_STEP = 1e-30j  # s


def errors_at_finite_p(at: Resolvent, targets: Array) -> tuple[Array, Array, Array]:
    """Return the test error by class (N, K), the training error over gamma^2, and what the order 1/p^2 may be of them.

    Errors are sums over outputs; the training error is -d^2 F/d gamma ds times gamma^2/n, so it has the same orders.
    """
    problem, ridges = at.problem, 1.0 / at.g - at.traces
    assert isinstance(problem.noise, Commuting)
    classes, ratios, p = len(problem.counts), problem.ratios, problem.p
    target = Commuting(ratios, np.zeros((1, classes)), np.zeros(1), _STEP * p * (targets @ targets.T)[None])
    problem = replace(problem, noise=problem.noise.plus(target))
    longer = problem.longer
    omega = at.pair(SAME).couplings * (ratios * at.g**2)[:, None, :]
    start = Resolvent(problem, problem.noise, at.g + 0.0j)
    u = 1.0 / at.g + np.linalg.solve(np.eye(classes) - omega, (ridges + start.traces - 1.0 / at.g)[..., None])[..., 0]
    end = Resolvent(problem, problem.noise, 1.0 / u)
    couplings, along, uneven = _orders(end, longer)
    weights = ratios / u**2
    inverse = np.linalg.inv(np.eye(classes) - couplings * weights[:, None, :])
    # F_1 = log det(I - Omega)/2 + sum_a n_a g_a^2 ((m_a' Q m_a)^2/p^2 - U_a/2): its slopes in u, and in g through Q
    by_u = (np.einsum("naa->na", inverse) - 1.0) / u - weights / u * (2.0 / p * along**2 - p * uneven)
    by_g = np.empty_like(u)
    for c in range(classes):
        ends = [Resolvent(problem, problem.noise, (1.0 + step * np.eye(classes)[c]) / u) for step in (1e-4, -1e-4)]
        pairs = zip(*(_orders(each, longer) for each in ends), strict=True)
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


def _orders(at: Resolvent, longer: LongerRows | None) -> tuple[Array, Array, Array]:
    """Return the couplings, m_a' Q m_a, and U_a, the variance of u by norms beyond that of Gaussian features."""
    along = np.einsum("naa->na", at.means)
    return at.pair(SAME).couplings, along, 0.0 * along if longer is None else _uneven(at, longer)


def _uneven(at: Resolvent, longer: LongerRows) -> Array:
    target = np.zeros((1, at.g.shape[1]))
    values, plain = (np.vstack([part, target]) for part in (longer.values, longer.plain))
    moved = at.traces_of(values) - at.traces + longer.offsets
    return moved**2 - (at.traces_of(plain) - at.traces) ** 2
