"""The four numbers: published reference values, derivatives of the exact kernel, invariants."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import differences, printed, tolerance, ulps
from notsodeep.errors import ConvergenceError, InvalidInputError
from notsodeep.kernels import diagonal, pairwise

# theory, section 9: tau0 = 1, sigma_a2 = 0.2, sigma_b2 = 0.8; the NTK is the slides' K* (input weights frozen)
REFERENCE = {
    "tanh": {
        "scale": (0.9348716109, 0.0),
        "ck": (0.3449876327, 0.0, 0.0, 0.3699246446),
        "ntk_frozen": (0.3747417493, 0.0, 0.0, 0.4099945604),
    },
    "relu": {
        "scale": (0.9265661260, 0.3696464033),
        "ck": (0.2105263158, 0.0359574904, 0.0691904980, 0.2926239295),
        "ntk_frozen": (0.2216066482, 0.0378499899, 0.0801153134, 0.3251376995),
    },
    "silu": {
        "scale": (0.9233213316, 0.1802280653),
        "ck": (0.2105263158, 0.0258640761, 0.0497958043, 0.2626114065),
        "ntk_frozen": (0.2216066482, 0.0272253433, 0.0576582997, 0.2835101729),
    },
}
KERNELS = ("ck", "ntk", "ntk_frozen")
NETWORKS = {
    "tanh": nsd.DEQ("tanh", 0.2),
    "relu": nsd.DEQ("relu", 0.2),
    "silu": nsd.DEQ("silu", 0.15, 0.6),
    "elu": nsd.DEQ("elu", 0.2),
    "enn1": nsd.ENN(["softplus"]),
    "enn2": nsd.ENN(["relu", "silu"]),
    "enn3": nsd.ENN(["elu", "tanh", "gelu"]),
}


@pytest.mark.parametrize("kernel", ["ck", "ntk_frozen"])
@pytest.mark.parametrize("name", REFERENCE)
def test_reference_values(name, kernel):
    c = nsd.coefficients(nsd.DEQ(name, sigma_a2=0.2), tau0=1.0, kernel=kernel)
    assert c.four == pytest.approx(REFERENCE[name][kernel], abs=printed(10))
    assert (c.tau_star, c.bias) == pytest.approx(REFERENCE[name]["scale"], abs=printed(10))


@pytest.mark.parametrize("tau0", [0.7, 1.3])
@pytest.mark.parametrize("name", NETWORKS)
def test_coefficients_are_derivatives_of_the_exact_kernel(name, tau0):
    """Near orthogonal points of norm tau0: c1 = dk/d(x.y), c3 = (1/2) d2k/d(x.y)^2, c2 = d2k/d|x|^2 d|y|^2."""
    found = {k: nsd.coefficients(NETWORKS[name], tau0, k) for k in KERNELS}
    network = found["ck"].network
    s, h = tau0**2, 2e-3

    def at(dx, dy, dot):
        point = (torch.tensor([v], dtype=torch.float64) for v in (s + dx, s + dy, dot))
        return {k: float(v) for k, v in pairwise(network, *point, kernels=KERNELS).items()}

    here, up, down = at(0, 0, 0), at(0, 0, h), at(0, 0, -h)
    up2, down2 = at(0, 0, 2 * h), at(0, 0, -2 * h)
    corner = {(i, j): at(i * h, j * h, 0) for i in (-1, 1) for j in (-1, 1)}
    same = diagonal(network, torch.tensor(s, dtype=torch.float64), kernels=KERNELS)
    for k in KERNELS:
        c = found[k]
        slope = (8 * (up[k] - down[k]) - (up2[k] - down2[k])) / (12 * h)
        bend = (16 * (up[k] + down[k]) - (up2[k] + down2[k]) - 30 * here[k]) / (12 * h * h)
        mixed = (corner[1, 1][k] - corner[1, -1][k] - corner[-1, 1][k] + corner[-1, -1][k]) / (4 * h * h)
        assert c.c1 == pytest.approx(slope, abs=2.0 * differences(h, accuracy=4))
        assert c.c3 == pytest.approx(bend / 2, abs=differences(h, order=2, accuracy=4))
        assert c.c2 == pytest.approx(mixed, abs=differences(h, order=2))
        assert c.diagonal == pytest.approx(float(same[k]), rel=tolerance())
        assert here[k] == pytest.approx(0.0, abs=ulps())


@pytest.mark.parametrize("name", ["tanh", "relu", "silu", "elu"])
def test_alpha4_is_the_response_of_the_scale(name):
    deq = NETWORKS[name]
    c = nsd.coefficients(deq, 1.1)
    centred, h = c.network, 1e-4
    s2a, s2b = float(deq.sigma_a2), float(deq.sigma_b2)

    def scale(square):
        q = square
        for _ in range(200):
            q = s2a * nsd.gaussian.moments(centred.activation, q**0.5).square + s2b * square
        return q

    assert c.alpha4 == pytest.approx((scale(1.21 + h) - scale(1.21 - h)) / (2 * h), rel=differences(h))


@given(
    st.sampled_from(["tanh", "relu", "silu", "elu", "softplus"]),
    st.floats(0.0, 0.2),
    st.floats(0.3, 2.0),
    st.floats(0.2, 3.0),
)
def test_coefficients_are_those_of_a_kernel(name, s2a, s2b, tau0):
    deq = nsd.DEQ(name, s2a, s2b)
    all_three = {k: nsd.coefficients(deq, tau0, k) for k in KERNELS}
    for c in all_three.values():
        assert min(c.four) >= 0.0
        # g(1) >= g_1 + g_2 on the sphere: the identity part of the equivalent is not negative
        assert c.diagonal - tau0**2 * c.c1 - tau0**4 * c.c3 >= -tolerance()
    assert (
        all_three["ntk"].diagonal
        >= all_three["ntk_frozen"].diagonal - tolerance()
        >= all_three["ck"].diagonal - 2 * tolerance()
    )


@given(st.floats(0.2, 5.0))
def test_homogeneous_activations_scale(tau0):
    one, other = (nsd.coefficients(nsd.DEQ("relu", 0.2), t) for t in (1.0, tau0))
    expected = (one.c1, one.c2 / tau0**2, one.c3 / tau0**2, one.diagonal * tau0**2)
    assert other.four == pytest.approx(expected, rel=tolerance())


def test_without_recurrence_a_deq_is_one_layer():
    for kernel in ("ck", "ntk"):
        deq = nsd.coefficients(nsd.DEQ("silu", 0.0, 1.0), 1.2, kernel)
        assert deq.four == pytest.approx(nsd.coefficients(nsd.ENN("silu"), 1.2, kernel).four, rel=tolerance())


def test_one_layer_forces_half():
    c = nsd.coefficients(nsd.ENN("gelu"), 0.9)
    assert c.c2 == pytest.approx(c.c3 / 2, rel=tolerance())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((nsd.DEQ("relu", 0.2), 0.0), "tau0"),
        ((nsd.DEQ("relu", 0.2), float("nan")), "tau0"),
        ((nsd.DEQ("relu", 0.2), 1.0, "gram"), "kernel must be one of"),
        (("relu", 1.0), "must be a notsodeep.DEQ or a notsodeep.ENN"),
    ],
)
def test_invalid_arguments_say_why(arguments, message):
    with pytest.raises(InvalidInputError, match=message):
        nsd.coefficients(*arguments)


def test_jumps_and_divergence_are_reported():
    sign = nsd.Activation.from_callable(torch.sign, kinks=(0.0,), name="sign")
    assert nsd.coefficients(nsd.ENN([sign]), 1.3).diagonal == pytest.approx(1.0)
    with pytest.raises(InvalidInputError, match="only kernel='ck'"):
        nsd.coefficients(nsd.ENN([sign]), 1.3, "ntk")
    with pytest.raises(ConvergenceError, match="sigma_a2"):
        nsd.coefficients(nsd.DEQ("linear", 1.5, 1.0), 1.0, "ntk")
    wild = nsd.DEQ("sin", 3.0, 0.1)  # far outside the contraction range: E[phi'^2] sigma_a2 > 1 at the fixed point
    assert nsd.coefficients(wild, 1.0, "ck").diagonal > 0
    with pytest.raises(ConvergenceError, match="diverges"):
        nsd.coefficients(wild, 1.0, "ntk_frozen")


def test_variances_that_track_gradients():
    tracked = nsd.DEQ("relu", torch.tensor(0.2, dtype=torch.float64, requires_grad=True))
    assert nsd.coefficients(tracked, 1.0).four == nsd.coefficients(nsd.DEQ("relu", 0.2), 1.0).four


# ---- the closed forms of docs/theory.md, sections 4 and 5, written out: the library derives the numbers from jets ----


def implicit_numbers(deq: nsd.DEQ, tau0: float) -> dict[str, tuple[float, ...]]:
    s2a, s2b, _ = deq.variances
    tau = deq.centred_scale(tau0)
    m = nsd.gaussian.moments(deq.activation, tau)
    e1, e2, d2, q2 = m.slope, m.curvature, m.slope_square, m.square_curvature - 2 * m.mean * m.curvature
    den = 1 - s2a * e1**2
    lam, alpha4 = s2b / den, s2b / (1 - s2a * q2 / 2)
    alpha1, alpha2, alpha3 = e1**2 * lam, e2**2 * alpha4**2 / (4 * den), e2**2 * lam**2 / (2 * den)
    beta3 = (alpha3 + alpha1 / den * s2a * e2**2 * lam) / den
    return {
        "ck": (alpha1, alpha2, alpha3, m.variance),
        "ntk_frozen": (alpha1 / den, alpha2 / den, beta3, m.variance / (1 - s2a * d2)),
        "ntk": (
            alpha1 * (1 + 1 / den),
            alpha2 / den,
            alpha3 / den + (lam * e2 / den) ** 2,
            m.variance + tau**2 * d2 / (1 - s2a * d2),
        ),
    }


def explicit_numbers(enn: nsd.ENN, tau0: float, trained: bool) -> dict[str, tuple[float, ...]]:
    a1, a2, a3, a4, square = 1.0, 0.0, 0.0, 1.0, tau0**2
    b1, b2, b3, kappa2 = (1.0, 0.0, 0.0, tau0**2) if trained else (0.0, 0.0, 0.0, 0.0)
    for phi in enn.activations:
        m = nsd.gaussian.moments(phi, square**0.5)
        e1, e2, q2 = m.slope**2, m.curvature**2, m.square_curvature - 2 * m.mean * m.curvature
        b3 = e1 * b3 + e2 * a1 * b1
        a1, a2, a3, a4 = e1 * a1, e1 * a2 + e2 * a4**2 / 4, e1 * a3 + e2 * a1**2 / 2, q2 / 2 * a4
        square = m.variance
        b1, b2, b3, kappa2 = a1 + e1 * b1, a2 + e1 * b2, a3 + b3, square + kappa2 * m.slope_square
    return {"ck": (a1, a2, a3, square), "ntk" if trained else "ntk_frozen": (b1, b2, b3, kappa2)}


@pytest.mark.parametrize("tau0", [0.4, 1.7])
@pytest.mark.parametrize("name", ["relu", "tanh", "silu", "elu", "softplus", "hard_tanh", "sin"])
def test_numbers_are_those_of_the_closed_forms(name, tau0):
    deq, enn = nsd.DEQ(name, 0.17, 0.6), nsd.ENN([name, "silu", name])
    for kernel, four in implicit_numbers(deq, tau0).items():
        assert nsd.coefficients(deq, tau0, kernel).four == pytest.approx(four, rel=tolerance(), abs=ulps())
    for trained in (True, False):
        for kernel, four in explicit_numbers(enn, tau0, trained).items():
            assert nsd.coefficients(enn, tau0, kernel).four == pytest.approx(four, rel=tolerance(), abs=ulps())
