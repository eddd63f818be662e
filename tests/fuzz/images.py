"""Convolutional kernels of random networks and images, black and faint ones among them, against all pairs of positions.

A filter moves both positions of a pair alike (theory, section 19). The oracle keeps one covariance for each pair of
positions of two images, writes windows and boxes out, and knows nothing of shifts as smaller images.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

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
    size = 3 if min(h, w) > 1 and rng.random() < 0.7 and min(h, w) > 2 else 1
    shape: dict[str, Any] = {"image": (int(rng.integers(1, 3)), h, w), "filter": size}
    if rng.random() < 0.3:
        box, stride = [2, "global"][int(rng.integers(2))], int(rng.integers(1, size + 1))
        shape |= {"pool": box if min(h, w) > stride else "global", "stride": stride}
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


MOST = 49  # pairs of positions whose expectations are found one by one
_STEPS = 100  # of an iteration that ends within thirty


def _window(field: Array, size: int) -> Array:
    """The mean over the window of each position, or of each pair, whose positions move alike; zeros outside."""
    h, w = field.shape[:2]
    wide = np.pad(field, size // 2)
    ends = ((slice(i, i + h), slice(j, j + w)) * (field.ndim // 2) for i in range(size) for j in range(size))
    return np.asarray(sum(wide[part] for part in ends)) / size**2


def _boxes(network: Any) -> Array:
    """What a pair of positions counts before the readout: inner products of the averages, each written out."""
    (h, w), c = network.grid, network.pool
    if c == "global":
        return np.full((h, w, h, w), float(h * w) ** -2)
    boxes = np.zeros((h + c - 1, w + c - 1, h, w))
    for i, j in np.ndindex(boxes.shape[:2]):
        boxes[i, j, max(0, i - c + 1) : i + 1, max(0, j - c + 1) : j + 1] = 1.0 / c**2
    return np.einsum("ijab,ijcd->abcd", boxes, boxes) / (h * w)


def _reached(weights: Array) -> Array:
    """The pairs of positions that are as far apart as some that count: no others enter the equations of these."""
    apart = np.moveaxis(np.indices(weights.shape), 0, -1)
    apart = apart[..., 2:] - apart[..., :2]
    known = {tuple(d) for d in apart[weights > 0.0].tolist()}
    return np.array([tuple(d) in known for d in apart.reshape(-1, 2).tolist()]).reshape(weights.shape)


class _Pair:
    """Two images, and expectations at the pairs of their positions that the kernels need."""

    def __init__(self, network: Any, x: Array, y: Array) -> None:
        pixels = [v.astype(np.longdouble).reshape(network.image) for v in (x, y)]
        self.network, self.size, s = network, network.filter, network.stride
        own = [_window((v * v).sum(0), self.size)[::s, ::s] for v in pixels]
        both = _window(np.einsum("cab,cde->abde", *pixels), self.size)[::s, ::s, ::s, ::s]
        self.own, self.both = [v.astype(float) for v in own], both.astype(float)
        self.weights = _boxes(network)
        self.reached = _reached(self.weights)
        self.same = np.array_equal(x, y)

    def expected(self, phi: Any, at: Array, own: list[Array], slopes: bool = False) -> Array:
        """E[phi(u) phi(v)] at each pair of positions, or that of the slopes."""
        found, known = np.zeros_like(at), {}
        for p in np.argwhere(self.reached):
            i, j = tuple(p[:2]), tuple(p[2:])
            q, r, lam = float(own[0][i]), float(own[1][j]), float(at[tuple(p)])
            if self.same and i == j:  # a position with itself
                lam = q
            if (q, r, lam) not in known:
                known[q, r, lam] = expected(phi, (q, r, lam), slopes=slopes)
            found[tuple(p)] = known[q, r, lam]
        return found

    def variances(self, phi: Any, field: Array) -> Array:
        """E[phi(u)^2] at each position."""
        return np.array([expected(phi, (float(q),) * 3) for q in field.ravel()]).reshape(field.shape)

    def sizes(self, phi: Any, own: list[Array]) -> Array:
        """What bounds an expectation at each pair of positions: of these sizes are the terms that averages add up."""
        roots = [np.sqrt(self.variances(phi, one)) for one in own]
        return np.einsum("ab,cd->abcd", *roots)


class Level(NamedTuple):
    """A layer at pairs of positions."""

    a: float
    source: Array
    at: Array
    value: Array
    slope: Array
    sizes: Array


def _layers(pair: _Pair) -> list[Level]:
    """The layers of an explicit network, one after the other."""
    network, levels = pair.network, []
    own, value = [np.zeros_like(v) for v in pair.own], np.zeros_like(pair.both)
    for phi, (a, b, c) in zip(network.activations, network.variances, strict=True):
        own = [a * _window(g, pair.size) + b * one + c for g, one in zip(own, pair.own, strict=True)]
        source = b * pair.both + c
        at = a * _window(value, pair.size) + source
        value = pair.expected(phi, at, own)
        levels.append(Level(a, source, at, value, pair.expected(phi, at, own, slopes=True), pair.sizes(phi, own)))
        own = [pair.variances(phi, one) for one in own]
    return levels


def _equilibrium(pair: _Pair) -> list[Level] | None:
    """The layer of a DEQ by iteration of the equations, or nothing where it goes on; covariances by Newton's method,
    as a step takes long."""
    ((a, b, c),), (phi,) = pair.network.variances, pair.network.activations
    own = []
    for one in pair.own:
        source, before = b * one + c, np.zeros_like(one)
        for _ in range(_STEPS):
            at = a * _window(before, pair.size) + source
            after = pair.variances(phi, at)
            before, moved = after, _moved(after, before)
            if moved <= ulps(2):
                break
        else:
            return None
        own.append(at)
    source = b * pair.both + c
    at, largest = source, math.prod(math.sqrt(float(one.max())) for one in own)
    for step in range(_STEPS):
        value = pair.expected(phi, at, own)
        gap = np.where(pair.reached, a * _window(value, pair.size) + source - at, 0.0)
        ends = float(np.abs(gap).max()) <= ulps(4) * max(largest, 1e-300)
        if ends or step < 3:
            slope = pair.expected(phi, at, own, slopes=True)
        if ends:
            return [Level(a, source, at, value, slope, pair.sizes(phi, own))]
        at = at + _linear(pair, gap, a, slope)
    return None


def _moved(after: Array, before: Array) -> float:
    # a position counts beside others only by its share of them
    return float(np.abs(after - before).max()) / max(float(np.abs(after).max()), 1e-300)


def _linear(pair: _Pair, source: Array, a: float, slope: Array) -> Array:
    """h = source + a W[slope h], by iteration."""
    h = source
    for _ in range(300):
        before, h = h, source + a * _window(slope * h, pair.size)
        if _moved(h, before) <= ulps(2):
            break
    return h


def plain(network: Any, x: Array, y: Array) -> dict[str, float] | None:
    """The kernels of one pair of images, from all pairs of their positions; ``None`` where an iteration goes on.

    Averages of pixels of both signs cancel: "terms" is the sum of the sizes of what they add up.
    """
    pair = _Pair(network, x, y)
    levels = _equilibrium(pair) if network.implicit else _layers(pair)
    if levels is None:
        return None
    above = network.gain * pair.weights
    ck = ntk = frozen = float((above * levels[-1].value).sum())
    terms = float((above * levels[-1].sizes).sum())
    for level in reversed(levels):
        if network.implicit:
            above = _linear(pair, above, level.a, level.slope)
        effect = level.slope * above
        ntk += float((effect * level.at).sum())
        frozen += float((effect * (level.at - level.source)).sum())
        above = level.a * _window(effect, pair.size)
    return {"ck": ck, "ntk": ntk, "ntk_frozen": frozen, "terms": terms}


def is_plain(network: Any, X: Array) -> bool:
    """Whether :func:`plain` is soon done with this network, and its panels resolve the activations."""
    if int(_reached(_boxes(network)).sum()) > MOST:
        return False
    most = float((X.astype(float) ** 2).sum(1).max())
    scale = 1.0 if network.implicit else max(map(sum, network.variances))
    return resolves(network.dense, (max(scale * most, 1e-30),) * 3, (most,) * 3) and most < 1e4
