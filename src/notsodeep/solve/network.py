"""What a solve takes of a network: its exact kernel as a function of rows, or sums over its random features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .._arguments import check_settings
from ..kernels import kernel_function, kernels_of
from ..matching import Twin
from ..networks import DEQ, ENN, Kernel, network_from_dict
from ..nn import ENN as Network
from ..nn.model import in_batches

Source = DEQ | ENN | Twin
_BLOCK = 512
_ENTRIES = 1 << 25  # of a kernel block that is held at once


@dataclass(frozen=True)
class NetworkKernel:
    """k(X, Y) of a network, exactly; a twin brings its own kernel and training rule."""

    network: Source
    kernel: Kernel
    check: bool = True
    """False: also outside the range in which a unique equilibrium is guaranteed."""

    def __post_init__(self) -> None:
        check_settings(self)

    def __call__(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        """The matrix; identical rows have the kernel of a point with itself to the last digit.

        From inner products alone an NTK is known to 1e-8 there: its slope is infinite where the cosine is 1.
        """
        found = self._matrix(X, Y)
        rows, columns = _identical(X, X if Y is None else Y)
        if Y is None:
            found[rows, columns] = found.diagonal()[rows]
        elif len(rows):
            some, again = rows.unique(return_inverse=True)
            found[rows, columns] = self.diagonal(X[some])[again]
        return found

    def expansion(self, X: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
        """f(x) = sum_i a_i k(x, x_i) at the rows of X, a few at a time."""
        parts = X.split(max(1, _ENTRIES // len(rows)))
        return torch.cat([self(part.to(rows), rows) @ coefficients for part in parts])

    def diagonal(self, X: Tensor) -> Tensor:
        """k(x, x) of every row, exactly: from the norms, or from small symmetric blocks of a twin's kernel."""
        if isinstance(self.network, Twin):
            return torch.cat([self._matrix(part, None).diagonal() for part in X.split(_BLOCK)])
        norms = X if len(X) > _BLOCK else None  # few rows are not worth a table
        found: Tensor = kernel_function(self.network, self.kernel, norms, check=self.check).diagonal(X)
        return found

    def to_dict(self) -> dict[str, Any]:
        """A JSON document; an activation that wraps a Python function is refused."""
        name = "twin" if isinstance(self.network, Twin) else "network"
        return {"kernel": self.kernel, "check": self.check, name: self.network.to_dict()}

    @staticmethod
    def from_dict(document: Mapping[str, Any]) -> NetworkKernel:
        """What :meth:`to_dict` wrote."""
        twin = "twin" in document
        source = Twin.from_dict(document["twin"]) if twin else network_from_dict(document["network"])
        return NetworkKernel(source, document["kernel"], document.get("check", True))

    def _matrix(self, X: Tensor, Y: Tensor | None) -> Tensor:
        if isinstance(self.network, Twin):
            found: Tensor = self.network.kernel_matrix(X, Y)
            return found
        matrix: Tensor = kernels_of(self.network, X, Y, kernels=(self.kernel,), check=self.check)[self.kernel]
        return matrix


def _identical(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Index pairs of rows that agree to the last bit, found by their checksums."""
    mine, (theirs, order) = _checksums(X), _checksums(Y).sort()
    first, last = (torch.searchsorted(theirs, mine, right=right) for right in (False, True))
    count = last - first
    rows = torch.arange(len(X), device=X.device).repeat_interleave(count)
    starts = (first - (count.cumsum(0) - count)).repeat_interleave(count)
    columns = order[starts + torch.arange(len(rows), device=X.device)]
    same = (X[rows] == Y[columns]).all(1)
    return rows[same], columns[same]


def _checksums(X: Tensor) -> Tensor:
    """One number for each row, from its bits: sums of whole numbers do not depend on their order."""
    bits = X.contiguous().view(torch.int64 if X.dtype == torch.float64 else torch.int32)
    odd = torch.randint(2**62, (X.shape[1],), generator=torch.Generator().manual_seed(0)).mul_(2).add_(1).to(X.device)
    return torch.cat([(part.to(torch.int64) * odd).sum(1) for part in bits.split(_BLOCK)])


# ---- random features ---------------------------------------------------------------------------------------


_CHUNK = 4096


def features_of(model: Network, X: Tensor) -> Tensor:
    """The last hidden states, without derivatives, in the precision of the model; a few thousand rows at a time."""
    return in_batches(lambda part: model.features(part.to(model.weights[0])), X, _CHUNK)


@dataclass(frozen=True, eq=False)
class FeatureSums:
    """Sums over rows: everything that ridge regression on features needs of them."""

    gram: Tensor
    """sum w phi phi', (width, width)."""
    cross: Tensor
    """sum w phi y', (width, k)."""
    weight: float
    rows: int

    @staticmethod
    def of(model: Network, X: Tensor, T: Tensor, weights: Tensor) -> FeatureSums:
        """Of rows, targets and weights; products in the precision of the features, sums in double."""
        gram = torch.zeros(model.width, model.width, dtype=torch.float64, device=X.device)
        cross = torch.zeros(model.width, T.shape[1], dtype=torch.float64, device=X.device)
        for x, t, w in zip(*(part.split(_CHUNK) for part in (X, T, weights)), strict=True):
            phi = features_of(model, x)
            weighted = phi * w.to(phi)[:, None]
            gram += weighted.T @ phi
            cross += weighted.T @ t.to(phi)
        return FeatureSums(gram, cross, float(weights.sum()), len(X))

    def merge(self, other: FeatureSums) -> FeatureSums:
        """The sums over both sets of rows."""
        return FeatureSums(
            self.gram + other.gram, self.cross + other.cross, self.weight + other.weight, self.rows + other.rows
        )
