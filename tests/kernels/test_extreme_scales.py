"""Kernels at any scale: inputs tiny, huge, duplicated or unscaled are answered right and quickly, or refused."""

from __future__ import annotations

import itertools
import math
import time

import mpmath as mp
import numpy as np
import pytest
import scipy.special
import torch
from mpmath.calculus.quadrature import GaussLegendre

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Activation
from notsodeep.errors import ActivationError, ConvergenceError, InvalidInputError
from notsodeep.kernels import pairwise, smoothing
from notsodeep.kernels.expectations import Layer

E, D, F = nsd.ENN, nsd.DEQ, Activation.from_callable
CLAMP = F(lambda x: torch.clamp(x, -1, 1), kinks=(-1.0, 1.0))
SETTLED = [
    *(
        nsd.activation(n)
        for n in ("tanh", "sigmoid", "softplus", "silu", "mish", "hard_swish", "elu", "selu", "hard_tanh")
    ),
    CLAMP,
    nsd.activation("elu", alpha=2.0).affine(gain=0.5, scale=3.0, skip=0.2, shift=0.1),
]


def layer_at(phi: Activation, sx: float, sy: float, rho: float) -> tuple[float, float]:
    one = torch.ones(1, dtype=torch.float64)
    value, slope = Layer(phi, sx * sx * one, sy * sy * one).both(rho * sx * sy * one)
    return float(value), float(slope)


def mixture_of_erf(scales: tuple[float, ...], weights: tuple[float, ...]) -> Activation:
    """sum_i w_i erf(x / s_i) as a plain function: its kernel is a sum of arcsine kernels."""
    return F(lambda x: sum(w * torch.erf(x / s) for w, s in zip(weights, scales, strict=True)))


@pytest.mark.parametrize(("sx", "sy"), [(20.0, 20.0), (300.0, 40.0), (1e8, 1e5), (1e120, 1e120)])
@pytest.mark.parametrize("rho", [0.3, 0.99, 1 - 1e-9, 1.0, -0.999, -1.0])
def test_large_scales_against_arcsine_kernels(sx, sy, rho):
    scales, weights = (0.7, 1.0, 2.5), (0.5, -0.2, 1.1)
    with mp.workdps(600):
        value = slope = mp.mpf(0)
        for w, s in zip(weights, scales, strict=True):
            for v, t in zip(weights, scales, strict=True):
                # E[erf(u/s) erf(v/t)] = 2/pi asin(2 lam / sqrt((s^2 + 2 qx)(t^2 + 2 qy))), and its derivative in lam
                room = (mp.mpf(s) ** 2 + 2 * mp.mpf(sx) ** 2) * (mp.mpf(t) ** 2 + 2 * mp.mpf(sy) ** 2)
                lam = mp.mpf(rho) * mp.mpf(sx) * mp.mpf(sy)
                value += mp.mpf(w) * v * 2 / mp.pi * mp.asin(2 * lam / mp.sqrt(room))
                slope += mp.mpf(w) * v * 4 / mp.pi / mp.sqrt(room - 4 * lam**2)
        value, slope = float(value), float(slope)
    found, steep = layer_at(mixture_of_erf(scales, weights), sx, sy, rho)
    assert found == pytest.approx(value, rel=0, abs=sum(weights) ** 2 * tolerance())
    # lam is rounded before the layer sees it: 1 - rho^2 is known to two units, and the slope follows its root
    known = 1.0 if abs(rho) == 1 else 4e-16 / (1 - rho * rho)
    assert steep == pytest.approx(slope, rel=tolerance() + (0.0 if abs(rho) == 1 else known))


@pytest.mark.parametrize("phi", SETTLED, ids=repr)
def test_both_rules_agree_at_a_scale_that_both_can_do(phi):
    """Quadrature against long series, or the closed form of lines and parabolas."""
    scale = (33.0 if phi.piecewise_linear else 12.0 if phi.breaks else 0.5) * phi.tails().reach
    rho = torch.tensor([0.2, 0.95, 0.9999, 1.0, -0.97, -1.0], dtype=torch.float64)
    qx, qy = torch.full_like(rho, scale**2), torch.full_like(rho, 1.3 * scale**2)
    lam = rho * qx.sqrt() * qy.sqrt()
    split, plain = Layer(phi, qx, qy), Layer(phi, qx, qy)
    assert split.large.all()
    plain.__dict__["large"] = torch.zeros_like(rho, dtype=torch.bool)
    for a, b in zip(split.both(lam), plain.both(lam), strict=True):
        assert float((a - b).abs().max()) < tolerance() * float(b.abs().max())


@pytest.mark.parametrize("phi", SETTLED, ids=repr)
def test_far_out_a_kernel_is_that_of_its_lines(phi):
    (b0, a0), (b1, a1) = phi.tails().left, phi.tails().right
    s, rho = 1e9, 0.37
    angle = math.acos(rho)
    if a0 or a1:  # arc cosine of degree one
        along = (math.sqrt(1 - rho**2) + (math.pi - angle) * rho) / (2 * math.pi)
        against = (math.sqrt(1 - rho**2) - angle * rho) / (2 * math.pi)
        expected = ((a1 * a1 + a0 * a0) * along - 2 * a1 * a0 * against) * s * s
    else:
        expected = (b1 * b1 + b0 * b0) * (0.5 - 0.5 * angle / math.pi) + b1 * b0 * angle / math.pi
    assert layer_at(phi, s, s, rho)[0] == pytest.approx(expected, rel=10 / s)  # corrections are of order 1 / s


def test_float32_duplicates():
    for name in ("erf", "gelu"):
        K = nsd.ck(E([name]), np.full((2, 3), 1e5, "f4"))
        assert np.isfinite(K).all()
        assert K[0, 1] == pytest.approx(K[0, 0], rel=tolerance(np.float32))
        images = np.random.default_rng(0).integers(0, 256, (25, 784)).astype("f4")
        assert np.isfinite(nsd.ck(E([name]), np.concatenate([images, images]))).all()
    assert nsd.ck(E(["sin"]), np.full((2, 3), 12345.0, "f4")) == pytest.approx(np.full((2, 2), 0.5))
    for v in (1e8, 1e9, 1e100):
        assert nsd.ck(E(["gelu"]), np.full((2, 3), v)) / v**2 == pytest.approx(np.full((2, 2), 1.5), rel=tolerance())
    rng = np.random.default_rng(1)
    x = rng.normal(size=(1, 20)) * 1e3 / math.sqrt(20)
    near = np.concatenate([x, x * (1 + 1e-6 * rng.normal(size=(5, 20)))]).astype("f4")
    K = nsd.ck(D("gelu", 0.15), near)
    assert np.isfinite(K).all()
    assert np.linalg.eigvalsh(K.astype("f8"))[0] > -ulps(8, np.float32) * np.trace(K)


@pytest.mark.parametrize("v", [100.0, 300.0, 1000.0, 1e6])
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_diagonals_of_waves(name, v):
    assert nsd.ck(E([name]), [[v]])[0, 0] == pytest.approx(0.5, rel=tolerance())


def test_oscillating_functions_are_right_or_refused():
    fast = F(lambda x: torch.sin(20 * x))
    assert nsd.ck(E([fast]), 3 * np.eye(2)) == pytest.approx(0.5 * np.eye(2), abs=tolerance())
    x = np.array([[3.0, 0.0], [2.9, 0.5]])
    try:
        found = nsd.ck(E([fast]), x)[0, 1]
    except ConvergenceError as error:
        assert "scale the inputs down" in str(error)  # noqa: PT017
    else:
        assert found == pytest.approx(0.5 * math.exp(-200 * 0.26), abs=tolerance())
    with pytest.raises(ActivationError, match="varies too fast"):
        F(lambda x: torch.sin(x * x))


def test_functions_that_outgrow_the_normal_density_are_refused():
    grows = F(lambda x: torch.exp(x / 4))
    assert nsd.ck(E([grows]), [[8.0]])[0, 0] == pytest.approx(math.exp(8.0**2 / 8), rel=tolerance())
    for v in (30.0, 116.0, 1e5):
        with pytest.raises(ConvergenceError, match=r"grows too fast|varies too fast"):
            nsd.ck(E([grows]), [[v]])


@pytest.mark.parametrize("deviations", [3.0, 8.0, 9.5, 11.0, 12.5, 20.0, 100.0])
def test_functions_that_begin_far_out_are_allowed(deviations):
    """Soft thresholds of faint rows and of the dark parts of images."""
    shrink, v = F(torch.nn.Softshrink(), kinks=(-0.5, 0.5)), 0.5 / deviations
    with mp.workdps(40):
        c = mp.mpf(deviations)
        square = 2 * mp.mpf(v) ** 2 * ((1 + c**2) * mp.erfc(c / mp.sqrt(2)) / 2 - c * mp.npdf(c))
    # quadrature ends at 13 deviations: a kernel of 1e-30 has digits of its own no more
    assert nsd.ck(E([shrink]), [[v]])[0, 0] == pytest.approx(float(square), rel=tolerance(), abs=1e-30)
    K = nsd.ntk(nsd.ConvDEQ(shrink, 0.1, 0.8, image=(1, 3, 3)), np.linspace(0.0, 1.0, 36).reshape(4, 9))
    assert np.isfinite(K).all()
    assert K[3, 3] > 0


@pytest.mark.parametrize("v", [100.0, 3000.0, 1e8, 1e130])
def test_a_clipped_callable_is_the_hard_tanh_at_any_scale(v):
    x = v * np.array([[1.0, 0.0], [0.8, 0.6], [1.0, 1e-9]])
    ours, built_in = nsd.ck(E([CLAMP]), x), nsd.ck(E(["hard_tanh"]), x)
    assert ours == pytest.approx(built_in, rel=tolerance())
    assert ours[0, 0] == pytest.approx(1 - 4 / 3 / math.sqrt(2 * math.pi) / v, abs=1 / v**2 + tolerance())


@pytest.mark.parametrize("v", [1e-18, 1e-100, 1e-150])
def test_homogeneous_kernels_scale_exactly(v):
    X = np.array([[1.0, 0.0], [0.3, 0.7], [-0.2, 0.9]])
    for network in (E(["relu"]), E(["relu", "leaky_relu"]), D("relu", 0.2)):
        assert nsd.ck(network, v * X) / v / v == pytest.approx(nsd.ck(network, X), rel=tolerance())
    mixed = nsd.ck(E(["relu"]), np.diag([v, 1.0]))
    assert mixed[0, 1] == pytest.approx(v / (2 * math.pi), rel=tolerance(), abs=0)


def test_hard_tanh_far_out():
    # corrections are of order 1 over the scale
    assert nsd.ck(E(["hard_tanh"]), [[1e8]], [[1e8]])[0, 0] == pytest.approx(1.0, rel=1e-8)


def test_kernels_that_vanish_fit_into_a_table():
    rng = np.random.default_rng(0)
    W = rng.normal(size=(40, 5))
    W *= 40 / np.linalg.norm(W, axis=1)[:, None]
    assert not nsd.ck(E(["tanh"]), np.zeros((40, 5))).any()
    assert not nsd.ck(E([nsd.activation("linear", slope=0.0)]), W).any()
    assert not nsd.ck(D("tanh", 0.2, 0.0), W).any()
    for name in ("sin", "cos"):
        assert nsd.ck(E([name]), W) == pytest.approx(0.5 * np.eye(40), abs=tolerance())


@pytest.mark.parametrize("v", [1e145, 1e155, 1e200, 1e300])
def test_norms_without_room_are_refused(v):
    for network in (D("relu", 0.2), D("tanh", 0.2), E(["gelu"])):
        with pytest.raises(InvalidInputError, match="norm beyond"):
            nsd.ck(network, v * np.eye(2))


@pytest.mark.parametrize("v", [1e-300, 1e-200, 1e-155])
def test_norms_that_vanish_give_kernels_that_vanish(v):
    for name in ("relu", "tanh", "gelu", "elu"):
        K = nsd.ck(D(name, 0.1), v * np.eye(2))
        assert np.isfinite(K).all()
        # squares of norms up to 1e-155
        assert np.abs(K).max() < 1e-300


def test_the_ck_of_a_deq_with_jumps():
    step = F(lambda x: (x > 0).to(x.dtype), kinks=(0.0,), name="step")
    deq, X = D(step, 0.2, 0.8), np.array([[1.0, 0.0], [0.0, 1.0]])
    K = nsd.ck(deq, X, check=False)
    lam, q = 0.2 * K[0, 1], 0.2 * K[0, 0] + 0.8
    assert K[0, 0] == pytest.approx(0.5, rel=tolerance())
    assert K[0, 1] == pytest.approx(0.25 + math.asin(lam / q) / (2 * math.pi), rel=tolerance())  # Sheppard
    with pytest.raises(InvalidInputError, match="jumps"):
        nsd.ntk(deq, X, check=False)


@pytest.mark.parametrize("network", [D("tanh", 0.2), D("elu", 0.2), D("mish", 0.2), D("softplus", 0.2)], ids=repr)
def test_unscaled_inputs_are_quick(network):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 50))
    X *= 100 / np.linalg.norm(X, axis=1)[:, None] * rng.uniform(0.8, 1.2, (40, 1))
    begin = time.process_time()
    for points in (X, rng.integers(0, 256, (40, 784)).astype(float)):
        K = nsd.ntk(network, points)
        assert np.isfinite(K).all()
        assert np.linalg.eigvalsh(K)[0] > -tolerance() * np.trace(K)
    assert time.process_time() - begin < 20.0  # seconds of one processor; about one on an idle machine


def test_what_is_slow_says_why():
    with pytest.warns(nsd.errors.NotSoDeepWarning, match="pairs of long inputs"):
        smoothing.check_cost(1 << 16, 40_000, 1e3)
    with pytest.raises(ConvergenceError, match="scale the inputs down"):
        smoothing.check_cost(1 << 25, 1, 1e3)


def plane_mean(f, sx: float, sy: float, rho: float) -> float:
    """E[f(u) f(v)] by Gauss and Legendre's rule on panels between the kinks, one variable given the other."""
    x, w = np.polynomial.legendre.leggauss(40)

    def nodes(cuts):
        cuts = np.unique(np.clip(np.concatenate([np.linspace(-9.0, 9.0, 13), cuts]), -9.0, 9.0))
        z = (0.5 * (cuts[1:] + cuts[:-1])[:, None] + 0.5 * np.diff(cuts)[:, None] * x).ravel()
        return z, (0.5 * np.diff(cuts)[:, None] * w).ravel() * np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)

    kinks, spread = np.array(f.kinks), math.sqrt((1.0 - rho) * (1.0 + rho))
    ripple = np.linspace(-9.0, 9.0, 25) * spread / abs(rho)
    X, outer = nodes(np.concatenate([kinks / sx, (kinks[:, None] / (sy * rho) + ripple).ravel()]))
    total = 0.0
    for at, weight in zip(X, outer, strict=True):
        z, inner = nodes((kinks - sy * rho * at) / (sy * spread))
        total += weight * float(f(sx * at)) * float(f(sy * (rho * at + spread * z)) @ inner)
    return total


def test_a_bend_beside_zero_is_not_the_length_on_which_a_function_varies():
    """Far out and near duplicates: the rule of products was taken where the density was narrower than its panels."""
    phi = nsd.activation("hard_tanh", c=0.006).affine(gain=-0.3, skip=0.186, shift=0.1)
    qx, qy, rho = (torch.tensor([v], dtype=torch.float64) for v in (70.0, 80.0, 0.9999992))
    found = Layer(phi, qx, qy).value(rho * (qx * qy).sqrt())
    exact = plane_mean(phi, float(qx) ** 0.5, float(qy) ** 0.5, float(rho))
    assert float(found) == pytest.approx(exact, rel=tolerance())


@pytest.mark.parametrize(
    ("network", "norms"),
    [
        (E([nsd.activation("hermite", coefficients=(0.4, -0.3, 0.0, 0.05, -0.1, -0.05))]), (0.01, 20.0)),
        (E(["softplus"]), (1e-9, 1.0)),
        (E(["sin", "softplus"]), (0.0, 1e41)),
        (E(["tanh"]), (0.0, 1.0)),
        (D("tanh", 0.2), (1e-9, 2.0)),
    ],
)
def test_short_rows_beside_long_ones_keep_their_digits(network, norms):
    """Once a table was exact beside the largest entry only, or had never seen the shortest row."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(150, 6))
    X *= (np.linspace(*norms, 150) / np.linalg.norm(X, axis=1))[:, None]
    K = nsd.ck(network, X)
    i, j = np.triu_indices(150)
    pick = np.concatenate([np.arange(150), rng.integers(len(i), size=100)])  # the shortest row with all, and some
    i, j = i[pick], j[pick]
    s = torch.from_numpy((X**2).sum(1))
    exact = nsd.kernels.pairwise(network, s[i], s[j], torch.from_numpy((X[i] * X[j]).sum(1)))["ck"].numpy()
    scale = np.sqrt(K[i, i] * K[j, j])
    # off the diagonal: a point with itself has its own formula, and the angle between its copies is known to 1e-8 only
    off = np.abs(K[i, j] - exact)[i != j]
    assert (off <= tolerance() * scale[i != j]).all()


def test_a_point_with_itself_in_a_rectangle_beyond_all_features():
    """The blur of the strip rule was a share of the scale: nothing beside 1, but beyond all features at 1e128."""
    X = np.array([[3e127, 8e127]])
    network = D("hard_tanh", 0.15, 0.37)
    assert nsd.ntk(network, X, X)[0, 0] == pytest.approx(nsd.ntk(network, X)[0, 0], rel=tolerance())


def test_pairs_that_look_different_are_evaluated_once(monkeypatch):
    """A bias beside vanishing inputs: 276 pairs of one and the same covariance."""
    seen = []
    monkeypatch.setattr(smoothing, "check_cost", lambda nodes, pairs, *_: seen.append(pairs))
    X = 1e-85 * np.random.default_rng(0).normal(size=(24, 10))
    nsd.ck(nsd.DEQ("elu", 0.2, 0.8, 0.7), X)
    assert max(seen, default=0) <= 2


@pytest.mark.parametrize("sigma_a2", [0.05, 0.19])
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
def test_near_duplicates_of_a_deq_in_single_precision(kernel, sigma_a2):
    """GELU at norm 1e3: once sigma_a2 was blamed for a rounded determinant."""
    rng = np.random.default_rng(0)
    one = rng.standard_normal(20) * 200
    X = np.stack([one * (1 + 1e-7 * k) + 1e-4 * rng.standard_normal(20) for k in range(6)]).astype(np.float32)
    network = D("gelu", sigma_a2)
    K, exact = (nsd.kernels_of(network, rows, kernels=(kernel,))[kernel] for rows in (X, X.astype(float)))
    np.testing.assert_allclose(K, exact, rtol=tolerance(np.float32) / 100)


@pytest.mark.parametrize("network", [D("hard_tanh", 0.2), D("relu", 0.2), E(["tanh"])], ids=repr)
def test_a_subnormal_row_does_not_disturb_its_neighbours(network):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    X[7], X[8] = 1e-41, 1e-38
    K = nsd.ntk(network, X)
    np.testing.assert_allclose(K, nsd.ntk(network, X.astype(float)), rtol=0, atol=30 * tolerance(np.float32))
    rest = np.delete(np.arange(60), [7, 8])
    np.testing.assert_allclose(
        K[np.ix_(rest, rest)], nsd.ntk(network, X[rest]), rtol=0, atol=30 * tolerance(np.float32)
    )


def test_a_far_row_beside_itself_has_the_kernel_of_the_diagonal():
    """Kernels fall within an angle there that the rounding of a covariance would hide."""
    X = 1e12 * np.random.default_rng(0).standard_normal((2, 2))
    for network in (E(["arctan", "hard_tanh"]), D("arctan", 0.2)):
        beside, along = (nsd.ntk(network, X, Y) for Y in (X, None))
        np.testing.assert_allclose(np.diag(beside), np.diag(along), rtol=tolerance())


@pytest.mark.parametrize("phi", ["cos", "sin"])
def test_the_order_of_far_rows_does_not_matter(phi):
    """A rounded correlation is the same from either side: at norm 2e3 its last digit is 1e-9 of the kernel."""
    X = 2338.66 + np.random.default_rng(0).uniform(0.0, 1.0, (30, 1))
    network = D(phi, 0.1421588624, 1.605512599)
    K, turned = nsd.ck(network, X, check=False), nsd.ck(network, X[::-1].copy(), check=False)
    np.testing.assert_allclose(turned[::-1, ::-1], K, rtol=0, atol=tolerance())


def test_nothing_is_solved_where_no_weights_feed_back(monkeypatch):
    """Mish at norms far apart takes seconds each time a layer is evaluated."""
    calls = []
    monkeypatch.setattr(smoothing, "check_cost", lambda nodes, pairs, scale: calls.append(nodes))
    nsd.ck(D("mish", 0.0), np.array([[1e-3, 0.0], [1e3, 1.0]]))
    assert len(calls) == 1


@pytest.mark.parametrize("far", [1e2, 1e4, 1e8, 1e15])
def test_hard_tanh_of_a_far_point_and_a_near_one(far):
    """Beside a near point a far one is its sign: E[sign(u) phi(v)] by the trapezoidal rule."""
    r, v = 0.6, np.arange(-9.0, 9.0, 1e-4)
    weight = np.exp(-0.5 * v**2) / math.sqrt(2.0 * math.pi) * 1e-4
    expected = float(np.sum(weight * np.clip(v, -1.0, 1.0) * scipy.special.erf(r * v / math.sqrt(2.0 * (1.0 - r * r)))))
    square = torch.tensor([far**2], dtype=torch.float64)
    one = torch.ones_like(square)
    found = pairwise(nsd.ENN(["hard_tanh"]), square, one, r * far * one, ("ck",))["ck"]
    assert float(found) == pytest.approx(expected, abs=1.0 / far**2 + 1e-6)  # the step is no step yet


@pytest.mark.parametrize("bias", [0.0, 30.0])
def test_equilibria_of_erf_at_norms_to_a_million(bias):
    """Fixed points in forty digits, of pairs that share no scale."""
    a, b, angle = 0.15, 0.8, 0.7
    norms = [1e-3, 1.0, 1e3, 1e6]
    Z = np.array([[n * np.cos(t), n * np.sin(t)] for n in norms for t in (0.0, angle)])
    network = nsd.DEQ("erf", sigma_a2=a, sigma_b2=b, sigma_c2=bias)
    found = {kernel: getattr(nsd, kernel)(network, Z) for kernel in ("ck", "ntk")}
    with mp.workdps(40):
        rows = [[mp.mpf(float(v)) for v in row] for row in Z]

        def value(x, y, lam):
            return 2 / mp.pi * mp.asin(2 * lam / mp.sqrt((1 + 2 * x) * (1 + 2 * y)))

        def solved(drive, x=None, y=None):
            lam = drive
            for _ in range(150):
                lam = mp.mpf(a) * value(x or lam, y or lam, lam) + drive
            return lam

        drives = [[mp.mpf(b) * mp.fdot(u, v) + mp.mpf(bias) for v in rows] for u in rows]
        own = [solved(drives[i][i]) for i in range(len(rows))]
        for i, j in itertools.combinations_with_replacement(range(len(rows)), 2):
            x, y = own[i], own[j]
            lam = x if i == j else solved(drives[i][j], x, y)
            slope = 4 / mp.pi / mp.sqrt((1 + 2 * x) * (1 + 2 * y) - 4 * lam**2)
            ck = value(x, y, lam)
            exact = {"ck": ck, "ntk": ck + slope * lam / (1 - mp.mpf(a) * slope)}
            for kernel, wanted in exact.items():
                scale = np.sqrt(found[kernel][i, i] * found[kernel][j, j])
                off = abs(found[kernel][i, j] - float(wanted))
                assert off < 1e-11 * scale  # beside 1e3, 1e6: rounding of the inner product moves the ntk by 1e-10


def turned(angle: float, norm: float, count: int = 2) -> np.ndarray:
    """A row, one at that angle from it, and others; all of the same norm."""
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((20, count)))[0].T
    basis[1] = math.cos(angle) * basis[0] + math.sin(angle) * basis[1]
    return norm * basis


@pytest.mark.parametrize("norm", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("angle", [1e-9, 1e-8, 1e-7])
def test_tangent_kernels_of_nearly_equal_rows(norm, angle):
    """The angle is known from the rows; the rounding of their covariance would hide all of it."""
    X = turned(angle, norm)
    found = nsd.kernels_of(E(["hard_tanh"]), X)
    with mp.workdps(40):
        x, y = ([mp.mpf(float(v)) for v in row] for row in X)
        s, t = (mp.sqrt(mp.fsum(v * v for v in row)) for row in (x, y))
        apart = mp.fsum((v / s - w / t) ** 2 for v, w in zip(x, y, strict=True)) / 2
        rho, spread = 1 - apart, mp.sqrt(apart * (2 - apart))
        ends = [mp.mpf(0), *((1 - k * spread * s) / s for k in (40, 8)), 1 / s]
        inside = mp.quad(  # the probability that both pre-activations are in [-1, 1]
            lambda z: mp.npdf(z) * (mp.ncdf((1 / t - rho * z) / spread) - mp.ncdf((-1 / t - rho * z) / spread)),
            [-v for v in reversed(ends[1:])] + ends if spread * s < 0.02 else [-1 / s, 0, 1 / s],
        )
    slope = (found["ntk"] - found["ck"])[0, 1]
    assert slope == pytest.approx(norm**2 * float(inside), rel=0, abs=tolerance() * found["ntk"][0, 0])


@pytest.mark.parametrize(
    ("angle", "bias", "stretch", "norm"),
    [
        *((1e-8, 0.0, 1.0, 2.0), (1e-6, 1e4, 1.0, 2.0), (1e-5, 0.0, 1.0 + 1e-5, 2.0)),
        *((3e-8, 0.0, 1.0, 1e4), (1e-6, 0.0, 1.0, 1e4), (3e-5, 0.0, 1.0, 1e4), (1e-4, 0.0, 1.0, 300.0)),
    ],
)
def test_a_deq_of_hard_tanh_at_nearly_equal_rows(angle, bias, stretch, norm):
    """At equilibrium, too: the layer in arbitrary precision, at the angle that solves the equation."""
    X = turned(angle, norm)
    X[1] *= stretch
    found = nsd.ntk(D("hard_tanh", 0.1, 1.0, bias), X)
    with mp.workdps(30):
        a, (x, y) = mp.mpf(0.1), ([mp.mpf(float(v)) for v in row] for row in X)
        drives = [[mp.fdot(u, v) + mp.mpf(bias) for v in (x, y)] for u in (x, y)]
        rule = GaussLegendre(mp.mp).calc_nodes(4, mp.mp.prec)  # 24 nodes

        def left(q, drive):  # E[phi^2] = 1 - 2 q c f(c) - (1 - q) P(|z| < c)
            c = 1 / mp.sqrt(q)
            return a * (1 - 2 * c * q * mp.npdf(c) - (1 - q) * mp.erf(c / mp.sqrt(2))) + drive - q

        s, t = (mp.sqrt(mp.findroot(lambda q, d=drives[k][k]: left(q, d), drives[k][k] + a)) for k in (0, 1))

        def means(rho):  # E[phi(u) phi(v)] and E[phi'(u) phi'(v)] of u = s z, v = t (rho z + spread w)
            spread = mp.sqrt((1 - rho) * (1 + rho))
            steps = [side / r + k * spread for r in (s, t) for side in (-1, 1) for k in (-12, -6, -2, 0, 2, 6, 12)]
            edges = sorted({-12, *(e for e in steps if abs(e) < 12), *range(-10, 11, 2), 12})
            total = [mp.mpf(0), mp.mpf(0)]
            for start, end in itertools.pairwise(edges):
                for node, weight in rule:
                    z, share = (start + end + (end - start) * node) / 2, (end - start) * weight / 2
                    low, high = ((side / t - rho * z) / spread for side in (-1, 1))
                    inside, bump = mp.ncdf(high) - mp.ncdf(low), mp.npdf(low) - mp.npdf(high)
                    outer = t * (rho * z * inside + spread * bump) + mp.ncdf(-high) - mp.ncdf(low)
                    total[0] += share * mp.npdf(z) * max(-1, min(1, s * z)) * outer
                    total[1] += share * mp.npdf(z) * inside * (abs(s * z) < 1)
            return total

        lam = s * t * drives[0][1] / mp.sqrt(drives[0][0] * drives[1][1])
        for _ in range(3):
            ck, slope = means(lam / (s * t))
            lam += (a * ck + drives[0][1] - lam) / (1 - a * slope)
        exact = ck + lam * slope / (1 - a * slope)
    assert found[0, 1] == pytest.approx(float(exact), rel=0, abs=tolerance() * found[0, 0])


@pytest.mark.parametrize("network", [D("tanh", 0.2), D("hard_tanh", 0.2), E(["arctan"])], ids=repr)
@pytest.mark.parametrize("angle", [1e-8, 1e-6])
def test_two_nearly_equal_rows_are_as_exact_as_among_many(network, angle):
    """Series and tables for many rows, quadrature for two."""
    X = np.concatenate([turned(angle, 1e4), 1e4 * np.random.default_rng(1).standard_normal((198, 20)) / 20**0.5])
    many, two = nsd.ntk(network, X)[:2, :2], nsd.ntk(network, X[:2])
    np.testing.assert_allclose(two, many, rtol=0, atol=tolerance() * two.max())
    assert two[0, 1] < two.diagonal().min() * (1.0 - 1e-9)  # far below what rounding hides


def test_nearly_equal_rows_that_do_not_enter():
    X = turned(1e-9, 1.0)
    np.testing.assert_array_equal(nsd.ntk(nsd.DEQ("erf", 0.15, 0.0), X), 0.0)


@pytest.mark.parametrize("kernel", ["ck", "ntk"])
def test_opposite_points_of_odd_functions_keep_their_digits(kernel):
    """Rows of one norm all around a circle: entries near r = -1 are those near r = 1 with the other sign."""
    angles = np.linspace(0.0, 2.0 * np.pi, 60, endpoint=False)
    K = getattr(nsd, kernel)(nsd.ENN(["arctan"]), 1e6 * np.stack([np.cos(angles), np.sin(angles)], 1), check=False)
    np.testing.assert_allclose(K, -np.roll(K, 30, axis=1), rtol=0, atol=tolerance() * K.max())
