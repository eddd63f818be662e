"""What all displays share: the class they inherit, and the check of a kernel matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .._arrays import as_numbers
from ..equivalents import EquivalentKernel
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
        axes = [axes] if isinstance(axes, Axes) else list(axes)
        if len(axes) != count:
            raise InvalidInputError(f"this display has {count} panels, got {len(axes)} axes")
        self.ax_, self.axes_, self.figure_ = axes[0], tuple(axes), axes[0].get_figure()
        return axes


def square_matrix(kernel: Any) -> np.ndarray:
    """Return the entries of an array, a tensor or an equivalent; refuse what is no kernel."""
    given = kernel.matrix() if isinstance(kernel, EquivalentKernel) else kernel
    matrix: np.ndarray = as_numbers(given, "a kernel").detach().cpu().numpy()
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InvalidInputError(f"a kernel is a finite square matrix, got shape {matrix.shape}")
    return matrix
