"""User functions as activations: the good ones work like built-in ones, the others are refused with a reason."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import ActivationError, SerialisationError

from_callable = nsd.Activation.from_callable


def module_level_function(x):
    return torch.tanh(x)


PAIRS = [
    (torch.tanh, "tanh", ()),
    (torch.sin, "sin", ()),
    (lambda x: torch.clamp(x, min=0), "relu", (0.0,)),
    (lambda x: torch.clamp(x, -1, 1), "hard_tanh", (-1.0, 1.0)),
    (torch.nn.SiLU(), "silu", ()),
    (torch.nn.GELU(), "gelu", ()),
    (lambda x: torch.where(x > 0, x, torch.expm1(x.clamp(max=0.0))), "elu", (0.0,)),
    (lambda x: x**2, "quadratic", ()),
    (torch.erf, "erf", ()),
]
pairs = pytest.mark.parametrize(("function", "name", "kinks"), PAIRS)


@pairs
def test_behaves_like_the_built_in_one(function, name, kinks):
    phi, built_in = from_callable(function, kinks=kinks), nsd.activation(name)
    x = np.array([-3.3, -1.7, -0.4, 0.2, 0.9, 2.6])
    assert np.allclose(phi(x), built_in(x), rtol=ulps(), atol=ulps())
    assert np.allclose(phi.derivative(x), built_in.derivative(x), rtol=tolerance(), atol=tolerance())
    assert np.allclose(phi.second_derivative(x), built_in.second_derivative(x), rtol=tolerance(), atol=tolerance())
    assert phi.parity == built_in.parity
    assert phi.lipschitz == pytest.approx(built_in.lipschitz, rel=tolerance())
    assert phi.continuous


@pairs
@pytest.mark.parametrize("tau", [1e-3, 0.4, 3.0, 30.0])
def test_gaussian_moments_agree_with_the_built_in_ones(function, name, kinks, tau):
    mine, theirs = (
        nsd.gaussian.moments(phi, tau) for phi in (from_callable(function, kinks=kinks), nsd.activation(name))
    )
    for field in ("mean", "square", "variance"):
        size = theirs.square if field != "mean" else math.sqrt(theirs.square)
        assert abs(getattr(mine, field) - getattr(theirs, field)) < tolerance() * size
    steep = math.sqrt(theirs.slope_square)
    assert abs(mine.slope - theirs.slope) < tolerance() * steep
    assert abs(mine.slope_square - theirs.slope_square) < tolerance() * steep**2
    # beside a scale of 1e-3 the curvature is the slope's error divided by it
    assert abs(mine.curvature - theirs.curvature) < tolerance(amplified=1e3) * max(1.0, abs(theirs.curvature))


def test_jumps_are_allowed_when_declared():
    step = from_callable(torch.sign, kinks=(0.0,))
    assert step.value_jumps() == (2.0,)
    assert not step.continuous
    assert math.isinf(step.lipschitz)
    m = nsd.gaussian.moments(step, 0.5)
    assert m.square == pytest.approx(1.0, rel=tolerance())
    assert m.slope == pytest.approx(2.0 / (0.5 * math.sqrt(2.0 * math.pi)), rel=tolerance())  # E[2 delta(0.5 xi)]
    assert math.isinf(m.slope_square)


@pytest.mark.parametrize(
    ("function", "kinks", "message"),
    [
        (3.0, (), "must be a function"),
        (np.tanh, (), "Write it with torch functions"),
        (math.tanh, (), "could not be called on a torch tensor"),
        (torch.abs, (), r"near x = 0 that was not declared; pass kinks=\(0,\)"),
        (torch.sign, (), "kink or a jump near x = "),
        (lambda x: torch.relu(x) + torch.relu(x - 2), (0.0,), "near x = 2"),
        (lambda x: torch.relu(x - 1 / 3), (0.333,), "near x = 0.33333"),
        (lambda x: x.sum(), (), "shape"),
        (lambda x: torch.exp(1j * x), (), "real tensor"),
        (lambda x: x.detach().numpy(), (), "real tensor"),
        (lambda x: 1 / (x - 1.5) ** 2, (), "kink|settle|finite"),
        (torch.sqrt, (), "not finite"),
        (lambda x: x - x.mean(), (), "elementwise"),
        (lambda x: torch.softmax(x, 0), (), "elementwise"),
        (lambda x: x + torch.rand_like(x), (), "elementwise"),
        (lambda x: torch.exp(x**2), (), "not finite|grows"),
        (lambda x: torch.sin(500 * x), (), "settle|kink"),
        (torch.nn.Hardsigmoid(), (-3.0, 3.0), "cannot differentiate Hardsigmoid twice"),
        (torch.tanh, ("a",), "finite numbers"),
        (torch.tanh, (math.nan,), "finite numbers"),
        (torch.tanh, 3.0, "finite numbers"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(function, kinks, message):
    with pytest.raises(ActivationError, match=message):
        from_callable(function, kinks=kinks)


def test_growing_slopes_have_no_lipschitz_constant():
    assert math.isinf(from_callable(lambda x: x**3).lipschitz)
    assert from_callable(lambda x: x + torch.sin(x) ** 2).slope_range == pytest.approx((0.0, 2.0), abs=ulps())
    assert from_callable(lambda x: torch.log1p(x.abs()), kinks=(0.0,)).lipschitz == pytest.approx(1.0, rel=ulps())


def test_inference_mode_changes_no_derivative():
    phi, x = from_callable(lambda x: torch.tanh(x)), torch.linspace(-2.0, 2.0, 5, dtype=torch.float64)
    with torch.inference_mode():
        for point in (x, x.clone()):
            torch.testing.assert_close(phi.derivative(point), 1.0 - torch.tanh(x) ** 2)
            torch.testing.assert_close(phi.second_derivative(point), nsd.activation("tanh").second_derivative(x))


def test_a_module_with_a_trainable_slope_can_be_used():
    phi = from_callable(torch.nn.PReLU(init=0.25).to(torch.float64), kinks=(0.0,))
    assert nsd.gaussian.moments(phi, 1.0).mean == pytest.approx(
        nsd.gaussian.moments(nsd.activation("leaky_relu", slope=0.25), 1.0).mean
    )
    assert phi.lipschitz == 1.0


def test_values_print_pickle_and_compare():
    phi = from_callable(module_level_function)
    assert repr(phi) == "CallableActivation(module_level_function)"
    assert repr(from_callable(torch.abs, kinks=[0], name="modulus")) == "CallableActivation(modulus, kinks=(0.0,))"
    assert pickle.loads(pickle.dumps(from_callable(torch.tanh))) == from_callable(torch.tanh)
    assert phi == from_callable(module_level_function)
    assert hash(phi) == hash(from_callable(module_level_function))
    with pytest.raises(SerialisationError, match="cannot be written as JSON"):
        phi.to_dict()
    with pytest.raises(SerialisationError, match="cannot be written as JSON"):
        nsd.DEQ(phi.affine(shift=1.0), 0.1).to_dict()


@pytest.mark.parametrize("given", [torch.nn.Tanh(), torch.tanh, torch.nn.functional.tanh, "Tanh"])
def test_torch_modules_and_functions_are_the_activations_of_their_name(given):
    assert nsd.DEQ(given, 0.2) == nsd.DEQ("tanh", 0.2)


def test_a_deq_with_a_user_function_has_the_same_scale():
    mine, theirs = nsd.DEQ(lambda x: torch.tanh(x), 0.2), nsd.DEQ("tanh", 0.2)
    assert mine.limit == pytest.approx(theirs.limit, rel=ulps())
    assert mine.centred_scale(1.0) == pytest.approx(theirs.centred_scale(1.0), rel=tolerance())


def test_large_scales_of_an_oscillating_function_are_right_or_refused():
    wave = from_callable(lambda x: torch.sin(3 * x) + 0.1 * x)
    tau = 20.0
    truth = 0.5 * (1 - math.exp(-18 * tau**2)) + 0.01 * tau**2 + 0.6 * tau**2 * math.exp(-4.5 * tau**2)
    assert nsd.gaussian.moments(wave, tau).square == pytest.approx(truth, rel=tolerance())
    assert nsd.gaussian.moments(wave, 2000.0).square == pytest.approx(0.5 + 0.01 * 2000.0**2, rel=tolerance())
    with pytest.raises(nsd.errors.ConvergenceError, match="varies too fast"):
        nsd.gaussian.moments(wave, 1e6)


def test_a_deq_takes_modules_functions_and_lambdas():
    assert nsd.DEQ(torch.nn.ReLU(), 0.2) == nsd.DEQ("relu", 0.2)
    assert nsd.DEQ(torch.tanh, 0.2) == nsd.DEQ("tanh", 0.2)
    own, points = nsd.DEQ(lambda x: torch.tanh(x), 0.2), np.eye(3)
    np.testing.assert_allclose(nsd.ck(own, points), nsd.ck(nsd.DEQ("tanh", 0.2), points), rtol=0, atol=ulps(256))
    with pytest.raises(ActivationError, match=r"SiLU.*make an instance of it"):
        nsd.DEQ(torch.nn.SiLU, 0.2)


def test_a_function_with_state_is_known_by_its_values():
    """Tables of another state are not used again; a network whose function has changed says so."""
    shift, Z = [0.0], np.random.default_rng(0).standard_normal((60, 3))

    def moved(x):
        return torch.tanh(x + shift[0])

    first, network = nsd.ck(nsd.DEQ(moved, 0.1), Z), nsd.DEQ(moved, 0.1)
    shift[0] = 1.5
    second = nsd.ck(nsd.DEQ(moved, 0.1), Z)
    assert np.abs(second - nsd.ck(nsd.DEQ(lambda x: torch.tanh(x + 1.5), 0.1), Z)).max() < tolerance()
    assert np.abs(second - first).max() > 0.1
    with pytest.raises(ActivationError, match="other values than when it was made"):
        nsd.ck(network, Z)

    module = torch.nn.PReLU(init=0.25).double()
    unit = nsd.Activation.from_callable(lambda x: torch.sin(module.weight * x))
    before = nsd.ck(nsd.ENN([unit]), Z)
    with torch.no_grad():
        module.weight.fill_(0.5)
    with pytest.raises(ActivationError, match="other values"):
        nsd.ck(nsd.ENN([unit]), Z)
    again = nsd.ck(nsd.ENN([lambda x: torch.sin(module.weight * x)]), Z)
    assert np.abs(again - before).max() > 0.01  # weights of 1 and of 0.5 have kernels that differ by far more


@pytest.mark.parametrize(
    ("function", "kinks"),
    [
        (lambda x, s: x.clamp(-s, s), (-20.0, 20.0)),
        (lambda x, s: torch.tanh(x) + (s - 20.0) * torch.exp(-(((x - 1.2) / 0.05) ** 2)), ()),
    ],
    ids=["far out", "in a narrow place"],
)
def test_changes_are_seen_wherever_they_are(function, kinks):
    """Nothing that was found of the function before is used: no hash, and no Lipschitz constant of limits or proofs."""
    state = [20.0]
    phi = from_callable(lambda x: function(x, state[0]), kinks=kinks)
    network = nsd.DEQ(phi, 0.1)
    model = nsd.nn.DEQ(network, in_features=3, width=8, out_features=2)
    model.decide(np.ones((2, 3)))
    state[0] = 20.5
    for call in (
        lambda: hash(phi),
        lambda: network.limit,
        lambda: nsd.finite_ck(network, np.eye(3), width=8),
        lambda: model.decide(np.ones((2, 3))),
    ):
        with pytest.raises(ActivationError, match="other values"):
            call()
