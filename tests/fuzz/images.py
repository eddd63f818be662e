"""Convolutional kernels of random networks and images, black and faint ones among them, against plain iteration."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import notsodeep as nsd
from fuzz.draws import PLAIN, an_activation
from fuzz.quadrature import expected, resolves
from helpers import ulps

Array = NDArray[Any]


def a_network(rng: np.random.Generator) -> Any:
    """A convolutional network of small images, mostly with a fixed point."""
    h, w = (int(n) for n in rng.integers(1, 5, 2))
    size = 3 if min(h, w) > 1 and rng.random() < 0.7 else 1
    shape: dict[str, Any] = {"image": (int(rng.integers(1, 3)), h, w), "filter": size}
    if rng.random() < 0.3:
        shape |= {"pool": [2, "global"][int(rng.integers(2))], "stride": int(rng.integers(1, size + 1))}
    names = [str(rng.choice(PLAIN)) for _ in range(int(rng.integers(1, 4)))]
    if rng.random() < 0.25:
        a, b, c = (rng.uniform(0.1, 1.5, len(names)).tolist() for _ in range(3))
        return nsd.ConvENN(names, a, b, c if rng.random() < 0.4 else 0.0, gain=float(rng.uniform(0.5, 2.0)), **shape)
    phi = names[0] if rng.random() < 0.7 else an_activation(rng)
    sigma_a2 = float(rng.choice([0.0, rng.uniform(0.0, 0.99)], p=[0.05, 0.95])) * min(nsd.DEQ(phi, 0.0).limit, 1.0)
    sigma_c2 = float(10.0 ** rng.uniform(-3, 0)) * (rng.random() < 0.3)
    return nsd.ConvDEQ(phi, sigma_a2, float(10.0 ** rng.uniform(-1, 1)), sigma_c2, **shape)


def rows(rng: np.random.Generator, network: Any) -> Array:
    """Images of one size; some of them black, faint, dark on one side, equal or opposite to another, or long."""
    n, p = int(rng.integers(2, 7)), math.prod(network.image)
    X = rng.standard_normal((n, p)) * float(10.0 ** rng.uniform(-1.5, 1.0))
    for _ in range(int(rng.integers(0, 4))):
        i, j = rng.integers(n, size=2)
        kind = str(rng.choice(["black", "faint", "half", "equal", "opposite", "near", "longer", "one pixel"]))
        if kind == "black":
            X[i] = 0.0
        elif kind == "faint":
            X[i] = X[j] * 10.0 ** rng.uniform(-160, -1)
        elif kind == "half":
            X[i, : p // 2] = 0.0
        elif kind == "one pixel":
            X[i, 1:] = 0.0
        else:
            factors = {"equal": 1.0, "opposite": -1.0, "longer": 10.0 ** rng.uniform(0.5, 2.0)}
            X[i] = X[j] * factors.get(kind, 1.0 + 10.0 ** rng.uniform(-16, -2) * rng.standard_normal())
    return X.astype(np.float32) if rng.random() < 0.2 else X


def _window(network: Any, field: Array, size: int) -> Array:
    """The mean over the window of each position, zeros outside."""
    reach = size // 2
    wide = np.pad(field, reach)
    h, w = field.shape
    parts = (wide[i : i + h, j : j + w] for i in range(size) for j in range(size))
    return np.asarray(sum(parts)) / size**2


def plain(network: Any, x: Array, y: Array) -> dict[str, float] | None:
    """The kernels of one pair of images, position by position (theory, section 19); ``None`` where they go on."""
    a, b, c = network.dense.variances
    (phi,), size = network.activations, network.filter
    x, y = (v.astype(np.longdouble).reshape(network.image) for v in (x, y))
    source = [(b * _window(network, (u * v).sum(0), size) + c).astype(float) for u, v in ((x, x), (y, y), (x, y))]
    fields = [np.zeros_like(one) for one in source]
    for _ in range(200):
        at = [a * _window(network, g, size) + s for g, s in zip(fields, source, strict=True)]
        after = [np.empty_like(one) for one in at]
        for p in np.ndindex(at[0].shape):
            q, r, lam = (float(one[p]) for one in at)
            after[0][p], after[1][p] = expected(phi, (q, q, q)), expected(phi, (r, r, r))
            after[2][p] = expected(phi, (q, r, lam))
        pairs = zip(after, fields, strict=True)
        # a position counts beside others only by its share of them
        moved = max(float(np.abs(one - two).max()) / max(float(np.abs(one).max()), 1e-300) for one, two in pairs)
        fields = after
        if moved <= ulps(2):
            break
    else:
        return None
    slope = np.array([expected(phi, tuple(float(one[p]) for one in at), slopes=True) for p in np.ndindex(at[0].shape)])
    slope = slope.reshape(at[0].shape)
    effect, above = np.zeros_like(slope), np.full_like(slope, 1.0 / slope.size)
    for _ in range(300):
        before, effect = effect, slope * above
        above = 1.0 / slope.size + a * _window(network, effect, size)
        if float(np.abs(effect - before).max()) <= ulps(2) * float(np.abs(effect).max()):
            break
    ck = float(fields[2].mean())
    return {
        "ck": ck,
        "ntk": ck + float((effect * at[2]).sum()),
        "ntk_frozen": ck + float((effect * (at[2] - source[2])).sum()),
    }


def is_plain(network: Any, X: Array) -> bool:
    """Whether :func:`plain` is about this network, and its panels resolve the activation."""
    if not network.implicit or network.pool != 1 or network.stride != 1:
        return False
    most = float((X.astype(float) ** 2).sum(1).max())
    return resolves(network.dense, (max(most, 1e-30),) * 3, (most,) * 3) and most < 1e4
