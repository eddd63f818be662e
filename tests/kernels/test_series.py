"""Kernels on the sphere: power series against exact kernels, the workshop paper's equivalent against both."""

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import differences, tolerance, ulps
from notsodeep.errors import ConvergenceError, InvalidInputError
from notsodeep.kernels import diagonal, pairwise, power_series, sphere_diagonal
from studies.sphere import sphere_equivalent

KERNELS = ("ck", "ntk", "ntk_frozen")
NETWORKS = {
    "relu": nsd.DEQ("relu", 0.2),
    "sqrt2_relu": nsd.DEQ(nsd.activation("relu").affine(gain=np.sqrt(2.0)), 0.1),
    "tanh": nsd.DEQ("tanh", 0.2),
    "softplus": nsd.DEQ("softplus", 0.24, 0.5),
    "silu_centred": nsd.DEQ("silu", 0.2).centred(1.0),
    "enn": nsd.ENN(["relu", "silu"]),
    "enn_tanh": nsd.ENN(["tanh", "tanh", "tanh"]),
}


def unit_rows(n, d, seed=0):
    X = np.random.default_rng(seed).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_power_series_sums_to_the_exact_kernel(name, kernel):
    network, norm = NETWORKS[name], 1.2
    cosine = torch.linspace(-0.7, 0.7, 15, dtype=torch.float64)
    square = torch.tensor(norm**2, dtype=torch.float64)
    exact = pairwise(network, square, square, norm**2 * cosine, kernels=(kernel,))[kernel]
    g = torch.from_numpy(power_series(network, 100, kernel, norm=norm))
    series = (g * cosine[:, None] ** torch.arange(100)).sum(1)
    # 0.7^100 = 3e-16: nothing is left of the tail
    torch.testing.assert_close(series, exact, rtol=tolerance(), atol=tolerance())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_series_is_non_negative_and_sums_to_the_diagonal(name, kernel):
    network = NETWORKS[name]
    g = power_series(network, 200, kernel)
    assert g.min() >= 0.0
    total = sphere_diagonal(network, kernel)
    smooth = "relu" not in repr(network).lower()
    # smooth activations: the series converges geometrically; ReLU: coefficients decay like k^(-5/2) or k^(-3/2)
    assert 0.0 <= total - g.sum() + tolerance() < (1e-9 if smooth else 0.1 * total)
    point = torch.ones((), dtype=torch.float64)
    assert total == pytest.approx(float(diagonal(network, point, kernels=(kernel,))[kernel]), rel=tolerance())


def test_prefix_does_not_depend_on_the_number_of_terms():
    for kernel in KERNELS:
        long = power_series(NETWORKS["relu"], 150, kernel)
        np.testing.assert_allclose(power_series(NETWORKS["relu"], 7, kernel), long[:7], rtol=ulps())
        assert power_series(NETWORKS["relu"], 1, kernel)[0] == pytest.approx(long[0], rel=ulps(), abs=0)


def test_arc_cosine_series():
    """One ReLU layer is the arc-cosine kernel (sqrt(1-r^2) + (pi - arccos r) r) / (2 pi): its Taylor series by hand."""
    g = power_series(nsd.ENN("relu"), 7)
    expected = [1 / (2 * np.pi), 1 / 4, 1 / (4 * np.pi), 0.0, 1 / (48 * np.pi), 0.0, 1 / (160 * np.pi)]
    np.testing.assert_allclose(g, expected, rtol=0, atol=ulps(4))


def test_fixed_point_with_a_strong_offset():
    """Sigmoid far from zero mean: orthogonal inputs stay correlated, the series is expanded away from zero."""
    network = nsd.DEQ("sigmoid", 3.0, 1.0)
    cosine = torch.linspace(-1.0, 1.0, 9, dtype=torch.float64)
    one = torch.ones((), dtype=torch.float64)
    g = torch.from_numpy(power_series(network, 80))
    exact = pairwise(network, one, one, cosine)["ck"]
    torch.testing.assert_close((g * cosine[:, None] ** torch.arange(80)).sum(1), exact, rtol=0, atol=tolerance())


def test_series_that_cannot_be_resolved_is_refused():
    shifted = nsd.DEQ(nsd.activation("relu").affine(shift=30.0), 0.2)
    with pytest.raises(ConvergenceError, match="fewer terms"):
        power_series(shifted, 100)
    with pytest.raises(InvalidInputError, match="terms"):
        power_series(NETWORKS["relu"], 0)
    with pytest.raises(ConvergenceError, match="diverges"):
        sphere_diagonal(nsd.DEQ("sin", 3.0, 0.1), "ntk")
    sign = nsd.Activation.from_callable(torch.sign, kinks=(0.0,), name="sign")
    with pytest.raises(InvalidInputError, match="jumps"):
        power_series(nsd.ENN([sign]), 3, kernel="ntk")
    # E[sign sign] = (2/pi) arcsin(r)
    np.testing.assert_allclose(
        power_series(nsd.ENN([sign]), 4), [0, 2 / np.pi, 0, 1 / (3 * np.pi)], rtol=0, atol=tolerance()
    )
    with pytest.raises(InvalidInputError, match="norm"):
        power_series(NETWORKS["relu"], 3, norm=-1.0)
    with pytest.raises(InvalidInputError, match="kernel"):
        power_series(NETWORKS["relu"], 3, kernel="gram")
    with pytest.raises(InvalidInputError, match="DEQ"):
        power_series("relu", 3)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", NETWORKS)
def test_sphere_equivalent_is_made_of_derivatives_at_zero(name, kernel):
    network, d = NETWORKS[name], 40
    eq = sphere_equivalent(network, unit_rows(30, d), kernel=kernel)
    one, h = torch.ones((), dtype=torch.float64), 1e-3
    points = torch.tensor([-2 * h, -h, 0.0, h, 2 * h], dtype=torch.float64)
    g = pairwise(network, one, one, points, kernels=(kernel,))[kernel].tolist()
    slope = (8 * (g[3] - g[1]) - (g[4] - g[0])) / (12 * h)
    bend = (16 * (g[3] + g[1]) - (g[4] + g[0]) - 30 * g[2]) / (12 * h * h)
    assert eq.gain == pytest.approx(slope, abs=differences(h, accuracy=4))
    assert eq.core[0, 0] == pytest.approx(g[2] + bend / (2 * d), abs=differences(h, 2, 4) / (2 * d))
    assert eq.shift == pytest.approx(sphere_diagonal(network, kernel) - g[2] - slope, abs=differences(h, accuracy=4))
    assert eq.network == network


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["sqrt2_relu", "tanh", "enn"])
def test_sphere_error_falls_with_dimension(name, kernel):
    """On isotropic unit vectors the neglected terms are O(1/sqrt(d)) or smaller: four times d halves the error."""
    errors = []
    for d in (100, 400):
        X = unit_rows(int(0.8 * d), d)
        exact = nsd.kernels_of(NETWORKS[name], X, kernels=(kernel,))[kernel]
        errors.append(nsd.equivalents.relative_spectral_error(exact, sphere_equivalent(NETWORKS[name], X, kernel)))
    assert errors[1] < 0.65 * errors[0]
    assert errors[1] < 0.03


def test_sphere_equivalent_is_an_operator():
    X = unit_rows(30, 20)
    eq = sphere_equivalent(NETWORKS["relu"], X)
    dense = eq.gain * X @ X.T + eq.core[0, 0] + eq.shift * np.eye(30)
    np.testing.assert_allclose(eq.matrix(), dense, rtol=tolerance(), atol=ulps())
    np.testing.assert_allclose(eq.solve(dense @ np.ones(30)), np.ones(30), rtol=0, atol=tolerance())


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["relu", "softplus", "silu_centred", "enn"])
def test_series_at_two_different_norms_sums_to_the_exact_kernel(name, kernel):
    """And its coefficients, as functions of the two norms, are positive semi-definite (docs/theory.md, section 13)."""
    network = NETWORKS[name]
    s, r = np.array([0.4, 1.0, 2.5]), np.array([-0.7, 0.0, 0.35, 0.6])
    g = power_series(network, 90, kernel, s[:, None], s)
    found = g @ (r[:, None] ** np.arange(90)).T
    sx, sy = (torch.from_numpy(v) for v in np.broadcast_arrays(s[:, None, None] ** 2, s[:, None] ** 2))
    exact = pairwise(network, sx, sy, torch.sqrt(sx * sy) * torch.from_numpy(r), (kernel,))[kernel]
    np.testing.assert_allclose(found, exact.numpy(), rtol=tolerance(), atol=tolerance())
    for k in range(12):
        lowest = np.linalg.eigvalsh(0.5 * (g[..., k] + g[..., k].T)).min()
        assert lowest >= -tolerance() * max(np.abs(g[..., k]).max(), 1e-3)
