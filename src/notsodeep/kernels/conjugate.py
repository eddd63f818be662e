"""The calculus at complex norms: how far a kernel continues analytically in the norm of its input, and how large it is.

Along a ray the feature map F(s) of an input of norm s is a curve in a Hilbert space, <F(s), F(t)> = k(s, t, 1), and its
continuation to a complex norm z has |F(z)|^2 = k(z, conj z, 1). At complex variances the Hermite coefficients are

    a_k(q) = int phi(x) h_k(x / sqrt(q)) exp(-x^2 / 2q) / sqrt(2 pi q) dx,    Re q > 0,

so a layer maps the covariance of z with conj z, a positive number, by the series of |a_k(q)|^2, and the recursion is
that of all other kernels. Why the boundary of a region decides:

- the variance q(z) of a DEQ is the inverse of the explicit map q -> (q - sigma_a2 V(q) - sigma_c2) / sigma_b2 = z^2,
  analytic in the right half plane. A map that takes the boundary of a region one to one to a curve takes its inside
  one to one to the inside of the curve (Darboux), so q(z) is analytic inside if it is found on the boundary;
- the iterates of the covariance are kernels of analytic feature maps and increase from step to step. If they are
  bounded on the boundary, they are so inside (|F|^2 is subharmonic), and their limit is analytic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..activations import Activation
from ..activations.panels import normal_nodes
from ..gaussian.hermite import project
from ..gaussian.rule import shared_coefficients, shared_rule
from ..networks import DEQ, Kernel, Network
from .recursion import LayerMaps, equation, explicit, implicit

__all__ = ["conjugate_square"]

Array = NDArray[np.float64]
Complex = NDArray[np.complex128]
_STEPS = 40
_TERMS, _TERMS_REAL = 480, 160  # Hermite coefficients; by the oscillating rule rounding grows with their order
_LEFT, _WINDOW = 1e-6, 12  # share of a series that its next terms have where it ends
_STEEP, _STEEP_REAL = 12.0, 4.0  # |Im q| / Re q; on the real axis the rule has to resolve an oscillating density


def conjugate_square(network: Network, z: Complex, kernel: Kernel) -> Array:
    """|F(z)|^2 = k(z, conj z, 1) at complex norms; infinite where the map does not continue, or a series does not end.

    On the real axis it is the kernel of an input with itself:

    >>> import notsodeep as nsd
    >>> float(conjugate_square(nsd.ENN(["erf"]), np.array([1.0 + 0j]), "ck")[0].round(6))
    0.464559
    """
    unknown = np.full(len(z), np.inf)
    variances = _variances(network, z)
    if variances is None:
        return unknown
    layers = [_Conjugate(phi, q) for phi, q in zip(network.activations, variances, strict=True)]
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        out = _kernel(network, layers, np.abs(z) ** 2, kernel)
    good = np.isfinite(out) & np.all([layer.settled for layer in layers], axis=0)
    return np.where(good, out, np.inf)


def _kernel(network: Network, layers: Sequence[_Conjugate], gram: Array, kernel: Kernel) -> Array:
    if not isinstance(network, DEQ):
        return np.asarray(explicit(gram, layers, (1.0,) * (len(layers) + 1), (kernel,))[kernel])
    drive = network.drive(gram)
    lam, sigma_a2 = drive.copy(), network.variances[0]
    for _ in range(_STEPS):  # the equation is concave: Newton's method increases to its least solution
        rest, rate = equation(layers[0], lam, sigma_a2, drive)
        move = np.where(rate > 0.0, rest / rate, -np.inf)
        lam = lam - move
        if not bool(np.any(np.abs(move) > 1e-9 * drive)):
            break
    solved = np.abs(move) <= 1e-9 * drive
    out = implicit(np.where(solved, lam, np.nan), layers[0], sigma_a2, (kernel,), lambda gap: None)[kernel]
    return np.asarray(out)


# ---- variances -------------------------------------------------------------------------------------------


def _variances(network: Network, z: Complex) -> list[Complex] | None:
    """What every layer receives, or ``None`` where that is not known to be analytic."""
    if isinstance(network, DEQ):
        q = _equilibrium(network, z)
        return None if q is None else [q]
    found, q = [], z**2
    for phi in network.activations:
        if not _resolved(phi, q):
            return None
        found.append(q)
        q = _mean_square(phi, q)[0]
    return found


def _equilibrium(deq: DEQ, z: Complex) -> Complex | None:
    drive, sigma_a2 = deq.drive(z**2), deq.variances[0]
    q = drive
    for _ in range(_STEPS):
        if not _resolved(deq.activation, q):
            return None
        value, rate = _mean_square(deq.activation, q)
        move = (q - sigma_a2 * value - drive) / (1.0 - sigma_a2 * rate)
        q = q - move
        if float(np.abs(move / q).max()) <= 1e-9:
            steep = sigma_a2 * float(np.abs(rate).max())  # below one there is one solution nearby, and Newton found it
            return q if _resolved(deq.activation, q) and steep < 1.0 else None
    return None


def _resolved(phi: Activation, q: Complex) -> bool:
    """Whether these variances lie where Gaussian averages of phi are analytic and their rule is accurate."""
    steep = _STEEP if _continues(phi) else _STEEP_REAL
    return bool(np.all((q.real > 0.0) & (np.abs(q.imag) <= steep * q.real)))


def _mean_square(phi: Activation, q: Complex) -> tuple[Complex, Complex]:
    """E[phi^2] and its derivative in q."""
    return _averages(q, *(_rotated if _continues(phi) else _real)(phi, q, 1))


def _averages(q: Complex, values: Tensor, weights: Tensor, y: Tensor) -> tuple[Complex, Complex]:
    square = values**2 * weights
    rate = (square * (y * y - 1.0)).sum(-1).numpy() / (2.0 * q)
    return square.sum(-1).numpy(), rate


# ---- Gaussian averages at complex variances --------------------------------------------------------------


def _real(phi: Activation, q: Complex, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """phi at real nodes x, the complex weights there, and x / sqrt(q)."""
    variance = torch.from_numpy(q)
    inverse = 1.0 / variance
    tau = inverse.real.rsqrt()
    xi, weights = normal_nodes(tau, phi.panels(), terms)
    x, root = tau[:, None] * xi, variance.sqrt()[:, None]
    turned = weights * (tau[:, None] / root) * torch.exp(-0.5j * x * x * inverse.imag[:, None])
    return phi(x).detach(), turned, x / root


def _rotated(phi: Activation, q: Complex, terms: int) -> tuple[Tensor, Tensor, Tensor]:
    """The same along the ray of sqrt(q), for functions that continue to it: nothing is lost to oscillation there."""
    root = torch.from_numpy(q).sqrt()[:, None]
    xi, weights = shared_rule(float(root.abs().max()), phi.panels())
    return phi.continued(root * xi).detach(), weights, xi


@functools.lru_cache(maxsize=64)
def _continues(phi: Activation) -> bool:
    """Whether phi takes complex numbers and gives its analytic continuation: averages by both rules agree."""
    q = np.exp(1j * np.array([0.3, 0.6, 0.9])) * np.array([0.3, 1.0, 3.0])
    try:
        rotated = _averages(q, *_rotated(phi, q, 1))[0]
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return False
    return bool(np.allclose(rotated, _averages(q, *_real(phi, q, 1))[0], rtol=1e-9, atol=0.0))


# ---- one layer -------------------------------------------------------------------------------------------


class _Conjugate(LayerMaps):
    """sum_k |a_k|^2 (lam / |q|)^k and its derivative: the layer between inputs of conjugate norms.

    A series ends where its terms have been small for a while: what follows is rounding, which grows with the order.
    """

    def __init__(self, phi: Activation, q: Complex) -> None:
        if _continues(phi):
            a = shared_coefficients(phi.continued, torch.from_numpy(q).sqrt(), phi.panels(), _TERMS).numpy()
        else:
            values, weights, y = _real(phi, q, _TERMS_REAL)
            a = project(values * weights, y, _TERMS_REAL).numpy()
        self.squares: Array = a.real**2 + a.imag**2
        self.root = np.abs(q)
        self.settled: NDArray[np.bool_] = np.ones(len(q), dtype=bool)

    def both(self, lam: Array) -> tuple[Array, Array]:
        """sum_k |a_k|^2 r^k and its derivative in lam."""
        k = np.arange(self.squares.shape[1])
        ratio = np.clip(lam / self.root, 1e-300, 4.0)
        terms = self.squares * np.exp(k * np.log(ratio)[:, None])
        first, self.settled = _end(k * terms)
        terms = np.where(k <= first[:, None], terms, 0.0)
        return terms.sum(1), (k * terms).sum(1) / lam


def _end(terms: Array) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """The first order after which a window of terms is a small share of the sum so far, and whether there is one."""
    sums = np.cumsum(terms, axis=1)
    windows = sums[:, _WINDOW:] - sums[:, :-_WINDOW]
    small = windows <= _LEFT * sums[:, :-_WINDOW]
    small[:, :4] = False
    return np.argmax(small, axis=1), np.asarray(small.any(1))
