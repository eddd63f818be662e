"""The expansion behind the matching: jets of exact kernels against the kernels themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.activations import Hermite, LeakyReLU
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import pairwise
from notsodeep.kernels.jets import (
    DEGREE,
    MONOMIALS,
    KernelJet,
    explicit_jets,
    hermite_layer,
    index,
    layer_of,
    network_jets,
)
from notsodeep.matching.families.leaky_relu import LeakyDesign

KERNELS = ("ck", "ntk", "ntk_frozen")


def evaluate(jet: np.ndarray, u: float, v: float, d: float) -> float:
    return float(sum(c * u**i * v**j * d**k for c, (i, j, k) in zip(jet, MONOMIALS, strict=True)))


def exact(network: nsd.DEQ | nsd.ENN, u: float, v: float, d: float, tau0: float, kernel: str) -> float:
    s = torch.tensor([tau0**2], dtype=torch.float64)
    return float(pairwise(network, (1 + u) * s, (1 + v) * s, d * s, kernels=(kernel,))[kernel])


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize(("name", "tau0"), [("silu", 1.0), ("relu", 0.7), ("tanh", 1.3), ("elu", 1.0)])
def test_implicit_jets_follow_the_exact_kernel(name: str, tau0: float, kernel: str) -> None:
    """The remainder of a jet of degree 3 falls sixteenfold when the step is halved."""
    deq = nsd.DEQ(name, 0.2).centred(tau0)
    jet = network_jets(deq, tau0, (kernel,))[kernel]
    remainders = []
    for h in (0.1, 0.05):
        point = (h, -0.7 * h, 0.8 * h)
        remainders.append(abs(evaluate(jet.cross, *point) - exact(deq, *point, tau0, kernel)) / jet.diagonal[0])
    assert remainders[0] < 0.1**4
    assert remainders[1] < remainders[0] / 12


@pytest.mark.parametrize("kernel", KERNELS)
def test_implicit_diagonal_series(kernel: str) -> None:
    deq = nsd.DEQ("silu", 0.2).centred(1.0)
    series = network_jets(deq, 1.0, (kernel,))[kernel].diagonal
    for h in (0.05, -0.05):
        truth = exact(deq, h, h, 1 + h, 1.0, kernel)
        assert sum(c * h**i for i, c in enumerate(series)) == pytest.approx(truth, rel=h**4)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["relu", "gelu", "softplus"])
def test_jets_hold_the_four_numbers(name: str, kernel: str) -> None:
    deq, tau0 = nsd.DEQ(name, 0.15), 1.2
    jet, c = network_jets(deq, tau0, (kernel,))[kernel], nsd.coefficients(deq, tau0, kernel)
    got = (jet.cross[index(0, 0, 1)], jet.cross[index(1, 1, 0)], jet.cross[index(0, 0, 2)], jet.diagonal[0])
    assert np.array(got) / np.array([tau0**2, tau0**4, tau0**4, 1.0]) == pytest.approx(
        np.array(c.four), rel=ulps(), abs=0
    )


coefficient = st.floats(-0.8, 0.8)


@settings(max_examples=15)
@given(st.lists(coefficient, min_size=3, max_size=5), st.lists(coefficient, min_size=3, max_size=5))
def test_explicit_jets_agree_with_the_recursion(first: list[float], second: list[float]) -> None:
    a, b = np.array([0.0, 0.9, *first]), np.array([0.0, 0.7, *second])
    tau = float(np.linalg.norm(a))
    jets = explicit_jets([hermite_layer(a), hermite_layer(b)])
    enn = nsd.ENN([Hermite(tuple(a)), Hermite(tuple(b), tau)])
    for kernel in KERNELS:
        c, jet = nsd.coefficients(enn, 1.0, kernel), jets[kernel]
        got = (jet.cross[index(0, 0, 1)], jet.cross[index(1, 1, 0)], jet.cross[index(0, 0, 2)], jet.diagonal[0])
        assert np.array(got) == pytest.approx(np.array(c.four), rel=tolerance(), abs=tolerance())


@pytest.mark.parametrize("kernel", KERNELS)
def test_explicit_jets_with_rates_follow_the_exact_kernel(kernel: str) -> None:
    enn, rates = nsd.ENN(["silu", "tanh"]).centred(1.0), (0.4, 1.3, 0.8)
    jet = network_jets(enn, 1.0, (kernel,), rates)[kernel]
    h, one = 0.05, torch.ones(1, dtype=torch.float64)
    truth = pairwise(enn, (1 + h) * one, (1 - h) * one, h * one, kernels=(kernel,), learning_rates=rates)[kernel]
    assert evaluate(jet.cross, h, -h, h) == pytest.approx(float(truth), abs=h**4)


def test_closed_forms_agree_with_quadrature() -> None:
    design = LeakyDesign(2, size=0.6)
    z = np.array([0.9, 0.3, 0.8, 0.5])
    closed = explicit_jets(design.layers(z))
    layers = [layer_of(LeakyReLU(0.6, 1.2), 1.0), layer_of(LeakyReLU(0.6 * 0.3, 0.6 * 1.3), 1.0)]
    layers[1] = layer_of(LeakyReLU(0.6 * 0.3, 0.6 * 1.3), math.sqrt(float(layers[0].square[0])))
    # the design takes every layer at unit scale: bring the second to the scale the first leaves
    scale = float(closed["ck"].diagonal[0]) / float(explicit_jets(layers)["ck"].diagonal[0])
    assert explicit_jets(layers)["ck"].cross * scale == pytest.approx(closed["ck"].cross, abs=ulps())


def test_jet_arithmetic() -> None:
    rng = np.random.default_rng(0)
    cross, line = rng.standard_normal((2, len(MONOMIALS))), rng.standard_normal((2, DEGREE + 1))
    cross[:, 0], line[:, 0] = (1.5, -2.0), (-1.2, 1.7)
    a, one = KernelJet.of(cross, line), KernelJet.of(np.eye(1, len(MONOMIALS)), np.eye(1, DEGREE + 1))
    assert (a / a).c == pytest.approx(np.repeat(one.c, 2, axis=0), abs=ulps())
    assert (2.0 - (one + 1.0)).c == pytest.approx(0.0)
    assert len(MONOMIALS) == math.comb(DEGREE + 3, 3)


@pytest.mark.parametrize("name", ["tanh", "quadratic", "cos"])
def test_a_shift_takes_no_digits_from_a_centred_layer(name: str) -> None:
    phi, scale = nsd.activation(name), 1e-3
    layer = layer_of(phi.affine(shift=3.0), scale)
    assert layer.square[0] == pytest.approx(layer_of(phi, scale).square[0], rel=tolerance(), abs=0)
    assert layer.mean == pytest.approx(3.0 + nsd.gaussian.moments(phi, scale).mean, rel=ulps())


@pytest.mark.parametrize(("gain", "message"), [(1e100, "overflows"), (1e-100, "is constant")])
def test_a_layer_without_an_input_scale_says_why(gain: float, message: str) -> None:
    network = nsd.ENN([nsd.activation("relu").affine(gain=gain)] * 4 + ["tanh"])
    with np.errstate(all="ignore"), pytest.raises(InvalidInputError, match=message):
        network_jets(network, 1e20 if gain > 1.0 else 1e-20, ("ck",))
