"""One-layer twins: design time, and a forward pass against the DEQ and against the matrix product alone.

Writes results/speed_one_layer.json and prints what it measured. torchdeq, where it is installed, solves the same DEQ.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import notsodeep as nsd

TARGET = Path(__file__).resolve().parents[1] / "results" / "speed_one_layer.json"
WIDTHS = (256, 1024, 4096)
FEATURES, BATCH, TOLERANCE = 784, 128, 1e-3


def milliseconds(calls: dict[str, Callable[[], Any]], repeats: int = 9) -> dict[str, float]:
    """Medians of interleaved runs: a busy machine slows all of them alike."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(values[1:]) for name, values in times.items()}


def designs() -> dict[str, dict[str, float]]:
    """Milliseconds of ``match_one_layer``."""
    out = {}
    for name in ("tanh", "silu", "relu"):
        deq = nsd.DEQ(name, sigma_a2=0.2)
        for kernel in ("ck", "ntk"):
            out[f"{name}, {kernel}"] = milliseconds({"design_ms": lambda d=deq, k=kernel: nsd.match_one_layer(d, k)}, 4)
    return out


def forward(name: str, width: int, device: str = "cpu") -> dict[str, float]:
    """A forward pass of twin, DEQ and matrix product on one batch."""
    deq = nsd.DEQ(name, sigma_a2=0.2)
    size = (FEATURES, width, 10, 0)
    twin = nsd.nn.ENN(nsd.match_one_layer(deq, norms=(0.5, 1.5)), *size, device=device)
    implicit = nsd.nn.DEQ(deq, *size, tol=TOLERANCE, device=device)
    x = torch.randn(BATCH, FEATURES, device=device) / FEATURES**0.5
    calls: dict[str, Callable[[], Any]] = {
        "product": lambda: x @ twin.weights[0].mT,
        "one layer": lambda: twin.features(x),
        "DEQ": lambda: implicit.features(x),
    }
    if importlib.util.find_spec("torchdeq") is not None:
        calls["torchdeq"] = _torchdeq(implicit, x)
    with torch.no_grad():
        return milliseconds(calls)


def _torchdeq(model: Any, x: torch.Tensor) -> Callable[[], Any]:
    from torchdeq import get_deq

    solver = get_deq(f_solver="anderson", f_tol=TOLERANCE, f_max_iter=50)
    phi, (a2, b2, _), root = model.spec.activation, model.spec.variances, model.readout.shape[1] ** 0.5
    recurrent, inputs = (dict(model.hidden_weights())[key] for key in ("recurrent", "input"))

    def solve() -> Any:
        drive = b2**0.5 * x @ inputs.mT
        return solver(lambda z: phi(a2**0.5 * z @ recurrent.mT + drive) / root, torch.zeros_like(drive))

    return solve


def main() -> None:
    timings = {f"{name}, width {width}": forward(name, width) for name in ("tanh", "relu", "silu") for width in WIDTHS}
    document = {"command": "python -m benchmarks one_layer", "design": designs(), "forward_ms": timings}
    TARGET.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
