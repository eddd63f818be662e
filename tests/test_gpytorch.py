"""DEQKernel in GPyTorch: its matrices, gradients in the variances, an exact process and one step of optimisation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import differences, tolerance
from notsodeep.errors import InvalidInputError, MissingExtraError

X = torch.linspace(-1.0, 1.0, 12, dtype=torch.float64)[:, None]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of GPyTorch, where it is installed
def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(nsd.gpytorch, "Base", object)
    with pytest.raises(MissingExtraError, match=r"notsodeep\[gpytorch\]"):
        nsd.gpytorch.DEQKernel("relu")


@pytest.fixture(name="gpytorch")
def _gpytorch():
    return pytest.importorskip("gpytorch")


def test_matrices_and_diagonals_are_those_of_the_network(gpytorch):
    kernel = nsd.gpytorch.DEQKernel("tanh", 0.1, 0.7, 0.2, "ntk").double()
    deq = nsd.DEQ("tanh", 0.1, 0.7, 0.2)
    with torch.no_grad():
        found, along = kernel(X, X[:5]).to_dense(), kernel(X, diag=True)
    near = tolerance(torch.float32)  # parameters start in GPyTorch's single precision
    np.testing.assert_allclose(found, nsd.ntk(deq, X, X[:5]), rtol=0, atol=near)
    np.testing.assert_allclose(along, nsd.ntk(deq, X).diagonal(), rtol=0, atol=near)
    with pytest.raises(InvalidInputError, match="limit"):
        nsd.gpytorch.DEQKernel("tanh", 0.3)


def test_unknown_kernels_are_refused_and_no_rows_have_no_entries(gpytorch):
    with pytest.raises(nsd.errors.InvalidInputError, match="kernel must be one of"):
        nsd.gpytorch.DEQKernel("relu", kernel="rbf")
    assert nsd.gpytorch.DEQKernel("relu")(torch.zeros(0, 3)).to_dense().shape == (0, 0)


def test_gradients_in_the_raw_parameters_are_differences(gpytorch):
    kernel, step = nsd.gpytorch.DEQKernel("relu").double(), 1e-5
    weights = torch.randn(12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (weights * kernel(X).to_dense()).sum().backward()
    for parameter in kernel.parameters():
        start, ends = parameter.detach().clone(), []
        for move in (step, -step):
            with torch.no_grad():
                parameter.copy_(start + move)
                ends.append(float((weights * kernel(X).to_dense()).sum()))
        parameter.data.copy_(start)
        assert parameter.grad.item() == pytest.approx((ends[0] - ends[1]) / (2 * step), abs=100 * differences(step))


def test_batches_have_variances_of_their_own(gpytorch):
    kernel = nsd.gpytorch.DEQKernel("relu", batch_shape=torch.Size([2]), ard_num_dims=3).double()
    rows = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    kernel.raw_sigma_b2.data[1] += 1.0
    found = kernel(rows).to_dense()
    assert found.shape == (2, 5, 5)
    one = nsd.DEQ("relu", *(float(v[1].detach()) for v in kernel.variances()))
    scaled = rows[1] / kernel.lengthscale[1].detach()
    np.testing.assert_allclose(found[1].detach(), nsd.ck(one, scaled), rtol=0, atol=tolerance())


def test_an_exact_process_is_fitted_and_proposes_a_point(gpytorch):
    y = torch.sin(3.0 * X[:, 0])

    class Process(gpytorch.models.ExactGP):
        num_outputs = 1

        def __init__(self, likelihood):
            super().__init__(X, y, likelihood)
            self.mean_module = gpytorch.means.ZeroMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(nsd.gpytorch.DEQKernel("relu"))

        def forward(self, x):
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    likelihood = gpytorch.likelihoods.GaussianLikelihood().double()
    likelihood.noise = 0.01
    model = Process(likelihood).double().train()
    optimiser = torch.optim.Adam(model.parameters(), lr=0.1)
    evidence, losses = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model), []
    for _ in range(15):
        optimiser.zero_grad()
        loss = -evidence(model(X), y)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.1
    posterior = model.eval()(torch.linspace(-1.0, 1.0, 41, dtype=torch.float64)[:, None])
    upper = posterior.mean + 2.0 * posterior.variance.sqrt()  # one step of Bayesian optimisation
    assert abs(float(torch.linspace(-1.0, 1.0, 41)[upper.argmax()]) - np.pi / 6) < 0.3
