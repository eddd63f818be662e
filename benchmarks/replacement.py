"""Replacements in use: seconds to build one, and to answer many rows, beside the DEQ and looser solvers.

    python -m benchmarks.replacement [--device cuda] [--width 1024] [--trained 6000] [--rows 100000]

DEQs of ReLU units are trained on MNIST with all their weights and replaced at 0.2 %, on 3,000 + 3,000 rows and on all
that were not trained on, the last 10,000 of which are answered, over and over. Seconds are of the processor on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

import notsodeep as nsd
from notsodeep.errors import CertificationError
from studies._runner import Setup
from studies.replace import ReplacedRun, share, some_rows, throughput, train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--library", nargs="+", default=["notsodeep", "torchdeq"])
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--trained", type=int, default=40_000)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--batches", type=int, nargs="+", default=[1024, 8192, 32_768])
    options = parser.parse_args()
    for library in options.library:
        run = ReplacedRun("mnist", library, width=options.width, trained=options.trained, epochs=options.epochs)
        report(run, Setup(device=options.device), options.rows, options.batches)


def report(run: ReplacedRun, setup: Setup, count: int, batches: list[int]) -> None:
    """Train a DEQ, build its replacements, and print what they cost, a line for each."""
    X, y, pool, _ = some_rows(run, setup)
    model, clock = train(run, X, y), time.perf_counter if X.is_cuda else time.process_time
    calibration, fresh = pool[: -run.fresh][: run.measured], pool[-run.fresh :]
    rows = fresh.repeat(-(-count // len(fresh)), 1)[:count]
    with torch.no_grad():
        answers = torch.cat([model(part).argmax(1) for part in fresh.split(1024)])
    fast = None
    for some, measured in ((X[:3000], calibration[:3000]), (X, calibration)):
        row: dict[str, Any] = {"library": run.library, "distilled": len(some), "measured": len(measured)}
        started = clock()
        try:
            fast = nsd.replace(model, some, calibration=measured, disagreement=0.002, progress=False)
            row["seconds"] = round(clock() - started, 2)
            row["coverage"] = fast.certificate.coverage
            row["differs"] = 1.0 - share(fast.predict(fresh).argmax(1), answers)
        except CertificationError as error:
            row |= {"seconds": round(clock() - started, 2), "refused": str(error)}
        print(json.dumps(row), flush=True)
    for size in batches if fast else []:
        times = throughput(model, fast, rows, (size,))[str(size)]
        told = {name: round(1e3 * value, 1) for name, value in times.items()}
        print(json.dumps({"library": run.library, "rows": count, "batch": size, "milliseconds": told}), flush=True)


if __name__ == "__main__":
    main()
