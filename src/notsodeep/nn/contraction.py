"""Is the recurrent map a contraction? Its norm by power iteration, and the projection that keeps it one."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["shrink_to_norm_", "spectral_norm"]


def spectral_norm(
    matrix: Tensor, start: Tensor | None = None, steps: int = 500, tol: float = 1e-5
) -> tuple[float, Tensor]:
    """(|A|, its right singular vector) by power iteration on A'A, from ``start`` or a fixed random vector.

    >>> import torch
    >>> round(spectral_norm(torch.diag(torch.tensor([1.0, -3.0, 2.0])))[0], 3)
    3.0
    """
    with torch.no_grad(), torch.autocast(matrix.device.type, enabled=False):
        vector = _random_unit(matrix) if start is None else start
        norm = 0.0
        for _ in range(steps):
            image = matrix.mT @ (matrix @ vector)
            size = float(torch.linalg.vector_norm(image))
            if size == 0.0 or not math.isfinite(size):
                return math.sqrt(size) if size == 0.0 else math.inf, vector
            vector = image / size
            before, norm = norm, math.sqrt(size)
            # power iteration creeps up from below: stop when it no longer does
            if abs(norm - before) <= tol * norm:
                break
    return norm, vector


def shrink_to_norm_(matrix: Tensor, limit: float, start: Tensor | None = None, steps: int = 20) -> tuple[float, Tensor]:
    """Scale ``matrix`` down in place so that its norm is at most ``limit``; return its norm before and the vector."""
    norm, vector = spectral_norm(matrix, start, steps)
    if norm > limit:
        with torch.no_grad():
            matrix.mul_(limit / norm)
    return norm, vector


def _random_unit(matrix: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(matrix.shape[1], generator=generator, dtype=torch.float64)
    return (vector / vector.norm()).to(matrix.device, matrix.dtype)
