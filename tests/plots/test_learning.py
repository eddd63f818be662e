"""Displays of learning curves draw what they are given."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInputError

MIX = nsd.GaussianMixture.two_class(60, mu=3.0)
RELU = nsd.DEQ("relu", sigma_a2=0.2)


def test_lines_are_the_predictions() -> None:
    curve = nsd.learning_curve({"relu": RELU}, MIX, 80, ridge=[0.01, 0.1, 1.0])
    display = nsd.plots.LearningDisplay.from_curve(curve).plot()
    assert display.ax_ is not None
    np.testing.assert_allclose(display.ax_.lines[0].get_ydata(), 100 * curve.accuracy[0])
    assert display.ax_.get_xlabel().startswith("ridge")
    plt.close("all")


def test_an_estimate_is_drawn_with_its_interval() -> None:
    X, y = MIX.sample(160, seed=0)
    found = nsd.estimate_learning(RELU, X, y, ridge=0.1)
    display = nsd.plots.LearningDisplay.from_curve(found).plot()
    assert display.ax_ is not None
    assert display.ax_.collections
    assert nsd.plots.LearningDisplay.from_curve(found).plot(quantity="mse").ax_.get_ylabel() == "mean squared error"
    plt.close("all")


def test_refusals() -> None:
    curve = nsd.learning_curve({"relu": RELU}, MIX, [40, 80])
    with pytest.raises(InvalidInputError, match="quantity must be"):
        nsd.plots.LearningDisplay.from_curve(curve).plot(quantity="loss")
