"""Uniform twins on a box of norms, for activations that are not homogeneous."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Activation
from notsodeep.errors import InvalidInputError
from notsodeep.kernels import pairwise
from notsodeep.matching import Twin
from notsodeep.matching.uniform.box import Pairs, deq_at, enn_at
from notsodeep.matching.uniform.box_certify import Candidate, _relative_jet, certify_box, relative_error

BOX = (0.5, 1.5)


def own(name: str, gain: float = 0.6, scale: float = 0.9) -> list[Activation]:
    """A residual layer and a last layer in the DEQ's own activation."""
    phi = nsd.activation(name)
    return [phi.affine(gain=gain, scale=scale, skip=1.0, shift=0.01), phi.affine(scale=0.7, skip=0.02)]


def room(network: nsd.DEQ | nsd.ENN, pairs: Pairs, kinds: tuple[str, ...]) -> dict[str, np.ndarray]:
    x, y = pairs.norms[pairs.first], pairs.norms[pairs.second]
    sx, sy, dot = (torch.from_numpy(v) for v in (x * x, y * y, x * y * pairs.cosine))
    return {k: v.numpy() for k, v in pairwise(network, sx, sy, dot, kinds=kinds).items()}


@pytest.mark.parametrize(("name", "terms"), [("tanh", 48), ("silu", 24), ("elu", 48), ("softplus", 24)])
def test_series_agree_with_the_kernel_room_within_their_truncation(name: str, terms: int) -> None:
    kinds = ("ck", "ntk", "ntk_frozen")
    pairs = Pairs.tensor(np.linspace(*BOX, 5), np.linspace(0.0, math.pi, 13))
    deq, activations = nsd.DEQ(name, sigma_a2=0.2), own(name)
    ours, exact = deq_at(deq, pairs, terms, kinds), room(deq, pairs, kinds)
    for kind in kinds:
        assert np.abs(ours.kernels[kind] - exact[kind]).max() <= ours.missing + 1e-12
    ours, exact = enn_at(activations, pairs, terms, kinds), room(nsd.ENN(activations), pairs, kinds)
    for kind in kinds:
        gap = np.abs(ours.kernels[kind].sum(0) - exact[kind]).max()
        assert gap <= len(ours.kernels[kind]) * ours.missing + 1e-12


@pytest.mark.parametrize("kind", ["ck", "ntk", "ntk_frozen"])
@pytest.mark.parametrize("name", ["tanh", "silu", "softplus", "sin"])
def test_derivative_bounds_dominate_differences(name: str, kind: str) -> None:
    """Along either norm and along the angle, at the middle of every cell of the base grid."""
    deq, activations = nsd.DEQ(name, sigma_a2=0.2), own(name)
    norms, h = np.linspace(*BOX, 33), 1e-3
    count = {"ck": 1, "ntk": 3, "ntk_frozen": 2}[kind]
    given = Candidate(deq, activations, np.full(count, 0.8), kind, BOX)
    chosen = np.arange(0, 32, 4)
    middle = (0.5 * (norms[:-1] + norms[1:]))[chosen]
    shifted = np.concatenate([middle - h, middle, middle + h])
    i, j, cosine = (
        a.ravel() for a in np.meshgrid(np.arange(8), np.arange(8), np.cos(np.linspace(0, math.pi, 9)), indexing="ij")
    )

    def relative(first: np.ndarray, second: np.ndarray, cosine: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        pairs = Pairs(shifted, first, second, cosine)
        of_deq, of_twin = deq_at(deq, pairs, 80, (kind,)), enn_at(activations, pairs, 80, (kind,))
        unit = np.sqrt(pairs.product(of_deq.diagonals[kind]))
        return of_deq.kernels[kind] / unit, given.weights @ of_twin.kernels[kind] / unit

    here = relative(i + 8, j + 8, cosine)
    moved = [relative(i + k, j + 8, cosine) for k in (0, 16)]
    bound = _relative_jet(given, norms, True)
    second = sum(np.abs(moved[0][k] - 2.0 * here[k] + moved[1][k]) / h**2 for k in (0, 1))
    first = sum(np.abs(moved[1][k] - moved[0][k]) / (2.0 * h) for k in (0, 1))
    assert np.all(first <= bound.first[chosen[i], chosen[j]] + 1e-8)
    assert np.all(second <= bound.second[chosen[i], chosen[j]] + 1e-5)
    angle = np.arccos(cosine)
    turned = [relative(i + 8, j + 8, np.cos(angle + s)) for s in (-h, h)]
    bound = _relative_jet(given, norms, False)
    second = sum(np.abs(turned[0][k] - 2.0 * here[k] + turned[1][k]) / h**2 for k in (0, 1))
    assert np.all(second <= bound.second[chosen[i], chosen[j]] + 1e-5)


def random_error(twin: Twin, count: int = 2000) -> float:
    rng = np.random.default_rng(5)
    low, high = twin.norms or (1.0, 1.0)
    norms = np.concatenate([[low, high], rng.uniform(low, high, 60)])
    first, second = rng.integers(0, len(norms), (2, count))
    cosine = np.cos(rng.uniform(0.0, math.pi, count))
    cosine[:100], cosine[100:200] = 1.0, -1.0
    pairs = Pairs(norms, first, second, cosine)
    deq = room(twin.deq, pairs, (twin.kernel,))[twin.kernel]
    x, y = (torch.from_numpy(norms[k] ** 2) for k in (first, second))
    dot = torch.from_numpy(norms[first] * norms[second] * cosine)
    explicit = pairwise(twin.network, x, y, dot, kinds=(twin.kernel,), learning_rates=twin.learning_rates)[twin.kernel]
    ends = [pairwise(twin.deq, s, s, s, kinds=(twin.kernel,))[twin.kernel].numpy() for s in (x, y)]
    return float((np.abs(deq - explicit.numpy()) / np.sqrt(ends[0] * ends[1])).max())


@pytest.mark.parametrize(("name", "tol", "depth"), [("softplus", 2e-3, 1), ("silu", 9e-3, 1), ("silu", 2e-3, 2)])
def test_bound_on_a_box(name: str, tol: float, depth: int) -> None:
    twin = nsd.match_uniform(nsd.DEQ(name, sigma_a2=0.2), "ck", norms=BOX, tol=tol)
    assert twin.depth == depth
    assert random_error(twin) <= twin.bound <= tol
    assert Twin.from_dict(json.dumps(twin.to_dict())) == twin
    assert twin.implications(10, 1.0).spectral == pytest.approx(10 * twin.bound * dict(twin.diagonals)["ck"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["elu", "gelu"])
def test_two_layers_reach_two_thousandths(name: str) -> None:
    deq = nsd.DEQ(name, sigma_a2=min(0.2, 0.95 * nsd.DEQ(name, 0.1).limit))
    twin = nsd.match_uniform(deq, "ck", norms=BOX, tol=2e-3)
    assert twin.depth == 2
    assert random_error(twin) <= twin.bound <= 2e-3


def test_ntk_on_a_box_with_learning_rates() -> None:
    twin = nsd.match_uniform(nsd.DEQ("softplus", sigma_a2=0.1), "ntk", norms=(0.8, 1.2), layers=1)
    assert twin.learning_rates is not None
    assert len(twin.learning_rates) == 2
    assert random_error(twin) <= twin.bound < 0.1


def test_a_thin_shell_is_a_box_too() -> None:
    twin = nsd.match_uniform(nsd.DEQ("silu", sigma_a2=0.2), norms=(1.0, 1.0), tol=5e-3)
    assert random_error(twin) <= twin.bound <= 5e-3


def test_certificate_finds_a_planted_error() -> None:
    """A twin that is wrong in one corner of the box must not be certified below that error."""
    deq = nsd.DEQ("silu", sigma_a2=0.2)
    given = Candidate(deq, own("silu", gain=0.2, scale=1.6), np.ones(1), "ck", BOX)
    dense = Pairs.tensor(np.linspace(*BOX, 21), np.linspace(0.0, math.pi, 61))
    seen = float(relative_error(given, dense, 40)[0].max())
    found = certify_box(given, 40)
    assert found.bound >= seen
    assert found.sampled >= 0.95 * seen


@pytest.mark.parametrize(
    ("name", "kernel", "message"),
    [("hard_tanh", "ck", "slope jumps"), ("selu", "ck", "slope jumps"), ("elu", "ntk", "second derivative jumps")],
)
def test_what_cannot_be_certified_is_refused(name: str, kernel: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        nsd.match_uniform(nsd.DEQ(name, sigma_a2=0.05), kernel, norms=(0.9, 1.1), layers=1)


def test_depth_is_limited() -> None:
    with pytest.raises(InvalidInputError, match="up to 3 layers"):
        nsd.match_uniform(nsd.DEQ("tanh", sigma_a2=0.1), layers=4)


def test_odd_networks_have_a_rank_one_slope_and_odd_deqs_do_not() -> None:
    """Why odd DEQs stay at some 5e-3 at every depth: dk/drho at rho = 0 over pairs of norms (docs/uniform.md)."""
    norms, h = np.linspace(*BOX, 6), 1e-4
    i, j = (a.ravel() for a in np.meshgrid(np.arange(6), np.arange(6), indexing="ij"))

    def ranks(network: nsd.DEQ | nsd.ENN) -> np.ndarray:
        above = room(network, Pairs(norms, i, j, np.full(36, h)), ("ck",))["ck"]
        return np.linalg.svd((above / h).reshape(6, 6), compute_uv=False)

    phi = nsd.activation("tanh")
    explicit = ranks(nsd.ENN([phi.affine(gain=0.7, skip=0.5), phi.affine(skip=0.3), phi]))
    implicit = ranks(nsd.DEQ("tanh", sigma_a2=0.2))
    assert explicit[1] / explicit[0] < 1e-6
    assert implicit[1] / implicit[0] > 1e-3
