"""What all displays share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ..errors import InvalidInputError


class Display:
    """The base of displays. ``plot`` stores where it drew: ``ax_``, or ``axes_`` of several panels, and ``figure_``."""

    ax_: Axes | None = None
    axes_: Sequence[Axes] = ()
    figure_: Figure | None = None

    def _panels(self, axes: Any, count: int, width: float, height: float) -> Sequence[Axes]:
        """Return the given axes, or as many panels of this size in a new figure."""
        if axes is None:
            size = (width * count, height)
            axes = list(plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)[1][0])
        axes = [axes] if isinstance(axes, Axes) else list(axes) if isinstance(axes, Iterable) else []
        if len(axes) != count or not all(isinstance(ax, Axes) for ax in axes):
            raise InvalidInputError(f"ax must be {count} matplotlib Axes, one for each panel")
        self.ax_, self.axes_, self.figure_ = axes[0], tuple(axes), axes[0].get_figure()
        return axes
