"""First derivatives against differences, second ones refused, and networks that are cast to fewer digits and back."""

from __future__ import annotations

import numpy as np
import torch

import notsodeep as nsd
from fuzz.draws import a_network
from helpers import tolerance
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import kernels_of
from notsodeep.networks import KERNELS

STEP = 1e-5  # of a norm
KNOWN = 1e-5  # of the natural scale: rounding over the step, the square of the step, kinks within it
SAME = tolerance(amplified=1e4)  # kernels may be steep


def slopes(rng: np.random.Generator) -> int:
    """The derivative of a kernel along a random direction, by backward() and by torch.func; how many pairs."""
    network = a_network(rng)
    smooth = all(phi.continuous for phi in network.activations)
    kernel = str(rng.choice(KERNELS if smooth else KERNELS[:1]))
    n, p = int(rng.integers(2, 5)), int(rng.choice([2, 3, 8]))
    x, along = (torch.from_numpy(rng.standard_normal((n, p)) / p**0.5) for _ in range(2))
    weights = torch.from_numpy(rng.standard_normal((n, n)))

    def value(rows: torch.Tensor) -> torch.Tensor:
        found = kernels_of(network, rows, kernels=(kernel,), check=False)[kernel]  # type: ignore[arg-type]
        return (found * weights).sum()

    leaf = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(value(leaf), leaf)
    steep = 4.0 * (value(x + STEP * along) - value(x - STEP * along)) / (3.0 * 2.0 * STEP)
    steep = steep - (value(x + 2 * STEP * along) - value(x - 2 * STEP * along)) / (3.0 * 4.0 * STEP)
    size = float(kernels_of(network, x, kernels=(kernel,), check=False)[kernel].diagonal().abs().max())  # type: ignore[arg-type]
    off = abs(float((slope * along).sum() - steep))
    assert off <= KNOWN * n * n * (size + float(slope.norm())), (
        f"slope off by {off:.1e} of {size:.1e}: {kernel} of {network!r}"
    )
    other = torch.func.grad(value)(x)
    # the same sums in another order
    assert torch.allclose(other, slope, rtol=SAME, atol=SAME * float(slope.abs().max())), f"torch.func: {network!r}"
    try:
        torch.autograd.functional.hessian(value, x)
    except InvalidInputError:
        return n * n
    raise AssertionError(f"a second derivative without a word: {kernel} of {network!r}")


_UNITS: list[nsd.Twin] = []


def casts(rng: np.random.Generator) -> int:
    """A twin that was cast through other types is the network of its weights, no more and no less."""
    if not _UNITS:
        _UNITS.append(nsd.match_one_layer(nsd.DEQ("tanh", 0.2), "ck", (0.5, 2.0), 1e-2))
        _UNITS.append(nsd.match_one_layer(nsd.DEQ("relu", 0.2), tol=1e-2))
    twin = _UNITS[int(rng.integers(len(_UNITS)))]
    moved, fresh = (nsd.nn.ENN(twin, 3, 16, 2, seed=0, dtype=torch.float64) for _ in range(2))
    for _ in range(int(rng.integers(1, 4))):
        moved = moved.to([torch.bfloat16, torch.float16, torch.float32][int(rng.integers(3))])
    moved = moved.double()
    fresh.load_state_dict(moved.state_dict())
    x = torch.from_numpy(rng.standard_normal((5, 3)))
    assert torch.equal(moved(x), fresh(x)), f"a cast is left in {twin.network!r}"
    return len(x)
