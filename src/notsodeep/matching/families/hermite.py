"""Polynomial twins: one layer or two in the Hermite basis, with or without learning rates; and the quadratic ones.

Layer l is sigma_l(x) = sum_{k >= 1} a_k h_k(x / tau_{l-1}): centred by construction, and every moment the theory
needs is a polynomial in the a_k. Gauge: every layer but the last keeps the scale (tau_1 = tau_0), and the leading
coefficients of both parities are not negative (sigma(x) and -sigma(-x) have the same kernel).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..._arrays import Array
from ...activations import Activation, Hermite, Quadratic
from ...gaussian import hermite_coefficients
from ...kernels.jets import DEGREE, LayerJet, hermite_layer, implicit_covariance, index
from ...networks import ENN
from .._limits import LIMITS
from ..solver import Draft, Solved, best_of, jet_of, solve
from ..target import Target


@dataclass(frozen=True)
class HermiteDesign:
    """Which coefficients exist: one tuple of Hermite orders per layer, and whether learning rates are free.

    Parameters are free of units: those of the last layer are in units of ``size``, the root of the kernel's diagonal.
    """

    orders: tuple[tuple[int, ...], ...]
    size: float
    free_rates: bool = False

    @property
    def depth(self) -> int:
        return len(self.orders)

    def coefficients(self, z: Array) -> list[Array]:
        """Return the coefficients a_0 ... a_degree of every layer, batched like z."""
        out, start = [], 0
        for orders in self.orders:
            layer = np.zeros((*z.shape[:-1], max(orders) + 1), dtype=z.dtype)
            layer[..., list(orders)] = z[..., start : start + len(orders)]
            out.append(layer)
            start += len(orders)
        out[-1] = out[-1] * self.size
        return out

    def layers(self, z: Array) -> list[LayerJet]:
        return [hermite_layer(a) for a in self.coefficients(z)]

    def rates(self, z: Array) -> Array | None:
        return np.exp(z[..., sum(map(len, self.orders)) :]) if self.free_rates else None

    def pack(self, layers: Sequence[Array], rates: Sequence[float] = ()) -> Array:
        """Return a start from coefficients; ``rates`` are used only where they are free."""
        parts = [np.array([a[k] if k < len(a) else 0.0 for k in o]) for a, o in zip(layers, self.orders, strict=True)]
        parts[-1] = parts[-1] / self.size
        return np.concatenate([*parts, np.log(np.array(rates))] if self.free_rates else parts)

    def activations(self, z: Array, tau0: float) -> list[Activation]:
        out: list[Activation] = []
        for number, a in enumerate(self.coefficients(z), 1):
            positive = _sign_gauge(a)
            scaled = positive * tau0 if number < self.depth else positive
            out.append(Hermite(tuple(float(c) for c in scaled), tau0))
        return out


def _sign_gauge(a: Array) -> Array:
    """Flip whole parities so that each leading coefficient is positive: no kernel can tell."""
    out = a.copy()
    for parity in (0, 1):
        part = out[parity::2]
        if part.any() and part[np.abs(part).argmax()] < 0:
            out[parity::2] = -part
    return out


def _as_quadratic(phi: Activation) -> Activation:
    """Write h1 x/tau + h2 (x^2/tau^2 - 1)/sqrt(2) as a x^2 + b x + c."""
    assert isinstance(phi, Hermite)
    h1, h2 = (*phi.coefficients, 0.0)[1:3]
    return Quadratic(h2 / (math.sqrt(2.0) * phi.scale**2), h1 / phi.scale, -h2 / math.sqrt(2.0))


# ---- starts: designs that copy the DEQ's own equation ----------------------------------------------------------


def outer_start(target: Target, degree: int) -> list[Array]:
    """Return layer 1 with the kernel Lambda = s2a G + s2b S up to the third order, and phi itself at tau* as layer 2.

    As sigma_a2 -> 0 this becomes exact, which makes the solution found from it continuous in the DEQ's parameters.
    """
    covariance, response, _ = implicit_covariance(target.deq, target.tau0)
    first = np.zeros(degree + 1)
    top = min(degree, DEGREE)
    first[1 : top + 1] = np.sqrt(np.maximum(covariance[1 : top + 1], 0.0))
    first /= np.linalg.norm(first)
    if degree >= 3 and response < float((np.arange(degree + 1) * first**2).sum()):
        # the sign of the cubic term decides how the scale responds to ||x||^2: sum k a_k^2 + sqrt(6) a_1 a_3 + ...
        first[3] = -first[3]
    return [first, _rescaled(target, _own(target, degree), float(first[1]))]


def inner_start(target: Target, degree: int) -> list[Array]:
    """Return phi itself at tau* as layer 1 and a nearly linear layer 2: there the frozen NTK has a good solution."""
    first = _own(target, degree)
    second = np.zeros(degree + 1)
    second[1:3] = 1.0, 0.2
    return [first / np.linalg.norm(first), _rescaled(target, second, float(first[1] / np.linalg.norm(first)))]


def single_start(target: Target) -> Array:
    """Return two orders of one layer: the square roots of the kernel's first ones, with the signs of those of phi."""
    cross, a = target.jet.cross, _own(target, 2)
    sizes = [max(float(cross[index(0, 0, k)]), 0.0) for k in range(3)]
    return np.array(np.copysign(np.sqrt(sizes / _counted(target, 3)), a) * [0.0, 1.0, 1.0])


def shared_start(target: Target, design: HermiteDesign) -> Array:
    """Return the start that shares what the first two orders leave of the diagonal among the third and the fifth.

    Of 48 ways to share it, the one with the best next orders is taken.
    """
    terms = LIMITS.polynomial_degree + 1
    weights, angles = _counted(target, terms), np.linspace(0.0, 2.0 * np.pi, 48, endpoint=False)
    layers = np.zeros((len(angles), terms))
    layers[:, :3] = single_start(target)
    missing = max(target.numbers.diagonal - float(weights @ layers[0] ** 2), 0.0)
    layers[:, [3, 5]] = np.sqrt(missing / weights[[3, 5]]) * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    starts = layers[:, design.orders[0]] / design.size
    return starts[np.argmin(target.cost(jet_of(target, design, starts)))]


def _counted(target: Target, terms: int) -> Array:
    """Return how often an order of one layer counts: an NTK has it once more per derivative."""
    return 1.0 + np.arange(terms) if target.kernel == "ntk" else np.ones(terms)


def _own(target: Target, degree: int) -> Array:
    tau = target.deq.centred_scale(target.tau0)
    a = np.array(hermite_coefficients(target.deq.activation, tau * tau, degree + 1))
    a[0] = 0.0
    return a * math.copysign(1.0, a[1]) if a[1] != 0.0 else a


def _rescaled(target: Target, a: Array, slope: float) -> Array:
    """Return the last layer at the size that c1 or the diagonal asks for; NTKs have such a term per trained matrix."""
    name, number = target.kernel, target.numbers
    terms = {"ck": 1.0, "ntk_frozen": 2.0, "ntk": 3.0}[name]
    if target.even or a[1] == 0.0 or slope == 0.0:
        return a * math.sqrt(number.diagonal / terms) / float(np.linalg.norm(a))
    return a * (math.sqrt(number.c1 / terms) * target.tau0 / abs(slope * float(a[1])))


# ---- the families ------------------------------------------------------------------------------------------


def quadratic(target: Target) -> Draft:
    """Design layers a x^2 + b x + c, as many as the theory asks for."""
    depth = 1 if target.one_layer else 2
    design = HermiteDesign(((1,),) if target.odd else ((1, 2),) * depth, target.size)
    start = [single_start(target)] if depth == 1 else outer_start(target, 2)
    draft = solve(target, design, design.pack(start)).draft("quadratic", target.depth_reason)
    return replace(draft, network=ENN([_as_quadratic(phi) for phi in draft.network.activations]))


def hermite(target: Target) -> Draft:
    """Design one polynomial layer where it will do, else two; with learning rates where an NTK needs or likes them."""
    if target.odd or target.one_layer:
        return _single(target).draft("hermite", f"{target.depth_reason}; a polynomial reaches every ratio")
    reason = f"{target.depth_reason}; two polynomial layers in the Hermite basis have the freedom"
    if not target.tangent:
        return _plain(target, _plain_starts(target)).draft("hermite", reason)
    alone = _plain(target, _plain_starts(target)[:1])
    if alone.good:
        return alone.draft("hermite", reason)
    rated = _rated(target)
    if alone.feasible and not (rated.feasible and rated.cost < 0.1 * alone.cost):
        return alone.draft("hermite", reason)
    why = "worth having for the next order" if alone.feasible else "needed"
    return rated.draft("hermite", f"{reason}; learning rates are {why}")


FAMILIES = {"hermite": hermite, "quadratic": quadratic}


def _single(target: Target) -> Solved:
    orders = tuple(
        k
        for k in range(1, LIMITS.polynomial_degree + 1)
        if not (target.odd and k in (2, 4)) and not (target.even and k == 1)
    )
    design = HermiteDesign((orders,), target.size)
    return solve(target, design, shared_start(target, design))


def _orders(target: Target) -> tuple[tuple[int, ...], tuple[int, ...]]:
    every = tuple(range(1, LIMITS.polynomial_degree + 1))
    return every, tuple(k for k in every if k % 2 == 0) if target.even else every


def _plain(target: Target, starts: Sequence[Sequence[Array]]) -> Solved:
    """Solve for activations alone, up to the first start with a good next order, or the best of two feasible ones."""
    design = HermiteDesign(_orders(target), target.size)
    solutions: list[Solved] = []
    for layers in starts:
        solutions.append(solve(target, design, design.pack(layers)))
        if solutions[-1].good or sum(s.feasible for s in solutions) >= 2:
            break
    return best_of(solutions)


def _plain_starts(target: Target) -> list[list[Array]]:
    """Return two designs, and three away from the points where a coefficient's gradient vanishes."""
    builders = (inner_start, outer_start) if target.kernel == "ntk_frozen" else (outer_start, inner_start)
    starts = [build(target, LIMITS.polynomial_degree) for build in builders]
    for factor, cubic in ((2.0, 0.1), (3.0, -0.1), (4.0, 0.2)):  # more curvature and a cubic term in layer 1
        a, b = (layer.copy() for layer in starts[0])
        a[2] = factor * max(a[2], 0.05)
        a[3] += cubic
        b[3] += cubic * b[1]
        starts.append([a / np.linalg.norm(a), b])
    return starts


def _rated(target: Target) -> Solved:
    """Solve for activations and learning rates, from a nearly linear layer 1 and the rates that belong to it."""
    design = HermiteDesign(_orders(target), target.size, free_rates=True)
    first, second = outer_start(target, LIMITS.polynomial_degree)
    first[2] *= 0.1
    layers = [first / np.linalg.norm(first), second]
    solutions: list[Solved] = []
    for readout in (None, 0.999, 0.9999, 0.9):
        rates = target.rates_at_first_order(readout)
        solutions.append(solve(target, design, design.pack(layers, rates)))
        if solutions[-1].feasible:
            break
    return best_of(solutions)
