"""Uniform twins: how long they take. Writes results/speed_uniform.json and prints what it measured."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path

import numpy as np

import notsodeep as nsd

CASES = (("ck", 1e-3), ("ck", 3e-5), ("ntk", 1e-3))
TARGET = Path(__file__).resolve().parents[1] / "results" / "speed_uniform.json"


def time_table(kernel: str, tol: float, layers: int | str = "auto", count: int = 200) -> dict[str, float]:
    """Milliseconds of ``match_uniform`` for ReLU at random sigma_a2 within the contraction range."""
    sigmas = np.random.default_rng(0).uniform(0.005, 0.249, count)
    nsd.match_uniform(nsd.DEQ("relu", 0.1), kernel, tol=tol)  # reads the table once
    times, bounds = [], []
    for sigma_a2 in sigmas:
        deq = nsd.DEQ("relu", float(sigma_a2))
        started = time.perf_counter()
        twin = nsd.match_uniform(deq, kernel, tol=tol, layers=layers)
        times.append(1e3 * (time.perf_counter() - started))
        bounds.append(float(twin.bound or 0.0))
    return {"median_ms": statistics.median(times), "worst_ms": max(times), "largest_bound": max(bounds)}


def main() -> None:
    timings = {f"{kernel}, tol {tol:g}": time_table(kernel, tol) for kernel, tol in CASES}
    timings |= {f"{kernel}, 2 layers": time_table(kernel, 1e-3, layers=2) for kernel in ("ck", "ntk", "ntk_frozen")}
    document = {"command": "python -m benchmarks uniform", "timings": timings}
    TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(timings, indent=1))


if __name__ == "__main__":
    main()
