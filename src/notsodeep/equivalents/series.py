"""Kernels on the sphere as power series of the cosine (theory, section 7).

For inputs of one norm every kernel is g(r) = sum_k g_k r^k, r the cosine, with g_k >= 0 (Schoenberg). A layer acts on
the series of its pre-activation correlation by composition with F(rho) = sum_k a_k(q)^2 rho^k, a_k the Hermite
coefficients, and E[phi'phi'] is F'/q. Nearly everything below adds and multiplies non-negative series, so no digits
are lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln

from ..activations import Activation
from ..errors import ConvergenceError, InvalidInputError
from ..gaussian import hermite_coefficients, moments
from ..networks import DEQ, ENN, Kernel, Network, check_kernel

__all__ = ["Layer", "layer_series", "power_series", "sphere_diagonal"]

Array = NDArray[np.float64]
_MOST = 1024  # Hermite coefficients that the quadrature still resolves


def power_series(network: Network, terms: int, kernel: Kernel = "ck", norm: float = 1.0) -> Array:
    """g_0 ... g_{terms-1} of k(x, y) = sum_k g_k cos(x, y)^k, for all inputs with ||x|| = ``norm``.

    The network is taken as it is, centred or not; coefficients are non-negative.

    >>> import notsodeep as nsd
    >>> [round(float(g), 6) for g in power_series(nsd.ENN("relu"), 5)]
    [0.159155, 0.25, 0.079577, 0.0, 0.006631]
    """
    _check(network, kernel, norm)
    if not 1 <= terms <= _MOST:
        raise InvalidInputError(f"terms must be between 1 and {_MOST}, got {terms}")
    if isinstance(network, DEQ):
        return _implicit(network, terms, kernel, norm)
    return _explicit(network, terms, kernel, norm)


def sphere_diagonal(network: Network, kernel: Kernel = "ck", norm: float = 1.0) -> float:
    """The kernel of a point with itself, g(1): the sum of all coefficients."""
    _check(network, kernel, norm)
    if isinstance(network, DEQ):
        q, gain = scale_of(network, norm), network.variances[0]
        m = moments(network.activation, math.sqrt(q))
        loop = _loop_gain(network, gain * m.slope_square, kernel)
        return {"ck": m.square, "ntk_frozen": m.square / loop, "ntk": m.square + q * m.slope_square / loop}[kernel]
    q, kappa = norm**2, norm**2 if kernel == "ntk" else 0.0
    for phi in network.activations:
        m = moments(phi, math.sqrt(q))
        q, kappa = m.square, m.square + kappa * m.slope_square
    return q if kernel == "ck" else kappa


def _loop_gain(deq: DEQ, rate: float, kernel: Kernel) -> float:
    """1 - s2a E[phi'^2], which the NTK divides by."""
    if kernel != "ck" and rate >= 1.0:
        raise ConvergenceError(f"the NTK of {deq!r} diverges: sigma_a2 E[phi'^2] = {rate:.4g} must be below 1")
    return 1.0 - rate


def _check(network: Network, kernel: Kernel, norm: float) -> None:
    check_kernel(network, kernel)
    if not (math.isfinite(norm) and norm > 0):
        raise InvalidInputError(f"norm must be positive and finite, got {norm!r}")


# ---- networks ------------------------------------------------------------------------------------------------


def scale_of(deq: DEQ, norm: float) -> float:
    """q = Lambda_ii, the fixed point of q = s2a E[phi(sqrt(q) xi)^2] + s2b ||x||^2, by Newton."""
    s2a, s2b = deq.variances
    drive = s2b * norm**2
    q = drive + s2a * moments(deq.activation, math.sqrt(drive)).square
    for _ in range(100):
        m = moments(deq.activation, math.sqrt(q))
        step = (s2a * m.square + drive - q) / max(1.0 - 0.5 * s2a * m.square_curvature, 0.05)
        q = max(q + step, 0.5 * q)
        if abs(step) <= 4e-16 * q:
            break
        if not math.isfinite(q) or q > 1e12 * (1.0 + drive):
            raise ConvergenceError(f"the scale of {deq!r} diverges at norm {norm}: sigma_a2 is too large")
    residual = abs(s2a * moments(deq.activation, math.sqrt(q)).square + drive - q)
    if q <= 0.0 or residual > 1e-13 * q:
        raise ConvergenceError(f"the scale of {deq!r} at norm {norm} did not converge (residual {residual:.1e})")
    return q


def _implicit(deq: DEQ, terms: int, kernel: Kernel, norm: float) -> Array:
    (s2a, s2b), q = deq.variances, scale_of(deq, norm)
    s2b *= norm**2
    rho = np.zeros(terms)
    rho[0] = _offset(deq.activation, q, s2a)
    layer = layer_series(deq.activation, q, rho[0], terms)
    rho = _fixed_point(rho, layer, s2a, s2b)
    value = layer.value(rho)
    if kernel == "ck":
        return value
    slope = layer.slope(rho)
    loop = _geometric(s2a * slope)
    return _product(value, loop) if kernel == "ntk_frozen" else value + _product(_product(q * rho, slope), loop)


def _explicit(enn: ENN, terms: int, kernel: Kernel, norm: float) -> Array:
    sigma = np.zeros(terms)
    sigma[1:2] = norm**2
    theta = sigma if kernel == "ntk" else np.zeros(terms)
    q = norm**2
    for phi in enn.activations:
        if q <= 0.0:
            raise InvalidInputError(f"{enn!r} is zero for every input: a layer receives nothing")
        rho = sigma / q
        layer = layer_series(phi, q, rho[0], terms)
        sigma = layer.value(rho)
        if kernel != "ck":
            theta = sigma + _product(theta, layer.slope(rho))
        q = moments(phi, math.sqrt(q)).square
    return sigma if kernel == "ck" else theta


def _offset(phi: Activation, q: float, s2a: float) -> float:
    """rho(0) = s2a F(rho(0)) / q: how correlated the equilibria of orthogonal inputs are."""
    if phi.parity == "odd" or s2a == 0.0:
        return 0.0
    for size in (128, _MOST):
        rho = _offset_from(hermite_coefficients(phi, q, size) ** 2, s2a / q)
        if rho**size < 1e-17:
            break
    return rho if rho > 1e-16 else 0.0


def _offset_from(square: Array, gain: float) -> float:
    rho, powers = 0.0, np.arange(len(square))
    for _ in range(200):
        weights = rho**powers
        value, slope = float(square @ weights), float((powers[1:] * square[1:]) @ weights[:-1])
        step = (gain * value - rho) / (1.0 - gain * slope)
        rho += step
        if abs(step) <= 2e-16:
            return rho
    raise ConvergenceError(f"the correlation of orthogonal inputs did not converge (last step {step:.1e})")


# ---- one layer -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """F(rho) = E[phi(u)phi(v)] at variance q: sum_k taylor_k ((rho - centre) / reach)^k."""

    taylor: Array
    centre: float
    reach: float
    q: float

    def value(self, rho: Array) -> Array:
        """F(rho(r)), truncated like ``rho``; rho(0) must be ``centre``."""
        return _compose(self.taylor, rho / self.reach)

    def slope(self, rho: Array) -> Array:
        """E[phi'phi'] = F'(rho(r)) / q."""
        derivative = np.arange(1, len(self.taylor)) * self.taylor[1:]
        return _compose(derivative, rho / self.reach) / (self.reach * self.q)


def layer_series(phi: Activation, q: float, centre: float, terms: int) -> Layer:
    """Taylor coefficients of F at ``centre``: f_k = sum_m binom(m, k) a_m(q)^2 centre^(m-k), k <= terms.

    They are held times (1 - centre)^k. |rho - centre| <= 1 - centre on the unit disc, so nothing overflows and
    the weights binom(m, k) centre^(m-k) (1-centre)^k are those of a negative binomial law, whose tail is known.
    """
    keep = terms + 1
    if centre == 0.0:
        return Layer(hermite_coefficients(phi, q, keep) ** 2, 0.0, 1.0, q)
    reach = max(1.0 - centre, 1e-300)
    size = min(_MOST, math.ceil((keep + 50.0 + 12.0 * math.sqrt(keep)) / reach))
    square = hermite_coefficients(phi, q, size) ** 2
    k, m = np.arange(keep)[:, None], np.arange(size)[None, :]
    gap = np.maximum(m - k, 0)
    log = gammaln(m + 1.0) - gammaln(k + 1.0) - gammaln(gap + 1.0) + gap * math.log(centre) + k * math.log(reach)
    parts = np.where(m >= k, np.exp(log), 0.0) * square
    if float(parts[:, -16:].sum(1).max()) > 1e-16 * float(square.sum()):
        raise ConvergenceError(
            f"{terms} terms need more than {_MOST} Hermite coefficients of {phi!r}, because orthogonal inputs have the "
            f"correlation {centre:.3g}; ask for fewer terms or centre the network"
        )
    return Layer(parts.sum(1), centre, reach, q)


# ---- truncated series ----------------------------------------------------------------------------------------


def _product(a: Array, b: Array) -> Array:
    return np.convolve(a, b)[: len(a)]


def _compose(taylor: Array, rho: Array) -> Array:
    """sum_k taylor_k (rho - rho_0)^k by Horner; the k-th power starts at order k, so the work shrinks with k."""
    size = len(rho)
    delta = rho.copy()
    delta[0] = 0.0
    out = np.zeros(size)
    for k in range(min(len(taylor), size) - 1, -1, -1):
        # only the first size - k coefficients of this partial sum reach the result
        room = size - k
        out[:room] = np.convolve(out[:room], delta[:room])[:room]
        out[0] += taylor[k]
    return out


def _geometric(series: Array) -> Array:
    """1 / (1 - series), coefficient by coefficient."""
    out = np.zeros_like(series)
    lead = 1.0 / (1.0 - series[0])
    out[0] = lead
    for k in range(1, len(series)):
        out[k] = lead * float(series[1 : k + 1] @ out[k - 1 :: -1])
    return out


def _fixed_point(rho: Array, layer: Layer, s2a: float, s2b: float) -> Array:
    """The series of q rho = s2a F(rho) + s2b r, by Newton: the number of right coefficients doubles every step."""
    terms, right = len(rho), 1
    drive = np.zeros(terms)
    drive[1:2] = s2b / layer.q
    while right < terms:
        right = min(2 * right, terms)
        part = rho[:right]
        residual = s2a / layer.q * layer.value(part) + drive[:right] - part
        rho[:right] = part + _product(residual, _geometric(s2a * layer.slope(part)))
    # one more sweep in the form that only adds positive numbers: small coefficients get their own relative accuracy
    sweep = s2a / layer.q * layer.value(rho) + drive
    own = s2a * layer.slope(rho[:1])[0]
    sweep[1:] = (sweep[1:] - own * rho[1:]) / (1.0 - own)
    sweep[0] = rho[0]
    return sweep
