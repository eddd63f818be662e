"""The four numbers that decide a network's kernel in high dimension (theory, sections 4 and 5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
import torch
from numpy.typing import NDArray

from .._arguments import checked
from .._arrays import as_rows, squared_norms
from .._chebyshev import interpolated
from ..kernels import diagonal, pairwise, power_series
from ..kernels.jets import equilibrium_jet, index, network_jets
from ..mixtures import MixtureStatistics
from ..networks import DEQ, Kernel, Network, check_kernel, check_tau0


@dataclass(frozen=True)
class Coefficients:
    """c1 X X' + V [[c2 t t' + c3 T, c2 t], [c2 t', c2]] V' + (diagonal - tau0^2 c1) I."""

    kernel: Kernel
    tau0: float
    c1: float
    """alpha_1 (CK) or beta_1 (NTK): weight of the Gram matrix."""
    c2: float
    """alpha_2 or beta_2: weight of the norm fluctuations psi and of t."""
    c3: float
    """alpha_3 or beta_3: weight of T."""
    diagonal: float
    """gamma^2 or kappa^2: the kernel of a point with itself."""
    network: Network
    """The centred network that the numbers describe."""
    alpha4: float
    """Response of the squared norm: s2b / (1 - s2a Q2/2) for a DEQ, the product of Q2/2 over layers for an ENN."""
    tau_star: float | None = None
    """Scale of the pre-activation of a DEQ."""
    bias: float | None = None
    """E[phi(tau* xi)], what centring subtracts from the activation of a DEQ."""

    @property
    def four(self) -> tuple[float, float, float, float]:
        """(c1, c2, c3, diagonal)."""
        return (self.c1, self.c2, self.c3, self.diagonal)


@checked
def coefficients(network: Network, tau0: float = 1.0, kernel: Kernel = "ck") -> Coefficients:
    """The coefficients of a DEQ or an ENN at input scale tau0; the network is centred first.

    >>> import notsodeep as nsd
    >>> c = nsd.coefficients(nsd.DEQ("relu", sigma_a2=0.2), tau0=1.0)
    >>> round(c.c1, 10), round(c.diagonal, 10)
    (0.2105263158, 0.2926239295)
    """
    check_kernel(network, kernel)
    scale = check_tau0(tau0)
    jets = network_jets(network, scale, ("ck", kernel))
    cross, unit = jets[kernel].cross, scale**2
    c = Coefficients(
        kernel,
        scale,
        c1=float(cross[index(0, 0, 1)]) / unit,
        c2=float(cross[index(1, 1, 0)]) / unit**2,
        c3=float(cross[index(0, 0, 2)]) / unit**2,
        diagonal=float(jets[kernel].diagonal[0]),
        network=network.centred(scale),
        alpha4=float(jets["ck"].diagonal[1]) / unit,
    )
    return _with_scale(c, network) if isinstance(network, DEQ) else c


def _with_scale(c: Coefficients, deq: DEQ) -> Coefficients:
    """What a DEQ adds: tau*, what centring takes away, and the response of Lambda_ii in place of that of G_ii."""
    at = equilibrium_jet(deq.detached(), c.tau0)
    response = float(at.covariance.diagonal[1]) / c.tau0**2
    return replace(c, alpha4=response, tau_star=at.tau, bias=float(at.layer.mean))


# ---- an equivalent that keeps the norm of every row, for data whose norms differ: images, most real data ----
# The theorems expand the kernel k(q, q', d), of two squared norms and an inner product, around one typical norm. Here
# it is expanded in d alone,
#
# k(q, q', d) ~ a(q, q') + b(q, q') d + c(q, q') E[d^2] / 2,
#
# and each function of two norms is replaced by a product, or a few, through reference norms r (Nystroem): f(q, q') ~
# f(q, r) f(r, r)^(-1) f(r, q'), which is exact for one layer and nearly so for a DEQ. The result is again a Gram matrix
# of scaled rows + low rank + diagonal, and equal to the exact kernel on the diagonal.

Array = NDArray[np.float64]
_SMALLEST = 1e-6  # part of the typical squared norm; smaller ones are taken as this
_NEGLIGIBLE = 1e-8  # part of the diagonal; smaller terms are left out
_QUANTILES = (0.02, 0.25, 0.75, 0.98)


@dataclass(frozen=True, eq=False)
class NormProfile:
    """The expansion of the kernel of ``c``; the same for new rows."""

    c: Coefficients
    references: Array
    """Squared norms for a(q, q'); the first is the typical one, which serves b and c."""
    projection: Array
    """From a(q, references) to r numbers whose products are a(q, q')."""
    core: Array
    """Of the low-rank part: classes first, then the r numbers."""

    def embed(self, statistics: MixtureStatistics) -> tuple[Array, Array, Array]:
        """Per row: what it is multiplied by, (n,); the low-rank factor, (n, classes + r); the exact diagonal, (n,)."""
        squares, unit = _squares(statistics, self.c), self.c.tau0**2
        slopes, bends, own, *values = _by_norm(self._functions, squares)
        slope, bend = self._functions(self.references[:1])[:2, 0]
        gains = self._normalised(slopes, slope) / np.sqrt(unit)
        weights = self._normalised(bends, bend) / unit
        classes = weights[:, None] * statistics.J / np.sqrt(statistics.p)
        return gains, np.column_stack([classes, np.stack(values, axis=1) @ self.projection]), own

    def _functions(self, squares: Array) -> Array:
        """Slope and curvature in d / tau0^2, the diagonal, and a(q, references), as rows."""
        slopes, bends = _derivatives(self.c, squares)
        unit, own = self.c.tau0**2, kernel_of(self.c, squares)
        return np.stack([slopes * unit, bends * unit**2, own, *kernel_at(self.c, squares, self.references[:, None])])

    def _normalised(self, values: Array, typical: float) -> Array:
        """f(q, r) / sqrt(f(r, r)); zero where the kernel has no such term."""
        there = typical > _NEGLIGIBLE * self.c.diagonal
        return values / np.sqrt(typical) if there else 0.0 * values


def norm_profile(c: Coefficients, statistics: MixtureStatistics) -> NormProfile:
    """The expansion for the network of ``c`` and the norms found in the data."""
    squares = _squares(statistics, c)
    references = np.unique([c.tau0**2, *np.quantile(squares, _QUANTILES)])
    references = np.array([c.tau0**2, *references[references != c.tau0**2]])
    values = kernel_at(c, references[:, None], references)
    sizes, vectors = np.linalg.eigh(0.5 * (values + values.T))
    kept = sizes > max(1e-7 * sizes[-1], _NEGLIGIBLE * c.diagonal)  # none for an odd activation
    projection = vectors[:, kept] / np.sqrt(sizes[kept])
    core = scipy.linalg.block_diag(0.5 * statistics.T, np.eye(projection.shape[1]))
    return NormProfile(c, references, projection, core)


def _squares(statistics: MixtureStatistics, c: Coefficients) -> Array:
    return np.maximum(squared_norms(as_rows(statistics.X, checked=False)).cpu().numpy(), _SMALLEST * c.tau0**2)


def kernel_at(c: Coefficients, sx: Array, sy: Array, dot: Array | float = 0.0) -> Array:
    """The kernel of ``c`` at pairs with these squared norms and inner products (broadcast together)."""
    x, y, d = (torch.as_tensor(v, dtype=torch.float64) for v in (sx, sy, dot))
    return pairwise(c.network, x, y, d, kernels=(c.kernel,))[c.kernel].numpy()


def kernel_of(c: Coefficients, squares: Array) -> Array:
    """The kernel of ``c`` of points with themselves, by their squared norms."""
    return diagonal(c.network, torch.from_numpy(squares), kernels=(c.kernel,))[c.kernel].numpy()


def _derivatives(c: Coefficients, squares: Array) -> tuple[Array, Array]:
    """The first two in d, at d = 0, between each squared norm and the typical one."""
    _, first, second = power_series(c.network, 3, c.kernel, np.sqrt(squares), c.tau0).T
    unit = np.sqrt(squares) * c.tau0
    return first / unit, 2.0 * second / unit**2


def _by_norm(function: Callable[[Array], Array], squares: Array) -> Array:
    """``function`` at many squared norms, by interpolation in the norm where that is cheaper and as good."""
    return interpolated(lambda norms: function(norms**2).T, np.sqrt(squares), 1e-10, degree=48).T
