"""What the studies of one-layer twins claim, at small sizes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import ulps
from studies import one_layer, one_layer_accuracy, one_layer_lazy, one_layer_width
from studies._data import load
from studies._learners import Learner, Limit
from studies._readouts import Candidate, score
from studies._runner import QUICK
from studies._tables import one_layer_accuracy_table, one_layer_bounds_table
from studies.one_layer_lazy import LazyRun


def test_random_pairs_are_those_of_their_dimensions() -> None:
    s, t, angle = one_layer.random_pairs(50_000, (0.5, 1.5))
    assert min(s.min(), t.min()) >= 0.5 * (1.0 - ulps())
    assert max(s.max(), t.max()) <= 1.5 * (1.0 + ulps())
    cosine = np.cos(angle).reshape(5, -1)
    # E rho^2 = 1/p; 10,000 cosines each
    np.testing.assert_allclose((cosine**2).mean(1) * np.array([2, 3, 10, 100, 1000]), 1.0, atol=0.08)


def test_no_pair_is_further_off_than_the_bound() -> None:
    (point,) = [p for p in one_layer.points(QUICK) if p.key == "silu/ntk/0.8/0.5-1.5"]
    rows = point.compute()["rows"]
    assert [row["kinds"] for row in rows] == [1, 2, 3]
    assert all(row["seen"] <= row["bound"] for row in rows)
    assert rows[0]["bound"] <= 2.0 * rows[0]["seen"]
    assert rows[1]["bound"] < 1e-2 * rows[0]["bound"]  # another kind of units is two digits
    stored = {"settings": dict(point.settings), "numbers": {"rows": rows}}
    assert set(one_layer.draw({"points": {point.key: stored}})) == {"bounds_0.5_1.5", "seen"}


def test_one_layer_is_as_near_as_a_deq_of_its_width() -> None:
    X = torch.from_numpy(load("digits").first(150).standardised().X_train).double()
    numbers = one_layer_width.errors_by_width(X, "relu", (64, 1024), 2)
    errors = {name: np.array(found).mean(1) for name, found in numbers["errors"].items()}
    assert all(found[1] < 0.5 * found[0] for found in errors.values())  # fourfold, on average, with 16 times the width
    assert errors["one layer"][1] < 1.3 * errors["DEQ"][1]
    settings = {"data": "digits", "activation": "relu", "widths": [64, 1024]}
    assert set(one_layer_width.draw({"points": {"": {"settings": settings, "numbers": numbers}}})) == {"relu"}


@pytest.fixture(scope="module")
def candidates() -> dict[str, Candidate]:
    return one_layer_accuracy.one_layer_candidates("relu", load("digits").standardised())


@pytest.fixture(scope="module")
def scores(candidates) -> dict[str, dict[str, list[float]]]:
    data = load("digits").standardised()
    return score(candidates, data, 32, epochs=10, seeds=(0, 1)).first


def test_one_layer_classifies_as_well_as_the_deq(scores) -> None:
    mean = {name: float(np.mean(found["accuracy"])) for name, found in scores.items()}
    assert scores["DEQ"]["agreement"] == [1.0, 1.0]
    assert mean["one layer"] > mean["DEQ"] - 0.03  # 400 test rows: a standard error of 0.02
    assert mean["one layer, orthogonal"] > mean["papers' twin"] > mean["plain, best scale"] - 0.03


def test_the_plain_network_has_its_best_scale(candidates) -> None:
    deq, plain = (candidates[name].network for name in ("DEQ", "plain, best scale"))
    X = load("digits").standardised().X_train[:400].astype(float)

    def distance(scale: float) -> float:
        return float(np.linalg.norm(nsd.ck(deq, X) - scale * nsd.ck(plain, X), 2))

    assert distance(1.0) < min(distance(0.8), distance(1.25))


def test_accuracies_are_drawn(scores) -> None:
    settings = {"dataset": "digits", "width": 32, "activations": ["relu"]}
    points = {"": {"settings": settings, "numbers": {"relu": scores}}}
    assert set(one_layer_accuracy.draw({"points": points})) == {"relu"}


def test_a_readout_learns_what_a_whole_deq_learns() -> None:
    """About as far from a DEQ as a DEQ of other weights is."""
    run = LazyRun("digits", width=512, epochs=2, lr=2.0, batch_size=64, seeds=(0,), train=600, limit=True)
    numbers = one_layer_lazy.train_lazily(run)
    (curves,) = numbers["seeds"]
    assert curves["steps"] == [5, 10, 15, 20]
    for name in ("DEQ", "one layer", "one layer, orthogonal", "another DEQ"):
        loss = curves[name]["loss"]
        assert loss[-1] < loss[0] < 0.45  # the zero function has 0.45
        assert loss[-1] == pytest.approx(curves["DEQ"]["loss"][-1], rel=0.05)
    assert curves["one layer"]["distance"][-1] < 2.0 * curves["another DEQ"]["distance"][-1] < 0.5
    assert max(curves[name]["to_limit"][-1] for name in ("DEQ", "one layer")) < 0.25  # fluctuations of this width
    assert curves["infinite width"]["to_limit"][-1] == 0.0
    settings = {"data": "digits", "activation": "tanh", "width": 512, "lr": 2.0, "limit": True}
    points = {"": {"settings": settings, "numbers": numbers}}
    assert set(one_layer_lazy.draw({"points": points})) == {"digits_tanh", "limit"}


def test_learners_start_from_the_zero_function_and_descend_it() -> None:
    """A step on frozen features is the step of the whole network in which only the readout trains."""
    X, T = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)), torch.ones(20, 2)
    model = nsd.nn.ENN(nsd.ENN(["tanh"]), 4, 8, 2)
    learner = Learner(model, X, T, X, lr=0.5, readout=True)
    assert float(learner.outputs().abs().max()) == 0.0
    learner.descend([torch.arange(20)])
    features = model.features(X).detach()
    torch.testing.assert_close(learner.outputs(), 0.5 * features @ (features.T @ T) / 20)


def test_infinite_width_is_gradient_descent_with_the_kernel() -> None:
    """Full batches: f after t steps is (1 - (1 - lr K/n)^t) applied to the targets."""
    X, T = torch.randn(12, 4, generator=torch.Generator().manual_seed(0)).double(), torch.ones(12, 2).double()
    deq = nsd.DEQ("tanh", 0.2)
    limit = Limit(deq, X, T, X, lr=0.5)
    limit.descend([torch.arange(12)] * 7)
    step = torch.eye(12) - 0.5 / 12 * nsd.ntk(deq, X)
    torch.testing.assert_close(limit.outputs(), T - torch.linalg.matrix_power(step, 7) @ T)


def test_tables_say_what_is_stored() -> None:
    accuracies = {"DEQ": {"accuracy": [0.9, 0.8]}, "one layer": {"accuracy": [0.92, 0.8]}}
    settings = {"dataset": "mnist", "width": 1024, "activations": ["relu"]}
    worse = {"DEQ": {"accuracy": [0.5, 0.5]}, "one layer": {"accuracy": [0.4, 0.4]}}
    points = {
        "": {"settings": settings, "numbers": {"relu": accuracies}},
        "adam": {"settings": {**settings, "method": "adam"}, "numbers": {"relu": worse}},
    }
    assert one_layer_accuracy_table({"points": points}, method="adam")[1][0][-2:] == ["50.00", "-10.00 ± 0.00"]
    heads, rows = one_layer_accuracy_table({"points": points})
    assert heads == ["data", "activation", "width", "DEQ", "one layer"]
    assert rows == [["MNIST", "ReLU", "1,024", "85.00", "+1.00 ± 1.00"]]
    settings = {"activation": "tanh", "kernel": "ck", "share": 0.8, "sigma_a2": 0.2, "norms": [0.5, 1.5], "kinds": 2}
    bounds = [{"kinds": 1, "bound": 1e-2, "seen": 9e-3}, {"kinds": 2, "bound": 2e-5, "seen": 1e-5}]
    points = {"": {"settings": settings, "numbers": {"rows": bounds}}}
    points["all"] = {
        "settings": {**settings, "activation": "relu", "norms": None, "kinds": 1},
        "numbers": {"rows": bounds[:1]},
    }
    _, rows = one_layer_bounds_table({"points": points}, 0.8)
    assert rows[0][3:] == ["0.5 to 1.5", "1.0e-02 (9.0e-03)", "2.0e-05 (1.0e-05)"]
    assert rows[1][3:] == ["all", "1.0e-02 (9.0e-03)", ""]
