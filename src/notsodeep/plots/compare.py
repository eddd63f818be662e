"""DEQ, twin and plain network side by side, with error bars over the seeds."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import InvalidInputError
from ..nn.compare import Comparison

__all__ = ["ComparisonDisplay"]

_PANELS = {
    "accuracy": ("test accuracy (%)", 100.0),
    "agreement": ("agreement with the DEQ (%)", 100.0),
    "inference_seconds": ("one batch (ms)", 1e3),
    "training_seconds": ("training (s)", 1.0),
}
_COLOURS = ("C0", "C1", "0.6")


class ComparisonDisplay:
    """One panel per quantity, means and standard errors over the seeds; build with :meth:`from_comparison`."""

    def __init__(self, comparison: Comparison, quantities: Sequence[str] = tuple(_PANELS)) -> None:
        unknown = [q for q in quantities if q not in _PANELS]
        if unknown or not quantities:
            raise InvalidInputError(f"quantities must be among {list(_PANELS)}, got {list(quantities)}")
        self.comparison, self.quantities = comparison, tuple(quantities)
        self.axes_: tuple[Axes, ...] = ()
        self.figure_: Figure | None = None

    @classmethod
    def from_comparison(cls, comparison: Comparison, quantities: Sequence[str] = tuple(_PANELS)) -> ComparisonDisplay:
        """From what ``notsodeep.compare`` returns."""
        return cls(comparison, quantities)

    def plot(self, axes: Sequence[Axes] | None = None) -> ComparisonDisplay:
        """Draw into the given axes, one per quantity, or into a new figure."""
        if axes is None:
            size = (2.4 * len(self.quantities), 3.0)
            _, grid = plt.subplots(1, len(self.quantities), figsize=size, layout="constrained", squeeze=False)
            axes = list(grid[0])
        if len(axes) != len(self.quantities):
            raise InvalidInputError(f"{len(self.quantities)} quantities need as many axes, got {len(axes)}")
        for ax, quantity in zip(axes, self.quantities, strict=True):
            self._panel(ax, quantity)
        self.axes_, self.figure_ = tuple(axes), axes[0].get_figure()  # type: ignore[assignment]
        return self

    def _panel(self, ax: Axes, quantity: str) -> None:
        models = self.comparison.models
        title, factor = _PANELS[quantity]
        means, errors = np.array([self.comparison.summary(m, quantity) for m in models]).T * factor
        colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(models))]
        if factor == 100.0:  # percentages differ by points, which bars from zero would hide
            for i, colour in enumerate(colours):
                ax.errorbar([i], means[i : i + 1], yerr=errors[i : i + 1], fmt="o", capsize=4, color=colour)
            ax.set_xticks(range(len(models)), models)
            ax.margins(x=0.25, y=0.2)
        else:
            ax.bar(models, means, yerr=errors, capsize=4, color=colours)
        ax.set_title(title, fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
