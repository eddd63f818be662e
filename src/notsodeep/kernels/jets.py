"""The calculus in truncated power series ("jets") around a pair of orthogonal points of typical norm.

In units of tau0^2 write ||x||^2 = 1 + u, ||y||^2 = 1 + v, x.y = d; a jet holds the coefficients of u^i v^j d^k up to
total degree :data:`DEGREE`. All is batched over leading axes; coefficients may be complex, for complex steps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .._arguments import isolation
from .._arrays import Array
from .._caches import cached
from ..activations import Activation, Affine
from ..errors import ConvergenceError, InvalidInputError
from ..gaussian import coefficients_at, portions
from ..networks import DEQ, KERNELS, Kernel, Network, check_kernels, check_unbiased
from ..networks.nodes import Cell, Domain, FixedPoint, KernelState, LayerMaps, explicit, kernels_in
from .power import Products, Series

DEGREE = 3
TERMS = 2 * DEGREE  # Hermite coefficients a_0 ... a_5 decide a jet of degree 3


MONOMIALS = tuple(
    sorted((m for m in itertools.product(range(DEGREE + 1), repeat=3) if sum(m) <= DEGREE), key=lambda m: (sum(m), m))
)
"""The exponents (i, j, k) of u^i v^j d^k, in the order of a jet's last axis."""


def index(i: int, j: int, k: int) -> int:
    """Position of u^i v^j d^k in a jet."""
    return MONOMIALS.index((i, j, k))


class KernelJet(Series):
    """A kernel around the pair: its off-diagonal jet, and its diagonal as a series in u."""

    bases = (MONOMIALS, tuple((i,) for i in range(DEGREE + 1)))

    @staticmethod
    def of(cross: Array, diagonal: Array) -> KernelJet:
        return KernelJet(np.concatenate([cross, diagonal], axis=-1))

    @property
    def cross(self) -> Array:
        """The coefficients of ``MONOMIALS``."""
        return self.c[..., : len(MONOMIALS)]

    @property
    def diagonal(self) -> Array:
        """The coefficients of 1, u, u^2 ..."""
        return self.c[..., len(MONOMIALS) :]

    def about(self) -> tuple[Array, Array, Array]:
        """The diagonal at the typical norm; powers of its relative deviation from there, and of the rest."""
        scale = self.diagonal[..., :1]
        relative = KernelJet(self.c / scale)
        relative.diagonal[..., 0] = 0.0
        powers = [0.0 * relative + 1.0, relative]
        for _ in range(DEGREE - 1):
            powers.append(powers[-1] * relative)
        every = KernelJet(np.stack([power.c for power in powers], axis=-2))
        return scale, every.diagonal, every.cross


_PAIRS = Products(MONOMIALS)


def compose(series: Array, inner: Array) -> Array:
    """The sum of series[k] inner^k from the powers of a series in u that has no constant term."""
    return (series[..., None, :] @ inner)[..., 0, :]


@dataclass(frozen=True)
class LayerJet(LayerMaps):
    """What one layer does to a jet: its Hermite coefficients at its input scale, and its two series in q/q0 - 1."""

    hermite: Array  # E[phi(tau xi) h_k(xi)]; the zeroth is 0: the layer is centred
    square: Array  # the series of E[phi(sqrt(q) xi)^2]
    slope_square: Array  # that of q0 E[phi'(sqrt(q) xi)^2]; zero where phi jumps and there is none
    mean: Any = 0.0  # E[phi(tau xi)], which centring has taken away

    def at(self, domain: Domain, points: None) -> tuple[LayerJet, None]:
        """Return this layer, which has a scale of its own."""
        return self, None

    def value(self, covariance: KernelJet) -> KernelJet:
        """E[phi(u) phi(v)]; the covariance starts at this layer's input scale."""
        return self._value(*covariance.about()[1:])

    def both(self, covariance: KernelJet) -> tuple[KernelJet, KernelJet]:
        scale, diagonal, cross = covariance.about()
        slope = KernelJet.of(apply_layer(self, diagonal, cross, derivative=True), compose(self.slope_square, diagonal))
        return self._value(diagonal, cross), KernelJet(slope.c / scale)

    def with_line(self, gain: Array, line: Array) -> LayerJet:
        """The jet of gain phi(x) + line x / tau, one per entry; ``hermite`` must reach beyond :data:`TERMS` by two."""
        # E[x phi] = tau (1 + e) A_1(e) and tau^2 E[phi'] = tau A_1(e), with A_1 = E[phi h_1] / sqrt(1 + e)
        odd = self.hermite[..., 1::2][..., : DEGREE + 1] * np.array([_weight(1, i) for i in range(DEGREE + 1)])
        mixed, squared, tail = 2.0 * (gain * line)[..., None], (line**2)[..., None], np.eye(2, DEGREE + 1)
        hermite = gain[..., None] * self.hermite
        hermite[..., 1] += line
        slope = gain[..., None] ** 2 * self.slope_square + mixed * odd + squared * tail[0]
        square = gain[..., None] ** 2 * self.square + mixed * odd + squared * tail.sum(0)
        square[..., 1:] += mixed * odd[..., :-1]
        return LayerJet(hermite, square, slope)

    def _value(self, diagonal: Array, cross: Array) -> KernelJet:
        return KernelJet.of(apply_layer(self, diagonal, cross), compose(self.square, diagonal))


@cached(256)
def layer_of(phi: Activation, tau: float, terms: int = TERMS) -> LayerJet:
    """The layer jet of any activation, centred at tau, by exact quadrature."""
    one = layers_of(phi, np.array([tau]), terms)
    return LayerJet(one.hermite[0], one.square[0], one.slope_square[0], one.mean[0])


def layers_of(phi: Activation, tau: Array, terms: int = TERMS) -> LayerJet:
    """The layer jets of an activation at many scales."""
    # d^j/dq^j E[f(sqrt(q) xi)] = E[f^(2j)] / 2^j and q^j E[f^(2j)] = E[f He_2j]: no derivative of f is taken
    scales = torch.from_numpy(tau)
    a = coefficients_at(phi, scales, terms).numpy()
    mean = a[:, 0].copy()
    a[:, 0] = 0.0
    phi = phi.canonical()
    if isinstance(phi, Affine):  # a shift would take digits from the difference to the mean
        phi = phi.affine(shift=-phi.shift)
    squares, slopes = [], []
    for part, xi, weights in portions(scales, phi.panels()):
        x, orders = part[:, None] * xi, _diagonal_orders(xi.numpy()) * weights.numpy()[..., None]
        value = phi(x).detach()
        value = (value - (value * weights).sum(-1, keepdim=True)).numpy()
        squares.append((value[:, None] ** 2 @ orders)[:, 0])
        if phi.continuous:
            slopes.append((phi.derivative(x).detach().numpy()[:, None] ** 2 @ orders)[:, 0])
    square = np.concatenate(squares)
    slope = (tau * tau)[:, None] * np.concatenate(slopes) if slopes else np.zeros_like(square)
    return LayerJet(a, square, slope, mean)


def _diagonal_orders(xi: Array) -> Array:
    """He_2j / (2^j j!) on the last axis."""
    scales = [2.0**j * math.factorial(j) for j in range(DEGREE + 1)]
    return np.polynomial.hermite_e.hermevander(xi, 2 * DEGREE)[..., ::2] / np.array(scales)


def hermite_layer(a: Array) -> LayerJet:
    """The layer jet of sum_k a_k h_k(x / tau), batched over leading axes; a_0 must be 0."""
    size = max(a.shape[-1], TERMS)
    padded = np.zeros((*a.shape[:-1], size), dtype=a.dtype)
    padded[..., : a.shape[-1]] = a
    square = _diagonal_series(padded)
    slope = _diagonal_series(padded[..., 1:] * np.sqrt(np.arange(1, size)))
    return LayerJet(padded, square, slope)


def _diagonal_series(a: Array) -> Array:
    """Series in e of E[f(sqrt(1+e) xi)^2] for f = sum_k a_k h_k."""
    return np.einsum("...k,jkl,...l->...j", a, _diagonal_form(a.shape[-1]), a)


def _diagonal_form(size: int) -> Array:
    """E[f^2] = sum_k A_k(e)^2 (1+e)^k, A_k(e) = sum_i _weight(k, i) a_(k+2i) e^i: one quadratic form per power of e."""
    form = np.zeros((DEGREE + 1, size, size))
    for k in range(size):
        for i, j, m in MONOMIALS:
            if k + 2 * max(i, j) < size:
                form[i + j + m, k + 2 * i, k + 2 * j] += _weight(k, i) * _weight(k, j) * math.comb(k, m)
    return form


def _weight(k: int, i: int) -> float:
    """sqrt((k + 2i)! / k!) / (2^i i!)."""
    return math.sqrt(math.prod(range(k + 1, k + 2 * i + 1))) / (2.0**i * math.factorial(i))


def apply_layer(layer: LayerJet, diagonal: Array, cross: Array, derivative: bool = False) -> Array:
    """E[phi phi] (or q0 E[phi' phi']) = sum_k A_k(u) A_k(v) cross^k as a jet, A_k the Hermite coefficient at a scale.

    ``diagonal`` and ``cross``: powers of q(u)/q0 - 1 as a series in u, and of the off-diagonal entry over q0.
    """
    orders, sizes = _SIDES[derivative]
    sides = (layer.hermite[..., orders] * sizes) @ diagonal  # (..., k, i): the coefficient of u^i in A_k
    return _PAIRS.product(sides[..., _FIRST] * sides[..., _SECOND] * (_BOTH == 0), cross).sum(-2)


_FIRST, _SECOND, _BOTH = np.array(MONOMIALS).T  # the factors of a(u) b(v) as a jet


def _side_table(derivative: bool) -> tuple[Array, Array]:
    """Which Hermite coefficient enters A_k at e^i, and with what weight; those beyond TERMS have weight 0."""
    span, shift = range(DEGREE + 1), int(derivative)
    orders = np.array([[k + shift + 2 * i for i in span] for k in span])
    sizes = np.array(
        [[_weight(k + shift, i) * math.sqrt(k + shift if derivative else 1.0) for i in span] for k in span]
    )
    beyond = orders >= TERMS
    return np.where(beyond, 0, orders), np.where(beyond, 0.0, sizes)


_SIDES = {derivative: _side_table(derivative) for derivative in (False, True)}


def _inputs(batch: tuple[int, ...], kind: Any) -> KernelJet:
    """The inner products of the inputs in units of tau0^2: d off the diagonal, 1 + u along it."""
    found = KernelJet(np.zeros((*batch, sum(map(len, KernelJet.bases))), dtype=kind))
    found.cross[..., index(0, 0, 1)] = 1.0
    found.diagonal[..., :2] = 1.0
    return found


def explicit_jets(
    layers: Sequence[LayerJet], rates: Array | None = None, kernels: Sequence[Kernel] = KERNELS
) -> dict[Kernel, KernelJet]:
    """The kernels of an explicit network in units of tau0, each layer at its own input scale."""
    batch = layers[0].hermite.shape[:-1]
    kind = np.result_type(*[layer.hermite.dtype for layer in layers], float if rates is None else rates.dtype)
    weights = np.ones((*batch, len(layers) + 1), dtype=kind) if rates is None else rates
    each = [weights[..., number, None] for number in range(len(layers) + 1)]
    return kernels_in(JetDomain(), explicit(layers, each), None, _inputs(batch, kind), kernels)


class JetDomain(Domain):
    """Jets around a typical pair; points are the scale at which a layer is centred."""

    name = "the expansion around orthogonal inputs (coefficients, equivalent, spectral_law, match)"

    def layer(self, phi: Activation, points: float) -> LayerJet:
        return _at_scale(phi, points)

    def through(self, phi: Activation, points: float) -> float:
        return math.sqrt(float(_at_scale(phi, points).square[0]))

    def settle(self, fixed: FixedPoint, state: KernelState) -> float:
        check_unbiased(fixed.network, self.name)
        return fixed.network.centred_scale(state.points)

    def solve(self, fixed: FixedPoint, cell: Any, points: float, state: KernelState) -> KernelJet:
        """Expand the covariance: each pass settles one more degree."""
        along, across = rates_of_change(cell, points)
        drive, s2a = fixed.drive(state.covariance), fixed.sigma_a2
        covariance = KernelJet(0.0 * drive.c)
        covariance.diagonal[0] = points**2
        if points == 0.0:
            return covariance
        for _ in range(DEGREE):
            residual = s2a * cell.value(covariance) + drive - covariance
            covariance.diagonal[1:] += residual.diagonal[1:] / (1.0 - s2a * along)
            covariance.cross[:] += residual.cross / (1.0 - s2a * across)
        # E[phi']^2 <= E[phi'^2] by Cauchy-Schwarz, so the NTK's condition implies that of the CK
        _refuse_divergence(fixed.network, state.points, "E[(phi^2)'']/2", s2a * along)
        _refuse_divergence(fixed.network, state.points, "E[phi']^2", s2a * across)
        return covariance

    def check_gap(self, fixed: FixedPoint, gap: KernelJet) -> None:
        _refuse_divergence(fixed.network, None, "E[phi'^2]", 1.0 - float(gap.diagonal[0]))


def _at_scale(phi: Activation, tau: float) -> LayerJet:
    if not 0.0 < tau < math.inf:
        what = "is constant" if tau == 0.0 else "overflows"
        raise InvalidInputError(f"the network {what} at this tau0: a layer's inputs have scale {tau:.6g}")
    return layer_of(phi, tau)


def rates_of_change(cell: Any, tau: float) -> tuple[float, float]:
    """Return how the variance and the covariance behind a cell follow those before it, at the typical pair."""
    layers = cell.layers if isinstance(cell, Cell) else [cell]
    along = across = 1.0
    for layer in layers:
        along, across = along * layer.square[1] / tau**2, across * (layer.hermite[1] / tau) ** 2
        tau = math.sqrt(float(layer.square[0]))
    return float(along), float(across)


@dataclass(frozen=True)
class EquilibriumJet:
    """A DEQ, centred at tau*: its cell there, and Lambda around the typical pair."""

    tau: float
    cell: Any
    covariance: KernelJet

    @property
    def mean(self) -> float:
        """E[phi] of the last layer, which centring takes away."""
        last = self.cell.layers[-1] if isinstance(self.cell, Cell) else self.cell
        return float(last.mean)


@cached(64)
def equilibrium_jet(deq: DEQ, tau0: float) -> EquilibriumJet:
    """Expand the covariance of a DEQ around the typical pair."""
    domain, fixed = JetDomain(), deq.fixed_point
    state = KernelState(tau0, tau0 * tau0 * _inputs((), float), {})
    tau = domain.settle(fixed, state)
    cell = fixed.maps(domain, tau)
    return EquilibriumJet(tau, cell, domain.solve(fixed, cell, tau, state))


def implicit_covariance(deq: DEQ, tau0: float) -> tuple[Array, float, float]:
    """Lambda / tau*^2 at fixed norms as a series in d; d log Lambda_ii / d log ||x||^2; tau*."""
    at = equilibrium_jet(deq.detached(), tau0)
    cross, line = at.covariance.cross / at.tau**2, at.covariance.diagonal / at.tau**2
    return np.array([cross[index(0, 0, k)] for k in range(DEGREE + 1)]), float(line[1]), at.tau


def _refuse_divergence(deq: DEQ, tau0: float | None, name: str, rate: float) -> None:
    if not rate < 1.0:
        where = "" if tau0 is None else f" at tau0 = {tau0:.6g}"
        raise ConvergenceError(
            f"the equivalent of {deq!r} diverges{where}: sigma_a2 {name} = {rate:.4g} must be below 1; "
            f"lower sigma_a2 (a unique equilibrium is guaranteed below {deq.limit:.6g})"
        )


@isolation()
def network_jets(
    network: Network, tau0: float, kernels: Sequence[Kernel], rates: Sequence[float] | None = None
) -> dict[Kernel, KernelJet]:
    """The kernels of a network centred at the scale tau0 of its inputs, around the typical pair, in units of tau0."""
    names, expression = check_kernels(network, kernels), network.detached().expression(network.rates(rates))
    with np.errstate(over="ignore", invalid="ignore"):  # the scale behind each layer is checked
        return kernels_in(JetDomain(), expression, tau0, tau0 * tau0 * _inputs((), float), names)
