"""Learning curves before training, their concentration test, and curves of real data by leave-one-out."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import ConcentrationError, ConcentrationWarning, InvalidInputError
from notsodeep.learning.curve import fit_power_law
from notsodeep.learning.features import linear_problem
from notsodeep.learning.schedules import confusions, ridge_scores
from notsodeep.spectra.sources import source_of
from oracle_learning import measured

RELU = nsd.DEQ("relu", sigma_a2=0.2)
MIX = nsd.GaussianMixture.two_class(200, mu=2.0, cov=4.0)


def test_a_curve_over_n_holds_the_single_predictions() -> None:
    networks = {"relu": RELU, "tanh": nsd.DEQ("tanh", sigma_a2=0.2)}
    curve = nsd.learning_curve(networks, MIX, [100, 400, 1600], ridge=0.1)
    single = nsd.predict_learning(networks["tanh"], MIX, 400, ridge=0.1)
    assert curve.accuracy[1, 1] == single.accuracy
    assert curve.mse[1, 1] == single.mse
    assert (np.diff(curve.accuracy) > 0).all()
    assert "tanh" in str(curve)


def test_samples_needed_reach_the_accuracy() -> None:
    curve = nsd.learning_curve({"relu": RELU}, MIX, np.geomspace(60, 4000, 12).round(), ridge=0.1)
    needed = curve.samples_needed(0.85)["relu"]
    assert needed is not None
    # interpolation between points of a smooth curve
    assert nsd.predict_learning(RELU, MIX, needed, ridge=0.1).accuracy == pytest.approx(0.85, abs=2e-3)
    assert curve.samples_needed(0.999) == {"relu": None}


@pytest.mark.parametrize("axis", ["ridge", "times"])
def test_the_best_ridge_and_stopping_time_are_the_best(axis: str) -> None:
    points = np.logspace(-2, 2, 41)
    curve = nsd.learning_curve(RELU, MIX, 300, **{axis: points})
    (best,) = curve.best().values()
    assert best.accuracy == curve.accuracy.max()
    # many points are interpolated to 1e-9
    assert nsd.predict_learning(RELU, MIX, 300, **{axis: best.point}).accuracy == pytest.approx(best.accuracy, abs=1e-8)
    (lowest,) = curve.best(by="mse").values()
    assert lowest.mse == curve.mse.min()


def test_low_effective_rank_is_said() -> None:
    spiked = np.ones(200)
    spiked[0] = 60.0
    mix = nsd.GaussianMixture(MIX.means, [spiked, spiked * 1.1])
    with pytest.warns(ConcentrationWarning, match="times the ridge"):
        found = nsd.predict_learning(RELU, mix, 300, ridge=0.01)
    assert not found.concentration.holds
    with pytest.raises(ConcentrationError) as caught:
        nsd.predict_learning(RELU, mix, 300, ridge=0.01, check="raise")
    assert caught.value.strength == found.concentration.strength
    assert nsd.predict_learning(RELU, mix, 300, ridge=0.01, check="ignore").accuracy == found.accuracy
    assert nsd.predict_learning(nsd.DEQ("tanh", 0.2), mix, 300, ridge=0.01).concentration.holds


def decaying(p: int, rate: float) -> nsd.GaussianMixture:
    generator = np.random.default_rng(11)
    spectrum = np.arange(1, p + 1.0) ** -rate
    spectrum *= p / spectrum.sum()
    means = generator.standard_normal((3, p)) * 1.2 / np.sqrt(p) * np.sqrt(spectrum)
    return nsd.GaussianMixture(
        means, [spectrum, 0.7 * spectrum + 0.3 * generator.permutation(spectrum), 1.1 * spectrum]
    )


def test_strong_products_are_features_of_their_own() -> None:
    """Where a spectrum decays, the prediction with products x_i x_j is several times nearer than the limit's."""
    mix = decaying(200, 1.4)
    source = source_of(mix, 300)
    targets, errors = 2.0 * np.eye(3) - 1.0, {}
    (accuracy, _, _), spread = measured(RELU, mix, 300, "ntk", ridge=0.01, tests=600)
    for products in (False, True):
        problem = linear_problem(RELU, source, "ntk", products=products)
        found = ridge_scores(problem, np.array([0.01 * problem.diagonal]), targets)
        chosen, _ = confusions(found.means, found.covariances, targets)
        errors[products] = abs(float(np.trace(chosen[0])) / 3 - accuracy)
    assert errors[True] < 0.5 * errors[False]
    assert errors[False] > 4 * spread[0]
    with pytest.warns(ConcentrationWarning):
        assert not nsd.predict_learning(RELU, mix, 300, ridge=0.01).concentration.holds


def test_estimates_agree_with_test_data_and_cover_larger_sets() -> None:
    X, y = nsd.GaussianMixture.two_class(80, mu=3.0, cov=4.0).sample(900, seed=1)
    order = np.random.default_rng(0).permutation(900)
    X, y = X[order], y[order]
    found = nsd.estimate_learning(RELU, X[:300], y[:300], ridge=0.1)
    K, cross = nsd.ntk(RELU, X[:300]), nsd.ntk(RELU, X[300:], X[:300])
    targets = 2.0 * np.eye(2)[y[:300]] - 1.0
    scores = cross @ np.linalg.solve(K + 0.1 * np.trace(K) / 300 * np.eye(300), targets)
    error = 4 * np.hypot(found.accuracy_error[-1], np.sqrt(0.1 / 600))
    assert found.accuracy[-1] == pytest.approx((scores.argmax(1) == y[300:]).mean(), abs=error)
    large = nsd.estimate_learning(RELU, X, y, ridge=0.1)
    best, low, high = found.predict(899)
    assert low[0] - 2 * large.accuracy_error[-1] <= large.accuracy[-1] <= high[0] + 2 * large.accuracy_error[-1]
    assert low[0] <= best[0] <= high[0]
    assert found.held_out.n == 299
    assert "held out" in str(found)


def test_leave_one_out_is_a_refit_without_the_row() -> None:
    X, y = nsd.GaussianMixture.two_class(40, mu=2.0).sample(160, seed=3)
    found = nsd.estimate_learning(RELU, X, y, "ck", ridge=0.2, sizes=[20, 40, 80, 160])
    K, targets, hits = nsd.ck(RELU, X), 2.0 * np.eye(2)[y] - 1.0, []
    gamma = 0.2 * np.trace(K) / 160
    for i in range(160):
        rest = np.arange(160) != i
        weights = np.linalg.solve(K[rest][:, rest] + gamma * np.eye(159), targets[rest])
        hits.append((K[i, rest] @ weights).argmax() == y[i])
    assert found.accuracy[-1] == np.mean(hits)


def test_power_laws_are_found_again() -> None:
    sizes = np.geomspace(50, 800, 6)
    best, low, high = fit_power_law(sizes, 0.05 + 2.0 * sizes**-0.5, np.full(6, 1e-3)).at([3200.0])
    truth = 0.05 + 2.0 * 3200**-0.5
    assert low[0] <= truth <= high[0]
    assert best[0] == pytest.approx(truth, abs=tolerance())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nsd.learning_curve(RELU, MIX, 100), "exactly one"),
        (lambda: nsd.learning_curve(RELU, MIX, [10.5, 20]), "whole positive"),
        (lambda: nsd.learning_curve({}, MIX, [10, 20]), "at least one network"),
        (lambda: nsd.learning_curve(RELU, MIX, 100, ridge=[0.1, 1.0]).samples_needed(0.9), "over n"),
        (lambda: nsd.learning_curve(RELU, MIX, [50, 100]).samples_needed(90), "between 0 and 1"),
        (lambda: nsd.learning_curve(RELU, MIX, [50, 100]).best("speed"), "one of 'accuracy', 'mse'"),
        (lambda: nsd.predict_learning(RELU, MIX, 100, check="no"), "check must be"),
        (lambda: nsd.estimate_learning(RELU, np.ones((50, 3)), np.arange(50) % 2), "at least 128 rows"),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.zeros(200)), "two classes"),
        (
            lambda: nsd.estimate_learning("relu", np.ones((200, 3)), np.zeros(200)),
            "or a notsodeep.Twin",
        ),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.arange(200) % 2, ridge=0.0), "positive"),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.arange(200) % 2, sizes=[20, 30]), "at least four"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
