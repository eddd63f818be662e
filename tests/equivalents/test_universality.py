"""The universality diagnostic: it must find a planted fault, and be quiet on Gaussian data."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

import notsodeep as nsd
from helpers import tolerance
from notsodeep.equivalents import gaussian_like
from notsodeep.equivalents.universality import _changes, _hollow, _project

DEQ = nsd.DEQ("relu", 0.2)


def mixture_data(n=240, p=300, seed=0):
    return nsd.GaussianMixture.two_class(p, mu=2.0, cov=4.0).sample(n, seed=seed)


def test_gaussian_data_is_as_good_as_gaussian_data():
    report = nsd.universality(DEQ, *mixture_data())
    assert 0.7 < report.excess < 1.4
    assert report.floor <= report.error
    assert [term.name for term in report.terms] == ["gram", "norms", "classes", "diagonal"]
    stats = nsd.MixtureStatistics.estimate(*mixture_data())
    eq = nsd.equivalent(DEQ, stats)
    exact = nsd.ck(eq.network, stats.X)
    assert report.error == pytest.approx(nsd.equivalents.relative_spectral_error(exact, eq), rel=tolerance())


@pytest.mark.parametrize("kernel", ["ntk", "ntk_frozen"])
def test_every_kernel_and_network(kernel):
    for network in (DEQ, nsd.ENN(["silu", "tanh"])):
        report = nsd.universality(network, *mixture_data(n=100, p=120), kernel=kernel)
        assert report.kernel == kernel
        assert 0.4 < report.excess < 2.5
        assert report.network == network.centred(nsd.MixtureStatistics.estimate(*mixture_data(n=100, p=120)).tau0)


def test_a_heavy_common_factor_is_told_from_a_gaussian_mixture():
    """Rows with a random amplitude have norms that spread by O(1), as no mixture of few classes has."""
    X, y = mixture_data()
    amplitude = np.random.default_rng(0).uniform(0.3, 1.7, (len(X), 1))
    report = nsd.universality(DEQ, X * amplitude, y)
    assert report.excess > 2.0
    assert report.error > 0.1
    assert min(report.terms, key=lambda t: t.error).error < report.error


@pytest.mark.parametrize("fault", ["gram", "norms", "classes", "diagonal"])
def test_a_planted_fault_is_found(fault):
    """A residual made of one term is removed by refitting that term, and by none of the others."""
    stats = nsd.MixtureStatistics.estimate(*mixture_data(n=100, p=120))
    X, V = torch.from_numpy(stats.X), torch.from_numpy(stats.V)
    residual = {
        "gram": _hollow(X @ X.T),
        "norms": _hollow(torch.outer(V[:, 2], V[:, 2]) - torch.outer(V[:, 2], V[:, 0]) - torch.outer(V[:, 0], V[:, 2])),
        "classes": _hollow(torch.outer(V[:, 0], V[:, 1]) + torch.outer(V[:, 1], V[:, 0])),
        "diagonal": torch.diag(torch.linspace(-1.0, 1.0, 100, dtype=torch.float64)),
    }[fault]
    left = {
        name: float((residual - change).norm() / residual.norm()) for name, change in _changes(residual, stats).items()
    }
    assert left.pop("all") < tolerance()
    assert left.pop(fault) < tolerance()
    assert min(left.values()) > 0.1


def test_one_class_is_enough_for_classes_that_differ_in_norm_alone():
    """psi carries the norms whether or not t does: without labels the equivalent is as good."""
    X, y = nsd.GaussianMixture.two_class(300, mu=0.0, cov=14.0).sample(240, seed=0)
    known, hidden = nsd.universality(DEQ, X, y), nsd.universality(DEQ, X)
    assert (known.classes, hidden.classes) == (2, 1)
    assert hidden.error < 1.2 * known.error


def test_report_reads_as_a_table():
    text = str(nsd.universality(DEQ, *mixture_data(n=60, p=80), about="origin"))
    assert "relative spectral error of the equivalent 0." in text
    assert "Gaussian data with the same statistics 0." in text
    assert [line.split()[0] for line in text.splitlines()[4:8]] == ["c1", "psi", "T", "diagonal"]
    assert text.splitlines()[-1].startswith("largest gain: ")


def test_digits_behave_like_a_mixture():
    digits = load_digits()
    keep = np.flatnonzero((digits.target == 6) | (digits.target == 8))
    X = nsd.standardise(digits.data[keep] + 0.0)
    report = nsd.universality(DEQ, X, digits.target[keep])
    # p = 64 is small: both errors are large, but real digits are no worse than Gaussian ones
    assert report.excess < 1.5
    assert report.p == 64


def test_gaussian_twin_has_the_estimated_statistics():
    """Both branches: more points than dimensions, and fewer."""
    for n, p in ((200, 40), (60, 150)):
        X, y = nsd.GaussianMixture.two_class(p, mu=2.0).sample(n, seed=1)
        stats = nsd.MixtureStatistics.estimate(X, y)
        twin = gaussian_like(stats)
        assert [c.trace() / p for c in twin.covariances] == pytest.approx(stats.traces.tolist(), rel=tolerance())
        wanted = np.maximum(np.diag(stats.T), stats.traces**2)  # tr(C^2)/p is never below (tr C/p)^2
        assert [c.inner(c) / p for c in twin.covariances] == pytest.approx(wanted.tolist(), rel=tolerance())
        np.testing.assert_allclose(twin.means, stats.means)
        assert twin.counts(n).tolist() == stats.counts.tolist()


def test_projection_is_the_least_squares_fit():
    generator = torch.Generator().manual_seed(0)
    n, pairs = 25, [(0, 0), (1, 0), (1, 1), (2, 1)]
    V = torch.randn(n, 3, generator=generator, dtype=torch.float64)
    X = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    target = torch.randn(n, n, generator=generator, dtype=torch.float64)
    target, gram = _hollow(target + target.T), _hollow(X @ X.T)
    basis = [_hollow(torch.outer(V[:, a], V[:, b]) + torch.outer(V[:, b], V[:, a])) for a, b in pairs] + [gram]
    columns = torch.stack([b.reshape(-1) for b in basis], dim=1).numpy()
    weights = np.linalg.lstsq(columns, target.reshape(-1).numpy(), rcond=None)[0]
    np.testing.assert_allclose(
        _project(target, V, pairs, gram).reshape(-1), columns @ weights, rtol=0, atol=tolerance()
    )
