"""First and later calls of the NTK over activations, variances and kinds of rows, slowest first.

    NOTSODEEP_DATA=FOLDER python -m benchmarks.every_variance [--only tanh,elu] [--rows usual,long,raw] [--most SECONDS]

Times of the processor on one core, beside the Gram product of the same rows; a case that takes longer than ``--most``
is ended and counts with that time. The whole map takes an hour, one activation a few minutes.
"""

from __future__ import annotations

import argparse
import functools
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import NotSoDeepError
from studies._data import load

from .kernels import show

ACTIVATIONS = "relu,leaky_relu,hard_tanh,tanh,sigmoid,erf,arctan,gelu,silu,softplus,mish,elu,selu,hard_swish,sin"
VARIANCES = ((0.8, 0.0), (3.0, 3.0), (4.6, 15.7), (30.0, 0.0), (30.0, 100.0), (1000.0, 0.0))


def data(count: int) -> dict[str, np.ndarray]:
    """Fashion-MNIST standardised, with five long rows, and as pixels between 0 and 1."""
    pixels = load("fashion_mnist").X_train[:count].astype(float)
    usual = pixels - pixels.mean(0)
    usual /= np.sqrt((usual**2).sum(1).mean())
    long = usual.copy()
    long[:: count // 5][:5] *= np.array([50.0, 100.0, 200.0, 500.0, 1000.0])[:, None]
    return {"usual": usual, "long": long, "raw": pixels / pixels.max()}


class _TooLong(Exception):
    """A case that was ended."""


def _end(*_: Any) -> None:
    raise _TooLong


def seconds(work: Callable[[], Any], most: float) -> float:
    """Time of the processor, at most so many seconds; networks that have no kernel there give NaN."""
    signal.setitimer(signal.ITIMER_PROF, most)
    start = time.process_time()
    try:
        work()
    except _TooLong:
        return most
    except NotSoDeepError:
        return float("nan")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)
    return time.process_time() - start


def measured(names: list[str], kinds: list[str], count: int, most: float) -> Iterator[dict[str, Any]]:
    """One row of the map after the other."""
    rows = data(count)
    for kind in kinds:
        X = rows[kind]
        gram = min(seconds(functools.partial(np.matmul, X, X.T), most) for _ in range(3))
        for name in names:
            for b, c in VARIANCES:
                nsd.clear_caches()
                network = nsd.DEQ(name, 0.1, b, c)
                work = functools.partial(nsd.ntk, network, X, check=False, progress=False)
                first, later = seconds(work, most), seconds(work, most)
                place = {"activation": name, "sigma_b2": b, "sigma_c2": c, "rows": kind}
                yield {**place, "first": first, "later": later, "products": later / gram}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default=ACTIVATIONS)
    parser.add_argument("--rows", default="usual,long,raw")
    parser.add_argument("--count", type=int, default=800)
    parser.add_argument("--most", type=float, default=12.0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGPROF, _end)
    found = list(measured(given.only.split(","), given.rows.split(","), given.count, given.most))
    show("kernels at every variance", sorted(found, key=lambda row: -row["later"] - row["first"]))
