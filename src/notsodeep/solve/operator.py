"""What a solve needs of a kernel matrix, wherever its entries are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .._conjugate import thin

KernelFunction = Callable[[Tensor, Tensor | None], Tensor]
"""k(X, Y) with rows as points; Y is None for the symmetric matrix of X."""

_PIECE = 1 << 22  # bytes of a block that one thread uses twice while they are in its cache
_WIDE = 2048  # columns of such a piece


class KernelOperator(Protocol):
    """D k(X, X) D: products, a few columns, the diagonal. Tiles here or on a cluster serve the same solve."""

    n: int
    X: Tensor
    kernel: KernelFunction
    dtype: torch.dtype
    """Of the stored entries."""
    scale: Tensor | None
    """D as a column, or None for the identity."""

    def __matmul__(self, v: Tensor, /) -> Tensor:
        """The product with what is stored."""

    def exact(self, v: Tensor, /) -> Tensor:
        """The product in float64 throughout."""

    def diagonal(self) -> Tensor:
        """In float64."""

    def columns(self, index: Tensor, /) -> Tensor:
        """The columns of these rows, in float64."""

    def low_rank(self, rank: int, seed: int, /) -> Factor:
        """Randomly pivoted Cholesky."""

    def fingerprint(self) -> str:
        """Of rows and kernel."""


class Factor(Protocol):
    """F F' ~ K, wherever the rows of F are."""

    @property
    def rank(self) -> int:
        """Columns of F."""

    @property
    def residual(self) -> Tensor:
        """The diagonal of K - F F'."""

    def gram(self) -> Tensor:
        """F' F."""

    def inner(self, R: Tensor, /) -> Tensor:
        """F' R."""

    def outer(self, Z: Tensor, /) -> Tensor:
        """F Z."""


def fingerprint(kernel: KernelFunction, X: Tensor) -> str:
    """Of the rows, and of the kernel between a few of them."""
    few = kernel(X[:16], None)
    digest = hashlib.sha256(np.ascontiguousarray(X.cpu().numpy()).data)  # no copy of it
    # eight digits: the same kernel on another machine may differ in the last ones
    digest.update(" ".join(f"{v:.8e}" for v in few.flatten().tolist()).encode())
    return digest.hexdigest()


def add_block(out: Tensor, v: Tensor, top: int, left: int, block: Tensor) -> None:
    """out += K v for the part of a symmetric K that is ``block`` at (top, left), and its mirror image.

    In pieces that stay in the cache for their second use. Quickest where ``out`` and ``v`` are transposes of rows, see
    :func:`as_columns`.
    """
    high, wide = len(block), 2 * _WIDE
    if block.device.type == "cpu":
        high, wide = _PIECE * torch.get_num_threads() // (_WIDE * block.element_size()), _WIDE
    for i in range(0, len(block), high):
        for j in range(0, block.shape[1], wide):
            piece = block[i : i + high, j : j + wide]
            rows, columns = (slice(a, a + size) for a, size in zip((top + i, left + j), piece.shape, strict=True))
            out[rows] += thin(piece, v[columns])
            if top != left:
                out[columns] += thin(piece.T, v[rows])


def as_columns(v: Tensor, dtype: torch.dtype) -> Tensor:
    """The same columns, each of them in one piece of memory."""
    return v.T.to(dtype).contiguous().T
