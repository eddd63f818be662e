"""Uniform twins: how long they take, and the figure of the depth study.

``python benchmarks/uniform.py`` reads results/uniform/depth.json (made by ``python -m
notsodeep.experiments.uniform_study``), draws results/uniform/depth.png, times the table and prints what it measured.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import notsodeep as nsd
from notsodeep.matching.uniform.table import load

CASES = (("ck", 1e-3), ("ck", 3e-5), ("ntk", 1e-3))
FOLDER = Path(__file__).resolve().parents[1] / "results" / "uniform"


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


def _curves(rows: list[dict], names: set[str], kernel: str) -> dict[tuple[str, float], list[tuple[int, float]]]:
    out: dict[tuple[str, float], list[tuple[int, float]]] = defaultdict(list)
    for row in rows:
        if row["activation"] in names and row["kernel"] == kernel:
            out[row["activation"], row["sigma_a2"]].append((row["depth"], row["bound"] or row["sampled"]))
    return out


def draw(rows: list[dict], path: Path) -> None:
    """Depth against accuracy for ReLU (CK, NTK), for others on a box, and the map from sigma_a2 to the bends."""
    figure, axes = plt.subplots(2, 2, figsize=(12.5, 8), layout="constrained")
    for axis, kernel in zip(axes[0], ("ck", "ntk"), strict=True):
        curves = _curves(rows, {"relu"}, kernel)
        for index, ((_, sigma_a2), points) in enumerate(sorted(curves.items())):
            colour = plt.get_cmap("viridis")(index / max(len(curves) - 1, 1))
            axis.semilogy(*zip(*points, strict=True), "o-", color=colour, label=f"{sigma_a2:.4g}")
        axis.set(title=f"ReLU, {kernel}: certified bound, all inputs", xlabel="layers", ylabel="relative error")
        axis.legend(title="sigma_a2", fontsize=6, ncols=1, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _draw_box(axes[1, 0], rows)
    _draw_bends(axes[1, 1])
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _draw_box(axis: plt.Axes, rows: list[dict]) -> None:
    names = {row["activation"] for row in rows} - {"relu", "leaky_relu"}
    for name in sorted(names):
        curves = _curves(rows, {name}, "ck")
        _, points = max(curves.items())
        sampled = [(r["depth"], r["sampled"]) for r in rows if (r["activation"], r["sigma_a2"]) == max(curves)]
        line = axis.semilogy(*zip(*sampled, strict=True), "o-", label=name)[0]
        certified = [p for p in points if p[0] <= 2]
        axis.semilogy(*zip(*certified, strict=True), "_", color=line.get_color(), markersize=14)
    axis.set(title="ck, norms 0.5 to 1.5: sampled (dots), certified (bars)", xlabel="layers", xticks=range(1, 7))
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _draw_bends(axis: plt.Axes) -> None:
    for depth, style in ((1, ":"), (2, "--"), (3, "-")):
        branch = load()["ck", depth]
        for index, bends in enumerate(branch.bends):
            axis.plot(2.0 * branch.nodes, bends, style, color=f"C{index}", label=f"{depth} layers, layer {index + 1}")
    axis.set(title="the shipped table: bends of the CK twin", xlabel="sigma_a2", ylabel="bend c")
    axis.legend(fontsize=7)


def main() -> None:
    rows = json.loads((FOLDER / "depth.json").read_text(encoding="utf-8"))["rows"]
    draw(rows, FOLDER / "depth.png")
    timings = {f"{kernel}, tol {tol:g}": time_table(kernel, tol) for kernel, tol in CASES}
    timings |= {f"{kernel}, 2 layers": time_table(kernel, 1e-3, layers=2) for kernel in ("ck", "ntk", "ntk_frozen")}
    (FOLDER / "timing.json").write_text(
        json.dumps({"command": "python benchmarks/uniform.py", "timings": timings}, indent=1) + "\n", encoding="utf-8"
    )
    print(json.dumps(timings, indent=1))


if __name__ == "__main__":
    main()
