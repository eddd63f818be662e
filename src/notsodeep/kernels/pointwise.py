"""The calculus at given pairs of inputs: squared norms (sx, sy) and inner products.

``pairwise`` is the library's exact reference: float64, entry by entry, valid for every pair of inputs and
differentiable with respect to them and to the variances of a DEQ. Matrices are built from it in ``matrix.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .._arrays import isolated_settings
from .._fixed_point import newton
from ..errors import ConvergenceError
from ..networks import DEQ, ENN, Kernel, Network, check_kernel, check_kernels, rates_of
from ._limits import LIMITS
from .expectations import Layer, layer_of
from .recursion import equation, explicit, implicit
from .variance import OnDiagonal, at_each_layer, equilibrium_variance, gap_check

VARIANCES = ("sigma_a2", "sigma_b2", "sigma_c2")


@isolated_settings
def pairwise(
    network: Network,
    sx: Tensor,
    sy: Tensor,
    dot: Tensor,
    kernels: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels at pairs of inputs with ||x||^2 = ``sx``, ||y||^2 = ``sy`` and x . y = ``dot`` (broadcast together).

    >>> import notsodeep as nsd
    >>> one = torch.ones(1, dtype=torch.float64)
    >>> float(pairwise(nsd.ENN(["linear"]), one, one, 0.3 * one)["ck"])
    0.3
    """
    kernels = check_kernels(network, kernels)
    sx, sy, dot = torch.broadcast_tensors(*(_float64(v) for v in (sx, sy, dot)))
    shape = dot.shape
    sx, sy, dot = (v.reshape(-1) for v in (sx, sy, dot))
    if dot.numel() == 0:
        return {kernel: torch.zeros(shape, dtype=torch.float64) for kernel in kernels}
    if check and isinstance(network, DEQ):
        network.check_contraction()
    rates = rates_of(network, learning_rates)
    columns = zip(
        sx.split(LIMITS.pairs_at_once), sy.split(LIMITS.pairs_at_once), dot.split(LIMITS.pairs_at_once), strict=True
    )
    pieces = [_kernels(network, *column, kernels, rates) for column in columns]
    return {kernel: torch.cat([piece[kernel] for piece in pieces]).reshape(shape) for kernel in kernels}


@isolated_settings
def diagonal(
    network: Network,
    s: Tensor,
    kernels: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms ``s``; exact at rho = 1 by construction."""
    kernels = check_kernels(network, kernels)
    s = _float64(s)
    shape, s = s.shape, s.reshape(-1)
    if s.numel() == 0:
        return {kernel: torch.zeros(shape, dtype=torch.float64) for kernel in kernels}
    rates = rates_of(network, learning_rates)
    if isinstance(network, DEQ):
        if check:
            network.check_contraction()
        parts = _own_kernels(network, s, kernels)
    else:
        parts = explicit(s, (OnDiagonal(phi) for phi in network.activations), rates or (), kernels)
    return {kernel: part.reshape(shape) for kernel, part in parts.items()}


def _own_kernels(deq: DEQ, s: Tensor, kernels: Sequence[Kernel]) -> dict[Kernel, Tensor]:
    if isinstance(deq, DEQSlope):
        return _slopes(deq, s, lambda lifted, kernel: _own_kernels(lifted, s, (kernel,))[kernel], kernels)
    q = equilibrium_variance(deq, s)
    return implicit(q, OnDiagonal(deq.activation), deq.sigma_a2, kernels, gap_check(deq))


@dataclass(frozen=True)
class KernelSpec:
    """Which kernels of which network, with the learning rates of an ENN."""

    network: Network
    names: tuple[Kernel, ...]
    rates: tuple[float, ...] | None

    @staticmethod
    def of(network: Network, kernels: Any, learning_rates: Sequence[float] | None, check: bool) -> KernelSpec:
        """Check the arguments, and that a DEQ has a unique equilibrium if ``check`` is true."""
        spec = KernelSpec(network, check_kernels(network, kernels), rates_of(network, learning_rates))
        if check and isinstance(network, DEQ):
            network.check_contraction()
        return spec

    @property
    def detached(self) -> KernelSpec:
        """The same kernels of a network whose variances are plain numbers."""
        return replace(self, network=self.network.detached()) if isinstance(self.network, DEQ) else self

    def pairwise(self, sx: Tensor, sy: Tensor, dot: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`pairwise`."""
        return pairwise(self.network, sx, sy, dot, self.names, self.rates, check=False)

    def diagonal(self, s: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`diagonal`."""
        return diagonal(self.network, s, self.names, self.rates, check=False)


def _float64(value: Any) -> Tensor:
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(value)
    return tensor.to("cpu", torch.float64)


# ---- one pair of inputs -----------------------------------------------------------------------------------


def _kernels(
    network: Network, sx: Tensor, sy: Tensor, dot: Tensor, kernels: Sequence[Kernel], rates: Sequence[float] | None
) -> dict[Kernel, Tensor]:
    if isinstance(network, ENN):
        layers = (layer_of(phi, *variances) for phi, variances in at_each_layer(network, sx, sy))
        return explicit(dot, layers, rates or (), kernels)
    if isinstance(network, DEQSlope):
        return _slopes(network, dot, lambda deq, kernel: _kernels(deq, sx, sy, dot, (kernel,), rates)[kernel], kernels)
    qx, qy = equilibrium_variance(network, torch.stack([sx, sy]))
    layer = layer_of(network.activation, qx, qy)
    lam = _covariance(network, layer, dot)
    return implicit(lam, layer, network.sigma_a2, kernels, gap_check(network))


def equilibrium(deq: DEQ, sx: Tensor, sy: Tensor, dot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda of a DEQ at pairs of inputs: its two variances and its covariance (flat float64 tensors)."""
    qx, qy = equilibrium_variance(deq, torch.stack([sx, sy]))
    return qx, qy, _covariance(deq, layer_of(deq.activation, qx, qy), dot)


def _covariance(deq: DEQ, layer: Layer, dot: Tensor) -> Tensor:
    """Solve lam = sigma_a2 E[phi phi] + drive, entry by entry; differentiable."""
    drive = deq.drive(dot, tracked=True)
    with torch.no_grad():
        lam = solve_covariance(deq, layer, drive, layer.variance_x.sqrt() * layer.variance_y.sqrt())
    if torch.is_grad_enabled() and (deq.tracked or any(v.requires_grad for v in (layer.qx, layer.qy, dot))):
        # one Newton step from the solution, differentiated at fixed slope: the implicit function theorem
        rest, rate = equation(layer, lam, deq.sigma_a2, drive)
        lam = lam - rest / rate.detach()
    return lam


def solve_covariance(deq: DEQ, layer: Any, drive: Tensor, bound: Tensor) -> Tensor:
    """Solve lam = sigma_a2 E[phi phi] + drive at any layer that has a ``subset``; ``bound``: the largest |lam|."""

    def rest(lam: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        part, push = (layer, drive) if which is None else (layer.subset(which), drive[which])
        return equation(part, lam, deq.variances[0], push)

    # bisection outside the bracket: slopes of kinked activations are steep near rho = 1
    root = newton(rest, drive.clamp(-bound, bound), -bound, bound, bound)
    if not root.converged:
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value


# ---- slopes in the variances of a DEQ ---------------------------------------------------------------------


class DEQSlope(DEQ):
    """In the place of a DEQ: its matrices are the derivatives of one kernel of that DEQ, by the names of variances.

    A slope is a function of two norms and an angle, as the kernel is, so tables and tiles serve it as they serve the
    kernel. Variances that are zero have none. ``tied``: sigma_b2 = 1 - sigma_a2 moves with sigma_a2.
    """

    __slots__ = ("kernel", "tied")
    kernel: Kernel
    tied: bool

    def __init__(self, deq: DEQ, kernel: Kernel = "ck", tied: bool = False) -> None:
        super().__init__(deq.activation, *deq.variances)
        check_kernel(self, kernel)
        object.__setattr__(self, "kernel", kernel)
        object.__setattr__(self, "tied", tied)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The variances that may move."""
        still = ("sigma_b2",) if self.tied else ()
        return tuple(n for n, v in zip(VARIANCES, self.variances, strict=True) if v > 0 and n not in still)

    @property
    def deq(self) -> DEQ:
        """The DEQ itself."""
        return DEQ(self.activation, *self.variances)

    def _content(self) -> tuple[Any, ...]:
        return (*super()._content(), self.kernel, self.tied)

    def __repr__(self) -> str:
        return f"slopes of the {self.kernel} of {super().__repr__()}"

    def __reduce__(self) -> tuple[Any, ...]:
        return (DEQSlope, (self.deq, self.kernel, self.tied))


class _PerPair(DEQ):
    """A DEQ with one copy of its variances for every pair: the gradient of a sum is then the slope of every entry."""

    __slots__ = ("_numbers",)
    _numbers: tuple[float, float, float]

    def __init__(self, deq: DEQSlope, leaves: dict[str, Tensor]) -> None:
        parts: dict[str, Any] = {**dict(zip(VARIANCES, deq.variances, strict=True)), **leaves}
        if deq.tied:
            parts["sigma_b2"] = 1.0 - parts["sigma_a2"]
        for name, value in {"activation": deq.activation, "_numbers": deq.variances, **parts}.items():
            object.__setattr__(self, name, value)

    @property
    def variances(self) -> tuple[float, float, float]:
        return self._numbers


def _slopes(
    deq: DEQSlope, pairs: Tensor, kernel: Callable[[DEQ, Kernel], Tensor], kernels: Sequence[Any]
) -> dict[Any, Tensor]:
    """The derivatives of every entry of ``kernel(deq, ...)``, a function of flat ``pairs`` entry by entry."""
    numbers = dict(zip(VARIANCES, deq.variances, strict=True))
    with torch.enable_grad():
        leaves = {name: torch.full_like(pairs, numbers[name]).requires_grad_() for name in kernels}
        total = kernel(_PerPair(deq, leaves), deq.kernel).sum()
        return dict(zip(kernels, torch.autograd.grad(total, list(leaves.values())), strict=True))
