"""What a fitted machine keeps in order to predict: tensors, and a document that says what they mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..nn import ENN as Network
from ..solve import NetworkKernel, features_of
from .embedding import Embedding

__all__ = ["Expansion", "FeatureReadout", "Fitted", "LinearEquivalent", "Predictor"]

_ENTRIES = 1 << 25  # of a kernel block that is held at once


class Predictor(ABC):
    """x -> k numbers."""

    def __call__(self, X: Tensor) -> Tensor:
        """Predictions at the rows of X, a few at a time, in double precision."""
        parts = [self.block(part) for part in X.split(self.rows)]
        return torch.cat(parts) if parts else torch.zeros(0, 0, dtype=torch.float64)

    @property
    @abstractmethod
    def rows(self) -> int:
        """How many rows at a time."""

    @abstractmethod
    def block(self, X: Tensor) -> Tensor:
        """Predictions at a few rows."""


@dataclass(frozen=True, eq=False)
class Expansion(Predictor):
    """f(x) = sum_i a_i k(x, x_i)."""

    kernel: NetworkKernel
    X: Tensor
    coefficients: Tensor
    """Shape (n, k)."""

    @property
    def rows(self) -> int:
        return max(1, _ENTRIES // len(self.X))

    def block(self, X: Tensor) -> Tensor:
        return self.kernel(X.to(self.X), self.X) @ self.coefficients


@dataclass(frozen=True, eq=False)
class LinearEquivalent(Predictor):
    """f(x) = z(x) . w in the coordinates of the equivalent: O(p) for each row."""

    embedding: Embedding
    weights: Tensor

    @property
    def rows(self) -> int:
        return 8192

    def block(self, X: Tensor) -> Tensor:
        return self.embedding(X) @ self.weights


@dataclass(frozen=True, eq=False)
class FeatureReadout(Predictor):
    """f(x) = phi(x) . w with the random features of a network."""

    model: Network
    weights: Tensor

    @property
    def rows(self) -> int:
        return max(1, _ENTRIES // self.model.width)

    def block(self, X: Tensor) -> Tensor:
        return features_of(self.model, X).double() @ self.weights


@dataclass(frozen=True, eq=False)
class Fitted:
    """A predictor, and how it was found."""

    predictor: Predictor
    ridge: float
    """Relative to the mean diagonal."""
    lift: float
    """Absolute: ridge times the mean diagonal."""
    leave_one_out: Tensor | None
    """(n, k), or None where it would cost more than the fit."""
    record: dict[str, Any]
    """Solver, steps, residuals."""
