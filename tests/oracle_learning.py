"""What kernel ridge regression and gradient flow reach on sampled data: the oracle of predicted learning."""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

import notsodeep as nsd


def measured(network, mix, n, kernel, ridge=None, times=None, draws=4, tests=1500):
    """Accuracy, error and training error of the exact kernel on sampled data, with their standard errors."""
    targets, rows = 2.0 * np.eye(mix.classes) - 1.0, []
    function = {"ck": nsd.ck, "ntk": nsd.ntk}[kernel]
    for draw in range(draws):
        X, y = mix.sample(n, seed=1000 + draw)
        new, labels = mix.sample(tests, seed=2000 + draw)
        values, vectors = scipy.linalg.eigh(function(network, X))
        if times is None:
            gamma = ridge * values.mean()
            shrink, rest = 1.0 / (values + gamma), gamma / (values + gamma)
        else:
            shrink, rest = -np.expm1(-times * values) / values, np.exp(-times * values)
        inside = vectors.T @ targets[y]
        scores = function(network, new, X) @ (vectors @ (shrink[:, None] * inside))
        training = ((rest[:, None] * inside) ** 2).sum() / inside.size
        rows.append([(scores.argmax(1) == labels).mean(), ((scores - targets[labels]) ** 2).mean(), training])
    return np.mean(rows, 0), np.std(rows, 0, ddof=1) / math.sqrt(draws)
