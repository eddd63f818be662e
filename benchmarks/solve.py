"""Conjugate gradients with each preconditioner: steps to a relative residual, and seconds (theory, section 16).

    python -m benchmarks.solve --data FOLDER --n 4000
    python -m benchmarks.solve --data FOLDER --n 6000 --only none rpcholesky --ridges 1e-2 1e-4
    python -m benchmarks.solve --mixture --n 4000 --ridges 1e-1
    python -m benchmarks.solve --data FOLDER --n 6000 --activation tanh --kernel ck --out preconditioners.json

Ten right-hand sides (one per class, +1 and -1; two for the mixture). The ridge is relative to the mean diagonal. The
equivalent speaks of the centred network, so --centred compares all of them on that one. Products are in float64 unless
--dtype float32. Steps do not depend on the machine; seconds do.
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
from notsodeep.datasets import load
from notsodeep.errors import NotSoDeepError
from notsodeep.solve import NAMES, KernelTiles, precondition
from notsodeep.solve.api import choose
from notsodeep.solve.iterative import solve_tiles


def problem(options: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor, Any]:
    """Rows, targets and labels."""
    if options.mixture:
        X, y = nsd.GaussianMixture.two_class(options.p).sample(options.n, seed=0)
        classes = 2
    else:
        data = load(options.dataset, options.data).first(options.n).standardised()
        X, y, classes = data.X_train.astype(np.float64), data.y_train, 10
    targets = 2.0 * np.eye(classes)[y] - 1.0
    return torch.from_numpy(X), torch.from_numpy(targets), y


def run(options: argparse.Namespace) -> list[dict[str, Any]]:
    X, targets, y = problem(options)
    statistics = nsd.MixtureStatistics.estimate(X, y)
    deq = nsd.DEQ(options.activation, options.sigma_a2)
    network = deq.centred(statistics.tau0) if options.centred else deq
    kind = options.kernel
    equivalents = {
        norms: nsd.equivalent(network, statistics, kind, own_norms=norms == "own") for norms in ("typical", "own")
    }
    tiles = KernelTiles(
        lambda a, b: nsd.kernels_of(network, a, b, kernels=(kind,))[kind],
        X,
        dtype=torch.float32 if options.dtype == "float32" else torch.float64,
        store="memory",
    )
    mean = float(tiles.diagonal().mean())
    lowest = torch.tensor([min(options.ridges) * mean], dtype=torch.float64)
    rows: list[dict[str, Any]] = [{"auto": choose(tiles, lowest, None, equivalents["own"])}]
    for name, rank, norms in cases(options):
        started = time.perf_counter()
        try:
            chosen = precondition(name, tiles, rank=rank, equivalent=equivalents[norms])
        except NotSoDeepError as error:
            rows.append({"preconditioner": name, "rank": rank, "norms": norms, "failed": str(error)})
            continue
        built = time.perf_counter() - started
        for ridge in options.ridges:
            lifts = torch.full((targets.shape[1],), ridge * mean, dtype=torch.float64)
            row = {"preconditioner": name, "rank": rank, "norms": norms, "ridge": ridge, "build_s": round(built, 2)}
            started = time.perf_counter()
            try:
                found = solve_tiles(tiles, targets, lifts, chosen, tol=options.tol, max_steps=1000, progress=False)
                row |= {"steps": found.steps, "solve_s": round(time.perf_counter() - started, 2)}
            except NotSoDeepError as error:
                row |= {"failed": str(error)}
            rows.append(row)
            print(json.dumps(row), flush=True)
    return rows


def cases(options: argparse.Namespace) -> list[tuple[str, int | None, str]]:
    """(name, rank, norms of the equivalent)."""
    found: list[tuple[str, int | None, str]] = []
    for name in options.only or NAMES:
        ranks = options.ranks if "cholesky" in name or name == "nystrom" else [None]
        norms = ("typical", "own") if "equivalent" in name else ("own",)
        found += [(name, rank, kind) for rank in ranks for kind in norms]
    return found


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
    parser.add_argument("--centred", action="store_true")
    parser.add_argument("--dtype", choices=("float32", "float64"), default="float64")
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--ridges", type=float, nargs="+", default=[1e-1, 1e-2, 1e-4])
    parser.add_argument("--ranks", type=int, nargs="+", default=[400, 1000])
    parser.add_argument("--only", nargs="+", choices=NAMES)
    parser.add_argument("--out", help="a JSON file; else it is printed")
    options = parser.parse_args()
    document = {"options": vars(options) | {"data": None}, "rows": run(options)}
    if options.out:
        Path(options.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    else:
        print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
