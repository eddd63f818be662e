"""The deterministic equivalent of ridge regression on a Gaussian mixture, classes with their own ridge d_a.

With S_a = Sigma_a + m_a m_a', g_a = 1/(d_a + delta_a) and Q = (I + sum_a (n_a/p) g_a S_a)^(-1) the fixed point is

    delta_a = tr(S_a Q)/p.

(theory section 15, where d_a = rho for all classes: Q there is Q/rho here.) The means have rank K, so Q needs the
covariances alone (``bulk``) and K x K matrices: with B = m' A^(-1) m, H = diag((n_a/p) g_a) and W = (H^(-1) + B)^(-1)

    Q = A^(-1) - A^(-1) m W m' A^(-1),    Q m = A^(-1) m (I + H B)^(-1).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import ConvergenceError
from ..spectra.population import Array, Commuting, Dense
from .bulk import Bulk, bulk_at, second_of
from .features import LinearProblem

_STEPS = 60
_TURNS = 8  # steps from a real ridge to a complex one of the same size


@dataclass(frozen=True, eq=False)
class Pair:
    """Two resolvents Q_i and Q_j together, for many pairs."""

    couplings: Array
    """tr(S_a Q_i S_c Q_j)/p, (pairs, K, K)."""
    forms: Array
    """m_a' Q_i Sigma_b Q_j m_c, (pairs, K for b, K, K)."""
    noises: Array
    """tr(S_a Q_i Sigma_b Q_j)/p, (pairs, K for a, K for b)."""


@dataclass(frozen=True, eq=False)
class Resolvent:
    """Q at the points g, (N, K)."""

    problem: LinearProblem
    noise: Commuting | Dense
    g: Array

    @cached_property
    def bulk(self) -> Bulk:
        return bulk_at(self.noise, self.g)

    @cached_property
    def _turn(self) -> Array:
        """(I + H B)^(-1)"""
        weights = (self.problem.ratios * self.g)[:, :, None]
        return np.linalg.inv(np.eye(self.g.shape[1]) + weights * self.bulk.means())

    @cached_property
    def _lift(self) -> Array:
        """W = (I + H B)^(-1) H"""
        return self._turn * (self.problem.ratios * self.g)[:, None, :]

    @cached_property
    def means(self) -> Array:
        """m_a' Q m_c, (N, K, K)."""
        return self.bulk.means() @ self._turn

    @property
    def _all(self) -> Array:
        return np.arange(len(self.g))

    @cached_property
    def traces(self) -> Array:
        """delta_a = tr(S_a Q)/p, (N, K)."""
        forms = self.bulk.forms(self._all, self._all)
        removed = np.einsum("nac,nbca->nb", self._lift, forms)
        added = np.einsum("naa->na", self.means)
        return self.bulk.traces() + (added - removed) / self.problem.p

    @cached_property
    def own(self) -> Pair:
        """Every resolvent with itself."""
        return self.pair(self._all, self._all)

    def pair(self, i: Array, j: Array, conjugate: bool = False) -> Pair:
        """The pairs (i, j) of points; with ``conjugate`` the second is the conjugate of point j."""
        forms, p = self.bulk.forms(i, j, conjugate), self.problem.p
        first, second = self._lift[i], second_of(self._lift[j], conjugate)
        crossed = np.einsum("nac,nbcd,nde,nfae->nbf", first, forms, second, forms, optimize=True)
        back = second_of(self.bulk.bent(self._lift[j], j, i, conjugate), conjugate)
        bent = self.bulk.bent(first, i, j, conjugate) + back
        noise = self.bulk.couplings(i, j, conjugate) + (crossed - bent) / p
        turn = second_of(self._turn[j], conjugate)[:, None]
        turned = np.swapaxes(self._turn[i], 1, 2)[:, None] @ forms @ turn
        along = np.einsum("nbaa->nab", turned)
        noises = noise + along / p
        products = self.means[i] * second_of(self.means[j], conjugate)
        return Pair(noises + (np.swapaxes(along, 1, 2) + products) / p, turned, noises)

    def feedback(self) -> Array:
        """Omega_ac = (n_c/p) g_c^2 tr(S_a Q S_c Q)/p, (N, K, K): how delta answers to a change of itself."""
        return self.own.couplings * (self.problem.ratios * self.g**2)[:, None, :]


def solve(problem: LinearProblem, ridges: Array) -> Resolvent:
    """The fixed point at ridges d, (N, K), positive or complex off the negative axis.

    For positive ridges Newton's method from above decreases to the solution. A complex one is reached by turning
    there from the real ridge of the same size.
    """
    start = np.abs(ridges) + _totals(problem)
    if isinstance(problem.noise, Dense):
        cheap = problem.noise.surrogate()
        u = _iterate(problem, problem.noise, ridges, _follow(problem, cheap, ridges, start), cheap)
    else:
        u = _follow(problem, problem.noise, ridges, start)
    return Resolvent(problem, problem.noise, 1.0 / u)


def _totals(problem: LinearProblem) -> Array:
    """tr(S_a)/p, (1, K): the resolvent at g = 0."""
    nothing = np.zeros((1, len(problem.counts)))
    return Resolvent(problem, problem.noise, nothing).traces


def _follow(problem: LinearProblem, noise: Commuting, ridges: Array, start: Array) -> Array:
    u = _iterate(problem, noise, np.abs(ridges), start, noise)
    if not np.iscomplexobj(ridges):
        return u
    sizes, angles = np.abs(ridges), np.angle(ridges)
    u = u.astype(ridges.dtype)
    for turn in np.arange(1, _TURNS + 1) / _TURNS:
        u = _iterate(problem, noise, sizes * np.exp(1j * turn * angles), u, noise)
    return u


def _iterate(problem: LinearProblem, noise: Commuting | Dense, ridges: Array, start: Array, slopes: Commuting) -> Array:
    """Solve u = d + delta(1/u) by Newton's method; the derivative of delta(1/u) is Omega.

    ``slopes`` gives the derivative. For matrices that is a cheap population nearby: the steps still shrink quickly,
    and none needs the K products of matrices that the derivative is made of.
    """
    u, size = start, np.inf
    last = 1e-9 if noise is not slopes else 1e-12
    for _ in range(_STEPS):
        at = Resolvent(problem, noise, 1.0 / u)
        omega = (at if noise is slopes else Resolvent(problem, slopes, 1.0 / u)).feedback()
        residual = ridges + at.traces - u
        step = np.linalg.solve(np.eye(u.shape[1]) - omega, residual[..., None])[..., 0]
        u = u + step
        size = float((np.abs(step) / np.abs(u)).max())
        if size < last:
            return u
    raise ConvergenceError(
        f"the fixed point of the learning curve was not reached in {_STEPS} steps (last relative step {size:.1e}); "
        "use a larger ridge, or report this mixture"
    )


# ---- scores of a new point, class by class -------------------------------------------------------------


def score_means(at: Resolvent, targets: Array) -> Array:
    """G_b = sum_a (n_a/p) g_a (m_a' Q m_b) y_a, (N, K, outputs)."""
    weights = at.problem.ratios * at.g
    return np.einsum("na,nab,ao->nbo", weights, at.means, targets, optimize=True)


def score_covariances(at: Resolvent, i: Array, j: Array, targets: Array, conjugate: bool = False) -> Array:
    """V_b between the scores by the resolvents i and by the resolvents j, (pairs, K, outputs, outputs).

    The first term is the noise of independent training points, the second what their common mean directions add.
    """
    ratios, g1, g2 = at.problem.ratios, at.g[i], second_of(at.g[j], conjugate)
    means1, means2 = at.means[i], second_of(at.means[j], conjugate)
    pair = at.pair(i, j, conjugate)
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
