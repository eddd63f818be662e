"""The record of a twin: one JSON for every kind, one way to its kernel, what it prints, what it refuses to load."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.equivalents import best_scalar
from notsodeep.errors import InvalidInputError, SerialisationError
from notsodeep.matching import MixtureCertificate, SphereCertificate, Twin, UniformCertificate

OLD = json.loads((Path(__file__).parent / "data" / "twins_0.1.0.json").read_text())


@pytest.fixture(scope="module")
def twins() -> dict[str, Twin]:
    relu = nsd.DEQ("relu", 0.2)
    return {
        "mixture": nsd.match(relu, 1.0, "ntk"),
        "both": nsd.match(nsd.DEQ("tanh", 0.2), 1.0, "both"),
        "frozen": nsd.match(relu, 1.0, "ntk_frozen"),
        "sphere": nsd.match_sphere(nsd.DEQ("silu", 0.2), "ntk", 20, normalise=True),
        "uniform": nsd.match_uniform(relu, "both", tol=5e-3),
    }


KINDS = ["mixture", "both", "frozen", "sphere", "uniform"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_twin_is_a_value(twins: dict[str, Twin], kind: str) -> None:
    twin = twins[kind]
    text = json.dumps(twin.to_dict(), allow_nan=False)
    for again in (Twin.from_dict(twin.to_dict()), Twin.from_dict(text), pickle.loads(pickle.dumps(twin))):
        assert again == twin
        assert hash(again) == hash(twin)
    assert replace(twin, reason="another") != twin


@pytest.mark.parametrize("kind", sorted(OLD))
def test_files_of_the_first_version_load(kind: str) -> None:
    old = OLD[kind]
    twin = Twin.from_dict(json.dumps(old))
    expected = {"mixture": MixtureCertificate, "sphere": SphereCertificate}.get(kind, UniformCertificate)
    assert isinstance(twin.certificate, expected)
    assert (twin.residual, twin.tau0, twin.bound) == (old["residual"], old["tau0"], old["bound"])
    assert (twin.reason, twin.family, twin.kernel) == (old["reason"], old["family"], old["kernel"])
    assert [c.c3 for c in twin.targets] == [c["c3"] for c in old["targets"]]
    assert [row.bound for row in twin.table] == [row["bound"] for row in old.get("table", [])]
    assert Twin.from_dict(twin.to_dict()) == twin


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_matrix_is_what_verify_holds_against_the_deq(twins: dict[str, Twin], kind: str) -> None:
    twin = twins[kind]
    X = np.random.default_rng(0).normal(size=(30, 60)) / 60**0.5
    rows = X / np.linalg.norm(X, axis=1, keepdims=True) if twin.normalise else X
    seen = twin.verify(X)
    for name, distance in seen.twin.items():
        truth = nsd.kernels_of(twin.deq, rows, kernels=(name,))[name]
        own = twin.kernel_matrix(X, kernel=name)
        assert np.linalg.norm(truth - own, 2) / np.linalg.norm(truth, 2) == pytest.approx(
            distance, rel=tolerance(), abs=ulps()
        )
        np.testing.assert_allclose(twin.kernel_matrix(X[:7], X[3:], kernel=name), own[:7, 3:], rtol=0, atol=tolerance())
    tensor = twin.kernel_matrix(torch.from_numpy(X))
    np.testing.assert_allclose(tensor.numpy(), twin.kernel_matrix(X), rtol=0, atol=tolerance())


def test_kernel_matrix_knows_what_is_trained(twins: dict[str, Twin]) -> None:
    X = np.random.default_rng(1).normal(size=(8, 20)) / 20**0.5
    twin = twins["mixture"]
    assert (twin.trains, twins["both"].trains, nsd.match(nsd.DEQ("relu", 0.2), 1.0).trains) == ("all", "all", "readout")
    rated = nsd.ntk(twin.network, X, learning_rates=twin.learning_rates)
    np.testing.assert_array_equal(twin.kernel_matrix(X), rated)
    features = replace(twin, trains="readout", learning_rates=None)
    np.testing.assert_array_equal(features.kernel_matrix(X), nsd.ck(twin.network, X))
    np.testing.assert_array_equal(twins["both"].kernel_matrix(X, kernel="ck"), nsd.ck(twins["both"].network, X))
    with pytest.raises(InvalidInputError, match="matches ntk"):
        twin.kernel_matrix(X, kernel="ck")
    with pytest.raises(InvalidInputError, match="trains"):
        replace(twins["both"], trains="readout")


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
    assert seen.twin["ntk"] < seen.plain_scaled["ntk"] < seen.plain["ntk"]
    assert seen.gain_scaled < seen.gain
    assert "times its best scalar" in str(seen)
    assert "centred DEQ (activation shifted by -0.36" in str(seen)


def test_print_says_which_deq(twins: dict[str, Twin]) -> None:
    assert str(twins["mixture"]).startswith("Twin of the centred DEQ (activation shifted by -0.369646)")
    assert "the DEQ as given differs" in str(twins["mixture"])
    assert str(twins["both"]).startswith("Twin of DEQ(Tanh()")
    assert str(twins["uniform"]).startswith("Twin of DEQ(ReLU()")
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
        ("mixture", ("certificate", "targets", 0, "c1"), None),
        ("mixture", ("certificate", "targets", 0, "kernel"), ["ck"]),
        ("mixture", ("certificate", "targets"), []),
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
        ("uniform", ("certificate", "table", 0, "depth"), "two"),
        ("uniform", ("certificate", "location", "rho"), "x"),
        ("uniform", ("certificate", "diagonals"), [["ck"]]),
        ("sphere", ("certificate", "normalise"), 1),
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
    ["[" * 100_000, '{"twin": 1' + "0" * 6000 + "}", "{", "", "null", '{"twin": 3}', "{}", '{"uniform_twin": 1}'],
)
def test_texts_that_are_no_twin_are_refused(text: str) -> None:
    with pytest.raises(SerialisationError):
        Twin.from_dict(text)


def test_only_a_uniform_bound_has_implications(twins: dict[str, Twin]) -> None:
    twin = twins["uniform"]
    means = twin.implications(100, ridge=0.1, kernel="ck")
    assert means.entry == pytest.approx(twin.bound * dict(twin.diagonals)["ck"])
    with pytest.raises(InvalidInputError, match="match_uniform"):
        twins["mixture"].implications(100, 0.1)


def test_notebooks_see_drawings_and_numbers(twins: dict[str, Twin]) -> None:
    for twin in twins.values():
        page = ElementTree.fromstring(twin._repr_html_())
        curves = page.findall(".//polyline")
        assert len(curves) == 1 + twin.depth
        assert all(len(c.get("points", "").split()) == 121 for c in curves)
        assert twin.family in "".join(page.itertext())
    named = replace(twins["both"], family="<script>alert(1)</script>")
    assert "<script>" not in named._repr_html_()


def test_data_in_the_place_of_statistics() -> None:
    X = np.random.default_rng(0).normal(size=(500, 300))
    for data in (X, torch.from_numpy(X), X.tolist()):
        with pytest.raises(InvalidInputError, match=r"MixtureStatistics\.estimate\(X, y\)") as error:
            nsd.match(nsd.DEQ("tanh", 0.2), data)
        assert len(str(error.value)) < 400
