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
    (np.tanh, "tanh", ()),
    (np.arctan, "arctan", ()),
    (np.sin, "sin", ()),
    (lambda x: torch.clamp(x, min=0), "relu", (0.0,)),
    (lambda x: np.maximum(x, 0), "relu", (0.0,)),
    (lambda x: np.clip(x, -1, 1), "hard_tanh", (-1.0, 1.0)),
    (torch.nn.SiLU(), "silu", ()),
    (torch.nn.GELU(), "gelu", ()),
    (lambda x: x / (1 + np.exp(-x)), "silu", ()),  # overflows quietly far out
    (lambda x: np.where(x > 0, x, np.expm1(x)), "elu", (0.0,)),
    (lambda x: x**2, "quadratic", ()),
    (np.vectorize(math.erf), "erf", ()),
]
pairs = pytest.mark.parametrize(("function", "name", "kinks"), PAIRS)


@pairs
def test_behaves_like_the_built_in_one(function, name, kinks):
    phi, built_in = from_callable(function, kinks=kinks), nsd.activation(name)
    x = np.array([-3.3, -1.7, -0.4, 0.2, 0.9, 2.6])
    assert np.allclose(phi(x), built_in(x), rtol=ulps(), atol=ulps())
    assert np.allclose(phi.derivative(x), built_in.derivative(x), rtol=tolerance(), atol=tolerance())
    # the step of the differences takes its digits a second time
    slack = tolerance(amplified=10)
    assert np.allclose(phi.second_derivative(x), built_in.second_derivative(x), rtol=slack, atol=slack)
    assert phi.parity == built_in.parity
    # one-sided at a kink: two digits more are lost
    assert phi.lipschitz == pytest.approx(built_in.lipschitz, rel=tolerance(amplified=10))
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
    # slopes of NumPy functions come from differences: rounding / step = 1e-14, one-sided stencils lose two digits more
    room = tolerance(amplified=5)
    assert abs(mine.slope - theirs.slope) < room * steep
    assert abs(mine.slope_square - theirs.slope_square) < room * steep**2
    # beside a scale of 1e-3 the curvature is the slope's error divided by it
    assert abs(mine.curvature - theirs.curvature) < tolerance(amplified=1e3) * max(1.0, abs(theirs.curvature))


def test_jumps_are_allowed_when_declared():
    step = from_callable(np.sign, kinks=(0.0,))
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
        (np.abs, (), "kink or a jump near x = "),
        (torch.abs, (), "kink or a jump near x = "),
        (np.sign, (), "kink or a jump near x = "),
        (lambda x: np.maximum(x, 0) + np.maximum(x - 2, 0), (0.0,), "near x = 2"),
        (lambda x: np.maximum(x - 1 / 3, 0), (0.333,), "near x = 0.33333"),
        (math.tanh, (), "vectorised"),
        (lambda x: x.sum(), (), "shape"),
        (lambda x: np.exp(1j * x), (), "real array"),
        (lambda x: 1 / (x - 1.5) ** 2 if isinstance(x, np.ndarray) else None, (), "kink|settle|finite"),
        (np.sqrt, (), "not finite"),
        (lambda x: x - x.mean(), (), "elementwise"),
        (lambda x: torch.softmax(x, 0), (), "elementwise"),
        (lambda x: np.cumsum(x), (), "elementwise"),
        (lambda x: x + np.random.default_rng().normal(size=x.shape), (), "elementwise"),
        (lambda x: np.exp(x**2), (), "not finite|grows"),
        (lambda x: np.sin(500 * x), (), "settle|kink"),
        (torch.nn.Hardsigmoid(), (-3.0, 3.0), "cannot differentiate Hardsigmoid twice"),
        (np.tanh, ("a",), "finite numbers"),
        (np.tanh, (math.nan,), "finite numbers"),
        (np.tanh, 3.0, "finite numbers"),
    ],
)
def test_what_cannot_be_used_is_refused_with_a_reason(function, kinks, message):
    with pytest.raises(ActivationError, match=message):
        from_callable(function, kinks=kinks)


def test_a_given_derivative_is_used_and_checked():
    phi = from_callable(np.tanh, derivative=lambda x: 1 - np.tanh(x) ** 2)
    x = np.linspace(-2, 2, 9)
    assert np.allclose(phi.derivative(x), 1 - np.tanh(x) ** 2, rtol=0, atol=ulps(4))
    assert np.allclose(phi.second_derivative(x), nsd.activation("tanh").second_derivative(x), rtol=0, atol=tolerance())
    with pytest.raises(ActivationError, match="but differences of the function give"):
        from_callable(np.tanh, derivative=np.cos)
    with pytest.raises(ActivationError, match="but differences of the function give"):
        from_callable(torch.tanh, derivative=torch.cos)
    with pytest.raises(ActivationError, match="could not be called on a NumPy array"):
        from_callable(np.tanh, derivative=torch.cos)


def test_differences_follow_features_that_are_short():
    sharp, exact = from_callable(lambda x: np.tanh(10 * x)), nsd.activation("tanh").affine(scale=10.0)
    x = np.linspace(-1.0, 1.0, 201)
    # a slope of ten, and at each derivative a step ten times as short
    once, twice = tolerance(amplified=100), tolerance(amplified=1000)
    assert np.allclose(sharp.derivative(x), exact.derivative(x), rtol=0, atol=once)
    assert np.allclose(sharp.second_derivative(x), exact.second_derivative(x), rtol=0, atol=twice)
    assert sharp.lipschitz == pytest.approx(10.0, abs=once)
    from_callable(lambda x: np.tanh(10 * x), derivative=lambda x: 10 / np.cosh(10 * x) ** 2)  # is not refused


def test_a_given_lipschitz_constant_must_hold():
    assert from_callable(np.tanh, lipschitz=1.5).lipschitz == 1.5
    with pytest.raises(ActivationError, match="its slope reaches 1"):
        from_callable(np.tanh, lipschitz=0.9)
    for bad in (-1.0, math.nan, "one"):
        with pytest.raises(ActivationError, match="lipschitz must be a"):
            from_callable(np.tanh, lipschitz=bad)


def test_growing_slopes_have_no_lipschitz_constant():
    assert math.isinf(from_callable(lambda x: x**3).lipschitz)
    assert from_callable(lambda x: x + torch.sin(x) ** 2).slope_range == pytest.approx((0.0, 2.0), abs=ulps())
    # the slope at its end is a one-sided difference
    assert from_callable(lambda x: np.log1p(np.abs(x)), kinks=(0.0,)).lipschitz == pytest.approx(1.0, rel=5e-10)


def test_gradients_flow_through_numpy_functions():
    phi = from_callable(np.tanh)
    x = torch.tensor([-0.7, 0.2, 1.3], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(phi(x).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
    built_in = nsd.activation("tanh")
    torch.testing.assert_close(first.detach(), built_in.derivative(x.detach()), rtol=0, atol=tolerance())
    # a difference of differences
    torch.testing.assert_close(
        second.detach(), built_in.second_derivative(x.detach()), rtol=0, atol=tolerance(amplified=10)
    )
    with pytest.raises(ActivationError, match="third derivative"):
        torch.autograd.grad(second.sum(), x)


def test_inference_mode_changes_no_derivative():
    phi, x = from_callable(lambda x: torch.tanh(x)), torch.linspace(-2.0, 2.0, 5, dtype=torch.float64)
    with torch.inference_mode():
        for point in (x, x.clone()):
            torch.testing.assert_close(phi.derivative(point), 1.0 - torch.tanh(x) ** 2)
            torch.testing.assert_close(phi.second_derivative(point), nsd.activation("tanh").second_derivative(x))


def test_derivatives_do_not_cross_kinks_that_lie_close():
    # kinks 0.05 apart, less than one central stencil
    phi = from_callable(lambda x: np.clip(x, 0.0, 0.05), kinks=(0.0, 0.05))
    x = np.array([-0.02, -1e-9, 1e-9, 0.02, 0.04, 0.0501, 0.1])
    # stencils of half the distance of the kinks
    assert np.allclose(phi.derivative(x), [0, 0, 1, 1, 1, 0, 0], rtol=0, atol=tolerance(amplified=10))
    # and on one side of each
    assert phi.slope_jumps() == pytest.approx((1.0, -1.0), abs=tolerance(amplified=10))


def test_a_module_with_a_trainable_slope_can_be_used():
    phi = from_callable(torch.nn.PReLU(init=0.25).to(torch.float64), kinks=(0.0,))
    assert nsd.gaussian.moments(phi, 1.0).mean == pytest.approx(
        nsd.gaussian.moments(nsd.activation("leaky_relu", slope=0.25), 1.0).mean
    )
    assert phi.lipschitz == 1.0


def test_values_print_pickle_and_compare():
    phi = from_callable(module_level_function)
    assert repr(phi) == "CallableActivation(module_level_function)"
    assert repr(from_callable(np.abs, kinks=[0], name="modulus")) == "CallableActivation(modulus, kinks=(0.0,))"
    assert pickle.loads(pickle.dumps(from_callable(torch.tanh))) == from_callable(torch.tanh)
    assert phi == from_callable(module_level_function)
    assert hash(phi) == hash(from_callable(module_level_function))
    with pytest.raises(SerialisationError, match="cannot be written as JSON"):
        phi.to_dict()
    with pytest.raises(SerialisationError, match="cannot be written as JSON"):
        nsd.DEQ(phi.affine(shift=1.0), 0.1).to_dict()


def test_a_numpy_function_keeps_dtype_and_shape():
    phi = from_callable(np.tanh)
    x = torch.zeros(2, 3, dtype=torch.float32)
    assert phi(x).dtype == torch.float32
    assert phi.derivative(x).shape == (2, 3)
    assert isinstance(phi(0.5), float)


def test_a_deq_with_a_user_function_has_the_same_scale():
    mine, theirs = nsd.DEQ(from_callable(np.tanh), 0.2), nsd.DEQ("tanh", 0.2)
    # the square of a slope that comes from differences
    assert mine.limit == pytest.approx(theirs.limit, rel=tolerance(amplified=10))
    assert mine.centred_scale(1.0) == pytest.approx(theirs.centred_scale(1.0), rel=tolerance())


def test_large_scales_of_an_oscillating_function_are_right_or_refused():
    wave = from_callable(lambda x: torch.sin(3 * x) + 0.1 * x)
    tau = 20.0
    truth = 0.5 * (1 - math.exp(-18 * tau**2)) + 0.01 * tau**2 + 0.6 * tau**2 * math.exp(-4.5 * tau**2)
    assert nsd.gaussian.moments(wave, tau).square == pytest.approx(truth, rel=tolerance())
    assert nsd.gaussian.moments(wave, 2000.0).square == pytest.approx(0.5 + 0.01 * 2000.0**2, rel=tolerance())
    with pytest.raises(nsd.errors.ConvergenceError, match="varies too fast"):
        nsd.gaussian.moments(wave, 1e6)
