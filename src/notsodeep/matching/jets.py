"""Truncated power series ("jets") of a kernel around a pair of orthogonal points of typical norm.

A kernel is a function k(||x||^2, ||y||^2, x.y). In units of tau0^2 write ||x||^2 = 1 + u, ||y||^2 = 1 + v,
x.y = d; a jet holds the coefficients of u^i v^j d^k up to total degree :data:`DEGREE`. The four numbers of the
theory are four of them (section 6): what is left are the next orders, on which a twin spends its freedom.

All functions are batched over leading axes and work for real and complex coefficients, so that exact
derivatives with respect to parameters come from complex steps.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .._quadrature import normal_rule
from ..activations import Activation
from ..gaussian import hermite_coefficients
from ..networks import DEQ

Array = NDArray[Any]

DEGREE = 3
TERMS = 2 * DEGREE  # Hermite coefficients a_0 ... a_5 decide a jet of degree 3


@functools.cache
def monomials() -> tuple[tuple[int, int, int], ...]:
    """The exponents (i, j, k) of u^i v^j d^k, in the order of a jet's last axis."""
    span = range(DEGREE + 1)
    kept = [(i, j, k) for i in span for j in span for k in span if i + j + k <= DEGREE]
    return tuple(sorted(kept, key=lambda m: (sum(m), m)))


@functools.cache
def index(i: int, j: int, k: int) -> int:
    """Position of u^i v^j d^k in a jet."""
    return monomials().index((i, j, k))


@functools.cache
def _product_table() -> tuple[Array, Array, Array]:
    """Pairs of monomials whose product is kept, sorted by product, and where each product starts."""
    pairs = []
    for a, left in enumerate(monomials()):
        for b, right in enumerate(monomials()):
            both = (left[0] + right[0], left[1] + right[1], left[2] + right[2])
            if sum(both) <= DEGREE:
                pairs.append((index(*both), a, b))
    product, first, second = np.array(sorted(pairs)).T
    return first, second, np.searchsorted(product, np.arange(len(monomials())))


def multiply(a: Array, b: Array) -> Array:
    """The product of two jets."""
    first, second, starts = _product_table()
    return np.add.reduceat(a[..., first] * b[..., second], starts, axis=-1)


def constant(value: Any) -> Array:
    """A jet that does not depend on the points."""
    value = np.asarray(value)
    out = np.zeros((*value.shape, len(monomials())), dtype=value.dtype if value.dtype.kind == "c" else float)
    out[..., 0] = value
    return out


def inverse(a: Array) -> Array:
    """1 / a by Newton's iteration, exact once the number of correct degrees has doubled past the end."""
    out = constant(1.0 / a[..., 0])
    for _ in range(math.ceil(math.log2(DEGREE + 1))):
        out = multiply(out, constant(np.full(a.shape[:-1], 2.0)) - multiply(a, out))
    return out


def along_u(series: Array) -> Array:
    """A power series in u alone, coefficients on the last axis, as a jet."""
    out = np.zeros((*series.shape[:-1], len(monomials())), dtype=series.dtype)
    for i in range(DEGREE + 1):
        out[..., index(i, 0, 0)] = series[..., i]
    return out


def swapped(a: Array) -> Array:
    """The jet with the roles of the two points exchanged."""
    return a[..., [index(j, i, k) for i, j, k in monomials()]]


def on_diagonal(a: Array) -> Array:
    """The coefficients of u^0 ... u^DEGREE of a jet that depends on u alone."""
    return a[..., [index(i, 0, 0) for i in range(DEGREE + 1)]]


@dataclass(frozen=True)
class LayerJet:
    """What one layer does to a jet: its Hermite coefficients at its input scale, and its two diagonal series.

    ``hermite[k]`` = E[phi(tau xi) h_k(xi)] (the zeroth is 0: the layer is centred); ``square`` and ``slope_square``
    are the series of E[phi(sqrt(q) xi)^2] and q0 E[phi'(sqrt(q) xi)^2] in q/q0 - 1.
    """

    hermite: Array
    square: Array
    slope_square: Array


def layer_of(phi: Activation, tau: float) -> LayerJet:
    """The layer jet of any activation, centred at tau, by exact quadrature.

    d^j/dq^j E[f(sqrt(q) xi)] = E[f^(2j)] / 2^j and q^j E[f^(2j)] = E[f He_2j]: no derivative of f is taken.
    """
    a = np.array(hermite_coefficients(phi, tau * tau, TERMS))
    mean, a[0] = float(a[0]), 0.0
    nodes, weights = normal_rule(torch.tensor([tau], dtype=torch.float64), phi.kinks, phi.feature)
    x = tau * nodes[0]
    bases = [
        np.polynomial.hermite_e.hermeval(nodes[0].numpy(), np.eye(2 * DEGREE + 1)[2 * j]) / (2.0**j * math.factorial(j))
        for j in range(DEGREE + 1)
    ]
    rows = np.array(bases) * weights[0].numpy()
    square = rows @ (phi._value(x).detach().numpy() - mean) ** 2
    slope = rows @ phi._slope(x).detach().numpy() ** 2 * tau * tau if phi.continuous else np.full(DEGREE + 1, np.inf)
    return LayerJet(a, square, slope)


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


@functools.cache
def _diagonal_form(size: int) -> Array:
    """E[f^2] = sum_k A_k(e)^2 (1+e)^k, A_k(e) = sum_i _weight(k, i) a_(k+2i) e^i: one quadratic form per power of e."""
    form = np.zeros((DEGREE + 1, size, size))
    for k in range(size):
        for i, j, m in monomials():
            if k + 2 * max(i, j) < size:
                form[i + j + m, k + 2 * i, k + 2 * j] += _weight(k, i) * _weight(k, j) * math.comb(k, m)
    return form


@functools.cache
def _weight(k: int, i: int) -> float:
    """sqrt((k + 2i)! / k!) / (2^i i!)."""
    return math.sqrt(math.prod(range(k + 1, k + 2 * i + 1))) / (2.0**i * math.factorial(i))


def apply_layer(layer: LayerJet, diagonal: Array, cross: Array, derivative: bool = False) -> Array:
    """E[phi(u) phi(v)] (or q0 E[phi' phi'] if ``derivative``) as a jet, from jets of the input covariance.

    ``diagonal`` is q(u)/q0 - 1 as a series in u; ``cross`` is the off-diagonal entry divided by q0. The k-th term is
    A_k(u) A_k(v) cross^k, with A_k the k-th Hermite coefficient as a function of the scale.
    """
    orders, sizes = _side_table(derivative)
    coefficients = layer.hermite[..., orders] * sizes  # (..., k, i): the coefficient of e^i in A_k
    sides = coefficients @ np.stack(_powers(along_u(diagonal)), axis=-2)
    products = multiply(sides, swapped(sides))
    return multiply(products, np.stack(_powers(cross), axis=-2)).sum(-2)


@functools.cache
def _side_table(derivative: bool) -> tuple[Array, Array]:
    """Which Hermite coefficient enters A_k at e^i, and with what weight; those beyond TERMS have weight 0."""
    span, shift = range(DEGREE + 1), int(derivative)
    orders = np.array([[k + shift + 2 * i for i in span] for k in span])
    sizes = np.array(
        [[_weight(k + shift, i) * math.sqrt(k + shift if derivative else 1.0) for i in span] for k in span]
    )
    beyond = orders >= TERMS
    return np.where(beyond, 0, orders), np.where(beyond, 0.0, sizes)


def _powers(a: Array) -> list[Array]:
    out = [constant(np.ones(a.shape[:-1], dtype=a.dtype)), a]
    for _ in range(DEGREE - 1):
        out.append(multiply(out[-1], a))
    return out


def compose(series: Array, inner: Array) -> Array:
    """series(inner) for univariate series; ``inner`` has no constant term."""
    jet = along_u(inner)
    out = np.zeros_like(jet)
    for c in range(DEGREE, -1, -1):
        out = multiply(out, jet)
        out[..., 0] += series[..., c]
    return on_diagonal(out)


@dataclass(frozen=True)
class KernelJet:
    """Off-diagonal jet and diagonal series of one kernel."""

    cross: Array
    diagonal: Array


def explicit_jets(
    layers: list[LayerJet], rates: Array | None = None, kinds: Sequence[str] = ("ck", "ntk", "ntk_frozen")
) -> dict[str, KernelJet]:
    """The kernels of an explicit network in units of tau0, each layer at its own input scale."""
    batch = layers[0].hermite.shape[:-1]
    kind = np.result_type(*[layer.hermite.dtype for layer in layers], float if rates is None else rates.dtype)
    weights = np.ones((*batch, len(layers) + 1), dtype=kind) if rates is None else rates
    cross = np.zeros((*batch, len(monomials())), dtype=kind)
    cross[..., index(0, 0, 1)] = 1.0
    line = np.zeros((*batch, DEGREE + 1), dtype=kind)
    line[..., :2] = 1.0  # q(u) = 1 + u
    first = {"ntk": weights[..., 0, None], "ntk_frozen": np.zeros((*batch, 1), dtype=kind)}
    tangent = {name: KernelJet(w * cross, w * line) for name, w in first.items() if name in kinds}
    scale = np.ones(batch, dtype=kind)[..., None]
    for number, layer in enumerate(layers, 1):
        e = line / scale
        e[..., 0] = 0.0
        image = KernelJet(apply_layer(layer, e, cross / scale), compose(layer.square, e))
        if tangent:
            dot = apply_layer(layer, e, cross / scale, derivative=True) / scale
            steep = compose(layer.slope_square, e) / scale
            rate = weights[..., number, None]
            tangent = {
                name: KernelJet(
                    rate * image.cross + multiply(k.cross, dot),
                    rate * image.diagonal + _series_product(k.diagonal, steep),
                )
                for name, k in tangent.items()
            }
        cross, line, scale = image.cross, image.diagonal, layer.square[..., :1]
    return {"ck": KernelJet(cross, line), **tangent}


def _series_product(a: Array, b: Array) -> Array:
    return on_diagonal(multiply(along_u(a), along_u(b)))


def _implicit_covariance(deq: DEQ, tau0: float) -> tuple[float, LayerJet, Array, Array]:
    """tau*, the activation there, and Lambda / tau*^2 of the centred DEQ: diagonal series less 1, and cross jet."""
    tau = deq.centred_scale(tau0)
    layer = layer_of(deq.activation, tau)
    s2a, drive = float(deq.sigma_a2), float(deq.sigma_b2) * tau0 * tau0 / tau**2
    e, cross = np.zeros(DEGREE + 1), np.zeros(len(monomials()))
    gain = 1.0 / (1.0 - s2a * layer.square[1] / tau**2)
    slope = 1.0 / (1.0 - s2a * (layer.hermite[1] / tau) ** 2)
    source, norm = np.zeros_like(cross), np.zeros_like(e)
    source[index(0, 0, 1)] = norm[1] = drive
    for _ in range(DEGREE + 1):  # each pass settles one more degree
        image = s2a * compose(layer.square, e) / tau**2 + norm
        image[0] = 0.0
        e = e + gain * (image - e)
    for _ in range(DEGREE + 2):
        cross = cross + slope * (s2a * apply_layer(layer, e, cross) / tau**2 + source - cross)
    return tau, layer, e, cross


def implicit_covariance(deq: DEQ, tau0: float) -> tuple[Array, float, float]:
    """Lambda / tau*^2 at fixed norms as a series in d; d log Lambda_ii / d log ||x||^2; tau*."""
    tau, _, e, cross = _implicit_covariance(deq, tau0)
    return np.array([cross[index(0, 0, k)] for k in range(DEGREE + 1)]), float(e[1]), tau


def implicit_jets(deq: DEQ, tau0: float) -> dict[str, KernelJet]:
    """CK and both NTKs of a DEQ whose activation is taken centred at tau*; in units of tau0."""
    tau, layer, e, cross = _implicit_covariance(deq, tau0)
    s2a = float(deq.sigma_a2)
    g = KernelJet(apply_layer(layer, e, cross), compose(layer.square, e))
    if not np.isfinite(layer.slope_square).all():
        return {"ck": g}
    dot, steep = apply_layer(layer, e, cross, derivative=True) / tau**2, compose(layer.slope_square, e) / tau**2
    gap = inverse(constant(1.0) - s2a * dot)
    line = along_u(steep)
    gap_line = inverse(constant(1.0) - s2a * line)
    full_line = e * tau**2
    full_line[0] = tau**2
    return {
        "ck": g,
        "ntk_frozen": KernelJet(multiply(g.cross, gap), on_diagonal(multiply(along_u(g.diagonal), gap_line))),
        "ntk": KernelJet(
            g.cross + tau**2 * multiply(multiply(cross, dot), gap),
            g.diagonal + on_diagonal(multiply(multiply(along_u(full_line), line), gap_line)),
        ),
    }
