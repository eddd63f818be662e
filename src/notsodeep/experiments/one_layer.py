"""One layer is enough.

``one_layer``: proven bounds by kinds of units, beside the largest error that random pairs of inputs show. Activations,
both kernels, three sigma_a2, two ranges of norms, one to four kinds. The pairs have norms from the range and directions
from the sphere of 2 to 1,000 dimensions; a search goes on from the worst of them, and from parallel and opposite
inputs. What it shows can come near the bound, never above it.

``one_layer_width``: how near layers of finite width come to the DEQ's exact kernel. The relative spectral error of the
conjugate kernel of a DEQ, of its one-layer twin with Gaussian and with orthogonal weights, and of the twin of the
papers' route (``match``: one Hard-Tanh layer for tanh, two Leaky-ReLU layers for ReLU), all of one width, each against
the exact kernel of the DEQ that it stands for. Means over seeds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import nn as finite
from ..datasets import load
from ..equivalents import relative_spectral_error
from ..kernels import ck, diagonal, pairwise
from ..matching import Twin, match_one_layer, norm_range
from ..matching.certificates import UniformCertificate
from ..matching.match import match
from ..mixtures import GaussianMixture
from ..networks import DEQ, Kernel, Network
from ..plots.figures.twins import draw_one_layer, draw_one_layer_width
from .runner import Experiment, Point, Setup

SMOOTH = ("tanh", "erf", "arctan", "sin", "cos", "sigmoid", "softplus", "silu", "gelu", "mish")
KINKED = ("elu", "selu", "hard_tanh", "hard_swish")
HOMOGENEOUS = ("relu", "leaky_relu")
SHARES = (0.4, 0.8, 0.95)
"""Of the limit on sigma_a2."""
RANGES = ((0.5, 1.5), (0.1, 3.0))
KERNELS: tuple[Kernel, ...] = ("ck", "ntk")
DIMENSIONS = (2, 3, 10, 100, 1000)
PAIRS = 100_000
_STEPS = (0.1, 0.02, 0.004)
"""Of the steps of the search, as shares of the range of log norms and of angles."""
_KEPT, _TRIED = 8, 8

Pairs = tuple[Tensor, Tensor, Tensor]


def bound_points(setup: Setup) -> list[Point]:
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
        "searched": len(_STEPS),
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
    for width in _STEPS:
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


# ---- finite width --------------------------------------------------------------------------------------------

DATASETS = ("mixture", "digits", "mnist", "fashion_mnist")
WIDTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
SIGMA_A2 = 0.2
TOLERANCE = 1e-4
"""Of the one-layer twin; the errors of finite widths are a hundred times larger."""
_MIXTURE_DIMENSION = 400


def width_points(setup: Setup) -> list[Point]:
    """One point per data set and activation."""
    names = ("digits",) if setup.quick else DATASETS
    widths, n, seeds = ((64, 256, 1024), 200, 2) if setup.quick else (WIDTHS, 1000, 5)

    def point(name: str, phi: str) -> Point:
        settings = {
            "data": name,
            "activation": phi,
            "sigma_a2": SIGMA_A2,
            "rows": n,
            "widths": widths,
            "seeds": list(range(seeds)),
            "tol": TOLERANCE,
        }
        return Point(f"{name}/{phi}", settings, lambda: errors_by_width(_sample(name, n, setup), phi, widths, seeds))

    return [point(name, phi) for name in names for phi in ("tanh", "relu")]


def _sample(name: str, n: int, setup: Setup) -> Tensor:
    if name == "mixture":
        X = GaussianMixture.two_class(_MIXTURE_DIMENSION).sample(n, seed=0)[0]
    else:
        X = load(name, setup.data).first(n).standardised().X_train.astype(np.float64)
    return torch.as_tensor(np.asarray(X), device=setup.device)


def errors_by_width(X: Tensor, phi: str, widths: tuple[int, ...], seeds: int) -> dict[str, Any]:
    """Network -> one list of errors over the seeds for each width."""
    deq = DEQ(phi, SIGMA_A2)
    exact = ck(deq, X.cpu()).to(X.device)  # on a GPU too, the reference is that of the CPU
    one = match_one_layer(deq, norms=norm_range(X.cpu()), tol=TOLERANCE, units="conditioned")
    papers = match(deq, float(X.square().sum(1).mean().sqrt()))
    centred = ck(papers.deq, X.cpu()).to(X.device)
    where: dict[str, Any] = {"dtype": X.dtype, "device": X.device}

    def networks(width: int, seed: int) -> Iterator[tuple[str, Callable[[Tensor], Tensor], Tensor]]:
        size = (X.shape[1], width, 1, seed)
        yield "DEQ", finite.DEQ(deq, *size, **where).features, exact
        yield "one layer", finite.ENN(one, *size, **where).features, exact
        yield "one layer, orthogonal", finite.ENN(one, *size, init="orthogonal", **where).features, exact
        yield "papers' twin", finite.ENN(papers, *size, **where).features, centred

    errors: dict[str, list[list[float]]] = {}
    for width in widths:
        for seed in range(seeds):
            for name, features, truth in networks(width, seed):
                rows = errors.setdefault(name, [])
                if not seed:
                    rows.append([])
                rows[-1].append(_error(features, truth, X))
    return {"errors": errors, "kinds": one.kinds, "bound": one.bound, "papers_depth": papers.depth}


def _error(features: Callable[[Tensor], Tensor], exact: Tensor, X: Tensor) -> float:
    with torch.no_grad():
        z = features(X)
    return float(f"{float(relative_spectral_error(exact, z @ z.mT)):.5g}")


EXPERIMENTS = (
    Experiment("one_layer", bound_points, draw_one_layer),
    Experiment("one_layer_width", width_points, draw_one_layer_width),
)
