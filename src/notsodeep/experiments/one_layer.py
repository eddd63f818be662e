"""One layer is enough: proven bounds by kinds of units, beside the largest error that random pairs of inputs show.

Activations, both kernels, three sigma_a2, two ranges of norms, one to four kinds. The pairs have norms from the range
and directions from the sphere of 2 to 1,000 dimensions; a search goes on from the worst of them, and from parallel
and opposite inputs. What it shows can come near the bound, never above it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..kernels import diagonal, pairwise
from ..matching import Twin, match_one_layer
from ..matching.certificates import UniformCertificate
from ..networks import DEQ, Kernel, Network
from ..plots.figures import draw_one_layer
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT", "random_pairs"]

SMOOTH = ("tanh", "erf", "arctan", "sin", "cos", "sigmoid", "softplus", "silu", "gelu", "mish")
KINKED = ("elu", "selu", "hard_tanh", "hard_swish")
HOMOGENEOUS = ("relu", "leaky_relu")
SHARES = (0.4, 0.8, 0.95)
"""Of the limit on sigma_a2."""
RANGES = ((0.5, 1.5), (0.1, 3.0))
KERNELS: tuple[Kernel, ...] = ("ck", "ntk")
DIMENSIONS = (2, 3, 10, 100, 1000)
PAIRS = 100_000
WIDTHS = (0.1, 0.02, 0.004)
"""Of the steps of the search, as shares of the range of log norms and of angles."""
_KEPT, _TRIED = 8, 8

Pairs = tuple[Tensor, Tensor, Tensor]


def points(setup: Setup) -> list[Point]:
    """Every activation and kernel, each with all its sigma_a2, norms and kinds."""
    names = ("tanh", "silu", "relu") if setup.quick else (*SMOOTH, *KINKED, *HOMOGENEOUS)
    shares, ranges, most = ((0.8,), RANGES[:1], 3) if setup.quick else (SHARES, RANGES, 4)
    pairs = PAIRS // 10 if setup.quick else PAIRS
    return [
        _point(name, kernel, share, norms, 1 if name in HOMOGENEOUS else most, pairs)
        for name in names
        for kernel in KERNELS
        for share in shares
        for norms in (RANGES[1:] if name in HOMOGENEOUS else ranges)  # one kind for all norms
    ]


def _point(name: str, kernel: Kernel, share: float, norms: tuple[float, float], most: int, pairs: int) -> Point:
    sigma_a2 = round(share * DEQ(name, 0.01).limit, 6)
    deq = DEQ(name, sigma_a2, 1.0 - min(sigma_a2, 0.5))
    settings = {
        "activation": name,
        "kernel": kernel,
        "share": share,
        "sigma_a2": sigma_a2,
        "sigma_b2": deq.variances[1],
        "norms": None if deq.homogeneous else norms,
        "kinds": most,
        "pairs": pairs,
        "searched": len(WIDTHS),
    }
    key = f"{name}/{kernel}/{share}/{'all' if deq.homogeneous else '{}-{}'.format(*norms)}"
    return Point(key, settings, lambda: {"rows": _rows(deq, kernel, norms, most, random_pairs(pairs, norms))})


def _rows(deq: DEQ, kernel: Kernel, norms: tuple[float, float], most: int, pairs: Pairs) -> list[dict[str, Any]]:
    exact = _relative(deq, kernel, deq, kernel, pairs)
    rows = []
    for kinds in range(1, most + 1):
        started = time.perf_counter()
        twin = match_one_layer(deq, kernel, norms, tol=1e-6 if deq.homogeneous else 1e-4, kinds=kinds)
        seconds = round(time.perf_counter() - started, 3)
        assert isinstance(twin.certificate, UniformCertificate)
        errors = (exact - _own(deq, kernel, twin, pairs)).abs()
        rows.append(
            {
                "kinds": kinds,
                "bound": twin.bound,
                "random": float(errors.max()),
                "seen": max(float(errors.max()), _searched(deq, kernel, twin, norms, pairs, errors)),
                "proven": not twin.certificate.assumes,
                "trains": twin.trains,
                "seconds": seconds,
            }
        )
    return rows


def _relative(deq: DEQ, kernel: Kernel, network: Network, own: Kernel, pairs: Pairs, rates: Any = None) -> Tensor:
    """A network's kernel relative to the diagonal of the DEQ's."""
    size = (diagonal(deq, pairs[0], (kernel,))[kernel] * diagonal(deq, pairs[1], (kernel,))[kernel]).sqrt()
    return pairwise(network, *pairs, (own,), rates)[own] / size


def _searched(deq: DEQ, kernel: Kernel, twin: Twin, norms: tuple[float, float], pairs: Pairs, errors: Tensor) -> float:
    """The largest error that a search finds, from the worst pairs and from parallel and opposite ones."""
    low, high = np.log(norms)
    worst = errors.argsort(descending=True)[: 2 * _KEPT]
    x, y, dot = (v[worst].numpy() for v in pairs)
    found = np.stack([0.5 * np.log(x), 0.5 * np.log(y), np.arccos(np.clip(dot / np.sqrt(x * y), -1.0, 1.0))])
    s, angle = (v.ravel() for v in np.meshgrid(np.linspace(low, high, 17), [0.0, np.pi]))
    found, random = np.concatenate([found, np.stack([s, s, angle])], axis=1), np.random.default_rng(0)
    for width in WIDTHS:
        near = found[:, np.argsort(_errors(deq, kernel, twin, found))[-_KEPT:], None]
        moves = width * np.array([high - low, high - low, np.pi])[:, None, None]
        tried = near + moves * random.standard_normal((3, _KEPT, _TRIED))
        tried[1, :, : _TRIED // 2] = tried[0, :, : _TRIED // 2]  # equal norms, where the bound is attained
        tried[:2], tried[2] = np.clip(tried[:2], low, high), np.clip(tried[2], 0.0, np.pi)
        found = np.concatenate([near, tried], axis=2).reshape(3, -1)
    return float(_errors(deq, kernel, twin, found).max())


def _errors(deq: DEQ, kernel: Kernel, twin: Twin, at: np.ndarray) -> np.ndarray:
    """At log norms and angles, (3, n)."""
    x, y = (torch.from_numpy(np.exp(2.0 * v)) for v in at[:2])
    pairs = (x, y, (x * y).sqrt() * torch.from_numpy(np.cos(at[2])))
    return (_relative(deq, kernel, deq, kernel, pairs) - _own(deq, kernel, twin, pairs)).abs().numpy()


def _own(deq: DEQ, kernel: Kernel, twin: Twin, pairs: Pairs) -> Tensor:
    """The twin's kernel under its own training rule, relative."""
    own: Kernel = "ck" if twin.trains == "readout" else "ntk"
    return _relative(deq, kernel, twin.network, own, pairs, twin.learning_rates)


def random_pairs(count: int, norms: tuple[float, float], seed: int = 0) -> Pairs:
    """Squared norms and inner products of pairs, as many of each dimension.

    The norms are drawn from 32 in geometric progression over the range. The cosine of two uniform directions is the
    first coordinate of one of them.
    """
    random = np.random.default_rng(seed)
    s, t = random.choice(np.geomspace(*norms, 32), (2, count))
    dimension = np.sort(np.resize(DIMENSIONS, count))  # small cosines together need few orders
    first, others = random.standard_normal(count), random.chisquare(dimension - 1.0)
    rho = first / np.sqrt(first**2 + others)
    return torch.from_numpy(s**2), torch.from_numpy(t**2), torch.from_numpy(rho * s * t)


EXPERIMENT = Experiment("one_layer", "One layer is enough: proven bounds", points, draw_one_layer)
