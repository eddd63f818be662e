"""Learning curves, predicted or measured."""

from __future__ import annotations

from typing import Literal

import numpy as np
from matplotlib.axes import Axes

from .._arguments import checked
from ..learning import LearningCurve, LearningEstimate
from .spectrum import Display, label_decades

Quantity = Literal["accuracy", "mse"]
AXES = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}


class LearningDisplay(Display):
    """Show accuracy or error along a curve. Build it with :meth:`from_curve`.

    Parameters
    ----------
    curve : LearningCurve or LearningEstimate
        What was predicted for several networks, or measured on real data.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(100, mu=3.0)
    >>> curve = nsd.learning_curve({"DEQ": nsd.DEQ("relu", sigma_a2=0.2)}, mix, [50, 100, 200])
    >>> LearningDisplay.from_curve(curve).plot().ax_.get_xlabel()
    'training points'
    """

    def __init__(self, curve: LearningCurve | LearningEstimate) -> None:
        self.curve = curve

    @classmethod
    @checked
    def from_curve(cls, curve: LearningCurve | LearningEstimate) -> LearningDisplay:
        """Build the display from predicted curves, or from one that was measured on real data."""
        return cls(curve)

    @checked
    def plot(self, ax: Axes | None = None, *, quantity: Quantity = "accuracy") -> LearningDisplay:
        """Draw predicted lines, or measured points with error bars and the interval beyond them."""
        ax = self._axes(ax, 5.6, 3.9)
        label, factor = ("accuracy (%)", 100.0) if quantity == "accuracy" else ("mean squared error", 1.0)
        if isinstance(self.curve, LearningEstimate):
            self._estimated(ax, self.curve, quantity, factor)
        else:
            for name, row in zip(self.curve.names, getattr(self.curve, quantity), strict=True):
                ax.plot(self.curve.points, factor * row, label=name)
        axis = "n" if isinstance(self.curve, LearningEstimate) else self.curve.axis
        ax.set(xscale="log", xlabel=AXES[axis], ylabel=label)
        label_decades(ax.xaxis, *ax.get_xlim())
        ax.legend(frameon=False, fontsize="small")
        return self

    def _estimated(self, ax: Axes, estimate: LearningEstimate, quantity: Quantity, factor: float) -> None:
        values, errors = getattr(estimate, quantity), getattr(estimate, f"{quantity}_error")
        points = ax.errorbar(estimate.sizes, factor * values, yerr=factor * errors, fmt="o", label="leave-one-out")
        if quantity == "accuracy":
            beyond = np.geomspace(estimate.sizes[0], 4 * estimate.sizes[-1], 60)
            best, low, high = estimate.predict(beyond)
            colour = points.lines[0].get_color()
            ax.plot(beyond, factor * best, color=colour, linewidth=1)
            ax.fill_between(beyond, factor * low, factor * high, color=colour, alpha=0.15, label="interval")
