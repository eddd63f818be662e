"""The readout in closed form."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InvalidInputError
from .base import Model

__all__ = ["compute_features", "ridge_readout", "set_readout"]


def compute_features(model: Model, X: Tensor, batch_size: int = 1024) -> Tensor:
    """The hidden states of all rows, batch by batch, without derivatives."""
    with torch.no_grad():
        return torch.cat([model.features(batch) for batch in X.split(batch_size)])


def ridge_readout(features: Tensor, targets: Tensor, ridge: float) -> Tensor:
    """argmin_R |F R' - Y|^2 / n + ridge |R|^2, shape (outputs, width), by Cholesky in double precision.

    The smaller of the two systems is solved: width x width, or n x n.

    >>> F = torch.eye(2, dtype=torch.float64)
    >>> ridge_readout(F, torch.tensor([[2.0], [4.0]], dtype=torch.float64), ridge=0.5).round(decimals=9)
    tensor([[1., 2.]], dtype=torch.float64)
    """
    if not (math.isfinite(ridge) and ridge > 0):
        raise InvalidInputError(f"ridge must be positive and finite, got {ridge!r}")
    n, width = features.shape
    F, Y = features.to(torch.float64), targets.to(torch.float64)
    if n >= width:
        gram = F.mT @ F
        gram.diagonal().add_(n * ridge)
        solution = torch.cholesky_solve(F.mT @ Y, torch.linalg.cholesky(gram))
    else:
        gram = F @ F.mT
        gram.diagonal().add_(n * ridge)
        solution = F.mT @ torch.cholesky_solve(Y, torch.linalg.cholesky(gram))
    return solution.mT.to(features.dtype)


def set_readout(model: Model, features: Tensor, targets: Tensor, ridge: float) -> None:
    """Fit the readout in place; a bias, where the model has one, is not penalised."""
    with torch.no_grad():
        if model.bias is None:
            model.readout.copy_(ridge_readout(features, targets, ridge))
            return
        centre, middle = features.mean(0), targets.mean(0)
        model.readout.copy_(ridge_readout(features - centre, targets - middle, ridge))
        model.bias.copy_(middle - model.readout @ centre)
