"""Derivatives of kernels against arbitrary precision, and their averages over Gaussian fluctuations by many nodes."""

from __future__ import annotations

import itertools

import mpmath
import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.kernels import pairwise
from notsodeep.kernels.averages import PairAverages, kernel_derivatives

KERNELS = ("ck", "ntk", "ntk_frozen")
A, B = 0.15, 0.7  # sigma_a2, sigma_b2


def erf_maps(qx, qy, lam):
    """E[phi phi] and E[phi' phi'] of the error function (Williams, 1997)."""
    left, right = 1 + 2 * qx, 1 + 2 * qy
    slope = 4 / mpmath.pi / mpmath.sqrt(left * right - 4 * lam**2)
    return 2 / mpmath.pi * mpmath.asin(2 * lam / mpmath.sqrt(left * right)), slope


def relu_maps(qx, qy, lam):
    """The arc-cosine kernels (Cho and Saul, 2009)."""
    root = mpmath.sqrt(qx * qy)
    angle = mpmath.acos(lam / root)
    bend = mpmath.sin(angle) + (mpmath.pi - angle) * mpmath.cos(angle)
    return root * bend / (2 * mpmath.pi), (mpmath.pi - angle) / (2 * mpmath.pi)


def solved(equation, start):
    return mpmath.findroot(equation, start)


def deq(maps, kernel, sx, sy, dot):
    """Kernels of a DEQ from their equations alone."""
    qx, qy = (solved(lambda q, s=s: q - A * maps(q, q, q)[0] - B * s, s) for s in (sx, sy))
    lam = solved(lambda v: v - A * maps(qx, qy, v)[0] - B * dot, B * dot)
    value, slope = maps(qx, qy, lam)
    gap = 1 - A * slope
    return {"ck": value, "ntk": value + lam * slope / gap, "ntk_frozen": value / gap}[kernel]


def two_layers(maps, kernel, sx, sy, dot):
    """Kernels of an explicit network of two equal layers."""
    value, slope = maps(sx, sy, dot)
    above, steep = maps(maps(sx, sx, sx)[0], maps(sy, sy, sy)[0], value)
    first = {"ck": 0, "ntk": dot, "ntk_frozen": 0}[kernel]
    return above if kernel == "ck" else above + steep * (value + slope * first)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "maps"), [("erf", erf_maps), ("relu", relu_maps)])
@pytest.mark.parametrize(("kind", "rho"), [("deq", 0.3), ("deq", -0.85), ("enn", 0.1)])
def test_derivatives_against_arbitrary_precision(name, maps, kernel, kind, rho):
    sx, sy = 1.2, 0.7
    dot = rho * (sx * sy) ** 0.5
    network = nsd.DEQ(name, A, B) if kind == "deq" else nsd.ENN([name, name])
    exact = deq if kind == "deq" else two_layers
    found = kernel_derivatives(network, kernel, np.array([sx]), np.array([sy]), np.array([dot]))[0]
    with mpmath.workdps(40):
        for i, j, k in itertools.product(range(2), range(2), range(3)):
            expected = float(
                mpmath.diff(lambda *at: exact(maps, kernel, *at), (sx, sy, dot), (i, j, k))
                if i + j + k
                else exact(maps, kernel, *map(mpmath.mpf, (sx, sy, dot)))
            )
            assert found[i, j, k] == pytest.approx(expected, rel=100 * tolerance(), abs=100 * tolerance())


@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_averages_against_many_nodes(name, kernel):
    """E f' = E[f xi]/h and E f'' = E[f (xi^2 - 1)]/h^2: integration by parts, ten nodes, no derivative at all."""
    norms, dots, network = np.array([1.0, 1.3]), np.array([[0.1, -0.05], [-0.05, 0.2]]), nsd.DEQ(name, 0.2)
    norm_spread, dot_spread = np.array([0.01, 0.02]), np.array([[0.005, 0.006], [0.006, 0.008]])
    found = PairAverages(network, kernel, norms, dots, norm_spread, dot_spread)
    xi, w = np.polynomial.hermite_e.hermegauss(10)
    w = w / w.sum()
    up, step = np.sqrt(norm_spread), np.sqrt(dot_spread)
    x = norms[:, None] + up[:, None] * xi[:, None, None, None, None]
    y = norms + up * xi[:, None, None, None]
    k = pairwise(network, *map(torch.from_numpy, (x, y, dots + step * xi[:, None, None])), (kernel,))[kernel].numpy()

    def mean(px, py, pd):
        return np.einsum("x,y,d,xydab->ab", w * px, w * py, w * pd, k)

    one, bend = np.ones_like(xi), xi**2 - 1.0
    slope, curvature = mean(one, one, xi) / step, mean(one, one, bend) / step**2
    expected = {
        "mean": mean(one, one, one),
        "slope": slope,
        "curvature": curvature,
        "whole.pull": mean(one, xi, one) / up - dots * mean(one, xi, xi) / (up * step),
        "flat.pull": mean(one, xi, one - 0.5 * bend) / up - dots * mean(one, xi, xi) / (up * step),
        "flat.mean": mean(one, one, one - 0.5 * bend) - dots * slope,
        "whole.cross": (mean(xi, xi, one) - dots * mean(xi, xi, xi) / step) / np.outer(up, up),
    }
    # three nodes are exact to fifth order: what is left is of the order of the third power of the spread
    for path, value in expected.items():
        part = found
        for attribute in path.split("."):
            part = getattr(part, attribute)
        np.testing.assert_allclose(part, value, rtol=0, atol=2.5 * norm_spread.max() ** 3 * np.abs(k).max())


def test_without_spread_they_are_the_derivatives_at_the_typical_pair():
    norms, dots, network = np.array([1.0, 1.3]), np.array([[0.1, -0.05], [-0.05, 0.2]]), nsd.DEQ("silu", 0.2)
    found = PairAverages(network, "ntk", norms, dots)
    d = kernel_derivatives(network, "ntk", norms[:, None], norms, dots)
    np.testing.assert_array_equal(found.slope, d[..., 0, 0, 1])
    np.testing.assert_allclose(found.whole.cross, d[..., 1, 1, 0] - dots * d[..., 1, 1, 1], rtol=ulps())
    np.testing.assert_allclose(found.own, np.diag(nsd.ntk(network, np.diag(np.sqrt(norms)))), rtol=tolerance())
