"""Kernels of finite networks: exact gradients, closed forms, and the infinite-width kernels they converge to."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import sampled, tolerance
from notsodeep.activations import Erf, Hermite, LeakyReLU
from notsodeep.errors import ContractionError, ConvergenceError, InvalidInputError
from notsodeep.units import Feedback

P = 12


def points(n=5, seed=0):
    return np.random.default_rng(seed).standard_normal((n, P)) / math.sqrt(P)


def angles(X):
    norms = np.linalg.norm(X, axis=1)
    return norms, np.clip(X @ X.T / np.outer(norms, norms), -1.0, 1.0)


def normals(seed, *shapes):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


def gram_of_gradients(output, parameters):
    """J J' row by row, by automatic differentiation."""
    rows = []
    for value in output:
        parts = torch.autograd.grad(value, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in parts]))
    jacobian = torch.stack(rows)
    return (jacobian @ jacobian.T).numpy()


# ---- one draw, checked against automatic differentiation ---------------------------------------------------


@pytest.mark.parametrize("name", ["tanh", "relu", "silu"])
@pytest.mark.parametrize("kernel", ["ntk", "ntk_frozen"])
def test_implicit_gradients_equal_those_of_an_unrolled_network(name, kernel):
    m, seed, deq, X = 15, 7, nsd.DEQ(name, 0.15, 0.9), points()
    A, B, a = (w.requires_grad_() for w in normals(seed, (m, m), (m, P), (m,)))
    x, z = torch.from_numpy(X), torch.zeros(len(X), m, dtype=torch.float64)
    for _ in range(200):
        z = deq.activation(math.sqrt(0.15) * z @ A.T + math.sqrt(0.9) * x @ B.T) / math.sqrt(m)
    trained = [a, A, B] if kernel == "ntk" else [a, A]
    truth = gram_of_gradients(z @ a, trained)
    mine = nsd.finite_ntk(deq, X, width=m, seed=seed, kernel=kernel)
    assert np.abs(mine - truth).max() < tolerance() * np.abs(truth).max()
    features = nsd.finite_ck(deq, X, width=m, seed=seed)
    assert np.abs(features - (z @ z.T).detach().numpy()).max() < tolerance()


@pytest.mark.parametrize("kernel", ["ntk", "ntk_frozen"])
@pytest.mark.parametrize("rates", [None, (0.5, 2.0, 0.0, 3.0)])
def test_explicit_gradients_equal_those_of_autograd(kernel, rates):
    widths, seed, X = (9, 14, 6), 3, points()
    enn = nsd.ENN(["tanh", LeakyReLU(0.2), Hermite((0.1, 1.0, 0.3))])
    weights = [w.requires_grad_() for w in normals(seed, (9, P), (14, 9), (6, 14), (6,))]
    hidden = torch.from_numpy(X)
    for phi, weight in zip(enn.activations, weights, strict=False):
        hidden = phi(hidden @ weight.T) / math.sqrt(len(weight))
    scales = rates or (1.0,) * 4
    truth = sum(
        scale * gram_of_gradients(hidden @ weights[-1], [weight])
        for level, (scale, weight) in enumerate(zip(scales, weights, strict=True))
        if level or kernel == "ntk"
    )
    mine = nsd.finite_ntk(enn, X, width=widths, seed=seed, kernel=kernel, learning_rates=rates)
    assert np.abs(mine - truth).max() < tolerance() * np.abs(truth).max()
    features = (hidden @ hidden.T).detach().numpy()
    assert np.abs(nsd.finite_ck(enn, X, width=widths, seed=seed) - features).max() < tolerance()


FEEDBACK = Feedback("silu", ((0.4, 0.1), (0.3, 0.05), (0.2, 0.02)), 0.8, 1.0, (1.0, 0.1))


def test_gradients_of_units_that_see_those_beside_them():
    """Each unit sees the pre-activations of the two units before, and its gradient reaches all three."""
    m, seed, X = 30, 5, points()
    weight, a = (w.requires_grad_() for w in normals(seed, (m, P), (m,)))
    x = torch.from_numpy(X)
    truth = gram_of_gradients(FEEDBACK.units(x @ weight.T, x) @ a / math.sqrt(m), [weight, a])
    mine = nsd.finite_ntk(nsd.ENN([FEEDBACK]), X, width=m, seed=seed)
    assert np.abs(mine - truth).max() < tolerance() * np.abs(truth).max()
    mean, error = sampled(nsd.finite_ntk, nsd.ENN([FEEDBACK]), X, width=1000, draws=24)
    assert (np.abs(mean - nsd.ntk(nsd.ENN([FEEDBACK]), X)) < 5.0 * error + 3.0 / 1000).all()


def test_gradients_through_the_norm_of_a_hidden_layer():
    """In the second layer, units see the norm of the first, which its weights change."""
    m, seed, X = 12, 2, points()
    first, second, a = (w.requires_grad_() for w in normals(seed, (m, P), (m, m), (m,)))
    hidden = torch.tanh(torch.from_numpy(X) @ first.T) / math.sqrt(m)
    truth = gram_of_gradients(FEEDBACK.units(hidden @ second.T, hidden) @ a / math.sqrt(m), [first, second, a])
    mine = nsd.finite_ntk(nsd.ENN(["tanh", FEEDBACK]), X, width=m, seed=seed)
    assert np.abs(mine - truth).max() < tolerance() * np.abs(truth).max()


def constant(x):
    return torch.ones_like(x)


def gram_of_those_used(output, parameters):
    """The same, over the parameters that the output depends on."""
    grads = torch.autograd.grad(output.sum(), parameters, allow_unused=True, retain_graph=True)
    return gram_of_gradients(output, [w for w, grad in zip(parameters, grads, strict=True) if grad is not None])


@pytest.mark.parametrize("layers", [[constant], [constant, "tanh"], ["tanh", constant, "relu"]])
def test_gradients_of_layers_that_are_constant(layers):
    m, seed, X, inner = 8, 2, points(), [(8, 8)] * (len(layers) - 1)
    enn, deq, x = nsd.ENN(layers), nsd.DEQ(layers, 0.1, 0.8), torch.from_numpy(X)
    weights = [w.requires_grad_() for w in normals(seed, (m, P), *inner, (m,))]
    hidden = x
    for phi, weight in zip(enn.activations, weights, strict=False):
        hidden = phi(hidden @ weight.T) / math.sqrt(m)
    truth = gram_of_those_used(hidden @ weights[-1], weights)
    assert np.abs(nsd.finite_ntk(enn, X, width=m, seed=seed) - truth).max() < tolerance()
    *inside, A, B, a = weights = [w.requires_grad_() for w in normals(seed, *inner, (m, m), (m, P), (m,))]
    z = torch.zeros(len(X), m, dtype=torch.float64)
    for _ in range(60):
        z = math.sqrt(0.1) * z @ A.T + math.sqrt(0.8) * x @ B.T
        for phi, weight in zip(deq.activations, [*inside, torch.eye(m).double()], strict=True):
            z = phi(z) / math.sqrt(m) @ weight.T
    truth = gram_of_those_used(z @ a, weights)
    assert np.abs(nsd.finite_ntk(deq, X, width=m, seed=seed) - truth).max() < tolerance()


def test_a_linear_equilibrium_is_a_linear_solve():
    m, seed, X = 40, 5, points()
    A, B, _ = (w.numpy() for w in normals(seed, (m, m), (m, P), (m,)))
    z = np.linalg.solve(math.sqrt(m) * np.eye(m) - math.sqrt(0.2) * A, math.sqrt(0.8) * B @ X.T).T
    assert np.abs(nsd.finite_ck(nsd.DEQ("linear", 0.2), X, width=m, seed=seed) - z @ z.T).max() < tolerance()


# ---- means, checked against closed forms --------------------------------------------------------------------


def assert_within(mean_and_error, truth, width, bias=3.0):
    """Five standard errors, and a bias of a few over the width in units of the kernel."""
    mean, error = mean_and_error
    excess = np.abs(mean - truth) - 5.0 * error - bias / width * np.abs(np.diag(truth)).max()
    assert excess.max() < 0, f"off by {np.abs(mean - truth).max():.3e}, standard error {error.max():.3e}"
    assert error.max() < 0.1 * np.abs(truth).max()  # or the comparison would say nothing


def test_relu_network_against_arc_cosine_kernels():
    X = points()
    norms, rho = angles(X)
    theta = np.arccos(rho)
    j0, j1 = 1 - theta / np.pi, (np.sqrt(1 - rho**2) + (np.pi - theta) * rho) / np.pi
    sigma, slope = 0.5 * np.outer(norms, norms) * j1, 0.5 * j0
    options = {"width": 400, "draws": 60, "seed": 1}
    assert_within(sampled(nsd.finite_ck, nsd.ENN("relu"), X, **options), sigma, 400)
    assert_within(sampled(nsd.finite_ntk, nsd.ENN("relu"), X, **options), sigma + (X @ X.T) * slope, 400)
    frozen = sampled(nsd.finite_ntk, nsd.ENN("relu"), X, kernel="ntk_frozen", **options)
    assert_within(frozen, sigma, 400)
    rates = (0.3, 2.0)
    tilted = 2.0 * sigma + 0.3 * (X @ X.T) * slope
    assert_within(sampled(nsd.finite_ntk, nsd.ENN("relu"), X, learning_rates=rates, **options), tilted, 400)


def test_erf_network_against_the_arcsine_kernel():
    X = points()
    S = X @ X.T
    scale = np.sqrt(np.outer(1 + 2 * np.diag(S), 1 + 2 * np.diag(S)))
    truth = 2 / np.pi * np.arcsin(2 * S / scale)
    mean_and_error = sampled(nsd.finite_ck, nsd.ENN([Erf()]), X, width=400, draws=60, seed=2)
    assert_within(mean_and_error, truth, 400)


def test_linear_deq_in_closed_form():
    # Lambda = G and phi' = 1: G = s2b S / (1 - s2a), K = G + G / (1 - s2a), K* = G / (1 - s2a)
    X = points()
    G = 0.8 * X @ X.T / (1 - 0.2)
    deq, options = nsd.DEQ("linear", 0.2), {"width": 200, "draws": 20, "seed": 3}
    assert_within(sampled(nsd.finite_ck, deq, X, **options), G, 200)
    assert_within(sampled(nsd.finite_ntk, deq, X, **options), G + G / 0.8, 200)
    assert_within(sampled(nsd.finite_ntk, deq, X, kernel="ntk_frozen", **options), G / 0.8, 200)


def test_without_recurrence_a_deq_is_a_one_layer_network():
    X = points()
    deq, enn = nsd.DEQ("silu", 0.0, 1.0), nsd.ENN("silu")
    for kernel in (nsd.finite_ck, nsd.finite_ntk):
        options = {"width": 200, "draws": 40}
        (left, e1), (right, e2) = (sampled(kernel, net, X, seed=s, **options) for s, net in enumerate((deq, enn), 1))
        assert (np.abs(left - right) < 5.0 * np.hypot(e1, e2)).all()
        assert np.hypot(e1, e2).max() < 0.1 * np.abs(right).max()


@pytest.mark.parametrize("network", [nsd.DEQ("tanh", 0.2), nsd.ENN(["relu", "tanh"])], ids=repr)
def test_the_error_of_one_draw_falls_like_the_root_of_the_width(network):
    X = points()
    truth = nsd.ntk(network, X)
    sizes = []
    for width in (40, 360):
        errors = [nsd.finite_ntk(network, X, width=width, seed=s) - truth for s in range(16)]
        sizes.append(float(np.sqrt(np.mean(np.square(errors)))))
    # a factor 9 in width is a factor 3 in error; 16 draws of correlated entries fix each size to about 20 %
    assert 3.0 / 1.6 < sizes[0] / sizes[1] < 3.0 * 1.6


NETWORKS = [
    nsd.DEQ("tanh", 0.2),
    nsd.DEQ("relu", 0.24),
    nsd.DEQ("silu", 0.15, 1.2),
    nsd.DEQ("relu", 0.2).centred(tau0=1.0),
    nsd.ENN(["tanh"]),
    nsd.ENN(["relu", "silu"]),
    nsd.ENN(["tanh", "relu", "gelu"]),
]


@pytest.mark.parametrize("network", NETWORKS, ids=repr)
def test_exact_kernels_are_the_limits(network):
    X = np.concatenate([points(4), points(1) * 1.001, -points(1), np.zeros((1, P))])
    exact = nsd.kernels_of(network, X)
    options = {"width": 200, "draws": 12, "seed": 11}
    assert_within(sampled(nsd.finite_ck, network, X, **options), exact["ck"], 200)
    assert_within(sampled(nsd.finite_ntk, network, X, **options), exact["ntk"], 200)
    assert_within(sampled(nsd.finite_ntk, network, X, kernel="ntk_frozen", **options), exact["ntk_frozen"], 200)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_exact_kernels_with_learning_rates_are_the_limits(depth):
    network, rates = nsd.ENN(["relu", "tanh", "silu"][:depth]), (0.3, 2.0, 0.7, 1.5)[: depth + 1]
    X = points()
    mean_and_error = sampled(nsd.finite_ntk, network, X, width=256, draws=24, seed=12, learning_rates=rates)
    assert_within(mean_and_error, nsd.ntk(network, X, learning_rates=rates), 256)


# ---- the contract -------------------------------------------------------------------------------------------


def test_the_mean_is_that_of_the_draws():
    X, enn = points(3), nsd.ENN("tanh")
    first, both = (nsd.finite_ck(enn, X, width=20, draws=d, seed=4) for d in (1, 2))
    weights = normals(4, (20, P), (20,), (20, P))
    hidden = np.tanh(X @ weights[2].numpy().T) / math.sqrt(20)
    assert np.allclose(both, 0.5 * (first + hidden @ hidden.T), rtol=0, atol=tolerance())


def test_seeds_decide_everything():
    X, deq = points(), nsd.DEQ("relu", 0.2)
    state = torch.random.get_rng_state()
    a, b, c = (nsd.finite_ntk(deq, X, width=50, draws=2, seed=s) for s in (1, 1, 2))
    assert np.array_equal(a, b)
    assert np.abs(a - c).max() > 0.1 * np.abs(a).max()
    assert torch.equal(state, torch.random.get_rng_state())  # the global generator is not touched


def test_types_dtypes_and_symmetry():
    X, deq = points(), nsd.DEQ("tanh", 0.2)
    kernel = nsd.finite_ntk(deq, X, width=60, seed=1)
    assert isinstance(kernel, np.ndarray)
    assert np.array_equal(kernel, kernel.T)
    assert np.linalg.eigvalsh(kernel).min() > -tolerance()
    tensor = nsd.finite_ntk(deq, torch.from_numpy(X), width=60, seed=1)
    assert isinstance(tensor, torch.Tensor)
    assert np.array_equal(tensor.numpy(), kernel)
    single = nsd.finite_ntk(deq, X.astype(np.float32), width=60, seed=1)
    assert single.dtype == np.float32
    tracked = torch.from_numpy(X).requires_grad_()
    assert not nsd.finite_ck(deq, tracked, width=60, seed=1).requires_grad


def test_float32_agrees_with_float64_on_the_same_network():
    # one draw of float32 weights, evaluated in both precisions through the activation of a linear solve
    m, seed, X = 40, 5, points().astype(np.float32)
    generator = torch.Generator().manual_seed(seed)
    A, B, _ = (torch.randn(*s, generator=generator).double().numpy() for s in ((m, m), (m, P), (m,)))
    z = np.linalg.solve(math.sqrt(m) * np.eye(m) - math.sqrt(0.2) * A, math.sqrt(0.8) * B @ X.T.astype(np.float64)).T
    mine = nsd.finite_ck(nsd.DEQ("linear", 0.2), X, width=m, seed=seed)
    assert np.abs(mine - z @ z.T).max() < tolerance(np.float32)


def test_cross_kernels_are_blocks_of_the_whole():
    X, Y, deq = points(4), points(3, seed=9), nsd.DEQ("silu", 0.1)
    whole = nsd.finite_ntk(deq, np.concatenate([X, Y]), width=50, draws=3, seed=2)
    block = nsd.finite_ntk(deq, X, width=50, draws=3, seed=2, Y=Y)
    assert block.shape == (4, 3)
    assert np.allclose(block, whole[:4, 4:], rtol=0, atol=tolerance())


def test_beyond_the_guarantee_it_computes_or_says_so():
    X = points()
    with pytest.raises(ContractionError, match="check=False"):
        nsd.finite_ck(nsd.DEQ("relu", 0.4), X, width=50)
    assert np.isfinite(nsd.finite_ck(nsd.DEQ("relu", 0.4), X, width=50, check=False)).all()
    with pytest.raises(ConvergenceError, match=r"relative residual .*asked for 1\.0e-12"):
        nsd.finite_ck(nsd.DEQ("linear", 2.0, 1.0), X, width=50, check=False)
    with pytest.raises(ConvergenceError, match="relative residual"):
        nsd.finite_ck(nsd.DEQ(nsd.activation("tanh").affine(gain=3.0), 1.5, 1.0), X, width=200, check=False)


def test_a_jump_has_features_but_no_gradients():
    step = nsd.Activation.from_callable(lambda x: (x > 0).to(x.dtype), kinks=(0.0,))
    X = points()
    _, rho = angles(X)
    truth = (np.pi - np.arccos(rho)) / (2 * np.pi)
    np.fill_diagonal(truth, 0.5)
    mean_and_error = sampled(nsd.finite_ck, nsd.ENN([step]), X, width=400, draws=40, seed=1)
    assert_within(mean_and_error, truth, 400)
    with pytest.raises(InvalidInputError, match="jumps"):
        nsd.finite_ntk(nsd.ENN([step]), X, width=10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be a whole number"),
        ({"width": 10.0}, "width must be a whole number"),
        ({"width": (10, 10)}, "one for each of 1 hidden layers"),
        ({"width": 10, "draws": 0}, "draws must be a whole number"),
        ({"width": 10, "seed": "a"}, "seed must be a whole number"),
        ({"width": 10, "Y": np.zeros((2, P + 1))}, "features"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidInputError, match=message):
        nsd.finite_ck(nsd.ENN("relu"), points(), **options)


def test_bad_networks_points_and_rates_are_refused():
    with pytest.raises(InvalidInputError, match=r"DEQ or a notsodeep\.ENN"):
        nsd.finite_ck("relu", points(), width=10)
    with pytest.raises(InvalidInputError, match="NaN"):
        nsd.finite_ck(nsd.ENN("relu"), np.full((2, 2), np.nan), width=10)
    with pytest.raises(InvalidInputError, match="two dimensions"):
        nsd.finite_ck(nsd.ENN("relu"), np.zeros(3), width=10)
    with pytest.raises(InvalidInputError, match=r"'ntk_frozen'.*got 'ck'"):
        nsd.finite_ntk(nsd.ENN("relu"), points(), kernel="ck", width=10)
    with pytest.raises(InvalidInputError, match="learning_rates"):
        nsd.finite_ntk(nsd.ENN("relu"), points(), width=10, learning_rates=(1.0,))
    with pytest.raises(InvalidInputError, match="learning_rates"):
        nsd.finite_ntk(nsd.DEQ("relu", 0.2), points(), width=10, learning_rates=(1.0, 1.0))


@pytest.mark.parametrize("function", [nsd.finite_ck, nsd.finite_ntk])
def test_overflow_and_impossible_widths_are_refused(function):
    with pytest.raises(ConvergenceError, match="float64"):
        function(nsd.ENN(["relu"]), np.full((2, 2), 1e25, "f4"), width=10)
    with pytest.raises(ConvergenceError, match="scale them down"):
        function(nsd.ENN(["quadratic"]), np.full((2, 2), 1e120), width=10)
    with pytest.raises(InvalidInputError, match="weights"):
        function(nsd.DEQ("relu", 0.2), np.eye(2), width=10**18)
    with pytest.raises(InvalidInputError, match="64 bits"):
        function(nsd.DEQ("relu", 0.2), np.eye(2), width=10**30)
