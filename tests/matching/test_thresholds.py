"""Ordinary units with thresholds proportional to the norm of the input: kernels, designs, certificates, networks."""

from __future__ import annotations

import inspect
import itertools
import json
import math

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

import notsodeep as nsd
from helpers import differences, sampled, tolerance, ulps
from notsodeep.activations import Activation
from notsodeep.errors import ActivationError, InfeasibleMatchError, InvalidInputError
from notsodeep.kernels import diagonal, pairwise
from notsodeep.units import Thresholds
from notsodeep.units.thresholds import threshold_profiles

TOL = inspect.signature(nsd.match_one_layer).parameters["tol"].default
RELU = nsd.DEQ("relu", sigma_a2=0.2)
LEAKY = nsd.DEQ(nsd.activation("leaky_relu", slope=0.3), sigma_a2=0.2)
LAYER = Thresholds((-0.5, 0.25, 1.5), (0.7, 0.5, 0.2), 0.1)


def mean_leaky(centre, spread, leak):
    """E[f(centre + spread xi)]."""
    ratio = centre / spread
    positive = centre * norm.cdf(ratio) + spread * norm.pdf(ratio)
    return leak * centre + (1.0 - leak) * positive


@pytest.mark.parametrize("leak", [0.0, 0.3, -1.0])
@pytest.mark.parametrize("t", [-1.2, 0.0, 0.8, 3.5])
def test_the_kernel_of_one_threshold_is_the_integral(t, leak):
    def integrand(u, rho):
        own = u - t if u > t else leak * (u - t)
        return own * mean_leaky(rho * u - t, math.sqrt(1.0 - rho * rho), leak) * norm.pdf(u)

    for rho in (-0.9, -0.3, 0.4, 0.95):
        exact = sum(quad(integrand, a, b, args=(rho,), epsabs=1e-13)[0] for a, b in ((-12.0, t), (t, 12.0)))
        assert threshold_profiles(np.array([rho]), [t], leak)[0][0, 0] == pytest.approx(exact, abs=tolerance())


def test_its_slope_is_the_derivative_and_the_ends_are_finite():
    rho, step = np.linspace(-0.95, 0.95, 9), 1e-5
    above, below = (threshold_profiles(rho + s, LAYER.thresholds, 0.2)[0] for s in (step, -step))
    slope = threshold_profiles(rho, LAYER.thresholds, 0.2)[1]
    np.testing.assert_allclose((above - below) / (2 * step), slope, rtol=0, atol=differences(step))
    ends = threshold_profiles(np.array([-1.0, 1.0]), [-2.0, 0.0, 2.0])
    assert np.isfinite(ends).all()
    assert ends[0][1].tolist() == pytest.approx([0.0, 0.5])


def test_the_layer_has_gradients():
    q = torch.tensor([1.0, 0.7, 2.0], dtype=torch.float64, requires_grad=True)
    r = torch.tensor([0.8, 1.1, 0.5], dtype=torch.float64, requires_grad=True)
    lam = torch.tensor([0.3, -0.4, 0.6], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a, b, c: LAYER.layer(a, b).both(c), (q, r, lam))
    (once,) = torch.autograd.grad(LAYER.layer(q, r).both(lam)[1].sum(), lam, create_graph=True)
    with pytest.raises(ActivationError, match="further derivative"):
        torch.autograd.grad(once.sum(), lam)


def relative_error(twin, angle):
    """At inputs of norm one and this angle, in absolute value."""
    rho, one = torch.tensor([math.cos(angle)], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    truth = pairwise(twin.deq, one, one, rho, (twin.kernel,))[twin.kernel]
    have = twin.network.activations[0].layer(one, one).value(rho)
    return float((truth - have).abs() / diagonal(twin.deq, one, (twin.kernel,))[twin.kernel])


# theory, section 13: 8.8e-6 with eight thresholds, 6.2e-5 with |t| <= 1.6
@pytest.mark.parametrize(("deq", "tol", "reach"), [(RELU, 6e-5, 6.2e-5), (RELU, 5e-6, 8.8e-6), (LEAKY, 3e-5, 3e-5)])
def test_designs_reach_the_theory_and_no_angle_exceeds_the_bound(deq, tol, reach):
    twin = nsd.match_one_layer(deq, tol=tol, units="thresholds")
    assert twin.bound <= reach
    assert twin.bound <= 1.06 * twin.residual
    edges = np.linspace(0.0, np.pi, 17)
    for low, high in itertools.pairwise(edges):  # a directed search: the largest error of each cell
        found = minimize_scalar(lambda a: -relative_error(twin, a), bounds=(low, high), method="bounded")
        assert -found.fun <= twin.bound


def test_matrices_agree_with_the_bound():
    X = np.random.default_rng(0).standard_normal((30, 20)) * np.geomspace(0.01, 10.0, 30)[:, None]
    X[1], X[2] = X[0], -3.0 * X[0]
    twin, truth = nsd.match_one_layer(RELU, tol=1e-3, units="thresholds"), nsd.ck(RELU, X)
    root = np.sqrt(np.diag(truth))
    assert (np.abs(truth - twin.kernel_matrix(X)) / np.outer(root, root)).max() <= twin.bound


def test_finite_layers_have_the_kernel_in_expectation():
    X = np.random.default_rng(1).standard_normal((10, 20)) / np.sqrt(20)
    mean, error = sampled(nsd.finite_ck, nsd.ENN([LAYER]), X, width=333, draws=60)
    assert float((np.abs(mean - nsd.ck(nsd.ENN([LAYER]), X)) / error).max()) < 5.0  # standard errors, 55 entries


def test_shares_add_up_at_every_width():
    assert sum(LAYER.shares) == pytest.approx(1.0)
    for width in (1, 2, 7, 1000):
        table = LAYER.table(torch.zeros((), dtype=torch.float64), width)
        assert table.shape == (2, width)
    weights = [float((table[1][table[0] == t] ** 2).sum()) / 1000 for t in LAYER.thresholds]
    assert weights == pytest.approx(LAYER.weights)


def test_as_a_network_everywhere():
    twin = nsd.match_one_layer(RELU, tol=1e-3, units="thresholds")
    model = nsd.nn.ENN(twin, in_features=6, width=41, out_features=2, dtype=torch.float64)
    space: dict = {}
    exec(nsd.pytorch_code(twin, in_features=6, width=41, out_features=2), space)
    plain = space["Twin"]().double()
    x = torch.randn(9, 6, dtype=torch.float64)
    with torch.no_grad():
        model.weights[0].copy_(plain.weights[0])
        model.readout.copy_(plain.readout)
        torch.testing.assert_close(plain(x), model(x), rtol=tolerance(), atol=tolerance())
        torch.testing.assert_close(torch.export.export(model, (x,)).module()(x), model(x))
        exact, single = model(x), model.float()(x.float()).double()
    assert float((single - exact).abs().max()) < ulps(16, torch.float32)
    assert nsd.Twin.from_dict(json.loads(json.dumps(twin.to_dict()))) == twin
    assert Activation.from_dict(LAYER.to_dict()) == LAYER
    assert "t = -0.5, 0.25, 1.5, leak=0.1" in repr(LAYER)


def test_auto_takes_them_where_they_are_enough_and_says_so():
    cheap = nsd.match_one_layer(RELU)
    assert cheap.family == "thresholds"
    assert "cheaper" in cheap.reason
    assert cheap.bound <= TOL
    assert nsd.match_one_layer(RELU, tol=1e-6).family == "conditioned"
    assert nsd.match_one_layer(RELU, "ntk_frozen").family == "conditioned"  # thresholds are for the CK
    assert nsd.match_one_layer(RELU, "ntk").family == "conditioned"  # whose weights all train


def test_what_cannot_be_is_refused():
    with pytest.raises(InvalidInputError, match="homogeneous DEQ"):
        nsd.match_one_layer(nsd.DEQ("tanh", sigma_a2=0.2), units="thresholds")
    with pytest.raises(InfeasibleMatchError, match="units='conditioned'"):
        nsd.match_one_layer(RELU, tol=1e-7, units="thresholds")
    with pytest.raises(InvalidInputError, match="CK of a homogeneous DEQ"):
        nsd.match_one_layer(RELU, "ntk", units="thresholds")
    with pytest.raises(ActivationError, match="positive weight"):
        Thresholds((0.0, 1.0), (1.0,))
    with pytest.raises(ActivationError, match=r"in \[-1, 1\]"):
        Thresholds((0.0,), (1.0,), 2.0)
    with pytest.raises(ActivationError, match="norm of their input"):
        LAYER(0.5)
