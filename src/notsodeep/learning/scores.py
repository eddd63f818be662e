"""Mean and covariance of the scores of a new point, class by class, from resolvents (theory section 15)."""

from __future__ import annotations

import numpy as np

from ..spectra.population import Array
from .bulk import second_of
from .resolvent import Resolvent

__all__ = ["score_covariances", "score_means"]


def score_means(at: Resolvent, targets: Array) -> Array:
    """G_b = sum_a (n_a/p) g_a (m_a' Q m_b) y_a, (N, K, outputs)."""
    weights = at.problem.ratios * at.g
    means: Array = np.einsum("na,nab,ao->nbo", weights, at.means, targets, optimize=True)
    return means


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
    covariances: Array = np.einsum("nbac,ao,cq->nboq", core, targets, targets, optimize=True)
    return covariances
