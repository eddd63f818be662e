"""Orthogonal weights: what they are, that each neuron stays Gaussian, and that kernels fluctuate less."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import InvalidInputError

RELU = nsd.ENN(["relu"])


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(1, 40), st.integers(0, 1000))
def test_rows_are_orthogonal_in_blocks(p: int, m: int, seed: int) -> None:
    model = nsd.nn.ENN(nsd.ENN(["relu", "tanh"]), p, m, 2, seed, init="orthogonal", dtype=torch.float64)
    for weight, columns in zip(model.weights, (p, m), strict=True):
        assert weight.shape == (m, columns)
        for block in weight.detach().split(min(m, columns)):
            gram = block @ block.T
            torch.testing.assert_close(gram, torch.diag(gram.diagonal()), rtol=0.0, atol=tolerance())


def test_seed_type_and_readout() -> None:
    once, again, other = (nsd.nn.ENN(RELU, 5, 12, 2, seed, init="orthogonal") for seed in (3, 3, 4))
    assert once.weights[0].dtype is torch.float32
    assert once.weights[0].is_contiguous()
    assert torch.equal(once.weights[0], again.weights[0])
    assert not torch.equal(once.weights[0], other.weights[0])
    assert once.weights[0].requires_grad
    # the readout is drawn after the hidden weights, not from the same numbers
    stream = torch.randn(200, generator=torch.Generator().manual_seed(3))
    assert not set(once.readout.detach().flatten().tolist()) & set(stream[:75].tolist())
    low = nsd.nn.ENN(RELU, 5, 12, 2, 3, init="orthogonal", dtype=torch.bfloat16)
    torch.testing.assert_close(low.weights[0].float(), once.weights[0], rtol=ulps(1, torch.bfloat16), atol=0.0)


@pytest.mark.parametrize("p", [1, 2, 9])
def test_every_row_is_a_gaussian_vector(p: int) -> None:
    """In any dimension: entries and squared lengths against their exact laws."""
    drawn = [nsd.nn.ENN(RELU, p, 3 * p, 1, seed, init="orthogonal").weights[0].detach() for seed in range(400)]
    rows = torch.stack(drawn)[:, 0].double().numpy()  # one row per network: independent
    # one seed in a thousand would be refused
    assert scipy.stats.kstest(rows[:, -1], "norm").pvalue > 1e-3
    # as above: one seed in a thousand would be refused
    assert scipy.stats.kstest((rows**2).sum(1), scipy.stats.chi2(p).cdf).pvalue > 1e-3


@pytest.mark.parametrize("depth", [1, 2])
def test_same_kernel_with_smaller_fluctuations(depth: int) -> None:
    network = nsd.ENN(["tanh"]) if depth == 1 else nsd.match(nsd.DEQ("relu", 0.2), 1.0).network
    X = torch.from_numpy(np.random.default_rng(0).standard_normal((60, 40)) / 40**0.5)
    exact = nsd.ck(network, X)
    errors = {}
    for init in ("gaussian", "orthogonal"):
        draws = [nsd.nn.ENN(network, 40, 160, 1, seed, init=init, dtype=torch.float64) for seed in range(60)]
        kernels = torch.stack([f @ f.T for f in (model.features(X).detach() for model in draws)])
        errors[init] = float((kernels - exact).norm(dim=(1, 2)).mean())
        if depth == 1:  # unbiased: deviations of the mean are those of a standard normal, E|z| = 0.8
            spread = kernels.std(0) / len(draws) ** 0.5
            assert float(((kernels.mean(0) - exact).abs() / spread).mean()) < 1.1
    assert errors["orthogonal"] < 0.75 * errors["gaussian"]


def test_files_keep_it(tmp_path) -> None:
    X = torch.randn(100, 20, generator=torch.Generator().manual_seed(0)) / 20**0.5
    model = nsd.nn.ENN(nsd.match(nsd.DEQ("tanh", 0.2), 1.0), 20, 24, 3, init="orthogonal")
    gram = model.weights[0].detach()[:20] @ model.weights[0].detach()[:20].T
    torch.testing.assert_close(
        gram, torch.diag(gram.diagonal()), rtol=0.0, atol=ulps(8, torch.float32) * float(gram.max())
    )
    nsd.nn.save(model, tmp_path / "twin.safetensors")
    loaded = nsd.nn.load(tmp_path / "twin.safetensors")
    assert torch.equal(loaded(X), model(X))


def test_unknown_init_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="one of 'gaussian', 'orthogonal'"):
        nsd.nn.ENN(RELU, 3, 4, 2, init="xavier")
