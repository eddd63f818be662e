"""A bias inside the equilibrium, z = phi(sigma_a A z + sigma_b B x + sigma_c c), against finite width."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import sampled, solved, tolerance, ulps
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import pairwise, power_series
from notsodeep.kernels.pointwise import KernelSpec

X = np.random.default_rng(0).standard_normal((5, 6)) / 6**0.5
BIASED = [nsd.DEQ("relu", 0.2, 0.6, 0.5), nsd.DEQ("silu", 0.15, 0.7, 0.3), nsd.DEQ("tanh", 0.2, 0.5, 0.4)]


def test_it_is_part_of_the_specification():
    deq = nsd.DEQ("relu", 0.2, 0.6, 0.5)
    assert repr(deq) == "DEQ(ReLU(), sigma_a2=0.2, sigma_b2=0.6, sigma_c2=0.5)"
    assert deq.variances == (0.2, 0.6, 0.5)
    assert deq != nsd.DEQ("relu", 0.2, 0.6)
    assert nsd.DEQ.from_dict(deq.to_dict()) == pickle.loads(pickle.dumps(deq)) == deq
    assert deq.centred(1.0).sigma_c2 == 0.5
    assert not deq.homogeneous
    assert nsd.DEQ("relu", 0.2).to_dict()["sigma_c2"] == 0.0
    with pytest.raises(InvalidInputError, match="sigma_c2"):
        nsd.DEQ("relu", 0.2, 0.6, -0.1)


def test_the_variance_equation_holds():
    deq, tau0 = nsd.DEQ("silu", 0.2, 0.5, 0.3), 1.3
    tau = deq.centred_scale(tau0)
    assert tau**2 == pytest.approx(
        0.2 * nsd.gaussian.moments("silu", tau).variance + 0.5 * tau0**2 + 0.3, rel=ulps(), abs=0
    )


def test_the_kernels_of_a_linear_network_are_known():
    # z = sigma_a A z + u: G = Lambda = (s2b S + s2c) / (1 - s2a), gap = 1 - s2a
    K, S = nsd.kernels_of(nsd.DEQ("linear", 0.2, 0.6, 0.5), X), X @ X.T
    G = (0.6 * S + 0.5) / 0.8
    np.testing.assert_allclose(K["ck"], G, rtol=tolerance())
    np.testing.assert_allclose(K["ntk_frozen"], G / 0.8, rtol=tolerance())
    np.testing.assert_allclose(K["ntk"], G + G / 0.8, rtol=tolerance())


@pytest.mark.parametrize("deq", BIASED, ids=repr)
def test_finite_width_tends_to_the_exact_kernels(deq):
    exact = nsd.kernels_of(deq, X)
    width, options = 200, {"draws": 20, "seed": 3}
    found = {
        "ck": sampled(nsd.finite_ck, deq, X, width=width, **options),
        "ntk": sampled(nsd.finite_ntk, deq, X, width=width, **options),
        "ntk_frozen": sampled(nsd.finite_ntk, deq, X, width=width, kernel="ntk_frozen", **options),
    }
    for kernel, (mean, error) in found.items():
        # five standard errors, and the O(1/width) bias of the mean
        assert (np.abs(mean - exact[kernel]) < 5 * error + 10 / width * np.abs(exact[kernel]).max()).all(), kernel
        without = nsd.kernels_of(nsd.DEQ(deq.activation, *deq.variances[:2]), X)[kernel]
        assert (np.abs(mean - without) / error).max() > 10  # and the bias is seen


@pytest.mark.parametrize("deq", BIASED, ids=repr)
def test_tables_agree_with_the_entries_at_all_norms(deq):
    rows = np.random.default_rng(1).standard_normal((60, 12)) / 12**0.5
    rows[7], rows[8] = 0.0, 3.0 * rows[9]
    s, S = torch.from_numpy((rows**2).sum(1)), torch.from_numpy(rows @ rows.T)
    reference = pairwise(deq, s[:, None], s[None, :], S, ("ck", "ntk", "ntk_frozen"))
    off = ~np.eye(60, dtype=bool)
    for kernel, K in nsd.kernels_of(deq, rows).items():
        np.testing.assert_array_equal(K, K.T)
        np.testing.assert_allclose(K[off], reference[kernel].numpy()[off], rtol=0, atol=tolerance())


def test_kinks_off_zero_are_seen_at_small_angles_beside_a_large_bias(monkeypatch):
    """Norms are nearly equal there, so that series reach far: no entry costs a quadrature of its own."""
    deq, X = nsd.DEQ("hard_swish", 0.1, 1.0, 1e4), np.random.default_rng(1).standard_normal((60, 3)) / 3**0.5
    exact = nsd.kernels_of(deq, X[:20])
    monkeypatch.setattr(KernelSpec, "pairwise", None)
    for kind, K in nsd.kernels_of(deq, X).items():
        assert abs(K[:20, :20] - exact[kind]).max() < tolerance() * exact[kind].max(), kind


@pytest.mark.parametrize("phi", ["relu", "silu"])
def test_gradients_reach_the_variance_of_the_bias(phi):
    c = torch.tensor(0.4, dtype=torch.float64, requires_grad=True)
    points = torch.from_numpy(X[:3])
    for kernel in ("ck", "ntk", "ntk_frozen"):
        assert torch.autograd.gradcheck(
            lambda c, kernel=kernel: nsd.kernels_of(nsd.DEQ(phi, 0.15, 0.6, c), points, kernels=(kernel,))[kernel],
            (c,),
            atol=1e-7,  # 1e-13 of the kernel over gradcheck's step of 1e-6
            rtol=1e-6,  # with room for its curvature
        )


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
def test_series_and_the_sphere_know_it(kernel):
    deq, r = BIASED[1], np.array([-0.5, 0.0, 0.6])
    g = power_series(deq, 90, kernel, 0.7, 1.4)
    sx, sy = torch.tensor(0.49, dtype=torch.float64), torch.tensor(1.96, dtype=torch.float64)
    exact = pairwise(deq, sx, sy, 0.98 * torch.from_numpy(r), (kernel,))[kernel]
    np.testing.assert_allclose(g @ r ** np.arange(90)[:, None], exact.numpy(), rtol=tolerance())
    rows = X / np.linalg.norm(X, axis=1, keepdims=True)
    twin = nsd.match_sphere(deq, kernel)
    np.testing.assert_allclose(
        twin.kernel_matrix(rows), nsd.kernels_of(deq, rows)[kernel], rtol=0, atol=twin.bound + tolerance()
    )


@pytest.mark.parametrize(("phi", "kernel"), [("tanh", "ck"), ("silu", "ntk"), ("silu", "ntk_frozen"), ("relu", "ck")])
def test_one_layer_knows_it(phi, kernel):
    deq, tol = nsd.DEQ(phi, 0.2, 0.6, 0.5), 1e-3
    twin = nsd.match_one_layer(deq, kernel, norms=(0.5, 1.5), tol=tol)
    rows = np.random.default_rng(0).normal(size=(40, 4))
    rows *= (np.linspace(0.5, 1.5, 40) / np.linalg.norm(rows, axis=1))[:, None]
    rows[1] = -1.5 * rows[0]
    exact = nsd.kernels_of(deq, rows, kernels=(kernel,))[kernel]
    size = np.sqrt(exact.diagonal())
    assert np.abs((twin.kernel_matrix(rows) - exact) / np.outer(size, size)).max() <= twin.bound <= tol


def test_the_module_has_it_and_freezes_it_with_the_input():
    deq = nsd.DEQ("tanh", 0.2, 0.5, 0.4)
    options = {"dtype": torch.float64, "solver": nsd.nn.SolverOptions(tol=1e-12)}
    model = nsd.nn.DEQ(deq, in_features=6, width=50, out_features=2, **options)
    x = torch.from_numpy(X)
    z = model.features(x) * 50**0.5
    inner = (0.2 / 50) ** 0.5 * z @ model.recurrent.T + 0.5**0.5 * x @ model.input.T + 0.4**0.5 * model.offset
    torch.testing.assert_close(z, torch.tanh(inner), rtol=0, atol=solved(1e-12))
    (slope,) = torch.autograd.grad(model(x).sum(), model.offset)
    assert float(slope.abs().max()) > 0.1
    model.set_kernel("ntk_frozen")
    assert [name for name, p in model.named_parameters() if p.requires_grad] == ["recurrent", "readout"]
    assert nsd.nn.DEQ(nsd.DEQ("tanh", 0.2), in_features=6, width=50, out_features=2).offset is None


@pytest.mark.parametrize(
    "call",
    [
        lambda deq: nsd.coefficients(deq),
        lambda deq: nsd.match(deq, 1.0),
    ],
)
def test_what_the_theory_does_not_cover_is_refused(call):
    with pytest.raises(InvalidInputError, match="without a bias"):
        call(nsd.DEQ("relu", 0.2, 0.6, 0.5))
