"""Twins made of the DEQ's own odd activation and a linear term: closed form, next orders, distances."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance
from notsodeep.activations import Linear
from notsodeep.errors import InfeasibleMatchError
from notsodeep.matching.families.odd import best_layer
from notsodeep.matching.target import make_target

PROMISED = 1e-10  # the residual of every match
ODD = ["tanh", "arctan", "erf", "sin", "hard_tanh", "sigmoid"]
KERNELS = ["ck", "ntk", "ntk_frozen"]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ODD)
def test_the_equations_are_met(name: str, kernel: str) -> None:
    for fraction, tau0 in ((0.05, 0.3), (0.6, 1.0), (0.95, 2.0)):
        deq = nsd.DEQ(name, fraction * min(nsd.DEQ(name, 0.0).limit, 1.0))
        twin = nsd.match(deq, tau0, kernel, family="skip")
        assert (twin.family, twin.depth) == ("skip", 1)
        assert twin.residual < PROMISED


@settings(max_examples=10)
@given(st.floats(0.01, 0.24), st.floats(0.2, 3.0))
def test_closed_form_against_quadrature(sigma_a2: float, tau0: float) -> None:
    """The layer's mean slope and mean square, by a quadrature of its own, are the DEQ's alpha_1 and gamma^2."""
    deq = nsd.DEQ("tanh", sigma_a2)
    (layer,) = nsd.match(deq, tau0, family="skip").network.activations
    z = np.linspace(-12.0, 12.0, 4001)  # the trapezoidal rule converges geometrically for analytic functions
    w = np.exp(-0.5 * z**2)
    w /= w.sum()
    want = nsd.coefficients(deq, tau0)
    assert float(w @ layer.derivative(tau0 * z)) ** 2 == pytest.approx(want.c1, rel=tolerance())
    assert float(w @ layer(tau0 * z) ** 2) == pytest.approx(want.diagonal, rel=tolerance())


def mixture(p: int = 500, n: int = 400) -> tuple[np.ndarray, nsd.MixtureStatistics]:
    mix = nsd.GaussianMixture.two_class(p)
    X, y = mix.sample(n, seed=0)
    return X, nsd.MixtureStatistics.from_mixture(mix, X, y)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", ["tanh", "arctan", "sigmoid"])
def test_far_closer_than_hard_tanh_and_the_plain_network(name: str, kernel: str) -> None:
    X, statistics = mixture()
    deq = nsd.DEQ(name, 0.2)
    near = nsd.match(deq, statistics, kernel, family="skip").verify(X)
    cheap = nsd.match(deq, statistics, kernel, family="hard_tanh").verify(X)
    assert near.distance < 1e-3  # Hard-Tanh leaves most of a per cent
    assert near.gain > 20.0
    assert 4.0 * near.distance < cheap.distance


def test_free_rates_bring_the_ntk_closer() -> None:
    X, statistics = mixture()
    deq = nsd.DEQ("tanh", 0.2)
    twin, equal = nsd.match(deq, statistics, "ntk", family="skip"), best_layer(make_target(deq, statistics, "ntk"))
    gain, scale, line = (float(part[0]) for part in (equal.gain, equal.scale, equal.line))
    layer = nsd.ENN([deq.activation.affine(gain=gain, scale=scale, skip=line)])
    off, plain = (np.linalg.norm(own - nsd.ntk(deq, X), 2) for own in (twin.kernel_matrix(X), nsd.ntk(layer, X)))
    assert sum(twin.learning_rates) == pytest.approx(2.0)
    assert 3.0 * off < plain


def test_auto_takes_it_where_hard_tanh_is_poor() -> None:
    X, statistics = mixture()
    for deq, kernel in (
        (nsd.DEQ("tanh", 0.2), "ck"),
        (nsd.DEQ("tanh", 0.2), "ntk"),
        (nsd.DEQ("tanh", 0.2), "ntk_frozen"),
        (nsd.DEQ("sin", 0.1), "ck"),
    ):
        twin = nsd.match(deq, statistics, kernel)
        assert twin.family == ("hermite" if deq.activation.name == "sin" else "skip")
        assert "hard_tanh has the numbers too" in twin.reason
        cheap = nsd.match(deq, statistics, kernel, family="hard_tanh")
        assert 4.0 * twin.verify(X).distance < cheap.verify(X).distance


@pytest.mark.parametrize("sigma_b2", [1e-4, 0.1, 5.0])
def test_any_input_variance(sigma_b2: float) -> None:
    """The activation is tried around the scale at which the DEQ uses it, whatever the inputs' own."""
    twin = nsd.match(nsd.DEQ("tanh", 0.2, sigma_b2), 1.0, family="skip")
    assert twin.residual < PROMISED
    assert 0.12 < twin.network.activations[0].scale / twin.certificate.target.tau_star < 8.1


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tau0", [0.05, 0.1, 0.3, 1.0, 20.0])
def test_terms_do_not_cancel(tau0: float, kernel: str) -> None:
    """On small inputs every scale is nearly as good: the layer must not become a difference of large terms."""
    (layer,) = nsd.match(nsd.DEQ("tanh", 0.2), tau0, kernel, family="skip").network.activations
    assert abs(layer.gain * layer.scale) < 4.0
    assert abs(layer.skip) < 2.0


def test_small_changes_give_small_changes() -> None:
    def numbers(sigma_a2: float, tau0: float) -> np.ndarray:
        layer = nsd.match(nsd.DEQ("tanh", sigma_a2), tau0, "ck", family="skip").network
        return np.array([layer.activations[0].gain, layer.activations[0].scale, layer.activations[0].skip])

    for sigma_a2, tau0 in ((0.05, 1.0), (0.2, 0.8), (0.2, 2.0)):
        here = numbers(sigma_a2, tau0)
        for there in ((sigma_a2 + 1e-3, tau0), (sigma_a2, tau0 + 1e-3)):
            assert np.abs(numbers(*there) - here).max() < 0.03


def test_a_linear_deq_has_a_linear_twin() -> None:
    (layer,) = nsd.match(nsd.DEQ("linear", 0.2), 1.0, family="skip").network.activations
    assert isinstance(layer, Linear)


def test_what_it_cannot_do() -> None:
    with pytest.raises(InfeasibleMatchError, match="c2 and c3 vanish"):
        nsd.match(nsd.DEQ("relu", 0.2), 1.0, family="skip")
    with pytest.raises(InfeasibleMatchError, match="no linear part"):
        nsd.match(nsd.DEQ("cos", 0.1), 20.0, family="skip")


def test_the_twin_runs_and_is_written_as_code() -> None:
    twin = nsd.match(nsd.DEQ("tanh", 0.2), 1.0, "ntk", family="skip")
    model = nsd.nn.ENN(twin.network, 5, 16, 2, 0)
    assert model(torch.ones(3, 5)).shape == (3, 2)
    assert "tanh" in nsd.pytorch_code(twin)
