"""The Gaussian process: its posterior is that of conditioning and of scikit-learn, and its defaults fit."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

import notsodeep as nsd
from helpers import differences, tolerance
from notsodeep.errors import InvalidInputError
from notsodeep.estimators.process import LEAST_GAIN, climbed

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 12)) / 12**0.5
NEW = RNG.normal(size=(9, 12)) / 12**0.5
Y = np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
SOLVED = 2e-10  # residuals of 1e-11 at ridges from a hundredth
PLAIN = {"scale": None, "normalise_y": False, "sigma_c2": 0.0}
LINE = RNG.uniform(-3, 3, (60, 1))
WAVE = np.sin(2 * LINE[:, 0]) + 0.05 * RNG.normal(size=60)
GRID = np.linspace(-3, 3, 101)[:, None]


# ---- the posterior ---------------------------------------------------------------------------------------


def test_the_posterior_is_that_of_conditioning():
    deq = nsd.DEQ("tanh", 0.2)
    K, cross, prior = nsd.ck(deq, X), nsd.ck(deq, NEW, X), nsd.ck(deq, NEW)
    gp = nsd.DEQGaussianProcess("tanh", sigma_a2=0.2, noise=0.1, amplitude=2.0, optimise=False, **PLAIN).fit(X, Y)
    C = 2.0 * K + 0.1 * np.eye(80)
    mean, cov = gp.predict(NEW, return_cov=True)
    expected = 2.0 * prior - 4.0 * cross @ np.linalg.solve(C, cross.T)
    np.testing.assert_allclose(mean, 2.0 * cross @ np.linalg.solve(C, Y), rtol=0, atol=SOLVED)
    np.testing.assert_allclose(cov[..., 1], expected, rtol=0, atol=SOLVED)
    np.testing.assert_allclose(gp.predict(NEW, return_std=True)[1][:, 0] ** 2, np.diag(expected), rtol=0, atol=SOLVED)
    value = sum(-0.5 * y @ np.linalg.solve(C, y) for y in Y.T) - np.linalg.slogdet(C)[1] - 80 * np.log(2 * np.pi)
    assert gp.log_marginal_likelihood_value_ == pytest.approx(value, rel=tolerance())
    with pytest.raises(InvalidInputError, match="not for both"):
        gp.predict(NEW, return_std=True, return_cov=True)


@pytest.fixture(scope="module")
def pair():
    """A fitted process and scikit-learn's, with the same kernel on rows that are scaled by hand."""
    gp = nsd.DEQGaussianProcess("erf").fit(LINE, WAVE)
    found = gp.parameters_
    kernel = nsd.DEQKernel("erf", *(found[name] for name in ("sigma_a2", "sigma_b2", "sigma_c2")))
    whole = ConstantKernel(found["amplitude"]) * kernel + WhiteKernel(found["noise"])
    theirs = GaussianProcessRegressor(whole, optimizer=None, alpha=0.0, normalize_y=True)
    return gp, theirs.fit(scaled(LINE), WAVE)


def scaled(rows):
    return (rows - LINE.mean()) / LINE.std()


def test_the_process_is_scikit_learns_with_its_kernel(pair):
    gp, theirs = pair
    condition = 1.0 + 60 * gp.parameters_["amplitude"] / gp.parameters_["noise"]
    close = {"rtol": 0.0, "atol": tolerance(amplified=condition)}
    mean, cov = gp.predict(GRID, return_cov=True)
    their_mean, their_cov = theirs.predict(scaled(GRID), return_cov=True)
    np.testing.assert_allclose(mean, their_mean, **close)
    added = gp.parameters_["noise"] * WAVE.var() * np.eye(101)  # theirs predicts y, ours f
    np.testing.assert_allclose(cov + added, their_cov, **close)
    np.testing.assert_allclose(gp.predict(GRID, return_std=True)[1] ** 2, np.diag(cov), **close)
    theta = theirs.kernel_.theta
    value, slope = theirs.log_marginal_likelihood(theta, eval_gradient=True)
    order = ["amplitude", "sigma_a2", "sigma_b2", "sigma_c2", "noise"]
    ours, gradient = gp.log_marginal_likelihood(eval_gradient=True)
    assert ours == pytest.approx(value, rel=tolerance(amplified=condition))
    assert ours == gp.log_marginal_likelihood_value_
    mine = [gradient[gp.names_.index(name)] for name in order]
    np.testing.assert_allclose(mine, slope, rtol=0, atol=60 * differences(4e-3, accuracy=4) + close["atol"])


def test_sample_paths_have_the_posteriors_moments(pair):
    gp, theirs = pair
    count = 2000
    paths = gp.sample_y(GRID[::10], count, random_state=1)
    assert paths.shape == theirs.sample_y(scaled(GRID[::10]), count).shape == (11, count)
    mean, std = gp.predict(GRID[::10], return_std=True)
    np.testing.assert_allclose(paths.mean(1), mean, rtol=0, atol=std.max() * tolerance(samples=count))
    np.testing.assert_allclose(np.cov(paths).diagonal(), std**2, rtol=2.0 * tolerance(samples=count))
    np.testing.assert_array_equal(paths, gp.sample_y(GRID[::10], count, random_state=1))
    both = nsd.DEQGaussianProcess(optimise=False).fit(X, Y)
    assert both.sample_y(NEW, 3).shape == (9, 2, 3)
    with pytest.raises(InvalidInputError, match="random_state must be a whole number from 0 to 4294967295"):
        gp.sample_y(GRID[:2], random_state=10**99)


# ---- fitting ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "erf"])
def test_a_wave_is_found_as_by_an_rbf_kernel(activation, pair):
    gp = pair[0] if activation == "erf" else nsd.DEQGaussianProcess(activation).fit(LINE, WAVE)
    rbf = GaussianProcessRegressor(ConstantKernel() * RBF() + WhiteKernel(), random_state=0).fit(LINE, WAVE)
    errors = [np.sqrt(np.mean((model.predict(GRID) - np.sin(2 * GRID[:, 0])) ** 2)) for model in (gp, rbf)]
    assert errors[0] < 2.0 * errors[1] < 0.2
    mean, std = gp.predict([[0.0]], return_std=True)
    assert 0.0 < std[0] < 0.1
    assert abs(mean[0]) < 3.0 * std[0]
    far = gp.predict([[8.0]], return_std=True)[1]
    assert far[0] > 3.0 * std[0]


@pytest.mark.parametrize(
    ("activation", "options"), [("tanh", {"optimise": ("amplitude", "noise")}), ("hard_tanh", {"restarts": 0})]
)
def test_amplitude_and_noise_are_at_their_maximum(activation, options):
    """On all rows, of which the search for the variances of hard_tanh sees forty."""
    gp = nsd.DEQGaussianProcess(activation, **options).fit(X, np.sin(4 * X[:, 0]) + X[:, 1])
    assert gp.names_[:2] == ("amplitude", "noise")
    value, gradient = gp.log_marginal_likelihood(eval_gradient=True)
    assert np.abs(gradient[:2]).max() < 1e-3 * 80  # where L-BFGS-B stops, for a sum over 80 rows
    assert value == pytest.approx(gp.log_marginal_likelihood_value_, rel=tolerance())
    for other in ({"noise": 0.1}, {"amplitude": 5.0}, {"noise": 1e-3, "amplitude": 0.5}):
        fixed = nsd.DEQGaussianProcess(activation, optimise=False, **other).fit(X, np.sin(4 * X[:, 0]) + X[:, 1])
        assert fixed.log_marginal_likelihood_value_ < gp.log_marginal_likelihood_value_


@pytest.mark.parametrize(("height", "tries", "most"), [(100.0, 30, 30), (1e-3, 30, 3), (100.0, 2, 2)])
def test_the_search_ends_where_steps_gain_next_to_nothing(height, tries, most):
    seen = []

    def hill(at):
        seen.append(at)
        return -height * float((at - 0.5) @ (at - 0.5)), -2.0 * height * (at - 0.5)

    found = climbed(hill, np.array([2.0, -1.0]), np.array([[-3.0, 3.0]] * 2), tries)
    assert len(seen) <= most
    if tries == 30:
        assert hill(found)[0] > -LEAST_GAIN


def test_a_process_that_searches_nothing_has_an_empty_gradient():
    gp = nsd.DEQGaussianProcess("relu", optimise=False).fit(X[:8], Y[:8])
    value, gradient = gp.log_marginal_likelihood(eval_gradient=True)
    assert gradient.shape == gp.theta_.shape == (0,)
    assert value == pytest.approx(gp.log_marginal_likelihood(), rel=tolerance())


@pytest.mark.parametrize(("activation", "kernel"), [("relu", "ck"), ("tanh", "ntk")])
def test_gradients_of_the_evidence_are_its_differences(activation, kernel):
    names = ("amplitude", "noise", "sigma_a2", "sigma_b2", "sigma_c2")
    gp = nsd.DEQGaussianProcess(activation, kernel=kernel, optimise=False, scale=None).fit(X[:20], Y[:20])
    gp.parameters_, gp.names_ = dict.fromkeys(names, 0.1), names
    theta = np.log([1.3, 0.2, 0.15, 0.7, 0.2])
    _, gradient = gp.log_marginal_likelihood(theta, eval_gradient=True)
    step = 1e-4
    for i, slope in enumerate(gradient):
        move = step * np.eye(5)[i]
        up, down = gp.log_marginal_likelihood(theta + move), gp.log_marginal_likelihood(theta - move)
        assert slope == pytest.approx((up - down) / (2 * step), rel=differences(step), abs=differences(step))


def test_given_variances_are_kept_and_free_ones_stay_in_their_range():
    y = np.sin(4 * X[:, 0])
    fixed = nsd.DEQGaussianProcess("relu", optimise=("amplitude", "noise")).fit(X, y)
    fitted = nsd.DEQGaussianProcess("relu", restarts=1).fit(X, y)
    assert fixed.parameters_["sigma_c2"] == fixed.sigma_c2
    assert "sigma_b2" not in fixed.parameters_
    assert fitted.names_ == ("amplitude", "noise", "sigma_a2", "sigma_b2", "sigma_c2")
    assert fitted.log_marginal_likelihood_value_ > fixed.log_marginal_likelihood_value_
    assert 0.0 < fitted.parameters_["sigma_a2"] < 0.25
    none = nsd.DEQGaussianProcess("relu", sigma_c2=0.0, restarts=0).fit(X, y)
    assert "sigma_c2" not in none.names_
    with pytest.raises(InvalidInputError, match="optimise names"):
        nsd.DEQGaussianProcess(optimise=("ridge",)).fit(X, y)
    with pytest.raises(InvalidInputError, match="optimise names"):
        nsd.DEQGaussianProcess(network=nsd.ENN(["relu"]), optimise=("sigma_a2",)).fit(X, y)


def test_units_of_rows_and_targets_do_not_matter():
    y = np.sin(4 * X[:, 0])
    options = {"restarts": 0, "sigma_c2": 0.2}
    far = nsd.DEQGaussianProcess("relu", **options).fit(1e3 * X - 40.0, 1e3 * y + 5e3)
    plain = nsd.DEQGaussianProcess("relu", **options).fit(X, y)
    one, other = (gp.predict(rows, return_std=True) for gp, rows in ((plain, NEW), (far, 1e3 * NEW - 40.0)))
    close = 1e-6  # two searches that end at the same place but for rounding
    np.testing.assert_allclose(other[0], 1e3 * one[0] + 5e3, rtol=0, atol=1e3 * close)
    np.testing.assert_allclose(other[1], 1e3 * one[1], rtol=0, atol=1e3 * close)


def test_unscaled_rows_do_not_lead_to_kernels_of_absurd_scale():
    """Pre-activations of scale 775 took minutes; the variances stay where a kernel takes a fraction of a second."""
    rows = 500.0 * X[:20, :3]
    gp = nsd.DEQGaussianProcess("erf", scale=None, restarts=1).fit(rows, Y[:20, 0])
    scale = gp.parameters_["sigma_b2"] * (rows**2).sum(1).max() + gp.parameters_["sigma_c2"]
    assert scale < 25.0


def test_rows_whose_squares_vanish_are_refused():
    with pytest.raises(InvalidInputError, match="squares of these rows vanish"):
        nsd.DEQGaussianProcess("relu", scale=None).fit(1e-200 * X, Y[:, 0])


def test_many_rows_are_fitted_by_some_of_them():
    rows = RNG.uniform(-1, 1, (400, 2))
    y = np.sin(3 * rows[:, 0]) * rows[:, 1] + 0.1 * RNG.normal(size=400)
    gp = nsd.DEQGaussianProcess("relu", restarts=0).fit(rows, y)
    noise = gp.parameters_["noise"] * y.var()
    assert noise == pytest.approx(0.01, rel=2.0 * tolerance(samples=400))


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_targets_near_the_ends_of_the_range_change_nothing(unit):
    rows, y = np.linspace(-1, 1, 12)[:, None], np.sin(np.linspace(-3, 3, 12))
    plain, extreme = (nsd.DEQGaussianProcess(optimise=("amplitude", "noise")).fit(rows, u * y) for u in (1.0, unit))
    for found, expected in zip(
        extreme.predict(rows, return_std=True), plain.predict(rows, return_std=True), strict=True
    ):
        np.testing.assert_allclose(found / unit, expected, rtol=0, atol=tolerance(amplified=1e6))  # of a search
    with pytest.raises(InvalidInputError, match="return_std"):
        extreme.predict(rows, return_cov=True)


@pytest.mark.parametrize("level", [0.0, 3.0])
def test_constant_targets_are_known_for_sure(level):
    mean, deviation = nsd.DEQGaussianProcess("relu").fit(X[:30], np.full(30, level)).predict(NEW, return_std=True)
    np.testing.assert_array_equal(mean, level)
    assert (deviation < 1e-100).all()  # the power of these targets counts as 1e-300
