"""A kernel matrix as scaled Gram + low rank + multiple of the identity: never n x n unless asked."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from .._arguments import checked, not_negative
from .._arrays import as_numbers, as_rows, check_range, like, squared_norms
from .._conjugate import thin
from ..errors import InvalidInputError
from ..mixtures import MixtureStatistics
from ..networks import Kernel, Network
from .four_numbers import Coefficients, coefficients


@checked
def equivalent(network: Network, statistics: MixtureStatistics, kernel: Kernel = "ck") -> EquivalentKernel:
    """Build the high-dimensional equivalent of a kernel on mixture data (theory, sections 4 and 5), as an operator.

    Parameters
    ----------
    network : DEQ or ENN
        The network; the equivalent is that of the network centred at the data's tau0, ``.network``.
    statistics : MixtureStatistics
        The rows and their classes.
    kernel : "ck", "ntk" or "ntk_frozen"
        Which kernel.

    Returns
    -------
    EquivalentKernel
        With ``.coefficients``, ``.matrix()``, ``eq @ v``, ``.solve(v, ridge)`` and ``.logdet(ridge)``.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(100)
    >>> X, y = mix.sample(80, seed=0)
    >>> eq = equivalent(nsd.DEQ("tanh", sigma_a2=0.2), nsd.MixtureStatistics.from_mixture(mix, X, y))
    >>> eq.shape, (eq @ np.ones(80)).shape
    ((80, 80), (80,))
    """
    c, t = coefficients(network, statistics.tau0, kernel), statistics.t[:, None]
    core = np.block([[c.c2 * t @ t.T + c.c3 * statistics.T, c.c2 * t], [c.c2 * t.T, np.array([[c.c2]])]])
    return EquivalentKernel(
        statistics.X, c.c1, statistics.V, core, c.diagonal - c.tau0**2 * c.c1, c.network, c.kernel, c, statistics
    )


@dataclass(frozen=True, eq=False, repr=False)
class EquivalentKernel:
    """The matrix gain X X' + V core V' + shift I, never n x n unless asked.

    Products cost two passes over X. NumPy vectors give NumPy results, torch tensors give tensors.
    """

    X: Any
    """The rows, (n, p)."""
    gain: float
    """c1, the weight of the Gram matrix."""
    V: np.ndarray
    """Low-rank factor, (n, r); [J/sqrt(p), psi] for a mixture."""
    core: np.ndarray
    """Symmetric (r, r)."""
    shift: float
    """Multiple of the identity."""
    network: Network
    """The network whose kernel this is: the centred one for a mixture."""
    kernel: Kernel
    coefficients: Coefficients | None = None
    """The four numbers, for a mixture."""
    statistics: MixtureStatistics | None = None

    def __post_init__(self) -> None:
        check_range(torch.as_tensor(self.diagonal())[:, None], self.kernel, self.network)

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return (len(self.V), len(self.V))

    @functools.cached_property
    def rows(self) -> Tensor:
        """X as a tensor (shared memory where X is writeable)."""
        return as_rows(self.X, checked=False)

    @functools.cached_property
    def _low_rank(self) -> tuple[Tensor, Tensor]:
        """V and core on the device and in the precision of X."""
        V, core = (
            torch.as_tensor(array, dtype=self.rows.dtype, device=self.rows.device) for array in (self.V, self.core)
        )
        return V, core

    # with F = [X, V] and M = diag(gain I, core) the matrix is F M F' + shift I

    def _project(self, v: Tensor) -> Tensor:
        """Return F' v."""
        return torch.cat([thin(self.rows.T, v), thin(self._low_rank[0].T, v)])

    def _lift(self, w: Tensor) -> Tensor:
        """Return F M w."""
        V, core = self._low_rank
        p = self.rows.shape[1]
        return self.gain * thin(self.rows, w[:p]) + thin(V, core @ w[p:])

    def _product(self, v: Tensor, ridge: float = 0.0) -> Tensor:
        return self._lift(self._project(v)).add_(v, alpha=self.shift + ridge)

    def __matmul__(self, v: Any) -> Any:
        return like(self._product(self._vector(v)), v)

    def _vector(self, v: Any) -> Tensor:
        X = self.rows
        vector = as_numbers(v, "v")
        if vector.ndim not in (1, 2) or len(vector) != len(X):
            raise InvalidInputError(
                f"expected {len(X)} entries or a matrix with {len(X)} rows, got {tuple(vector.shape)}"
            )
        return vector.to(X)

    def matrix(self) -> Any:
        """Return the dense matrix, (n, n)."""
        return like(self._dense(), self.X)

    def _dense(self, ridge: float = 0.0) -> Tensor:
        X, (V, core) = self.rows, self._low_rank
        out = torch.addmm(V @ core @ V.T, X, X.T, alpha=self.gain)
        out = (out + out.T).mul_(0.5)  # symmetric to the bit
        out.diagonal().add_(self.shift + ridge)
        return out

    def diagonal(self) -> Any:
        """Return the n diagonal entries."""
        squares = squared_norms(self.rows)  # in double precision
        low_rank = torch.from_numpy(((self.V @ self.core) * self.V).sum(1)).to(squares)
        return like((self.gain * squares + low_rank).to(self.rows) + self.shift, self.X)

    def linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """Return a SciPy operator, for its iterative methods."""

        def product(v: np.ndarray) -> np.ndarray:
            return self._product(torch.from_numpy(v).to(self.rows)).cpu().numpy()

        return scipy.sparse.linalg.LinearOperator(self.shape, matvec=product, matmat=product, dtype=np.float64)

    @checked
    def solve(self, v: Any, ridge: float = 0.0) -> Any:
        """Return (K + ridge I)^(-1) v for v of shape (n,) or (n, k), by a factorisation of the smaller side."""
        inverse, _ = self._factorised(not_negative("ridge", ridge))
        vector = self._vector(v)
        column = vector[:, None] if vector.ndim == 1 else vector
        z = inverse(column)
        for _ in range(2):  # Woodbury alone loses the digits that ||K|| / shift costs
            z = z + inverse(column - self._product(z, ridge))
        return like(z.reshape(vector.shape), v)

    @checked
    def logdet(self, ridge: float = 0.0) -> float:
        """Return log det(K + ridge I)."""
        return self._factorised(not_negative("ridge", ridge))[1]

    def _factorised(self, ridge: float) -> tuple[Callable[[Tensor], Tensor], float]:
        """Return the inverse of K + ridge I as a function, and log det: by Cholesky, or Woodbury where n is larger."""
        shift, n = self.shift + ridge, len(self.V)
        if shift <= 0:
            raise InvalidInputError(
                f"the kernel plus ridge is singular: its diagonal part is {shift:.3g}; use a larger ridge"
            )
        if n <= self.rows.shape[1]:
            factor, failed = torch.linalg.cholesky_ex(self._dense(ridge))
            sign, logdet = torch.tensor(1.0 - float(failed)), 2.0 * factor.diagonal().log().sum()

            def inverse(v: Tensor) -> Tensor:
                return torch.cholesky_solve(v, factor)

        else:  # (shift I + F M F')^(-1) = (I - F M (shift I + F'F M)^(-1) F') / shift
            blocks = [self._project(part) for part in (self.rows, self._low_rank[0])]
            small = torch.cat([self.gain * blocks[0], blocks[1] @ self._low_rank[1]], dim=1) / shift
            small.diagonal().add_(1.0)
            sign, logdet = torch.linalg.slogdet(small)
            logdet = logdet + n * math.log(shift)
            factors = torch.linalg.lu_factor(small)

            def inverse(v: Tensor) -> Tensor:
                return (v - self._lift(torch.linalg.lu_solve(*factors, self._project(v))) / shift) / shift

        if float(sign) <= 0:
            raise InvalidInputError(
                "the kernel plus ridge is not positive definite: the low-rank part is negative somewhere, as "
                "statistics estimated from few points can make it; use a larger ridge"
            )
        return inverse, float(logdet)

    def eigenvalues(self) -> np.ndarray:
        """Return all eigenvalues in decreasing order; for a few take SciPy's ``eigsh(eq.linear_operator(), k)``."""
        X, (V, core) = self.rows, self._low_rank
        n, inner = len(X), X.shape[1] + len(core)
        if n <= inner:
            values = torch.linalg.eigvalsh(self._dense())
        else:  # F M F' = Q (R M R') Q' with Q orthonormal, so only a (p + r) x (p + r) matrix is needed
            R = torch.linalg.qr(torch.cat([X, V], dim=1), mode="r").R
            dense = R @ torch.block_diag(self.gain * torch.eye(X.shape[1]).to(X), core) @ R.T
            few = torch.linalg.eigvalsh(0.5 * (dense + dense.T))
            values = torch.cat([few, few.new_zeros(n - inner)]) + self.shift
        return values.sort(descending=True).values.cpu().numpy()

    def __repr__(self) -> str:
        n, p = tuple(self.rows.shape)
        return (
            f"EquivalentKernel({self.kernel}, n={n}, p={p}, gain={self.gain:.6g}, rank={len(self.core)}, "
            f"shift={self.shift:.6g}, network={self.network!r})"
        )
