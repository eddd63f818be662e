"""The record of a twin: one JSON for every kind, one way to its kernel, what it prints, what it refuses to load."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.equivalents import best_scalar
from notsodeep.errors import InvalidInputError, SerialisationError
from notsodeep.matching import Twin


@pytest.fixture(scope="module")
def twins() -> dict[str, Twin]:
    relu = nsd.DEQ("relu", 0.2)
    return {
        "mixture": nsd.match(relu, 1.0, "ntk"),
        "odd": nsd.match(nsd.DEQ("tanh", 0.2), 1.0),
        "frozen": nsd.match(relu, 1.0, "ntk_frozen"),
        "sphere": nsd.match_sphere(nsd.DEQ("silu", 0.2), "ntk", 20),
        "uniform": nsd.match_one_layer(nsd.DEQ("tanh", 0.2), "ntk", (0.8, 1.2)),
    }


KINDS = ["mixture", "odd", "frozen", "sphere", "uniform"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_is_a_value(twins: dict[str, Twin], kind: str) -> None:
    twin = twins[kind]
    text = json.dumps(twin.to_dict(), allow_nan=False)
    for again in (Twin.from_dict(twin.to_dict()), Twin.from_dict(text), pickle.loads(pickle.dumps(twin))):
        assert again == twin
        assert hash(again) == hash(twin)
    assert replace(twin, reason="another") != twin


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_matrix_is_what_verify_holds_against_the_deq(twins: dict[str, Twin], kind: str) -> None:
    twin = twins[kind]
    X = np.random.default_rng(0).normal(size=(30, 60)) / 60**0.5
    X /= np.linalg.norm(X, axis=1, keepdims=True) ** 0.5  # norms within the range of the uniform twin
    truth, own = nsd.kernels_of(twin.deq, X, kernels=(twin.kernel,))[twin.kernel], twin.kernel_matrix(X)
    distance = np.linalg.norm(truth - own, 2) / np.linalg.norm(truth, 2)
    assert twin.verify(X).distance == pytest.approx(distance, rel=tolerance(), abs=ulps())
    np.testing.assert_allclose(twin.kernel_matrix(X[:7], X[3:]), own[:7, 3:], rtol=0, atol=tolerance())
    tensor = twin.kernel_matrix(torch.from_numpy(X))
    np.testing.assert_allclose(tensor.numpy(), twin.kernel_matrix(X), rtol=0, atol=tolerance())


def test_kernel_matrix_knows_what_is_trained(twins: dict[str, Twin]) -> None:
    X = np.random.default_rng(1).normal(size=(8, 20)) / 20**0.5
    twin = twins["mixture"]
    assert [twins[kind].trains for kind in KINDS] == ["all", "readout", "all", "all", "readout"]
    rated = nsd.ntk(twin.network, X, learning_rates=twin.learning_rates)
    np.testing.assert_array_equal(twin.kernel_matrix(X), rated)
    features = replace(twin, trains="readout", learning_rates=None)
    np.testing.assert_array_equal(features.kernel_matrix(X), nsd.ck(twin.network, X))
    assert features.verify(X).distance > 10 * twin.verify(X).distance  # its CK is not the DEQ's NTK
    with pytest.raises(InvalidInputError, match="trains"):
        replace(twin, trains="some")
    with pytest.raises(InvalidInputError, match="a twin matches a DEQ"):
        replace(twin, deq=twin.network)


def test_the_plain_network_with_its_best_scalar() -> None:
    """The scalar against a fine scan of the spectral distance."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(40, 100)) / 10.0
    truth = torch.from_numpy(nsd.ck(nsd.DEQ("relu", 0.2).centred(), X))
    plain = torch.from_numpy(nsd.ck(nsd.ENN(["relu", "relu"]).centred(), X))
    found = best_scalar(truth, plain)
    scan = np.linspace(0.9, 1.1, 2001) * found.scalar
    distances = [
        float(torch.linalg.matrix_norm(truth - s * plain, 2) / torch.linalg.matrix_norm(truth, 2)) for s in scan
    ]
    # two eigenvalues of opposite sign balance there, each from Lanczos: a few times the rounding of one
    assert found.distance <= min(distances) * (1.0 + tolerance(amplified=10))
    assert found.distance == pytest.approx(min(distances), rel=1e-3)  # the scan's own spacing
    assert best_scalar(truth, 2.5 * truth).scalar == pytest.approx(0.4)


def test_verification_shows_both_distances(twins: dict[str, Twin]) -> None:
    seen = twins["mixture"].verify(np.random.default_rng(3).normal(size=(30, 300)) / 300**0.5)
    assert seen.distance < seen.plain_scaled_distance < seen.plain_distance
    assert seen.gain > 1.0
    assert "times its best scalar" in str(seen)
    assert "centred DEQ (activation shifted by -0.36" in str(seen)


def test_print_says_which_deq(twins: dict[str, Twin]) -> None:
    assert str(twins["mixture"]).startswith("Twin of the centred DEQ (activation shifted by -0.369646)")
    assert "the DEQ as given differs" in str(twins["mixture"])
    for kind in ("odd", "uniform"):
        assert str(twins[kind]).startswith("Twin of DEQ(Tanh()")
    already = nsd.match(nsd.DEQ("relu", 0.2).centred(), 1.0)
    assert "as given differs" not in str(already)
    for twin in twins.values():
        assert len(repr(twin)) < 100
        assert "\n" not in repr(twin)


def spoil(document: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    out = copy.deepcopy(document)
    part = out
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    return out


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("mixture", ("certificate", "residual"), "tiny"),
        ("mixture", ("certificate", "residual"), float("nan")),
        ("mixture", ("certificate", "residual"), True),
        ("mixture", ("certificate", "tau0"), 0.0),
        ("mixture", ("certificate", "target", "c1"), None),
        ("mixture", ("certificate", "target", "kernel"), ["ck"]),
        ("mixture", ("certificate", "achieved"), []),
        ("mixture", ("certificate", "kind"), "sphere"),
        ("mixture", ("certificate", "kind"), ["mixture"]),
        ("mixture", ("certificate",), None),
        ("mixture", ("learning_rates",), [float("nan")] * 3),
        ("mixture", ("learning_rates",), [-1.0, 1.0, 1.0]),
        ("mixture", ("learning_rates",), "abc"),
        ("mixture", ("learning_rates",), 3),
        ("mixture", ("kernel",), ["ck"]),
        ("mixture", ("trains",), "some"),
        ("mixture", ("kinds",), 0),
        ("mixture", ("family",), None),
        ("mixture", ("colour",), "blue"),
        ("mixture", ("network",), {"network": "DEQ"}),
        ("uniform", ("certificate", "bound"), None),
        ("uniform", ("certificate", "norms"), [2.0, 1.0]),
        ("uniform", ("certificate", "norms"), 7),
        ("uniform", ("certificate", "table", 0, "kinds"), "two"),
        ("uniform", ("certificate", "at"), "x"),
        ("sphere", ("certificate", "bound"), -1.0),
    ],
)
def test_documents_with_one_wrong_value_are_refused(twins: dict[str, Twin], kind: str, path: Any, value: Any) -> None:
    sound = twins[kind].to_dict()
    assert Twin.from_dict(sound) == twins[kind]
    with pytest.raises(SerialisationError):
        Twin.from_dict(spoil(sound, path, value))


def test_numbers_of_thousands_of_digits_are_refused(twins: dict[str, Twin]) -> None:
    for path in (("certificate", "residual"), ("learning_rates",), ("deq", "sigma_a2")):
        with pytest.raises(SerialisationError):
            Twin.from_dict(spoil(twins["mixture"].to_dict(), path, 10**6000))


def nested(levels: int) -> dict[str, Any]:
    document: dict[str, Any] = {"activation": "relu"}
    for _ in range(levels):
        document = {"activation": "affine", "base": document, "gain": 1.0}
    return document


@pytest.mark.parametrize("levels", [100, 2000])
def test_deep_documents_are_refused(twins: dict[str, Twin], levels: int) -> None:
    sound = twins["mixture"].to_dict()
    sound["deq"]["activation"] = nested(levels)
    with pytest.raises(SerialisationError, match="levels deep"):
        Twin.from_dict(sound)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, '{"twin": 1' + "0" * 6000 + "}", "{", "", "null", '{"twin": 3}', '{"twin": 2}', "{}"],
)
def test_texts_that_are_no_twin_are_refused(text: str) -> None:
    with pytest.raises(SerialisationError):
        Twin.from_dict(text)


def test_notebooks_see_what_print_shows(twins: dict[str, Twin]) -> None:
    assert "residual" in twins["odd"]._repr_html_()
    assert "<script>" not in replace(twins["odd"], family="<script>alert(1)</script>")._repr_html_()


def test_data_in_the_place_of_statistics() -> None:
    X = np.random.default_rng(0).normal(size=(500, 300))
    for data in (X, torch.from_numpy(X), X.tolist()):
        with pytest.raises(InvalidInputError, match=r"MixtureStatistics\.estimate\(X, y\)") as error:
            nsd.match(nsd.DEQ("tanh", 0.2), data)
        assert len(str(error.value)) < 400
