"""Units that the norm turns: their kernel, the law they follow, the designs they are part of."""

from __future__ import annotations

import inspect
import json
import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Activation, Conditioned, Turned
from notsodeep.errors import ActivationError, SerialisationError
from notsodeep.kernels import diagonal, pairwise
from notsodeep.kernels.series import norm_series
from notsodeep.matching.one_layer.turning import meeting

TOL = inspect.signature(nsd.match_one_layer).parameters["tol"].default
CENTRED = nsd.DEQ("relu", sigma_a2=0.2).centred()
SPAN = {"low": 0.5, "high": 1.5, "logarithmic": True}
PLAIN = Conditioned((((0.5, 0.1), (0.2, 0.0), (1.0, -0.3), (0.3, 0.2)),), alpha=0.7, degree=1, **SPAN)
JUMP = Conditioned((((0.0, 0.0),) * 4 + ((0.3, 0.1), (0.8, -0.2)),), alpha=0.7, degree=1, singular=1, order=0, **SPAN)
LAYER = Turned(PLAIN, JUMP, ((1.0, 0.1), (0.0, 0.8), (0.2, 0.0)), share=0.25)


def rows(count=8, size=5, seed=0):
    x = np.random.default_rng(seed).standard_normal((count, size))
    return x * (np.linspace(0.5, 1.5, count) / np.linalg.norm(x, axis=1))[:, None]


def test_finite_layers_have_the_kernel_in_expectation():
    X = rows()
    exact = nsd.ck(nsd.ENN([LAYER]), X)
    mean, error = nsd.finite_ck(nsd.ENN([LAYER]), X, width=400, draws=80, seed=0, return_std_error=True)
    assert float((np.abs(mean - exact) / error).max()) < 5.0  # standard errors, 36 entries
    alone = nsd.ck(nsd.ENN([PLAIN]), X) + nsd.ck(nsd.ENN([JUMP]), X)
    assert np.abs(alone - exact).max() > 0.05  # turning matters
    np.testing.assert_allclose(np.diag(alone), np.diag(exact))  # but not for an input with itself


def test_the_slope_is_the_derivative():
    q, r = torch.tensor([1.0, 0.7, 1.9]).double(), torch.tensor([0.8, 1.1, 0.5]).double()
    lam = torch.tensor([0.3, -0.4, 0.6], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(LAYER.layer(q, r).value(lam).sum(), lam)
    torch.testing.assert_close(slope, LAYER.layer(q, r).both(lam)[1])


@pytest.mark.parametrize("width", [1, 2, 3, 41])
def test_as_a_network_everywhere(width):
    network = nsd.ENN([LAYER])
    model = nsd.nn.ENN(network, in_features=6, width=width, out_features=2, dtype=torch.float64)
    x = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(model.features(x), LAYER.units(x @ model.weights[0].mT, x) / width**0.5)
    space: dict = {}
    exec("import torch\n\n" + "\n".join(LAYER.source_lines("layer")), space)
    torch.testing.assert_close(space["layer"](x @ model.weights[0].mT, x) / width**0.5, model.features(x))
    torch.testing.assert_close(nsd.nn.export_program(model).module()(x), model(x))


def check_single_precision(layer):
    """At the same numbers: turned units, whose v may cancel, are evaluated in double precision."""
    x = torch.from_numpy(rows(2000, 30)).float()
    before = x @ torch.randn(400, 30, generator=torch.Generator().manual_seed(0)).mT
    exact, single = layer.units(before.double(), x.double()), layer.units(before, x)
    assert float((exact - single.double()).abs().max()) < ulps(64, torch.float32)


def test_single_precision():
    check_single_precision(LAYER)


def test_they_print_pickle_and_round_trip():
    assert "turned by the norm" in repr(LAYER)
    assert pickle.loads(pickle.dumps(LAYER)) == LAYER
    assert Activation.from_dict(json.loads(json.dumps(LAYER.to_dict()))) == LAYER
    with pytest.raises(SerialisationError, match="'turned' must hold"):
        Activation.from_dict({**LAYER.to_dict(), "turned": 3})


def test_what_cannot_be_is_refused():
    with pytest.raises(ActivationError, match="one range and degree"):
        Turned(PLAIN, JUMP, ((1.0,),))
    with pytest.raises(ActivationError, match="share must be"):
        Turned(PLAIN, JUMP, LAYER.turns, share=1.0)
    with pytest.raises(ActivationError, match="train the readout"):
        LAYER.unit_slopes(torch.zeros(2, 8), torch.ones(2, 3))


@pytest.mark.parametrize("deq", [CENTRED, nsd.DEQ("relu", 0.2, 0.8, sigma_c2=0.2)], ids=str)
def test_orders_fall_as_the_branch_point_says(deq):
    """g_k(s, t) rho*^k / sqrt(g_k(s, s) g_k(t, t)) goes to a constant near one; without rho* it falls to nothing."""
    s = np.array([0.7, 0.7, 1.1])
    t = np.array([0.7, 1.1, 1.1])
    g = norm_series(deq, s, t, "ntk", 1024, oversampling=1)
    star = meeting(deq, np.array([0.7, 1.1]))
    assert star[0, 0] == pytest.approx(1.0, abs=tolerance())
    apart = g[1, [250, 500]] / np.sqrt(g[0] * g[2])[[250, 500]]
    level = apart * star[0, 1] ** np.array([250, 500])
    assert level == pytest.approx([1.0, 1.0], abs=5 / 250)
    assert apart[1] < 0.6 * apart[0]


def worst_error(twin, count):
    """The largest relative error over random pairs, many of them parallel, opposite or of equal norms."""
    rng = np.random.default_rng(0)
    s, t = (torch.from_numpy(v) for v in rng.uniform(*twin.norms, (2, count)))
    rho = torch.from_numpy(np.cos(rng.uniform(0.0, np.pi, count) ** 2 / np.pi))
    rho[::5], rho[1::5], t[::3] = 1.0, -1.0, s[::3]
    truth, have = (
        pairwise(network, s * s, t * t, s * t * rho, (kernel,))[kernel]
        for network, kernel in ((twin.deq, twin.kernel), (twin.network, "ck"))
    )
    size = [diagonal(twin.deq, v * v, (twin.kernel,))[twin.kernel].sqrt() for v in (s, t)]
    return float(((truth - have).abs() / (size[0] * size[1])).max())


@pytest.mark.slow
@pytest.mark.parametrize("deq", [CENTRED, nsd.DEQ("relu", 0.2, 0.8, sigma_c2=0.2)], ids=str)
def test_the_ntk_of_a_jump_that_is_not_homogeneous(deq):
    twin = nsd.match_one_layer(deq, "ntk")
    assert isinstance(twin.network.activations[0], Turned)
    assert twin.kinds == 4
    assert worst_error(twin, 400) <= twin.bound <= TOL
    assert "orders that were not computed" in twin.certificate.assumes
    check_single_precision(twin.network.activations[0])
