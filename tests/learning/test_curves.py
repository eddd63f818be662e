"""Learning curves before training, their concentration test, and curves of real data by leave-one-out."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import ConcentrationWarning, InvalidInputError
from notsodeep.learning.estimate import PowerLaw
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


@pytest.mark.parametrize("axis", ["ridge", "times"])
def test_a_curve_over_ridges_or_times_holds_the_single_predictions(axis: str) -> None:
    points = np.logspace(-2, 2, 5)
    curve = nsd.learning_curve(RELU, MIX, 300, **{axis: points})
    single = nsd.predict_learning(RELU, MIX, 300, **{axis: float(points[2])})
    room = tolerance(amplified=1e3)  # the order 1/p takes differences
    assert (curve.accuracy[0, 2], curve.mse[0, 2]) == pytest.approx((single.accuracy, single.mse), rel=room)


def test_low_effective_rank_is_said() -> None:
    spiked = np.ones(200)
    spiked[0] = 60.0
    mix = nsd.GaussianMixture(MIX.means, [spiked, spiked * 1.1])
    with pytest.warns(ConcentrationWarning, match="times the ridge"):
        found = nsd.predict_learning(RELU, mix, 300, ridge=0.01)
    assert found.concentration.strength > found.concentration.limit
    with pytest.warns(ConcentrationWarning, match="relative variance"):  # norms vary, whatever the activation
        assert not nsd.predict_learning(nsd.DEQ("tanh", 0.2), mix, 300, ridge=0.01).concentration.holds
    assert nsd.predict_learning(nsd.DEQ("tanh", 0.2), MIX, 300, ridge=0.01).concentration.holds


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
    (accuracy, _, _), spread = measured(RELU, mix, 300, "ntk", ridge=0.01, tests=600)
    with pytest.warns(ConcentrationWarning):
        limit, found = (nsd.predict_learning(RELU, mix, 300, ridge=0.01, refined=r) for r in (False, True))
    assert abs(found.accuracy - accuracy) < 0.5 * abs(limit.accuracy - accuracy)
    assert abs(limit.accuracy - accuracy) > 4 * spread[0]


def test_products_matter_where_points_are_many_in_few_dimensions() -> None:
    """Without the products of features the error was 19 % too low."""
    means = np.zeros((2, 60))
    means[:, 0] = [2.0, -2.0]
    mix = nsd.GaussianMixture(means, [1.0, 1.2])
    with pytest.warns(ConcentrationWarning):
        found = nsd.predict_learning(RELU, mix, 1000, "ntk", ridge=0.01)
    (_, mse, _), spread = measured(RELU, mix, 1000, "ntk", ridge=0.01)
    assert found.mse == pytest.approx(mse, abs=2 * spread[1] + 2 / 60 * mse)


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
    for quantity in ("accuracy", "mse"):
        best, low, high = found.predict(900, quantity)
        room = 2 * getattr(large, f"{quantity}_error")[-1]
        assert low[0] - room <= getattr(large, quantity)[-1] <= high[0] + room
        assert low[0] <= best[0] <= high[0]
    assert "continued to 600" in str(found)


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_intervals_hold_on_digits(name: str) -> None:
    """From 300 rows to twice and four times as many, five times: 19 of 20 intervals hold, for odd activations too."""
    X, y = load_digits(return_X_y=True)
    X, deq = nsd.standardise(X), nsd.DEQ(name, sigma_a2=0.15)
    large = nsd.estimate_learning(deq, X, y, "ck", ridge=1e-2, sizes=[16, 17, 18, 600, 1200])
    inside = []
    for seed in range(5):
        rows = np.random.default_rng(seed).permutation(len(X))[:300]
        found = nsd.estimate_learning(deq, X[rows], y[rows], "ck", ridge=1e-2, seed=seed)
        for quantity in ("accuracy", "mse"):
            _, low, high = found.predict([600, 1200], quantity)
            truth, room = (getattr(large, f"{quantity}{end}")[[3, 4]] for end in ("", "_error"))
            inside += ((low - 2 * room <= truth) & (truth <= high + 2 * room)).tolist()
    assert np.mean(inside) >= 0.95


def test_a_double_descent_peak_ahead_is_seen_and_nothing_is_claimed_beyond() -> None:
    """A linear network, n = p/2 rows: their eigenvalues far above the ridge say rho = n/p."""
    mix = nsd.GaussianMixture.two_class(160, mu=2.0, cov=0.0)
    X, y = mix.sample(128, seed=0)
    found = nsd.estimate_learning(nsd.ENN(["linear"]), X, y, "ck", ridge=1e-8)
    np.testing.assert_allclose(found.nearness, found.sizes / 160, rtol=0.2)  # chance of one data set
    with pytest.warns(ConcentrationWarning, match="double-descent peak"):
        _, low, high = found.predict([150, 400], "mse")
    assert high.tolist() == [np.inf, np.inf]
    with pytest.warns(ConcentrationWarning, match="double-descent peak"):
        _, low, high = found.predict(400)
    assert (low[0], high[0]) == (0.0, 1.0)


def test_an_interval_without_an_error_holds_what_was_seen() -> None:
    X, y = nsd.GaussianMixture.two_class(60, mu=30.0).sample(160, seed=0)
    found = nsd.estimate_learning(RELU, X, y, ridge=0.1)
    assert found.accuracy[-1] == 1.0
    _, low, high = found.predict(160)
    assert high[0] == 1.0
    assert 1.0 - 3.0 / 160 > low[0] > 0.9  # no error in 160 rows says at most 3.7 in 160


def test_every_row_is_scored_by_all_subsets() -> None:
    """The rows of a subset by a refit without the row, the others as held out."""
    X, y = nsd.GaussianMixture.two_class(40, mu=2.0).sample(160, seed=3)
    found = nsd.estimate_learning(RELU, X, y, "ck", ridge=0.2, sizes=[20, 40, 60, 80, 160])
    K, targets, hits = nsd.ck(RELU, X), 2.0 * np.eye(2)[y] - 1.0, []
    gamma = 0.2 * np.trace(K) / 160
    for i in range(160):
        rest = np.arange(160) != i
        weights = np.linalg.solve(K[rest][:, rest] + gamma * np.eye(159), targets[rest])
        hits.append((K[i, rest] @ weights).argmax() == y[i])
    assert found.accuracy[-1] == np.mean(hits)
    # four subsets of 80 rows score 160 rows each: shares of 640
    assert 640 * found.accuracy[-2] == pytest.approx(round(640 * found.accuracy[-2]))


def test_power_laws_are_found_again() -> None:
    sizes = np.geomspace(50, 800, 6)
    errors = np.outer(2.0 * sizes**-0.5, np.random.default_rng(0).uniform(0.5, 1.5, 200))
    errors *= (2.0 * sizes**-0.5 / errors.mean(1))[:, None]
    best, low, high = PowerLaw.fit(sizes, errors, np.full(6, 0.3)).at(np.array([3200.0]))
    assert best[0] == pytest.approx(2.0 * 3200**-0.5, abs=tolerance())
    assert low[0] < best[0] < high[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nsd.learning_curve(RELU, MIX, 100), "exactly one"),
        (lambda: nsd.learning_curve(RELU, MIX, [10.5, 20]), "whole positive"),
        (lambda: nsd.learning_curve(RELU, MIX, []), "n is empty"),
        (lambda: nsd.learning_curve({}, MIX, [10, 20]), "at least one network"),
        (lambda: nsd.predict_learning(nsd.match(RELU, 1.0), MIX, 100), "matches kernel='ck'"),
        (lambda: nsd.estimate_learning(RELU, np.ones((50, 3)), np.arange(50) % 2), "at least 128 rows"),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.zeros(200)), "two classes"),
        (
            lambda: nsd.estimate_learning("relu", np.ones((200, 3)), np.zeros(200)),
            "or a notsodeep.Twin",
        ),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.arange(200) % 2, ridge=0.0), "positive"),
        (lambda: nsd.estimate_learning(RELU, np.ones((200, 3)), np.arange(200) % 2, sizes=[20, 30]), "at least five"),
    ],
)
def test_refusals(call, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        call()
