"""The calculus at given pairs of inputs: squared norms (sx, sy) and inner products.

``pairwise`` is the library's exact reference: float64, entry by entry, valid for every pair of inputs and
differentiable with respect to them and to the variances of a DEQ. Matrices are built from it in ``matrix.py``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from .._arrays import isolated_settings
from .._fixed_point import newton
from ..activations import Activation
from ..errors import ConvergenceError
from ..gaussian import means, moments, normal_density
from ..networks import DEQ, ENN, Kernel, Network, check_kernels, pre_activation_variance, rates_of
from ._limits import LIMITS
from .expectations import Layer, layer_of
from .gradients import first_order
from .recursion import LayerMaps, equation, explicit, implicit

_LIMIT = LIMITS.tiny_variance**0.5  # scales below this are their own limit
_ONE = torch.ones(1, dtype=torch.float64)


class OnDiagonal(LayerMaps):
    """A layer between a point and itself: the covariance is the variance."""

    def __init__(self, phi: Activation) -> None:
        self.phi = phi

    def value(self, q: Tensor) -> Tensor:
        """E[phi(u)^2]."""
        return mean_square(self.phi, "value", q)

    def both(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """E[phi(u)^2] and E[phi'(u)^2]; along the diagonal the derivative of the first is another one."""
        if (torch.is_grad_enabled() and q.requires_grad) or not _integrable(self.phi):
            return self.value(q), mean_square(self.phi, "slope", q)
        return _together(self.phi, q, lambda x, value, slope: slope * slope)


def largest_rounded(q: Any) -> float:
    """The largest of these variances, up to a power of 2^(1/4): what is found for it serves many calls."""
    return 2.0 ** (math.ceil(4.0 * math.log2(max(float(q.max()), 1e-300))) / 4.0)


def at_each_layer(enn: ENN, *squares: Tensor) -> Iterator[tuple[Activation, Sequence[Tensor]]]:
    """The layers of an explicit network with the variances that reach them, from squared norms of the inputs."""
    variances: Sequence[Tensor] = squares
    for phi in enn.activations:
        yield phi, variances
        variances = [mean_square(phi, "value", q) for q in variances]


def equilibrium_variance(deq: DEQ, s: Tensor) -> Tensor:
    """Solve q = sigma_a2 E[phi(sqrt(q) xi)^2] + drive at the distinct squared norms ``s``; differentiable."""
    distinct, inverse = torch.unique(s.detach(), return_inverse=True)
    q = pre_activation_variance(deq, distinct, functools.partial(_square_and_rate, deq.activation))[inverse]
    if torch.is_grad_enabled() and (s.requires_grad or deq.tracked):
        rate = 1.0 - deq.variances[0] * _response(deq.activation, "value", q)
        q = q - (q - deq.sigma_a2 * mean_square(deq.activation, "value", q) - deq.drive(s, tracked=True)) / rate
    return q


def gap_check(deq: DEQ) -> Any:
    """What refuses gaps 1 - sigma_a2 E[phi' phi'] that are not positive: the NTK diverges there."""

    def check(gap: Tensor) -> None:
        if bool((gap <= 0).any()):
            raise ConvergenceError(
                f"the NTK of {deq!r} diverges on this data: "
                f"sigma_a2 E[phi' phi'] reaches {float((1.0 - gap).max()):.4g} >= 1"
            )

    return check


def mean_square(phi: Activation, part: Literal["value", "slope"], q: Tensor) -> Tensor:
    """E[f(sqrt(q) xi)^2], f = phi or phi', with its derivative in q; evaluated once per distinct q."""
    if phi.elementwise:
        return _MeanSquare.apply(phi, part, q)
    # what comes back from torch.unique has no gradient
    different, where = (q, ...) if q.requires_grad else torch.unique(q, return_inverse=True)
    own = layer_of(phi, different, different)  # the diagonal is the pair of a point with itself
    return (own.value(different) if part == "value" else own.both(different)[1])[where]


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, phi: Activation, part: Literal["value", "slope"], q: Tensor) -> Tensor:
        ctx.phi, ctx.part = phi, part
        ctx.save_for_backward(q)
        closed = phi.closed_form()
        if closed is not None:  # the pair of a point with itself
            return closed(*(q.detach(),) * 3)[0 if part == "value" else 1]
        if phi.polynomial() is not None:  # exact: a rule of finite range would cut the tails of a high degree
            return _distinct(q, lambda tau: getattr(moments(phi, tau), "square" if part == "value" else "slope_square"))
        # a slope at zero is the limit: half of each side of a kink there
        f, least = (phi, 0.0) if part == "value" else (phi.derivative, _LIMIT)
        return _distinct(q, lambda tau: means(lambda x: (f(x) ** 2,), tau.clamp_min(least), phi.panels())[0])

    @staticmethod
    @first_order
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        return None, None, grad * _response(ctx.phi, ctx.part, ctx.saved_tensors[0])


def _distinct(q: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of scales sqrt(q), the last axis of its values."""
    distinct, inverse = torch.unique(q.detach(), return_inverse=True)
    return function(distinct.sqrt())[..., inverse]


def _square_and_rate(phi: Activation, q: Tensor) -> tuple[Tensor, Tensor]:
    """E[phi(sqrt(q) xi)^2] and its derivative in q (0 at 0)."""
    if not _integrable(phi):
        return mean_square(phi, "value", q), _response(phi, "value", q)
    square, rate = _together(phi, q, lambda x, value, slope: x * value * slope)
    return square, rate / q.clamp_min(_LIMIT**2)


def _integrable(phi: Activation) -> bool:
    """Whether its squares are integrated, with nothing to add for jumps."""
    closed = phi.closed_form() is not None and (bool(phi.kinks) or phi.closed_moments(_ONE) is not None)
    return phi.elementwise and phi.continuous and not closed and phi.polynomial() is None


def _together(phi: Activation, q: Tensor, other: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """E[phi^2] and E of another function of x, phi(x) and phi'(x), from the same nodes."""
    vanishing = bool((q < _LIMIT**2).any())

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        value, beside = phi(x), torch.copysign(x.abs().clamp_min(_LIMIT), x) if vanishing else x
        return value * value, other(x, value, phi.derivative(beside))

    square, found = _distinct(q, lambda tau: means(both, tau, phi.panels()))
    return square, found


def _response(phi: Activation, part: Literal["value", "slope"], q: Tensor) -> Tensor:
    """D E[f(sqrt(q) xi)^2] / dq = (E[x f f'] + sum_c c [f^2](c) p(c) / 2) / q, f = phi or phi', p the density.

    Its sides at a kink come from the activation: a kink divided by a scale is rounded, and its neighbours may both lie
    on one side of the true one.
    """
    exact = phi.polynomial()
    if part == "slope" and exact is not None:
        return _response(exact.derived(), "value", q)
    if part == "value" and phi.closed_moments(_ONE) is not None:
        return 0.5 * _distinct(q, lambda tau: moments(phi, tau).square_curvature)
    order = int(part == "slope")
    f, slope = (phi, phi.derivative, phi.second_derivative)[order : order + 2]
    sides = (phi.sides()[order].detach() ** 2).tolist() if phi.kinks else [(), ()]

    def inner(tau: Tensor) -> Tensor:
        tau = tau.clamp_min(_LIMIT)
        (total,) = means(lambda x: (x * f(x) * slope(x),), tau, phi.panels())
        for c, below, above in zip(phi.kinks, *sides, strict=True):
            total = total + 0.5 * c * (above - below) * normal_density(torch.tensor(c, dtype=torch.float64), tau)
        return total / (tau * tau)

    return _distinct(q, inner)


def pairwise(
    network: Network,
    sx: Tensor,
    sy: Tensor,
    dot: Tensor,
    kernels: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels at pairs of inputs with ||x||^2 = ``sx``, ||y||^2 = ``sy`` and x . y = ``dot`` (broadcast together)."""
    return KernelSpec.of(network, kernels, learning_rates, check).pairwise(sx, sy, dot)


def diagonal(
    network: Network,
    s: Tensor,
    kernels: Sequence[Kernel] = ("ck",),
    learning_rates: Sequence[float] | None = None,
    check: bool = True,
) -> dict[Kernel, Tensor]:
    """Kernels of points with themselves, from their squared norms ``s``; exact at rho = 1 by construction."""
    return KernelSpec.of(network, kernels, learning_rates, check).diagonal(s)


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
        """These kernels, of a network whose variances are plain numbers."""
        return replace(self, network=self.network.detached()) if isinstance(self.network, DEQ) else self

    def varied(self, variances: Sequence[Tensor | None]) -> KernelSpec:
        """These kernels, of a DEQ with these variances; ``None`` stands for its own."""
        if not isinstance(self.network, DEQ):
            return self
        a, b, c = (own if v is None else v for own, v in zip(self.network.variances, variances, strict=True))
        return replace(self, network=DEQ(self.network.activation, a, b, c, self.network.readout))

    @isolated_settings
    def pairwise(self, sx: Tensor, sy: Tensor, dot: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`pairwise`."""
        given = torch.broadcast_tensors(*(_float64(v) for v in (sx, sy, dot)))
        parts = zip(*(v.reshape(-1).split(LIMITS.pairs_at_once) for v in given), strict=True)
        pieces = [self._at_pairs(*part) for part in parts] if given[0].numel() else []
        void = given[0].new_zeros(0)
        found = {k: torch.cat([void, *(piece[k] for piece in pieces)]).reshape(given[0].shape) for k in self.names}
        equal = (given[0] == given[1]) & (given[2] == given[0])
        if bool(equal.any()) and not any(values.requires_grad for values in found.values()):
            # far out kernels fall within angles that the rounding of a covariance hides; those of equal points are zero
            for kernel, exact in self.diagonal(given[0][equal]).items():
                found[kernel][equal] = exact
        return found

    def _at_pairs(self, sx: Tensor, sy: Tensor, dot: Tensor) -> dict[Kernel, Tensor]:
        network = self.network
        if isinstance(network, ENN):
            layers = (layer_of(phi, *variances) for phi, variances in at_each_layer(network, sx, sy))
            return explicit(dot, layers, self.rates or (), self.names)
        qx, qy = equilibrium_variance(network, torch.stack([sx, sy]))
        layer = layer_of(network.activation, qx, qy)
        lam = _covariance(network, layer, dot)
        return implicit(lam, layer, network.sigma_a2, self.names, gap_check(network), network.readout)

    @isolated_settings
    def diagonal(self, s: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`diagonal`."""
        network, s = self.network, _float64(s)
        flat = s.reshape(-1)
        if not len(flat):
            found = dict.fromkeys(self.names, flat)
        elif isinstance(network, DEQ):
            q, layer = equilibrium_variance(network, flat), OnDiagonal(network.activation)
            found = implicit(q, layer, network.sigma_a2, self.names, gap_check(network), network.readout)
        else:
            found = explicit(flat, map(OnDiagonal, network.activations), self.rates or (), self.names)
        return {kernel: part.reshape(s.shape) for kernel, part in found.items()}


def _float64(value: Any) -> Tensor:
    return torch.as_tensor(value).to("cpu", torch.float64)


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

    if deq.variances[0] == 0.0:  # nothing to solve: no reason to evaluate the layer, which may take seconds
        return drive.clamp(-bound, bound)
    # bisection outside the bracket: slopes of kinked activations are steep near rho = 1
    root = newton(rest, drive.clamp(-bound, bound), -bound, bound, bound)
    if not root.converged:
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value
