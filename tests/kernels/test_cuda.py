"""Fused tiles on a GPU against tiles of plain torch and against the CPU."""

import dataclasses

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.kernels import device, tiles
from notsodeep.kernels._limits import LIMITS
from notsodeep.kernels.pointwise import KernelSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

NETWORKS = [
    nsd.DEQ("tanh", 0.2),
    nsd.DEQ("relu", 0.2),
    nsd.DEQ("silu", 0.1, sigma_c2=0.1),
    nsd.DEQ("elu", 0.2),
    nsd.DEQ("elu", 0.05, 4.6, 15.7),  # many entries are nearly parallel beside the bias
    nsd.DEQ("gelu", 0.05, 1.0, 1e3),
    nsd.DEQ("tanh", 0.1, 30.0, 100.0),
    nsd.DEQ("hard_swish", 0.1, 1.0, 1e4),
    nsd.ENN(["cos"]),
    nsd.ENN(["gelu", "tanh"]),
]


def points(n, p, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, p)) / np.sqrt(p)
    X[1] = X[0]
    X[3] = -1.2 * X[2]
    X[5] = X[4] + 1e-6 * X[6]
    return torch.from_numpy(X)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_fused_tiles_agree_with_plain_ones(net, dtype, monkeypatch):
    pytest.importorskip("triton")
    X, Y = points(333, 20).to("cuda", dtype), points(150, 20, 1).to("cuda", dtype)
    monkeypatch.setattr(device, "LIMITS", dataclasses.replace(LIMITS, gpu_block=(128, 200)))
    used = []
    fill = device.fill_fused
    monkeypatch.setattr(device, "fill_fused", lambda *a: used.append(fill(*a)) or used[-1])
    fused = nsd.kernels_of(net, X), nsd.kernels_of(net, X, Y)
    assert used == [True, True]
    monkeypatch.setattr(device, "fill_fused", lambda *a: False)
    plain = nsd.kernels_of(net, X), nsd.kernels_of(net, X, Y)
    exact = nsd.kernels_of(net, X.double().cpu()), nsd.kernels_of(net, X.double().cpu(), Y.double().cpu())
    room = tolerance() if dtype == torch.float64 else ulps(16, dtype)
    for a, b, c in zip(fused, plain, exact, strict=True):
        for kind, K in a.items():
            scale = float(c[kind].abs().max())
            assert float((K - b[kind]).abs().max()) < room * scale, kind
            assert float((K.cpu() - c[kind]).abs().max()) < room * scale, kind
    for K in fused[0].values():
        assert torch.equal(K, K.T)


def test_long_rows_lose_no_digits_in_single_precision():
    X = torch.from_numpy(np.random.default_rng(2).random((1500, 3072)) / 32.0).float()
    K, exact = nsd.ntk(nsd.DEQ("tanh", 0.2), X.cuda()), nsd.ntk(nsd.DEQ("tanh", 0.2), X.double())
    assert float((K.cpu() - exact).abs().max()) < ulps(16, torch.float32) * float(exact.max())


def test_single_entries_are_evaluated_where_the_rows_are(monkeypatch):
    """Near duplicates and near opposites of a kinked DEQ, at unequal norms, more than are evaluated at once."""
    rng = np.random.default_rng(3)
    X = np.eye(8)[rng.integers(0, 3, 300)] + 0.02 * rng.standard_normal((300, 8))
    X = torch.from_numpy(X * rng.choice([-1.1, 0.8, 1.0], (300, 1)))
    found = nsd.kernels_of(nsd.DEQ("elu", 0.2), X)
    monkeypatch.setattr(tiles, "LIMITS", dataclasses.replace(LIMITS, gpu_open=1 << 11, gpu_numbers=1 << 11))
    monkeypatch.setattr(KernelSpec, "pairwise", None)
    K = nsd.kernels_of(nsd.DEQ("elu", 0.2), X.cuda())
    for kind, exact in found.items():
        assert float((K[kind].cpu() - exact).abs().max()) < tolerance() * float(exact.abs().max()), kind


def test_too_many_listed_entries_are_settled_in_rounds(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.setattr(device, "LIMITS", dataclasses.replace(LIMITS, gpu_listed=4))
    X = points(60, 2).cuda()
    K = nsd.ntk(nsd.DEQ("elu", 0.2), X)
    np.testing.assert_allclose(K.cpu(), nsd.ntk(nsd.DEQ("elu", 0.2), X.cpu()), rtol=0, atol=tolerance())


@pytest.mark.parametrize("image", [(1, 8, 8), (2, 5, 12)])
@pytest.mark.parametrize("sigma_a2", [0.2, 1.0, 1.6])
@pytest.mark.parametrize("slope", [0.1, -0.4])  # a negative one is solved by plain iteration
@pytest.mark.parametrize("pool", [1, 2, "global"])
def test_convolutional_kernels_in_one_program(image, sigma_a2, slope, pool):
    pytest.importorskip("triton")
    deq = nsd.ConvDEQ(nsd.activation("leaky_relu", slope=slope), sigma_a2, 0.8, 0.1, image=image, pool=pool)
    X = torch.from_numpy(np.random.default_rng(4).standard_normal((21, image[0] * image[1] * image[2]))) / 4.0
    X[1, :20], X[2] = 0.0, 0.0
    for other in (None, X[5:14]):
        found = nsd.kernels_of(deq, X.float().cuda(), None if other is None else other.float().cuda(), check=False)
        for kind, exact in nsd.kernels_of(deq, X, other, check=False).items():
            far = torch.ones_like(exact, dtype=torch.bool)
            if other is not None:
                far[5:14].fill_diagonal_(False)  # equal rows: the angle has half the digits
            error = (found[kind].cpu() - exact).abs()[far].max()
            assert float(error) < ulps(128, torch.float32) * float(exact.max()), kind


def test_convolutional_kernels_of_more_rows_than_a_band():
    pytest.importorskip("triton")
    deq = nsd.ConvDEQ("relu", 0.2, image=(1, 4, 4))
    X = torch.from_numpy(np.random.default_rng(5).standard_normal((4200, 16))) / 4.0
    found = nsd.ntk(deq, X.float().cuda()).cpu()
    few = torch.cat([torch.arange(0, 40), torch.arange(4080, 4120), torch.arange(4180, 4200)])
    exact = nsd.ntk(deq, X[few])
    assert torch.equal(found, found.T)
    assert float((found[few][:, few] - exact).abs().max()) < ulps(128, torch.float32) * float(exact.max())


@pytest.mark.parametrize("bias", [0.0, 3.0])
@pytest.mark.parametrize("name", ["arctan", "elu", "hard_tanh"])
def test_norms_over_eight_decades(name, bias):
    X = points(400, 20, 2)
    X *= (10.0 ** torch.linspace(-4, 4, 400, dtype=torch.float64)[torch.randperm(400)] / X.norm(dim=1))[:, None]
    X[7] = X[8]
    network = nsd.DEQ(name, 0.1, 3.0, bias)
    own = {kind: torch.from_numpy(np.diagonal(K).copy()) for kind, K in nsd.kernels_of(network, X.numpy()).items()}
    for rows, columns in ((slice(None), slice(None)), (slice(0, 250), slice(200, 400))):
        Y = () if rows == columns else (X[columns],)
        exact, found = (
            nsd.kernels_of(network, X[rows], *Y),
            nsd.kernels_of(network, X[rows].cuda(), *(y.cuda() for y in Y)),
        )
        for kind, K in found.items():
            size = (own[kind][rows, None] * own[kind][columns]).sqrt()
            assert float(((K.cpu() - exact[kind]) / size).abs().max()) < tolerance(), kind
