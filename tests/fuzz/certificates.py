"""Attacks on the bounds of one-layer twins: ranges of norms from 1e-3 to 1e3, narrow and wide, and all angles."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import notsodeep as nsd
from fuzz.draws import PLAIN, an_activation
from fuzz.modules import a_cell
from notsodeep.kernels import diagonal, pairwise
from notsodeep.matching import Twin

Array = NDArray[Any]


def a_request(rng: np.random.Generator) -> dict[str, Any]:
    """A network, a kernel, and a range of norms: one norm, a narrow or a very wide one, from zero, all."""
    deq = _a_network(rng)
    kernel = str(rng.choice(["ck", "ntk", "ntk_frozen"]))
    low = 10.0 ** rng.uniform(-4.0, 2.0)
    widths = [1.0, 10.0 ** rng.uniform(0.0, 0.4), 10.0 ** rng.uniform(0.4, 1.0), 10.0 ** rng.uniform(1.0, 3.0)]
    high = low * widths[int(rng.choice(4, p=[0.3, 0.3, 0.2, 0.2]))]
    norms = [(low, high), (0.0, min(high, 10.0)), (0.0, 10.0 ** rng.uniform(0.0, 3.0)), (0.0, math.inf)][
        int(rng.choice(4, p=[0.75, 0.08, 0.09, 0.08]))
    ]
    kinds = 1 if norms[1] == math.inf or deq.homogeneous else int(rng.integers(1, 4))
    return {"deq": deq, "kernel": kernel, "norms": norms, "kinds": kinds}


def _a_network(rng: np.random.Generator) -> nsd.DEQ | nsd.ENN:
    """Mostly a DEQ of a built-in activation; also cells, deep networks, biases and variances far from one."""
    kind = rng.choice(["plain", "bias", "cell", "layers", "affine"], p=[0.5, 0.2, 0.1, 0.1, 0.1])
    if kind == "cell":
        return a_cell(rng)
    if kind == "layers":
        return nsd.ENN([an_activation(rng) for _ in range(int(rng.integers(1, 4)))])
    phi = an_activation(rng) if kind == "affine" else nsd.activation(str(rng.choice(PLAIN)))
    sigma_a2 = float(rng.choice([rng.uniform(0.05, 0.95), 0.99])) * min(nsd.DEQ(phi, 0.0).limit, 1.0)
    if kind == "plain":
        return nsd.DEQ(phi, sigma_a2)
    return nsd.DEQ(phi, sigma_a2, float(10.0 ** rng.uniform(-3, 2)), float(10.0 ** rng.uniform(-3, 1)))


def largest_error(rng: np.random.Generator, twin: Twin) -> tuple[float, int]:
    """The largest error that a search finds, relative to sqrt(k(x, x) k(y, y)), and how many pairs it took."""
    low, high = twin.norms or (1e-4, 1e4)
    low = max(low, 1e-4 * high)
    ends, count = np.log([low, high]), 24
    s, t = rng.uniform(*ends, (2, count))
    s[::4], t[1::4], s[2::8], t[::8] = ends[1], ends[0], ends[0], ends[1]
    angle = rng.uniform(0.0, math.pi, count)
    angle[::3], angle[1::6], angle[4::6] = 0.0, math.pi, 10.0 ** rng.uniform(-6.0, 0.0, len(angle[4::6]))
    place = np.stack([s, t, angle])
    for width in (0.2, 0.02):
        found = _errors(twin, place)
        near = np.repeat(place[:, np.argsort(found)[-3:]], 4, axis=1)
        moved = near + width * rng.standard_normal(near.shape) * np.array([[ends[1] - ends[0]]] * 2 + [[math.pi]])
        place = np.concatenate(
            [near[:, ::4], np.clip(moved, [[ends[0]]] * 2 + [[0.0]], [[ends[1]]] * 2 + [[math.pi]])], 1
        )
    return float(max(found.max(), _errors(twin, place).max())), count + 2 * place.shape[1]


def _errors(twin: Twin, place: Array) -> Array:
    s, t, angle = np.exp(place[0]), np.exp(place[1]), place[2]
    at = [torch.from_numpy(v) for v in (s * s, t * t, s * t * np.cos(angle))]
    own, rates = ("ck", None) if twin.trains == "readout" else (twin.kernel, twin.learning_rates)
    truth = pairwise(twin.deq, *at, (twin.kernel,), check=False)[twin.kernel]
    have = pairwise(twin.network, *at, (own,), rates, check=False)[own]
    size = [diagonal(twin.deq, v, (twin.kernel,), check=False)[twin.kernel].sqrt() for v in at[:2]]
    return ((truth - have).abs() / (size[0] * size[1])).numpy()
