"""SpectrumDisplay draws what it was given."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import InvalidInputError
from notsodeep.spectra import SpectralLaw

RELU = nsd.DEQ("relu", sigma_a2=0.2)


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture(scope="module")
def kernel() -> tuple[np.ndarray, SpectralLaw]:
    mix = nsd.GaussianMixture.two_class(200)
    law = nsd.spectral_law(RELU.centred(1.2), mix, n=150)
    return nsd.ck(law.network, mix.sample(150, seed=0)[0]), law


def test_histogram_has_all_bulk_eigenvalues_and_the_curve_is_the_law(kernel: tuple) -> None:
    K, law = kernel
    display = nsd.plots.SpectrumDisplay.from_kernel(K, law, title="relu").plot(bins=30)
    ax = display.ax_
    assert ax is not None
    bars = [p for p in ax.patches if isinstance(p, mpl.patches.Rectangle)]
    area = sum(b.get_width() * b.get_height() for b in bars)
    assert area == pytest.approx(148 / 150)  # two eigenvalues are isolated
    curve = max(ax.lines, key=lambda line: len(line.get_xdata()))
    np.testing.assert_allclose(curve.get_ydata(), law.density(curve.get_xdata()))
    assert curve.get_xdata()[0] == pytest.approx(law.support[0][0])
    assert ax.get_title() == "relu"
    assert display.figure_ is ax.get_figure()


@pytest.mark.parametrize("bins", [0, -1, 2**63])
def test_impossible_numbers_of_bars_are_refused_before_a_figure_is_made(kernel: tuple, bins: int) -> None:
    with pytest.raises(InvalidInputError, match="bins must be a whole number"):
        nsd.plots.SpectrumDisplay.from_kernel(*kernel).plot(bins=bins)
    with pytest.raises(InvalidInputError, match="beside"):
        nsd.plots.SpectrumDisplay.from_kernel(*kernel).plot(beside={"a": 1})
    assert not plt.get_fignums()


def test_isolated_eigenvalues_are_marked(kernel: tuple) -> None:
    K, law = kernel
    display = nsd.plots.SpectrumDisplay.from_kernel(torch.from_numpy(K), law).plot()
    texts = [t.get_text() for t in display.ax_.texts if t.get_text()]
    assert [f"{s.value:.3g}" for s in law.spikes] == [t for t in texts if t != "//"]
    outliers = next(line for line in display.ax_.lines if line.get_marker() == "o")
    np.testing.assert_allclose(outliers.get_xdata(), np.linalg.eigvalsh(K)[-2:])
    assert display.ax_.get_xlim()[1] > law.spikes[-1].value
    display.figure_.canvas.draw()  # the broken axis must survive drawing


def test_distance_is_that_of_the_law(kernel: tuple) -> None:
    K, law = kernel
    display = nsd.plots.SpectrumDisplay.from_kernel(K, law)
    assert display.distance is not None
    assert 1 / 300 < display.distance < 0.05
    assert nsd.plots.SpectrumDisplay.from_kernel(K).distance is None


def test_without_a_law_the_widest_gap_ends_the_bulk(kernel: tuple) -> None:
    K, _ = kernel
    display = nsd.plots.SpectrumDisplay.from_kernel(K)
    values = np.linalg.eigvalsh(K)
    assert display.bulk == pytest.approx((values[0], values[-3]))
    _, ax = plt.subplots()
    assert display.plot(ax) is display
    assert display.ax_ is ax


def test_an_equivalent_has_a_spectrum_too() -> None:
    mix = nsd.GaussianMixture.two_class(40)
    eq = nsd.equivalent(RELU, nsd.MixtureStatistics.from_mixture(mix, *mix.sample(30, seed=0)))
    np.testing.assert_allclose(nsd.plots.SpectrumDisplay.from_kernel(eq).eigenvalues, np.linalg.eigvalsh(eq.matrix()))


def test_atom_is_drawn() -> None:
    law = nsd.spectral_law(nsd.DEQ("tanh", 0.2), nsd.GaussianMixture(np.zeros((1, 50)), [1.0]), n=100)
    X = np.random.default_rng(0).standard_normal((100, 50)) / np.sqrt(50)
    display = nsd.plots.SpectrumDisplay.from_kernel(nsd.ck(law.network, X), law).plot()
    assert "mass 0.50" in [t.get_text().strip() for t in display.ax_.texts]


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones((2, 3)), "square"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "finite"),
        (np.array([[1.0, 2.0], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_errors(matrix: np.ndarray, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        nsd.plots.SpectrumDisplay.from_kernel(matrix)


def test_law_of_another_size_is_refused(kernel: tuple) -> None:
    _, law = kernel
    with pytest.raises(InvalidInputError, match="n = 150"):
        nsd.plots.SpectrumDisplay.from_kernel(np.eye(3), law)


def test_the_kernel_of_the_uncentred_network_is_noticed(kernel: tuple) -> None:
    _, law = kernel
    X = nsd.GaussianMixture.two_class(200).sample(150, seed=0)[0]
    with pytest.warns(nsd.errors.NotSoDeepWarning, match=r"speak of different networks"):
        nsd.plots.SpectrumDisplay.from_kernel(nsd.ck(RELU, X), law)


def test_a_bulk_that_would_be_a_line_gets_a_logarithmic_axis() -> None:
    """Rows of low effective rank: half of the eigenvalues lie within a fortieth of the bulk."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 40)) * 0.7 ** np.arange(40)
    display = nsd.plots.SpectrumDisplay.from_kernel(nsd.ck(RELU, X / np.sqrt((X**2).sum(1).mean()))).plot()
    assert display.is_logarithmic
    ax = display.ax_
    assert ax is not None
    assert ax.get_xscale() == "log"
    bars = [p for p in ax.patches if isinstance(p, mpl.patches.Rectangle)]
    areas = [b.get_height() * np.log1p(b.get_width() / b.get_x()) for b in bars]
    beyond = np.sum(display.eigenvalues > bars[-1].get_x() + bars[-1].get_width())
    assert sum(areas) == pytest.approx(1.0 - beyond / 200)
    assert sum(b.get_height() > 0 for b in bars) > 20  # of 60; on a linear axis there were three


def test_an_ordinary_bulk_keeps_its_linear_axis(kernel: tuple) -> None:
    assert not nsd.plots.SpectrumDisplay.from_kernel(*kernel).is_logarithmic
