"""Exact kernels against independent quadrature, closed forms of the literature, and each other."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Hermite
from notsodeep.errors import ContractionError, ConvergenceError, InvalidInputError
from notsodeep.kernels import pairwise, tiles
from notsodeep.kernels.expectations import Layer

KINDS = ("ck", "ntk", "ntk_frozen")
BUILT_IN = [
    nsd.activation("linear"),
    nsd.activation("relu"),
    nsd.activation("leaky_relu", slope=0.2),
    nsd.activation("tanh"),
    nsd.activation("hard_tanh", a=0.9, c=0.7),
    nsd.activation("arctan"),
    nsd.activation("erf"),
    nsd.activation("sigmoid"),
    nsd.activation("silu"),
    nsd.activation("gelu"),
    nsd.activation("elu"),
    nsd.activation("selu"),
    nsd.activation("softplus"),
    nsd.activation("mish"),
    nsd.activation("hard_swish"),
    nsd.activation("sin"),
    nsd.activation("cos"),
    nsd.activation("hard_tanh", a=0.9, c=0.5).affine(skip=0.1, shift=0.2),
    nsd.activation("relu").affine(shift=-0.4),
    nsd.activation("tanh").affine(gain=0.7, scale=1.3, skip=0.2),
]
POLYNOMIAL = [
    nsd.activation("quadratic", a=0.1, b=0.5, c=-0.1),
    nsd.activation("hermite", coefficients=(0.1, 0.6, 0.2, 0.1)),
]
CUSTOM = nsd.Activation.from_callable(
    lambda x: torch.where(x > 0.5, 0.5 + 0.5 * torch.tanh(x - 0.5), x), kinks=(0.5,), name="bent"
)


def label(phi) -> str:
    return type(phi).__name__


# ---- the oracle: plane quadrature in NumPy that shares nothing with the library ----------------------------


def _panels(edges: np.ndarray, order: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights between the edges in the last axis, under the normal density."""
    x, w = np.polynomial.legendre.leggauss(order)
    edges = np.sort(np.clip(edges, -9.5, 9.5), axis=-1)
    half, mid = np.diff(edges) / 2, (edges[..., 1:] + edges[..., :-1]) / 2
    shape = (*edges.shape[:-1], -1)
    nodes, weights = (mid[..., None] + half[..., None] * x).reshape(shape), (half[..., None] * w).reshape(shape)
    return nodes, weights * np.exp(-(nodes**2) / 2) / math.sqrt(2 * math.pi)


def plane_expectation(f, kinks, qx: float, qy: float, lam: float) -> float:
    """E[f(u) f(v)]: panels in u, then in v given u, both split at the kinks; those of v blur over its spread."""
    sx, sy = math.sqrt(qx), math.sqrt(qy)
    rho = max(-1.0, min(1.0, lam / (sx * sy)))
    spread = math.sqrt((1 - rho) * (1 + rho))
    step = min(1.0, 1.5 / max(sx, sy))
    base = np.arange(-9.5, 9.5 + step, step)
    outer = [base] + [np.array([c / sx]) for c in kinks]
    if abs(rho) > 1e-2:  # beyond, the kinks of v lie where u has no mass
        ripple = np.array([-9, -6, -4, -2.5, -1, 0, 1, 2.5, 4, 6, 9])
        outer += [(c / sy + spread * ripple) / rho for c in kinks]
    x, wx = _panels(np.concatenate(outer))
    if spread < 1e-12:  # v is a multiple of u
        return float(np.sum(wx * f(sx * x) * f(sy * rho * x)))
    total = 0.0
    for xs, ws in zip(np.array_split(x, 8), np.array_split(wx, 8), strict=True):
        cuts = [np.tile(base, (len(xs), 1))] + [((c / sy - rho * xs) / spread)[:, None] for c in kinks]
        y, wy = _panels(np.concatenate(cuts, axis=1), 14)
        total += float(np.sum(ws * f(sx * xs) * np.sum(wy * f(sy * (rho * xs[:, None] + spread * y)), axis=1)))
    return total


PAIRS = [(1.0, 1.0, 0.3), (0.6, 1.7, -0.93), (1.2, 1.1, 0.9995), (9.0, 4.0, 0.6)]


@pytest.mark.parametrize("phi", [*BUILT_IN, *POLYNOMIAL, CUSTOM], ids=label)
def test_both_expectations_agree_with_plane_quadrature(phi):
    for qx, qy, rho in PAIRS:
        lam = rho * math.sqrt(qx * qy)
        layer = Layer(phi, torch.tensor([qx], dtype=torch.float64), torch.tensor([qy], dtype=torch.float64))
        value, slope = layer.both(torch.tensor([lam], dtype=torch.float64))
        scale = math.sqrt(
            nsd.gaussian.moments(phi, math.sqrt(qx)).square * nsd.gaussian.moments(phi, math.sqrt(qy)).square
        )
        steep = math.sqrt(
            nsd.gaussian.moments(phi, math.sqrt(qx)).slope_square
            * nsd.gaussian.moments(phi, math.sqrt(qy)).slope_square
        )
        assert abs(float(value) - plane_expectation(phi, phi.kinks, qx, qy, lam)) < tolerance() * scale
        assert abs(float(slope) - plane_expectation(phi.derivative, phi.kinks, qx, qy, lam)) < tolerance() * steep


def hard_points() -> np.ndarray:
    """Correlated, duplicate, nearly duplicate, opposite, zero, small and large points."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 6)) * 0.5
    near = x[0] + 1e-5 * rng.standard_normal(6)
    return np.stack([x[0], x[0], near, -x[0], 0.9 * x[0] + 0.1 * x[1], 0 * x[0], 1e-3 * x[2], 4.0 * x[3]])


@pytest.mark.parametrize("phi", [*BUILT_IN, CUSTOM], ids=label)
def test_the_fixed_point_equation_holds_on_the_whole_domain(phi):
    deq = nsd.DEQ(phi, sigma_a2=0.8 * min(0.25 / phi.lipschitz**2, 0.3), sigma_b2=0.9)
    X = hard_points()
    G, S = nsd.ck(deq, X), X @ X.T
    lam = deq.sigma_a2 * G + deq.sigma_b2 * S
    q = np.diagonal(lam)
    for i, j in [
        (0, 2),
        (0, 3),
        (4, 7),
        (6, 7),
        (7, 7),
    ]:  # duplicates (0, 1) have the diagonal's value, tested elsewhere
        expected = plane_expectation(phi, phi.kinks, q[i], q[j], lam[i, j])
        assert abs(G[i, j] - expected) <= tolerance() * math.sqrt(G[i, i] * G[j, j])


@pytest.mark.parametrize("phi", [*BUILT_IN, *POLYNOMIAL, CUSTOM], ids=label)
def test_kernels_are_symmetric_to_the_bit_and_positive(phi):
    X = np.concatenate([hard_points(), np.random.default_rng(0).standard_normal((6, 6)) * 0.4])
    nets = [nsd.ENN([phi, "tanh"])]
    if math.isfinite(phi.lipschitz):
        nets.append(nsd.DEQ(phi, 0.5 * min(nsd.DEQ(phi, 0.0).limit, 0.5)))
    for net in nets:
        for kind, K in nsd.kernels_of(net, X).items():
            assert np.array_equal(K, K.T), kind
            eigenvalues = np.linalg.eigvalsh(K)
            assert eigenvalues[0] > -ulps(512) * eigenvalues[-1], kind


# ---- known values ------------------------------------------------------------------------------------------


def unit_pair(rho: float) -> np.ndarray:
    return np.array([[1.0, 0.0], [rho, math.sqrt(1 - rho**2)]])


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.37, 0.99])
def test_relu_network_has_the_arc_cosine_kernels(rho):
    angle = math.acos(rho)
    first = (math.sin(angle) + (math.pi - angle) * rho) / (2 * math.pi)
    zeroth = (math.pi - angle) / (2 * math.pi)
    K = nsd.kernels_of(nsd.ENN(["relu"]), unit_pair(rho))
    assert K["ck"][0, 1] == pytest.approx(first, abs=ulps(4))
    assert K["ntk"][0, 1] == pytest.approx(first + rho * zeroth, abs=ulps(4))
    assert K["ntk_frozen"][0, 1] == pytest.approx(first, abs=ulps(4))


@pytest.mark.parametrize("rho", [-0.9, 0.0, 0.37, 0.99])
def test_erf_network_has_the_arcsine_kernel(rho):
    expected = 2 / math.pi * math.asin(2 * rho / 3)
    assert nsd.ck(nsd.ENN(["erf"]), unit_pair(rho))[0, 1] == pytest.approx(expected, abs=ulps(4))


def test_linear_deq_in_closed_form():
    X = np.random.default_rng(1).standard_normal((5, 3))
    S = X @ X.T
    deq = nsd.DEQ("linear", sigma_a2=0.2, sigma_b2=0.6)
    G = 0.6 / 0.8 * S
    lam = 0.2 * G + 0.6 * S
    K = nsd.kernels_of(deq, X)
    np.testing.assert_allclose(K["ck"], G, rtol=0, atol=ulps())
    np.testing.assert_allclose(K["ntk_frozen"], G / 0.8, rtol=0, atol=ulps())
    np.testing.assert_allclose(K["ntk"], G + lam / 0.8, rtol=0, atol=ulps())


@pytest.mark.parametrize("phi", ["relu", "tanh", "silu", "elu", "hard_tanh"])
def test_without_recurrence_a_deq_is_a_one_layer_network(phi):
    X = np.random.default_rng(2).standard_normal((40, 5)) * 0.6
    implicit = nsd.kernels_of(nsd.DEQ(phi, 0.0, 1.0), X)
    explicit = nsd.kernels_of(nsd.ENN([phi]), X)
    for kind in KINDS:
        np.testing.assert_allclose(implicit[kind], explicit[kind], rtol=0, atol=ulps())


@pytest.mark.parametrize("phi", ["relu", "tanh", "gelu"])
def test_a_deq_is_a_deep_untied_network_with_input_injection(phi):
    X = np.random.default_rng(4).standard_normal((6, 4)) * 0.7
    deq, S = nsd.DEQ(phi, 0.15, 0.8), X @ X.T
    lam, theta, frozen = 0.8 * S, 0.8 * S, np.zeros_like(S)
    for _ in range(60):
        layer = pairwise_layer(phi, lam)
        theta = 0.8 * S + 0.15 * (layer["value"] + theta * layer["slope"])
        frozen = 0.15 * (layer["value"] + frozen * layer["slope"])
        lam = 0.15 * layer["value"] + 0.8 * S
    layer = pairwise_layer(phi, lam)
    K = nsd.kernels_of(deq, X)
    np.testing.assert_allclose(K["ck"], layer["value"], rtol=0, atol=tolerance())
    np.testing.assert_allclose(K["ntk"], layer["value"] + theta * layer["slope"], rtol=0, atol=tolerance())
    np.testing.assert_allclose(K["ntk_frozen"], layer["value"] + frozen * layer["slope"], rtol=0, atol=tolerance())


def pairwise_layer(phi: str, lam: np.ndarray) -> dict[str, np.ndarray]:
    q = torch.from_numpy(np.diagonal(lam).copy())
    qx, qy = (v.flatten() for v in torch.broadcast_tensors(q[:, None], q[None, :]))
    value, slope = Layer(nsd.activation(phi), qx, qy).both(torch.from_numpy(lam.copy()).flatten())
    return {"value": value.reshape(lam.shape).numpy(), "slope": slope.reshape(lam.shape).numpy()}


def test_learning_rates_weigh_the_layers():
    X = np.random.default_rng(5).standard_normal((7, 4))
    net = nsd.ENN(["tanh", "relu"])
    only = [nsd.ntk(net, X, learning_rates=rates) for rates in ((1, 0, 0), (0, 1, 0), (0, 0, 1))]
    np.testing.assert_allclose(sum(only), nsd.ntk(net, X), rtol=0, atol=ulps())
    np.testing.assert_allclose(only[2], nsd.ck(net, X), rtol=0, atol=ulps())
    np.testing.assert_allclose(only[1] + only[2], nsd.ntk(net, X, train_input=False), rtol=0, atol=ulps())
    np.testing.assert_allclose(nsd.ntk(net, X, learning_rates=(2, 3, 0.5)), 2 * only[0] + 3 * only[1] + 0.5 * only[2])


# ---- matrices: tables, tiles, types ------------------------------------------------------------------------

NETWORKS = [
    nsd.DEQ("tanh", 0.2),
    nsd.DEQ("relu", 0.2),
    nsd.DEQ("relu", 0.2).centred(1.0),
    nsd.DEQ("elu", 0.2),
    nsd.DEQ("hard_tanh", 0.2),
    nsd.ENN(["silu", "leaky_relu"]),
    nsd.ENN(["gelu"]),
]


def gaussian_points(n: int, p: int, seed: int = 0) -> np.ndarray:
    X = np.random.default_rng(seed).standard_normal((n, p)) / math.sqrt(p)
    X[1], X[2] = X[0], -X[3]
    return X


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_matrices_agree_with_the_entrywise_reference(net):
    X = gaussian_points(70, 40)
    s, S = torch.from_numpy((X**2).sum(1)), torch.from_numpy(X @ X.T)
    reference = pairwise(net, s[:, None], s[None, :], S, KINDS)
    off = ~np.eye(70, dtype=bool)
    off[0, 1] = off[1, 0] = off[2, 3] = off[3, 2] = False  # slopes of kinked kernels there move by sqrt(rounding)
    for kind, K in nsd.kernels_of(net, X).items():
        scale = float(np.diagonal(K).max())
        assert np.abs(K - reference[kind].numpy())[off].max() < tolerance() * scale, kind
        assert np.abs(K - reference[kind].numpy()).max() < 4.0 * math.sqrt(ulps(1)) * scale, kind


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_the_table_serves_points_of_equal_norm(net):
    X = gaussian_points(60, 30)
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    s, S = torch.ones(60, dtype=torch.float64), torch.from_numpy(X @ X.T)
    reference = pairwise(net, s[:, None], s[None, :], S, ("ck",))["ck"].numpy()
    assert np.abs(nsd.ck(net, X) - reference).max() < tolerance() * reference.max()


@pytest.mark.parametrize("net", NETWORKS[:4], ids=repr)
def test_tiles_do_not_show(net, monkeypatch):
    X = gaussian_points(75, 20)
    whole = nsd.kernels_of(net, X)
    monkeypatch.setitem(tiles.TILE, "cpu", (16, 48))
    for kind, K in nsd.kernels_of(net, X).items():
        np.testing.assert_allclose(K, whole[kind], rtol=0, atol=tolerance())
        assert np.array_equal(K, K.T)


@pytest.mark.parametrize("net", NETWORKS[:4], ids=repr)
def test_cross_kernels_are_blocks_of_the_whole(net):
    X, Y = gaussian_points(40, 20, 1), gaussian_points(33, 20, 2)
    whole = nsd.kernels_of(net, np.concatenate([X, Y]))
    for kind, K in nsd.kernels_of(net, X, Y).items():
        assert K.shape == (40, 33)
        np.testing.assert_allclose(K, whole[kind][:40, 40:], rtol=0, atol=tolerance())
    same = nsd.ck(net, X, X)
    assert np.abs(same - nsd.ck(net, X)).max() < tolerance()


@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_single_precision_follows_double(net):
    X = gaussian_points(50, 30)[4:]
    double = nsd.kernels_of(net, X)
    single = nsd.kernels_of(net, X.astype(np.float32))
    for kind in KINDS:
        assert single[kind].dtype == np.float32
        assert np.abs(single[kind] - double[kind]).max() < ulps(16, np.float32) * np.abs(double[kind]).max()


def test_types_and_devices_are_kept():
    X = gaussian_points(12, 5)
    deq = nsd.DEQ("tanh", 0.1)
    K = nsd.ck(deq, X)
    assert isinstance(K, np.ndarray)
    T = nsd.ck(deq, torch.from_numpy(X))
    assert isinstance(T, torch.Tensor)
    np.testing.assert_array_equal(T.numpy(), K)
    assert nsd.ck(deq, (10 * X).round().astype(int)).dtype == np.float64
    assert nsd.ck(deq, torch.from_numpy(X).to(torch.bfloat16)).dtype == torch.float32
    assert nsd.ck(deq, X[:0]).shape == (0, 0)
    assert nsd.ck(deq, X[:1]).shape == (1, 1)
    big_endian = X.astype(">f8")
    np.testing.assert_array_equal(nsd.ck(deq, big_endian), K)


def test_results_can_be_written_into_a_memory_map(tmp_path):
    X = gaussian_points(45, 10)
    target = np.lib.format.open_memmap(tmp_path / "k.npy", mode="w+", dtype=np.float64, shape=(45, 45))
    returned = nsd.ck(nsd.DEQ("silu", 0.1), X, out=target)
    assert returned is target
    np.testing.assert_array_equal(np.load(tmp_path / "k.npy"), nsd.ck(nsd.DEQ("silu", 0.1), X))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("net", NETWORKS, ids=repr)
def test_cuda_follows_the_cpu(net):
    X = gaussian_points(80, 20)
    for kind, K in nsd.kernels_of(net, torch.from_numpy(X).cuda()).items():
        assert K.is_cuda
        np.testing.assert_allclose(K.cpu().numpy(), nsd.kernels_of(net, X)[kind], rtol=0, atol=8.0 * math.sqrt(ulps(1)))


# ---- invariances -------------------------------------------------------------------------------------------

networks = st.sampled_from(NETWORKS)
seeds = st.integers(0, 2**16)


@settings(max_examples=12)
@given(networks, seeds)
def test_permuting_points_permutes_the_kernel(net, seed):
    rng = np.random.default_rng(seed)
    X, order = rng.standard_normal((9, 4)), rng.permutation(9)
    permuted = nsd.kernels_of(net, X[order])
    for kind, K in nsd.kernels_of(net, X).items():
        np.testing.assert_allclose(permuted[kind], K[np.ix_(order, order)], rtol=0, atol=tolerance())


@settings(max_examples=12)
@given(networks, seeds)
def test_rotating_the_data_changes_nothing(net, seed):
    rng = np.random.default_rng(seed)
    X, turn = rng.standard_normal((6, 5)), np.linalg.qr(rng.standard_normal((5, 5)))[0]
    turned = nsd.kernels_of(net, X @ turn)
    for kind, K in nsd.kernels_of(net, X).items():
        np.testing.assert_allclose(turned[kind], K, rtol=0, atol=tolerance())


@settings(max_examples=12)
@given(st.sampled_from(["relu", "leaky_relu", "linear"]), seeds, st.floats(1e-3, 1e3))
def test_homogeneous_kernels_scale_with_the_data(phi, seed, factor):
    X = np.random.default_rng(seed).standard_normal((6, 4))
    for net in (nsd.DEQ(phi, 0.2), nsd.ENN([phi, phi])):
        scaled = nsd.kernels_of(net, factor * X)
        for kind, K in nsd.kernels_of(net, X).items():
            np.testing.assert_allclose(scaled[kind], factor**2 * K, rtol=0, atol=tolerance() * factor**2 * K.max())


@settings(max_examples=12)
@given(st.sampled_from(["tanh", "arctan", "erf", "sin"]), seeds)
def test_odd_activations_give_odd_kernels(phi, seed):
    rng = np.random.default_rng(seed)
    X, Y = rng.standard_normal((4, 3)), rng.standard_normal((5, 3))
    deq = nsd.DEQ(phi, 0.15)
    opposite = nsd.kernels_of(deq, X, -Y)
    for kind, K in nsd.kernels_of(deq, X, Y).items():
        np.testing.assert_allclose(opposite[kind], -K, rtol=0, atol=ulps())


# ---- gradients ---------------------------------------------------------------------------------------------


SLOWLY = [nsd.activation("tanh"), nsd.activation("relu")]


@pytest.mark.parametrize("phi", [*BUILT_IN[1:], CUSTOM], ids=label)
def test_gradients_with_respect_to_points_and_variances(phi):
    generator = torch.Generator().manual_seed(0)
    X = (0.6 * torch.randn(3, 4, generator=generator, dtype=torch.float64)).requires_grad_(True)
    limit = min(0.25 / phi.lipschitz**2, 0.4)
    a = torch.tensor(0.7 * limit, dtype=torch.float64, requires_grad=True)
    b = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    for kind in ("ck", "ntk"):
        # rounding over gradcheck's step of 1e-6, and the curvature between its two ends
        assert torch.autograd.gradcheck(
            lambda X, a, b, kind=kind: nsd.kernels_of(nsd.DEQ(phi, a, b), X, kernels=(kind,))[kind],
            (X, a, b),
            atol=2e-6,
            rtol=1e-5,
            fast_mode=phi not in SLOWLY,  # one random direction instead of every entry
        )


def kinked_at(c: float) -> nsd.Activation:
    return nsd.Activation.from_callable(lambda x: torch.relu(x - c) + 0.3 * x, kinks=(c,), name=f"bent at {c:.3g}")


NEEDS_ARGUMENTS = ("affine", "hermite", "polynomial", "quadratic")
EVERY = [
    *(nsd.activation(name) for name in nsd.activations.activation_names() if name not in NEEDS_ARGUMENTS),
    *POLYNOMIAL,
    nsd.activation("hard_tanh").affine(gain=0.8, scale=1.7, skip=0.1, shift=-0.2),
    nsd.activation("elu").affine(gain=-0.7, scale=0.9),
    kinked_at(1 / 3),
    kinked_at(-0.7).affine(scale=0.3),
    CUSTOM,
]


@pytest.mark.parametrize("phi", EVERY, ids=repr)
def test_gradients_along_the_scale_of_the_inputs(phi):
    """Kinks off zero, wrapped and rounded, contribute their point masses on either side of them."""
    network = nsd.DEQ(phi, min(0.6 * 0.25 / phi.lipschitz**2, 0.2), 0.8)
    X = torch.randn(3, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def total(t):
        K = nsd.kernels_of(network, t * X)
        return (K["ck"] + 0.7 * K["ntk"] + 0.3 * K["ntk_frozen"]).sum()

    t = torch.ones((), dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(total(t), t)
    step = 1e-3  # the fourth-order difference is then good to 1e-9 for smooth kernels, 1e-7 beside a kink
    values = [float(total(1.0 + k * step)) for k in (-2, -1, 1, 2)]
    difference = (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / (12 * step)
    assert float(gradient) == pytest.approx(difference, rel=1e-7)  # beside a kink


@pytest.mark.parametrize("phi", ["tanh", "silu", "relu"])
def test_gradients_of_explicit_networks(phi):
    X = torch.randn(3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64).requires_grad_(True)
    net = nsd.ENN([phi, "tanh"])
    # rounding over gradcheck's step of 1e-6, and the curvature between its two ends
    assert torch.autograd.gradcheck(lambda X: nsd.ntk(net, X), (X,), atol=2e-6, rtol=1e-5)


def test_sixty_orders_are_exact_with_their_gradients():
    """sum_k c_k^2 rho^k on unit norms, whatever the range of a quadrature rule; radially by differences."""
    c = torch.tensor([1.0 / (k + 1) ** 2 for k in range(61)], dtype=torch.float64)
    phi = Hermite(tuple(c.tolist()))
    one, rho = torch.ones(1, dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    assert float(pairwise(nsd.ENN([phi]), one, one, rho)["ck"]) == pytest.approx(
        float((c**2 * 0.9 ** torch.arange(61, dtype=torch.float64)).sum()), rel=tolerance()
    )
    for kernel in ("ck", "ntk"):

        def value(s, kernel=kernel):
            return pairwise(nsd.ENN([phi]), s, one, rho, (kernel,))[kernel].sum()

        s = one.clone().requires_grad_()
        (slope,) = torch.autograd.grad(value(s), s)
        difference = float(value(one + 1e-6) - value(one - 1e-6)) / 2e-6
        assert float(slope) == pytest.approx(difference, rel=1e-7)  # the difference's own error


@pytest.mark.parametrize("phi", ["relu", "tanh", "elu"])
def test_gradients_at_duplicates_and_opposites_are_finite_and_right(phi):
    x = torch.tensor([[0.3, -0.8, 0.5]], dtype=torch.float64)
    for other in (x, -x):
        points, y = x.clone().requires_grad_(True), other.clone().requires_grad_(True)
        # the CK is differentiable at rho = 1; its second derivative blows up there for kinks, hence the step
        assert torch.autograd.gradcheck(
            lambda a, b: nsd.ck(nsd.DEQ(phi, 0.2), a, b), (points, y), eps=1e-7, atol=2e-3, rtol=1e-3,
            fast_mode=phi == "elu",  # dear: one random direction instead of every entry
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(nsd.ntk(nsd.DEQ(phi, 0.2), points, y).sum(), points)
        assert bool(torch.isfinite(gradient).all())
    zero = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(nsd.ntk(nsd.DEQ(phi, 0.2), zero).sum(), zero)
    assert bool(torch.isfinite(gradient).all())


# ---- errors ------------------------------------------------------------------------------------------------


def test_outside_the_contraction_range_the_limit_is_named():
    X = np.eye(3)
    with pytest.raises(ContractionError, match=r"0\.25.*check=False"):
        nsd.ck(nsd.DEQ("relu", 0.5), X)
    G = nsd.ck(nsd.DEQ("relu", 0.5), X, check=False)
    lam = 0.5 * G + 0.5 * X
    expected = plane_expectation(nsd.activation("relu"), (0.0,), lam[0, 0], lam[1, 1], lam[0, 1])
    assert G[0, 1] == pytest.approx(expected, abs=tolerance())


def test_where_the_equations_have_no_solution_there_is_an_error_not_a_number():
    with pytest.raises(ConvergenceError):
        nsd.ck(nsd.DEQ("relu", 2.5, 1.0), np.eye(2), check=False)
    with pytest.raises(ConvergenceError):
        nsd.ck(nsd.DEQ("softplus", 6.0, 1.0), np.eye(2), check=False)
    with pytest.raises(ConvergenceError):
        nsd.ntk(nsd.DEQ("tanh", 9.0, 0.1), np.eye(2), check=False)


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.ones(3), r"two dimensions.*X\[None, :\]"),
        (np.ones((2, 3, 4)), "two dimensions"),
        (np.array([[1.0, np.nan]]), "NaN"),
        (np.array([[1.0, np.inf]]), "infinity"),
        (np.array([["a"]]), "numeric"),
        (np.array([[1j]]), "real"),
    ],
)
def test_bad_points_are_refused(X, words):
    with pytest.raises(InvalidInputError, match=words):
        nsd.ck(nsd.DEQ("tanh", 0.1), X)


def test_bad_arguments_are_refused():
    X, net = np.eye(3), nsd.ENN(["tanh"])
    with pytest.raises(InvalidInputError, match="features"):
        nsd.ck(net, X, np.ones((2, 4)))
    with pytest.raises(InvalidInputError, match="learning_rates needs 2"):
        nsd.ntk(net, X, learning_rates=(1.0,))
    with pytest.raises(InvalidInputError, match="belong to an ENN"):
        nsd.ntk(nsd.DEQ("tanh", 0.1), X, learning_rates=(1.0, 1.0))
    with pytest.raises(InvalidInputError, match="kernels"):
        nsd.kernels_of(net, X, kernels=("nkt",))
    with pytest.raises(InvalidInputError, match="or a notsodeep"):
        nsd.ck("relu", X)
    with pytest.raises(InvalidInputError, match="out="):
        nsd.ck(net, X, out=np.empty((2, 2)))
    step = nsd.Activation.from_callable(torch.sign, kinks=(0.0,))
    assert nsd.ck(nsd.ENN([step]), X)[0, 1] == pytest.approx(0.0, abs=ulps())
    with pytest.raises(InvalidInputError, match="jumps"):
        nsd.ntk(nsd.ENN([step]), X)


@pytest.mark.parametrize("network", [nsd.DEQ("tanh", 0.2), nsd.ENN(["relu", "sin"])], ids=repr)
def test_second_derivatives_are_refused(network):
    x = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for entry in ((0, 1), (0, 0)):
        with pytest.raises(InvalidInputError, match="first derivatives only"):
            torch.autograd.functional.hessian(lambda z, at=entry: nsd.ck(network, z)[at], x)
