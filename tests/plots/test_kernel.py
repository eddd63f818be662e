"""KernelDisplay: what is drawn is what was given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

import notsodeep as nsd
from notsodeep.errors import InvalidInputError


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def data():
    mix = nsd.GaussianMixture.two_class(40)
    X, y = mix.sample(30, seed=0)
    return nsd.MixtureStatistics.from_mixture(mix, X, y), y


def test_points_are_ordered_by_class():
    rng = np.random.default_rng(0)
    y = np.array(["b", "a", "c", "a", "b", "a"])
    kernel = rng.standard_normal((6, 6))
    kernel = kernel + kernel.T
    display = nsd.plots.KernelDisplay.from_kernel(kernel, y, title="mine").plot()
    assert display.labels.tolist() == ["a", "a", "a", "b", "b", "c"]
    np.testing.assert_array_equal(display.ax_.images[0].get_array(), kernel[np.ix_(display.order, display.order)])
    assert [t.get_text() for t in display.ax_.get_xticklabels()] == ["a", "b", "c"]
    np.testing.assert_allclose(display.ax_.get_xticks(), [1.0, 3.5, 5.0])
    assert len(display.ax_.lines) == 4  # two boundaries, in both directions
    assert display.ax_.get_title() == "mine"
    assert display.figure_ is display.ax_.get_figure()


def test_equivalents_and_tensors_are_drawn():
    st, y = data()
    eq = nsd.equivalent(nsd.DEQ("relu", 0.2), st)
    _, ax = plt.subplots()
    shown = nsd.plots.KernelDisplay.from_kernel(eq, y).plot(ax, colorbar=False)
    assert shown.ax_ is ax
    np.testing.assert_allclose(shown.kernel, eq.matrix())
    torch_shown = nsd.plots.KernelDisplay.from_kernel(torch.as_tensor(eq.matrix()), torch.as_tensor(y))
    np.testing.assert_allclose(torch_shown.kernel, shown.kernel)


def test_the_diagonal_does_not_set_the_colours():
    kernel = np.full((50, 50), 0.1) + 0.01 * np.random.default_rng(0).standard_normal((50, 50)) + 100.0 * np.eye(50)
    display = nsd.plots.KernelDisplay.from_kernel(kernel).plot()
    low, high = display.ax_.images[0].get_clim()
    assert 0.0 < low < 0.1 < high < 0.2
    assert nsd.plots.KernelDisplay.from_kernel(kernel).plot(limits=(0.0, 1.0)).ax_.images[0].get_clim() == (0.0, 1.0)
    signed = nsd.plots.KernelDisplay.from_kernel(np.array([[9.0, -1.0], [-1.0, 9.0]]))
    assert signed.limits[0] < -1.0 < signed.limits[1]
    mixed = np.zeros((20, 20))
    mixed[0, 1:5], mixed[1:5, 0] = -3.0, 2.0
    assert nsd.plots.KernelDisplay.from_kernel(mixed).limits[0] == -nsd.plots.KernelDisplay.from_kernel(mixed).limits[1]


@pytest.mark.parametrize(
    ("kernel", "y", "message"),
    [
        (np.ones((2, 3)), None, "square"),
        (np.full((2, 2), np.nan), None, "finite"),
        (np.eye(3), [0, 1], r"shape \(3,\)"),
    ],
)
def test_invalid_kernels_say_why(kernel, y, message):
    with pytest.raises(InvalidInputError, match=message):
        nsd.plots.KernelDisplay.from_kernel(kernel, y)
