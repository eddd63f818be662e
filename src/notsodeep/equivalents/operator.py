"""A kernel matrix as scaled Gram + low rank + multiple of the identity: never n x n unless asked."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse.linalg
import torch
from torch import Tensor

from .._arguments import checked, not_negative
from .._arrays import as_numbers, as_rows, like, squared_norms
from ..errors import ConvergenceError, InvalidInputError
from ..mixtures import MixtureStatistics
from ..networks import Kernel, Network
from .four_numbers import Coefficients, coefficients
from .structured import Structured


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
        if not np.isfinite(np.asarray(torch.as_tensor(self.diagonal()).cpu())).all():
            dtype = self.rows.dtype
            raise ConvergenceError(
                f"the {self.kernel} of {self.network!r} overflows {dtype} on this data; scale it down"
                + (", or give it in float64" if dtype == torch.float32 else "")
            )

    @property
    def shape(self) -> tuple[int, int]:
        """(n, n)."""
        return (len(self.V), len(self.V))

    @functools.cached_property
    def rows(self) -> Tensor:
        """X as a tensor (shared memory where X is writeable)."""
        return as_rows(self.X, checked=False)

    def structured(self, ridge: float = 0.0) -> Structured:
        """Return K + ridge I in tensors on the device and in the precision of X."""
        X = self.rows
        V, core = (torch.as_tensor(part, dtype=X.dtype, device=X.device) for part in (self.V, self.core))
        return Structured(X, self.gain, V, core, self.shift + ridge)

    def __matmul__(self, v: Any) -> Any:
        return like(self.structured().product(self._vector(v)), v)

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
        K = self.structured()
        out = torch.addmm(K.V @ K.core @ K.V.T, K.X, K.X.T, alpha=K.gain)
        out = (out + out.T).mul_(0.5)  # symmetric to the bit
        out.diagonal().add_(K.shift)
        return like(out, self.X)

    def diagonal(self) -> Any:
        """Return the n diagonal entries."""
        squares = squared_norms(self.rows)  # in double precision
        low_rank = torch.from_numpy(((self.V @ self.core) * self.V).sum(1)).to(squares)
        return like((self.gain * squares + low_rank).to(self.rows) + self.shift, self.X)

    def linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """Return a SciPy operator, for its iterative methods."""
        K = self.structured()

        def product(v: np.ndarray) -> np.ndarray:
            return K.product(torch.from_numpy(v).to(K.X)).cpu().numpy()

        return scipy.sparse.linalg.LinearOperator(self.shape, matvec=product, matmat=product, dtype=np.float64)

    @checked
    def solve(self, v: Any, ridge: float = 0.0) -> Any:
        """Return (K + ridge I)^(-1) v for v of shape (n,) or (n, k), by a factorisation of the smaller side."""
        return like(self.structured(not_negative("ridge", ridge)).solve(self._vector(v)), v)

    @checked
    def logdet(self, ridge: float = 0.0) -> float:
        """Return log det(K + ridge I)."""
        return self.structured(not_negative("ridge", ridge)).factors[-1]

    def eigenvalues(self) -> np.ndarray:
        """Return all eigenvalues in decreasing order; for a few take SciPy's ``eigsh(eq.linear_operator(), k)``."""
        K = self.structured()
        n, inner = len(K.X), K.X.shape[1] + K.V.shape[1]
        if n <= inner:
            values = torch.linalg.eigvalsh(torch.as_tensor(self.matrix()))
        else:  # K - shift I = Q (R M R') Q' with Q orthonormal, so only a (p + r) x (p + r) matrix is needed
            R = torch.linalg.qr(torch.cat([K.X, K.V], dim=1), mode="r").R
            dense = R @ torch.block_diag(K.gain * torch.eye(K.X.shape[1]).to(K.X), K.core) @ R.T
            few = torch.linalg.eigvalsh(0.5 * (dense + dense.T))
            values = torch.cat([few, few.new_zeros(n - inner)]) + K.shift
        return values.sort(descending=True).values.cpu().numpy()

    def __repr__(self) -> str:
        n, p = tuple(self.rows.shape)
        return (
            f"EquivalentKernel({self.kernel}, n={n}, p={p}, gain={self.gain:.6g}, rank={len(self.core)}, "
            f"shift={self.shift:.6g}, network={self.network!r})"
        )
