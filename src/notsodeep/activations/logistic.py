"""Gaussian expectations of tanh, softplus and SiLU at any variance, as double sums of closed forms.

The logistic function is a mixture of normal distribution functions, 1 / (1 + exp(-x)) = E[Phi(x / S)], where S is twice
a variable of Kolmogorov's distribution. So tanh is a mixture of signs, softplus of ReLUs and SiLU of x 1(x > 0), each
smoothed by Gaussian noise of deviation S, whose expectations are known. All weights are positive: nothing cancels.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from .._caches import cached
from .forms import ClosedForm, Dual, correlation

_AT_ONCE = 1 << 17  # terms of the sums held at once: they fit into a cache


def _nodes(step: float) -> tuple[np.ndarray, np.ndarray]:
    """Return S^2 and weights of the trapezoidal rule in log S: a step of 0.12 gives the logistic function to 2e-15."""
    k = np.exp(np.arange(-2.37, 2.2, step))
    j = np.arange(1, 40)[:, None]
    a = (2 * j - 1) ** 2 * math.pi**2 / 8.0
    near = (math.sqrt(2.0 * math.pi) * np.exp(-a / k**2) * (2.0 * a / k**4 - 1.0 / k**2)).sum(0)
    far = (8.0 * k * (-1.0) ** (j - 1) * j**2 * np.exp(-2.0 * j**2 * k**2)).sum(0)
    weights = np.where(k < 1.0, near, far) * k * step
    keep = weights > 1e-14
    return 4.0 * k[keep] ** 2, weights[keep] / weights[keep].sum()


Rule = tuple[float, Tensor, Tensor]


@cached(1)
def _rules() -> list[Rule]:
    """Return variances of noise and weights, for functions that are smoothed by noise of at least some variance too.

    The more they are smoothed, the fewer nodes of Gauss's rule in log(S^2 + variance) are exact to 1e-14.
    """
    rules = [(0.0, NOISE, WEIGHTS)]
    noise, weights = _nodes(0.05)
    for least, count in ((4.0, 12), (16.0, 8), (32.0, 6)):
        nodes, shares = _gauss(np.log(noise + least), weights, count)
        rules.append((least, torch.from_numpy(np.exp(nodes) - least), torch.from_numpy(shares)))
    return rules


def _gauss(points: np.ndarray, weights: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss's rule of a discrete measure, by Lanczos's method with full orthogonalisation."""
    basis = [np.sqrt(weights)]
    for _ in range(count - 1):
        vector = points * basis[-1]
        for _ in range(2):
            for known in basis:
                vector = vector - known * (known @ vector)
        basis.append(vector / np.linalg.norm(vector))
    nodes, vectors = np.linalg.eigh(np.array([[a @ (points * b) for a in basis] for b in basis]))
    return nodes, vectors[0] ** 2


NOISE, WEIGHTS = (torch.from_numpy(part) for part in _nodes(0.12))
Terms = Callable[..., Dual]


def mixed_pair(terms: Terms, stretch: float = 1.0) -> ClosedForm:
    """Return the pair of a mixture of functions of x * ``stretch``, from the ``terms`` at all pairs of its noises."""

    def pair(qx: Tensor, qy: Tensor, lam: Tensor) -> Dual:
        qx, qy, lam = (stretch**2 * v for v in (qx, qy, lam))
        rho = correlation(qx, qy, lam)
        lam, gap = rho * torch.sqrt(qx) * torch.sqrt(qy), qx * qy * (1.0 - rho) * (1.0 + rho)
        out = torch.empty(2, len(lam), dtype=lam.dtype)
        smoothed = gap / torch.maximum(qx, qy).clamp_min(1e-300)  # the least variance of one given the other
        most = math.inf
        for least, noise, weights in reversed(_rules()):
            which = ((smoothed >= least) & (smoothed < most)).nonzero().squeeze(1)
            most = least
            for part in which.split(max(1, _AT_ONCE // len(weights) ** 2)) if len(which) else ():
                found = _at_pairs(terms, noise, qx[part], qy[part], lam[part], gap[part])
                out[:, part] = torch.stack([(term @ weights) @ weights for term in found])
        return out[0], out[1].mul_(stretch**2)

    return pair


def _at_pairs(terms: Terms, noise: Tensor, *given: Tensor) -> Dual:
    """Return the terms at all pairs of noises: (points, noises, noises)."""
    qx, qy, lam, gap = (v[:, None, None] for v in given)
    a, b = noise[:, None], noise
    # (qx + a) (qy + b) - lam^2, a sum of positive terms
    root = ((gap + b * qx) + a * (qy + b)).sqrt_()
    return terms(qx, qy, lam, a, b, gap, root, torch.atan(lam / root))


def smoothed_sign(
    qx: Tensor, qy: Tensor, lam: Tensor, a: Tensor, b: Tensor, gap: Tensor, root: Tensor, angle: Tensor
) -> Dual:
    """Return E[sign(u + A) sign(v + B)] and its derivative, A and B of variances a and b."""
    return angle.mul_(2.0 / math.pi), (2.0 / math.pi) / root


def smoothed_relu(
    qx: Tensor, qy: Tensor, lam: Tensor, a: Tensor, b: Tensor, gap: Tensor, root: Tensor, angle: Tensor
) -> Dual:
    """Return E[(u + A)_+ (v + B)_+] and P(u + A > 0, v + B > 0)."""
    share = angle.add_(0.5 * math.pi).mul_(0.5 / math.pi)
    return torch.addcmul(root.mul_(0.5 / math.pi), lam, share), share


def smoothed_gate(
    qx: Tensor, qy: Tensor, lam: Tensor, a: Tensor, b: Tensor, gap: Tensor, root: Tensor, angle: Tensor
) -> Dual:
    """Return E[u 1(u + A > 0) v 1(v + B > 0)] and its derivative."""
    share = angle.add_(0.5 * math.pi).mul_(0.5 / math.pi)
    outer, noise = (0.5 / math.pi) / root, a / (qx + a) + b / (qy + b)
    value = torch.addcmul(lam * share, outer, torch.addcmul(gap, lam * lam, noise))
    return value, torch.addcmul(share, outer * lam, noise + a * b / (root * root))


tanh_pair, silu_pair, softplus_pair = (
    mixed_pair(smoothed_sign, 2.0),
    mixed_pair(smoothed_gate),
    mixed_pair(smoothed_relu),
)
