"""The Triton program of convolutional kernels against plain torch, in Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

import notsodeep as nsd
from helpers import interpret_triton, tolerance
from notsodeep.kernels.convolution import Images, _run_fused

KERNELS = ("ck", "ntk", "ntk_frozen")
CUDA = torch.cuda.is_available()
pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(
    not CUDA and os.environ.get("TRITON_INTERPRET") != "1", reason="needs a CUDA device, or TRITON_INTERPRET=1"
)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    if not CUDA:
        interpret_triton(monkeypatch)


def fused(network, X, Y):
    """The kernels by the program, and those of plain torch in double precision."""
    from notsodeep.kernels.triton_field import field_kernel

    device = "cuda" if CUDA else "cpu"
    generator = torch.Generator().manual_seed(0)
    x, y = (0.4 * torch.randn(n, network.image[0] * network.positions, generator=generator).to(device) for n in (X, Y))
    x[1] = 0.0
    symmetric = Y == X
    left, right = Images.of(network, x) * 2 if symmetric else Images.of(network, x, y)
    found = {kernel: torch.full((X, Y), torch.nan, device=device) for kernel in KERNELS}
    assert _run_fused(field_kernel, left, right, found, network.activations[0].two_slopes, symmetric)
    exact = nsd.kernels_of(network, x.double(), None if symmetric else y.double(), kernels=KERNELS, check=False)
    return found, exact


@pytest.mark.parametrize("columns", [4, 3])
@pytest.mark.parametrize("pool", [1, 2, 3, "global"])
@pytest.mark.parametrize(("image", "sigma_a2", "sigma_c2"), [((1, 5, 4), 0.2, 0.1), ((2, 4, 5), 1.0, 0.0)])
def test_one_launch_has_the_kernels_of_plain_torch(image, sigma_a2, sigma_c2, pool, columns):
    network = nsd.ConvDEQ("leaky_relu", sigma_a2, 0.8, sigma_c2, image=image, pool=pool)
    found, exact = fused(network, 4, columns)
    off = ~torch.eye(4, columns, dtype=torch.bool) if columns == 4 else slice(None)  # the diagonal is computed apart
    for kernel in KERNELS:
        error = (found[kernel].double() - exact[kernel])[off].abs().max()
        assert error < tolerance(torch.float32) * exact[kernel].max(), kernel
