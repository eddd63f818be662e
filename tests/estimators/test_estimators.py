"""The scikit-learn estimators: they keep the contract, and their numbers are those of dense linear algebra."""

from __future__ import annotations

import dataclasses
import pickle
import warnings

import numpy as np
import pytest
import scipy.sparse
import sklearn
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge, SGDClassifier
from sklearn.model_selection import GridSearchCV, KFold, StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks

import notsodeep as nsd
from helpers import differences, tolerance
from notsodeep.errors import ConvergenceError, InvalidInputError, NotSoDeepWarning
from notsodeep.estimators._limits import LIMITS
from notsodeep.estimators.selection import GRID, extrapolated
from notsodeep.solve import CG

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 12)) / 12**0.5
NEW = RNG.normal(size=(9, 12)) / 12**0.5
Y = np.stack([np.sin(3 * X[:, 0]), X[:, 1] * X[:, 2]], axis=1)
LABELS = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0], [-0.1, 0.1])]
GIVEN = {"ridge": 1e-3, "sigma_b2": None, "sigma_c2": 0.0}  # nothing is left to be chosen
PLAIN = {"sigma_b2": None, "sigma_c2": 0.0, "scale": None, "fit_intercept": False}  # the kernel of the rows as given
CHOSEN = ("scale", "sigma_b2", "sigma_c2", "ridge")
SOLVED = 2e-10  # residuals of 1e-11 at ridges from a hundredth


def dense(K, targets, ridge, weights=None):
    """Coefficients by NumPy, with the ridge relative to the (weighted) mean diagonal."""
    w = np.ones(len(K)) if weights is None else weights
    lift = ridge * np.average(np.diag(K), weights=w)
    return np.linalg.solve(K + lift * np.diag(1.0 / w), targets)


@parametrize_with_checks(
    [
        nsd.DEQRegressor(**GIVEN),
        nsd.DEQClassifier(**GIVEN),
        nsd.DEQGaussianProcess(optimise=("amplitude", "noise")),
        nsd.DEQFeatures(network=nsd.ENN(["relu"]), width=16),
        nsd.Standardiser(),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [
        nsd.DEQRegressor(
            kernel="ck", solver=CG(tol=1e-11), **GIVEN
        ),  # rounding alone leaves 2e-12 on some of these data
        nsd.DEQRegressor(),
        nsd.DEQClassifier(),
        nsd.DEQGaussianProcess(),
    ]
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
def test_scikit_learn_accepts_other_settings(estimator, check):
    check(estimator)


# ---- one answer by every way -----------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
@pytest.mark.parametrize("solver", ["cholesky", CG(tol=1e-11)])
def test_the_regressor_is_kernel_ridge_regression(kernel, solver):
    deq = nsd.DEQ("erf", 0.15)
    kinds = nsd.kernels_of(deq, X, kernels=(kernel,))[kernel], nsd.kernels_of(deq, NEW, X, kernels=(kernel,))[kernel]
    model = nsd.DEQRegressor("erf", sigma_a2=0.15, kernel=kernel, ridge=0.02, solver=solver, **PLAIN).fit(X, Y)
    near = SOLVED if isinstance(solver, CG) else tolerance(amplified=1 / 0.02)  # 9e-11
    np.testing.assert_allclose(model.predict(NEW), kinds[1] @ dense(kinds[0], Y, 0.02), rtol=0, atol=near)
    assert model.record_["solver"] == ("cg" if isinstance(solver, CG) else solver)
    assert model.absolute_ridge_ == pytest.approx(0.02 * np.diag(kinds[0]).mean(), rel=tolerance())


def test_rows_in_single_precision_are_solved_in_double():
    rows = X.astype(np.float32)
    model = nsd.DEQRegressor("tanh", kernel="ck", solver=CG(tol=1e-10), **GIVEN).fit(rows, Y)
    direct = nsd.DEQRegressor("tanh", kernel="ck", **GIVEN).fit(rows.astype(np.float64), Y)
    np.testing.assert_allclose(model.predict(NEW), direct.predict(NEW), rtol=0, atol=SOLVED)


# ---- what is done to rows and targets --------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["columns", "rows"])
def test_rows_and_targets_are_centred_and_scaled_inside(scale):
    units = X * np.geomspace(0.01, 100.0, 12) + 5.0
    new = NEW * np.geomspace(0.01, 100.0, 12) + 5.0
    w = np.linspace(0.5, 2.0, 80)
    mean = np.average(units, axis=0, weights=w)
    deviations = np.sqrt(np.average((units - mean) ** 2, axis=0, weights=w))
    divisor = deviations * 12**0.5 if scale == "columns" else np.sqrt((deviations**2).sum())
    rows, points = (units - mean) / divisor, (new - mean) / divisor
    level = np.average(Y, axis=0, weights=w)
    deq = nsd.DEQ("relu", 0.2)
    expected = level + nsd.ntk(deq, points, rows) @ dense(nsd.ntk(deq, rows), Y - level, 0.02, w)
    model = nsd.DEQRegressor("relu", **GIVEN | {"ridge": 0.02}, scale=scale).fit(units, Y, w)
    np.testing.assert_allclose(model.predict(new), expected, rtol=0, atol=SOLVED)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_units_near_the_ends_of_the_range_change_nothing(unit):
    model, extreme = (nsd.DEQRegressor().fit(u * X, u * Y[:, 0]) for u in (1.0, unit))
    np.testing.assert_allclose(extreme.predict(unit * NEW) / unit, model.predict(NEW), rtol=0, atol=1e-7)  # a search
    assert extreme.best_["ridge"] == model.best_["ridge"]


def test_targets_far_from_zero_and_rows_in_other_units_change_nothing():
    model = nsd.DEQRegressor("relu", sigma_c2=0.1, ridge=0.02).fit(X, Y)
    moved = nsd.DEQRegressor("relu", sigma_c2=0.1, ridge=0.02).fit(1e3 * X - 7.0, Y + 100.0)
    np.testing.assert_allclose(moved.predict(1e3 * NEW - 7.0), model.predict(NEW) + 100.0, rtol=0, atol=SOLVED)


# ---- leave-one-out ---------------------------------------------------------------------------------------


def refitted(K, targets, lift, weights=None, intercept=True):
    """Predictions at each row by a regression that saw one unit of it less."""
    w = np.ones(len(K)) if weights is None else weights
    out = np.empty_like(targets)
    for i in range(len(K)):
        less = w.copy()
        less[i] = max(less[i] - 1.0, 0.0)
        rest = less > 0
        mean = np.average(targets[rest], axis=0, weights=less[rest]) if intercept else 0.0
        A = K[np.ix_(rest, rest)] + lift * np.diag(1.0 / less[rest])
        out[i] = mean + K[i, rest] @ np.linalg.solve(A, targets[rest] - mean)
    return out


@pytest.mark.parametrize("ridge", [0.02, "loo"])
@pytest.mark.parametrize("intercept", [True, False])
def test_leave_one_out_is_what_refitting_gives(ridge, intercept):
    w = np.repeat([1.0, 0.5, 2.5, 1.0], 20)
    shifted, options = Y + np.array([3.0, -1.0]), PLAIN | {"ridge": ridge, "fit_intercept": intercept}
    model = nsd.DEQRegressor("relu", **options).fit(X, shifted, w)
    K = nsd.ntk(nsd.DEQ("relu", 0.2), X)
    expected = refitted(K, shifted, model.absolute_ridge_, w, intercept)
    np.testing.assert_allclose(model.loo_, expected, rtol=0, atol=SOLVED)
    labelled = nsd.DEQClassifier("relu", **options).fit(X, LABELS)
    targets = 2.0 * (LABELS[:, None] == labelled.classes_) - 1.0
    expected = refitted(K, targets, labelled.absolute_ridge_, intercept=intercept)
    shift = labelled.loo_ - expected  # of the outputs, by the likelihood
    np.testing.assert_allclose(shift, shift[:1].repeat(80, 0) * intercept, rtol=0, atol=SOLVED)


def test_the_ridge_chosen_by_leave_one_out_is_the_largest_of_the_best():
    kept = {"sigma_b2": None, "sigma_c2": 0.1, "scale": "columns"}
    model = nsd.DEQRegressor("relu", **kept).fit(X, Y[:, 0])
    given = [nsd.DEQRegressor("relu", ridge=ridge, **kept).fit(X, Y[:, 0]) for ridge in GRID]
    errors = {each.ridge: np.mean((each.loo_ - Y[:, 0]) ** 2) / Y[:, 0].var() for each in given}
    assert model.ridge_ == max(ridge for ridge, error in errors.items() if error <= 1.001 * min(errors.values()))
    assert model.best_["error"] == pytest.approx(errors[model.ridge_], rel=1e-6)  # a ridge of 1e-8 is a stiff system


def test_variances_and_ridge_are_chosen_together_and_given_ones_are_kept():
    y = np.abs(X[:, 0] - 0.3)  # not even about the mean: a bias is needed
    model = nsd.DEQRegressor("relu").fit(X, y)
    best = model.best_
    assert best["kernels"] <= 9
    assert best["error"] <= min(each["error"] for each in best["runners_up"])
    errors = [np.mean((nsd.DEQRegressor("relu", sigma_c2=c2).fit(X, y).loo_ - y) ** 2) for c2 in (0.0, 1.0)]
    assert np.mean((model.loo_ - y) ** 2) <= 1.002 * min(errors)
    again = nsd.DEQRegressor("relu", **{name: best[name] for name in CHOSEN}).fit(X, y)
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    assert nsd.DEQRegressor("tanh", sigma_c2=0.3, ridge=0.1).fit(X, y).best_["sigma_c2"] == 0.3
    assert nsd.DEQRegressor("tanh", sigma_b2=0.3, sigma_c2=0.0, scale="rows").fit(X, y).best_["kernels"] == 1


@pytest.mark.parametrize("phi", ["tanh", "sin"])
def test_the_search_for_one_variance_leaves_the_other_as_it_is(phi):
    assert nsd.DEQRegressor(phi, sigma_c2=0.5).fit(X, X[:, 0]).best_["sigma_c2"] == 0.5  # a small sigma_b2 is best
    assert nsd.DEQRegressor(phi, sigma_b2=50.0).fit(X, np.sin(3 * X[:, 0])).best_["sigma_b2"] == 50.0


@pytest.mark.parametrize("target", [np.abs, np.sin])
def test_an_activation_is_chosen_with_the_variances(target):
    y = target(3.0 * X[:, 0])
    model = nsd.DEQRegressor().fit(X, y)
    assert model.best_["kernels"] <= 13
    searched = [nsd.DEQRegressor(phi).fit(X, y).best_["error"] for phi in ("relu", "sin")]  # with twice the kernels
    assert model.best_["error"] <= 1.1 * min(searched)
    chosen = {name: model.best_[name] for name in ("activation", *CHOSEN)}
    np.testing.assert_array_equal(nsd.DEQRegressor(**chosen).fit(X, y).predict(NEW), model.predict(NEW))
    kept = {"sigma_b2": 0.8, "sigma_c2": 0.1, "ridge": 0.1}
    assert nsd.DEQRegressor(**kept).fit(X, y).best_["kernels"] == 4  # two activations, two scales


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "score"), [(load_iris, 0.93), (load_wine, 0.98), (load_breast_cancer, 0.97), (load_diabetes, 0.49)]
)
def test_machines_as_they_come_are_level_with_tuned_ones(load, score):
    rows, y = load(return_X_y=True)
    classes = load is not load_diabetes
    machine, folds = (nsd.DEQClassifier(), StratifiedKFold) if classes else (nsd.DEQRegressor(), KFold)
    found = cross_val_score(machine, rows, y, cv=folds(5, shuffle=True, random_state=0))
    assert found.mean() > score  # a point below 0.947, 0.989, 0.981 and 0.502


@pytest.mark.parametrize("phi", ["erf", "gelu", "selu", "hard_swish", "quadratic"])
def test_activations_with_a_low_limit_fit_as_they_come(phi):
    model = nsd.DEQRegressor(phi, sigma_b2=0.5, sigma_c2=0.1, ridge=0.01, scale="rows").fit(X, Y)
    deq = model._machine.kernel.network
    assert deq.variances[0] == pytest.approx(min(0.2, 0.8 * deq.limit), rel=0.01)  # three digits
    assert np.isfinite(model.predict(NEW)).all()


def test_the_scale_is_chosen_by_leave_one_out():
    units = X * np.array([1.0] * 2 + [1e-3] * 10)  # rows are measured by the columns that matter
    y = np.sin(3 * X[:, 0]) + X[:, 1]
    assert nsd.DEQRegressor("relu").fit(units, y).best_["scale"] == "rows"
    assert nsd.DEQRegressor("relu").fit(units, X[:, 4]).best_["scale"] == "columns"


def test_a_ridge_found_on_few_rows_falls_with_their_number():
    assert extrapolated({100: 0.1}, 100) == 0.1
    assert extrapolated({100: 0.1, 200: 0.2}, 200) == 0.2
    assert extrapolated({100: 0.1, 200: 0.1}, 800) == pytest.approx(
        0.1 * (8 * 4) ** (-LIMITS.ridge_power / 2), rel=tolerance()
    )


@pytest.mark.parametrize("labels", [[1, "a"], [None, "a"], [None, 1.0]])
def test_labels_of_several_kinds_are_refused(labels):
    with pytest.raises(InvalidInputError, match="one kind"):
        nsd.DEQClassifier(**GIVEN).fit(X, np.array(labels * 40, dtype=object))


@pytest.mark.parametrize(
    "kind", [lambda a: a.requires_grad_(), lambda a: a.bfloat16().double(), lambda a: (a + 0j).conj().imag - a * -1.0]
)
def test_tensors_of_every_kind_are_taken_as_numbers(kind):
    rows, targets = kind(torch.tensor(X)), kind(torch.tensor(Y[:, 0]))
    model = nsd.DEQRegressor(**GIVEN).fit(rows, targets)
    plain = nsd.DEQRegressor(**GIVEN).fit(rows.detach().resolve_neg().numpy(), targets.detach().resolve_neg().numpy())
    np.testing.assert_array_equal(model.predict(rows), plain.predict(rows.detach().resolve_neg().numpy()))
    signs = (targets > 0).to(targets).requires_grad_()
    assert nsd.DEQClassifier(**GIVEN).fit(rows.bfloat16(), signs.bfloat16()).predict(rows.bfloat16()).shape == (80,)


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (np.resize([1e308, -1e308], 80), "beyond the range"),
        (np.ma.array(Y[:, 0], mask=X[:, 0] > 0), "masked"),
        (np.resize(["a", "b"], 80), "could not convert"),
    ],
)
@pytest.mark.parametrize("machine", [nsd.DEQRegressor, nsd.DEQGaussianProcess])
def test_targets_that_are_no_numbers_are_refused(machine, targets, message):
    if machine is nsd.DEQRegressor or "range" not in message:
        with pytest.raises(InvalidInputError, match=message):
            machine().fit(X, targets)
    else:  # which scales them first
        assert np.isfinite(machine(optimise=False).fit(X, targets).predict(NEW)).all()


def test_predictions_beyond_the_range_are_refused():
    model = nsd.DEQRegressor(**GIVEN | {"ridge": 1e-8}, fit_intercept=False).fit(X, 1e308 * np.sign(Y[:, 0]))
    with pytest.raises(ConvergenceError, match="scale the targets down"):
        model.predict(NEW)


def test_labels_without_classes_are_refused_as_other_input_is():
    for labels in (Y[:, 0], np.resize([0, 1], 80).astype(object), np.ma.array(LABELS, mask=X[:, 0] > 0)):
        with pytest.raises(InvalidInputError):
            nsd.DEQClassifier(**GIVEN).fit(X, labels)


def test_the_method_is_told(caplog):
    with caplog.at_level("INFO", "notsodeep"):
        model = nsd.DEQRegressor(solver="cholesky", **GIVEN).fit(X, Y)
    assert "80 rows are solved by Cholesky: as given" in caplog.text
    assert model.record_["reason"] == "as given"


def test_many_rows_are_chosen_on_a_sample_and_left_out_when_asked(monkeypatch):
    few = dataclasses.replace(LIMITS, calibration_rows=30, selection_rows=(20, 25), survey_rows=15)
    monkeypatch.setattr("notsodeep.estimators.ridge.LIMITS", few)
    model = nsd.DEQClassifier("relu", scale="rows").fit(X, LABELS)
    assert (model.best_["rows"], len(model._machine.leave_one_out), "loo_" in dir(model)) == (20, 30, False)
    sample = model._kept[-30:]
    before = model._machine.leave_one_out.numpy()
    np.testing.assert_allclose(model.loo_[sample], before, rtol=0, atol=SOLVED)
    assert "loo_" in dir(model)
    given = {name: model.best_[name] for name in CHOSEN}
    monkeypatch.undo()
    whole = nsd.DEQClassifier("relu", **given).fit(X, LABELS)
    centred = model.loo_ - model.loo_.mean(0)  # the shifts differ: they come from a sample
    np.testing.assert_allclose(centred, whole.loo_ - whole.loo_.mean(0), rtol=0, atol=SOLVED)
    shares = [(LABELS[sample] == name).mean() - (name == LABELS).mean() for name in model.classes_]
    assert np.abs(shares).max() < 1 / 30  # every class by its share


def test_leave_one_out_that_is_not_there_says_why():
    model = nsd.DEQRegressor("relu", kernel="ck", solver=CG(), **GIVEN).fit(X, Y)
    with pytest.raises(AttributeError, match="factorisation"):
        model.loo_  # noqa: B018
    with pytest.raises(AttributeError, match="after fit"):
        nsd.DEQRegressor().loo_  # noqa: B018


# ---- classification --------------------------------------------------------------------------------------


@pytest.mark.parametrize("intercept", [True, False])
def test_temperature_and_shift_maximise_the_likelihood_of_what_was_left_out(intercept):
    model = nsd.DEQClassifier("relu", **GIVEN | {"ridge": 0.05}, fit_intercept=intercept).fit(X, LABELS)
    own = LABELS[:, None] == model.classes_
    counts = (own.sum(0) * own).sum(1)[:, None]
    aim = np.where(own, counts + 1, 0.5) / (counts + 2)  # Platt's

    def likelihood(t, shift):
        scores = t * (model.loo_ + shift)
        return (aim * (scores - np.logaddexp.reduce(scores, axis=1, keepdims=True))).sum(1).mean()

    t, step = model.temperature_, 0.01
    moves = [(t * (1 + step), 0.0), (t / (1 + step), 0.0)]
    moves += [(t, sign * step * np.eye(3)[i]) for i in range(3) for sign in (1, -1)] if intercept else []
    assert all(likelihood(t, 0.0) > likelihood(*move) for move in moves)
    proba = model.predict_proba(NEW)
    np.testing.assert_allclose(proba.sum(1), 1.0)
    assert (model.classes_[proba.argmax(1)] == model.predict(NEW)).all()


def test_two_labels_at_once_are_two_machines():
    many = np.stack([LABELS == "ant", X[:, 1] > 0.1], axis=1).astype(int)
    both = nsd.DEQClassifier("relu", **GIVEN).fit(X, many)
    for j in range(2):
        alone = nsd.DEQClassifier("relu", **GIVEN).fit(X, many[:, j])
        np.testing.assert_allclose(both.predict_proba(NEW)[:, j], alone.predict_proba(NEW)[:, 1], rtol=0, atol=SOLVED)
        np.testing.assert_array_equal(both.predict(NEW)[:, j], alone.predict(NEW))


def test_class_weights_are_weights_of_rows():
    w = np.where(LABELS == "ant", 1.0, 0.25)
    weighted = nsd.DEQClassifier("relu", **GIVEN).fit(X, LABELS, w)
    by_class = nsd.DEQClassifier("relu", **GIVEN, class_weight={"ant": 4.0, "bee": 1.0, "cat": 1.0}).fit(X, LABELS)
    np.testing.assert_allclose(by_class.decision_function(NEW), weighted.decision_function(NEW), rtol=0, atol=SOLVED)
    with pytest.raises(InvalidInputError, match="class_weight must be"):
        nsd.DEQClassifier(class_weight="fair").fit(X, LABELS)
    with pytest.raises(InvalidInputError, match="class_weight must be"):
        nsd.DEQClassifier(class_weight=[1.0, 2.0]).fit(X, np.unique(LABELS, return_inverse=True)[1])


def test_two_classes_share_one_output_and_iterative_solves_are_calibrated_too():
    y = np.where(X[:, 0] > 0, "yes", "no")
    direct = nsd.DEQClassifier("relu", kernel="ck", **GIVEN).fit(X, y)
    assert direct.decision_function(NEW).shape == (9,)
    assert ((direct.decision_function(NEW) > 0) == (direct.predict(NEW) == "yes")).all()
    iterated = nsd.DEQClassifier("relu", kernel="ck", solver=CG(tol=1e-11), **GIVEN).fit(X, y)
    np.testing.assert_allclose(iterated.decision_function(NEW), direct.decision_function(NEW), rtol=0, atol=SOLVED)
    np.testing.assert_allclose(iterated.predict_proba(NEW), direct.predict_proba(NEW), atol=1e-7)  # all rows are few


def test_digits_with_grid_search_in_a_pipeline():
    images, labels = load_digits(return_X_y=True)
    machine = make_pipeline(nsd.Standardiser(), nsd.DEQClassifier("relu", kernel="ck", scale=None, **GIVEN))
    search = GridSearchCV(machine, {"deqclassifier__ridge": [1e-3, 1.0]}, cv=2).fit(images[:300], labels[:300])
    assert search.score(images[1000:1200], labels[1000:1200]) > 0.9
    again = pickle.loads(pickle.dumps(search.best_estimator_))
    assert (again.predict(images[:20]) == search.best_estimator_.predict(images[:20])).all()


# ---- parameters ------------------------------------------------------------------------------------------


def test_networks_and_twins_take_the_place_of_flat_parameters():
    twin = nsd.match(nsd.DEQ("relu", 0.2), 1.0)
    model = nsd.DEQRegressor(network=twin, ridge=0.01, fit_intercept=False).fit(X, Y)
    np.testing.assert_allclose(
        model.predict(NEW), twin.kernel_matrix(NEW, X) @ dense(twin.kernel_matrix(X), Y, 0.01), rtol=0, atol=SOLVED
    )
    copy = clone(nsd.DEQRegressor(network=nsd.ENN(["tanh"])))
    assert copy.network == nsd.ENN(["tanh"])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"ridge": 0.0}, "positive"),
        ({"ridge": "best"}, "'loo'"),
        ({"solver": "magic"}, "solver must be"),
        ({"kernel": "rbf"}, "kernel must be"),
        ({"network": "relu"}, "network must be"),
        ({"sigma_a2": 0.5}, "outside the contraction range"),
        ({"sigma_c2": "best"}, "'loo'"),
        ({"scale": "cells"}, "scale must be"),
    ],
)
def test_refusals(parameters, message):
    with pytest.raises(InvalidInputError, match=message):
        nsd.DEQRegressor(**parameters).fit(X, Y)


@pytest.mark.parametrize("name", ["DEQGaussianProcess", "DEQFeatures", "Standardiser"])
def test_sparse_rows_are_refused_clearly(name):
    with pytest.raises(TypeError, match="dense data is required"):
        getattr(nsd, name)().fit(scipy.sparse.csr_matrix(X), Y[:, 0])


def test_sparse_rows_are_those_of_their_dense_array():
    rows = np.where(np.abs(X) > 0.3, X, 0.0)
    for kind in (scipy.sparse.csr_array, scipy.sparse.csc_matrix):
        model = nsd.DEQClassifier(**GIVEN).fit(kind(rows), LABELS)
        np.testing.assert_array_equal(
            model.decision_function(kind(NEW)), nsd.DEQClassifier(**GIVEN).fit(rows, LABELS).decision_function(NEW)
        )


def test_what_cannot_be_computed_with_is_refused_with_the_name_of_what_helps():
    missing = X.copy()
    missing[3, 2] = np.nan
    with pytest.raises(InvalidInputError, match="SimpleImputer"):
        nsd.DEQRegressor(**GIVEN).fit(missing, Y)
    with pytest.raises(InvalidInputError, match="MultiOutputClassifier"):
        nsd.DEQClassifier(**GIVEN).fit(X, np.stack([np.arange(80) % 3] * 2, axis=1))
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"size": X[:, 0], "kind": LABELS})
    with pytest.raises(InvalidInputError, match="OneHotEncoder"):
        nsd.DEQRegressor(**GIVEN).fit(frame, Y)
    frame["kind"] = pandas.Series([1, 2] * 40, dtype="category")
    with pytest.raises(InvalidInputError, match="OneHotEncoder"):
        nsd.DEQRegressor(**GIVEN).fit(frame, Y)


@pytest.mark.parametrize("kind", ["datetime64[s]", "timedelta64[s]"])
def test_dates_are_no_numbers(kind):
    """A missing one was -9.2e18, in rows and in targets."""
    dates = np.array([1, 2, "NaT"] * 4, dtype=kind)
    rows = np.arange(12.0)[:, None] ** [1, 2]
    for model in (nsd.DEQRegressor(), nsd.DEQGaussianProcess(), nsd.DEQFeatures(width=4), nsd.Standardiser()):
        with pytest.raises(InvalidInputError, match="days since"):
            model.fit(dates[:, None], rows[:, 0])
    for model in (nsd.DEQRegressor(), nsd.DEQGaussianProcess(), nsd.DEQClassifier()):
        with pytest.raises(InvalidInputError, match="days since"):
            model.fit(rows, dates)
    frame = pytest.importorskip("pandas").DataFrame({"size": rows[:, 0], "when": dates})
    for model in (nsd.DEQRegressor(), nsd.Standardiser()):
        with pytest.raises(InvalidInputError, match="days since"):
            model.fit(frame, rows[:, 0])
    with pytest.raises(InvalidInputError, match="y contains NaN"):
        nsd.DEQRegressor().fit(rows, [None, *rows[1:, 0]])


def test_an_unfitted_machine_prints_as_scikit_learn_does_and_a_fitted_one_says_what_was_done():
    assert repr(nsd.DEQClassifier()) == "DEQClassifier()"
    assert repr(nsd.DEQRegressor("tanh", ridge=0.1)) == "DEQRegressor(activation='tanh', ridge=0.1)"
    model = nsd.DEQRegressor(sigma_b2=0.8, ridge=0.1).fit(X, Y)
    done = f"  # fitted: columns scaled, {model.best_['activation']}, ridge=0.1, sigma_b2=0.8, sigma_c2="
    assert repr(model).startswith(f"DEQRegressor(ridge=0.1, sigma_b2=0.8){done}")
    assert eval(repr(model), {"DEQRegressor": nsd.DEQRegressor}).get_params() == model.get_params()
    assert "DEQRegressor(ridge=0.1, sigma_b2=0.8))])" in repr(make_pipeline(nsd.Standardiser(), model))
    page = model._repr_html_()
    assert "fitted" in page


def test_sample_weights_are_routed_and_columns_have_names():
    pandas = pytest.importorskip("pandas")
    w = np.where(np.arange(80) % 3, 1.0, 3.0)
    with sklearn.config_context(enable_metadata_routing=True):
        machine = nsd.DEQRegressor(**GIVEN).set_fit_request(sample_weight=True)
        scaler = nsd.Standardiser().set_fit_request(sample_weight=False)
        routed = make_pipeline(scaler, machine).fit(X, Y, sample_weight=w)
    direct = nsd.DEQRegressor(**GIVEN).fit(nsd.Standardiser().fit_transform(X), Y, w)
    np.testing.assert_array_equal(routed.predict(X), direct.predict(nsd.Standardiser().fit_transform(X)))
    frame = pandas.DataFrame(X[:, :3], columns=["a", "b", "c"])
    named = nsd.DEQRegressor(**GIVEN).fit(frame, Y)
    assert list(named.feature_names_in_) == ["a", "b", "c"]
    with pytest.raises(InvalidInputError, match="feature names"):
        named.predict(frame[["c", "b", "a"]])


def test_transformers_name_their_columns_in_data_frames():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X[:, :2], columns=["left", "right"])
    scaled = nsd.Standardiser().set_output(transform="pandas").fit(frame).transform(frame)
    assert list(scaled.columns) == ["left", "right"]
    maker = nsd.DEQFeatures(network=nsd.ENN(["relu"]), width=2).set_output(transform="pandas")
    assert list(maker.fit_transform(frame).columns) == ["deqfeatures0", "deqfeatures1"]


def test_a_ridge_below_rounding_is_warned_of_with_the_jitter_that_took_its_place():
    twice = np.concatenate([X, X])
    with pytest.warns(NotSoDeepWarning, match="jitter of [0-9.]+e-1[0-9] added to the diagonal"):
        model = nsd.DEQRegressor(kernel="ck", **GIVEN | {"ridge": 1e-18}).fit(twice, twice[:, 0])
    assert model.record_["jitter"] > 0.0
    assert np.isfinite(model.predict(NEW)).all()


def test_rows_in_a_read_only_memory_map(tmp_path):
    np.save(tmp_path / "rows.npy", X.astype(np.float32))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    machines = (
        nsd.DEQRegressor("tanh", **GIVEN),
        make_pipeline(nsd.DEQFeatures(network=nsd.ENN(["tanh"]), width=32), Ridge()),
    )
    for machine in machines:
        on_disk, in_memory = (clone(machine).fit(rows, Y).predict(NEW) for rows in (mapped, mapped.copy()))
        np.testing.assert_array_equal(on_disk, in_memory)


@pytest.mark.parametrize("kind", [nsd.DEQRegressor, nsd.DEQGaussianProcess])
@pytest.mark.parametrize("solver", ["cholesky", CG()])
def test_arrays_that_change_after_the_fit_change_nothing(kind, solver):
    rows, targets = X.copy(), Y.copy()
    model = kind(**({"solver": solver, **GIVEN} if kind is nsd.DEQRegressor else {})).fit(rows, targets)
    before = model.predict(NEW)
    rows *= 0.5
    targets *= 0.5
    np.testing.assert_array_equal(model.predict(NEW), before)


@pytest.mark.parametrize("kind", [nsd.DEQRegressor, nsd.DEQClassifier, nsd.DEQGaussianProcess, nsd.DEQFeatures])
def test_a_fit_that_fails_leaves_the_old_model(kind):
    model = kind("relu", kernel="ck").fit(X, LABELS if kind is nsd.DEQClassifier else Y)
    answer = model.transform if kind is nsd.DEQFeatures else model.predict
    before = answer(NEW)
    with pytest.raises(InvalidInputError, match="outside the contraction range"):
        model.set_params(sigma_a2=0.5).fit(X[:6, :3], ["dog", "cow"] * 3 if kind is nsd.DEQClassifier else Y[:6])
    np.testing.assert_array_equal(answer(NEW), before)


def test_identical_rows_have_the_kernel_of_a_point_with_itself():
    twice = np.concatenate([X[:5], X[:5]])
    model = nsd.DEQRegressor("relu", **GIVEN | {"ridge": 1e-6}).fit(twice, np.arange(10.0))
    # what a ridge of 1e-6 takes from values up to ten
    np.testing.assert_allclose(model.predict(X[:5]), np.arange(5) + 2.5, rtol=0, atol=1e-4)


# ---- scikit-learn's own machines -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sigma_a2", "sigma_b2"])
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
def test_slopes_of_the_kernel_are_those_of_automatic_differentiation(name, kernel):
    rows = torch.from_numpy(X[:6])
    values = {"sigma_a2": 0.15, "sigma_b2": 0.7}
    _, slopes = nsd.DEQKernel("tanh", **values, kernel=kernel)(X[:6], eval_gradient=True)
    leaf = torch.tensor(values[name], dtype=torch.float64, requires_grad=True)
    K = nsd.kernels_of(nsd.DEQ("tanh", **{**values, name: leaf}), rows, kernels=(kernel,))[kernel]
    entries = [[values[name] * torch.autograd.grad(v, leaf, retain_graph=True)[0] for v in row] for row in K]
    position = ["sigma_a2", "sigma_b2"].index(name)
    error = differences(4e-3, accuracy=4)
    np.testing.assert_allclose(slopes[..., position], np.array(entries, dtype=float), rtol=0, atol=error)


def test_the_kernel_in_scikit_learns_machines():
    kernel, K = nsd.DEQKernel("relu", kernel="ntk"), nsd.ntk(nsd.DEQ("relu", 0.2), X)
    np.testing.assert_allclose(kernel(X), K, rtol=tolerance())
    np.testing.assert_allclose(kernel.diag(X), np.diag(K), rtol=tolerance())
    y = Y[:, 0]
    ours = nsd.DEQRegressor("relu", ridge=0.01, **PLAIN).fit(X, y)
    theirs = KernelRidge(alpha=0.01 * np.diag(K).mean(), kernel=kernel).fit(X, y)
    np.testing.assert_allclose(theirs.predict(NEW), ours.predict(NEW), rtol=0, atol=SOLVED)
    by_name, by_call = SVC(kernel="precomputed").fit(K, LABELS), SVC(kernel=kernel).fit(X, LABELS)
    assert (by_call.predict(NEW) == by_name.predict(nsd.ntk(nsd.DEQ("relu", 0.2), NEW, X))).all()


def test_the_kernel_in_scikit_learns_gaussian_process():
    y = np.sin(3 * X[:25, 0]) + 0.3 * np.random.default_rng(1).normal(size=25)
    kernel = nsd.DEQKernel("relu", sigma_b2=1.0, sigma_a2_bounds="fixed") + WhiteKernel(0.1)
    gp = GaussianProcessRegressor(kernel).fit(X[:25], y)
    assert gp.kernel_.k1.sigma_b2 != 1.0  # fitted by the gradient
    ours = nsd.DEQGaussianProcess(
        "relu", sigma_a2=gp.kernel_.k1.sigma_a2, sigma_b2=gp.kernel_.k1.sigma_b2, noise=gp.kernel_.k2.noise_level,
        optimise=False, scale=None, normalise_y=False, sigma_c2=0.0,
    ).fit(X[:25], y)  # fmt: skip
    assert ours.log_marginal_likelihood_value_ == pytest.approx(gp.log_marginal_likelihood_value_, rel=tolerance())
    np.testing.assert_allclose(ours.predict(NEW), gp.predict(NEW), rtol=0, atol=SOLVED)
    assert clone(kernel) == kernel
    assert [h.name for h in nsd.DEQKernel("relu").hyperparameters] == ["sigma_a2"]
    assert nsd.DEQKernel(network=nsd.ENN(["relu"])).theta.shape == (0,)


# ---- features --------------------------------------------------------------------------------------------


def test_features_tend_to_the_kernel():
    phi = nsd.DEQFeatures(network=nsd.ENN(["relu"]), width=20_000, init="orthogonal").fit_transform(X)
    K = nsd.ck(nsd.ENN(["relu"]), X)
    assert np.linalg.norm(phi @ phi.T - K, 2) < 5 / np.sqrt(20_000) * np.linalg.norm(K, 2) * 2  # five standard errors
    out = nsd.DEQFeatures(network=nsd.ENN(["relu"]), width=3).fit(X)
    assert list(out.get_feature_names_out()) == ["deqfeatures0", "deqfeatures1", "deqfeatures2"]
    assert out.transform(X.astype(np.float32)).dtype == np.float32
    with pytest.raises(InvalidInputError, match="trains all weights"):
        nsd.DEQFeatures(network=nsd.match(nsd.DEQ("relu", 0.2), 1.0, kernel="ntk")).fit(X)


@pytest.mark.parametrize(("activation", "kernel"), [("relu", "ck"), ("tanh", "ck")])
def test_features_of_a_deq_are_those_of_its_one_layer_twin(activation, kernel):
    phi = nsd.DEQFeatures(activation, kernel=kernel, width=4096).fit_transform(X)
    K = nsd.kernels_of(nsd.DEQ(activation, 0.2), X, kernels=(kernel,))[kernel]
    # a matrix of 80 rows fluctuates in norm by several standard errors of an entry
    assert np.linalg.norm(phi @ phi.T - K, 2) < 10 / np.sqrt(4096) * np.linalg.norm(K, 2)


def test_features_say_once_that_rows_are_beyond_the_norms_they_were_made_for():
    made = nsd.DEQFeatures("tanh", width=16).fit(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.transform(X)
        nsd.DEQFeatures("relu", width=16).fit(X).transform(10.0 * X)  # for all norms
    with pytest.warns(NotSoDeepWarning, match="80 of 80 rows have norms outside"):
        made.transform(10.0 * X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made.transform(10.0 * X)


@pytest.mark.parametrize("parameters", [{"kernel": "ntk"}, {"width": 0}])
def test_features_that_are_refused(parameters):
    with pytest.raises(InvalidInputError, match=r"kernel='ck'|width must be"):
        nsd.DEQFeatures(network=nsd.ENN(["relu"]), **parameters).fit(X)


@pytest.mark.parametrize("width", [40, 200])
def test_ridge_regression_on_features_is_the_kernel_machine_of_their_kernel(width):
    maker = nsd.DEQFeatures(network=nsd.ENN(["relu"]), width=width).fit(X)
    phi, new = maker.transform(X), maker.transform(NEW)
    absolute = 0.01 * np.diag(phi @ phi.T).mean()
    model = make_pipeline(maker, Ridge(alpha=absolute, fit_intercept=False)).fit(X, Y)
    np.testing.assert_allclose(model.predict(NEW), new @ phi.T @ dense(phi @ phi.T, Y, 0.01), rtol=0, atol=SOLVED)


def test_a_stream_is_features_with_partial_fit():
    images, labels = load_digits(return_X_y=True)
    images = images / 60.0
    features = nsd.DEQFeatures("relu", kernel="ck", width=256).fit(images[:100])
    stream = SGDClassifier(loss="log_loss", alpha=1e-5, random_state=0)
    for part in np.array_split(np.arange(1500), 30):
        stream.partial_fit(features.transform(images[part]), labels[part], classes=np.arange(10))
    assert stream.score(features.transform(images[1500:]), labels[1500:]) > 0.7  # guessing: a tenth


# ---- pickles ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "targets"),
    [
        (nsd.DEQRegressor("tanh", ridge=0.1), Y),
        (nsd.DEQClassifier(network=nsd.ENN(["relu"]), kernel="ck"), LABELS),
        (make_pipeline(nsd.Standardiser(), nsd.DEQClassifier("relu", solver=CG(), **GIVEN)), LABELS == "ant"),
        (nsd.DEQClassifier("relu", **GIVEN), np.stack([LABELS == "ant", X[:, 1] > 0], axis=1).astype(int)),
        (nsd.DEQRegressor(network=nsd.match(nsd.DEQ("relu", 0.2), 1.0)), Y[:, 0]),
    ],
)
def test_a_pickled_machine_predicts_as_before(machine, targets):
    again = pickle.loads(pickle.dumps(machine.fit(X, targets)))
    np.testing.assert_array_equal(again.predict(NEW), machine.predict(NEW))
    assert repr(again).partition("#")[2] == repr(machine).partition("#")[2]  # what was scaled and chosen
    if hasattr(machine, "predict_proba"):
        np.testing.assert_array_equal(again.predict_proba(NEW), machine.predict_proba(NEW))
