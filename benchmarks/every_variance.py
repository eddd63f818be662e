"""First and later calls of the NTK over activations, variances and kinds of rows, slowest first.

    NOTSODEEP_DATA=FOLDER python -m benchmarks.every_variance --json results/every_variance.json
    NOTSODEEP_DATA=FOLDER python -m benchmarks.every_variance [--only tanh,elu] [--rows usual,decades] [--most SECONDS]
    NOTSODEEP_DATA=FOLDER python -m benchmarks.every_variance --dtype float32 [--device cuda]

Times of the processor on one core, on a GPU of the clock; later calls are the best of three, in units of the product
X X' of the same rows by ``torch.mm``, measured beside them. A case that takes longer than ``--most`` is ended and
counts with that time. ``own`` is a Python function, sqrt(1 + x^2) - 1. The whole map takes half an hour. With
``--json`` rows are added to those in the file, and take the place of those of the same case.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import NotSoDeepError
from studies._data import load

from ._clock import elapsed
from .kernels import show

ACTIVATIONS = "relu,leaky_relu,hard_tanh,tanh,sigmoid,erf,arctan,gelu,silu,softplus,mish,elu,selu,hard_swish,sin,own"
VARIANCES = (
    *((1e-6, 0.0), (0.8, 0.0), (3.0, 3.0), (4.6, 15.7), (30.0, 0.0)),
    *((30.0, 100.0), (1.0, 1e4), (1000.0, 0.0), (1e8, 0.0)),
)
CASE = ("activation", "sigma_b2", "sigma_c2", "rows", "dtype", "device")  # what tells rows of the map apart


def data(count: int) -> dict[str, np.ndarray]:
    """Fashion-MNIST standardised, with five long rows, as pixels, beside near duplicates, and of norms of all sizes."""
    pixels = load("fashion_mnist").X_train[:count].astype(float)
    usual = pixels - pixels.mean(0)
    usual /= np.sqrt((usual**2).sum(1).mean())
    long = usual.copy()
    long[:: count // 5][:5] *= np.array([50.0, 100.0, 200.0, 500.0, 1000.0])[:, None]
    near, half, random = usual.copy(), count // 2, np.random.default_rng(0)
    near[half : 2 * half] = near[:half] * (1.0 + 0.1 * (np.arange(half) % 2))[:, None]  # every second one is longer
    near[half : 2 * half] += np.geomspace(1e-8, 0.1, half)[:, None] * usual.std() * random.standard_normal((half, 784))
    decades = usual * 10.0 ** random.uniform(-4.0, 4.0, (len(usual), 1))
    return {"usual": usual, "long": long, "raw": pixels / pixels.max(), "near": near, "decades": decades}


def activation(name: str) -> Any:
    """The activation of a name, or a Python function that follows no straight lines far out."""
    return (lambda x: torch.sqrt(1.0 + x * x) - 1.0) if name == "own" else name


class _TooLong(Exception):
    """A case that was ended."""


def _end(*_: Any) -> None:
    raise _TooLong


def seconds(work: Callable[[], Any], most: float, device: str) -> float:
    """Time of the processor or of a GPU, at most so many seconds; networks that have no kernel there give NaN."""
    signal.setitimer(signal.ITIMER_PROF, most)
    start = time.thread_time()  # an armed timer makes the clock of the process tick coarsely
    try:
        if device != "cpu":
            return elapsed(work, device)
        work()
    except _TooLong:
        return most
    except NotSoDeepError:
        return float("nan")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return time.thread_time() - start


def measured(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row of the map after the other."""
    rows, clock = data(given.count), functools.partial(seconds, most=given.most, device=given.device)
    for kind, name, (b, c) in itertools.product(given.rows.split(","), given.only.split(","), VARIANCES):
        X = torch.from_numpy(rows[kind]).to(given.device, getattr(torch, given.dtype))
        out = X.new_empty(len(X), len(X))
        network = nsd.DEQ(activation(name), 0.1, b, c)
        work = functools.partial(nsd.ntk, network, X, check=False, progress=False)
        product = functools.partial(torch.mm, X, X.T, out=out)
        clock(product)
        nsd.clear_caches()
        first = later = clock(work)
        gram = clock(product)
        if first < given.most:
            later, gram = (min(times) for times in zip(*((clock(work), clock(product)) for _ in range(3)), strict=True))
        place = {"activation": name, "sigma_b2": b, "sigma_c2": c, "rows": kind, "dtype": given.dtype}
        yield {**place, "first": first, "later": later, "products": later / gram}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=ACTIVATIONS)
    parser.add_argument("--rows", default="usual,long,raw,near")
    parser.add_argument("--count", type=int, default=800)
    parser.add_argument("--most", type=float, default=12.0)
    parser.add_argument("--dtype", default="float64", choices=("float64", "float32"))
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _end)
    known = json.loads(given.json.read_text()) if given.json and given.json.exists() else []
    cases = {tuple(row[name] for name in CASE): row for row in known}
    for row in measured(given):
        row |= {"count": given.count, "device": given.device, "version": nsd.__version__}
        cases[tuple(row[name] for name in CASE)] = row
        if given.json:
            given.json.write_text(json.dumps(list(cases.values()), indent=1) + "\n")
    found = sorted(cases.values(), key=lambda row: -row["later"] - row["first"])
    show("kernels at every variance", found)
