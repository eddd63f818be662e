"""The best J kinds of units: a projection of rank J for every order, chosen in the maximum norm over the range.

Order k of the kernel is a Gram matrix F_k F_k'. For weights mu(s) the projection that leaves the least of
sum_s mu(s) delta(s) is onto the J leading directions of sum_s mu(s) F_k(s) F_k(s)', for every order by itself. The
weights move towards the norms where the relative deficit is largest, until it is level: a minimax design.
"""

from __future__ import annotations

import numpy as np

from .target import NOISE, Array, Target, quadratic

_ROUNDS = 10
_SPEED = 0.6  # exponent of the multiplicative step of the weights


def factorise(target: Target, kinds: int) -> Array:
    """c_k(s_i) with c_k c_k' the projected order k at the nodes: (K, N, kinds)."""
    rows = target.at(3 * len(target.nodes))[1]
    diagonal = quadratic(rows, target.total)
    weights = np.ones(len(rows))
    best, least = np.empty(0), np.inf
    for _ in range(_ROUNDS):
        parts = _leading(target, rows, weights / diagonal, kinds)
        left = np.maximum(quadratic(rows, deficit(target, parts)), 0.0) / diagonal
        worst = float(left.max())
        if worst < least:
            best, least = parts, worst
        if worst <= 0.0 or float(left.min()) > 0.9 * worst:
            break
        weights = weights * (left / worst) ** _SPEED + 1e-9
    return _oriented(best)


def deficit(target: Target, parts: Array) -> Array:
    """k - k_twin at the nodes for rho = 1, with everything that was left out of the series: (N, N)."""
    flat = parts.transpose(1, 0, 2).reshape(len(target.nodes), -1)
    return target.left - flat @ flat.T


def _leading(target: Target, rows: Array, weights: Array, kinds: int) -> Array:
    features = target.features
    weighted = rows.T @ (rows * weights[:, None])
    covariance = features.transpose(0, 2, 1) @ weighted @ features
    values, vectors = np.linalg.eigh(covariance)
    keep = values[:, -kinds:] > NOISE * values.max()
    return (features @ (vectors[:, :, -kinds:] * keep[:, None, :]))[:, :, ::-1]


def _oriented(parts: Array) -> Array:
    """Signs of eigenvectors are arbitrary: each order takes the one nearest to the order before."""
    out = parts.copy()
    for j in range(out.shape[2]):
        before = None
        for column in out[:, :, j]:
            size = float(np.linalg.norm(column))
            if size == 0.0:
                continue
            if before is None:
                column *= np.sign(column[0]) or 1.0
            elif float(column @ before) < 0.0:
                column *= -1.0
            before = column / size
    return out
