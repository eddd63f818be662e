"""Expectations at all pairs of scales by smoothed functions, and kernels of nearly parallel rows."""

from __future__ import annotations

import dataclasses

import mpmath as mp
import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.kernels import tiles
from notsodeep.kernels._limits import LIMITS
from notsodeep.kernels.expectations import Layer
from notsodeep.kernels.linear import piece_means
from notsodeep.kernels.pointwise import KernelSpec
from notsodeep.kernels.smoothing import pair_grid, pair_means


@pytest.mark.parametrize("name", ["mish", "arctan", "elu", "selu", "hard_swish"])
def test_all_pairs_of_scales_are_the_entrywise_integrals(name):
    phi = nsd.activation(name)
    scales, angles = (torch.tensor(v, dtype=torch.float64) for v in ([0.4, 1.3, 6.0], [0.02, 0.5, 1.6, 3.1]))
    i, j, k = torch.cartesian_prod(*(torch.arange(n) for n in (3, 3, 4))).T
    both = ("value", "slope")
    exact = pair_means(phi, both, both, scales[i] ** 2, scales[j] ** 2, angles[k].cos())
    own = pair_grid(phi, scales, torch.zeros(1, dtype=torch.float64)).squeeze(-1).diagonal(dim1=1, dim2=2).sqrt()
    grid = pair_grid(phi, scales, angles)[:, i, j, k]
    assert float(((grid - exact).abs() / (own[:, i] * own[:, j])).max()) < tolerance()


@pytest.mark.parametrize("name", ["elu", "selu", "hard_tanh", "hard_swish", "sin", "cos", "wrapped"])
def test_closed_forms_under_noise_are_integrals(name):
    """At noises from 1e-4 to 3, near the kinks and far from them."""
    wrapped = nsd.activation("elu", alpha=0.7).affine(gain=-0.6, scale=1.7, skip=0.3, shift=0.2)
    phi = wrapped if name == "wrapped" else nsd.activation(name)
    for noise in (1e-4, 0.019, 0.3, 3.0):
        mean = torch.tensor([-60.0, -9.3, -2.0, 0.0, 0.7, 9.1], dtype=torch.float64) * noise
        found = phi.smoothed(mean, torch.full_like(mean, noise))
        edges = [-14.0, *np.arange(-12.0, 12.5, 0.5), 14.0]
        for i, centre in enumerate(mean.tolist()):
            places = [c + d for c in phi.kinks for d in (0.0, *(s * 2.0**k for s in (-1, 1) for k in range(-4, 6)))]
            cuts = np.unique(np.clip([*edges, *((c - centre) / noise for c in places)], -14.0, 14.0))
            x, w = np.polynomial.legendre.leggauss(30)
            half = 0.5 * np.diff(cuts)[:, None]
            z = torch.from_numpy((cuts[:-1, None] + half * (1.0 + x)).ravel())
            weights = torch.from_numpy((half * w).ravel()) * torch.exp(-0.5 * z * z) / (2.0 * np.pi) ** 0.5
            for f, values in zip((phi, phi.derivative, phi.second_derivative), found, strict=True):
                at = f(centre + noise * z)
                size = float(at.abs() @ weights) + (noise + abs(centre) if f is phi else 1.0)
                assert abs(float(at @ weights - values[i])) < ulps(64) * size


@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0, 1e4])
def test_they_are_the_closed_forms_at_every_scale(scale):
    """Arc-sine kernel at angles of the order at which it turns; the angle is exact, so no digits are lost."""
    s, angles = scale * torch.tensor([0.7, 1.0], dtype=torch.float64), torch.tensor([0.1, 3.0], dtype=torch.float64)
    for angle in (*(angles / max(1.0, scale)).tolist(), 0.4, 2.7):
        value, slope = pair_grid(nsd.activation("erf"), s, torch.tensor([angle], dtype=torch.float64))[
            :, 0, 1, 0
        ].tolist()
        with mp.workdps(40):
            x, y = (mp.mpf(float(v)) for v in s)
            product = 2 * x * y * mp.cos(mp.mpf(angle))
            room = (1 + 2 * x * x) * (1 + 2 * y * y)
            expected = 2 / mp.pi * mp.asin(product / mp.sqrt(room)), 4 / mp.pi / mp.sqrt(room - product**2)
            sizes = [
                (mp.mpf(2) / mp.pi * mp.asin(2 * v * v / (1 + 2 * v * v)), 4 / mp.pi / mp.sqrt(1 + 4 * v * v))
                for v in (x, y)
            ]
        for found, exact, own in zip((value, slope), expected, zip(*sizes, strict=True), strict=True):
            assert abs(found - float(exact)) < ulps(64) * float(mp.sqrt(own[0] * own[1]))


def test_steep_functions_of_nearly_parallel_points_warn_of_nothing():
    """At scales of 1e8 arctan is a step, whose pairs have the arc-sine law."""
    s, angle = torch.tensor([1e5, 1e8], dtype=torch.float64), 1e-3
    value = float(pair_grid(nsd.activation("arctan"), s, torch.tensor([angle], dtype=torch.float64))[0, 0, 1, 0])
    assert abs(value - (np.pi / 2) ** 2 * (1.0 - 2.0 * angle / np.pi)) < 1e-4  # as steep as the smaller scale


@pytest.mark.parametrize("name", ["relu", "leaky_relu"])
def test_two_lines_have_nothing_beside_them(name):
    """Without panels the smoothed function is that of its lines, in closed form."""
    phi = nsd.activation(name)
    s, angles = (torch.tensor(v, dtype=torch.float64) for v in ([0.5, 2.0], [0.01, 1.0, 3.0]))
    exact = phi.closed_form()(s[0] ** 2, s[1] ** 2, s[0] * s[1] * angles.cos())
    for grid, values in zip(pair_grid(phi, s, angles), exact, strict=True):
        assert float((grid[0, 1] - values).abs().max()) < tolerance()


def test_an_own_function_without_straight_tails():
    """Growth like a root, far out: the Hermite series of the layer do not converge there."""
    phi = nsd.activation(lambda x: torch.sqrt(1.0 + x * x) - 1.0)
    s, angles = torch.tensor([25.0, 40.0], dtype=torch.float64), torch.tensor([0.03, 0.3, 2.9], dtype=torch.float64)
    grid = pair_grid(phi, s, angles)
    i, j, k = torch.cartesian_prod(torch.arange(2), torch.arange(2), torch.arange(3)).T
    found = Layer(phi, s[i] ** 2, s[j] ** 2).both(s[i] * s[j] * angles[k].cos())
    for part, exact in zip(grid, found, strict=True):
        assert float((part[i, j, k] - exact).abs().max()) < tolerance() * float(exact.abs().max())


def rows_with_near_duplicates() -> np.ndarray:
    """Long and short rows; half of them beside another one, at relative distances from 1e-8 to 0.1."""
    rng = np.random.default_rng(4)
    X = rng.standard_normal((110, 20)) * rng.uniform(0.5, 2.0, (110, 1))
    X[55:] = X[:55] * (1.0 + 0.1 * (np.arange(55) % 2))[:, None]
    X[55:] += np.geomspace(1e-8, 0.1, 55)[:, None] * rng.standard_normal((55, 20))
    return X


def only_series(monkeypatch) -> None:
    """Let nothing be evaluated entry by entry, few pairs neither."""
    monkeypatch.setattr(tiles, "LIMITS", dataclasses.replace(LIMITS, few_pairs=0, few_slow_pairs=0))
    monkeypatch.setattr(KernelSpec, "pairwise", None)


@pytest.mark.parametrize(("name", "sigma_b2"), [("mish", 3.0), ("erf", 1e6), ("elu", 300.0), ("sin", 0.1)])
def test_near_duplicates_need_no_integrals_entry_by_entry(name, sigma_b2, monkeypatch):
    network, X = nsd.DEQ(name, 0.1, sigma_b2), rows_with_near_duplicates()
    only_series(monkeypatch)
    K = nsd.ntk(network, X, check=False)
    monkeypatch.undo()
    i, j = np.arange(20, 55, 5), np.arange(75, 110, 5)
    x, y = (torch.from_numpy(X[v]) for v in (i, j))
    sx, sy = (x * x).sum(1), (y * y).sum(1)
    dot = 0.5 * (sx + sy - ((x - y) ** 2).sum(1))
    exact = nsd.kernels.pairwise(network, sx, sy, dot, ("ntk",), check=False)["ntk"].numpy()
    # entry by entry the angle comes from a rounded covariance: 1e-16 of it is this many squared lengths of a feature
    room = tolerance(amplified=max(1.0, sigma_b2 * float(sx.max()) / 1e3))
    assert (np.abs(K[i, j] - exact) / np.sqrt(K[i, i] * K[j, j])).max() < room


def test_nearly_parallel_long_rows_of_an_own_function_by_a_product_rule(monkeypatch):
    """At scales of 1e4, where the features of the function are seen at angles of 1e-4."""
    x, w = np.polynomial.legendre.leggauss(20)

    def normal(edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        half = 0.5 * np.diff(edges)[:, None]
        z = (edges[:-1, None] + half * (1.0 + x)).ravel()
        return z, (half * w).ravel() * np.exp(-0.5 * z * z) / (2.0 * np.pi) ** 0.5

    places = np.geomspace(1e-6, 9.5, 60)
    z, wz = normal(np.concatenate([-places[::-1], [0.0], places]))
    eta, weta = normal(np.linspace(-9.5, 9.5, 40))
    phi, slope = (lambda t: np.sqrt(1.0 + t * t) - 1.0), (lambda t: t / np.sqrt(1.0 + t * t))
    X = 1e4 * rows_with_near_duplicates() / 20**0.5
    only_series(monkeypatch)
    K = nsd.ntk(nsd.DEQ(lambda t: torch.sqrt(1.0 + t * t) - 1.0, 0.1, 1.0), X)
    for i in (0, 8, 20, 30):
        (xx, yy), off, apart = (X[k] @ X[k] for k in (i, i + 55)), X[i] + X[i + 55], X[i] - X[i + 55]
        qx, qy, unlike, distance = xx, yy, apart @ off, apart @ apart
        for _ in range(20):  # distance = E(u - v)^2 and unlike = E u^2 - E v^2: what is rounded are small numbers
            u, v = (phi(q**0.5 * z) for q in (qx, qy))
            qx, qy, unlike = xx + 0.1 * u**2 @ wz, yy + 0.1 * v**2 @ wz, apart @ off + 0.1 * ((u - v) * (u + v)) @ wz
        for _ in range(15):
            room = (distance * (2.0 * (qx + qy) - distance) - unlike**2) / (4.0 * qx * qy)  # 1 - rho^2
            lam = 0.5 * (qx + qy - distance)
            v = qy**0.5 * (lam / (qx * qy) ** 0.5 * z[:, None] + max(room, 0.0) ** 0.5 * eta)
            distance = apart @ apart + 0.1 * wz @ (phi(qx**0.5 * z)[:, None] - phi(v)) ** 2 @ weta
        value = (phi(qx**0.5 * z) * wz) @ (phi(v) @ weta)
        steep = (slope(qx**0.5 * z) * wz) @ (slope(v) @ weta)
        exact = value + lam * steep / (1.0 - 0.1 * steep)
        # series near r = 1 may be wrong by ``cap_error``, 2e-12, between the nodes of the norms and of the angle
        assert abs(K[i, i + 55] - exact) < tolerance(amplified=4.0) * (K[i, i] * K[i + 55, i + 55]) ** 0.5


@pytest.mark.parametrize("name", ["hard_swish", "hard_tanh"])
def test_lines_and_parabolas_have_closed_forms_at_all_angles(name):
    phi = nsd.activation(name)
    tau = torch.tensor([0.0, 0.03, 0.4, 1.0, 2.7, 9.0], dtype=torch.float64)
    rho = torch.tensor([0.0, 0.3, -0.8, 0.999, 1.0 - 1e-7, 1.0, -1.0 + 1e-5, -1.0], dtype=torch.float64)
    sx, sy, rho = (part.flatten() for part in torch.meshgrid(tau, tau, rho, indexing="ij"))
    layer = Layer(phi, sx**2, sy**2)
    found = piece_means(*layer.pieces, layer.variance_x, layer.variance_y, rho * sx * sy, rho)
    expected = pair_means(phi, ("value", "slope"), ("value", "slope"), layer.variance_x, layer.variance_y, rho)
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=tolerance())
