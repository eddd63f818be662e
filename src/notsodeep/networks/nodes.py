"""Networks as expressions: what each node does to the kernels of two inputs, written once for every domain.

A domain says what a number is: tensors of pairs, diagonals, grids of a table, truncated power series, complex cosines
or norms. It evaluates a layer at the variances that reach it (``points``) and solves the equation of a fixed point.
A :class:`KernelState` holds, for two inputs, their points, the covariance of what the node receives and the tangent
kernels of the weights on the way (docs/theory.md, sections 2 and 17).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from .._fixed_point import newton
from .._words import Kernel
from ..activations import Activation
from ..errors import ConvergenceError, InvalidInputError


class LayerMaps(Protocol):
    """What a layer does to covariances of some type."""

    def both(self, covariance: Any, /) -> tuple[Any, Any]:
        """E[phi(u) phi(v)] and its derivative E[phi'(u) phi'(v)], which share their work."""

    def value(self, covariance: Any, /) -> Any:
        """The first alone, where it takes less."""
        return self.both(covariance)[0]


class Divided(LayerMaps):
    """Covariances over the standard deviations of both points: correlations."""

    def __init__(self, root: Any) -> None:
        self.root = root

    def both(self, covariance: Any, /) -> tuple[Any, Any]:
        return covariance / self.root, 1.0 / self.root

    def subset(self, which: Any) -> Divided:
        """Select some of the pairs."""
        return Divided(self.root[which])


class NotOfferedError(InvalidInputError):
    """A node that a domain does not have."""


class Domain:
    """What the nodes ask of numbers of some type; a domain that lacks a method does not offer what needs it."""

    name: ClassVar[str] = "this computation"

    def layer(self, phi: Activation, points: Any) -> Any:
        """Return the layer of an activation at the variances that reach it."""
        raise NotImplementedError

    def through(self, phi: Activation, points: Any) -> Any:
        """Return the variances after the layer; nothing where the covariance is all there is."""

    def units(self, layer: Callable[[Any, Any], Any], points: Any) -> tuple[Any, Any]:
        """Return units that bring a map of covariances, ``layer`` at two variances, and the variances after them."""
        raise NotOfferedError(f"{self.name} is not offered for units that see the norm of their input")

    def normalised(self, points: Any) -> tuple[Any, Any]:
        """Return the map to correlations at these variances, and the variances after it, which are one."""
        raise NotOfferedError(f"{self.name} is not offered for a DEQ with normalised pre-activations")

    def settle(self, fixed: FixedPoint, state: KernelState) -> Any:
        """Return the variances of the pre-activations at equilibrium, from those of the inputs."""

    def solve(self, fixed: FixedPoint, cell: Any, points: Any, state: KernelState) -> Any:
        """Return the covariance at which :func:`equation` is zero."""
        raise NotImplementedError

    def drive(self, fixed: FixedPoint, covariance: Any) -> Any:
        """Return the share of the inputs in the covariance of the pre-activations."""
        return fixed.drive(covariance)

    def check_gap(self, fixed: FixedPoint, gap: Any) -> None:
        """Refuse gaps 1 - sigma_a2 F' that are not positive, where the tangents diverge."""


@dataclass(frozen=True)
class KernelState:
    """Two inputs on their way through a network; a tangent is ``None`` before the first weights that are trained."""

    points: Any
    covariance: Any
    tangents: dict[Kernel, Any]
    drive: Any = None

    def after(self, maps: Any, points: Any) -> KernelState:
        """Return the state behind units: their covariance, and the tangents times their slope."""
        if not self.tangents:
            return replace(self, points=points, covariance=maps.value(self.covariance))
        value, slope = maps.both(self.covariance)
        tangents = {k: t if t is None else t * slope for k, t in self.tangents.items()}
        return replace(self, points=points, covariance=value, tangents=tangents)

    def trained(self, rate: Any, *, frozen: Sequence[Kernel] = ()) -> KernelState:
        """Return the state with the share of weights that receive it, but in the kernels that freeze them."""
        tangents = {k: t if k in frozen else _plus(t, rate * self.covariance) for k, t in self.tangents.items()}
        return replace(self, tangents=tangents)


def _plus(tangent: Any, share: Any) -> Any:
    return share if tangent is None else tangent + share


class Node(Protocol):
    """A part of a network."""

    def push(self, state: KernelState, domain: Domain) -> KernelState:
        """Return the state behind this node."""


@dataclass(frozen=True)
class LayerNode:
    """Weights with their learning rate, then units: an activation, or whatever else has a method ``at``."""

    phi: Any
    rate: Any = 1.0
    input: bool = False  # whether the weights are those of the inputs, which ``ntk_frozen`` freezes

    def push(self, state: KernelState, domain: Domain) -> KernelState:
        """Return the state behind the units."""
        state = state.trained(self.rate, frozen=("ntk_frozen",) if self.input else ())
        return state.after(*self.at(domain, state.points))

    def at(self, domain: Domain, points: Any) -> tuple[Any, Any]:
        """Return the layer at these variances, and the variances behind it."""
        return self.phi.at(domain, points)


@dataclass(frozen=True)
class Normalise:
    """Each pre-activation over the root mean square of all of them, as a normalisation layer does."""

    rate: ClassVar[None] = None  # no weights

    def at(self, domain: Domain, points: Any) -> tuple[Any, Any]:
        """Return the map to correlations, and variances of one."""
        return domain.normalised(points)


@dataclass(frozen=True)
class Readout:
    """The weights of the output."""

    rate: Any = 1.0

    def push(self, state: KernelState, domain: Domain) -> KernelState:
        """Return the state with the share of these weights; what is left as a tangent is the kernel."""
        return state.trained(self.rate)


@dataclass(frozen=True)
class PreActivation:
    """One more pre-activation, with weights of its own, in the place of the output: K becomes sigma_a2 K + drive."""

    sigma_a2: Any

    def push(self, state: KernelState, domain: Domain) -> KernelState:
        """Return the kernels of the pre-activation."""
        tangents = {k: self.sigma_a2 * t + state.drive for k, t in state.tangents.items()}
        return replace(state, covariance=self.sigma_a2 * state.covariance + state.drive, tangents=tangents)


@dataclass(frozen=True)
class FixedPoint:
    """u = sigma_a A z + sigma_b B x + sigma_c c, z the output of the cell at u, with the readout f = a . z.

    With F the cell's map of covariances and T its own tangents, Lambda = sigma_a2 F(Lambda) + drive, and the tangent of
    u is theta = Lambda + sigma_a2 (T + F' theta) = (Lambda + sigma_a2 T) / (1 - sigma_a2 F').
    """

    cell: tuple[Any, ...]
    sigma_a2: Any
    drive: Callable[[Any], Any]
    network: Any  # which errors name

    def maps(self, domain: Domain, points: Any) -> Any:
        """Return the cell at these variances, as one map of covariances."""
        layers = []
        for node in self.cell:
            maps, points = node.at(domain, points)
            layers.append(maps)
        return layers[0] if len(layers) == 1 else Cell(layers, [node.rate for node in self.cell])

    def push(self, state: KernelState, domain: Domain) -> KernelState:
        """Return the state behind the cell at equilibrium."""
        points = domain.settle(self, state)
        cell = self.maps(domain, points)
        covariance, drive = domain.solve(self, cell, points, state), domain.drive(self, state.covariance)
        check = functools.partial(domain.check_gap, self)
        value, tangents = at_equilibrium(cell, covariance, self.sigma_a2, tuple(state.tangents), check)
        return KernelState(points, value, tangents, drive)


def at_equilibrium(
    cell: Any,
    covariance: Any,
    sigma_a2: Any,
    kernels: Sequence[Kernel],
    check: Callable[[Any], None] = lambda gap: None,
) -> tuple[Any, dict[Kernel, Any]]:
    """Return F and the tangent kernels of f = a . z at the covariance that solves the equation of a fixed point.

    With all weights F + T + F' theta; with those of the input frozen theta = sigma_a2 (F + T) / (1 - sigma_a2 F'), and
    the sum is (F + T) / (1 - sigma_a2 F').
    """
    if not kernels:
        return cell.value(covariance), {}
    value, slope, inside = cell.traverse(covariance) if isinstance(cell, Cell) else (*cell.both(covariance), None)
    gap = 1.0 - sigma_a2 * slope
    check(gap)
    trained = value if inside is None else value + inside  # the readout, and the weights inside the cell
    theta = covariance if inside is None else covariance + sigma_a2 * inside
    return value, {k: trained + theta * slope / gap if k == "ntk" else trained / gap for k in kernels}


def equation(cell: LayerMaps, covariance: Any, sigma_a2: Any, drive: Any) -> tuple[Any, Any]:
    """Return what is left of Lambda = sigma_a2 F(Lambda) + drive, and its derivative 1 - sigma_a2 F'."""
    value, slope = cell.both(covariance)
    return covariance - sigma_a2 * value - drive, 1.0 - sigma_a2 * slope


class Cell(LayerMaps):
    """Several layers as one map of covariances; the first one's weights belong to the fixed point."""

    def __init__(self, layers: Sequence[Any], rates: Sequence[Any]) -> None:
        self.layers, self.rates = list(layers), list(rates)

    def value(self, covariance: Any, /) -> Any:
        """Return F."""
        for layer in self.layers:
            covariance = layer.value(covariance)
        return covariance

    def both(self, covariance: Any, /) -> tuple[Any, Any]:
        return self.traverse(covariance)[:2]

    def traverse(self, covariance: Any) -> tuple[Any, Any, Any]:
        """Return F, its derivative, and the tangents T of the weights inside the cell."""
        slope, tangents, weights = None, None, False
        for layer, rate in zip(self.layers, self.rates, strict=True):
            if weights and rate is not None:
                tangents = _plus(tangents, rate * covariance)
            weights = weights or rate is not None
            covariance, steep = layer.both(covariance)
            slope = steep if slope is None else slope * steep
            tangents = tangents if tangents is None else tangents * steep
        return covariance, slope, tangents

    def subset(self, which: Any) -> Cell:
        """Select some of the pairs."""
        return Cell([layer.subset(which) for layer in self.layers], self.rates)


def explicit(layers: Sequence[Any], rates: Sequence[Any]) -> tuple[Any, ...]:
    """Return the expression of layers one after the other; ``rates``: of W_1 ... W_L and the readout."""
    *inner, last = rates
    pairs = enumerate(zip(layers, inner, strict=True))
    return (*(LayerNode(phi, rate, input=i == 0) for i, (phi, rate) in pairs), Readout(last))


def kernels_in(
    domain: Domain, expression: Sequence[Node], points: Any, covariance: Any, kernels: Sequence[Kernel]
) -> dict[Kernel, Any]:
    """Return the kernels of an expression, from the variances and the covariance of its inputs."""
    state = KernelState(points, covariance, {k: None for k in kernels if is_tangent(k)})
    for node in expression:
        state = node.push(state, domain)
    return {k: state.tangents.get(k, state.covariance) for k in kernels}


def is_tangent(kernel: str) -> bool:
    """Say whether more than the readout is trained, so that slopes enter."""
    return kernel != "ck"


# ---- one input: the variances of its pre-activations ------------------------------------------------------


class Squares(Domain):
    """Variances of one input: a layer maps q to E[phi(sqrt(q) xi)^2] and its derivative in q."""

    def __init__(self, square: Callable[[Activation, Any], tuple[Any, Any]]) -> None:
        self.square = square

    def layer(self, phi: Activation, points: Any) -> LayerMaps:
        return SquareMap(functools.partial(self.square, phi))

    def normalised(self, points: Any) -> tuple[LayerMaps, None]:
        return SquareMap(lambda q: (0.0 * q + 1.0, 0.0 * q)), None


class SquareMap(LayerMaps):
    """A map of variances, with its derivative."""

    def __init__(self, function: Callable[[Any], tuple[Any, Any]]) -> None:
        self.function = function

    def both(self, q: Any) -> tuple[Any, Any]:
        return self.function(q)


def pre_activation_variance(
    deq: Any, squares: Tensor, square: Callable[[Activation, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Return the solutions q of q = sigma_a2 V(q) + drive at inputs of these squared norms.

    ``square`` maps an activation and q to E[phi(sqrt(q) xi)^2] and its derivative, or to the variance of phi if it is
    centred; V is what the layers of the cell make of q.
    """
    sigma_a2, drive = deq.variances[0], deq.drive(squares)
    cell = deq.fixed_point.maps(Squares(square), None)
    if deq.normalise:  # V is a constant
        return drive + sigma_a2 * cell.value(torch.ones_like(drive))
    if all(phi.homogeneity == 1.0 for phi in deq.activations):  # V(q) = q V(1)
        share = sigma_a2 * float(cell.value(torch.ones(1, dtype=torch.float64)))
        if share >= 1.0:
            raise ConvergenceError(
                f"the variance equation of {deq!r} has no solution: sigma_a2 E[phi(xi)^2] = {share:.4g} >= 1; "
                f"{deq.advice}"
            )
        return drive / (1.0 - share)

    def residual(q: Tensor, which: Tensor | None) -> tuple[Tensor, Tensor]:
        return equation(cell, q, sigma_a2, drive if which is None else drive[which])

    start = drive if bool((drive > 0).all()) else drive + sigma_a2 * cell.value(drive)
    far = 1e12 * (1.0 + drive)
    root = newton(residual, start, drive, torch.full_like(drive, math.inf), flattest=0.05, far=far, still=1e-8)
    if not root.converged:
        raise ConvergenceError(
            f"the variance equation of {deq!r} did not converge (relative residual {root.residual:.1e}); {deq.advice}"
        )
    return root.value
