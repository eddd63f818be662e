"""One layer on the sphere: exact up to a tail that is known."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import InfeasibleMatchError, InvalidInputError
from notsodeep.kernels import sphere_diagonal
from notsodeep.matching import Twin

KERNELS = ["ck", "ntk", "ntk_frozen"]


def unit_points(n: int, d: int) -> np.ndarray:
    X = np.random.default_rng(0).standard_normal((n, d))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def difference(twin: Twin, kernel: str, n: int = 40, d: int = 30) -> tuple[float, float]:
    """Largest off-diagonal and diagonal deviation of the exact kernels."""
    X = unit_points(n, d)
    gap = np.abs(
        nsd.kernels_of(twin.deq, X, kernels=(kernel,), check=False)[kernel]
        - nsd.kernels_of(twin.network, X, kernels=(kernel,))[kernel]
    )
    off = ~np.eye(n, dtype=bool)
    return float(gap[off].max()), float(gap[~off].max())


@pytest.mark.parametrize(
    ("name", "kernel"),
    [("tanh", "ck"), ("tanh", "ntk"), ("silu", "ck"), ("silu", "ntk_frozen"), ("gelu", "ck"), ("sigmoid", "ntk")],
)
def test_sixty_terms_are_exact_for_smooth_activations(name: str, kernel: str) -> None:
    twin = nsd.match_sphere(nsd.DEQ(name, 0.15), kernel, terms=60)
    off, on = difference(twin, kernel)
    assert off < tolerance()
    assert on < twin.bound + ulps()
    assert twin.depth == 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_relu_stays_within_its_bound(kernel: str) -> None:
    twin = nsd.match_sphere(nsd.DEQ("relu", 0.2), kernel, terms=60)
    off, on = difference(twin, kernel)
    assert off < tolerance()
    assert 0.5 * twin.bound < on < 1.01 * twin.bound + ulps()  # on the diagonal the bound is attained


def test_few_terms_hold_their_bound_for_near_duplicates() -> None:
    twin = nsd.match_sphere(nsd.DEQ("relu", 0.2), terms=8)
    angle = np.linspace(0.0, math.pi, 25)
    X = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    gap = np.abs(nsd.ck(twin.deq, X) - nsd.ck(twin.network, X))
    assert gap.max() <= twin.bound * (1 + tolerance())
    assert gap.max() > 0.5 * twin.bound


def test_more_terms_tighten_the_bound() -> None:
    bounds = [nsd.match_sphere(nsd.DEQ("relu", 0.2), terms=t).bound for t in (4, 8, 16, 32)]
    assert all(b < 0.6 * a for a, b in itertools.pairwise(bounds))


@pytest.mark.parametrize("name", ["tanh", "relu", "silu"])
def test_the_activation_is_tame(name: str) -> None:
    """Within three standard deviations it stays near the scale of phi itself."""
    twin = nsd.match_sphere(nsd.DEQ(name, 0.2))
    x = np.linspace(-3.0, 3.0, 301)
    layer, phi = twin.network.activations[0], twin.deq.activation
    assert np.abs(layer(x)).max() < 1.5 * np.abs(phi(x)).max()


@pytest.mark.parametrize("normalise", [False, True])
def test_cells_have_twins_on_the_sphere(normalise: bool) -> None:
    deq = nsd.DEQ(["tanh", "gelu"], 0.03, sigma_c2=0.3, normalise=normalise)
    twin = nsd.match_sphere(deq)
    error = np.abs(twin.kernel_matrix(unit_points(20, 6)) - nsd.ck(deq, unit_points(20, 6)))
    assert error.max() <= twin.bound + tolerance()
    # sixty terms of two smooth layers
    assert twin.bound < 1e-6 * float(sphere_diagonal(deq, "ck"))


def test_refusals() -> None:
    deq = nsd.DEQ("tanh", 0.2)
    with pytest.raises(InvalidInputError, match="deq must be"):
        nsd.match_sphere(nsd.ENN("relu"))
    with pytest.raises(InvalidInputError, match="kernel must be"):
        nsd.match_sphere(deq, "both")
    with pytest.raises(InvalidInputError, match="terms"):
        nsd.match_sphere(deq, terms=1)


def test_a_kernel_that_is_zero_has_no_twin():
    with pytest.raises(InfeasibleMatchError, match="zero"):
        nsd.match_sphere(nsd.DEQ(nsd.activation("relu").affine(gain=0.0), 0.2))


@pytest.mark.parametrize("deq", [nsd.DEQ("tanh", 0.2, 0.0), nsd.DEQ(nsd.activation("relu").affine(gain=0.0), 0.2)])
def test_a_kernel_that_is_zero_is_refused(deq) -> None:
    with pytest.raises((InvalidInputError, InfeasibleMatchError), match="to match"):
        nsd.match_sphere(deq)
