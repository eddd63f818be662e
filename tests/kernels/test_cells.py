"""Cells of several layers and normalised pre-activations, against plain iteration by two-dimensional quadrature."""

import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import differences, sampled, tolerance
from notsodeep.errors import ContractionError, InvalidInputError

EXACT = tolerance(amplified=50)  # 1e-10
NODES, STEP = np.linspace(-9.0, 9.0, 151, retstep=True)  # the trapezoidal rule, of spectral accuracy
WEIGHTS = STEP * np.exp(-0.5 * NODES**2) / math.sqrt(2.0 * math.pi)
FUNCTIONS = {
    "tanh": (np.tanh, lambda x: 1.0 / np.cosh(x) ** 2),
    "sin": (np.sin, np.cos),
    "sigmoid": (lambda x: 1.0 / (1.0 + np.exp(-x)), lambda x: np.exp(-x) / (1.0 + np.exp(-x)) ** 2),
}


def expectation(f, qx, qy, lam):
    """E[f(u) f(v)] by a product rule."""
    rho = np.clip(lam / math.sqrt(qx * qy), -1.0, 1.0)
    u = math.sqrt(qx) * NODES[:, None]
    v = math.sqrt(qy) * (rho * NODES[:, None] + math.sqrt(1.0 - rho * rho) * NODES)
    return float(WEIGHTS @ (f(u) * f(v)) @ WEIGHTS)


def iterated(names, variances, sx, sy, dot, normalise=False):
    """(ck, ntk, ntk_frozen) by 40 steps of plain iteration of covariances and of tangents."""
    a, b, c = variances
    drive = [b * v + c for v in (sx, sy, dot)]
    lam, theta, frozen = list(drive), 0.0, 0.0
    for _ in range(40):
        (qx, qy, k), t, t_frozen = lam, theta, frozen
        if normalise:
            root = math.sqrt(qx * qy)
            qx, qy, k, t, t_frozen = 1.0, 1.0, k / root, t / root, t_frozen / root
        for number, name in enumerate(names):
            f, slope = FUNCTIONS[name]
            if number:
                t, t_frozen = t + k, t_frozen + k
            steep = expectation(slope, qx, qy, k)
            k, qx, qy = expectation(f, qx, qy, k), expectation(f, qx, qx, qx), expectation(f, qy, qy, qy)
            t, t_frozen = t * steep, t_frozen * steep
        lam = [a * v + d for v, d in zip((qx, qy, k), drive, strict=True)]
        theta, frozen = lam[2] + a * t, a * k + a * t_frozen
    return {"ck": k, "ntk": k + t, "ntk_frozen": k + t_frozen}


ROWS = np.array([[1.0, 0.2, -0.3], [0.3, 0.9, 0.4], [-0.5, 1.2, 0.8]])


@pytest.mark.parametrize(
    ("names", "normalise", "bias"),
    [
        (["tanh", "sin"], False, 0.0),
        (["sigmoid", "tanh", "tanh"], False, 0.3),
        (["tanh"], True, 0.3),
        (["sin", "tanh"], True, 0.2),
    ],
)
def test_plain_iteration(names, normalise, bias):
    a = 0.04 if not normalise else 0.2
    deq = nsd.DEQ(names, a, 0.9, bias, normalise=normalise)
    found = nsd.kernels_of(deq, ROWS, check=False)
    gram = ROWS @ ROWS.T
    for i, j in ((0, 1), (0, 2), (1, 2), (1, 1)):
        expected = iterated(names, deq.variances, gram[i, i], gram[j, j], gram[i, j], normalise)
        for kernel, value in expected.items():
            np.testing.assert_allclose(found[kernel][i, j], value, rtol=EXACT, atol=0)


@pytest.mark.parametrize("deq", [nsd.DEQ(["tanh", "relu"], 0.05), nsd.DEQ(["elu", "tanh"], 0.04, 0.9, 0.1)])
def test_tables_and_entries_agree(deq):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 8)) / math.sqrt(8) * np.exp(0.3 * rng.normal(size=(60, 1)))
    whole = nsd.kernels_of(deq, X)
    for kernel, values in nsd.kernels_of(deq, X[:9]).items():
        np.testing.assert_allclose(whole[kernel][:9, :9], values, rtol=EXACT, atol=0)


def test_one_layer_as_a_list_is_the_same_network():
    assert nsd.DEQ(["tanh"], 0.2) == nsd.DEQ("tanh", 0.2)
    assert nsd.DEQ("tanh", 0.2, normalise=True) != nsd.DEQ("tanh", 0.2)


@pytest.mark.parametrize("deq", [nsd.DEQ(["tanh", "relu"], 0.05), nsd.DEQ("relu", 0.2, normalise=True)])
def test_round_trip(deq):
    assert nsd.network_from_dict(deq.to_dict()) == deq
    assert eval(repr(deq), {"DEQ": nsd.DEQ, **vars(nsd.activations)}) == deq


def test_contraction():
    cell = nsd.DEQ(["tanh", "relu"], 0.2)
    assert cell.limit == 1 / 16
    with pytest.raises(ContractionError, match=r"4\^2"):
        nsd.ck(cell, ROWS)
    assert np.isfinite(nsd.ck(cell, ROWS, check=False)).all()
    assert nsd.DEQ("relu", 5.0, 1.0, normalise=True).limit == math.inf
    with pytest.raises(ContractionError, match="sigma_c2 > 0"):
        nsd.ck(nsd.DEQ("tanh", 0.5, normalise=True), ROWS)


def test_what_the_papers_define_refuses_cells():
    with pytest.raises(InvalidInputError, match="one layer"):
        nsd.match(nsd.DEQ(["tanh", "relu"], 0.05), 1.0)
    with pytest.raises(InvalidInputError, match="normalised"):
        nsd.coefficients(nsd.DEQ("relu", 0.2, normalise=True))


def test_equivalent_of_a_cell():
    """The four numbers of a cell, against its exact kernel on high-dimensional data."""
    deq, errors = nsd.DEQ(["tanh", "relu"], 0.05), []
    for p in (200, 800):
        mixture = nsd.GaussianMixture.two_class(p)
        X, y = mixture.sample(200, seed=0)
        statistics = nsd.MixtureStatistics.from_mixture(mixture, X, y)
        exact = nsd.ck(deq.centred(statistics.tau0), X)
        gap = nsd.equivalent(deq, statistics).matrix() - exact
        errors.append(np.linalg.norm(gap, 2) / np.linalg.norm(exact, 2))
    assert errors[1] < 0.65 * errors[0]  # n^(-1/2) at p / n growing fourfold


def test_gradients_in_the_variances():
    a = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)
    X = torch.from_numpy(ROWS)
    nsd.ntk(nsd.DEQ(["tanh", "sin"], a, 0.95), X).sum().backward()
    step = 1e-5
    ends = [float(nsd.ntk(nsd.DEQ(["tanh", "sin"], 0.05 + h, 0.95), X).sum()) for h in (-step, step)]
    np.testing.assert_allclose(
        float(a.grad), (ends[1] - ends[0]) / (2 * step), rtol=differences(step) + EXACT / step, atol=0
    )


def test_twin_of_one_layer():
    rng = np.random.default_rng(0)
    deq = nsd.DEQ(["tanh", "tanh"], 0.05)
    twin = nsd.match_one_layer(deq, norms=(0.5, 1.5))
    X = rng.normal(size=(12, 6))
    X *= rng.uniform(0.5, 1.5, size=(12, 1)) / np.linalg.norm(X, axis=1, keepdims=True)
    exact = nsd.ck(deq, X)
    size = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    assert (np.abs(twin.kernel_matrix(X) - exact) / size).max() <= twin.bound


@pytest.mark.parametrize("deq", [nsd.DEQ(["tanh", "relu"], 0.05), nsd.DEQ("relu", 0.2, normalise=True)])
def test_finite_width(deq):
    exact = nsd.kernels_of(deq, ROWS)
    finite = {"ck": nsd.finite_ck, "ntk": nsd.finite_ntk, "ntk_frozen": nsd.finite_ntk}
    for kernel, function in finite.items():
        options = {} if kernel == "ck" else {"kernel": kernel}
        mean, error = sampled(function, deq, ROWS, 24, width=300, **options)
        bias = 4.0 / 300 * exact[kernel].max()  # of order 1 / width
        assert (np.abs(mean - exact[kernel]) <= 5.0 * error + bias).all()
