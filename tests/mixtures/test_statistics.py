"""Mixture statistics: exact values by hand, estimates without bias, standardising without leakage."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import InvalidInputError
from notsodeep.mixtures.statistics import _gram_products, _scatter_products

EXACT, ESTIMATE = nsd.MixtureStatistics.from_mixture, nsd.MixtureStatistics.estimate


def three_classes(p):
    rng = np.random.default_rng(5)
    root = rng.standard_normal((p, p)) / np.sqrt(p)
    variances = rng.uniform(0.2, 0.8, p)
    return nsd.GaussianMixture(rng.standard_normal((3, p)), [1.0, root @ root.T, variances], [1, 2, 1])


def test_exact_statistics_by_hand():
    mix = nsd.GaussianMixture(np.array([[1.0, 0.0], [0.0, 2.0]]), [1.0, [2.0, 4.0]], [1, 1])
    X, y = mix.sample(6, seed=0)
    st = EXACT(mix, X, y)
    assert st.tau0 == pytest.approx(np.sqrt((X**2).sum(1).mean()))
    np.testing.assert_allclose(st.t, np.array([2.0 - 4.0, 6.0 - 4.0]) / np.sqrt(2.0))
    np.testing.assert_allclose(st.T, [[1.0, 3.0], [3.0, 10.0]])
    np.testing.assert_allclose(st.psi, ((X - mix.means[y] / np.sqrt(2.0)) ** 2).sum(1) - np.array([1.0, 3.0])[y])
    np.testing.assert_allclose(st.V, np.column_stack([np.eye(2)[y] / np.sqrt(2.0), st.psi]))
    assert st.counts.tolist() == [3, 3]


def test_traces_are_weighted_by_the_sample_not_the_population():
    mix = nsd.GaussianMixture.two_class(50)
    X, y = mix.sample(40, seed=0)
    keep = np.r_[0:10, 20:40]
    st = EXACT(mix, X[keep], y[keep])
    assert st.counts @ st.t == pytest.approx(0.0, abs=tolerance())


@pytest.mark.parametrize("p", [30, 50])  # by covariances, and by Gram matrices
def test_estimates_are_unbiased_when_classes_are_as_small_as_the_dimension(p):
    n, repeats = 120, 400
    mix = three_classes(p)
    found = [ESTIMATE(*mix.sample(n, seed=s)) for s in range(repeats)]
    exact = EXACT(mix, *mix.sample(n, seed=0))
    for name in ("T", "t"):
        values = np.array([getattr(f, name) for f in found])
        error = np.abs(values.mean(0) - getattr(exact, name))
        assert (error < 4.5 * values.std(0) / np.sqrt(repeats)).all(), name
    # the plug-in tr(S_a^2)/p of class 0 (n_a = p, C = I) is about twice the truth: with it the test above must fail
    sample = mix.sample(n, seed=0)
    rows = sample[0][sample[1] == 0]
    plug_in = np.sum(np.cov(rows.T, ddof=1) ** 2) * p
    assert plug_in > 1.7 * exact.T[0, 0]


def test_estimate_of_the_trace_square_needs_no_normality():
    p, n, repeats = 25, 20, 2000
    rng = np.random.default_rng(0)
    found = []
    for _ in range(repeats):
        X = (rng.exponential(size=(n, p)) - 1.0) / np.sqrt(p)
        found.append(ESTIMATE(X).T[0, 0])
    assert np.mean(found) == pytest.approx(1.0, abs=np.std(found) * tolerance(samples=repeats))


def test_both_paths_give_the_same_numbers():
    X, y = three_classes(30).sample(120, seed=1)
    groups = [torch.from_numpy(X[y == a]) for a in range(3)]
    np.testing.assert_allclose(_gram_products(groups), _scatter_products(groups), rtol=tolerance())


def test_estimated_psi_follows_the_exact_one():
    mix = nsd.GaussianMixture.two_class(400)
    X, y = mix.sample(320, seed=2)
    exact, found = EXACT(mix, X, y), ESTIMATE(X, y)
    for a in (0, 1):
        assert found.psi[y == a].mean() == pytest.approx(0.0, abs=ulps())
    assert np.corrcoef(exact.psi, found.psi)[0, 1] > 0.98
    # without the factor n_a/(n_a - 1) every squared residual would be short by tr C_a / (p n_a)
    gap = found.traces - exact.traces
    assert np.abs(gap).max() < 4.0 * np.sqrt(2.0 * exact.T.max() / (400 * 160))


def test_unlabelled_data_is_one_class():
    X, _ = nsd.GaussianMixture.two_class(60).sample(50, seed=0)
    st = ESTIMATE(X)
    assert st.K == 1
    assert st.t.tolist() == [0.0]
    assert st.classes == (0,)


def test_class_names_are_the_users():
    X, y = nsd.GaussianMixture.two_class(60).sample(50, seed=0)
    st = ESTIMATE(X, np.array(["cat", "dog"])[y])
    assert st.classes == ("cat", "dog")
    assert np.array_equal(st.labels, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_torch_data_gives_the_same_statistics(dtype):
    X, y = nsd.GaussianMixture.two_class(60).sample(50, seed=0)
    a, b = ESTIMATE(X, y), ESTIMATE(torch.tensor(X, dtype=dtype), torch.tensor(y))
    room = ulps(8, dtype)
    np.testing.assert_allclose(b.T, a.T, rtol=room)
    np.testing.assert_allclose(b.psi, a.psi, rtol=0, atol=room)
    assert isinstance(b.X, torch.Tensor)


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        (np.ones(4), None, "shape"),
        (np.ones((5, 2)), [0, 1], "labels must have shape"),
        (np.eye(5), [0, 0, 0, 0, 1], "at least 4"),
        (np.full((5, 2), np.inf), None, "infinity"),
        (np.zeros((5, 2)), None, "zero"),
    ],
)
def test_invalid_data_says_why(X, y, message):
    with pytest.raises(InvalidInputError, match=message):
        ESTIMATE(X, y)


def test_labels_of_a_mixture_are_checked():
    mix = nsd.GaussianMixture.two_class(20)
    X, y = mix.sample(6)
    with pytest.raises(InvalidInputError, match=r"0 \.\.\. 1"):
        EXACT(mix, X, y + 1)
    with pytest.raises(InvalidInputError, match="20 features, got 5"):
        EXACT(mix, X[:, :5], y)


# ---- standardising -------------------------------------------------------------------------------------------


def test_standardised_digits_have_mean_zero_and_unit_mean_square():
    X = load_digits().data
    train, test = X[:1200], X[1200:]
    fitted = nsd.Standardiser().fit(train)
    out = fitted.transform(train)
    assert np.abs(out.mean(0)).max() < ulps(4)
    assert (out**2).sum(1).mean() == pytest.approx(1.0, rel=ulps(), abs=0)
    both = nsd.standardise(train, test)
    np.testing.assert_array_equal(both[0], out)
    np.testing.assert_array_equal(both[1], fitted.transform(test))
    # test data keeps the training scale: its own mean is not removed
    assert np.abs(both[1].mean(0)).max() > 0.01
    np.testing.assert_allclose(fitted.inverse_transform(both[1]), test, rtol=0, atol=tolerance())
    np.testing.assert_array_equal(nsd.standardise(train), out)


def test_columns_are_scaled_by_their_own_deviations():
    X = np.random.default_rng(0).normal(size=(50, 4)) * [1.0, 1e3, 1e-3, 0.0] + 0.1
    w = np.arange(50) % 3
    fitted = nsd.Standardiser("columns").fit(X, sample_weight=w)
    out = fitted.transform(X)
    np.testing.assert_allclose(
        np.average(out**2, axis=0, weights=w), [1 / 3, 1 / 3, 1 / 3, 0], rtol=0, atol=tolerance()
    )
    np.testing.assert_allclose(fitted.inverse_transform(out), X, rtol=tolerance())
    repeated = nsd.Standardiser("columns").fit(np.repeat(X, w, axis=0))
    np.testing.assert_allclose(repeated.transform(X), out, rtol=0, atol=tolerance())
    np.testing.assert_array_equal(nsd.Standardiser(None).fit_transform(X), X)


@pytest.mark.parametrize(
    ("deviations", "chosen"),
    [(np.ones(64), "columns"), (np.linspace(0, 1, 300), "rows"), (np.geomspace(1e-3, 1e3, 300), "columns")],
)
def test_the_rule_for_columns_or_rows(deviations, chosen):
    X = np.random.default_rng(0).normal(size=(30, len(deviations))) * deviations
    assert nsd.Standardiser("auto").fit(X).chosen_ == chosen


@pytest.mark.parametrize("weights", [[1.0], [-1.0, 1, 1, 1], [0.0] * 4, [np.nan] * 4])
def test_weights_that_are_refused(weights):
    with pytest.raises(InvalidInputError, match="sample_weight must be"):
        nsd.Standardiser().fit(np.eye(4), sample_weight=weights)


def test_standardise_keeps_type_and_precision():
    X = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    out = nsd.standardise(X)
    assert isinstance(out, torch.Tensor)
    assert out.dtype is torch.float32
    assert nsd.standardise(np.arange(12).reshape(4, 3)).dtype == np.float64


def test_standardise_refuses_what_it_cannot_scale():
    with pytest.raises(InvalidInputError, match="equal"):
        nsd.Standardiser().fit(np.ones((4, 2)))
    with pytest.raises(InvalidInputError, match="has 3 features, but Standardiser is expecting 2"):
        nsd.Standardiser().fit(np.eye(2)).transform(np.eye(3))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_label_that_is_no_number_is_no_class(bad):
    X = np.random.default_rng(0).normal(size=(20, 5))
    with pytest.raises(nsd.errors.InvalidInputError, match="no class"):
        nsd.MixtureStatistics.estimate(X, np.r_[np.zeros(10), np.full(10, bad)])
