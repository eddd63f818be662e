"""TwinDisplay shows what it says."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInputError
from notsodeep.plots import TwinDisplay


@pytest.fixture(autouse=True)
def _closed():
    yield
    plt.close("all")


def test_activations_and_spectra() -> None:
    X = np.random.default_rng(0).standard_normal((30, 40)) / np.sqrt(40)
    twin = nsd.match(nsd.DEQ("silu", 0.2), 1.0)
    display = TwinDisplay.from_twin(twin, X).plot()
    assert len(display.axes_) == 2
    curves = display.axes_[0].get_legend_handles_labels()[1]
    assert curves == [r"DEQ: $\varphi$", r"twin: $\sigma_1$", r"twin: $\sigma_2$"]
    assert display.axes_[1].get_legend().get_texts()[-1].get_text() == "twin"
    assert display.spectra[0] == pytest.approx(np.linalg.eigvalsh(nsd.ck(twin.deq, X)))
    assert display.spectra[1] == pytest.approx(display.spectra[0], abs=1e-2)  # the twin's own distance


def test_a_twin_without_points() -> None:
    assert len(TwinDisplay.from_twin(nsd.match_sphere(nsd.DEQ("tanh", 0.2))).plot().axes_) == 1


def test_own_axes_and_refusals() -> None:
    twin = nsd.match(nsd.DEQ("tanh", 0.2), 1.0)
    _, axes = plt.subplots(1, 2)
    assert TwinDisplay.from_twin(twin).plot(axes[0]).figure_ is axes[0].get_figure()
    with pytest.raises(InvalidInputError, match="ax must be 1 matplotlib Axes"):
        TwinDisplay.from_twin(twin).plot(axes)
    with pytest.raises(InvalidInputError, match="twin must be a notsodeep"):
        TwinDisplay.from_twin("twin")
    with pytest.raises(InvalidInputError, match="two dimensions"):
        TwinDisplay.from_twin(twin, np.zeros(3))


def test_spectra_are_those_of_the_kernel_that_the_twin_matches() -> None:
    """A layer whose readout stands for the training of the whole DEQ: its units jump, and have no tangent kernel."""
    X = np.random.default_rng(0).standard_normal((30, 20)) / np.sqrt(20)
    twin = nsd.match_one_layer(nsd.DEQ("relu", 0.2), "ntk", trains="readout")
    deq, own = TwinDisplay.from_twin(twin, X).spectra
    assert deq == pytest.approx(np.linalg.eigvalsh(nsd.ntk(twin.deq, X)))
    assert np.abs(deq - own).max() <= 1.01 * twin.bound * deq.max() * len(X)
