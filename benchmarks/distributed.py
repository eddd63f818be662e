"""A kernel matrix on processes of this machine: seconds to compute it, and seconds of a product.

    OMP_NUM_THREADS=1 python -m benchmarks.distributed --n 20000 --processes 1 2 4 --repeats 7

Rows of dimension 784, ReLU NTK, entries stored in float32, ten columns, one thread for each process. The first line is
one process without Dask. The median of the products is reported.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from distributed import Client, LocalCluster
from notsodeep.distributed import ClusterKernel
from notsodeep.solve import KernelTiles, NetworkKernel


def measure(operator: Any, v: torch.Tensor, repeats: int) -> dict[str, float]:
    """The first product computes what is stored."""
    started = time.perf_counter()
    operator @ v
    first, products = time.perf_counter() - started, []
    for _ in range(repeats):
        started = time.perf_counter()
        operator @ v
        products.append(time.perf_counter() - started)
    product = statistics.median(products)
    return {"build_s": round(first - product, 2), "product_s": round(product, 4)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=20_000)
    parser.add_argument("--p", type=int, default=784)
    parser.add_argument("--columns", type=int, default=10)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(options.n, options.p)) / options.p**0.5)
    v = torch.from_numpy(rng.normal(size=(options.n, options.columns)))
    kernel = NetworkKernel(nsd.DEQ("relu", 0.2), "ntk")
    alone = KernelTiles(kernel, X, dtype="float32", progress=False)
    print(json.dumps({"processes": 0, **measure(alone, v, options.repeats)}), flush=True)
    for count in options.processes:
        settings: dict[str, Any] = {"threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
        with LocalCluster(n_workers=count, **settings) as cluster, Client(cluster) as client:
            ClusterKernel(client, kernel, X[:500], dtype="float32") @ v[:500]  # workers import torch
            found = measure(ClusterKernel(client, kernel, X, dtype="float32"), v, options.repeats)
        print(json.dumps({"processes": count, **found}), flush=True)


if __name__ == "__main__":
    main()
