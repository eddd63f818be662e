"""The exact kernel of a network as a function of rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import check_settings
from ..kernels import convolutional_diagonal, kernel_function, kernels_of
from ..kernels.slopes import Slopes
from ..matching import Twin
from ..networks import DEQ, ENN, Convolutional, Kernel
from ..nn import EmpiricalKernel
from ._limits import LIMITS
from .operators import KernelOperator, KernelTiles, available_bytes, triangle_bytes

Source = DEQ | ENN | Convolutional | Twin  # what has a kernel


@dataclass(frozen=True)
class NetworkKernel:
    """The exact kernel k(X, Y) of a network, as a function of rows.

    Parameters
    ----------
    network : DEQ, ENN, ConvDEQ, ConvENN, Twin or nn.Module
        A twin brings its own kernel and training rule, a module the empirical kernel that it has as it is.
    kernel : "ck", "ntk" or "ntk_frozen"
    check : bool
        Whether to refuse a DEQ outside the range in which a unique equilibrium is guaranteed.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> NetworkKernel(nsd.ENN(["relu"]), "ck")(torch.eye(2, dtype=torch.float64)).shape
    torch.Size([2, 2])
    """

    network: Source | nn.Module
    kernel: Kernel
    check: bool = True

    def __post_init__(self) -> None:
        check_settings(self)

    @functools.cached_property
    def empirical(self) -> EmpiricalKernel | None:
        """The kernel of a module."""
        kernel: Any = self.kernel
        return EmpiricalKernel(self.network, kernel) if isinstance(self.network, nn.Module) else None

    def operator(self, X: Tensor, scale: Tensor | None = None, **options: Any) -> KernelOperator:
        """Return D k(X, X) D as an operator: in tiles, or without a matrix for modules and too many rows.

        ``options`` are those of :class:`KernelTiles`.
        """
        fits = triangle_bytes(len(X), torch.float32) < 0.8 * available_bytes(X.device)
        if self.empirical is None or fits or options.get("folder") is not None:
            return KernelTiles(self, X, scale=scale, **options)
        return TangentOperator(self, X, scale)

    def __call__(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        """Return the matrix of rows X, (n, p), against rows Y, (m, p), or of X with itself.

        Identical rows have the kernel of a point with itself to the last digit. From inner products alone an NTK has
        an error of 1e-8 there, since its slope is infinite where the cosine is 1.
        """
        found = self._matrix(X, Y)
        if self.empirical is not None:
            return found
        rows, columns = _identical(X, X if Y is None else Y)
        if Y is None:
            found[rows, columns] = found.diagonal()[rows]
        elif len(rows):
            some, again = rows.unique(return_inverse=True)
            found[rows, columns] = self.diagonal(X[some])[again]
        return found

    def expansion(self, X: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
        """Compute f(x) = sum_i a_i k(x, x_i) at rows X, (m, p), with x_i in ``rows``: a tensor of shape (m, k)."""
        if self.empirical is not None:
            return self.empirical.product(X.to(rows), rows, coefficients)
        parts = X.split(max(1, LIMITS.entries // len(rows)))
        return torch.cat([self(part.to(rows), rows) @ coefficients for part in parts])

    def slopes(self, X: Tensor, Y: Tensor) -> Slopes:
        """Compute the matrix of rows X, (n, p), against rows Y, (m, p), and its derivatives in x . y and |x|^2."""
        network, x, y = self._driven(X, Y)
        found: Slopes = kernel_function(network, self.kernel, check=self.check).slopes(x, y)
        unit = 1.0 if network is self.network else self.network.input_variance  # type: ignore[union-attr]
        return Slopes(found.value, unit * found.inner, unit * found.square)

    def _driven(self, X: Tensor, Y: Tensor | None) -> tuple[Any, Tensor, Tensor | None]:
        """Return a DEQ with sigma_b2 = 1 and no bias, and rows sqrt(sigma_b2) x with a column of sqrt(sigma_c2).

        Its kernel is the same, and quicker: DEQs that differ in these variances share a table, a homogeneous network
        without a bias has a function of the angle alone, and with the constant no row is near zero and few pairs are
        near parallel, where kernels are computed one by one.
        """
        network: Any = self.network
        if not isinstance(network, DEQ) or network.normalise or network.input_variance == 0.0:
            return network, X, Y
        _, b, c = (v**0.5 for v in network.variances)
        x, y = (v if v is None else b * v for v in (X, Y))
        if c > 0.0:
            x, y = (v if v is None else torch.cat([v, v.new_full((len(v), 1), c)], dim=1) for v in (x, y))
        assert x is not None
        return network.varied(None, 1.0, 0.0), x, y

    def diagonal(self, X: Tensor) -> Tensor:
        """Compute k(x, x) of every row, from its norm, or from small symmetric blocks of the kernel of a twin."""
        if self.empirical is not None:
            return self.empirical.diagonal(X)
        if isinstance(self.network, Twin):
            return torch.cat([self._matrix(part, None).diagonal() for part in X.split(LIMITS.diagonal_block)])
        network: Any = self.network
        if network.image is not None:
            return convolutional_diagonal(network, X, (self.kernel,))[self.kernel]
        norms = X if len(X) > LIMITS.diagonal_block else None  # few rows are not worth a table
        found: Tensor = kernel_function(network, self.kernel, norms, check=self.check).diagonal(X)
        return found

    def _matrix(self, X: Tensor, Y: Tensor | None) -> Tensor:
        if self.empirical is not None:
            return self.empirical(X, Y)
        if isinstance(self.network, Twin):
            found: Tensor = self.network.kernel_matrix(X, Y)
            return found
        network, x, y = self._driven(X, Y)
        matrix: Tensor = kernels_of(network, x, y, kernels=(self.kernel,), check=self.check)[self.kernel]
        return matrix


class TangentOperator(KernelOperator):
    """D k(X, X) D of a module's empirical kernel, whose products need gradients of blocks of rows and no matrix."""

    def __init__(self, kernel: NetworkKernel, X: Tensor, scale: Tensor | None = None) -> None:
        assert kernel.empirical is not None
        super().__init__(kernel, X.to(torch.float64), scale, torch.float64)
        self.empirical = kernel.empirical

    def _product(self, v: Tensor, exact: bool) -> Tensor:
        return self.empirical.product(self.X, self.X, v)

    @functools.cached_property
    def _diagonal(self) -> Tensor:
        return self.empirical.diagonal(self.X)

    def _compute_columns(self, others: Tensor) -> Tensor:
        return self.empirical(self.X, others)


def _identical(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    """Return index pairs of different rows that agree to the last bit, found by their checksums."""
    mine, (theirs, order) = _checksums(X), _checksums(Y).sort()
    first, last = (torch.searchsorted(theirs, mine, right=right) for right in (False, True))
    count = last - first
    rows = torch.arange(len(X), device=X.device).repeat_interleave(count)
    starts = (first - (count.cumsum(0) - count)).repeat_interleave(count)
    columns = order[starts + torch.arange(len(rows), device=X.device)]
    if X is Y:
        rows, columns = rows[rows != columns], columns[rows != columns]
    same = (X[rows] == Y[columns]).all(1)
    return rows[same], columns[same]


def _checksums(X: Tensor) -> Tensor:
    """Return one number for each row, from its bits; sums of whole numbers do not depend on their order."""
    bits = X.contiguous().view(torch.int64 if X.dtype == torch.float64 else torch.int32)
    odd = torch.randint(2**62, (X.shape[1],), generator=torch.Generator().manual_seed(0)).mul_(2).add_(1).to(X.device)
    return torch.cat([(part.to(torch.int64) * odd).sum(1) for part in bits.split(LIMITS.diagonal_block)])
