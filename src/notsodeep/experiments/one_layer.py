"""One layer is enough: proven bounds by kinds of units, and how near layers of finite width come to the exact kernel.

Bounds: activations, both kernels, three sigma_a2, two ranges of norms, one to four kinds. Finite width: the relative
spectral error of the kernel of a DEQ, of the one-layer twin with Gaussian and with orthogonal weights and of the
two-layer twin of the papers' route, all of one width against the DEQ's exact kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..datasets import load
from ..equivalents import relative_spectral_error
from ..errors import InfeasibleMatchError
from ..kernels import ck
from ..matching import match, match_one_layer, norm_range
from ..mixtures import GaussianMixture
from ..networks import DEQ, Kernel
from ..nn import DEQ as DEQModel
from ..nn import ENN as ENNModel
from ..plots.figures import draw_one_layer
from .runner import Experiment, Point, Setup

__all__ = ["EXPERIMENT"]

ACTIVATIONS = ("tanh", "erf", "arctan", "sin", "sigmoid", "softplus", "silu", "gelu", "elu", "relu", "leaky_relu")
SHARES = (0.4, 0.8, 0.95)
RANGES = ((0.5, 1.5), (0.1, 3.0))
KERNELS: tuple[Kernel, ...] = ("ck", "ntk")
WIDTHS = (64, 256, 1024, 4096, 8192)


def points(setup: Setup) -> list[Point]:
    """Bounds first, then finite widths."""
    return [*_bound_points(setup), *_width_points(setup)]


# ---- bounds --------------------------------------------------------------------------------------------------


def _bound_points(setup: Setup) -> list[Point]:
    names, shares, ranges = (
        (("tanh", "silu", "relu"), (0.8,), RANGES[:1]) if setup.quick else (ACTIVATIONS, SHARES, RANGES)
    )
    most = 3 if setup.quick else 4
    return [
        _bound_point(name, kernel, share, norms, most)
        for name in names
        for kernel in KERNELS
        for share in shares
        for norms in ranges
    ]


def _bound_point(name: str, kernel: Kernel, share: float, norms: tuple[float, float], most: int) -> Point:
    sigma_a2 = round(share * DEQ(name, 0.1).limit, 6)
    deq = DEQ(name, sigma_a2, 1.0 - min(sigma_a2, 0.5))
    homogeneous = deq.homogeneous
    settings = {
        "study": "bounds",
        "activation": name,
        "kernel": kernel,
        "sigma_a2": sigma_a2,
        "sigma_b2": deq.variances[1],
        "norms": None if homogeneous else norms,
        "kinds": 1 if homogeneous else most,
    }
    key = f"bounds/{name}/{kernel}/{share}/{'all' if homogeneous else norms}"
    return Point(key, settings, lambda: {"bounds": _bounds(deq, kernel, norms, 1 if homogeneous else most)})


def _bounds(deq: DEQ, kernel: Kernel, norms: tuple[float, float], most: int) -> list[dict[str, Any]]:
    rows = []
    for kinds in range(1, most + 1):
        twin = match_one_layer(deq, kernel, norms, tol=1e-6 if most == 1 else 1e-4, kinds=kinds)
        rows.append({"kinds": kinds, "bound": twin.bound, "seen": twin.residual, "trains": twin.trains})
    return rows


# ---- finite width --------------------------------------------------------------------------------------------


def _width_points(setup: Setup) -> list[Point]:
    names = ("mixture", "digits") if setup.quick else ("mixture", "digits", "mnist", "fashion_mnist")
    widths, n = ((64, 256), 200) if setup.quick else (WIDTHS, 1000)
    return [
        Point(
            f"width/{name}/{phi}",
            {"study": "width", "data": name, "activation": phi, "sigma_a2": 0.2, "rows": n, "widths": widths},
            lambda name=name, phi=phi: {"rows": _widths(DEQ(phi, 0.2), _rows(name, n, setup), widths)},  # type: ignore[misc]
        )
        for name in names
        for phi in ("tanh", "relu")
    ]


def _rows(name: str, n: int, setup: Setup) -> Tensor:
    if name == "mixture":
        X = GaussianMixture.two_class(400).sample(n, seed=0)[0]
    else:
        X = load(name, setup.data).first(n).standardised().X_train.astype(np.float64)
    return torch.as_tensor(np.asarray(X), device=setup.device)


def _widths(deq: DEQ, X: Tensor, widths: tuple[int, ...]) -> list[dict[str, Any]]:
    exact = ck(deq, X)
    norms = norm_range(X.cpu())
    one = match_one_layer(deq, norms=norms)
    tau0 = float(X.square().sum(1).mean().sqrt())
    try:
        two = match(deq, tau0)
        centred = ck(two.deq, X)
    except InfeasibleMatchError:
        two, centred = None, exact
    rows = []
    for width in widths:
        size = (X.shape[1], width, 1, 0)
        where: dict[str, Any] = {"dtype": X.dtype, "device": X.device}
        made: dict[str, tuple[Callable[[Tensor], Tensor], Tensor]] = {
            "DEQ": (DEQModel(deq, *size, **where).features, exact),
            "one layer": (ENNModel(one, *size, **where).features, exact),
            "one layer, orthogonal": (ENNModel(one, *size, init="orthogonal", **where).features, exact),
        }
        if two is not None:
            made["papers' route"] = (ENNModel(two, *size, **where).features, centred)
        rows.append({"width": width, **{name: _distance(*pair, X) for name, pair in made.items()}})
    return rows


def _distance(features: Callable[[Tensor], Tensor], exact: Tensor, X: Tensor) -> float:
    with torch.no_grad():
        z = torch.cat([features(part) for part in X.split(512)])
    return float(relative_spectral_error(exact, z @ z.mT))


EXPERIMENT = Experiment("one_layer", "One layer is enough", points, draw_one_layer)
