"""Exact kernels against the Gram product, neural-tangents and the Monte Carlo route, as ratios in one run.

    python -m benchmarks.kernels                      # everything this machine can do
    python -m benchmarks.kernels gram                 # only the ratios to the Gram product
    python -m benchmarks.kernels gram --device cuda --n 16384 --p 20480
    NEURAL_TANGENTS_PYTHON=... python -m benchmarks.kernels neural_tangents

neural-tangents needs an environment of its own (jax <= 0.5.3): point ``NEURAL_TANGENTS_PYTHON`` at its interpreter.
Tables are printed; ``--json FILE`` also writes the numbers with the settings and versions that made them.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import notsodeep as nsd
from notsodeep.kernels.tiles import tile_shape, tiles_of

from ._clock import elapsed

SIGMA_A2 = 0.2
SEED = 0


def timed(work: Callable[[], Any], repeats: int, cuda: bool = False) -> float:
    """Median wall time in seconds after one warm-up call."""
    work()
    return statistics.median(elapsed(work, "cuda" if cuda else "cpu") for _ in range(repeats))


def points(n: int, p: int, dtype: torch.dtype, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return (torch.randn(n, p, generator=generator, dtype=dtype) / math.sqrt(p)).to(device)


def gram(n: int, p: int, device: str, repeats: int) -> list[dict[str, Any]]:
    """CK and NTK together, the Gram product inside them included, over the Gram product alone.

    Only one triangle of the Gram matrix is computed inside; ``beyond_gram`` is the ratio without that part.
    """
    rows = []
    X = points(n, p, torch.float64, device)
    for name in ("tanh", "relu", "silu"):
        deq = nsd.DEQ(name, SIGMA_A2)

        def both(deq: nsd.DEQ = deq) -> Any:
            return nsd.kernels_of(deq, X, kernels=("ck", "ntk"))

        def product() -> Any:
            return X @ X.T

        def own_tiles() -> None:
            for rows, columns in tiles_of((n, n), tile_shape(X.device), symmetric=True):
                X[rows] @ X[columns].T

        # interleaved, so that a drifting clock touches all sides alike
        cuda = device == "cuda"
        rounds = [(timed(both, 1, cuda), timed(product, 1, cuda), timed(own_tiles, 1, cuda)) for _ in range(repeats)]
        ratio = statistics.median(k / g for k, g, _ in rounds)
        beyond = statistics.median((k - t) / g for k, g, t in rounds)
        rows.append(
            {
                "activation": name,
                "mode": "eager",
                "n": n,
                "p": p,
                "device": device,
                "ratio": ratio,
                "beyond_gram": beyond,
                "kernels_s": statistics.median(k for k, _, _ in rounds),
                "gram_s": statistics.median(g for _, g, _ in rounds),
            }
        )
    return rows


def growth(sizes: tuple[int, ...], p: int) -> list[dict[str, Any]]:
    """Cost and memory up to large n, float32, one kernel (the NTK of tanh), written tile by tile."""
    rows = []
    for n in sizes:
        X = points(n, p, torch.float32, "cpu")
        start = time.perf_counter()
        K = nsd.ntk(nsd.DEQ("tanh", SIGMA_A2), X)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        rows.append({"n": n, "p": p, "seconds": seconds, "ns_per_entry": 1e9 * seconds / n**2, "peak_gib": peak})
        del K
    return rows


def monte_carlo(p: int, draws: int) -> list[dict[str, Any]]:
    """The papers' route: p^2/1000 random networks of width 1000, 25 iterations each; timed on a few, then scaled up."""
    rows = []
    n = int(0.8 * p)
    X = points(n, p, torch.float64, "cpu")
    deq = nsd.DEQ("tanh", SIGMA_A2)
    truth = nsd.ck(deq, X)
    ours = timed(lambda: nsd.ck(deq, X), 3)
    generator = torch.Generator().manual_seed(SEED)
    sigma_a, sigma_b = math.sqrt(SIGMA_A2), math.sqrt(1 - SIGMA_A2)
    total, start = torch.zeros(n, n, dtype=torch.float64), time.perf_counter()
    for _ in range(draws):
        A = torch.randn(1000, 1000, generator=generator, dtype=torch.float64)
        B = torch.randn(1000, p, generator=generator, dtype=torch.float64)
        drive, z = sigma_b * X @ B.T, torch.zeros(n, 1000, dtype=torch.float64)
        for _ in range(25):
            z = torch.tanh(sigma_a * z @ A.T + drive) / math.sqrt(1000)
        total += z @ z.T
    per_draw = (time.perf_counter() - start) / draws
    needed = p * p / 1000
    error = float(torch.linalg.norm(total / draws - truth) / torch.linalg.norm(truth)) * math.sqrt(draws / needed)
    rows.append({"p": p, "n": n, "draws_timed": draws, "draws_needed": needed, "monte_carlo_s": per_draw * needed,
                 "exact_s": ours, "ratio": per_draw * needed / ours, "monte_carlo_error": error})  # fmt: skip
    return rows


PEER = r"""
import json, sys, time
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from neural_tangents import stax
name, n, p, layers, nodes, sa = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]), 0.2
act = {"relu": stax.Relu(), "erf": stax.Erf(), "gelu": stax.Gelu(),
       "tanh": stax.ElementwiseNumerical(jnp.tanh, deg=nodes)}[name]
def injected(layers):
    # f_{l+1} = act(sqrt(sa) A f_l + sqrt(1-sa) B x): the untied network whose limit is the DEQ
    blocks = [stax.FanOut(2)]
    body = stax.serial(stax.Dense(1024, W_std=(1 - sa) ** 0.5, b_std=0), act)
    for _ in range(layers - 1):
        body = stax.serial(stax.FanOut(2), stax.parallel(
            stax.serial(body, stax.Dense(1024, W_std=sa ** 0.5, b_std=0)),
            stax.Dense(1024, W_std=(1 - sa) ** 0.5, b_std=0)), stax.FanInSum(), act)
    return body
_, _, kernel = stax.serial(injected(layers), stax.Dense(1, W_std=1.0, b_std=0))
x = jnp.asarray(np.load(sys.argv[6])) * p ** 0.5    # neural-tangents divides inner products by the width p
fn = jax.jit(lambda a: kernel(a, None, "ntk"))
out = fn(x).block_until_ready()
times = []
for _ in range(int(sys.argv[7])):
    t = time.perf_counter(); fn(x).block_until_ready(); times.append(time.perf_counter() - t)
np.save(sys.argv[8], np.asarray(out)); print(json.dumps(sorted(times)[len(times) // 2]))
"""


def neural_tangents(python: str, folder: Path) -> list[dict[str, Any]]:
    """The NTK of the input-injected untied network; its tracing and compiling are not counted."""
    rows = []
    script = folder / "peer.py"
    script.write_text(PEER)
    for name, n, layers, nodes in (
        ("tanh", 500, 11, 25),
        ("relu", 2000, 11, 25),
        ("erf", 2000, 11, 25),
        ("gelu", 2000, 11, 25),
    ):
        X = points(n, 1000, torch.float64, "cpu")
        np.save(folder / "x.npy", X.numpy())
        arguments = [name, n, 1000, layers, nodes, folder / "x.npy", 3, folder / "k.npy"]
        answer = subprocess.run([python, script, *map(str, arguments)], capture_output=True, text=True)
        if answer.returncode:
            rows.append({"activation": name, "n": n, "failed": answer.stderr.strip().splitlines()[-1][:120]})
            continue
        deq = nsd.DEQ(name, SIGMA_A2)
        peer = json.loads(answer.stdout.strip().splitlines()[-1])
        truth = nsd.ntk(deq, X, check=False)
        error = float(np.abs(np.load(folder / "k.npy") - truth.numpy()).max() / truth.abs().max())
        ours = timed(lambda deq=deq, X=X: nsd.ntk(deq, X, check=False), 5)
        rows.append({"activation": name, "n": n, "neural_tangents_s": peer, "ours_s": ours, "ratio": peer / ours,
                     "their_error": error})  # fmt: skip
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    table = Table(title=title)
    for column in rows[0]:
        table.add_column(column)
    for row in rows:
        table.add_row(*(f"{row.get(c):.4g}" if isinstance(row.get(c), float) else str(row.get(c, "")) for c in rows[0]))
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=["gram", "growth", "monte_carlo", "neural_tangents"])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--p", type=int, default=2500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--largest", type=int, default=20_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    results: dict[str, Any] = {
        "settings": {k: str(v) for k, v in vars(options).items()} | {"sigma_a2": SIGMA_A2, "seed": SEED},
        "versions": {"notsodeep": nsd.__version__, "torch": torch.__version__, "python": platform.python_version()},
    }
    if "gram" in options.parts:
        results["gram"] = gram(options.n, options.p, options.device, options.repeats)
        show("CK + NTK over the Gram product", results["gram"])
    if "growth" in options.parts:
        sizes = tuple(n for n in (2_500, 5_000, 10_000, 20_000) if n <= options.largest)
        results["growth"] = growth(sizes, 784)
        show("NTK of tanh, float32", results["growth"])
    if "monte_carlo" in options.parts:
        results["monte_carlo"] = monte_carlo(1000, 2)
        show("against the Monte Carlo route", results["monte_carlo"])
    python = os.environ.get("NEURAL_TANGENTS_PYTHON")
    if "neural_tangents" in options.parts and python:
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            results["neural_tangents"] = neural_tangents(python, Path(folder))
        show("against neural-tangents", results["neural_tangents"])
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
