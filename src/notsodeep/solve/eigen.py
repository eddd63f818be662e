"""The largest eigenvalues of a kernel that is known by its products alone."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .._arguments import checked, whole
from ..errors import ConvergenceError, InvalidInputError
from .operator import KernelOperator

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
