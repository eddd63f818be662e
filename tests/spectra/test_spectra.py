"""The predicted spectrum: closed forms, simulated matrices, exact kernels."""

from __future__ import annotations

import contextlib
import math
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar

import notsodeep as nsd
from helpers import differences, printed, solved, tolerance, ulps
from notsodeep.errors import ConcentrationWarning, InvalidInputError
from notsodeep.spectra import SpectralLaw
from notsodeep.spectra.bulk import noise_law
from notsodeep.spectra.law import law_of
from notsodeep.spectra.population import Blocks, Commuting
from notsodeep.spectra.sources import source_of

RELU = nsd.DEQ("relu", sigma_a2=0.2)
LINEAR = nsd.ENN(["linear"])  # its conjugate kernel is the Gram matrix itself: c1 = 1, shift 0


def one_class(variances: np.ndarray) -> nsd.GaussianMixture:
    return nsd.GaussianMixture(np.zeros((1, len(variances))), [variances])


def kolmogorov(law: SpectralLaw, eigenvalues: np.ndarray, skip_atom: bool = False) -> float:
    """Largest distance between the predicted and the empirical distribution function."""
    values = np.sort(eigenvalues)
    n = len(values)
    above = np.abs(law.cdf(values) - np.arange(1, n + 1) / n)
    below = np.abs(law.cdf(values - 1e-12) - np.arange(n) / n)
    keep = values > law.atoms[0].value + tolerance() * values[-1] if skip_atom else np.ones(n, dtype=bool)
    return float(max(above[keep].max(), below[keep].max()))


def noise_gram(mix: nsd.GaussianMixture, n: int, seed: int) -> np.ndarray:
    X, _ = mix.sample(n, seed=seed)
    return X @ X.T


def marchenko_pastur(x: np.ndarray, c: float) -> np.ndarray:
    """Density of X X', X of shape (c p, p) with entries N(0, 1/p)."""
    low, high = (1 - math.sqrt(c)) ** 2, (1 + math.sqrt(c)) ** 2
    return np.sqrt(np.clip((high - x) * (x - low), 0.0, None)) / (2 * math.pi * c * x)


# ---- one class, identity covariance: Marchenko-Pastur -----------------------------------------------------------


@pytest.mark.parametrize("n", [50, 900, 999, 1000, 1001, 2000, 20000])
def test_one_isotropic_class_is_marchenko_pastur(n: int) -> None:
    c = n / 1000
    law = nsd.spectral_law(LINEAR, one_class(np.ones(1000)), n=n)
    low, high = (1 - math.sqrt(c)) ** 2, (1 + math.sqrt(c)) ** 2
    np.testing.assert_allclose(law.support, [(low, high)], rtol=0, atol=tolerance())
    x = np.linspace(low, high, 203)[1:-1]
    np.testing.assert_allclose(law.density(x), marchenko_pastur(x, c), rtol=tolerance(), atol=tolerance())
    mass = sum(a.mass for a in law.atoms)
    assert mass == pytest.approx(max(0.0, 1 - 1 / c), abs=tolerance())
    for point in (low + 0.3 * (high - low), low + 0.8 * (high - low)):
        # from the upper edge down, where the integrand has only a square root
        tail = quad(lambda v: float(marchenko_pastur(np.array(v), c)), point, high, epsabs=1e-12, epsrel=1e-11)[0]
        assert float(law.cdf(point)) == pytest.approx(1 - tail, abs=tolerance())
    assert law.spikes == ()


def test_kernel_coordinates() -> None:
    """The law of a kernel is the law of the Gram matrix, scaled by c1 and shifted by diagonal - tau0^2 c1."""
    gram = nsd.spectral_law(LINEAR, one_class(np.ones(100)), n=70)
    law = nsd.spectral_law(RELU, one_class(np.ones(100)), n=70, refined=False)
    c = nsd.coefficients(RELU, tau0=1.0)
    shift = c.diagonal - c.c1
    np.testing.assert_allclose(np.array(law.support), shift + c.c1 * np.array(gram.support), rtol=ulps())
    x = np.linspace(*gram.support[0], 9)[1:-1]
    np.testing.assert_allclose(law.density(shift + c.c1 * x), gram.density(x) / c.c1, rtol=tolerance())


# ---- several covariances against simulation ---------------------------------------------------------------------


def turned(values: np.ndarray, seed: int) -> np.ndarray:
    q = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))[0]
    matrix = (q * values) @ q.T
    return 0.5 * (matrix + matrix.T)


def mixtures(p: int) -> dict[str, nsd.GaussianMixture]:
    half = np.repeat([1.0, 6.0], [p // 2, p - p // 2])
    zeros = np.zeros((2, p))
    ramp = np.linspace(0.2, 3.0, p)
    return {
        "two variances": nsd.GaussianMixture(zeros, [1.0, 4.0], [1, 2]),
        "two far variances": nsd.GaussianMixture(zeros, [1.0, 40.0], [1, 1]),
        "opposite diagonals": nsd.GaussianMixture(zeros, [half, half[::-1].copy()], [3, 1]),
        "full": nsd.GaussianMixture(zeros, [turned(ramp, 0), turned(half, 1)]),
        "full and diagonal": nsd.GaussianMixture(np.zeros((3, p)), [turned(ramp, 0), half, 1.0], [1, 1, 2]),
        "few large variances": nsd.GaussianMixture(zeros, [np.repeat([4.5, 0.5], [p // 5, p - p // 5]), 1.0]),
    }


@pytest.mark.parametrize("n", [100, 280])
@pytest.mark.parametrize("name", list(mixtures(10)))
def test_bulk_against_simulated_noise(name: str, n: int) -> None:
    """Eigenvalues of a Gram matrix are rigid: the distribution function errs by a few 1/n, here 8/n at most."""
    mix = mixtures(200)[name]
    law = nsd.spectral_law(LINEAR, mix, n=n)
    values = np.clip(np.linalg.eigvalsh(noise_gram(mix, n, seed=1)), 0.0, None)
    assert kolmogorov(law, values, skip_atom=bool(law.atoms)) < 8 / n
    low, high = law.support[0][0], law.support[-1][1]
    positive = values[values > tolerance() * values[-1]]
    # extreme eigenvalues fluctuate by n^(-2/3), inwards on average (Tracy and Widom)
    assert positive[0] > low - 0.03 * (high - low)
    assert high * (1 - 3 * n ** (-2 / 3)) < positive[-1] < high * (1 + n ** (-2 / 3))
    assert sum(law.masses) + sum(a.mass for a in law.atoms) == pytest.approx(1.0, abs=tolerance())
    assert sum(a.mass for a in law.atoms) == pytest.approx(max(0.0, 1 - 200 / n), abs=tolerance())


@pytest.mark.parametrize("name", ["two far variances", "opposite diagonals", "full"])
def test_density_integrates_to_the_masses(name: str) -> None:
    law = nsd.spectral_law(LINEAR, mixtures(60)[name], n=50)
    for (low, high), mass in zip(law.support, law.masses, strict=True):
        # x = low + (high - low) sin^2 removes the square roots at both ends
        def integrand(angle: float, low: float = low, high: float = high) -> float:
            x = low + (high - low) * math.sin(angle) ** 2
            return float(law.density(x)) * (high - low) * math.sin(2 * angle)

        # dense covariances promise 5e-6 of mass, the others 1e-11
        assert quad(integrand, 0, math.pi / 2, epsabs=1e-9, limit=200)[0] == pytest.approx(mass, abs=1e-5)


def test_disconnected_bulks_have_the_masses_of_their_classes() -> None:
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(np.zeros((2, 200)), [1.0, 400.0], [1, 3]), n=80)
    assert len(law.support) == 2
    np.testing.assert_allclose(law.masses, [0.25, 0.75], rtol=0, atol=tolerance())
    between = np.linspace(law.support[0][1], law.support[1][0], 7)
    np.testing.assert_array_equal(law.density(between), 0.0)
    np.testing.assert_allclose(law.cdf(between), 0.25, rtol=0, atol=tolerance())


def test_one_class_with_many_bulks() -> None:
    """n much larger than p separates every distinct eigenvalue; the edges are the extrema of the inverse map."""
    values = np.repeat([1.0, 5.0, 20.0], [50, 25, 25])
    law = nsd.spectral_law(LINEAR, one_class(values), n=2000)
    assert len(law.support) == 3
    np.testing.assert_allclose(law.masses, [50 / 2000, 25 / 2000, 25 / 2000], rtol=0, atol=tolerance())
    c = 20.0

    def slope(g: float) -> float:
        return float(1 / g**2 - c * np.mean(values**2 / (1 + c * g * values) ** 2))

    z = lambda g: -1 / g + np.mean(values / (1 + c * g * values))  # noqa: E731
    poles = [-1 / (c * v) for v in (1.0, 5.0)]
    best = minimize_scalar(lambda g: -slope(g), bounds=(poles[0] * 0.999, poles[1] * 1.001), method="bounded").x
    left, right = brentq(slope, poles[0] * 0.9999, best), brentq(slope, best, poles[1] * 1.0001)
    assert law.support[0][1] == pytest.approx(z(left), rel=tolerance())
    assert law.support[1][0] == pytest.approx(z(right), rel=tolerance())


@pytest.mark.filterwarnings("ignore::notsodeep.errors.ConcentrationWarning")
@pytest.mark.parametrize("refined", [True, False])
@pytest.mark.parametrize("seed", range(6))
def test_scattered_spectra(seed: int, refined: bool) -> None:
    """Variances over three decades, n/p from 0.05 to 15: masses, atom and alignments stay what they must be."""
    rng = np.random.default_rng(seed)
    classes, p = int(rng.integers(1, 5)), int(rng.integers(20, 150))
    n = int(p * 10 ** rng.uniform(-0.5, 1.2)) + 2 * classes
    variances = [
        10 ** rng.uniform(-1.5, 1.5),
        np.repeat(10 ** rng.uniform(-1.5, 1.5, 3), [p // 3, p // 3, p - 2 * (p // 3)]),
    ]
    covariances = [variances[int(rng.integers(2))] * rng.uniform(0.5, 2.0) for _ in range(classes)]
    mix = nsd.GaussianMixture(0.3 * rng.standard_normal((classes, p)), covariances)
    law = nsd.spectral_law(RELU, mix, n=n, refined=refined)
    atom = sum(a.mass for a in law.atoms)
    # products of two features fill the atom at finite p
    assert atom == pytest.approx(0.0 if refined else max(0.0, 1 - p / n), abs=tolerance())
    assert atom + sum(law.masses) == pytest.approx(1.0, abs=tolerance())
    assert all(a[1] < b[0] for a, b in zip(law.support, law.support[1:], strict=False))
    assert all(0 <= a <= 1 + tolerance() for s in law.spikes for a in (s.class_alignment, s.norm_alignment))


def test_equal_classes_are_one_class() -> None:
    one = nsd.spectral_law(LINEAR, one_class(np.linspace(0.5, 2, 40)), n=60)
    ramp = np.linspace(0.5, 2, 40)
    two = nsd.spectral_law(LINEAR, nsd.GaussianMixture(np.zeros((2, 40)), [ramp, ramp], [1, 2]), n=60)
    x = np.linspace(*one.support[0], 13)[1:-1]
    np.testing.assert_allclose(one.density(x), two.density(x), rtol=tolerance(), atol=tolerance())


def test_commuting_matrices_give_the_diagonal_law() -> None:
    ramp, steps = np.linspace(0.5, 2, 40), np.repeat([1.0, 3.0], 20)
    q = np.linalg.qr(np.random.default_rng(3).standard_normal((40, 40)))[0]
    full = [(q * v) @ q.T for v in (ramp, steps)]
    means = np.random.default_rng(4).standard_normal((2, 40))
    a = nsd.spectral_law(RELU, nsd.GaussianMixture(means @ q.T, [0.5 * (m + m.T) for m in full]), n=60)
    b = nsd.spectral_law(RELU, nsd.GaussianMixture(means, [ramp, steps]), n=60)
    np.testing.assert_allclose(a.support, b.support, rtol=tolerance())
    x = np.linspace(*b.support[0], 13)[1:-1]
    np.testing.assert_allclose(a.density(x), b.density(x), rtol=tolerance(), atol=tolerance())
    np.testing.assert_allclose([s.value for s in a.spikes], [s.value for s in b.spikes], rtol=tolerance())


def test_dense_solver_agrees_with_the_joint_spectrum() -> None:
    """The p x p path on covariances that commute, bypassing the detection of common eigenvectors."""

    rng = np.random.default_rng(0)
    values, ratios = rng.uniform(0.3, 2, (30, 3)), np.array([0.2, 0.3, 0.9])
    joint = Commuting(ratios, values, np.full(30, 1 / 30), np.zeros((30, 3, 3)))
    q = np.linalg.qr(rng.standard_normal((30, 30)))[0]
    nothing = Commuting(ratios, np.zeros((1, 3)), np.zeros(1), np.zeros((1, 3, 3)))
    full = np.stack([(q * v) @ q.T for v in values.T])
    dense = Blocks(ratios, full[:, None], np.full(1, 1 / 30), np.zeros((1, 1, 30, 3)), nothing)
    one, two = noise_law(joint), noise_law(dense)
    assert two.zero == pytest.approx(one.zero, abs=tolerance())
    (a,), (b,) = one.bulks, two.bulks
    # edges of dense covariances are found by search
    assert (b.low, b.high) == pytest.approx((a.low, a.high), rel=1e-10)
    x = np.linspace(a.low, a.high, 50)[1:-1]
    # dense covariances promise 5e-6 of mass
    np.testing.assert_allclose(b.density(x), a.density(x), rtol=0, atol=2e-5 * a.density(x).max())


def test_singular_covariances_are_solved() -> None:
    """Starting values from commuting covariances fail here."""
    rng = np.random.default_rng(9)
    factors = [rng.standard_normal((80, rank)) / math.sqrt(rank) for rank in (30, 40)]
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(np.zeros((2, 80)), [f @ f.T for f in factors]), n=30)
    assert sum(law.masses) == pytest.approx(1.0, abs=1e-9)  # the mass that an interpolated density may miss


@pytest.mark.parametrize("beyond", [1e-9, 1e-3, 1.0, 1e6])
def test_a_gap_is_solved_from_beside_its_edge_to_far_out(beyond: float) -> None:
    """z = -1/g_a + tr(C_a R)/p for every class, by the definition of R."""
    rng = np.random.default_rng(2)
    values, ratios = rng.uniform(0.3, 2, (30, 2)), np.array([0.2, 0.3])
    upper = noise_law(Commuting(ratios, values, np.full(30, 1 / 30), np.zeros((30, 2, 2)))).gaps[-1]
    z = upper.low * (1 + beyond)
    g = upper.solve(z).g
    resolvent = 1 / (1 + values @ (ratios * g))
    np.testing.assert_allclose(-1 / g + resolvent @ values / 30, z, rtol=tolerance())
    assert (g < 0).all()


@pytest.mark.parametrize("p", [100, *(pytest.param(p, marks=pytest.mark.slow) for p in (200, 300))])
def test_spikes_next_to_an_edge_are_solved(p: int) -> None:
    """An edge is known less well than it is asked for."""
    rng = np.random.default_rng(3)
    scale = math.sqrt(300 / p)
    factors = [rng.standard_normal((p, 6)) * 0.8 * scale, rng.standard_normal((p, 5)) * 0.9 * scale]
    low = [f @ f.T + floor * np.eye(p) for f, floor in zip(factors, (0.5, 0.8), strict=True)]
    means = rng.standard_normal((2, p)) * 0.3 * scale
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(means, low), n=round(500 * p / 300))
    assert len(law.support) == 2
    assert all(np.isfinite(s.value) for s in law.spikes)


def test_the_density_of_dense_covariances_falls_to_zero_at_the_edges() -> None:
    """It is known less well than that of others; its error must not grow as points come near the edges."""
    rng = np.random.default_rng(3)
    covariances = [f @ f.T / 80 for f in rng.standard_normal((2, 40, 80))]
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(np.zeros((2, 40)), covariances), n=30)
    ((low, high),) = law.support
    near = (high - low) * np.logspace(-15, -9, 30)
    found = law.density(np.concatenate([low + near, high - near]))
    # a thousandth of the largest density; roots of 1e-9 are below it
    assert found.max() < 1e-3 * law.density(np.linspace(low, high, 200)[1:-1]).max()


# ---- invariants -------------------------------------------------------------------------------------------------


@settings(max_examples=15, deadline=None)
@given(
    scale=st.floats(0.05, 20.0),
    variances=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=3),
    n=st.integers(12, 200),
)
def test_scaling_the_covariances_scales_the_law(scale: float, variances: list[float], n: int) -> None:
    zeros = np.zeros((len(variances), 50))
    one = nsd.spectral_law(LINEAR, nsd.GaussianMixture(zeros, variances), n=n)
    other = nsd.spectral_law(LINEAR, nsd.GaussianMixture(zeros, [scale * v for v in variances]), n=n)
    width = one.support[-1][1]
    # an edge moves as the inverse of the distance to the next bulk
    edges = tolerance(amplified=100)
    np.testing.assert_allclose(np.array(other.support) / scale, one.support, rtol=0, atol=edges * width)
    x = np.linspace(0.01, 1, 11) * width
    # beside a hard edge the density is a thousand and more
    np.testing.assert_allclose(other.cdf(scale * x), one.cdf(x), rtol=0, atol=1e-9)


@settings(max_examples=15, deadline=None)
@given(variances=st.lists(st.floats(0.1, 10.0), min_size=1, max_size=4), n=st.integers(8, 300))
def test_the_law_has_the_mean_of_the_traces(variances: list[float], n: int) -> None:
    mix = nsd.GaussianMixture(np.zeros((len(variances), 60)), variances)
    law = nsd.spectral_law(LINEAR, mix, n=n)
    x = np.linspace(0.0, law.support[-1][1], 4001)
    share = law.cdf(x)
    assert (np.diff(share) >= 0).all()
    mean = ((1.0 - share[:-1] + 1.0 - share[1:]) / 2 * np.diff(x)).sum()  # of a distribution on the positive axis
    assert mean == pytest.approx(mix.counts(n) @ np.array(variances) / n, rel=2e-3)  # the grid has 4,000 steps


# ---- isolated eigenvalues ---------------------------------------------------------------------------------------


def equivalent_matrix(
    mix: nsd.GaussianMixture, net: nsd.DEQ | nsd.ENN, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Theory section 4, written out."""
    X, y = mix.sample(n, seed=seed)
    traces = np.array([c.trace() for c in mix.covariances]) / mix.p
    shares = np.bincount(y) / n
    c = nsd.coefficients(net, math.sqrt(shares @ (traces + (mix.means**2).sum(1) / mix.p)))
    t = math.sqrt(mix.p) * (traces - shares @ traces)
    T = np.array([[a.inner(b) for b in mix.covariances] for a in mix.covariances]) / mix.p
    psi = ((X - mix.means[y] / math.sqrt(mix.p)) ** 2).sum(1) - traces[y]
    V = np.column_stack([np.eye(mix.classes)[y] / math.sqrt(mix.p), psi])
    B = np.block([[c.c2 * np.outer(t, t) + c.c3 * T, c.c2 * t[:, None]], [c.c2 * t[None], np.array([[c.c2]])]])
    return c.c1 * X @ X.T + V @ B @ V.T + (c.diagonal - c.tau0**2 * c.c1) * np.eye(n), y


def means(p: int, length: float, classes: int) -> np.ndarray:
    out = np.zeros((classes, p))
    out[np.arange(classes), np.arange(classes)] = length
    return out


SPIKED = {
    "papers": lambda p: nsd.GaussianMixture.two_class(p),
    "three classes": lambda p: nsd.GaussianMixture(means(p, 5.0, 3), [1.0, 0.8, 1.5], [1, 2, 3]),
    "diagonal": lambda p: nsd.GaussianMixture(means(p, 6.0, 2), [np.linspace(0.5, 2, p), np.linspace(2, 0.5, p)]),
    "full": lambda p: nsd.GaussianMixture(
        means(p, 6.0, 2), [turned(np.linspace(0.5, 2, p), 0), turned(np.linspace(0.2, 1.5, p), 1)]
    ),
}


@pytest.mark.parametrize(
    ("name", "p", "n"),
    [
        ("papers", 400, 320),
        ("papers", 400, 700),
        ("three classes", 400, 450),
        ("diagonal", 400, 300),
        ("full", 160, 120),
    ],
)
def test_spikes_and_alignments_against_the_simulated_equivalent(name: str, p: int, n: int) -> None:
    """Outliers of the equivalent matrix fluctuate by O(1/sqrt(p)), 5 % of their value at p = 400: four draws."""
    mix = SPIKED[name](p)
    law = nsd.spectral_law(RELU, mix, n=n, refined=False)
    top = [s for s in law.spikes if s.value > law.support[-1][1] + 0.05]
    assert sum(s.multiplicity for s in top) == mix.classes
    values, classes = [], []
    for seed in range(4):
        matrix, y = equivalent_matrix(mix, RELU, n, seed)
        lam, vectors = np.linalg.eigh(matrix)
        values.append(lam[-mix.classes :])
        assert lam[-mix.classes - 1] < law.support[-1][1] * 1.03
        indicators = np.eye(mix.classes)[y] / np.sqrt(np.bincount(y))
        classes.append(((indicators.T @ vectors[:, -mix.classes :]) ** 2).sum(axis=0))
    # see above
    np.testing.assert_allclose([s.value for s in top], np.mean(values, axis=0), rtol=0.7 / math.sqrt(p))
    # vectors fluctuate as values do, their sum less
    assert sum(s.class_alignment for s in top) == pytest.approx(np.mean(classes, axis=0).sum(), rel=0.02)


def test_alignment_of_each_class_when_spikes_are_far_apart() -> None:
    mix = nsd.GaussianMixture(means(500, 1.0, 2) * np.array([[5.0], [9.0]]), [1.0, 1.2], [1, 1])
    tanh = nsd.DEQ("tanh", sigma_a2=0.2)
    law = nsd.spectral_law(tanh, mix, n=400, refined=False)
    matrix, y = equivalent_matrix(mix, tanh, 400, seed=0)
    vectors = np.linalg.eigh(matrix)[1][:, -2:]
    squared = ((np.eye(2)[y] / np.sqrt(np.bincount(y))).T @ vectors) ** 2
    # one draw, p = 500
    np.testing.assert_allclose([s.alignments for s in law.spikes], squared.T, rtol=0, atol=0.03)
    assert all(0.0 <= s.class_alignment <= 1.0 for s in law.spikes)


def test_spikes_below_the_phase_transition_disappear() -> None:
    """For one isotropic class with mean mu, W W' has an outlier if and only if ||mu||^2 > sqrt(p/n) (BBP)."""
    p, n = 300, 200
    critical = (p / n) ** 0.25
    for length, expected in [(0.97 * critical, 0), (1.03 * critical, 1)]:
        law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(means(p, length, 1), [1.0]), n=n)
        assert len(law.spikes) == expected


@pytest.mark.parametrize(("p", "n"), [(300, 200), (200, 300)])
def test_one_class_spike_in_closed_form(p: int, n: int) -> None:
    """Rank-one perturbation of a rectangular matrix (Benaych-Georges and Nadakuditi, 2012)."""
    length2, c = 9.0, n / p
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(means(p, 3.0, 1), [1.0]), n=n)
    # X = W + sqrt(c l) u v': singular value theta^2 = c l of a matrix with entries of variance 1/p
    theta2 = c * length2
    top = law.spikes[-1]
    assert top.value == pytest.approx((1 + theta2) * (c + theta2) / theta2, rel=tolerance())
    # left singular vector (n side): 1 - c (1 + theta^2)/(theta^2 (theta^2 + c))
    assert top.alignments[0] == pytest.approx(1 - c * (1 + theta2) / (theta2 * (theta2 + c)), rel=differences(1e-5))


def test_equal_spikes_are_one_with_multiplicity() -> None:
    law = nsd.spectral_law(LINEAR, nsd.GaussianMixture(means(300, 4.0, 3), [1.0, 1.0, 1.0]), n=300)
    assert [s.multiplicity for s in law.spikes] == [3]
    (spike,) = law.spikes
    assert len(set(np.round(spike.alignments, 9))) == 1
    assert spike.class_alignment == pytest.approx(spike.alignments[0])


def test_reference_values_of_theory_section_8() -> None:
    mix = nsd.GaussianMixture.two_class(2500, mu=6.0, cov=8.0)
    population = math.sqrt(1 + 4 / math.sqrt(2500))
    law = law_of(source_of(mix, 2000), RELU, nsd.coefficients(RELU, population), refined=False)
    np.testing.assert_allclose([s.value for s in law.spikes], [3.598, 3.955], rtol=0, atol=printed(3))


@pytest.mark.parametrize("refined", [True, False])
def test_kernels_that_do_not_see_inner_products_are_refused(refined: bool) -> None:
    """E[phi'] = 0 removes the Gram matrix: everything sits at the diagonal but a matrix of rank K + 1."""
    with pytest.raises(InvalidInputError, match="does not see inner products"):
        nsd.spectral_law(nsd.ENN(["cos"]), nsd.GaussianMixture(np.zeros((2, 300)), [1.0, 1.3]), n=400, refined=refined)


# ---- exact kernels ----------------------------------------------------------------------------------------------


def exact(law: SpectralLaw, X: np.ndarray) -> np.ndarray:
    net = law.network
    if law.kernel == "ck":
        return nsd.ck(net, X)
    return nsd.ntk(net, X, train_input=law.kernel == "ntk")


@pytest.mark.parametrize("kernel", ["ck", "ntk", "ntk_frozen"])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_exact_kernels(name: str, kernel: str) -> None:
    """The papers' mixture, where means and norms of the classes are far from negligible at p = 500."""
    mix = nsd.GaussianMixture.two_class(500)
    law = nsd.spectral_law(nsd.DEQ(name, sigma_a2=0.2), mix, n=400, kernel=kernel)
    values = np.linalg.eigvalsh(exact(law, mix.sample(400, seed=0)[0]))
    # measured 0.006 to 0.016; a random Gram matrix alone deviates by about 0.005
    assert kolmogorov(law, values) < 0.025
    assert len(law.spikes) == 2
    # one draw: 1/sqrt(p) of their value is 4 %
    np.testing.assert_allclose([s.value for s in law.spikes], values[-2:], rtol=0.03)


@pytest.mark.parametrize(("covariances", "p", "n"), [("diagonal", 400, 300), ("full", 200, 150)])
def test_exact_kernels_general_covariances(covariances: str, p: int, n: int) -> None:
    mix = SPIKED[covariances](p)
    law = nsd.spectral_law(RELU.centred(source_of(mix, n).tau0), mix, n=n)
    values = np.linalg.eigvalsh(exact(law, mix.sample(n, seed=0)[0]))
    assert kolmogorov(law, values) < 0.035
    # one draw of 150 and 300 points
    np.testing.assert_allclose([s.value for s in law.spikes][-2:], values[-2:], rtol=0.05)


def test_the_refined_law_is_nearer_to_exact_kernels_and_has_the_same_limit() -> None:
    def distance(refined: bool) -> float:
        law = nsd.spectral_law(RELU.centred(1.15), nsd.GaussianMixture.two_class(500), n=400, refined=refined)
        return kolmogorov(
            law, np.linalg.eigvalsh(exact(law, nsd.GaussianMixture.two_class(500).sample(400, seed=0)[0]))
        )

    assert distance(True) < 0.3 * distance(False)
    apart = []
    for p in (10**3, 10**5):
        mix, n = nsd.GaussianMixture.two_class(p), int(0.8 * p)
        network = RELU.centred(source_of(mix, n).tau0)
        fine, limit = (nsd.spectral_law(network, mix, n=n, refined=r) for r in (True, False))
        apart.append(
            max(
                np.abs(np.array(fine.support) - limit.support).max(),
                abs(fine.spikes[-1].value - limit.spikes[-1].value),
            )
        )
    assert apart[1] < 0.15 * apart[0]  # the differences are O(1/sqrt(p))


@pytest.mark.parametrize(("kernel", "n"), [("ck", 240), ("ntk", 600)])
def test_the_law_is_that_of_the_network_as_it_is_given(kernel: str, n: int) -> None:
    """An activation with a mean has one eigenvalue of the order of n; products fill the atom of n > p."""
    mix = nsd.GaussianMixture.two_class(300, mu=4.0)
    law = nsd.spectral_law(RELU, mix, n=n, kernel=kernel)
    values = np.linalg.eigvalsh(exact(law, mix.sample(n, seed=0)[0]))
    # norms that differ blur the lowest eigenvalues
    assert kolmogorov(law, values) < (0.025 if n < 300 else 0.06)
    np.testing.assert_allclose([s.value for s in law.spikes][-2:], values[-2:], rtol=0.03)  # one draw
    assert law.spikes[-1].value > 30 * law.support[-1][1]
    assert law.concentration.holds


@pytest.mark.parametrize("covariance", ["power law", "two levels"])
def test_steep_spectra_with_more_points_than_directions(covariance: str) -> None:
    p, n = 120, 180
    levels = {"power law": np.arange(1.0, p + 1) ** -0.7, "two levels": np.where(np.arange(p) < 12, 10.0, 1.0)}
    values = levels[covariance] / levels[covariance].mean()
    network = RELU.centred(1.0)
    doubtful = covariance == "power law"
    with pytest.warns(ConcentrationWarning, match="times the ridge") if doubtful else contextlib.nullcontext():
        law = nsd.spectral_law(network, one_class(values), n=n)
    sampled = np.linalg.eigvalsh(nsd.ck(network, one_class(values).sample(n, seed=0)[0]))
    assert kolmogorov(law, sampled) < 0.09  # without products 0.2, half the mass of the atom


@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize(("variances", "n"), [((1.0, 1.5), 400), ((1.0, 2.0, 3.0), 800), ((1.0, 4.0), 1600)])
def test_classes_with_more_points_than_directions_see_an_odd_network(kernel, variances, n) -> None:
    """Each class has an atom of its own, all of them near one; the p eigenvalues beyond are the upper bulk."""
    p, deq = 100, nsd.DEQ("tanh", sigma_a2=0.2)
    mix = nsd.GaussianMixture(np.zeros((len(variances), p)), list(variances))
    law = nsd.spectral_law(deq, mix, n=n, kernel=kernel)
    exact = np.sort(np.linalg.eigvalsh(nsd.kernels_of(deq, mix.sample(n, seed=0)[0], kernels=(kernel,))[kernel]))[-p:]
    assert law.masses[-1] == pytest.approx(p / n, abs=solved(1e-7))
    upper = (law.cdf(exact) - 1.0 + p / n) * n / p
    # a class of few points moves eigenvalues by 1 / sqrt(p), and the largest one by p^(-2/3)
    assert np.abs(upper - np.arange(1, p + 1) / p).max() < 1.0 / math.sqrt(p)
    assert abs(exact[-1] / law.support[-1][1] - 1.0) < 2.0 * p ** (-2.0 / 3.0)


def test_explicit_network() -> None:
    mix = nsd.GaussianMixture.two_class(500)
    law = nsd.spectral_law(nsd.ENN(["tanh", "relu"]), mix, n=400, kernel="ntk")
    values = np.linalg.eigvalsh(exact(law, mix.sample(400, seed=0)[0]))
    assert kolmogorov(law, values) < 0.03


def test_estimated_statistics_of_one_class() -> None:
    """An estimated covariance spectrum, shrunk to the unbiased second moment, against that of the population."""
    ramp = np.linspace(0.2, 3.0, 200)
    mix = nsd.GaussianMixture(np.zeros((1, 200)), [ramp])
    X, _ = mix.sample(1000, seed=0)
    law = nsd.spectral_law(RELU, nsd.MixtureStatistics.estimate(X), n=150)
    truth = nsd.spectral_law(RELU, mix, n=150)
    x = np.linspace(truth.support[0][0], truth.support[-1][1], 21)
    assert np.abs(law.cdf(x) - truth.cdf(x)).max() < 0.02
    assert law.n == 150
    assert nsd.spectral_law(RELU, nsd.MixtureStatistics.estimate(X)).n == 1000


@pytest.mark.slow
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize("name", ["tanh", "arctan", "relu", "leaky_relu", "elu", "silu"])
def test_exact_kernels_at_two_thousand_points(name: str, kernel: str) -> None:
    mix = nsd.GaussianMixture.two_class(2500)
    law = nsd.spectral_law(nsd.DEQ(name, sigma_a2=0.2), mix, n=2000, kernel=kernel)
    values = np.linalg.eigvalsh(exact(law, mix.sample(2000, seed=0)[0]))
    assert kolmogorov(law, values) < 0.02
    # one draw: 1/sqrt(p) of their value is 2 %
    np.testing.assert_allclose([s.value for s in law.spikes], values[-2:], rtol=0.03)


# ---- the object -------------------------------------------------------------------------------------------------


def test_large_dimension_needs_no_matrix() -> None:
    mix = nsd.GaussianMixture(np.zeros((2, 20000)), [np.repeat([1.0, 9.0], [19990, 10]), 1.3])
    law = nsd.spectral_law(RELU, mix, n=15000)
    assert sum(law.masses) == pytest.approx(1.0)


def test_record() -> None:
    law = nsd.spectral_law(RELU, nsd.GaussianMixture.two_class(300), n=200)
    assert "spike" in law.summary()
    assert "n=200" in repr(law)
    assert str(law.spikes[0]).startswith(f"{law.spikes[0].value:.6g}")
    again = pickle.loads(pickle.dumps(law))
    assert again.support == law.support
    assert law.density(0.3).shape == ()
    assert law.density(np.zeros((2, 3))).shape == (2, 3)
    with pytest.raises(AttributeError):
        law.n = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "n", "message"),
    [
        (one_class(np.ones(5)), None, "give n"),
        (one_class(np.ones(5)), 0, "n must be a whole number"),
        (one_class(np.ones(5)), 2.5, "n must be a whole number"),
        (np.ones(5), 3, "GaussianMixture"),
        (nsd.GaussianMixture(np.zeros((2, 5)), [1.0, 0.0]), 4, "zero covariance"),
        (nsd.GaussianMixture(np.zeros((3, 5)), [1.0, 1.0, 1.0]), 2, "every class needs a point"),
    ],
)
def test_errors_say_what_to_do(data: object, n: object, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        nsd.spectral_law(RELU, data, n=n)  # type: ignore[arg-type]


def test_bad_queries() -> None:
    law = nsd.spectral_law(LINEAR, one_class(np.ones(10)), n=5)
    with pytest.raises(InvalidInputError, match="NaN"):
        law.cdf([0.1, float("nan")])


@pytest.mark.filterwarnings("ignore::notsodeep.errors.ConcentrationWarning")
@pytest.mark.parametrize("kernel", ["ck", "ntk"])
@pytest.mark.parametrize("phi", ["relu", "tanh"])
def test_rows_that_are_all_equal_have_one_eigenvalue(phi, kernel):
    """Noise at the level of rounding, thirty orders of magnitude below the only eigenvalue."""
    X = np.tile(np.random.default_rng(1).standard_normal((1, 50)) / 50**0.5, (60, 1))
    law = nsd.spectral_law(nsd.DEQ(phi, 0.2), nsd.MixtureStatistics.estimate(X), kernel=kernel)
    exact = np.linalg.eigvalsh(nsd.kernels_of(law.network, X, kernels=(kernel,))[kernel])[-1]
    assert law.spikes[-1].value == pytest.approx(exact, rel=tolerance())


@pytest.mark.filterwarnings("ignore::notsodeep.errors.ConcentrationWarning")
@pytest.mark.parametrize("seed", range(3))
def test_classes_of_four_points_each_in_few_dimensions(seed):
    """Many covariances, all of them dense, and eigenvalues beside the shifted zero."""
    X = np.random.default_rng(seed).standard_normal((60, 20)) / 20**0.5
    law = nsd.spectral_law(nsd.DEQ("relu", 0.2), nsd.MixtureStatistics.estimate(X, np.arange(60) % 15))
    assert law.spikes
    for spike in law.spikes:
        assert np.isfinite(spike.value)
        assert all(-tolerance() <= a <= 1 + tolerance() for a in spike.alignments)


def test_numbers_of_points_beyond_all_data_are_refused():
    with pytest.raises(InvalidInputError, match="at most"):
        nsd.spectral_law(nsd.DEQ("tanh", 0.2), nsd.GaussianMixture.two_class(20), n=10**30)


@pytest.mark.parametrize("unit", [1e10, 1e-10])
@pytest.mark.parametrize("name", ["linear", "relu"])
def test_isolated_eigenvalues_do_not_depend_on_the_unit_of_the_data(name: str, unit: float) -> None:
    """Of homogeneous networks; blocks of the matrix that decides have units of their own, and cancelled once."""
    shape = np.diag(np.linspace(0.5, 1.5, 80))
    network = nsd.ENN(name)
    laws = [
        nsd.spectral_law(network, nsd.GaussianMixture(4 * math.sqrt(c) * np.eye(2, 80), [c, c * shape]), n=60)
        for c in (1.0, unit)
    ]
    here, there = (law.spikes for law in laws)
    assert len(here) == len(there) >= 2
    for one, other in zip(here, there, strict=True):
        # a crossing beside others is found to the root of rounding, alignments by one step from there
        assert other.value / unit == pytest.approx(one.value, rel=1e-9)
        assert other.alignments == pytest.approx(one.alignments, abs=1e-8)  # the same


@pytest.mark.filterwarnings("ignore::notsodeep.errors.ConcentrationWarning")  # of course: there is one direction
def test_rows_that_are_equal_up_to_rounding_have_a_law():
    """The ridge that products of inputs are held against is zero there."""
    for seed in range(4):
        X = np.tile(0.08 * np.random.default_rng(seed).normal(size=20), (20, 1))
        statistics = nsd.MixtureStatistics.estimate(X, np.zeros(20, dtype=int))
        law = nsd.spectral_law(nsd.DEQ("leaky_relu", 0.17, 0.87), statistics, kernel="ntk")
        assert sum(law.masses) + sum(atom.mass for atom in law.atoms) == pytest.approx(1.0, abs=tolerance())
