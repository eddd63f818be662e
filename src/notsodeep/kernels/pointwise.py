"""The calculus at given pairs of inputs: squared norms (sx, sy) and inner products.

``pairwise`` is the library's exact reference: float64, entry by entry, valid for every pair of inputs and
differentiable with respect to them and to the variances of a DEQ. Matrices are built from it in ``matrix.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from .._arguments import isolation
from .._caches import cached
from .._chebyshev import nodes, series_sum, to_coefficients
from .._fixed_point import newton
from ..activations import Activation
from ..errors import ConvergenceError
from ..gaussian import means, moments, normal_density
from ..networks import DEQ, Kernel, Network, check_kernels
from ..networks.nodes import (
    Divided,
    Domain,
    FixedPoint,
    KernelState,
    LayerMaps,
    SquareMap,
    Squares,
    equation,
    kernels_in,
    pre_activation_variance,
)
from ._limits import LIMITS
from .expectations import Layer
from .gradients import first_order

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


class UnitsOnDiagonal(LayerMaps):
    """Units that bring a map of covariances, between a point and itself."""

    def __init__(self, layer: Callable[[Tensor, Tensor], Any]) -> None:
        self.layer = layer

    def value(self, q: Tensor) -> Tensor:
        """E[psi(x)^2]."""
        return self.layer(q, q).value(q)

    def both(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """E[psi(x)^2], and what trained weights bring."""
        return self.layer(q, q).both(q)


def largest_rounded(q: Any) -> float:
    """The largest of these variances, up to a power of 2^(1/4): what is found for it serves many calls."""
    return 2.0 ** (math.ceil(4.0 * math.log2(max(float(q.max()), 1e-300))) / 4.0)


def last_variance(network: Any, squares: Tensor) -> Tensor:
    """Return the variances that reach the last layer, at equilibrium for a DEQ, from squared norms of the inputs."""
    q = equilibrium_variance(network, squares) if network.implicit else squares
    q = torch.ones_like(q) if network.implicit and network.normalise else q
    for phi in network.activations[:-1]:
        q = mean_square(phi, "value", q)
    return q


def equilibrium_variance(deq: DEQ, s: Tensor) -> Tensor:
    """Solve q = sigma_a2 E[phi(sqrt(q) xi)^2] + drive at the distinct squared norms ``s``; differentiable."""
    distinct, inverse = torch.unique(s.detach(), return_inverse=True)
    q = by_series(_variances, deq.detached(), distinct)[inverse]
    if torch.is_grad_enabled() and (s.requires_grad or deq.tracked):
        cell = deq.fixed_point.maps(Squares(_tracked_square), None)
        residual, rate = equation(cell, q, deq.sigma_a2, deq.drive(s, tracked=True))
        q = q - residual / rate.detach()
    return q


def _variances(deq: DEQ, s: Tensor) -> Tensor:
    return pre_activation_variance(deq, s, _square_and_rate)


R = TypeVar("R")
OfSquares = Callable[[R, Tensor], Tensor]


def by_series(function: OfSquares[R], owner: R, s: Tensor) -> Tensor:
    """A positive function of an owner and many sorted numbers, by a series that is kept for other numbers like these.

    The series is one of its logarithm in theirs, if one is exact.
    """
    if len(s) < LIMITS.many_norms or not float(s[0]) > 0.0:
        return function(owner, s)
    low, high = math.log(float(s[0])), math.log(float(s[-1]))
    if not low < high:
        return function(owner, s)
    # outwards to a grid, whose step is at most the range itself
    step = 2.0 ** math.floor(math.log2(min(1.0, high - low)))
    low, high = step * math.floor(low / step), step * math.ceil(high / step)
    found = _log_series(function, owner, low, high, (len(s) // 48).bit_length())
    if found is None:
        return function(owner, s)
    c, start, slope = found
    at = (2.0 * s.log() - (low + high)) / (high - low)
    return torch.exp(series_sum(c, 2.0 * at) + start + slope * at)


@cached(256)
def _log_series(
    function: OfSquares[R], owner: R, low: float, high: float, doublings: int
) -> tuple[Tensor, float, float] | None:
    """The series between two logarithms, beside a line, from at most 24 nodes doubled so often, less one."""
    for size in (24, 48, 96, 192)[:doublings]:
        x = torch.from_numpy(nodes(size))
        try:
            values = function(owner, torch.exp(0.5 * (low + high + (high - low) * x))).log()
        except ConvergenceError:  # it may be beyond the numbers that were asked for
            return None
        # the power apart: what is left is small, and so is its rounding
        slope = float((values[-1] - values[0]) / (x[-1] - x[0]))
        start = float(values[0] - slope * x[0])
        c = torch.tensor(to_coefficients(size)) @ (values - start - slope * x)
        if bool((c[-3:].abs() <= LIMITS.tolerance).all()):
            return c, start, slope
    return None


def _tracked_square(phi: Activation, q: Tensor) -> tuple[Tensor, Tensor]:
    return mean_square(phi, "value", q), _response(phi, "value", q.detach())


class TensorDomain(Domain):
    """Tensors: tangents that diverge can be seen."""

    def check_gap(self, fixed: FixedPoint, gap: Tensor) -> None:
        """Refuse gaps 1 - sigma_a2 E[phi' phi'] that are not positive: the NTK diverges there."""
        if bool((gap <= 0).any()):
            raise ConvergenceError(
                f"the NTK of {fixed.network!r} diverges on this data: "
                f"sigma_a2 E[phi' phi'] reaches {float((1.0 - gap).max()):.4g} >= 1"
            )


class PairDomain(TensorDomain):
    """Pairs of inputs as flat tensors; points are the two variances."""

    def layer(self, phi: Activation, points: Sequence[Tensor]) -> Any:
        return Layer(phi, *points)

    def through(self, phi: Activation, points: Sequence[Tensor]) -> Sequence[Tensor]:
        return [mean_square(phi, "value", q) for q in points]

    def units(self, layer: Callable[[Tensor, Tensor], Any], points: Sequence[Tensor]) -> tuple[Any, Sequence[Tensor]]:
        return layer(*points), [layer(q, q).value(q) for q in points]

    def normalised(self, points: Sequence[Tensor]) -> tuple[LayerMaps, Sequence[Tensor]]:
        return Divided(points[0].sqrt() * points[1].sqrt()), [torch.ones_like(q) for q in points]

    def settle(self, fixed: FixedPoint, state: KernelState) -> Sequence[Tensor]:
        return equilibrium_variance(fixed.network, torch.stack(list(state.points))).unbind()

    def solve(self, fixed: FixedPoint, cell: Any, points: Sequence[Tensor], state: KernelState) -> Tensor:
        """Solve the equation of the covariances, entry by entry; differentiable."""
        deq, drive = fixed.network, fixed.drive(state.covariance)
        with torch.no_grad():
            bound = positive_root(*points)
            cosine = drive / positive_root(*(fixed.drive(s) for s in state.points))
            lam = solve_covariance(deq, cell, drive, bound, cosine.clamp(-1.0, 1.0) * bound)
        if torch.is_grad_enabled() and (deq.tracked or any(v.requires_grad for v in (*points, state.covariance))):
            # one Newton step from the solution, differentiated at fixed slope: the implicit function theorem
            residual, rate = equation(cell, lam, deq.sigma_a2, drive)
            lam = lam - residual / rate.detach()
        return lam


class DiagonalDomain(TensorDomain):
    """Inputs with themselves: the covariance is the variance, and there are no other points."""

    def layer(self, phi: Activation, points: None) -> LayerMaps:
        return OnDiagonal(phi)

    def units(self, layer: Callable[[Tensor, Tensor], Any], points: None) -> tuple[LayerMaps, None]:
        return UnitsOnDiagonal(layer), None

    def normalised(self, points: None) -> tuple[LayerMaps, None]:
        """Return the map of a variance to one; tangents are divided by it."""
        return SquareMap(lambda q: (torch.ones_like(q), 1.0 / q.clamp_min(LIMITS.tiny_variance))), None

    def solve(self, fixed: FixedPoint, cell: Any, points: None, state: KernelState) -> Tensor:
        return equilibrium_variance(fixed.network, state.covariance)


def positive_root(qx: Tensor, qy: Tensor) -> Tensor:
    """Return sqrt(qx qy), where variances of zero count as tiny ones."""
    least = LIMITS.tiny_variance
    return qx.detach().clamp_min(least).sqrt() * qy.detach().clamp_min(least).sqrt()


def mean_square(phi: Activation, part: Literal["value", "slope"], q: Tensor) -> Tensor:
    """E[f(sqrt(q) xi)^2], f = phi or phi', with its derivative in q; evaluated once per distinct q."""
    return _MeanSquare.apply(phi, part, q)


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
    return phi.continuous and not closed and phi.polynomial() is None


def _together(phi: Activation, q: Tensor, other: Callable[[Tensor, Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """E[phi^2] and E of another function of x, phi(x) and phi'(x), from the same nodes."""
    vanishing = bool((q < _LIMIT**2).any())

    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        value, beside = phi(x), torch.copysign(x.abs().clamp_min(_LIMIT), x) if vanishing else x
        return value * value, other(x, value, phi.derivative(beside))

    square, average = _distinct(q, lambda tau: means(both, tau, phi.panels()))
    return square, average


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


@isolation()
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


@isolation()
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
        spec = KernelSpec(network, check_kernels(network, kernels), network.rates(learning_rates))
        if check:
            network.check_contraction()
        return spec

    @property
    def detached(self) -> KernelSpec:
        """These kernels, of a network whose variances are plain numbers."""
        return replace(self, network=self.network.detached())

    def varied(self, variances: Sequence[Tensor | None]) -> KernelSpec:
        """These kernels, of a network with these variances; ``None`` stands for its own."""
        return replace(self, network=self.network.varied(*variances))

    def run(self, domain: Domain, points: Any, covariance: Any) -> dict[Kernel, Any]:
        """Compute these kernels in a domain, from the variances and the covariance of the inputs."""
        return kernels_in(domain, self.network.expression(self.rates), points, covariance, self.names)

    def pairwise(self, sx: Tensor, sy: Tensor, dot: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`pairwise`."""
        given = torch.broadcast_tensors(*(_float64(v) for v in (sx, sy, dot)))
        chunks = zip(*(v.reshape(-1).split(LIMITS.pairs_at_once) for v in given), strict=True)
        pieces = [self.run(PairDomain(), chunk[:2], chunk[2]) for chunk in chunks] if given[0].numel() else []
        void = given[0].new_zeros(0)
        found = {k: torch.cat([void, *(piece[k] for piece in pieces)]).reshape(given[0].shape) for k in self.names}
        equal = (given[0] == given[1]) & (given[2] == given[0])
        if bool(equal.any()) and not any(values.requires_grad for values in found.values()):
            # far out kernels fall within angles that the rounding of a covariance hides; those of equal points are zero
            for kernel, exact in self.diagonal(given[0][equal]).items():
                found[kernel][equal] = exact
        return found

    def diagonal(self, s: Tensor) -> dict[Kernel, Tensor]:
        """See :func:`diagonal`."""
        s = _float64(s)
        flat = s.reshape(-1)
        kernels = self.run(DiagonalDomain(), None, flat) if len(flat) else dict.fromkeys(self.names, flat)
        return {kernel: values.reshape(s.shape) for kernel, values in kernels.items()}

    def diagonals(self, s: Tensor) -> dict[Kernel, Tensor]:
        """The same at many squared norms, by series in their logarithms."""
        distinct, inverse = torch.unique(s, return_inverse=True)
        kernels = {k: by_series(_own, replace(self, names=(k,)), distinct) for k in self.names}
        return {kernel: values[inverse] for kernel, values in kernels.items()}


def _own(spec: KernelSpec, s: Tensor) -> Tensor:
    return spec.diagonal(s)[spec.names[0]]


def _float64(value: Any) -> Tensor:
    return torch.as_tensor(value).to("cpu", torch.float64)


def equilibrium(deq: DEQ, sx: Tensor, sy: Tensor, dot: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Lambda of a DEQ at pairs of inputs: its two variances and its covariance (flat float64 tensors)."""
    domain, fixed, state = PairDomain(), deq.fixed_point, KernelState((sx, sy), dot, {})
    qx, qy = points = domain.settle(fixed, state)
    return qx, qy, domain.solve(fixed, fixed.maps(domain, points), points, state)


def solve_covariance(deq: DEQ, layer: Any, drive: Tensor, bound: Tensor, start: Tensor) -> Tensor:
    """Solve lam = sigma_a2 E[phi phi] + drive at any layer that has a ``subset``; ``bound``: the largest |lam|."""

    def residual(lam: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        some, push = (layer, drive) if which is None else (layer.subset(which), drive[which])
        return equation(some, lam, deq.variances[0], push)

    if deq.variances[0] == 0.0:  # nothing to solve: no reason to evaluate the layer, which may take seconds
        return drive.clamp(-bound, bound)
    # bisection outside the bracket: slopes of kinked activations are steep near rho = 1
    root = newton(residual, start, -bound, bound, bound)
    if not root.converged:
        raise ConvergenceError(
            f"the covariance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value
