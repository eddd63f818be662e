"""Kernels of convolutional DEQs: time of pairs of images, and the error of float32 against double precision.

    NOTSODEEP_DATA=... python -m benchmarks.convolution --device cuda --pool 1 3 5
    python -m benchmarks.convolution            # small, on the CPU

Each row is one box of average pooling, one stride and one sigma_a2: the time of a matrix of training images and of one
against half as many test images, for the CK alone and for CK and NTK together, after one run that compiles; and in
single precision the largest error of both on a part of the rows, over the mean of the diagonal.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import DataError
from studies._data import load

from ._clock import elapsed
from .kernels import show


def images(count: int) -> np.ndarray:
    """The first images of MNIST, or blurred noise where they are missing."""
    try:
        X = np.asarray(load("mnist").X_train[:count], dtype=float)
    except DataError as error:
        print(f"noise stands in for MNIST: {error}", file=sys.stderr)
        noise = torch.randn(count, 1, 28, 28, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        X = torch.nn.functional.avg_pool2d(noise, 5, 1, 2).clamp_min(0.1).flatten(1).numpy() - 0.1
    return X / np.sqrt((X**2).sum(1).mean())


def errors(deq: nsd.ConvDEQ, X: Tensor, part: int) -> dict[str, float]:
    """The largest error of a part of the rows in their own precision, over the mean of the diagonal."""
    found = nsd.kernels_of(deq, X[:part], check=False)
    exact = nsd.kernels_of(deq, X[:part].double(), check=False)
    return {k: float((found[k].double() - v).abs().max() / v.diagonal().mean()) for k, v in exact.items()}


def measure(X: Tensor, Y: Tensor, pool: int, stride: int, sigma_a2: float, part: int) -> dict[str, Any]:
    """One row of the table."""
    deq = nsd.ConvDEQ("relu", sigma_a2, 0.8, image=(1, 28, 28), pool=pool, stride=stride)
    row: dict[str, Any] = {
        "pool": pool,
        "stride": stride,
        "sigma_a2": sigma_a2,
        "pairs": len(X) ** 2 // 2 + len(X) * len(Y),
    }
    for name, kernels in (("ck", ("ck",)), ("ck_ntk", ("ck", "ntk"))):
        options: Any = {"kernels": kernels, "check": False, "progress": False}

        def work(X: Tensor, Y: Tensor, options: Any = options) -> None:
            nsd.kernels_of(deq, X, **options)
            nsd.kernels_of(deq, X, Y, **options)

        work(X[:32], Y[:16])  # compiles
        processor = time.process_time()
        row[f"{name}_s"] = elapsed(lambda work=work: work(X, Y), X.device)
        if not X.is_cuda:
            row[f"{name}_cpu_s"] = time.process_time() - processor
    if X.dtype == torch.float32:
        row |= {f"{k}_error": v for k, v in errors(deq, X, part).items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, help="images of the square matrix; default 2048 on a GPU, 100 on the CPU")
    parser.add_argument("--dtype", default=None, choices=("float32", "float64"))
    parser.add_argument("--pool", type=int, nargs="+", default=[1])
    parser.add_argument("--stride", type=int, nargs="+", default=[1])
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.2, 1.0, 1.6])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cuda = options.device == "cuda"
    n = options.rows or (2048 if cuda else 100)
    dtype = getattr(torch, options.dtype or ("float32" if cuda else "float64"))
    both = torch.from_numpy(images(n + n // 2)).to(options.device, dtype)
    rows = []
    for setting in itertools.product(options.pool, options.stride, options.sigmas):
        rows.append(measure(both[:n], both[n:], *setting, 128 if cuda else 20))
        print(rows[-1], flush=True)
    show("convolutional kernels", rows)
    if options.json:
        device = torch.cuda.get_device_name() if cuda else f"{torch.get_num_threads()} threads"
        command = "python -m benchmarks.convolution " + " ".join(sys.argv[1:])
        versions = {"notsodeep": nsd.__version__, "torch": torch.__version__}
        found = {"command": command, "device": device, "versions": versions, "rows": rows}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
