"""A kernel matrix as an operator, wherever its entries are kept: what solves need of it; its largest eigenvalues."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .._arguments import checked, whole
from .._conjugate import thin
from ..errors import ConvergenceError, InvalidInputError
from .pivoted import LowRankFactor, pivoted_cholesky

KernelFunction = Callable[[Tensor, Tensor | None], Tensor]
"""k(X, Y) with rows as points; Y is None for the symmetric matrix of X."""

_PIECE = 1 << 22  # bytes of a block that one thread uses twice while they are in its cache
_WIDE = 2048  # columns of such a piece


class KernelOperator(ABC):
    """D k(X, X) D: products, a few columns, the diagonal; D is the identity or a diagonal of ``scale``.

    Tiles here or on a cluster serve the same solve. They bring what K itself does, and the scale is put to it here.
    """

    def __init__(
        self, kernel: KernelFunction, X: Tensor, scale: Tensor | None, dtype: torch.dtype, progress: bool | None
    ) -> None:
        self.kernel, self.X, self.n, self.progress = kernel, X, len(X), progress
        self.dtype = dtype
        """Of the stored entries."""
        self.scale = None if scale is None else scale.to(X).reshape(-1, 1)
        """D as a column, or None for the identity."""

    # -- products ------------------------------------------------------------------------------------------
    def __matmul__(self, v: Tensor) -> Tensor:
        return self._scaled(v, fresh=False)

    def exact(self, v: Tensor) -> Tensor:
        """The product in float64 throughout; free where float64 is what is stored."""
        return self._scaled(v, fresh=self.dtype != torch.float64)

    def _scaled(self, v: Tensor, fresh: bool) -> Tensor:
        columns = v.reshape(self.n, -1)
        image = self._product(columns if self.scale is None else self.scale * columns, fresh)
        return (image if self.scale is None else self.scale * image).reshape(v.shape)

    @abstractmethod
    def _product(self, v: Tensor, fresh: bool) -> Tensor:
        """K v for columns v, with what is stored or with every entry computed again in float64."""

    # -- entries -------------------------------------------------------------------------------------------
    def diagonal(self) -> Tensor:
        """k(x_i, x_i), scaled, in float64."""
        return self._diagonal if self.scale is None else self._diagonal * self.scale[:, 0] ** 2

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        return self._own()

    @abstractmethod
    def _own(self) -> Tensor:
        """k(x_i, x_i)"""

    def columns(self, index: Tensor) -> Tensor:
        """The columns of these rows, (n, len(index)), in float64."""
        found = self._against(self.X[index])
        return found if self.scale is None else self.scale * found * self.scale[index, 0]

    @abstractmethod
    def _against(self, others: Tensor) -> Tensor:
        """k(X, others)"""

    def low_rank(self, rank: int, seed: int) -> LowRankFactor:
        """Randomly pivoted Cholesky."""
        return pivoted_cholesky(self.columns, self.diagonal(), rank, seed)

    def fingerprint(self) -> str:
        """Of the rows, and of the kernel between a few of them."""
        few = self.kernel(self.X[:16], None)
        digest = hashlib.sha256(np.ascontiguousarray(self.X.cpu().numpy()).data)  # no copy of it
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


# ---- the largest eigenvalues, by products alone ------------------------------------------------------------


_MORE = 8  # vectors beside those asked for: the last ones asked for converge sooner
_HELD = 6  # blocks that are held before the space is cut back to its best part


@dataclass(frozen=True, eq=False)
class Eigenpairs:
    """K vectors = vectors diag(values), the largest first."""

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    """|K u - value u| of each, in units of the largest value."""
    products: int
    """How often K was applied to a block of vectors."""


@checked
def top_eigenpairs(
    operator: KernelOperator, count: int, *, tol: float = 1e-8, seed: int = 0, max_products: int = 200
) -> Eigenpairs:
    """Block Krylov spaces, grown by the residuals of the Ritz vectors: one product for all of them at a time.

    >>> from notsodeep.solve import KernelTiles
    >>> X = torch.eye(4, dtype=torch.float64)
    >>> tiles = KernelTiles(lambda a, b: a @ torch.diag(torch.arange(1.0, 5.0).double()) @ (a if b is None else b).T, X)
    >>> top_eigenpairs(tiles, 2).values.round(decimals=9)
    tensor([4., 3.], dtype=torch.float64)
    """
    n = operator.n
    if not 1 <= count <= n:
        raise InvalidInputError(f"count must be between 1 and n = {n}, got {count}")
    whole("max_products", max_products)
    width = min(n, count + _MORE)
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(n, width, generator=generator, dtype=torch.float64))[0]
    images = operator.exact(basis)
    for products in range(1, max_products + 1):
        small = basis.T @ images
        values, turn = (part.flip(-1) for part in torch.linalg.eigh(0.5 * (small + small.T)))
        vectors, swept = basis @ turn[:, :width], images @ turn[:, :width]
        left = swept - vectors * values[:width]
        residuals = left[:, :count].norm(dim=0) / values[0].abs().clamp_min(1e-300)
        fresh = _beside(left, basis)
        if float(residuals.max()) <= tol or not fresh.shape[1]:
            return Eigenpairs(values[:count], vectors[:, :count], residuals, products)
        if basis.shape[1] + width > max(_HELD * width, 3 * width):
            best = turn[:, : 2 * width]
            basis, images = basis @ best, images @ best
            fresh = _beside(left, basis)
        basis, images = torch.cat([basis, fresh], 1), torch.cat([images, operator.exact(fresh)], 1)
    raise ConvergenceError(
        f"{count} eigenpairs did not reach {tol:.0e} in {max_products} products (largest residual "
        f"{float(residuals.max()):.1e} of the largest value); ask for fewer, a larger tol or more max_products"
    )


def _beside(left: Tensor, basis: Tensor) -> Tensor:
    """An orthonormal basis of what the residuals add to the space; nothing where they are rounding."""
    size = left.norm(dim=0)
    left = left[:, size > 1e-14 * basis.shape[0] ** 0.5 * size.max().clamp_min(1e-300)]
    for _ in range(2):
        left = left - basis @ (basis.T @ left)
        left, corner = torch.linalg.qr(left)
        kept = corner.diagonal().abs() > 1e-13 * corner.diagonal().abs().max().clamp_min(1e-300)
        left = left[:, kept]
    room = basis.shape[0] - basis.shape[1]
    return left[:, : max(room, 0)]
