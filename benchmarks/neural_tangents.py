"""Explicit convolutional networks beside neural-tangents: the largest difference of the NTKs, and the time of both.

    NEURAL_TANGENTS_PYTHON=... python -m benchmarks.neural_tangents

neural-tangents does not run with current JAX. Give it an environment of its own (``pip install "jax<0.4.36"
neural-tangents``) and point ``NEURAL_TANGENTS_PYTHON`` at the interpreter there; by default it is looked for here.
Layers are ReLU with injected input and the variances of a DEQ. Tracing and compiling are not counted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import sklearn.datasets
import torch

import notsodeep as nsd

from ._clock import elapsed
from .kernels import show

SIGMA_A2 = 0.2
PEER = """
import sys, time, json, numpy as np, jax
jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
from neural_tangents import stax
layers, sa, place = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
def conv(variance):
    return stax.Conv(64, (3, 3), padding="SAME", W_std=variance ** 0.5, b_std=0)
body = stax.serial(conv(1 - sa), stax.Relu())
for _ in range(layers - 1):
    body = stax.serial(stax.FanOut(2), stax.parallel(stax.serial(body, conv(sa)), conv(1 - sa)), stax.FanInSum(),
                       stax.Relu())
_, _, kernel = stax.serial(body, stax.Flatten(), stax.Dense(1, W_std=1.0, b_std=0))
x = jnp.asarray(np.load(place + "/x.npy"))[..., None]
fn = jax.jit(lambda a: kernel(a, None, ("nngp", "ntk")))
found = fn(x)
t = time.perf_counter(); found = jax.block_until_ready(fn(x)); seconds = time.perf_counter() - t
np.savez(place + "/k.npz", ck=found.nngp, ntk=found.ntk)
print(json.dumps(seconds))
"""


def compare(python: str, folder: Path, X: np.ndarray, side: int, layers: int) -> dict[str, Any]:
    """One row of the table."""
    np.save(folder / "x.npy", X.reshape(-1, side, side))
    script = folder / "peer.py"
    script.write_text(PEER)
    command = [python, str(script), str(layers), str(SIGMA_A2), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True)
    row: dict[str, Any] = {"images": len(X), "side": side, "layers": layers}
    if answer.returncode:
        return row | {"left out": answer.stderr.strip().splitlines()[-1][:100]}
    enn = nsd.ConvENN(["relu"] * layers, SIGMA_A2, 1.0 - SIGMA_A2, image=(1, side, side))
    ours, theirs = nsd.kernels_of(enn, X), np.load(folder / "k.npz")
    gaps = {f"{k}_difference": float(np.abs(ours[k] - theirs[k]).max() / ours[k].max()) for k in ("ck", "ntk")}
    seconds = elapsed(lambda: nsd.kernels_of(enn, X, kernels=("ck", "ntk")))
    return row | gaps | {"ours_s": seconds, "neural_tangents_s": json.loads(answer.stdout.strip().splitlines()[-1])}


def main() -> None:
    python = os.environ.get("NEURAL_TANGENTS_PYTHON", sys.executable)
    if subprocess.run([python, "-c", "import neural_tangents"], capture_output=True).returncode:
        print(f"neural-tangents is left out: {python} cannot import it; see the first lines of this file")
        return
    digits = sklearn.datasets.load_digits().data / 16.0
    large = torch.nn.functional.interpolate(torch.from_numpy(digits[:40]).reshape(-1, 1, 8, 8), size=(28, 28))
    with tempfile.TemporaryDirectory() as folder:
        rows = [compare(python, Path(folder), digits[:100], 8, layers) for layers in (1, 3, 8)]
        rows.append(compare(python, Path(folder), large.flatten(1).numpy(), 28, 3))
    show("explicit convolutional networks", rows)


if __name__ == "__main__":
    main()
