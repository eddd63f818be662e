"""The exact NTK on real and on random rows, in units of the Gram product X X' of the same rows, in one run.

    NOTSODEEP_DATA=... python -m benchmarks.kernel_data --json FILE
    NOTSODEEP_DATA=... python -m benchmarks.kernel_data --device cuda --sizes 16384 60000 --json ...

First call: all caches are empty; later calls find the table again. Unequal: random rows of norms from 0.02 to 2.
``--more``: three kernels at once; 128 rows against the others, over their own Gram product; diagonals. Sets that are
not in ``NOTSODEEP_DATA`` are left out. Medians of interleaved repeats.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import DataError, NotSoDeepError
from studies._data import load

from ._clock import elapsed
from .kernels import show

NETWORKS = {"tanh": 0.2, "relu": 0.2, "silu": 0.1, "gelu": 0.1, "elu": 0.2}
OTHERS = 0.05  # sigma_a2, with which every activation is a contraction
SETS = ("mnist", "fashion_mnist", "digits", "random", "unequal")
BATCH = 128  # rows of a cross kernel
SEED = 0


@functools.cache
def positive_int(name: str) -> np.ndarray:
    return np.asarray(load(name).X_train, dtype=float)


def rows_of(name: str, n: int) -> np.ndarray | None:
    """Centred rows of mean squared norm one, as many as there are; ``None`` where the set is missing."""
    if name in ("random", "unequal"):
        rng = np.random.default_rng(SEED)
        X = rng.standard_normal((n, 784)) / 28.0
        return X * rng.permutation(np.geomspace(0.02, 2.0, n))[:, None] if name == "unequal" else X
    try:
        X = positive_int(name)
    except DataError as error:
        print(f"{name} is left out: {error}", file=sys.stderr)
        return None
    X = X[:n] - X.mean(0)
    return X / np.sqrt((X**2).sum(1).mean()) if len(X) == n else None


def measure(X: torch.Tensor, activation: str, repeats: int, more: bool) -> dict[str, Any]:
    """Gram product, first and later calls, one after the other and again."""
    deq = nsd.DEQ(activation, NETWORKS.get(activation, OTHERS))
    out = torch.empty(len(X), len(X), dtype=X.dtype, device=X.device)
    works: dict[str, Callable[[], Any]] = {
        "gram": lambda: torch.mm(X, X.T, out=out),
        "first": lambda: nsd.ntk(deq, X, out=out),
        "later": lambda: nsd.ntk(deq, X, out=out),
    }
    if more:
        outs = {"ck": out, "ntk": torch.empty_like(out), "ntk_frozen": torch.empty_like(out)}
        batch, rest, function = X[:BATCH], X[BATCH:], nsd.kernel_function(deq, "ntk", X)
        cross = torch.empty(len(batch), len(rest), dtype=X.dtype, device=X.device)
        works["three"] = lambda: nsd.kernels_of(deq, X, out=outs)
        works["cross_gram"] = lambda: torch.mm(batch, rest.T, out=cross)
        works["cross"] = lambda: nsd.ntk(deq, batch, rest, out=cross)
        works["diagonal"] = lambda: function.diagonal(X)
    times: dict[str, list[float]] = {name: [] for name in works}
    for work in works.values():
        work()
    extra = _extra_memory(works["first"], X.device)
    for _ in range(repeats):
        for name, work in works.items():
            if name == "first":
                nsd.clear_caches()
            times[name].append(elapsed(work, X.device))
    found = {name: statistics.median(values) for name, values in times.items()}
    ratios = {name: found[name] / found["gram"] for name in ("first", "later", "three") if name in found}
    if more:
        ratios["cross"] = found["cross"] / found["cross_gram"]
    return {f"{name}_s": value for name, value in found.items()} | ratios | extra


def _extra_memory(work: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """What a first call holds on the GPU beyond inputs and outputs."""
    if device.type != "cuda":
        return {}
    nsd.clear_caches()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    return {"extra_mb": (torch.cuda.max_memory_allocated() - before) / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--sizes", type=int, nargs="+", default=[500, 2000, 8000])
    parser.add_argument("--sets", nargs="+", default=list(SETS))
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), help="activations, or all")
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--more", action="store_true", help="three kernels at once, 128 rows against the others, diagonals"
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="keep the rows that the file has")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    networks = nsd.activations.activation_names() if options.networks == ["all"] else options.networks
    device = torch.cuda.get_device_name() if options.device == "cuda" else f"{options.threads} threads"
    results: dict[str, Any] = {
        "command": "python -m benchmarks.kernel_data " + " ".join(sys.argv[1:]),
        "device": device,
        "versions": {"notsodeep": nsd.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "rows": [],
    }
    if options.add and options.json.exists():
        before = json.loads(options.json.read_text())
        results |= {"command": f"{before['command']}; {results['command']}", "rows": before["rows"]}
    for n in options.sizes:
        for name in options.sets:
            X = rows_of(name, n)
            if X is None:
                continue
            for dtype in options.dtypes:
                x = torch.from_numpy(X).to(options.device, getattr(torch, dtype))
                for activation in networks:
                    row = {"data": name, "n": n, "p": X.shape[1], "dtype": dtype, "activation": activation}
                    try:
                        row |= measure(x, activation, options.repeats, options.more)
                    except NotSoDeepError as error:  # an activation that needs parameters
                        print(f"{activation} is left out: {error}", file=sys.stderr)
                        continue
                    results["rows"].append(row)
                    print(row, flush=True)
                    if options.json:  # after every row: an interrupted run keeps what it has
                        options.json.write_text(json.dumps(results, indent=1) + "\n")
    show("NTK over the Gram product", results["rows"])


if __name__ == "__main__":
    main()
