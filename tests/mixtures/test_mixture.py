"""Mixtures: covariance structures against dense algebra, sampling against population moments."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from helpers import tolerance, ulps
from notsodeep.errors import InvalidInputError
from notsodeep.mixtures.mixture import covariance

P = 40
RNG = np.random.default_rng(7)
ROOT = RNG.standard_normal((P, P)) / np.sqrt(P)
STRUCTURES = {
    "isotropic": 1.7,
    "diagonal": RNG.uniform(0.2, 3.0, P),
    "dense": ROOT @ ROOT.T,
    "singular": ROOT[:, :5] @ ROOT[:, :5].T,
}


@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("other", STRUCTURES)
def test_traces_of_products_agree_with_dense_matrices(name, other):
    a, b = covariance(STRUCTURES[name], P), covariance(STRUCTURES[other], P)
    assert a.inner(b) == pytest.approx(np.trace(a.dense() @ b.dense()), rel=tolerance())


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures_agree_with_their_dense_matrix(name):
    c = covariance(STRUCTURES[name], P)
    dense = c.dense()
    values = np.clip(np.linalg.eigvalsh(dense), 0.0, None)
    assert c.trace() == pytest.approx(np.trace(dense), rel=ulps())
    np.testing.assert_allclose(c.variances(), np.diag(dense), rtol=0, atol=ulps())
    rows = RNG.standard_normal((3, P))
    np.testing.assert_allclose(c.multiply(rows), rows @ dense, rtol=0, atol=tolerance() * values[-1])


@pytest.mark.parametrize("name", STRUCTURES)
def test_samples_have_the_covariance(name):
    c = covariance(STRUCTURES[name], P)
    n = 20_000
    sample = c.draw(n, np.random.default_rng(0))
    error = np.linalg.norm(sample.T @ sample / n - c.dense(), 2)
    # operator-norm error of a sample covariance is about ||C|| (2 sqrt(r/n) + r/n), r = tr C / ||C|| the effective rank
    norm = np.linalg.norm(c.dense(), 2)
    effective = c.trace() / norm
    assert error < 2.0 * norm * (2.0 * np.sqrt(effective / n) + effective / n + 3.0 / np.sqrt(n))


def test_two_class_is_the_papers_mixture():
    mix = nsd.GaussianMixture.two_class(100)
    assert mix.means[0].tolist() == [8.0] + [0.0] * 99
    assert mix.means[1, 8] == 8.0
    assert np.count_nonzero(mix.means[1]) == 1
    assert [c.trace() / 100 for c in mix.covariances] == pytest.approx([1.0, 1.8])
    assert mix.weights.tolist() == [0.5, 0.5]


def test_sample_moments_and_scaling():
    mix = nsd.GaussianMixture.two_class(400, mu=6.0, cov=3.0)
    X, y = mix.sample(4000, seed=3)
    assert X.shape == (4000, 400)
    assert X.dtype == np.float64
    for a in (0, 1):
        rows = X[y == a] * np.sqrt(400)
        variance = mix.covariances[a].trace() / 400
        assert np.abs(rows.mean(0) - mix.means[a]).max() < 5.0 * np.sqrt(variance / 2000)
        assert rows.var() == pytest.approx(
            variance + mix.means[a].var(), rel=np.sqrt(2.0) * tolerance(samples=rows.size)
        )


def test_seeds_decide_the_sample():
    mix = nsd.GaussianMixture.two_class(20)
    assert np.array_equal(mix.sample(10, seed=1)[0], mix.sample(10, seed=1)[0])
    assert not np.array_equal(mix.sample(10, seed=1)[0], mix.sample(10, seed=2)[0])
    generator = np.random.default_rng(1)
    first, second = mix.sample(10, seed=generator)[0], mix.sample(10, seed=generator)[0]
    assert np.array_equal(first, mix.sample(10, seed=1)[0])
    assert not np.array_equal(first, second)


@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8), st.integers(1, 500))
def test_class_counts_are_the_largest_remainders(weights, n):
    mix = nsd.GaussianMixture(np.zeros((len(weights), 2)), [1.0] * len(weights), weights)
    counts = mix.counts(n)
    ideal = n * np.array(weights) / sum(weights)
    assert counts.sum() == n
    assert np.abs(counts - ideal).max() < 1.0 + tolerance() * n
    _X, y = mix.sample(n)
    assert np.bincount(y, minlength=len(weights)).tolist() == counts.tolist()
    assert (np.diff(y) >= 0).all()


def test_equal_weights_give_ties_to_the_first_classes():
    assert nsd.GaussianMixture(np.zeros((3, 2)), [1.0] * 3).counts(10).tolist() == [4, 3, 3]


def test_dimension_twenty_thousand():
    p = 20_000
    mix = nsd.GaussianMixture(np.zeros((3, p)), [1.0, np.full(p, 1.2), np.linspace(0.5, 1.3, p)])
    X, y = mix.sample(12, seed=0)
    stats = nsd.MixtureStatistics.from_mixture(mix, X, y)
    assert stats.T[0, 1] == pytest.approx(1.2)
    assert np.abs(stats.psi).max() < 6 * np.sqrt(2 * 1.44 / p)


def test_pickle_round_trip():
    mix = nsd.GaussianMixture.two_class(30)
    again = pickle.loads(pickle.dumps(mix))
    assert np.array_equal(mix.sample(5)[0], again.sample(5)[0])
    assert repr(again) == repr(mix)


@pytest.mark.parametrize(
    ("means", "covariances", "weights", "message"),
    [
        (np.zeros(3), [1.0], None, "shape"),
        (np.zeros((2, 3)), [1.0], None, "2 entries"),
        (np.zeros((1, 3)), 1.0, None, "1 entries"),
        (np.zeros((1, 3)), [-1.0], None, "negative"),
        (np.zeros((1, 3)), [np.ones(2)], None, "vector of p = 3"),
        (np.zeros((1, 2)), [[[1.0, 2.0], [0.0, 1.0]]], None, "symmetric"),
        (np.zeros((1, 2)), [[[1.0, 2.0], [2.0, 1.0]]], None, "smallest eigenvalue is -1"),
        (np.zeros((2, 3)), [1.0, 1.0], [1.0, 0.0], "positive"),
        (np.full((1, 3), np.nan), [1.0], None, "finite"),
        ("abc", [1.0], None, "numeric"),
    ],
)
def test_invalid_mixtures_say_why(means, covariances, weights, message):
    with pytest.raises(InvalidInputError, match=message):
        nsd.GaussianMixture(means, covariances, weights)


def test_invalid_sample_sizes():
    mix = nsd.GaussianMixture.two_class(20)
    with pytest.raises(InvalidInputError, match="at least 1"):
        mix.sample(0)
    with pytest.raises(InvalidInputError, match="at least 1"):
        mix.sample(-2)
    with pytest.raises(InvalidInputError, match="p >= 9"):
        nsd.GaussianMixture.two_class(8)


def test_a_mixture_from_data_is_that_of_its_classes():
    truth = nsd.GaussianMixture([[3.0, 0.0, 0.0], [0.0, -2.0, 0.0]], [1.0, np.array([1.0, 2.0, 4.0])], weights=[3, 1])
    X, y = truth.sample(8000, seed=0)
    found = nsd.GaussianMixture.from_data(X, np.array(["b", "a"])[y])  # sorted by name
    size = tolerance(samples=2000)
    np.testing.assert_allclose(found.weights, [0.25, 0.75], rtol=0, atol=tolerance())
    np.testing.assert_allclose(found.means, truth.means[::-1], rtol=0, atol=2.0 * size)  # of deviations up to two
    for mine, theirs in zip(found.covariances, truth.covariances[::-1], strict=True):
        assert abs(mine.trace() - theirs.trace()) <= 6.0 * size  # variances up to four, whose errors add up
    one = nsd.GaussianMixture.from_data(X[:3])  # fewer rows than make a full covariance
    assert one.classes == 1
    with pytest.raises(InvalidInputError, match="two rows"):
        nsd.GaussianMixture.from_data(X[:3], [0, 0, 1])
