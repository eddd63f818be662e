"""One-layer twins: design time; a forward pass and a training step against the DEQ; the units against their product.

Every contender is called in turn, eight times in a row, and the median counts (``networks.race``). torchdeq, where it
is installed, solves the same DEQ. ``one layer`` is the twin as ``match_one_layer`` makes it, a plain layer is the
activation itself on one product, which nothing of one layer can beat. ``--quick`` takes under a minute. Writes
results/speed_one_layer.json, with ``--device cuda`` results/speed_one_layer_cuda.json.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import notsodeep as nsd

from .networks import FEATURES, OUTPUTS, TorchDEQ, build, get_deq, machine, race

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDTHS = (256, 1024, 4096)
ACTIVATIONS = ("tanh", "relu", "silu")
SOLVERS = ("fixed_point_iter", "anderson")
TOLERANCE = 1e-3
_race = functools.partial(race, burst=8, pick=statistics.median)


def designs() -> dict[str, float]:
    """Milliseconds of ``match_one_layer``, the second call; tables are kept from the first one on."""
    out = {}
    for name in ACTIVATIONS:
        for kernel in ("ck", "ntk"):
            deq = nsd.DEQ(name, sigma_a2=0.2)
            call = {"design": lambda d=deq, k=kernel: nsd.match_one_layer(d, k)}
            out[f"{name}, {kernel}"] = race(call, torch.device("cpu"), 0.0, least=1)["design"]
    return out


def contenders(
    name: str, width: int, device: torch.device, compiled: bool = False
) -> tuple[dict[str, nn.Module], torch.Tensor]:
    """The DEQ by our solver and by torchdeq's, its twin as it comes, with its units compiled, and a plain layer."""
    model, x = build(name, width, TOLERANCE, device)
    kinds = {"one layer": "auto"}
    if model.spec.homogeneous:
        kinds["one layer, conditioned"] = "conditioned"
    out: dict[str, nn.Module] = {key: _twin(model.spec, width, units, device) for key, units in kinds.items()}
    if compiled:
        out |= {f"{key}, torch.compile": torch.compile(out[key], fullgraph=True) for key in kinds}
    out["plain layer"] = nsd.nn.ENN(nsd.ENN([name]), FEATURES, width, OUTPUTS, device=device)
    out["DEQ"] = model
    if get_deq is not None:
        out |= {f"torchdeq {solver}": TorchDEQ(model, solver, TOLERANCE) for solver in SOLVERS}
        if compiled:
            out |= {f"torchdeq {SOLVERS[0]}, torch.compile": torch.compile(TorchDEQ(model, SOLVERS[0], TOLERANCE))}
    return out, x


def _twin(deq: nsd.DEQ, width: int, units: str, device: torch.device) -> nsd.nn.ENN:
    return nsd.nn.ENN(_design(deq, units), FEATURES, width, OUTPUTS, device=device)


@functools.cache
def _design(deq: nsd.DEQ, units: Any) -> nsd.Twin:
    return nsd.match_one_layer(deq, norms=(0.5, 1.5), units=units)


def speed(name: str, width: int, seconds: float, least: int, device: torch.device, compiled: bool) -> dict[str, Any]:
    """Milliseconds of a forward pass and of forward and backward through all weights, and what the twin saves."""
    torch.compiler.reset()  # after eight recompilations of one function torch goes on without compiling
    models, x = contenders(name, width, device, compiled)
    with torch.no_grad():
        forward = _race({k: (lambda m=m: m(x)) for k, m in models.items()}, x.device, seconds, least)
    training = _race({k: (lambda m=m: _step(m, x)) for k, m in models.items()}, x.device, seconds, least)
    result: dict[str, Any] = {"forward_ms": forward, "training_ms": training}
    for kind, times in (("forward", forward), ("training", training)):
        peers = [value for key, value in times.items() if key.startswith("torchdeq")]
        for key in (k for k in times if k.startswith(("one layer", "plain layer"))):
            result[f"{kind}: DEQ / {key}"] = times["DEQ"] / times[key]
            if peers:
                result[f"{kind}: fastest torchdeq / {key}"] = min(peers) / times[key]
    return result


def _step(model: nn.Module, x: torch.Tensor) -> None:
    model.zero_grad(set_to_none=True)
    model(x).square().mean().backward()


def units(width: int, seconds: float, device: torch.device) -> dict[str, float]:
    """Time of evaluating the units of a layer over that of its matrix product."""
    calls: dict[str, Callable[[], Any]] = {}
    for name in ACTIVATIONS:
        models, x = contenders(name, width, device)
        for key in (k for k in models if k.startswith("one layer")):
            weight, layer = models[key].weights[0], models[key]._norm_units[0]
            before = nn.functional.linear(x, weight).detach()
            layer.how = dataclasses.replace(layer.how, overwrite=False)
            calls.setdefault("product", lambda x=x, w=weight: nn.functional.linear(x, w))
            calls[f"{name}, {key}"] = lambda f=layer, b=before, x=x: f(b, x)
    with torch.no_grad():
        times = _race(calls, device, seconds)
    return {key: value / times["product"] for key, value in times.items() if key != "product"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="under a minute, not every cell")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true", help="also twin and torchdeq through torch.compile")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--output", type=Path, help="instead of the file in results")
    parser.add_argument("--seconds", type=float, help="for each race; default 3, or 0.3 with --quick")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    device = torch.device(chosen.device)
    seconds, least = (0.3, 1) if chosen.quick else (3.0, 3)
    seconds = chosen.seconds or seconds
    started = time.perf_counter()
    cells = [(n, w) for w in chosen.widths for n in (ACTIVATIONS if w < 4096 or not chosen.quick else ("tanh",))]
    options = f" --device {device} --threads {chosen.threads} --seconds {seconds:g}"
    options += "".join(f" --{flag}" for flag in ("quick", "compile") if getattr(chosen, flag))
    document: dict[str, Any] = {
        "command": f"python -m benchmarks.one_layer{options}",
        "machine": machine(device, chosen.threads),
    }
    target = chosen.output or RESULTS / (
        "speed_one_layer.json" if device.type == "cpu" else f"speed_one_layer_{device.type}.json"
    )
    document["units / product, width 1024"] = units(1024, 4 * seconds, device)
    document["design_ms"] = designs()
    for name, width in cells:
        document[f"{name}, width {width}"] = speed(name, width, seconds, least, device, chosen.compile)
        document["seconds"] = time.perf_counter() - started
        target.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")  # what is done is kept
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
