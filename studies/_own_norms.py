"""An equivalent that keeps the norm of every row, for data whose norms differ: images, most real data.

The theorems expand the kernel k(q, q', d), of two squared norms and an inner product, around one typical norm. Here it
is expanded in d alone, k ~ a(q, q') + b(q, q') d + c(q, q') E[d^2]/2, and each function of two norms is replaced by a
product, or a few, through reference norms r (Nystroem): f(q, q') ~ f(q, r) f(r, r)^(-1) f(r, q'). That is exact for one
layer and nearly so for a DEQ. The diagonal is exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.kernels import diagonal, pairwise, power_series

Array = np.ndarray[Any, Any]


def own_norm_matrix(network: nsd.DEQ, statistics: nsd.MixtureStatistics, kernel: Any) -> Array:
    """Return the dense n x n equivalent of the network centred at the data's tau0."""
    if network.readout == "pre-activation":  # its slope in d is a sum, no product of functions of one norm
        sigma_a2, sigma_b2, _ = network.variances
        inner = own_norm_matrix(nsd.DEQ(network.activation, sigma_a2, sigma_b2), statistics, kernel)
        return sigma_a2 * inner + sigma_b2 * statistics.X @ statistics.X.T
    c = nsd.coefficients(network, statistics.tau0, kernel)
    X, unit = np.asarray(statistics.X, dtype=np.float64), c.tau0**2
    squares = np.maximum((X**2).sum(1), 1e-6 * unit)  # the series in the norms needs positive ones
    first, second = _derivatives(c, squares)
    typical = [float(v[0]) for v in _derivatives(c, np.array([unit]))]
    b, bend = (_product(f, at, c.diagonal / unit**k) for f, at, k in ((first, typical[0], 1), (second, typical[1], 2)))
    a = _values(c, squares, np.unique([unit, *np.quantile(squares, (0.02, 0.25, 0.75, 0.98))]))
    T = statistics.T[np.ix_(statistics.labels, statistics.labels)] / statistics.p
    out = np.outer(b, b) * (X @ X.T) + 0.5 * np.outer(bend, bend) * T + a
    np.fill_diagonal(out, diagonal(c.network, torch.from_numpy(squares), (kernel,))[kernel].numpy())
    return out


def _derivatives(c: Any, squares: Array) -> tuple[Array, Array]:
    """Return the first two derivatives in d, at d = 0, between each squared norm and the typical one."""
    _, first, second = power_series(c.network, 3, c.kernel, np.sqrt(squares), c.tau0).T
    unit = np.sqrt(squares) * c.tau0
    return first / unit, 2.0 * second / unit**2


def _product(values: Array, typical: float, scale: float) -> Array:
    """Return f(q, r) / sqrt(f(r, r)), or zero where the kernel has no such term."""
    return values / np.sqrt(typical) if typical > 1e-8 * scale else 0.0 * values


def _values(c: Any, squares: Array, references: Array) -> Array:
    """Return a(q, q') for all pairs of rows, through the reference norms; it is zero for an odd activation."""

    def at(one: Array, other: Array) -> Array:
        x, y = np.broadcast_arrays(one[:, None], other)
        pairs = (torch.from_numpy(np.ascontiguousarray(v)) for v in (x, y, 0.0 * x))
        return pairwise(c.network, *pairs, (c.kernel,))[c.kernel].numpy()

    inner = at(references, references)
    sizes, vectors = np.linalg.eigh(0.5 * (inner + inner.T))
    live = sizes > max(1e-7 * sizes[-1], 1e-8 * c.diagonal)
    features = at(squares, references) @ (vectors[:, live] / np.sqrt(sizes[live]))
    return features @ features.T
