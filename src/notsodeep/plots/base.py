"""What all displays share."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure


class Display:
    """The base of displays. ``plot`` stores where it drew: ``ax_`` and ``figure_``."""

    ax_: Axes | None = None
    figure_: Figure | SubFigure | None = None

    def _own(self, ax: Axes | None, width: float, height: float) -> Axes:
        """Return the given axes, or those of a new figure of this size."""
        drawn = plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax
        self.ax_, self.figure_ = drawn, drawn.get_figure()
        return drawn
