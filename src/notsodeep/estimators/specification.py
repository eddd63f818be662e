"""From flat parameters to a network and its kernel."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..matching import Twin
from ..networks import DEQ, ENN, KERNELS, Kernel

__all__ = ["VARIANCES", "NetworkKernel", "Source", "deq_of", "network_of", "slope_of"]

VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")
Source = DEQ | ENN | Twin
_BLOCK = 512
_STEP = 5e-3  # of differences, in the logarithm of a variance


def network_of(estimator: Any) -> Source:
    """The network of an estimator: ``network`` if it has one, else the DEQ of its flat parameters."""
    network = estimator.network
    if network is None:
        deq = deq_of(estimator.activation, {name: getattr(estimator, name) for name in VARIANCES})
        deq.check_contraction()
        return deq
    if not isinstance(network, DEQ | ENN | Twin):
        raise InvalidInputError(f"network must be a DEQ, an ENN or a twin, got {type(network).__name__}")
    return network


@dataclass(frozen=True)
class NetworkKernel:
    """k(X, Y) of a network, exactly; a twin brings its own kernel and training rule."""

    network: Source
    kernel: Kernel
    check: bool = True
    """False: also outside the range in which a unique equilibrium is guaranteed."""

    def __post_init__(self) -> None:
        if self.kernel not in KERNELS:
            raise InvalidInputError(f"kernel must be one of {', '.join(KERNELS)}, got {self.kernel!r}")

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

    def diagonal(self, X: Tensor) -> Tensor:
        """k(x, x) of every row, from small symmetric blocks, whose diagonals are exact."""
        return torch.cat([self._matrix(part, None).diagonal() for part in X.split(_BLOCK)])

    def _matrix(self, X: Tensor, Y: Tensor | None) -> Tensor:
        if isinstance(self.network, Twin):
            found: Tensor = self.network.kernel_matrix(X, Y)
            return found
        matrix: Tensor = kernels_of(self.network, X, Y, kinds=(self.kernel,), check=self.check)[self.kernel]
        return matrix


def deq_of(activation: Any, values: Mapping[str, float | None]) -> DEQ:
    """The DEQ of these variances; those that are left out are zero, sigma_b2 is tied to sigma_a2."""
    return DEQ(activation, values.get("sigma_a2") or 0.0, values.get("sigma_b2"), values.get("sigma_c2") or 0.0)


def slope_of(activation: Any, kernel: Kernel, values: Mapping[str, Any], name: str, X: Tensor) -> Tensor:
    """dK / d log(variance) on the rows of X: a central difference of fourth order between exact kernels.

    Good to about 1e-10 of the kernel, and some twenty times quicker than the gradient of every entry.
    """

    def at(steps: int) -> Tensor:
        moved = {**values, name: values[name] * math.exp(steps * _STEP)}
        return NetworkKernel(deq_of(activation, moved), kernel, check=False)(X)

    return (8.0 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12.0 * _STEP)


def _identical(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Index pairs of rows that agree to the last bit; on the CPU, where they can be looked up."""
    if X.is_cuda:
        return torch.zeros(0, dtype=torch.long), torch.zeros(0, dtype=torch.long)
    where: dict[bytes, list[int]] = {}
    for j, row in enumerate(Y.numpy()):
        where.setdefault(row.tobytes(), []).append(j)
    pairs = [(i, j) for i, row in enumerate(X.numpy()) for j in where.get(row.tobytes(), ())]
    found = torch.tensor(pairs, dtype=torch.long).reshape(-1, 2)
    return found[:, 0], found[:, 1]
