"""Values that a call accepts in one place and once failed on in another: tensors that require gradients, huge sizes,
floats of eight bits, numbers near the ends of their range."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from sklearn.gaussian_process import GaussianProcessRegressor

import notsodeep as nsd
from helpers import tolerance
from notsodeep.equivalents import best_scalar
from notsodeep.errors import ConvergenceError, InvalidInputError
from notsodeep.gaussian import hermite_coefficients
from notsodeep.kernels import power_series

X = np.random.default_rng(0).standard_normal((12, 4))
MIX = nsd.GaussianMixture.two_class(20)


def variance(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, requires_grad=True)


# ---- variances that track gradients ------------------------------------------------------------------


@pytest.mark.parametrize(
    "call",
    [
        lambda deq: nsd.match(deq, 1.0, "ntk").coefficients.four,
        lambda deq: nsd.match_sphere(deq, "ntk", 8).network.activations[0].coefficients,
        lambda deq: nsd.match_one_layer(deq, norms=(0.8, 1.2), tol=1e-2, kinds=1).kernel_matrix(np.eye(4)).ravel(),
        lambda deq: nsd.spectral_law(deq, MIX, n=30).support[-1],
        lambda deq: [nsd.predict_learning(deq, MIX, n=30).mse],
        lambda deq: nsd.nn.DEQ(deq, 4, 8, 2, dtype=torch.float64).decide(X).outputs.ravel(),
        lambda deq: copy.deepcopy(nsd.nn.DEQ(deq, 4, 8, 2, dtype=torch.float64))(torch.from_numpy(X)).detach().ravel(),
        lambda deq: power_series(deq, 6, "ntk"),
    ],
)
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_networks_whose_variances_track_gradients_are_read(name: str, call: Callable[[Any], Any]) -> None:
    found, wanted = call(nsd.DEQ(name, variance(0.2))), call(nsd.DEQ(name, 0.2))
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance(), atol=tolerance())


def test_twins_hold_plain_variances() -> None:
    deq = nsd.DEQ("tanh", variance(0.2))
    for twin in (nsd.match(deq, 1.0), nsd.match_sphere(deq, terms=4), nsd.match_one_layer(deq, tol=1e-2, kinds=1)):
        assert nsd.Twin.from_dict(twin.to_dict()) == twin
        assert not twin.deq.tracked


@pytest.mark.parametrize("parameter", ["sigma_a2", "sigma_b2", "sigma_c2"])
def test_estimators_read_variances_that_track_gradients(parameter: str) -> None:
    for kind in (nsd.DEQFeatures, nsd.DEQRegressor, nsd.DEQGaussianProcess):
        found, wanted = (kind("tanh", **{parameter: value}).fit(X, X[:, 0]) for value in (variance(0.2), 0.2))
        use = "transform" if kind is nsd.DEQFeatures else "predict"
        np.testing.assert_array_equal(getattr(found, use)(X), getattr(wanted, use)(X))


def test_a_covariance_function_reads_variances_that_track_gradients() -> None:
    found, wanted = (nsd.DEQKernel("tanh", sigma_a2=value, sigma_c2=0.1) for value in (variance(0.2), 0.2))
    for ours, theirs in zip(found(X, eval_gradient=True), wanted(X, eval_gradient=True), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(found.theta, wanted.theta)
    GaussianProcessRegressor(found, alpha=0.1, optimizer=None).fit(X, X[:, 0])


def test_bounds_that_are_tensors_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="bounds of sigma_a2 must be pairs"):
        nsd.DEQKernel(sigma_a2_bounds=torch.eye(2, requires_grad=True))(X, eval_gradient=True)


# ---- sizes ---------------------------------------------------------------------------------------------


def test_sizes_beyond_any_memory_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="terms must be a whole number from 1 to"):
        hermite_coefficients("tanh", 1.0, 10**15)
    process = nsd.DEQGaussianProcess(optimise=False).fit(X, X[:, 0])
    with pytest.raises(InvalidInputError, match="draws at 12 rows do not fit into memory"):
        process.sample_y(X, 2**63)
    with pytest.raises(InvalidInputError, match="weights do not fit into memory"):
        nsd.finite_ntk(nsd.ENN(["relu"]), X, width=2**34)


def test_a_budget_beyond_any_memory_is_one_that_is_not_reached() -> None:
    model = nsd.nn.ENN(nsd.ENN(["tanh"]), 4, 8, 2, dtype=torch.float64)
    rows = torch.from_numpy(X)
    assert torch.equal(nsd.empirical_ntk(model, rows, memory=1e30), nsd.empirical_ntk(model, rows))


# ---- ends of the range -----------------------------------------------------------------------------------


def test_a_twin_of_inputs_of_no_size_is_not_drawn() -> None:
    with pytest.raises(InvalidInputError, match="vanishes for inputs of norm"):
        nsd.plots.TwinDisplay.from_twin(nsd.match_one_layer(nsd.DEQ("relu", 0.2)), norm=5e-324)


@pytest.mark.parametrize("name", ["relu", "tanh"])
def test_images_beyond_single_precision_are_refused(name: str) -> None:
    deq, images = nsd.ConvDEQ(name, 0.1, image=(1, 1, 3), filter=1), np.full((3, 3), 1e30, dtype=np.float32)
    with pytest.raises(ConvergenceError, match=r"overflows torch\.float32 .* give them in float64"):
        nsd.ck(deq, images)
    assert np.isfinite(nsd.ck(deq, images.astype(np.float64))).all()


def test_features_beyond_single_precision_are_refused() -> None:
    features = nsd.DEQFeatures("relu", width=8).fit((1e22 * X).astype(np.float32))
    with pytest.raises(ConvergenceError, match=r"feature map of 'relu' overflows torch\.float32"):
        features.transform((1e22 * X).astype(np.float32))


def test_the_best_scalar_of_kernels_of_any_size() -> None:
    kernel = nsd.ck(nsd.DEQ("relu", 0.2), X)
    plain = best_scalar(kernel, nsd.ck(nsd.ENN(["relu"]), X))
    for exact, approximation in ((1e200, 1.0), (1.0, 1e200), (1e-200, 1e-100)):
        found = best_scalar(exact * kernel, approximation * nsd.ck(nsd.ENN(["relu"]), X))
        # the search ends where its steps are small
        assert abs(found.scalar * approximation / exact / plain.scalar - 1.0) < tolerance(amplified=1e3)
        assert abs(found.distance - plain.distance) < tolerance()
    tiny = best_scalar(torch.full((3, 3), 1e-42), np.eye(3))  # a number of few digits
    assert abs(tiny.distance - 0.5) < tolerance()
    assert best_scalar(np.eye(3), np.zeros((3, 3))) == (0.0, 1.0)


def test_kernels_that_cannot_be_compared_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="different shapes"):
        best_scalar(np.eye(3), np.eye(2))
    with pytest.raises(InvalidInputError, match="exact kernel is zero"):
        best_scalar(np.zeros((3, 3)), np.eye(3))


@pytest.mark.parametrize("names", [["elu"], ["selu"], ["elu", "silu"], ["sin", "elu"]])
def test_short_rows_of_functions_that_bend_at_zero(names: list[str]) -> None:
    """Beyond nine deviations the smoothed function was a difference: from norms of 1e-27 on kernels were wrong."""
    network, angles = nsd.ENN(names), np.arccos([1.0, 0.99, 0.95, 0.9, -0.95])
    rows = np.stack([np.cos(angles), np.sin(angles)], 1)
    expected = nsd.ck(network, 1e-13 * rows) / 1e-26
    for size in (1e-25, 1e-30, 1e-60, 1e-91, 1e-140):
        found = nsd.ck(network, size * rows) / size / size
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance() * expected.max())


# ---- other kinds -----------------------------------------------------------------------------------------


def test_floats_of_eight_bits_are_read_and_hold_no_result() -> None:
    short = torch.eye(3).to(torch.float8_e5m2)
    assert torch.equal(nsd.activation("tanh")(short), torch.eye(3).tanh())
    with pytest.raises(InvalidInputError, match="out= must be memory for floating numbers"):
        nsd.ck(nsd.DEQ("relu", 0.1), np.eye(3), out=short)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nsd.empirical_ntk(torch.nn.Linear(4, 2), X, parameters=torch.nn.Linear(4, 2)), "parameters must be"),
        (lambda: nsd.DEQRegressor().fit(X, pandas.NA), "expected arrays of numbers"),
        (lambda: power_series(nsd.DEQ("tanh", 0.2), 4, norm="x"), "norm must be a numeric array"),
        (lambda: nsd.plots.SpectrumDisplay([]), "nothing to draw"),
        (lambda: nsd.plots.SpectrumDisplay(np.eye(2)), "eigenvalues must be a sequence"),
        (lambda: nsd.plots.SpectrumDisplay([1.0], "x"), "law must be a notsodeep.SpectralLaw"),
    ],
)
def test_what_is_none_of_what_is_asked_for_is_refused(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        call()


def test_a_twin_of_no_kernel_is_refused() -> None:
    twin = nsd.match(nsd.DEQ("relu", 0.2), 1.0)
    with pytest.raises(InvalidInputError, match="kernel must be one of"):
        nsd.Twin(twin.deq, twin.network, np.eye(2), twin.family, twin.certificate)


def test_variances_of_layers_may_be_tensors() -> None:
    given = [1.0, torch.tensor(1.0), np.array(1.0), torch.tensor([1.0, 1.0]), np.ones(2), [1.0, np.float32(1.0)]]
    networks = {repr(nsd.ConvENN(["relu"] * 2, 0.5, one, image=(1, 4, 4))) for one in given}
    assert len(networks) == 1
