"""The kernel of the units that a one-layer twin ships, by quadrature of their values alone: no Hermite coefficients.

For parallel and opposite inputs, where every order counts, E[psi(u; s) psi(v; t)] is an integral of one variable; at
other cosines it is one of two, for units without a singularity.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from notsodeep.activations import Activation
from notsodeep.kernels import diagonal, pairwise
from notsodeep.matching import Twin
from notsodeep.units import Conditioned, Feedback, Thresholds


def nodes(count: int = 6000) -> tuple[Tensor, Tensor]:
    """Points u = v^3 and weights of E[f(u)], u normal: they crowd at zero, where units may be singular."""
    end = 13.0 ** (1.0 / 3.0)
    v = (torch.arange(count, dtype=torch.float64) + 0.5) * (2.0 * end / count) - end
    u = v**3
    return u, 2.0 * end / count * 3.0 * v**2 * torch.exp(-0.5 * u * u) / math.sqrt(2.0 * math.pi)


def psi(phi: Conditioned, u: Tensor, s: float, slopes: bool = False) -> Tensor:
    """The units of every group at inputs of norm s, or s times their slopes in w.x: (points, groups)."""
    before, inputs = (s * u)[:, None].repeat(1, phi.groups), torch.full((len(u), 1), s, dtype=torch.float64)
    values = phi.units(before.requires_grad_(slopes), inputs)  # each sees one entry of ``before``
    return s * torch.autograd.grad(values.sum(), before)[0] if slopes else values


def aligned(phi: Activation, s: float, t: float, sign: float, trained: bool, rate: float = 1.0) -> float:
    """The kernel at inputs of norms s and t with the cosine ``sign``, 1 or -1; ``trained``: hidden weights as well.

    ``rate`` is the learning rate of the hidden weights of a :class:`Feedback`.
    """
    u, weights = nodes()
    if isinstance(phi, Conditioned):
        products = psi(phi, u, s) * psi(phi, sign * u, t)
        if trained:
            products = products + sign * psi(phi, u, s, True) * psi(phi, sign * u, t, True)
        return float(weights @ products.mean(1))
    if isinstance(phi, Thresholds):
        kinds = zip(phi.thresholds, phi.weights, strict=True)
        return s * t * sum(w * _threshold(at, phi.leak, sign) for at, w in kinds)
    assert isinstance(phi, Feedback)
    assert (s, sign) == (t, 1.0)
    norm = torch.tensor([s], dtype=torch.float64)
    linear, rest, shared = phi.amplitudes(norm)
    scale = float((norm**2 * (phi.drive**2 + linear**2 + rest**2) + shared**2).sqrt())
    values = phi.base(scale * u) ** 2
    if trained:  # what the shared unit adds is no weight of the input
        inside = float(norm**2 * (phi.drive**2 + linear**2 + rest**2))
        values = values + rate * inside * phi.base.derivative(scale * u) ** 2
    return float(phi.factor(norm)) ** 2 * float(weights @ values)


def _threshold(at: float, leak: float, sign: float) -> float:
    """E[f(u - at) f(sign u - at)], from panels between the kinks."""
    x, w = np.polynomial.legendre.leggauss(40)
    total = 0.0
    edges = np.unique(np.clip([-13.0, -6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0, 13.0, at, sign * at], -13.0, 13.0))
    for low, high in itertools.pairwise(edges):
        u = 0.5 * (low + high) + 0.5 * (high - low) * x
        a, b = u - at, sign * u - at
        slopes = np.where(a > 0.0, 1.0, leak) * np.where(b > 0.0, 1.0, leak)
        values = slopes * a * b * np.exp(-0.5 * u * u)
        total += 0.5 * (high - low) * float(w @ values)
    return total / math.sqrt(2.0 * math.pi)


def between(phi: Conditioned, s: float, t: float, rho: float) -> float:
    """The kernel at any cosine, by the midpoint rule in the plane."""
    step = 1.0 / 48.0
    x = (torch.arange(-9.0 / step, 9.0 / step, dtype=torch.float64) + 0.5) * step
    weights = step * torch.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    left = psi(phi, x, s)
    other = (rho * x[:, None] + math.sqrt(1.0 - rho**2) * x).reshape(-1)
    right = psi(phi, other, t).reshape(len(x), len(x), phi.groups)
    return float(weights @ (left * torch.einsum("ijg,j->ig", right, weights)).mean(1))


def error(twin: Twin, s: float, t: float, rho: float) -> float:
    """|k - k_twin| / sqrt(k(x, x) k(y, y)) of the shipped units."""
    at = [torch.tensor([v], dtype=torch.float64) for v in (s * s, t * t, rho * s * t)]
    truth = float(pairwise(twin.deq, *at, (twin.kernel,), check=False)[twin.kernel])
    size = [float(diagonal(twin.deq, v, (twin.kernel,), check=False)[twin.kernel]) for v in at[:2]]
    (phi,) = twin.network.activations
    rate = (twin.learning_rates or (1.0,))[0]
    own = aligned(phi, s, t, rho, twin.trains == "all", rate) if abs(rho) == 1.0 else between(phi, s, t, rho)
    return abs(own - truth) / math.sqrt(size[0] * size[1])


def largest_error(twin: Twin, rng: np.random.Generator, count: int = 4) -> float:
    """The largest error at both ends of the norms and at a few between: equal, opposite, and one cosine."""
    low, high = twin.norms or (0.1, 10.0)
    s = np.append(np.exp(rng.uniform(math.log(max(low, 1e-2 * high)), math.log(high), count - 2)), [low or high, high])
    (phi,) = twin.network.activations
    places = [(a, a, 1.0) for a in s]
    if not isinstance(phi, Feedback):
        places += [(*rng.choice(s, 2), -1.0), (*rng.choice(s, 2), 1.0)]
    if isinstance(phi, Conditioned) and not phi.singular and twin.trains == "readout":
        places.append((*rng.choice(s, 2), float(np.cos(rng.uniform(0.0, np.pi)))))
    return max(error(twin, float(a), float(b), rho) for a, b, rho in places)
