"""Activations: their calculus against mpmath and automatic differentiation, their symmetries, their documents."""

from __future__ import annotations

import json
import math
import pickle

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import (
    ELU,
    GELU,
    SELU,
    Affine,
    Arctan,
    Cos,
    Erf,
    HardSwish,
    HardTanh,
    Hermite,
    LeakyReLU,
    Linear,
    Mish,
    Quadratic,
    ReLU,
    Sigmoid,
    SiLU,
    Sin,
    Softplus,
    Tanh,
)
from notsodeep.errors import ActivationError, SerialisationError

_SIGMOID = lambda x: 1 / (1 + mp.exp(-x))  # noqa: E731

# value in arbitrary precision, written independently of the library
ORACLES = {
    Linear(0.7): lambda x: mp.mpf(0.7) * x,
    ReLU(): lambda x: max(x, 0),
    LeakyReLU(0.1, 1.5): lambda x: mp.mpf(1.5) * x if x > 0 else mp.mpf(0.1) * x,
    HardTanh(0.5, 2.0): lambda x: mp.mpf(0.5) * max(min(x, 2), -2),
    Quadratic(0.5, -1.0, 2.0): lambda x: x * x / 2 - x + 2,
    Hermite((0.3, 1.0, -0.4, 0.2), 2.0): lambda x: (
        mp.mpf(0.3)
        + x / 2
        - mp.mpf(0.4) * ((x / 2) ** 2 - 1) / mp.sqrt(2)
        + mp.mpf(0.2) * ((x / 2) ** 3 - 3 * (x / 2)) / mp.sqrt(6)
    ),
    Tanh(): mp.tanh,
    Arctan(): mp.atan,
    Erf(): mp.erf,
    Sigmoid(): _SIGMOID,
    SiLU(): lambda x: x * _SIGMOID(x),
    GELU(): lambda x: x * mp.ncdf(x),
    ELU(1.3): lambda x: x if x > 0 else mp.mpf(1.3) * mp.expm1(x),
    SELU(): lambda x: (
        mp.mpf("1.0507009873554804934193349852946")
        * (x if x > 0 else mp.mpf("1.6732632423543772848170429916717") * mp.expm1(x))
    ),
    Softplus(): lambda x: mp.log1p(mp.exp(x)),
    Mish(): lambda x: x * mp.tanh(mp.log1p(mp.exp(x))),
    HardSwish(): lambda x: x * max(min(x + 3, 6), 0) / 6,
    Sin(): mp.sin,
    Cos(): mp.cos,
    Affine(GELU(), gain=-2.0, scale=0.5, skip=0.3, shift=1.0): lambda x: -x * mp.ncdf(x / 2) + mp.mpf(0.3) * x + 1,
}
EVERY = list(ORACLES)
IDS = [repr(phi) for phi in EVERY]
POINTS = np.array([-7.3, -2.6, -1.9, -0.71, -1e-3, 1e-3, 0.37, 0.93, 2.4, 8.8])  # off every kink


every = pytest.mark.parametrize("phi", EVERY, ids=IDS)


def test_every_name_is_covered_here():
    assert {phi.name for phi in EVERY} == set(nsd.activations.activation_names())


@every
def test_value_and_derivatives_against_mpmath(phi):
    oracle = ORACLES[phi]
    with mp.workdps(40):
        truth = [[float(mp.diff(oracle, mp.mpf(x), n, h=mp.mpf(10) ** -12)) for x in POINTS] for n in range(3)]
    for function, expected in zip((phi, phi.derivative, phi.second_derivative), truth, strict=True):
        scale = 1.0 + np.abs(expected)
        assert np.max(np.abs(function(POINTS) - expected) / scale) < tolerance()


@every
def test_slopes_are_the_gradients_torch_computes(phi):
    x = torch.tensor(POINTS, requires_grad=True)
    (slope,) = torch.autograd.grad(phi(x).sum(), x)
    torch.testing.assert_close(slope, phi.derivative(x.detach()), rtol=tolerance(), atol=tolerance())
    if phi.derivative(x).requires_grad:
        (curvature,) = torch.autograd.grad(phi.derivative(x).sum(), x)
        torch.testing.assert_close(curvature, phi.second_derivative(x.detach()), rtol=tolerance(), atol=tolerance())
    else:  # piecewise constant slope
        assert not phi.second_derivative(POINTS).any()


@every
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_dtype_is_kept_and_values_agree(phi, dtype):
    x = torch.tensor(POINTS, dtype=dtype)
    for function in (phi, phi.derivative, phi.second_derivative):
        out = function(x)
        assert out.dtype == dtype
        exact = function(x.to(torch.float64))
        # a half-precision result may lose what its intermediate terms round
        room = tolerance(dtype) if dtype != torch.bfloat16 else 0.1
        assert float(((out.to(torch.float64) - exact).abs() / (1.0 + exact.abs())).max()) < room


@every
def test_no_constant_lives_on_another_device(phi):
    x = torch.empty(3, 2, device="meta")
    for function in (phi, phi.derivative, phi.second_derivative):
        assert function(x).device.type == "meta"
        assert function(x).shape == (3, 2)


@every
def test_far_out_everything_stays_finite(phi):
    x = np.array([-1e4, -800.0, -90.0, 90.0, 800.0, 1e4])
    for function in (phi, phi.derivative, phi.second_derivative):
        assert np.isfinite(function(x)).all()
        assert np.isfinite(function(x.astype(np.float32))).all()


@every
def test_kinks_are_exactly_where_the_slope_jumps(phi):
    for c, jump, bend in zip(phi.kinks, phi.value_jumps(), phi.slope_jumps(), strict=True):
        h = 1e-7
        below, above = phi.derivative(np.array([c - h, c + h]))
        assert jump == 0.0
        assert abs(bend - (above - below)) < 10.0 * h
    x, step = np.linspace(-10, 10, 40_001, retstep=True)
    x = x[np.abs(x[:, None] - np.array([*phi.kinks, np.inf])).min(axis=1) > 2 * step]
    smooth = np.abs(np.diff(phi.derivative(x)))[np.diff(x) < 1.2 * step]
    assert smooth.max() < 1.1 * step * np.abs(phi.second_derivative(x)).max() + tolerance()


@every
def test_lipschitz_constant_and_slope_range_are_sharp(phi):
    low, high = phi.slope_range
    assert phi.lipschitz == max(abs(low), abs(high))
    if math.isinf(high):
        assert np.abs(phi.derivative(np.array([-1e6, 1e6]))).max() > 1e4
        return
    beside = np.array([[c - 1e-12, c + 1e-12] for c in phi.kinks]).ravel()  # an extremum may sit at a kink
    step = 5e-5
    slopes = phi.derivative(np.concatenate([np.linspace(-40, 40, 1_600_001), [-1e9, 1e9], beside]))
    assert low - ulps(4) <= slopes.min() <= low + 0.4 * step**2
    assert high - 0.4 * step**2 <= slopes.max() <= high + ulps(4)


@pytest.mark.parametrize("phi", [phi for phi in EVERY if phi.suprema is not None], ids=repr)
def test_suprema_of_curvature_and_of_the_way_to_straight_lines(phi):
    x = np.concatenate([np.arange(-40.0, 40.0, 2e-4), [-1e5, 1e5]])
    x = x[np.abs(x) > 1e-9]  # no kink
    curved, radial = np.abs(phi.second_derivative(x)), np.abs(x * phi.derivative(x) - phi(x))
    for found, most, slope in zip((curved.max(), radial.max()), phi.suprema, (24.0, 7.0), strict=True):
        assert found <= most + ulps()
        if isinstance(phi, Mish):  # the only one whose suprema are no closed forms: nothing hides between two points
            assert found + 1e-4 * slope <= most
        if not isinstance(phi, Affine):
            assert found >= 0.98 * most


def test_lipschitz_constants_of_silu_and_gelu_to_the_last_digit():
    with mp.workdps(40):
        silu = lambda x: _SIGMOID(x) * (1 + x * (1 - _SIGMOID(x)))  # noqa: E731
        top = mp.findroot(lambda x: mp.diff(silu, x), mp.mpf("2.4"))
        gelu = mp.ncdf(mp.sqrt(2)) + mp.sqrt(2) * mp.npdf(mp.sqrt(2))
        assert abs(SiLU().lipschitz - silu(top)) < ulps(4)
        assert abs(SiLU().slope_range[0] - silu(-top)) < ulps(4)
        assert abs(GELU().lipschitz - gelu) < ulps(4)
        assert abs(GELU().slope_range[0] - (1 - gelu)) < ulps(4)


@given(
    phi=st.sampled_from([phi for phi in EVERY if math.isfinite(phi.lipschitz)]),
    gain=st.floats(-3, 3),
    scale=st.floats(0.1, 5),
    skip=st.floats(-2, 2),
)
def test_affine_lipschitz_bounds_every_secant(phi, gain, scale, skip):
    wrapped = phi.affine(gain=gain, scale=scale, skip=skip)
    x = np.linspace(-30, 30, 4001)
    secants = np.diff(wrapped(x)) / np.diff(x)
    low, high = wrapped.slope_range
    room = ulps(4) * (np.abs(wrapped(x)).max() + 30.0 * wrapped.lipschitz) / np.diff(x).min()
    assert low - room <= secants.min()
    assert secants.max() <= high + room


@every
def test_parity_is_what_the_values_say(phi):
    x = np.linspace(0.013, 20.0, 501)
    odd, even = (
        np.allclose(phi(x), -phi(-x), rtol=ulps(), atol=ulps()),
        np.allclose(phi(x), phi(-x), rtol=ulps(), atol=ulps()),
    )
    assert phi.parity == ("odd" if odd else "even" if even else None)


@pytest.mark.parametrize(
    ("phi", "parity"),
    [
        (LeakyReLU(-1.0, 1.0), "even"),
        (LeakyReLU(0.5, 0.5), "odd"),
        (Quadratic(1.0, 0.0, 3.0), "even"),
        (Quadratic(0.0, 2.0, 0.0), "odd"),
        (Hermite((0.0, 1.0, 0.0, 0.5)), "odd"),
        (Hermite((1.0, 0.0, 0.5)), "even"),
        (Tanh().affine(gain=2.0, skip=0.1), "odd"),
        (Tanh().affine(shift=0.1), None),
        (Cos().affine(shift=0.1), "even"),
        (Cos().affine(skip=0.1), None),
    ],
)
def test_parity_of_special_parameters(phi, parity):
    assert phi.parity == parity


@every
@given(c=st.floats(0.01, 50), x=st.floats(-20, 20))
def test_homogeneity_means_what_it_says(phi, c, x):
    if phi.homogeneity is None:
        base = phi(np.linspace(-3, 3, 13))
        assert not np.allclose(phi(2.0 * np.linspace(-3, 3, 13)), 2.0 * base)
    else:
        # beneath 1e-300 numbers run out of digits
        assert phi(c * x) == pytest.approx(c**phi.homogeneity * phi(x), rel=tolerance(), abs=1e-300)


@pytest.mark.parametrize(
    ("phi", "degree"),
    [
        (Quadratic(2.0), 2.0),
        (Quadratic(0.0, 2.0), 1.0),
        (Quadratic(1.0, 1.0), None),
        (Quadratic(1.0, 0.0, 1.0), None),
        (Hermite((0.0, 3.0), 2.0), 1.0),
        (Hermite((0.0, 1.0, 1.0)), None),
        (ReLU().affine(gain=2.0, skip=-0.5), 1.0),
        (ReLU().affine(shift=0.1), None),
        (Tanh(), None),
    ],
)
def test_degrees_of_homogeneity(phi, degree):
    assert phi.homogeneity == degree


@every
def test_documents_and_pickles_round_trip(phi):
    back = nsd.Activation.from_dict(json.loads(json.dumps(phi.to_dict())))
    for copy in (back, pickle.loads(pickle.dumps(phi))):
        assert copy == phi
        assert hash(copy) == hash(phi)
        assert repr(copy) == repr(phi)
        assert np.array_equal(copy(POINTS), phi(POINTS))


@every
@pytest.mark.parametrize("at", [1e-3, 0.5, 1.0, 7.0])
def test_centred_has_mean_zero(phi, at):
    centred = phi.centred(at=at)
    moments = nsd.gaussian.moments(centred, at)
    assert abs(moments.mean) <= tolerance() * (1.0 + math.sqrt(nsd.gaussian.moments(phi, at).square))
    assert moments.variance == pytest.approx(nsd.gaussian.moments(phi, at).variance, rel=tolerance())
    x = np.linspace(-2, 2, 5)
    difference = phi(x) - centred(x)
    assert np.allclose(difference, difference[0], rtol=0, atol=tolerance())
    assert centred.lipschitz == phi.lipschitz
    if phi.parity == "odd":
        assert centred is phi


def test_centring_takes_a_shift_back():
    assert Tanh().affine(shift=3.0).centred(at=0.7) == Tanh()


def test_a_centred_sigmoid_is_odd():
    centred = Sigmoid().centred(at=0.7)
    assert centred.parity == "odd"
    assert np.allclose(centred(POINTS), Sigmoid()(POINTS) - 0.5, rtol=0, atol=tolerance())


def test_affine_flattens_and_vanishes():
    once = ReLU().affine(gain=2.0, shift=1.0)
    twice = once.affine(gain=3.0, scale=0.5, skip=0.25, shift=-1.0)
    assert isinstance(twice, Affine)
    assert isinstance(twice.base, ReLU)
    x = np.linspace(-3, 3, 11)
    assert np.allclose(twice(x), 3.0 * once(0.5 * x) + 0.25 * x - 1.0, rtol=ulps(4), atol=ulps(4))
    assert ReLU().affine() == ReLU()


@given(c=st.floats(0.3, 3), scale=st.floats(0.01, 100), gain=st.floats(0.1, 5))
def test_a_rescaled_kink_keeps_its_jump(c, scale, gain):
    # the position c / scale is rounded: its neighbours, multiplied back, may both lie on one side of c
    wrapped = HardTanh(1.0, c).affine(gain=gain, scale=scale)
    assert wrapped.slope_jumps() == pytest.approx((gain * scale, -gain * scale), rel=tolerance())


def test_numbers_arrays_and_lists_in_every_form():
    phi, unit = Tanh(), np.finfo(float).eps  # the last digit belongs to whoever computes tanh
    assert math.isclose(phi(0.5), math.tanh(0.5), rel_tol=unit)
    assert math.isclose(phi(1), math.tanh(1), rel_tol=unit)
    assert isinstance(phi(np.zeros((2, 3), dtype=np.float32)), np.ndarray)
    assert phi(np.zeros((2, 3), dtype=np.float32)).dtype == np.float32
    assert phi([0, 1]).shape == (2,)
    assert phi(torch.tensor([1, 2])).dtype == torch.get_default_dtype()
    fixed = np.linspace(-1, 1, 6)
    fixed.setflags(write=False)  # torch warns about read-only memory, and a warning fails the test
    for form in (fixed, fixed[::-2], fixed.astype(">f8")):
        assert np.allclose(phi(form), np.tanh(form), rtol=tolerance(), atol=0)
    with pytest.raises(ActivationError, match="real numbers"):
        phi(np.array([1j]))
    with pytest.raises(ActivationError, match="real numbers"):
        phi("abc")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("relu", ReLU),
        ("ReLU", ReLU),
        (" Leaky-ReLU ", LeakyReLU),
        ("leakyrelu", LeakyReLU),
        ("hard tanh", HardTanh),
        ("swish", SiLU),
        ("identity", Linear),
        ("atan", Arctan),
    ],
)
def test_names_are_forgiving(name, kind):
    assert isinstance(nsd.activation(name), kind)


@pytest.mark.parametrize(
    ("given_name", "near"), [("tahn", "tanh"), ("leaky_rely", "leaky_relu"), ("sofplus", "softplus")]
)
def test_unknown_names_suggest_a_near_one(given_name, near):
    with pytest.raises(ActivationError, match=f"did you mean '{near}'"):
        nsd.activation(given_name)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nsd.activation("tanh", slope=1.0), "takes the parameters"),
        (lambda: nsd.activation(Tanh(), slope=1.0), "together with a ready activation"),
        (lambda: nsd.activation(np.tanh), "torch functions"),
        (lambda: nsd.activation("zzzz"), "known: affine, arctan"),
        (lambda: LeakyReLU(slope=math.nan), "finite number"),
        (lambda: LeakyReLU(slope="0.1"), "finite number"),
        (lambda: HardTanh(c=0.0), "positive"),
        (lambda: Hermite(3.0), "sequence of numbers"),
        (lambda: Hermite(()), "needs coefficients"),
        (lambda: Hermite((1.0,), -1.0), "a scale from 1e-30"),
        (lambda: Affine(ReLU(), scale=0.0), "positive"),
        (lambda: Affine("nonsense"), "unknown activation"),
        (lambda: ReLU().affine(gain="x"), "gain must be a finite number"),
        (lambda: ReLU().affine(scale=10**400), "an integer of 1329 bits"),
        (lambda: LeakyReLU(slope=10**400), "finite number"),
        (lambda: ReLU().centred(at=-1.0), "non-negative"),
        (lambda: ReLU().centred(at="1"), "at must be a number"),
    ],
)
def test_bad_parameters_are_refused(make, message):
    with pytest.raises(ActivationError, match=message):
        make()


def test_parameters_become_plain_floats():
    phi = LeakyReLU(slope=np.float32(0.5), gain=1)
    assert json.dumps(phi.to_dict())
    assert phi == LeakyReLU(0.5)
    assert hash(phi) == hash(LeakyReLU(0.5, 1.0))
    assert Hermite([0, 1]) == Hermite((0.0, 1.0))


def test_activations_are_frozen():
    with pytest.raises(AttributeError):
        LeakyReLU(0.1).slope = 0.2
    assert len({ReLU(), ReLU(), LeakyReLU(0.0), Tanh()}) == 3


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        "relu",
        {},
        {"activation": "nonsense"},
        {"activation": 3},
        {"activation": "relu", "slope": 1.0},
        {"activation": "leaky_relu", "slope": "steep"},
        {"activation": "leaky_relu", "slope": None},
        {"activation": "affine"},
        {"activation": "affine", "base": "relu"},
        {"activation": "affine", "base": {"activation": "nonsense"}},
        {"activation": "hermite", "coefficients": [[1.0]]},
        {"activation": "callable"},
        {"activation": "relu", 3: 4},
        {"activation": "relu", "base": {"activation": "relu"}},
        {"activation": "leaky_relu", "slope": 10**400},
        {"activation": "leaky_relu", "slope": math.inf},
        {"activation": "x" * 10**6},
    ],
)
def test_wrong_documents_are_refused(document):
    with pytest.raises(SerialisationError):
        nsd.Activation.from_dict(document)


def test_a_deeply_nested_document_is_refused():
    document: dict = {"activation": "relu"}
    for _ in range(5000):
        document = {"activation": "affine", "base": document, "gain": 2.0}
    for name in ("base", "activation"):  # wherever it is deep
        with pytest.raises(SerialisationError, match="levels deep"):
            nsd.Activation.from_dict({"activation": "affine", name: document})
    twice = {"activation": "affine", "base": {"activation": "affine", "base": {"activation": "relu"}, "gain": 2.0}}
    assert nsd.Activation.from_dict(twice)(3.0) == 6.0


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e6])
def test_a_mean_in_closed_form_is_exact_at_every_scale(scale):
    shift = nsd.activation("gelu").centred(at=scale).shift
    assert -shift == pytest.approx(scale**2 / math.sqrt(2.0 * math.pi * (1.0 + scale**2)), rel=ulps(), abs=0)


@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_centring_at_scales_whose_squares_are_no_numbers(name):
    assert nsd.activation(name).centred(1e200).shift == pytest.approx(-1e200 / math.sqrt(2 * math.pi), rel=tolerance())


def test_layers_too_large_to_compute_are_refused():
    with pytest.raises(ActivationError, match="at most 171 coefficients"):
        nsd.activation("hermite", coefficients=(0.01,) * 2000)
    many = tuple(k / 5000 for k in range(5000))
    with pytest.raises(ActivationError, match="at most 4096 thresholds"):
        nsd.activation("thresholds", thresholds=many, weights=(1.0,) * 5000)
