"""The exact kernel of a network as a function of rows."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .._arguments import check_settings
from ..kernels import KernelFunction, kernel_function
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
    def function(self) -> KernelFunction | EmpiricalKernel:
        """The kernel of the source: of a module as it is, of a twin under its training rule, or of a network."""
        kernel: Any = self.kernel
        if isinstance(self.network, nn.Module):
            return EmpiricalKernel(self.network, kernel)
        return (
            self.network.function
            if isinstance(self.network, Twin)
            else kernel_function(self.network, kernel, check=self.check)
        )

    @property
    def empirical(self) -> EmpiricalKernel | None:
        """The kernel of a module."""
        return self.function if isinstance(self.function, EmpiricalKernel) else None

    def operator(self, X: Tensor, scale: Tensor | None = None, **options: Any) -> KernelOperator:
        """Return D k(X, X) D as an operator: in tiles, or without a matrix for modules and too many rows.

        ``options`` are those of :class:`KernelTiles`.
        """
        fits = triangle_bytes(len(X), torch.float32) < 0.8 * available_bytes(X.device)
        if self.empirical is None or fits or options.get("folder") is not None:
            return KernelTiles(self, X, scale=scale, **options)
        return TangentOperator(self, X, scale)

    def __call__(self, X: Tensor, Y: Tensor | None = None) -> Tensor:
        """Return the matrix of rows X, (n, p), against rows Y, (m, p), or of X with itself."""
        if isinstance(self.network, Twin):
            self.network.check_norms(X, Y)
        matrix: Tensor = self.function(X, Y)
        return matrix

    def expansion(self, X: Tensor, rows: Tensor, coefficients: Tensor) -> Tensor:
        """Compute f(x) = sum_i a_i k(x, x_i) at rows X, (m, p), with x_i in ``rows``: a tensor of shape (m, k)."""
        if self.empirical is not None:
            return self.empirical.product(X.to(rows), rows, coefficients)
        parts = X.split(max(1, LIMITS.entries // len(rows)))
        return torch.cat([self(part.to(rows), rows) @ coefficients for part in parts])

    def slopes(self, X: Tensor, Y: Tensor) -> Slopes:
        """Compute the matrix of rows X, (n, p), against rows Y, (m, p), and its derivatives in x . y and |x|^2."""
        function: Any = self.function
        found: Slopes = function.slopes(X, Y)
        return found

    def diagonal(self, X: Tensor) -> Tensor:
        """Compute k(x, x) of every row."""
        values: Tensor = self.function.diagonal(X)
        return values


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
