"""A readout that is one more pre-activation: the kernels of the preprint and of the workshop paper."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import sampled, tolerance
from notsodeep.errors import InvalidInputError

KERNELS = ("ck", "ntk", "ntk_frozen")
SETTINGS = [("relu", 0.2), ("tanh", 0.2), ("silu", 0.15), ("elu", 0.2)]


def both(phi, sigma_a2, sigma_c2=0.0):
    return [nsd.DEQ(phi, sigma_a2, 0.7, sigma_c2, readout=readout) for readout in ("activation", "pre-activation")]


def rows(n=60, p=20, seed=0):
    return np.random.default_rng(seed).standard_normal((n, p)) / math.sqrt(p)


@pytest.mark.parametrize(("phi", "sigma_a2"), SETTINGS)
@pytest.mark.parametrize("sigma_c2", [0.0, 0.1])
@pytest.mark.parametrize("n", [8, 60])  # entry by entry, and from a table
def test_every_kernel_is_sigma_a2_times_the_other_plus_the_drive(phi, sigma_a2, sigma_c2, n):
    X, (inner, outer) = rows(n), both(phi, sigma_a2, sigma_c2)
    found, other = (nsd.kernels_of(deq, X, kernels=KERNELS) for deq in (outer, inner))
    for kernel in KERNELS:
        expected = sigma_a2 * other[kernel] + 0.7 * X @ X.T + sigma_c2
        np.testing.assert_allclose(found[kernel], expected, rtol=0, atol=tolerance())


def test_the_tangent_kernel_is_that_of_the_papers():
    """K* = Lambda / (1 - sigma_a2 E[phi' phi']) with Lambda = G* = sigma_a2 E[phi phi] + sigma_b2 x . y."""
    X, (inner, outer) = rows(6), both("relu", 0.2)
    value, tangent = nsd.ck(inner, X), nsd.ntk(inner, X)
    covariance = nsd.ck(outer, X)
    # ntk = G + Lambda slope / gap and gap = 1 - sigma_a2 slope
    quotient = (tangent - value) / covariance
    slope = quotient / (1.0 + 0.2 * quotient)
    np.testing.assert_allclose(nsd.ntk(outer, X), covariance / (1.0 - 0.2 * slope), rtol=tolerance())


@pytest.mark.parametrize("kernel", KERNELS)
def test_networks_of_finite_width(kernel):
    X, (_, outer) = rows(5), both("tanh", 0.2, 0.1)
    options = {} if kernel == "ck" else {"kernel": kernel}
    sample = nsd.finite_ck if kernel == "ck" else nsd.finite_ntk
    mean, error = sampled(sample, outer, X, width=200, draws=20, seed=1, **options)
    exact = nsd.kernels_of(outer, X, kernels=(kernel,))[kernel]
    assert (np.abs(mean - exact) < 5 * error + 5.0 / 200 * np.abs(exact).max()).all()


class SharedReadout(torch.nn.Module):
    """A random vector times the pre-activation of a ReLU DEQ, computed with the weights of the DEQ itself."""

    def __init__(self, inputs: int, width: int, sigma_a2: float, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        shapes = {"A": (width, width), "B": (inputs, width), "a": (width,)}
        draws = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        self.weights = torch.nn.ParameterDict(draws)
        self.sigma_a2 = sigma_a2

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        root, drive = math.sqrt(self.weights["a"].numel()), math.sqrt(0.7) * x @ self.weights["B"]
        h = drive
        for _ in range(15):
            h = math.sqrt(self.sigma_a2) * torch.relu(h) / root @ self.weights["A"] + drive
        return (h @ self.weights["a"] / root)[:, None]


def test_a_readout_that_shares_the_weights_adds_the_covariance_once_more():
    """Its tangent kernel is Lambda + K*, since hidden weights contribute Lambda / (1 - sigma_a2 E[phi' phi'])."""
    X, (_, outer) = rows(3), both("relu", 0.1)
    draws = np.stack([nsd.empirical_ntk(SharedReadout(X.shape[1], 100, 0.1, seed), X) for seed in range(12)])
    error = draws.std(0, ddof=1) / math.sqrt(len(draws))
    exact, own = nsd.ck(outer, X) + nsd.ntk(outer, X), nsd.ntk(outer, X)
    assert (np.abs(draws.mean(0) - exact) < 5 * error + 5.0 / 100 * exact.max()).all()
    assert np.abs(draws.mean(0) - own).max() > 0.8 * own.max()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("phi", "sigma_a2"), SETTINGS[:3])
def test_coefficients(kernel, phi, sigma_a2):
    """docs/theory.md, section 4: sigma_a2 times the coefficients of the activation, plus those of the drive."""
    inner, outer = (nsd.coefficients(deq, 1.0, kernel=kernel) for deq in both(phi, sigma_a2))
    expected = (sigma_a2 * inner.c1 + 0.7, sigma_a2 * inner.c2, sigma_a2 * inner.c3, sigma_a2 * inner.diagonal + 0.7)
    assert (outer.c1, outer.c2, outer.c3, outer.diagonal) == pytest.approx(expected, rel=tolerance())


def test_the_papers_ratio():
    """beta_2 / beta_3 of the preprint's K* for ReLU is near that of one explicit layer, 1/6."""
    found = nsd.coefficients(nsd.DEQ("relu", 0.2, readout="pre-activation"), 1.0, kernel="ntk")
    assert found.c2 / found.c3 == pytest.approx(0.173, abs=5e-4)  # printed with three digits
    assert found.tau_star**2 / (1.0 - 0.2 * 0.5) == pytest.approx(found.diagonal, rel=tolerance())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("phi", "sigma_a2"), SETTINGS[:3])
def test_twins(kernel, phi, sigma_a2):
    X, (_, outer) = rows(20), both(phi, sigma_a2)
    exact = nsd.kernels_of(outer, X, kernels=(kernel,))[kernel]
    twin = nsd.match_one_layer(outer, kernel=kernel, norms=(0.4, 2.0))
    scale = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    assert (np.abs(twin.kernel_matrix(X) - exact) / scale).max() <= twin.bound
    assert nsd.match(outer, 1.0, kernel=kernel).residual < 1e-9  # what every match promises
    assert type(twin).from_dict(twin.to_dict()) == twin


def test_gradients_in_the_variances():
    sigma_a2 = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)
    X = torch.from_numpy(rows(4))
    value = nsd.ntk(nsd.DEQ("tanh", sigma_a2, 0.8, readout="pre-activation"), X).sum()
    (slope,) = torch.autograd.grad(value, sigma_a2)
    step = 1e-5
    ends = [float(nsd.ntk(nsd.DEQ("tanh", 0.2 + d, 0.8, readout="pre-activation"), X).sum()) for d in (step, -step)]
    assert float(slope) == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-7)  # a central difference


def test_the_word_is_part_of_the_value():
    inner, outer = both("relu", 0.2)
    assert inner != outer == nsd.DEQ.from_dict(outer.to_dict()) == pickle.loads(pickle.dumps(outer))
    assert repr(outer) == "DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.7, readout='pre-activation')"
    assert outer.centred(1.0).readout == "pre-activation"
    for wrong in ("hidden", None, np.array([1, None], dtype=object)):
        with pytest.raises(InvalidInputError, match="readout must be one of"):
            nsd.DEQ("relu", 0.2, readout=wrong)
