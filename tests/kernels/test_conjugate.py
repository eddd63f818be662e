"""Kernels at complex norms: closed forms, the real axis, and where nothing continues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance
from notsodeep.activations import Activation
from notsodeep.kernels import diagonal
from notsodeep.kernels.conjugate import conjugate_square

SECTOR = np.exp(1j * np.array([0.0, 0.2, 0.35])) * np.array([0.5, 1.0, 1.4])


def test_the_error_function_has_a_closed_form():
    # E[erf(u) erf(v)] = 2/pi arcsin(2 lam / sqrt((1 + 2 q)(1 + 2 q'))), at q = z^2 and its conjugate
    size = np.abs(SECTOR) ** 2
    exact = 2.0 / np.pi * np.arcsin(2.0 * size / np.abs(1.0 + 2.0 * SECTOR**2))
    np.testing.assert_allclose(conjugate_square(nsd.ENN(["erf"]), SECTOR, "ck"), exact, rtol=1e-5)  # where series end


def test_the_sine_has_a_closed_form_and_takes_complex_numbers():
    # E[sin u sin v] = exp(-(q + q')/2) sinh(lam)
    size = np.abs(SECTOR) ** 2
    exact = np.exp(-(SECTOR**2).real) * np.sinh(size)
    np.testing.assert_allclose(conjugate_square(nsd.ENN(["sin"]), SECTOR, "ck"), exact, rtol=1e-5)  # where series end


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
@pytest.mark.parametrize(
    "network", [nsd.DEQ("tanh", 0.2), nsd.DEQ("gelu", 0.15, 0.7, sigma_c2=0.1), nsd.ENN(["silu", "erf"])], ids=repr
)
def test_on_the_real_axis_it_is_the_diagonal(network, kernel):
    s = np.array([0.4, 1.0, 1.7])
    exact = diagonal(network, torch.from_numpy(s**2), (kernel,))[kernel].numpy()
    np.testing.assert_allclose(conjugate_square(network, s + 0j, kernel), exact, rtol=1e-5)  # where series end


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
@pytest.mark.parametrize(
    "network",
    [nsd.DEQ("tanh", 0.2), nsd.DEQ("sin", 0.2), nsd.DEQ("gelu", 0.15, 0.7, sigma_c2=0.3), nsd.ENN(["silu", "tanh"])],
    ids=repr,
)
def test_a_disc_of_norms_is_bounded_at_once(network, kernel):
    rng, radius = np.random.default_rng(0), 0.02
    bound = conjugate_square(network, SECTOR, kernel, radius)
    for _ in range(20):  # on the edge, where the largest value is
        inside = SECTOR * np.exp(radius * np.exp(2j * np.pi * rng.uniform(size=len(SECTOR))))
        assert (conjugate_square(network, inside, kernel) <= bound).all()
    assert (bound <= 1.25 * conjugate_square(network, SECTOR, kernel)).all()


def test_what_does_not_continue_is_infinite():
    beyond = np.array([1.0 + 0j, 0.1 + 1.0j])  # squared norms on the left of the imaginary axis
    assert np.isinf(conjugate_square(nsd.DEQ("tanh", 0.2), beyond, "ck")).all()


def test_a_function_that_is_not_its_own_continuation_is_integrated_on_the_real_axis():
    def function(x):
        return torch.tanh(x.abs()) * torch.sign(x) if x.is_complex() else torch.tanh(x)

    phi = Activation.from_callable(function)
    exact = conjugate_square(nsd.DEQ("tanh", 0.2), SECTOR, "ck")
    np.testing.assert_allclose(conjugate_square(nsd.DEQ(phi, 0.2), SECTOR, "ck"), exact, rtol=tolerance())
