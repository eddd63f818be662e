"""Kernels of convolutional DEQs: time of 4.8e7 pairs of images on a GPU, and the error against double precision.

    NOTSODEEP_DATA=... python -m benchmarks.convolution --device cuda
    python -m benchmarks.convolution            # small, on the CPU

Each row is one setting of sigma_a2: the time of a matrix of training images and of one against test images, for the CK
alone and for CK and NTK together, after one run that compiles; and the largest error of both on a part of the rows,
over the mean of the diagonal. ``picard`` is the same program with plain iteration in the place of Chebyshev's method.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

import notsodeep as nsd
from notsodeep.errors import DataError
from notsodeep.kernels import convolution
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


def picard(high: float, tol: float) -> convolution.SemiIteration:
    """Plain iteration, with as many steps as it needs for the same tolerance."""
    return convolution.SemiIteration(1.0, 0.0, math.ceil(math.log(tol) / math.log(max(high, 1e-6))))


def errors(deq: nsd.ConvDEQ, X: Tensor, part: int) -> dict[str, float]:
    """The largest error of a part of the rows in their own precision, over the mean of the diagonal."""
    found = nsd.kernels_of(deq, X[:part], check=False)
    exact = nsd.kernels_of(deq, X[:part].double(), check=False)
    return {k: float((found[k].double() - v).abs().max() / v.diagonal().mean()) for k, v in exact.items()}


def measure(X: Tensor, Y: Tensor, sigma_a2: float, part: int, method: str) -> dict[str, Any]:
    """One row of the table."""
    deq = nsd.ConvDEQ("relu", sigma_a2, 0.8, image=(1, 28, 28))
    row: dict[str, Any] = {"sigma_a2": sigma_a2, "method": method, "pairs": len(X) ** 2 // 2 + len(X) * len(Y)}
    plain = mock.patch.object(convolution.SemiIteration, "of", picard)
    with plain if method == "picard" else contextlib.nullcontext():
        for name, kernels in (("ck", ("ck",)), ("ck_ntk", ("ck", "ntk"))):
            options: Any = {"kernels": kernels, "check": False}
            nsd.kernels_of(deq, X[:64], **options)
            nsd.kernels_of(deq, X[:64], Y[:64], **options)  # both programs are compiled

            def work(options: Any = options) -> None:
                nsd.kernels_of(deq, X, **options)
                nsd.kernels_of(deq, X, Y, **options)

            processor = time.process_time()
            row[f"{name}_s"] = elapsed(work, X.device)
            if not X.is_cuda:
                row[f"{name}_cpu_s"] = time.process_time() - processor
        if X.dtype == torch.float32:
            row |= {f"{k}_error": v for k, v in errors(deq, X, part).items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--rows", type=int, help="images of the square matrix; default 6000 on a GPU, 100 on the CPU")
    parser.add_argument("--dtype", default=None, choices=("float32", "float64"))
    parser.add_argument("--sigmas", type=float, nargs="+", default=[0.2, 1.0, 1.6])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    cuda = options.device == "cuda"
    n = options.rows or (6000 if cuda else 100)
    dtype = getattr(torch, options.dtype or ("float32" if cuda else "float64"))
    both = torch.from_numpy(images(n + n * 5 // 6)).to(options.device, dtype)
    if cuda:  # programs are compiled for sizes too: all of it once, before the first row is timed
        measure(both[:n], both[n:], options.sigmas[0], 20, "chebyshev")
    rows = []
    for sigma_a2 in options.sigmas:
        for method in ("chebyshev", "picard") if cuda else ("chebyshev",):
            rows.append(measure(both[:n], both[n:], sigma_a2, 200 if cuda else 20, method))
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
