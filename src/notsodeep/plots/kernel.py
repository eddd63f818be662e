"""A kernel matrix as an image, points ordered by class."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from ..equivalents import EquivalentKernel
from ..errors import InvalidInputError

__all__ = ["KernelDisplay"]


class KernelDisplay:
    """Image of a kernel; build with :meth:`from_kernel`, draw with :meth:`plot`.

    >>> display = KernelDisplay.from_kernel(np.eye(3), y=[1, 0, 1]).plot()
    >>> display.order.tolist()
    [1, 0, 2]
    """

    def __init__(self, kernel: np.ndarray, order: np.ndarray, labels: np.ndarray | None, title: str = "") -> None:
        self.kernel = kernel
        self.order = order
        self.labels = labels
        self.title = title
        self.ax_: Axes | None = None
        self.figure_: Figure | None = None

    @classmethod
    def from_kernel(cls, kernel: Any, y: Any = None, title: str = "") -> KernelDisplay:
        """From an array, a tensor or an equivalent; rows and columns are sorted by ``y`` if it is given."""
        matrix = _dense(kernel)
        if y is None:
            return cls(matrix, np.arange(len(matrix)), None, title)
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
        if labels.shape != (len(matrix),):
            raise InvalidInputError(f"y must hold {len(matrix)} labels, got shape {labels.shape}")
        order = np.argsort(labels, kind="stable")
        return cls(matrix[np.ix_(order, order)], order, labels[order], title)

    @property
    def limits(self) -> tuple[float, float]:
        """The range of colours: 99 % of the off-diagonal entries, symmetric about zero if both signs occur."""
        off = self.kernel[~np.eye(len(self.kernel), dtype=bool)] if len(self.kernel) > 1 else self.kernel
        low, high = (float(v) for v in np.quantile(off, [0.005, 0.995]))
        if low < 0 < high:
            low, high = -max(-low, high), max(-low, high)
        return (low, high) if high > low else (low - 0.5, high + 0.5)

    def plot(
        self,
        ax: Axes | None = None,
        *,
        limits: tuple[float, float] | None = None,
        cmap: str | None = None,
        colorbar: bool = True,
    ) -> KernelDisplay:
        """Draw; the colours span the off-diagonal entries, so that the diagonal does not hide the structure.

        Give the same ``limits`` to two displays to compare them by eye.
        """
        if ax is None:
            _, ax = plt.subplots(figsize=(5.2, 4.4), layout="constrained")
        low, high = self.limits if limits is None else limits
        signed = low < 0 < high
        image = ax.imshow(
            self.kernel, vmin=low, vmax=high, cmap=cmap or ("RdBu_r" if signed else "viridis"), interpolation="nearest"
        )
        if self.labels is not None:
            _mark_classes(ax, self.labels)
        ax.set_title(self.title)
        figure = ax.get_figure()
        if colorbar and figure is not None:
            figure.colorbar(image, ax=ax, shrink=0.9, extend="both")
        self.ax_, self.figure_ = ax, figure  # type: ignore[assignment]
        return self


def _dense(kernel: Any) -> np.ndarray:
    given = kernel.matrix() if isinstance(kernel, EquivalentKernel) else kernel
    matrix = given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given, dtype=np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise InvalidInputError(f"a kernel is a finite square matrix, got shape {matrix.shape}")
    return matrix


def _mark_classes(ax: Axes, labels: np.ndarray) -> None:
    names, starts = np.unique(labels, return_index=True)
    ends = np.append(starts[1:], len(labels))
    for start in starts[1:]:
        ax.axhline(start - 0.5, color="black", linewidth=0.6)
        ax.axvline(start - 0.5, color="black", linewidth=0.6)
    centres = (starts + ends - 1) / 2.0
    ax.set_xticks(centres, [str(name) for name in names])
    ax.set_yticks(centres, [str(name) for name in names])
    ax.tick_params(length=0)
    ax.set_xlabel("class")
    ax.set_ylabel("class")
