"""The exact NTK on real and on random rows, in units of the Gram product X X' of the same rows, in one run.

    NOTSODEEP_DATA=... python -m benchmarks.kernel_data --json results/speed_data_cpu.json
    NOTSODEEP_DATA=... python -m benchmarks.kernel_data --device cuda --sizes 16384 60000 --json ...

First call: with no table kept from before; later calls find it again. Compiled: ``compile=True`` after its start-up
(eager fused tiles on CUDA). Sets that are not in ``NOTSODEEP_DATA`` are left out. Medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import DataError
from notsodeep.kernels import forget_tables

from ._clock import elapsed
from .kernels import show

NETWORKS = {"tanh": 0.2, "relu": 0.2, "silu": 0.1, "gelu": 0.1, "elu": 0.2}
SETS = ("mnist", "fashion_mnist", "digits", "random")
SEED = 0


@functools.cache
def whole(name: str) -> np.ndarray:
    return np.asarray((nsd.datasets.digits() if name == "digits" else nsd.datasets.load(name)).X_train, dtype=float)


def rows_of(name: str, n: int) -> np.ndarray | None:
    """Centred rows of mean squared norm one, as many as there are; ``None`` where the set is missing."""
    if name == "random":
        return np.random.default_rng(SEED).standard_normal((n, 784)) / 28.0
    try:
        X = whole(name)
    except DataError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    X = X[:n] - X.mean(0)
    return X / np.sqrt((X**2).sum(1).mean()) if len(X) == n else None


def measure(X: torch.Tensor, activation: str, repeats: int, compiled: bool) -> dict[str, Any]:
    """Gram product, first, later and compiled calls, one after the other and again."""
    deq = nsd.DEQ(activation, NETWORKS[activation])
    out = torch.empty(len(X), len(X), dtype=X.dtype, device=X.device)
    times: dict[str, list[float]] = {"gram": [], "first": [], "later": [], "compiled": []}
    nsd.ntk(deq, X, out=out)
    if compiled:
        nsd.ntk(deq, X, out=out, compile=True)
    for _ in range(repeats):
        times["gram"].append(elapsed(lambda: torch.mm(X, X.T, out=out), X.device))
        forget_tables()
        times["first"].append(elapsed(lambda: nsd.ntk(deq, X, out=out), X.device))
        times["later"].append(elapsed(lambda: nsd.ntk(deq, X, out=out), X.device))
        if compiled:
            times["compiled"].append(elapsed(lambda: nsd.ntk(deq, X, out=out, compile=True), X.device))
    median = {k: statistics.median(v) for k, v in times.items() if v}
    return {f"{k}_s": v for k, v in median.items()} | {k: v / median["gram"] for k, v in median.items() if k != "gram"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS))
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads"
    results: dict[str, Any] = {
        "command": "python -m benchmarks.kernel_data " + " ".join(sys.argv[1:]),
        "device": device,
        "versions": {"notsodeep": nsd.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": [],
    }
    for n in options.sizes:
        for name in options.sets:
            X = rows_of(name, n)
            if X is None:
                continue
            for dtype in options.dtypes:
                x = torch.from_numpy(X).to(options.device, getattr(torch, dtype))
                for activation in options.networks:
                    row = {"data": name, "n": n, "p": X.shape[1], "dtype": dtype, "activation": activation}
                    row |= measure(x, activation, options.repeats, options.compiled)
                    results["rows"].append(row)
                    print(row, flush=True)
                    if options.json:  # after every row: an interrupted run keeps what it has
                        options.json.write_text(json.dumps(results, indent=1) + "\n")
    show("NTK over the Gram product", results["rows"])


if __name__ == "__main__":
    main()
