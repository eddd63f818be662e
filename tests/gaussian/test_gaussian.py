"""Gaussian expectations against mpmath and closed forms, from tiny to large scales, also at kinks and jumps."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import differences, tolerance, ulps
from notsodeep.activations import Affine, Cos, HardTanh, Hermite, LeakyReLU, Quadratic, Sin
from notsodeep.errors import ConvergenceError, InvalidInputError
from notsodeep.gaussian.rule import function_coefficients, hermite_coefficients

SCALES = (1e-3, 0.5, 4.0, 30.0)
BUILT_IN = [n for n in nsd.activations.activation_names() if n != "affine"]
FIELDS = ("mean", "square", "variance", "slope", "curvature", "slope_square", "square_curvature")

# value, slope, kinks in arbitrary precision
_S = lambda x: 1 / (1 + mp.exp(-x))  # noqa: E731
FUNCTIONS = {
    "tanh": (mp.tanh, lambda x: mp.sech(x) ** 2, ()),
    "arctan": (mp.atan, lambda x: 1 / (1 + x * x), ()),
    "erf": (mp.erf, lambda x: 2 * mp.exp(-x * x) / mp.sqrt(mp.pi), ()),
    "sigmoid": (_S, lambda x: _S(x) * _S(-x), ()),
    "silu": (lambda x: x * _S(x), lambda x: _S(x) * (1 + x * _S(-x)), ()),
    "softplus": (
        lambda x: mp.log1p(mp.exp(x)) if x < 0 else x + mp.log1p(mp.exp(-x)),
        _S,
        (),
    ),
    "elu": (lambda x: x if x > 0 else mp.expm1(x), lambda x: mp.mpf(1) if x > 0 else mp.exp(x), (0,)),
    "hard_tanh": (lambda x: max(min(x, 1), -1), lambda x: mp.mpf(abs(x) < 1), (-1, 1)),
    "cos": (mp.cos, lambda x: -mp.sin(x), ()),
}


def fine_rule(tau, kinks):
    """Nodes z and weights of the standard normal law: 20-point panels no wider than the function's features."""
    count = math.ceil(10.0 / min(1.0, 1.5 / tau))
    edges = np.unique([*(10.0 * np.arange(-count, count + 1) / count), *(k / tau for k in kinks if abs(k / tau) < 10)])
    x, w = np.polynomial.legendre.leggauss(20)
    half, middle = np.diff(edges)[:, None] / 2, (edges[1:] + edges[:-1])[:, None] / 2
    z = (middle + half * x).ravel()
    return z, (half * w).ravel() * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def in_twenty_digits(f, x):
    """f evaluated by mpmath and rounded once."""
    with mp.workdps(20):
        return np.array([float(f(mp.mpf(v))) for v in x])


@pytest.mark.parametrize("tau", SCALES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_moments_against_mpmath(name, tau):
    f, d, kinks = FUNCTIONS[name]
    m = nsd.gaussian.moments(name, tau)
    z, w = fine_rule(tau, kinks)
    value, slope = (in_twenty_digits(g, tau * z) for g in (f, d))
    mean, square, steep = value @ w, value**2 @ w, slope**2 @ w
    moved = in_twenty_digits(lambda x: f(x) - f(mp.mpf(0)), tau * z)  # small numbers round less
    variance = (moved - moved @ w) ** 2 @ w
    # second derivatives by integration by parts, which knows nothing of point masses at kinks
    curvature, squared = (z * slope) @ w / tau, (2 * z * value * slope) @ w / tau
    assert abs(m.mean - mean) < tolerance() * math.sqrt(square)
    assert abs(m.square - square) < tolerance() * square
    assert abs(m.variance - variance) < tolerance() * variance
    assert abs(m.slope - slope @ w) < tolerance() * math.sqrt(steep)
    assert abs(m.slope_square - steep) < tolerance() * steep
    assert abs(m.curvature - curvature) < tolerance() * (abs(curvature) + math.sqrt(steep) / tau)
    assert abs(m.square_curvature - squared) < tolerance() * (abs(squared) + steep)


@pytest.mark.parametrize("tau", [1e-3, 0.05, 1.0, 30.0, 1e6, 1e100])
def test_relu_moments_in_closed_form_at_any_scale(tau):
    m = nsd.gaussian.moments("relu", tau)
    density = 1.0 / math.sqrt(2.0 * math.pi)
    assert m.mean == pytest.approx(tau * density, rel=tolerance())
    assert m.square == pytest.approx(tau**2 / 2, rel=tolerance())
    assert m.variance == pytest.approx(tau**2 * (0.5 - density**2), rel=tolerance())
    assert m.slope == pytest.approx(0.5, rel=tolerance())
    assert m.curvature == pytest.approx(density / tau, rel=tolerance())
    assert m.slope_square == pytest.approx(0.5, rel=tolerance())
    assert m.square_curvature == pytest.approx(1.0, rel=tolerance())


@pytest.mark.parametrize("tau", [1e-6, 1e-3, 0.7, 5.0, 30.0, 500.0, 1e8])
def test_waves_in_closed_form_at_any_scale(tau):
    sin, cos = nsd.gaussian.moments("sin", tau), nsd.gaussian.moments("cos", tau)
    assert sin.square == pytest.approx(-0.5 * math.expm1(-2 * tau**2), rel=tolerance())
    # beneath 1e-300 numbers run out of digits
    assert sin.slope == pytest.approx(math.exp(-(tau**2) / 2), rel=tolerance(), abs=1e-300)
    assert cos.mean == sin.slope
    assert cos.variance == pytest.approx(0.5 * math.expm1(-(tau**2)) ** 2, rel=tolerance())
    assert sin.square_curvature == -cos.square_curvature
    assert (sin.mean, sin.curvature, cos.slope) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("tau", [0.3, 2.0])
def test_closed_forms_agree_with_quadrature(name, tau):
    phi = nsd.activation(name)
    closed, panels = nsd.gaussian.moments(phi, tau), nsd.gaussian.moments(nsd.Activation.from_callable(phi), tau)
    for field in FIELDS:
        assert getattr(closed, field) == pytest.approx(getattr(panels, field), abs=tolerance())


@pytest.mark.parametrize(
    "phi", [Quadratic(0.3, -1.0, 0.7), Hermite((0.2, 1.0, -0.5, 0.3), 1.7), Hermite((0.0, 0.5, 0.0, 0.0, 0.2))]
)
@pytest.mark.parametrize("tau", [1e-3, 0.8, 3.0])
def test_polynomials_agree_with_quadrature(phi, tau):
    closed, panels = nsd.gaussian.moments(phi, tau), nsd.gaussian.moments(nsd.Activation.from_callable(phi), tau)
    for field in FIELDS:
        size = closed.square + closed.slope_square if field != "variance" else closed.variance
        assert abs(getattr(closed, field) - getattr(panels, field)) < tolerance() * (1.0 + size)


@given(
    name=st.sampled_from(BUILT_IN),
    tau=st.floats(1e-3, 30.0),
    gain=st.floats(-2, 2),
    scale=st.floats(0.1, 3),
    skip=st.sampled_from([0.0, 0.7, -1.1]),
    shift=st.floats(-100, 100),
)
def test_affine_changes_follow_from_linearity(name, tau, gain, scale, skip, shift):
    base = nsd.gaussian.moments(name, scale * tau)
    m = nsd.gaussian.moments(Affine(nsd.activation(name), gain, scale, skip, shift), tau)
    # E[x phi(s x)] = tau^2 s E[phi'(s x)] couples the two parts
    variance = gain**2 * base.variance + (skip * tau) ** 2 + 2.0 * gain * skip * tau**2 * scale * base.slope
    room = tolerance() * (gain**2 * base.square + (skip * tau) ** 2)
    assert m.mean == pytest.approx(
        gain * base.mean + shift, abs=tolerance() * (abs(shift) + math.sqrt(base.square) + 1)
    )
    # beneath 1e-300 numbers run out of digits
    assert abs(m.variance - variance) <= room + 1e-300
    assert m.slope == pytest.approx(gain * scale * base.slope + skip, rel=tolerance(), abs=tolerance())
    assert m.curvature == pytest.approx(gain * scale**2 * base.curvature, rel=tolerance(), abs=tolerance() / tau)


@pytest.mark.parametrize("name", BUILT_IN)
def test_square_curvature_is_the_derivative_of_the_square(name):
    q, h = 1.3, 1e-5
    up, down = (nsd.gaussian.moments(name, math.sqrt(q + s * h)).square for s in (1, -1))
    assert nsd.gaussian.moments(name, math.sqrt(q)).square_curvature / 2 == pytest.approx(
        (up - down) / (2 * h), rel=differences(h), abs=differences(h)
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_parity_gives_exact_zeros(name):
    phi, m = nsd.activation(name), nsd.gaussian.moments(name, 1.7)
    a, b = (
        nsd.gaussian.hermite_coefficients(phi, 1.7, 6),
        nsd.gaussian.hermite_coefficients(phi, 1.7, 6, derivative=True),
    )
    if phi.parity == "odd":
        assert (m.mean, m.curvature) == (0.0, 0.0)
        assert not a[0::2].any()
        assert not b[1::2].any()
    elif phi.parity == "even":
        assert m.slope == 0.0
        assert not a[1::2].any()
        assert not b[0::2].any()
    else:
        assert m.mean != 0.0


def test_sigmoid_bends_to_neither_side():
    assert nsd.gaussian.moments("sigmoid", 2.0).curvature == 0.0
    assert not nsd.gaussian.hermite_coefficients("sigmoid", 2.0, 8)[2::2].any()


@pytest.mark.parametrize("name", BUILT_IN)
def test_at_scale_zero_a_value_is_phi_of_zero_and_a_slope_its_limit(name):
    phi, here, near = nsd.activation(name), nsd.gaussian.moments(name, 0.0), nsd.gaussian.moments(name, 1e-9)
    assert here.mean == pytest.approx(phi(0.0), rel=tolerance(), abs=0)
    assert here.variance <= tolerance() ** 2
    # a bend beside zero moves a slope by its curvature times the scale
    assert here.slope == pytest.approx(near.slope, abs=5e-9)
    # and its square twice as much
    assert here.slope_square == pytest.approx(near.slope_square, abs=1e-8)
    assert nsd.gaussian.hermite_coefficients(phi, 0.0, 3)[0] == pytest.approx(phi(0.0), rel=tolerance(), abs=0)


def test_a_jump_enters_slopes_and_curvatures_through_its_mass():
    # phi = step at c: E[phi'] = p(c), E[phi''] = c p(c) / tau^2, (phi^2)'' = phi''
    c, tau = 0.6, 1.4
    step = nsd.Activation.from_callable(lambda x: (x > c).to(x.dtype), kinks=(c,))
    density = math.exp(-0.5 * (c / tau) ** 2) / (tau * math.sqrt(2 * math.pi))
    m = nsd.gaussian.moments(step, tau)
    assert m.mean == pytest.approx(0.5 * math.erfc(c / tau / math.sqrt(2)), rel=tolerance())
    assert m.slope == pytest.approx(density, rel=tolerance())
    assert m.curvature == pytest.approx(c * density / tau**2, rel=tolerance())
    assert m.square_curvature == pytest.approx(m.curvature, rel=tolerance())
    with pytest.raises(InvalidInputError, match="only the CK is defined"):
        nsd.gaussian.hermite_coefficients(step, 1.0, 3, derivative=True)


# ---- Hermite coefficients ---------------------------------------------------------------------------------


def orthonormal(k, x):
    return mp.hermite(k, x / mp.sqrt(2)) / mp.sqrt(mp.mpf(2) ** k * mp.factorial(k))


@pytest.mark.parametrize("name", ["tanh", "silu", "elu", "hard_tanh", "cos"])
@pytest.mark.parametrize("q", [1e-4, 0.8, 25.0])
def test_coefficients_against_mpmath(name, q):
    f, d, kinks = FUNCTIONS[name]
    tau = math.sqrt(q)
    z, w = fine_rule(tau, kinks)
    basis = np.polynomial.hermite_e.hermevander(z, 12) / np.sqrt([math.factorial(k) for k in range(13)])
    for derivative, function in ((False, f), (True, d)):
        truth = (in_twenty_digits(function, tau * z) * w) @ basis
        mine = nsd.gaussian.hermite_coefficients(name, q, 13, derivative=derivative)
        assert np.abs(mine - truth).max() < tolerance() * (1.0 + math.sqrt(nsd.gaussian.moments(name, tau).square))


def test_relu_coefficients_stay_exact_to_high_degree():
    a = nsd.gaussian.hermite_coefficients("relu", 1.0, 1201)
    for k in (10, 100, 500, 1000, 1200):
        with mp.workdps(25):
            truth = (-1) ** (k // 2 - 1) * mp.fac2(k - 3) / mp.sqrt(2 * mp.pi * mp.factorial(k))
        assert abs(a[k] - truth) < ulps(4)
    assert np.abs(a[3::2]).max() < ulps(4)


@pytest.mark.parametrize("c", [0.2, 1.0, 2.5])
def test_slopes_of_hard_tanh_against_their_closed_form(c):
    # E[1(|xi| < c) h_k] = -2 h_(k-1)(c) p(c) / sqrt(k) for even k
    b = nsd.gaussian.hermite_coefficients(HardTanh(1.0, c), 1.0, 301, derivative=True)
    for k in (2, 8, 50, 300):
        with mp.workdps(30):
            truth = -2 * orthonormal(k - 1, mp.mpf(c)) * mp.npdf(c) / mp.sqrt(k)
        assert abs(b[k] - truth) < ulps(4)


@given(name=st.sampled_from(BUILT_IN), q=st.floats(1e-4, 9.0))
def test_parseval_from_below_and_nearly(name, q):
    a = nsd.gaussian.hermite_coefficients(name, q, 300)
    m = nsd.gaussian.moments(name, math.sqrt(q))
    captured = float((a[1:] ** 2).sum())
    assert a[0] == pytest.approx(m.mean, rel=tolerance(), abs=tolerance() * math.sqrt(m.square))
    assert captured <= m.variance * (1 + tolerance())
    # what is left belongs to degrees above 300: k^(-5/2) for a kink, at most exp(-sqrt(k)) for a smooth function
    assert captured >= m.variance * (1 - 1e-3)


@pytest.mark.parametrize("name", ["tanh", "silu", "gelu", "softplus", "sin", "cos", "erf"])
def test_parseval_to_rounding_for_smooth_functions(name):
    a, b = (nsd.gaussian.hermite_coefficients(name, 0.5, 120, derivative=d) for d in (False, True))
    m = nsd.gaussian.moments(name, math.sqrt(0.5))
    assert float((a[1:] ** 2).sum()) == pytest.approx(m.variance, rel=tolerance())
    assert float((b**2).sum()) == pytest.approx(m.slope_square, rel=tolerance())


@given(name=st.sampled_from(BUILT_IN), q=st.floats(0.01, 20.0))
def test_stein_links_phi_and_its_slope(name, q):
    # sqrt(q) E[phi' h_k] = sqrt(k+1) E[phi h_(k+1)]
    a = nsd.gaussian.hermite_coefficients(name, q, 9)
    b = nsd.gaussian.hermite_coefficients(name, q, 8, derivative=True)
    size = math.sqrt(nsd.gaussian.moments(name, math.sqrt(q)).square)
    assert np.allclose(math.sqrt(q) * b, np.sqrt(np.arange(1, 9)) * a[1:], rtol=0, atol=tolerance() * (1 + size))


def test_waves_keep_their_coefficients_at_large_scales():
    a = nsd.gaussian.hermite_coefficients("sin", 400.0, 1200)
    assert float((a**2).sum()) == pytest.approx(0.5, rel=tolerance())


def test_shapes_types_and_dtypes():
    q = np.array([[0.5, 1.0, 2.0], [0.1, 0.0, 4.0]])
    a = nsd.gaussian.hermite_coefficients("tanh", q, 5)
    assert a.shape == (2, 3, 5)
    assert np.allclose(a[1, 2], nsd.gaussian.hermite_coefficients("tanh", 4.0, 5), rtol=0, atol=ulps(4))
    t = nsd.gaussian.hermite_coefficients("tanh", torch.tensor(q, dtype=torch.float32), 5)
    assert t.dtype == torch.float32
    assert np.allclose(t.numpy(), a, rtol=0, atol=ulps(1, np.float32))
    assert isinstance(nsd.gaussian.moments("tanh", 1.0).mean, float)
    assert isinstance(nsd.gaussian.moments("tanh", np.float32(1.0)).mean, float)
    assert nsd.gaussian.moments("tanh", q).square.shape == (2, 3)
    assert nsd.gaussian.moments("tanh", torch.tensor(2)).square.dtype == torch.float64
    assert nsd.gaussian.hermite_coefficients("relu", np.zeros(0), 4).shape == (0, 4)
    assert nsd.gaussian.moments("relu", np.zeros(0)).mean.shape == (0,)


def test_many_scales_at_once_equal_one_at_a_time():
    tau = np.array([30.0, 1e-3, 2.0, 0.0, 0.7])
    many = nsd.gaussian.moments("gelu", tau)
    for i, t in enumerate(tau):
        one = nsd.gaussian.moments("gelu", float(t))
        for field in FIELDS:
            assert getattr(many, field)[i] == pytest.approx(getattr(one, field), rel=ulps(512), abs=ulps(4))


@pytest.mark.parametrize(
    "call",
    [
        lambda: nsd.gaussian.moments("relu", -1.0),
        lambda: nsd.gaussian.moments("relu", math.nan),
        lambda: nsd.gaussian.moments("relu", np.array([1.0, math.inf])),
        lambda: nsd.gaussian.hermite_coefficients("relu", 1.0, 0),
        lambda: nsd.gaussian.hermite_coefficients("relu", 1.0, 2.5),
        lambda: nsd.gaussian.hermite_coefficients("relu", -0.1, 3),
    ],
)
def test_bad_arguments_are_refused(call):
    with pytest.raises(InvalidInputError):
        call()


def test_overflow_is_an_error_not_a_number():
    with pytest.raises(ConvergenceError):
        nsd.gaussian.moments(Hermite((0.0, 0.0, 0.0, 1.0)), 1e60)


@pytest.mark.parametrize(
    "phi",
    [
        LeakyReLU(0.1),
        HardTanh(1.3, 0.5).affine(skip=-0.3, shift=0.4),
        Sin().affine(skip=0.5, shift=1.0),
        Cos().affine(gain=2.0, skip=-0.3),
    ],
)
def test_quadrature_against_sampling(phi):
    n = 200_000
    x = 1.3 * np.random.default_rng(0).standard_normal(n)
    m = nsd.gaussian.moments(phi, 1.3)
    assert abs(phi(x).mean() - m.mean) < tolerance(samples=n) * math.sqrt(m.variance)
    fourth = ((phi(x) - m.mean) ** 2).std()
    assert abs(((phi(x) - m.mean) ** 2).mean() - m.variance) < tolerance(samples=n) * fourth
    assert abs(phi.derivative(x).mean() - m.slope) < tolerance(samples=n) * (phi.derivative(x).std() + tolerance())


@pytest.mark.parametrize("derivative", [False, True])
@pytest.mark.parametrize(
    "phi",
    [
        nsd.activations.HardSwish(),
        HardTanh(2.0, 0.3),
        LeakyReLU(0.1),
    ],
    ids=repr,
)
def test_pieces_of_polynomials_are_integrated_by_parts(phi, derivative):
    """Against quadrature, from scales at which the kinks are never felt to those at which nothing else is."""
    tau = torch.tensor([1e-3, 0.05, 0.3, 1.0, 3.0, 20.0], dtype=torch.float64)
    for terms in (2, 3, 700):
        found = hermite_coefficients(phi, tau**2, terms, derivative)
        exact = function_coefficients(phi.derivative if derivative else phi, tau, phi.panels(), terms)
        assert found.shape == exact.shape
        assert bool(((found - exact).abs() <= ulps() * exact.abs().amax(1, keepdim=True)).all())


@pytest.mark.parametrize("scale", [1e-3, 0.7, 5.0])
@pytest.mark.parametrize("name", ["tanh", "silu", "gelu", "hard_tanh", "elu", "relu"])
def test_moments_give_the_rate_of_the_variance(name: str, scale: float) -> None:
    """d Var / dq = Q2 / 2 - E[phi] E[phi''], against differences in log q."""
    step, at = 1e-4, nsd.gaussian.moments(name, scale)
    ends = nsd.gaussian.moments(name, scale * np.exp(0.5 * step * np.array([-1.0, 1.0]))).variance
    rate = scale**2 * (0.5 * at.square_curvature - at.mean * at.curvature)
    assert abs(float(np.diff(ends)[0]) / (2.0 * step) - rate) < differences(step) * at.variance
