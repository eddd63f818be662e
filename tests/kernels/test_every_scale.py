"""Kernels far beyond the features of an activation: double sums of closed forms, and series of nearly parallel rows."""

from __future__ import annotations

import math
import warnings

import mpmath as mp
import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.kernels import pairwise
from notsodeep.kernels.pointwise import KernelSpec

KINDS = ("ck", "ntk", "ntk_frozen")


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "softplus", "silu"])
def test_double_sums_against_the_trapezoidal_rule(name):
    """Exact for functions that are analytic in a strip, where the step is well below its width."""
    phi, step = nsd.activation(name), 0.2
    mixed = phi.mixed_form()
    for sx, sy, rho in ((12.0, 9.0, 0.6), (12.0, 12.0, 0.999), (4.0, 10.0, -0.95), (0.5, 0.4, 0.3)):
        step = min(0.2, 0.1 * min(sx, sy))
        u, v = (torch.arange(-9.0 * s, 9.0 * s, step, dtype=torch.float64) for s in (sx, sy))
        x, y = (u / sx)[:, None], v / sy
        weight = torch.exp(-(x * x - 2.0 * rho * x * y + y * y) / (2.0 * (1.0 - rho**2)))
        weight *= step**2 / (2.0 * math.pi * sx * sy * math.sqrt(1.0 - rho**2))
        given = (torch.tensor([value], dtype=torch.float64) for value in (sx**2, sy**2, rho * sx * sy))
        for found, f in zip(mixed(*given), (phi, phi.derivative), strict=True):
            scale = float(((f(u) ** 2)[:, None] * weight).sum() * (weight * f(v) ** 2).sum()) ** 0.5
            assert float(found) == pytest.approx(float(f(u) @ weight @ f(v)), abs=tolerance() * scale)


def test_tanh_of_far_points_is_a_sign_to_second_order():
    """E[tanh tanh] = 2/pi arcsin(rho (1 - c/q)) + O(1/q^2), c = pi^2/12, the mean square of Kolmogorov's variable."""
    q, rho = torch.tensor([1e8], dtype=torch.float64), 0.7
    found = pairwise(nsd.ENN(["tanh"]), q, q, rho * q)["ck"]
    expected = 2.0 / math.pi * math.asin(rho * (1.0 - math.pi**2 / 12.0 / 1e8))
    assert float(found) == pytest.approx(expected, rel=ulps(16))


def far_rows() -> np.ndarray:
    """Rows like raw images: long, at small angles, some nearly equal, equal, parallel or opposite."""
    rng = np.random.default_rng(0)
    X = (rng.standard_normal((100, 30)) + 1.5) * rng.uniform(1.0, 4.0, (100, 1))
    X[1], X[3], X[5], X[7] = X[0], 1.1 * X[2], X[4] + 1e-4 * X[6], -X[8]
    X[11] = X[10] + 0.02 * X[12]
    return X


CASES = [
    ("erf", 30.0, 100.0),
    pytest.param("tanh", 4.6, 15.7, marks=pytest.mark.slow),
    pytest.param("silu", 1.0, 0.0, marks=pytest.mark.slow),
    pytest.param("softplus", 1.0, 3.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("name", "sigma_b2", "sigma_c2"), CASES)
def test_long_rows_at_small_angles_have_tables(name, sigma_b2, sigma_c2):
    network, X = nsd.DEQ(name, 0.1, sigma_b2, sigma_c2), far_rows()
    few = np.r_[0:30]
    x = torch.tensor(X[few])
    products = torch.from_numpy((X[few].astype(np.longdouble) @ X[few].astype(np.longdouble).T).astype(float))
    s = (x * x).sum(1)
    reference = pairwise(network, s[:, None], s, products, KINDS)
    found = nsd.kernels_of(network, X)
    # a rounded inner product moves the distance of long rows, on which their kernel depends
    room = tolerance(amplified=max(1.0, sigma_b2 * float(s.max()) / 1e3))
    for kind in KINDS:
        K, own = found[kind][np.ix_(few, few)], np.diagonal(found[kind])[few]
        assert (np.abs(K - reference[kind].numpy()) / np.sqrt(own[:, None] * own)).max() < room, kind
        np.testing.assert_array_equal(found[kind], found[kind].T)
    single = nsd.ntk(network, X.astype(np.float32))
    assert np.abs(single - found["ntk"]).max() < tolerance(torch.float32) * found["ntk"].max()


@pytest.mark.parametrize("rectangular", [False, True])
@pytest.mark.parametrize("name", ["tanh", "elu", "hard_tanh"])
@pytest.mark.parametrize(
    ("b", "c", "longest"), [(1.0, 100.0, 1.0), (0.8, 0.0, 30.0), (0.8, 0.0, 300.0), (2.0, 5.0, 300.0)]
)
def test_rows_beside_a_large_bias_or_a_long_row_against_single_entries(name, b, c, longest, rectangular):
    X = np.random.default_rng(3).standard_normal((64, 12)) / 12**0.5
    X[1], X[2], X[3], X[4] = X[0], -X[0], X[0] + 1e-5 * X[5], 1.1 * X[0] + 1e-3 * X[5]
    X[7] *= longest
    network = nsd.DEQ(name, 0.1, b, c)
    found = nsd.kernels_of(network, X, X[::-1].copy() if rectangular else None, kernels=KINDS)
    square, (i, j) = torch.tensor((X**2).sum(1)), np.triu_indices(16, 1)
    half, apart = 0.5 * (square[i] + square[j]), torch.tensor(((X[i] - X[j]) ** 2).sum(1))
    near = apart < 1e-3 * half  # pairs whose inner products are exact from their differences
    dots = torch.where(near, half - 0.5 * apart, torch.tensor((X[i] * X[j]).sum(1)))
    with warnings.catch_warnings(action="ignore"):  # one by one they take long
        single = pairwise(network, square[i], square[j], dots, KINDS)
        own = pairwise(network, square, square, square, KINDS)
    for kind in KINDS:
        matrix = torch.tensor(found[kind][:, ::-1].copy() if rectangular else found[kind])
        error = (matrix[i, j] - single[kind]).abs() / (own[kind][i] * own[kind][j]).sqrt()
        assert float(error[~near].max()) <= tolerance()
        # tangent kernels with kinks are cones, and single entries know nearly equal rows by a rounded inner product
        assert float(error.max()) <= tolerance(amplified=1000.0)


@pytest.mark.parametrize("name", ["silu", "hard_tanh", "sin"])
def test_a_few_long_rows_have_a_table_with_the_others(name, monkeypatch):
    X = np.random.default_rng(5).standard_normal((300, 60)) / 60**0.5
    X[:5] *= np.array([50.0, 100.0, 200.0, 500.0, 1000.0])[:, None]
    network, alone, single = nsd.DEQ(name, 0.1, 0.8), [], KernelSpec.pairwise
    monkeypatch.setattr(KernelSpec, "pairwise", lambda *given: alone.append(given[3].numel()) or single(*given))
    K = nsd.ntk(network, X)
    assert sum(alone) < 32
    products = torch.from_numpy(X[:5] @ X.T)
    s = torch.from_numpy((X**2).sum(1))
    exact = pairwise(network, s[:5, None], s, products, ("ntk",))["ntk"].numpy()
    own, far = np.diagonal(K), np.arange(300) >= 5
    assert (np.abs(K[:5] - exact)[:, far] / np.sqrt(own[:5, None] * own)[:, far]).max() < tolerance()


def wave_ntk(name: str, x: np.ndarray, y: np.ndarray, b: float, c: float) -> mp.mpf:
    """NTK of a DEQ with sigma_a2 = 0.1: E[sin sin] = exp(-(qx + qy) / 2) sinh(lam), E[cos cos] with cosh."""
    a, (own, other) = mp.mpf(0.1), (mp.sinh, mp.cosh) if name == "sin" else (mp.cosh, mp.sinh)
    products = (mp.fsum(mp.mpf(u) * v for u, v in zip(*p, strict=True)) for p in ((x, x), (y, y), (x, y)))
    xx, yy, xy = qx, qy, lam = [b * product + c for product in products]
    for _ in range(60):
        qx, qy = (q0 + a * mp.exp(-q) * own(q) for q0, q in ((xx, qx), (yy, qy)))
        lam = xy + a * mp.exp(-(qx + qy) / 2) * own(lam)
    value, slope = (mp.exp(-(qx + qy) / 2) * f(lam) for f in (own, other))
    return value + lam * slope / (1 - a * slope)


@pytest.mark.parametrize(("name", "b", "c"), [("sin", 1.0, 1e4), ("sin", 1000.0, 0.0), ("cos", 1000.0, 0.0)])
def test_waves_at_every_distance_in_arbitrary_precision(name, b, c):
    X = np.random.default_rng(6).standard_normal((60, 12)) / 12**0.5
    X[30:] = X[:30] + np.geomspace(1e-8, 0.3, 30)[:, None] * X[30:]
    X[36:] *= -1.0
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    K = nsd.ntk(nsd.DEQ(name, 0.1, b, c), X)
    with mp.workdps(60):
        for i, j in ((0, 30), (4, 34), (8, 38), (16, 46), (20, 50), (24, 54), (29, 59), (1, 2), (3, 40)):
            assert abs(float(wave_ntk(name, X[i], X[j], b, c) - K[i, j])) < tolerance() * (K[i, i] * K[j, j]) ** 0.5


@pytest.mark.parametrize("scale", [15.0, 25.0, 45.0, 1e4])
def test_near_duplicates_have_the_angle_of_their_difference(scale):
    """NTK of one layer of erf: the arc-sine law (Williams, 1997) in arbitrary precision."""
    X = np.random.default_rng(7).standard_normal((80, 12))
    X[40:] = X[:40] + np.geomspace(1e-6, 1e-1, 40)[:, None] * X[40:]
    X *= scale / np.linalg.norm(X, axis=1, keepdims=True)
    K = nsd.ntk(nsd.ENN(["erf"]), X)
    for i in range(40):
        with mp.workdps(40):
            xx, yy, xy = (
                mp.fsum(mp.mpf(u) * v for u, v in zip(X[a], X[b], strict=True))
                for a, b in ((i, i), (i + 40, i + 40), (i, i + 40))
            )
            room = (1 + 2 * xx) * (1 + 2 * yy)
            exact = 2 / mp.pi * mp.asin(2 * xy / mp.sqrt(room)) + xy * 4 / mp.pi / mp.sqrt(room - 4 * xy**2)
        assert abs(float(exact - K[i, i + 40])) < tolerance() * (K[i, i] * K[i + 40, i + 40]) ** 0.5


@pytest.mark.parametrize("short", [1e-98, 1e-30, 1e-3])
@pytest.mark.parametrize("long", [1e8, 1e13, 1e60, 1e100])
def test_short_rows_beside_long_ones(short, long):
    """Hard tanh is x for the one and a sign for the other: E[u sign(v)] = short rho sqrt(2 / pi)."""
    X = np.array([[short, 0.0], [0.5 * long, 0.75**0.5 * long]])
    found = nsd.ck(nsd.ENN(["hard_tanh"]), X)[0, 1] / short
    np.testing.assert_allclose(found, 0.5 * (2.0 / np.pi) ** 0.5, rtol=tolerance())
