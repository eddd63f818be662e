"""Learning curves: predicted lines, measured points, and the interval of an extrapolation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import InvalidInputError
from ..learning import LearningCurve, LearningEstimate

__all__ = ["LearningDisplay"]

Quantity = Literal["accuracy", "mse"]
_LABELS = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}


class LearningDisplay:
    """Accuracy or error along a curve; build with :meth:`from_curve` or :meth:`from_estimate`.

    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(100, mu=3.0)
    >>> curve = nsd.learning_curve({"DEQ": nsd.DEQ("relu", sigma_a2=0.2)}, mix, [50, 100, 200])
    >>> display = LearningDisplay.from_curve(curve, {"DEQ": ([100], [0.9], [0.02])}).plot()
    >>> display.ax_.get_xlabel()
    'training points'
    """

    def __init__(
        self,
        curve: LearningCurve | None = None,
        measured: Mapping[str, tuple[Any, Any, Any]] | None = None,
        estimate: LearningEstimate | None = None,
        up_to: int | None = None,
    ) -> None:
        unknown = [name for name in measured or {} if curve is None or name not in curve.names]
        if unknown:
            raise InvalidInputError(
                f"measured points of {unknown}, but the curve has {list(curve.names if curve else ())}"
            )
        self.curve, self.measured, self.estimate, self.up_to = curve, dict(measured or {}), estimate, up_to
        self.ax_: Axes | None = None
        self.figure_: Figure | None = None

    @classmethod
    def from_curve(
        cls, curve: LearningCurve, measured: Mapping[str, tuple[Any, Any, Any]] | None = None
    ) -> LearningDisplay:
        """Predicted curves; ``measured`` holds, by name of a network, points, values and their errors."""
        return cls(curve, measured)

    @classmethod
    def from_estimate(cls, estimate: LearningEstimate, up_to: int | None = None) -> LearningDisplay:
        """The measured curve of real data, continued to ``up_to`` points (by default four times as many)."""
        return cls(estimate=estimate, up_to=up_to)

    def plot(self, ax: Axes | None = None, *, quantity: Quantity = "accuracy") -> LearningDisplay:
        """Draw lines, points with error bars, and the interval beyond the data."""
        if quantity not in ("accuracy", "mse"):
            raise InvalidInputError(f"quantity must be 'accuracy' or 'mse', got {quantity!r}")
        if ax is None:
            _, ax = plt.subplots(figsize=(5.6, 3.9), layout="constrained")
        factor = 100.0 if quantity == "accuracy" else 1.0
        if self.curve is not None:
            self._predicted(ax, self.curve, quantity, factor)
        if self.estimate is not None:
            self._estimated(ax, self.estimate, quantity, factor)
        axis = "n" if self.curve is None else self.curve.axis
        ax.set(xscale="log", xlabel=_LABELS[axis])
        ax.set_ylabel("accuracy (%)" if quantity == "accuracy" else "mean squared error")
        ax.legend(frameon=False, fontsize="small")
        self.ax_, self.figure_ = ax, ax.get_figure()  # type: ignore[assignment]
        return self

    def _predicted(self, ax: Axes, curve: LearningCurve, quantity: Quantity, factor: float) -> None:
        for name, row in zip(curve.names, getattr(curve, quantity), strict=True):
            (line,) = ax.plot(curve.points, factor * row, label=name)
            if name in self.measured:
                at, values, errors = (np.asarray(part, dtype=np.float64) for part in self.measured[name])
                ax.errorbar(at, factor * values, yerr=factor * errors, fmt="o", markersize=4, color=line.get_color())

    def _estimated(self, ax: Axes, found: LearningEstimate, quantity: Quantity, factor: float) -> None:
        values, errors = getattr(found, quantity), getattr(found, f"{quantity}_error")
        points = ax.errorbar(found.sizes, factor * values, yerr=factor * errors, fmt="o", label="leave-one-out")
        if quantity == "accuracy":
            beyond = np.geomspace(found.sizes[0], self.up_to or 4 * found.sizes[-1], 60)
            best, low, high = found.predict(beyond)
            colour = points.lines[0].get_color()
            ax.plot(beyond, factor * best, color=colour, linewidth=1)
            ax.fill_between(beyond, factor * low, factor * high, color=colour, alpha=0.15, label="interval")
