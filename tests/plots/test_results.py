"""Results draw themselves: what the axes show is what the result holds."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pytest

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import InvalidInputError

MIX = nsd.GaussianMixture.two_class(60, mu=3.0)
RELU, TANH = (nsd.DEQ(name, sigma_a2=0.2) for name in ("relu", "tanh"))


@pytest.fixture(autouse=True)
def _close_figures() -> Iterator[None]:
    yield
    plt.close("all")


def test_a_twin_lies_on_its_deq_and_the_error_below_the_bound() -> None:
    for twin, norm in ((nsd.match_one_layer(RELU), 1.0), (nsd.match_sphere(TANH, terms=5), 1.0)):
        display = twin.plot()
        rows = norm * np.eye(2)
        exact = nsd.ck(twin.deq, rows)
        at_right_angle = display.deq[display.degrees == 90.0]
        np.testing.assert_allclose(at_right_angle, exact[0, 1] / exact[0, 0], rtol=tolerance(), atol=tolerance())
        assert display.error <= display.bound
        (corner,) = display.ax_.child_axes
        np.testing.assert_allclose(corner.lines[0].get_ydata().max(), display.error)
        assert corner.lines[2].get_ydata()[0] == display.bound


def test_the_norm_of_the_inputs_counts_where_a_deq_is_not_homogeneous() -> None:
    twin = nsd.match_one_layer(TANH, norms=(0.5, 2.0), tol=1e-2)
    near, far = (nsd.plots.TwinDisplay.from_twin(twin, norm) for norm in (0.5, 2.0))
    assert np.abs(near.deq - far.deq).max() > 1e-2  # the curves are different ones
    assert max(near.error, far.error) <= twin.bound
    with pytest.raises(InvalidInputError, match="norm must be a positive finite number"):
        nsd.plots.TwinDisplay.from_twin(twin, 0.0)


def test_a_law_by_itself() -> None:
    law = nsd.spectral_law(TANH, MIX, n=50)
    display = law.plot()
    curve = max(display.ax_.lines, key=lambda line: len(line.get_xdata()))
    np.testing.assert_allclose(curve.get_ydata(), law.density(curve.get_xdata()))
    assert display.distance is None
    assert "predicted law" in [text.get_text() for text in display.ax_.get_legend().get_texts()]


def test_curves_and_their_tables() -> None:
    curve = nsd.learning_curve(RELU, MIX, [40, 80, 160])
    ax = curve.plot(quantity="mse").ax_
    np.testing.assert_allclose(ax.lines[0].get_ydata(), curve.mse[0])
    ax.get_figure().canvas.draw()
    shown = [label.get_window_extent() for label in ax.get_xticklabels(which="both") if label.get_text()]
    assert len(shown) >= 2
    assert all(a.x1 < b.x0 for a, b in itertools.pairwise(shown))  # no label lies on another
    assert str(curve).splitlines()[1].split() == ["n", "relu", "DEQ"]
    assert curve._repr_html_().count("<tr>") == 4
    named = nsd.learning_curve({"a name of more than twenty-four characters": RELU, "b": TANH}, MIX, [40, 80])
    assert len({len(line) for line in str(named).splitlines()[1:]}) == 1


def test_an_estimate_has_a_table_too() -> None:
    found = nsd.estimate_learning(RELU, *MIX.sample(160, seed=0), ridge=0.1)
    assert found._repr_html_().count("<tr>") == 1 + len(found.sizes)
    assert found.plot().ax_.get_xlabel() == "training points"


def test_a_certificate_without_a_curve_shows_its_promise() -> None:
    known = nsd.nn.Certificate(0.01, 0.95, 0.9, 600, 150, 500, 1, 0.03, [("margin", 2.5, 0.9)], "bets")
    ax = nsd.plots.ReplacementDisplay(known).plot().ax_
    assert ax.lines[1].get_xydata().tolist() == [[1.0, 90.0]]
    wrong = (([(2.0, 0.1)], "pairs of shares"), ([(0.1,)], "pairs of shares"), ([1], "a sequence of numbers"))
    for curve, words in wrong:
        with pytest.raises(InvalidInputError, match=words):
            dataclasses.replace(known, curve=curve)
