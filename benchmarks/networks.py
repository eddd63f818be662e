"""DEQ modules against torchdeq, and twins against both, in one run.

Every contender of a comparison is called in turn, round after round, and the quickest call of each counts: what else
runs on the machine only ever adds time. torchdeq gets the same map in its most economical form (the input is
projected once, the scale 1/sqrt(m) sits in the weights), the same relative tolerance and each of its solvers.

    python benchmarks/networks.py --device cpu --threads 2 --output networks.json
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import notsodeep as nsd

from ._clock import elapsed, peak_bytes

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchdeq import get_deq
except ImportError:
    get_deq = None

BATCH, FEATURES, OUTPUTS = 128, 784, 10
_BURST_SECONDS = 0.02
SOLVERS = ("fixed_point_iter", "anderson", "broyden")


class TorchDEQ(nn.Module):
    """The same network on torchdeq: h = phi(W h + U x), outputs R h."""

    def __init__(self, model: nsd.nn.DEQ, solver: str, tol: float) -> None:
        super().__init__()
        root = math.sqrt(model.width)
        self.recurrent = nn.Parameter(model.recurrent.detach() * (math.sqrt(float(model.spec.sigma_a2)) / root))
        self.input = nn.Parameter(model.input.detach() * math.sqrt(float(model.spec.sigma_b2)))
        self.readout = nn.Parameter(model.readout.detach() / root)
        self.phi = model.spec.activation
        options = {"f_stop_mode": "rel", "b_stop_mode": "rel", "f_max_iter": 100, "b_max_iter": 100, "ift": True}
        self.deq = get_deq(f_solver=solver, b_solver=solver, f_tol=tol, b_tol=tol, **options)

    def features(self, x: Tensor) -> tuple[Tensor, Any]:
        drive = nn.functional.linear(x, self.input)
        states, info = self.deq(
            lambda h: self.phi(drive + nn.functional.linear(h, self.recurrent)), torch.zeros_like(drive)
        )
        return states[-1], info

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(self.features(x)[0], self.readout)


def race(
    contenders: dict[str, Callable[[], Any]],
    device: torch.device,
    seconds: float,
    least: int = 5,
    burst: int = 1,
    pick: Callable[[list[float]], float] = min,
) -> dict[str, float]:
    """Milliseconds of each contender, the quickest of its calls or what else is picked from them.

    All are called in turn until the time is up, ``burst`` times in a row unless that takes more than 20 ms.
    """
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for call in contenders.values():
        call()
    stop, rounds = time.perf_counter() + seconds, 0
    while rounds < least or time.perf_counter() < stop:
        for name, call in contenders.items():
            limit = time.perf_counter() + _BURST_SECONDS
            for _ in range(burst):
                times[name].append(elapsed(call, device))
                if time.perf_counter() > limit:
                    break
        rounds += 1
    return {name: 1e3 * pick(values) for name, values in times.items()}


def build(phi: str, width: int, tol: float, device: torch.device) -> tuple[nsd.nn.DEQ, Tensor]:
    model = nsd.nn.DEQ(
        nsd.DEQ(phi, sigma_a2=0.2), FEATURES, width, OUTPUTS, solver=nsd.nn.SolverOptions(tol=tol), device=device
    )
    x = torch.randn(BATCH, FEATURES, generator=torch.Generator().manual_seed(1)) / math.sqrt(FEATURES)
    return model, x.to(device)


def inference(phi: str, width: int, tol: float, device: torch.device, seconds: float) -> dict[str, Any]:
    """Times of one batch, ratios to the fastest torchdeq solver, and distances to the exact equilibrium."""
    model, x = build(phi, width, tol, device)
    # one hard tanh layer for tanh, two leaky ReLU layers for ReLU
    twin = nsd.nn.ENN(nsd.match(model.spec, 1.0), FEATURES, width, OUTPUTS, device=device)
    contenders: dict[str, Callable[[], Any]] = {"twin": lambda: twin(x)}
    for solver in ("picard", "anderson"):
        ours = nsd.nn.DEQ(model.spec, FEATURES, width, OUTPUTS, solver=nsd.nn.SolverOptions(solver, tol), device=device)
        contenders[f"DEQ {solver}"] = lambda m=ours: m(x)
    contenders["DEQ"] = lambda: model(x)
    peers = {} if get_deq is None else {f"torchdeq {s}": TorchDEQ(model, s, tol).eval() for s in SOLVERS}
    contenders |= {name: (lambda m=m: m(x)) for name, m in peers.items()}
    with torch.no_grad():
        times = race(contenders, device, seconds)
        errors = accuracy(model, x, peers)
    result = {"phi": phi, "width": width, "tol": tol, "milliseconds": times, **errors}
    result["ratios"] = {"DEQ / twin": times["DEQ"] / times["twin"]}
    if peers:
        fastest = min((n for n in times if n.startswith("torchdeq")), key=times.__getitem__)
        result["fastest peer"] = fastest
        result["ratios"] |= {f"peer / {name}": times[fastest] / times[name] for name in ("DEQ", "twin")}
    return result


def accuracy(model: nsd.nn.DEQ, x: Tensor, peers: dict[str, TorchDEQ]) -> dict[str, Any]:
    """Steps and largest relative distance to the equilibrium in float64 at tolerance 1e-13."""
    options = {"solver": nsd.nn.SolverOptions(tol=1e-13), "dtype": torch.float64, "device": x.device}
    exact = nsd.nn.DEQ(model.spec, FEATURES, model.width, OUTPUTS, **options)
    truth = exact.features(x.double())

    def distance(z: Tensor) -> float:
        return float(((z.double() - truth).norm(dim=1) / truth.norm(dim=1)).max())

    found = model.solve(x)
    errors, steps = {"DEQ": distance(found.value)}, {"DEQ": found.steps}
    for name, peer in peers.items():
        state, info = peer.features(x)
        errors[name] = distance(state / math.sqrt(model.width))
        steps[name] = int(info["nstep"].max())
    return {"errors": errors, "steps": steps}


def training(phi: str, width: int, tol: float, device: torch.device, seconds: float) -> dict[str, Any]:
    """Forward and backward through all weights: time, peak memory, and the error of the gradient of A."""
    model, x = build(phi, width, tol, device)
    options = {"solver": nsd.nn.SolverOptions(tol=1e-12), "dtype": torch.float64, "device": device}
    exact = nsd.nn.DEQ(model.spec, FEATURES, width, OUTPUTS, **options)
    exact(x.double()).square().mean().backward()
    models: dict[str, nn.Module] = {"DEQ": model}
    if get_deq is not None:
        models |= {f"torchdeq {s}": TorchDEQ(model, s, tol).train() for s in SOLVERS}

    def step(m: nn.Module) -> None:
        m.zero_grad(set_to_none=True)
        m(x).square().mean().backward()

    times = race({name: (lambda m=m: step(m)) for name, m in models.items()}, device, seconds)
    memory, errors = {}, {}
    for name, m in models.items():
        m.zero_grad(set_to_none=True)
        memory[name] = peak_bytes(lambda m=m: step(m), device) / 2**20
        scale = 1.0 if name == "DEQ" else math.sqrt(0.2 / width)
        gradient = m.recurrent.grad.double() * scale
        errors[name] = float((gradient - exact.recurrent.grad).norm() / exact.recurrent.grad.norm())
    result = {"phi": phi, "width": width, "tol": tol, "milliseconds": times, "MiB": memory, "errors": errors}
    peers = [name for name in times if name != "DEQ"]
    if peers:
        fastest = min(peers, key=times.__getitem__)
        result["fastest peer"] = fastest
        result["ratios"] = {
            "peer / DEQ": times[fastest] / times["DEQ"],
            "memory, least peer / DEQ": min(memory[n] for n in peers) / memory["DEQ"],
        }
    return result


def machine(device: torch.device, threads: int) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {"device": name, "threads": threads, "torch": torch.__version__}


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    for row in rows:
        print(f"  {row['phi']}, width {row['width']}, tolerance {row['tol']:g}")
        for key in ("milliseconds", "MiB", "steps", "errors", "ratios"):
            if key in row:
                values = ", ".join(f"{n} {v:.3g}" for n, v in row[key].items())
                print(f"    {key:<13}{values}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--widths", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=3.0, help="time for each comparison")
    parser.add_argument("--output", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    if get_deq is None:
        print("torchdeq is not installed (pip install torchdeq==0.1.0): its columns are left out")
    cases = [(phi, width, tol) for phi in ("tanh", "relu") for width in options.widths for tol in (1e-3, 1e-6)]
    forward = [inference(*case, device, options.seconds) for case in cases]
    show(f"one batch of {BATCH}, {FEATURES} features, inference", forward)
    backward = [training(*case, device, options.seconds) for case in cases if case[1] == 1024]
    show("forward and backward through all weights", backward)
    if options.output is not None:
        document = {
            "command": f"python -m benchmarks.networks --device {device} --threads {options.threads}",
            "machine": machine(device, options.threads),
            "inference": forward,
            "training": backward,
        }
        options.output.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
