"""Sums over rows of random features: everything that ridge regression on features needs of the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..nn import ENN as Network
from ..nn.model import in_batches

_CHUNK = 4096


def features_of(model: Network, X: Tensor) -> Tensor:
    """The last hidden states, without derivatives, in the precision of the model; a few thousand rows at a time."""
    return in_batches(lambda part: model.features(part.to(model.weights[0])), X, _CHUNK)


@dataclass
class FeatureSums:
    """Sums over all rows seen: everything that ridge regression on features needs of them."""

    gram: Tensor
    """sum w phi phi', (width, width)."""
    cross: Tensor
    """sum w phi y', (width, k)."""
    weight: float = 0.0
    rows: int = 0

    @staticmethod
    def empty(width: int, outputs: int, device: torch.device) -> FeatureSums:
        return FeatureSums(
            torch.zeros(width, width, dtype=torch.float64, device=device),
            torch.zeros(width, outputs, dtype=torch.float64, device=device),
        )

    def add(self, model: Network, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
        """Rows, targets and weights; products in the precision of the features, sums in double."""
        for X, T, w in batches:
            phi = features_of(model, X)
            weighted = phi * w.to(phi)[:, None]
            self.gram += weighted.T @ phi
            self.cross += weighted.T @ T.to(phi)
            self.weight += float(w.sum())
            self.rows += len(X)

    def merge(self, other: FeatureSums) -> FeatureSums:
        """The sums over both sets of rows."""
        return FeatureSums(
            self.gram + other.gram, self.cross + other.cross, self.weight + other.weight, self.rows + other.rows
        )


def batches(X: Tensor, T: Tensor, weights: Tensor) -> Iterable[tuple[Tensor, Tensor, Tensor]]:
    """Rows, targets and weights, a few thousand at a time."""
    return zip(X.split(_CHUNK), T.split(_CHUNK), weights.split(_CHUNK), strict=True)
