"""Learned features: M against automatic differentiation, and machines that find the columns that matter."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import InvalidInputError
from notsodeep.estimators.features import Features, outer_products
from notsodeep.estimators.machine import Problem, fit_machine
from notsodeep.solve import NetworkKernel

RNG = np.random.default_rng(0)
X = RNG.normal(size=(160, 8))
Y = np.sin(2 * X[:, 0]) * X[:, 1]
GIVEN = {"sigma_b2": 0.8, "sigma_c2": 0.1, "ridge": 1e-3, "scale": "columns"}


@pytest.mark.parametrize("deq", [nsd.DEQ("relu", 0.2, sigma_c2=0.1), nsd.DEQ("sin", 0.2, sigma_c2=0.1)], ids=repr)
def test_outer_products_are_those_of_automatic_differentiation(deq):
    rows = torch.from_numpy(X[:12, :4])
    targets = torch.stack([rows[:, 0] * rows[:, 1], rows[:, 2].abs()], dim=1)
    weights = torch.linspace(0.5, 2.0, 12, dtype=torch.float64)
    machine = fit_machine(NetworkKernel(deq, "ntk"), Problem.of(rows, targets, weights, True), 0.01)
    expected = torch.zeros(4, 4, dtype=torch.float64)
    for j in range(2):
        leaf = rows.clone().requires_grad_()
        (nsd.ntk(deq, leaf, rows) @ machine.coefficients[:, j]).sum().backward()
        expected += leaf.grad.T @ (weights[:, None] * leaf.grad) / weights.sum()
    near = tolerance(amplified=1e5)  # slopes are infinite at the rows themselves
    expected /= machine.coefficients.abs().max() ** 2
    found = outer_products(machine, weights, "full", 12)
    np.testing.assert_allclose(found, expected, rtol=0, atol=near * expected.max().item())
    found = outer_products(machine, weights, "diagonal", 12)
    np.testing.assert_allclose(found, expected.diagonal(), rtol=0, atol=near * expected.max().item())


def test_many_outputs_count_by_their_largest_directions():
    rows, weights = torch.from_numpy(X[:30]), torch.ones(30, dtype=torch.float64)
    few = torch.stack([rows[:, 0] * rows[:, 1], rows[:, 2].abs()], dim=1)
    mixed = few @ torch.linalg.qr(torch.randn(50, 2, generator=torch.Generator().manual_seed(0), dtype=few.dtype)).Q.T
    both = (
        fit_machine(NetworkKernel(nsd.DEQ("relu", 0.2), "ck"), Problem.of(rows, y, weights, True), 0.1)
        for y in (few, mixed)
    )
    M, same = (outer_products(m, weights, "full", 30) * m.coefficients.abs().max() ** 2 for m in both)
    # two fits with systems of condition 100
    np.testing.assert_allclose(M, same, rtol=0, atol=tolerance(amplified=100.0) * M.max().item())


@pytest.mark.parametrize("kind", ["diagonal", "full"])
def test_columns_that_matter_are_found(kind):
    model = nsd.DEQRegressor("relu", features=kind, **GIVEN).fit(X, Y)
    plain = nsd.DEQRegressor("relu", **GIVEN).fit(X, Y)
    new = np.random.default_rng(1).normal(size=(200, 8))
    truth = np.sin(2 * new[:, 0]) * new[:, 1]
    assert plain.features_ is None
    assert model.score(new, truth) > plain.score(new, truth) + 0.3
    assert set(np.argsort(np.diag(model.features_))[-2:]) == {0, 1}
    assert np.trace(model.features_) == pytest.approx(8.0, rel=tolerance())
    assert (np.count_nonzero(model.features_ - np.diag(np.diag(model.features_))) == 0) == (kind == "diagonal")


def test_auto_learns_where_it_wins_and_stays_plain_where_it_does_not():
    kept = {"sigma_b2": 0.8, "sigma_c2": 0.1, "scale": "columns", "features": "auto"}
    model = nsd.DEQRegressor("relu", **kept).fit(X, Y)
    assert model.best_["features"] in ("diagonal", "full")
    assert f"{model.best_['features']} features" in repr(model)
    noise = nsd.DEQRegressor("relu", **kept).fit(X, np.random.default_rng(2).normal(size=160))
    assert noise.features_ is None
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict(X[:9]), model.predict(X[:9]))
    np.testing.assert_array_equal(again.features_, model.features_)


def test_classes_and_processes_learn_features():
    labels = np.where(Y > 0, "up", "down")
    kept = GIVEN | {"ridge": 0.01}
    plain, learned = (nsd.DEQClassifier("relu", features=kind, **kept).fit(X, labels) for kind in (None, "diagonal"))
    new = np.random.default_rng(1).normal(size=(200, 8))
    truth = np.where(np.sin(2 * new[:, 0]) * new[:, 1] > 0, "up", "down")
    assert learned.score(new, truth) > plain.score(new, truth) + 0.1
    process = nsd.DEQGaussianProcess(features="diagonal", optimise=("amplitude", "noise")).fit(X, Y)
    assert set(np.argsort(np.diag(process.features_))[-2:]) == {0, 1}
    assert process.score(new, np.sin(2 * new[:, 0]) * new[:, 1]) > 0.5


def test_what_cannot_learn_is_refused_in_words():
    image = nsd.ConvDEQ("relu", 0.2, 0.8, image=(1, 2, 4), filter=1)
    with pytest.raises(InvalidInputError, match="mixed"):
        nsd.DEQRegressor(network=image, ridge=0.1, features="full").fit(X, Y)
    assert nsd.DEQRegressor(network=image, ridge=0.1, features="auto").fit(X[:40], Y[:40]).features_ is None
    with pytest.raises(InvalidInputError, match="rows"):
        nsd.DEQRegressor("relu", features="full", **GIVEN).fit(X[:5], Y[:5])


def test_displays_name_columns_and_draw_directions():
    model = nsd.DEQRegressor("relu", features="full", **GIVEN).fit(X, Y)
    display = nsd.plots.FeaturesDisplay.from_estimator(model).plot(top=3)
    assert {label.get_text() for label in display.ax_.get_yticklabels()[-2:]} == {"column 0", "column 1"}
    axes = Figure().subplots()
    pixels = display.plot(axes, image=(2, 4), top=2).ax_.images[0].get_array()
    first = np.linalg.eigh(model.features_)[1][:, -1]
    np.testing.assert_allclose(pixels[:, :4].ravel(), first / np.abs(first).max(), rtol=0, atol=tolerance())
    with pytest.raises(InvalidInputError, match="height, width"):
        display.plot(image=(3, 3))
    with pytest.raises(InvalidInputError, match="features='diagonal'"):
        nsd.plots.FeaturesDisplay.from_estimator(nsd.DEQRegressor("relu", **GIVEN).fit(X, Y))


def test_a_constant_target_has_no_features():
    model = nsd.DEQRegressor("relu", features="diagonal", **GIVEN).fit(X, np.ones(160))
    np.testing.assert_array_equal(model.features_, np.eye(8))
    assert isinstance(model._features, Features)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_of_targets_change_no_features(unit):
    model, extreme = (nsd.DEQRegressor("relu", features="diagonal", **GIVEN).fit(X, u * Y) for u in (1.0, unit))
    np.testing.assert_allclose(extreme.features_, model.features_, rtol=0, atol=tolerance(amplified=1e4))  # of a solve
