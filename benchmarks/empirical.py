"""The empirical NTK beside torch.func's Jacobians of single rows, in time and memory.

    python -m benchmarks.empirical [--device cuda]

The baseline is torch's own tutorial: vmap(jacrev), all Jacobians at once, then a contraction for each parameter. Times
are of the processor on a CPU, the best of two; memory is that of tensors.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

import notsodeep as nsd

from ._clock import elapsed, peak_bytes


def baseline(model: nn.Module, X: Tensor) -> Tensor:
    """The mean over outputs of the kernels, from Jacobians of all rows."""
    leaves = {name: p.detach() for name, p in model.named_parameters()}
    found = vmap(jacrev(lambda p, x: functional_call(model, p, (x[None],))[0]), (None, 0))(leaves, X)
    outputs = next(iter(found.values())).shape[1]
    return sum(J.flatten(1) @ J.flatten(1).mT for J in found.values()) / outputs


def convolutional(channels: int = 32, classes: int = 10) -> nn.Module:
    """A small network for images of 32 x 32 in three colours."""
    first, second = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 2 * channels, 3, padding=1)
    third, pool = nn.Conv2d(2 * channels, 2 * channels, 3, padding=1), nn.AdaptiveAvgPool2d(1)
    body = [first, nn.ReLU(), nn.MaxPool2d(2), second, nn.ReLU(), nn.MaxPool2d(2), third, nn.ReLU(), pool]
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(2 * channels, classes))


def perceptron(width: int) -> tuple[nn.Module, Tensor]:
    """Two hidden layers, and rows like those of MNIST."""
    first, second, last = nn.Linear(784, width), nn.Linear(width, width), nn.Linear(width, 1)
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last), torch.randn(512, 784)


CASES: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    **{f"MLP, 784-{m}-{m}-1, 512 rows": functools.partial(perceptron, m) for m in (1024, 2048, 4096)},
    "CNN, 56,714 weights, 10 outputs, 128 images": lambda: (convolutional(), torch.randn(128, 3, 32, 32)),
    "DEQ of width 256, 64-256-1, 512 rows": lambda: (
        nsd.nn.DEQ(nsd.DEQ("relu", 0.2), 64, 256, 1),
        torch.randn(512, 64) / 8.0,
    ),
}


def measured(work: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Seconds, the better of two, and the most megabytes of tensors."""
    seconds = []
    for _ in range(2):
        start = time.process_time()
        wall = elapsed(work, device)
        seconds.append(wall if device.type == "cuda" else time.process_time() - start)
    return {"seconds": round(min(seconds), 3), "megabytes": round(peak_bytes(work, device) / 2**20)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    device = torch.device(parser.parse_args().device)
    for name, make in CASES.items():
        if device.type == "cpu" and ("2048" in name or "4096" in name):
            continue  # the Jacobians of the baseline need 11 and 41 GB
        torch.manual_seed(0)
        model, X = make()
        model, X = model.to(device), X.to(device)
        ours, theirs = nsd.empirical_ntk(model, X), baseline(model, X)
        row: dict[str, Any] = {"case": name, "difference": float((ours - theirs).norm() / theirs.norm())}
        row["notsodeep"] = measured(lambda model=model, X=X: nsd.empirical_ntk(model, X), device)
        row["torch.func"] = measured(lambda model=model, X=X: baseline(model, X), device)
        print(json.dumps(row))


if __name__ == "__main__":
    main()
