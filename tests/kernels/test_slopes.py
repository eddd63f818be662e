"""Slopes from tables against automatic differentiation entry by entry, and both against differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import differences, tolerance
from notsodeep.kernels import diagonal, pairwise

KINDS = ("ck", "ntk", "ntk_frozen")
NETWORKS = [
    nsd.DEQ("tanh", 0.2),
    nsd.DEQ("relu", 0.2),
    nsd.DEQ("silu", 0.1, sigma_c2=0.1),
    nsd.DEQ("relu", 0.2, sigma_c2=0.2),
    nsd.ENN(["gelu", "tanh"]),
    nsd.ENN(["relu", "leaky_relu"]),
]
DIFFERENTIATED = tolerance(amplified=500.0)  # a series of 30 terms, near its end, and the rounding of cosines


def rows(unit: bool = False) -> np.ndarray[Any, Any]:
    """Rows with duplicates, multiples, opposite and near points among the first."""
    X = np.random.default_rng(0).standard_normal((40, 5)) / np.sqrt(5.0)
    X = X / np.linalg.norm(X, axis=1)[:, None] if unit else X
    X[1], X[3], X[5] = X[0], X[2] * (1.0 if unit else 1.5), -X[4]
    X[7] = X[6] + 1e-3 * X[8]
    return X


def gradient(network: Any, kind: str, x: torch.Tensor, Y: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    leaf = x.clone().requires_grad_()
    (kernel,) = nsd.kernels_of(network, leaf, Y, kernels=(kind,)).values()
    (found,) = torch.autograd.grad((kernel @ a).sum(), leaf)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS, ids=repr)
def test_gradients_of_a_sum_of_kernels(network, kind):
    for unit in (False, True):
        X, a = rows(unit), np.random.default_rng(1).standard_normal(40)
        slopes = nsd.kernel_function(network, kind).slopes(X)
        found = (slopes.inner * a) @ X + 2.0 * (slopes.square @ a)[:, None] * X
        exact = gradient(network, kind, *map(torch.tensor, (X[:9], X, a))).numpy()
        np.testing.assert_allclose(found[:9], exact, rtol=0, atol=DIFFERENTIATED * np.abs(exact).max())
        (kernel,) = nsd.kernels_of(network, X, kernels=(kind,)).values()
        np.testing.assert_allclose(slopes.value, kernel, rtol=0, atol=tolerance() * kernel.max())


@pytest.mark.parametrize("network", [NETWORKS[1], nsd.DEQ("hard_tanh", 0.2)], ids=repr)
def test_values_of_multiples_and_of_nearly_equal_rows_are_those_of_the_matrix(network):
    X, Z = np.random.default_rng(3).standard_normal((2, 12, 7))
    for factor in (1.5, 3.0, 0.7):
        multiples = factor * X
        Y = np.concatenate([X, multiples, X + np.geomspace(1e-9, 1e-4, 12)[:, None] * Z])
        K = nsd.ntk(network, Y)
        np.testing.assert_allclose(
            nsd.kernel_function(network, "ntk").slopes(Y).value, K, rtol=0, atol=tolerance() * K.max()
        )
        if network.homogeneous:  # k(x, c x) = c k(x, x)
            own = np.diagonal(K)[:12]
            np.testing.assert_allclose(np.diagonal(K[:12, 12:24]), factor * own, rtol=tolerance())


@pytest.mark.parametrize("network", [NETWORKS[0], NETWORKS[3]], ids=repr)
def test_both_slopes_are_differences(network):
    X = rows()[8:28]
    x, step = torch.tensor(X), 1e-5
    s, dot = (x * x).sum(1)[:, None], x @ x.T
    slopes = nsd.kernel_function(network, "ntk").slopes(X)

    def moved(ds: float, dc: float) -> torch.Tensor:
        return pairwise(network, s + ds, s.T, dot + dc, ("ntk",))["ntk"]

    apart = ~np.eye(len(X), dtype=bool)
    for found, up, down in (
        (slopes.inner, moved(0.0, step), moved(0.0, -step)),
        (slopes.square, moved(step, 0.0), moved(-step, 0.0)),
    ):
        expected = ((up - down) / (2.0 * step)).numpy()
        np.testing.assert_allclose(found[apart], expected[apart], rtol=0, atol=100.0 * differences(step))


@pytest.mark.parametrize("network", [*NETWORKS, nsd.DEQ("elu", 0.1)], ids=repr)
def test_equal_rows_follow_the_diagonal(network):
    """Also where the derivative in the inner product is infinite: tangent kernels of kinked activations."""
    X, step = rows()[:6], 1e-5
    s = torch.tensor((X**2).sum(1))
    for kind in KINDS:
        slopes = nsd.kernel_function(network, kind).slopes(X[[0, 2, 4]], X[[1, 2, 4]])
        up, down = (diagonal(network, s[[0, 2, 4]] + move, (kind,))[kind] for move in (step, -step))
        found = (slopes.inner + 2.0 * slopes.square).diagonal()
        np.testing.assert_allclose(found, (up - down) / (2.0 * step), rtol=0, atol=10.0 * differences(step))


def test_single_precision_tensors_and_no_rows():
    function, X = nsd.kernel_function(NETWORKS[2], "ntk"), rows()
    low, high = function.slopes(torch.tensor(X, dtype=torch.float32)), function.slopes(X)
    for one, other in zip(low, high, strict=True):
        assert one.dtype == torch.float32
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance(torch.float32) * np.abs(other).max())
    assert function.slopes(X[:0], X).inner.shape == (0, 40)
    assert [part.shape for part in function.slopes(X[:3], X)] == [(3, 40)] * 3
    zero = function.slopes(np.zeros((1, 5)), X)
    assert np.isfinite(np.stack(zero)).all()
    np.testing.assert_array_equal(nsd.kernel_function(NETWORKS[1], "ck").slopes(0.0 * X, X).square, 0.0)
