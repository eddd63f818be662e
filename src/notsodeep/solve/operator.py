"""What a solve needs of a kernel matrix, wherever its entries are kept."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

__all__ = ["KernelFunction", "KernelOperator", "add_block", "fingerprint", "thin"]

KernelFunction = Callable[[Tensor, Tensor | None], Tensor]
"""k(X, Y) with rows as points; Y is None for the symmetric matrix of X."""


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

    def fingerprint(self) -> str:
        """Of rows and kernel."""


def fingerprint(kernel: KernelFunction, X: Tensor) -> str:
    """Of the rows, and of the kernel between a few of them."""
    few = kernel(X[:16], None)
    digest = hashlib.sha256(np.ascontiguousarray(X.cpu().numpy()).tobytes())
    # eight digits: the same kernel on another machine may differ in the last ones
    digest.update(" ".join(f"{v:.8e}" for v in few.flatten().tolist()).encode())
    return digest.hexdigest()


def add_block(out: Tensor, v: Tensor, top: int, left: int, block: Tensor) -> None:
    """out += K v for the part of a symmetric K that is ``block`` at (top, left), and its mirror image."""
    rows, columns = slice(top, top + block.shape[0]), slice(left, left + block.shape[1])
    out[rows] += thin(block, v[columns])
    if top != left:
        out[columns] += thin(block.T, v[rows])


def thin(A: Tensor, B: Tensor) -> Tensor:
    """A @ B for a B of few columns, as (B' A')': matrix routines take a few rows times a matrix three to ten times
    as fast as a matrix times a few columns.

    >>> thin(torch.eye(2), torch.ones(2, 1)).tolist()
    [[1.0], [1.0]]
    """
    return (B.T @ A.T).T
