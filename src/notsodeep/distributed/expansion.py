"""f(x) = sum_i a_i k(x, x_i) at many rows: every worker takes some of the training rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from ..solve import NetworkKernel
from .cluster import Call, Cluster
from .share import Array, as_rows

__all__ = ["expand"]

_ENTRIES = 1 << 25  # of a kernel block that a worker holds at once
_ROWS = 1 << 23  # numbers of training rows in one message


def expand(client: Any, kernel: NetworkKernel, X: Tensor, coefficients: Tensor, new: Tensor) -> Tensor:
    """The sum at the rows ``new``, (rows, k), in double precision."""
    cluster = client if isinstance(client, Cluster) else Cluster(client)
    parts = max(len(cluster.wait_for_workers()), -(-X.numel() // _ROWS))
    rows, weights = (np.array_split(t.cpu().double().numpy(), parts) for t in (X, coefficients))
    points = new.cpu().double().numpy()
    jobs = [
        Call("", "kernel-predict", partial, (kernel.to_dict(),), (x, a, points))
        for x, a in zip(rows, weights, strict=True)
        if len(x)
    ]
    out = np.zeros((len(points), coefficients.shape[1]))
    for _, found in cluster.farm(jobs):
        out += found
    return as_rows(out)


def partial(document: dict[str, Any], X: Array, coefficients: Array, points: Array) -> Array:
    """The part of some training rows."""
    kernel, rows, weights = NetworkKernel.from_dict(document), as_rows(X), as_rows(coefficients)
    blocks = as_rows(points).split(max(1, _ENTRIES // len(rows)))
    return np.concatenate([(kernel(block, rows) @ weights).numpy() for block in blocks])
