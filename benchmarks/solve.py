"""Conjugate gradients with preconditioners of several ranks: steps to a relative residual, and seconds.

    python -m benchmarks.solve --data FOLDER --n 4000
    python -m benchmarks.solve --data FOLDER --n 6000 --ranks 0 1000 --ridges 1e-2 1e-4
    python -m benchmarks.solve --mixture --n 4000 --ridges 1e-1
    python -m benchmarks.solve --data FOLDER --n 6000 --activation tanh --kernel ck --out steps.json

Ten right-hand sides (one per class, +1 and -1; two for the mixture). The ridge is relative to the mean diagonal, rank 0
is no preconditioner. Products are in float64 unless --dtype float32. Steps do not depend on the machine; seconds do.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import notsodeep as nsd
from notsodeep.errors import NotSoDeepError
from notsodeep.solve import CG, KernelTiles, NetworkKernel, solve_operator
from studies._data import load


def problem(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows and targets."""
    if options.mixture:
        X, y = nsd.GaussianMixture.two_class(options.p).sample(options.n, seed=0)
        classes = 2
    else:
        data = load(options.dataset, options.data).first(options.n).standardised()
        X, y, classes = data.X_train.astype(np.float64), data.y_train, 10
    targets = 2.0 * np.eye(classes)[y] - 1.0
    return torch.from_numpy(X), torch.from_numpy(targets)


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    X, targets = problem(options)
    kernel = NetworkKernel(nsd.DEQ(options.activation, options.sigma_a2), options.kernel)
    tiles = KernelTiles(kernel, X, dtype=options.dtype)
    mean = float(tiles.diagonal().mean())
    rows: list[dict[str, Any]] = []
    for rank in options.ranks:
        for ridge in options.ridges:
            row: dict[str, Any] = {"rank": rank, "ridge": ridge}
            started = time.perf_counter()
            try:
                found = solve_operator(tiles, targets, [ridge * mean], CG(tol=options.tol, rank=rank), progress=False)
                row |= {"steps": found.steps, "seconds": round(time.perf_counter() - started, 2)}
            except NotSoDeepError as error:
                row |= {"failed": str(error)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="folder of the data sets", default=None)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--mixture", action="store_true", help="the papers' two classes instead")
    parser.add_argument("--p", type=int, default=1000)
    parser.add_argument("--n", type=int, default=4000)
    parser.add_argument("--activation", default="relu")
    parser.add_argument("--sigma-a2", type=float, default=0.2)
    parser.add_argument("--kernel", default="ntk")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--ridges", type=float, nargs="+", default=[1e-1, 1e-2, 1e-4])
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 400, 1000])
    parser.add_argument("--out", help="a JSON file; else it is printed")
    options = parser.parse_args()
    document = {"options": vars(options) | {"data": None}, "rows": run(options)}
    if options.out:
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
