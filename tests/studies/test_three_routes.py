"""The three routes on the digits: each twin near its own DEQ, and numbers that are what they say."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from helpers import ulps
from studies import three_routes
from studies._runner import QUICK, read_document, run
from studies._tables import routes_table
from studies.three_routes import RIDGE, ROUTES, RouteSize, compare_route, prepare, route_twin

SIZE = RouteSize(train=150, test=100, width=64, seeds=2)


@pytest.fixture(scope="module")
def digits():
    return prepare("digits", SIZE)


@pytest.fixture(scope="module")
def relu(digits) -> dict[str, dict]:
    return {route: compare_route(digits, route, "relu", "ck", SIZE) for route in ROUTES}


def test_rows_are_seeded_and_standardised(digits):
    again, other = prepare("digits", SIZE), prepare("digits", SIZE, seed=1)
    assert (digits.X_train == again.X_train).all()
    assert not np.allclose(digits.X_train, other.X_train)
    assert digits.X_train.shape == (150, 64)
    assert len(digits.y_test) == 100
    assert (digits.X_train**2).sum(1).mean() == pytest.approx(1.0, abs=1e-5)  # float32 data
    mixture = prepare("mixture", SIZE)
    assert mixture.p == 1000
    assert set(mixture.y_train) == set(mixture.y_test) == {0, 1}
    assert not np.isin(mixture.X_test[:, 0], mixture.X_train[:, 0]).any()  # drawn apart


def test_each_route_speaks_of_its_own_deq(digits):
    plain = nsd.DEQ("relu", three_routes.SIGMA_A2)
    twins = {route: route_twin(route, "relu", "ck", digits) for route in ROUTES}
    assert twins["sphere"].deq == twins["one layer"].deq == plain
    assert twins["four numbers"].deq == plain.centred(twins["four numbers"].tau0)
    assert twins["four numbers"].tau0 == pytest.approx(1.0, abs=ulps(64, np.float32))
    boxed = route_twin("one layer", "tanh", "ck", digits)
    assert boxed.norms == pytest.approx(nsd.matching.norm_range(digits.X_train), rel=ulps(8, np.float32))


@pytest.mark.parametrize("route", ROUTES)
def test_twins_are_nearer_than_plain_networks(relu, route):
    found = relu[route]
    assert found["distance"]["twin"] < 1e-3 < found["distance"]["plain"]  # ten times nearer at least
    assert found["regression"]["agreement"]["twin"] == 1.0
    assert found["regression"]["accuracy"]["twin"] == found["regression"]["accuracy"]["DEQ"] > 0.8


def test_distance_and_regression_by_hand(digits, relu):
    """The one-layer twin with NumPy alone: spectral norms by SVD, regression by the inverse."""
    twin = route_twin("one layer", "relu", "ck", digits)
    X, test = digits.X_train.astype(float), digits.X_test.astype(float)
    exact, other = nsd.ck(twin.deq, X), nsd.ck(twin.network, X)
    distance = np.linalg.norm(exact - other, 2) / np.linalg.norm(exact, 2)
    assert relu["one layer"]["distance"]["twin"] == pytest.approx(distance, rel=1e-6)  # Lanczos
    targets = np.eye(10)[digits.y_train] - 0.1
    inverse = np.linalg.inv(exact + RIDGE * np.trace(exact) / len(X) * np.eye(len(X)))
    accuracy = ((nsd.ck(twin.deq, test, X) @ inverse @ targets).argmax(1) == digits.y_test).mean()
    assert relu["one layer"]["regression"]["accuracy"]["DEQ"] == pytest.approx(accuracy)


def test_sphere_rows_have_norm_one(relu):
    assert relu["sphere"]["norms"] == pytest.approx((1.0, 1.0), abs=1e-6)  # float32 data
    assert relu["one layer"]["norms"][0] < 0.9
    assert relu["sphere"]["distance"]["twin"] < 1e-5  # sixty terms, and near duplicates among digits


def test_networks_report_every_seed(relu):
    for found in relu.values():
        networks = found["networks"]
        assert all(len(values) == SIZE.seeds for values in networks["accuracy"].values())
        # a few hundred rows, few seeds
        assert np.mean(networks["accuracy"]["twin"]) == pytest.approx(np.mean(networks["accuracy"]["DEQ"]), abs=0.1)
        assert 0.5 < networks["agreement"]["DEQ of another seed"] < 1.0


def test_the_ntk_of_the_twin_is_that_of_its_training_rule(digits):
    found = compare_route(digits, "one layer", "relu", "ntk", SIZE)
    assert "networks" not in found
    twin = route_twin("one layer", "relu", "ntk", digits)
    X = digits.X_train.astype(float)
    exact, own = nsd.ntk(twin.deq, X), nsd.ntk(twin.network, X)
    assert twin.trains == "all"
    distance = np.linalg.norm(exact - own, 2) / np.linalg.norm(exact, 2)
    assert found["distance"]["twin"] == pytest.approx(distance, rel=1e-6)  # Lanczos


def test_document_figure_and_table(digits, relu, tmp_path):
    chosen = three_routes.points(QUICK, datasets=["digits"])
    assert len({point.key for point in chosen}) == len(chosen) == 9
    ready = {f"digits/relu/ck/{route}": numbers for route, numbers in relu.items()}
    points = [type(p)(p.key, p.settings, lambda p=p: ready[p.key]) for p in chosen if p.key in ready]
    run("three_routes", QUICK, tmp_path, points=points)
    document = read_document(tmp_path / "quick.json")
    assert document["command"] == "python -m studies three_routes --quick"
    assert (tmp_path / "quick_distance.png").stat().st_size > 10_000
    assert list(three_routes.draw(document)) == ["distance", "regression", "networks"]
    heads, rows = routes_table(document)
    assert [len(row) for row in rows] == [len(heads)] * 3
    assert rows[-1][:3] == ["digits", "ReLU", "conjugate kernel"]
    assert rows[-1][6].startswith(f"{relu['one layer']['distance']['twin']:.1e}")
