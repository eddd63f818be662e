"""Unit-norm data (theory, section 7): G ~ alpha 11' + beta X X' + mu I, for any network, centred or not."""

from __future__ import annotations

from typing import Any

import numpy as np

from .._arguments import checked
from .._arrays import as_rows
from ..errors import InvalidInputError
from ..kernels import power_series, sphere_diagonal
from ..networks import Kernel, Network
from .operator import EquivalentKernel


@checked
def sphere_equivalent(network: Network, X: Any, kernel: Kernel = "ck") -> EquivalentKernel:
    """The equivalent for rows of norm one and no strong structure, as the workshop paper has it for sqrt(2) ReLU.

    With g the kernel as a function of the cosine: alpha = g(0) + g''(0)/(2d), beta = g'(0), mu = g(1) - g(0) - g'(0);
    they are ``.core``, ``.gain`` and ``.shift`` of the operator.

    >>> import notsodeep as nsd
    >>> X = np.random.default_rng(0).standard_normal((40, 60))
    >>> eq = sphere_equivalent(nsd.DEQ("relu", sigma_a2=0.2), X / np.linalg.norm(X, axis=1, keepdims=True))
    >>> round(eq.gain, 6)
    0.215262
    """
    rows = as_rows(X)
    norms = (rows**2).sum(1)
    if float((norms - 1.0).abs().max()) > 1e-4:
        raise InvalidInputError(
            f"rows must have norm 1 (found squared norms from {float(norms.min()):.4g} to {float(norms.max()):.4g}); "
            "divide each row by its norm, or use equivalent() for data of varying norm"
        )
    g = power_series(network, 3, kernel)
    d = rows.shape[1]
    alpha, beta = g[0] + g[2] / d, float(g[1])
    mu = sphere_diagonal(network, kernel) - g[0] - beta
    return EquivalentKernel(X, beta, np.ones((len(rows), 1)), np.array([[alpha]]), float(mu), network, kernel)
