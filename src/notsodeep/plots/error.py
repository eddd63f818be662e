"""Error of an equivalent against the number of points, with its slope."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator, NullLocator

from ..equivalents.distance import ErrorCurve
from ..errors import InvalidInputError

__all__ = ["ErrorDisplay"]

_INSIDE = 4  # more curves than this have their legend beside the axes


class ErrorDisplay:
    """Log-log curves with their fitted slopes; build with :meth:`from_curves` or :meth:`from_errors`.

    >>> display = ErrorDisplay.from_errors([100, 400, 1600], [0.2, 0.1, 0.05], label="ck").plot()
    >>> round(display.curves[0].slope, 6)
    -0.5
    """

    def __init__(self, curves: Sequence[ErrorCurve]) -> None:
        if not curves:
            raise InvalidInputError("ErrorDisplay needs at least one curve")
        self.curves = tuple(curves)
        self.ax_: Axes | None = None
        self.figure_: Figure | None = None

    @classmethod
    def from_curves(cls, curves: Mapping[str, ErrorCurve] | Iterable[ErrorCurve]) -> ErrorDisplay:
        """From what ``experiments.equivalents_error.error_against_n`` returns, or any of its curves."""
        return cls(list(curves.values()) if isinstance(curves, Mapping) else list(curves))

    @classmethod
    def from_errors(cls, n: Sequence[int], errors: Any, label: str = "error") -> ErrorDisplay:
        """From sizes and errors: one per size, or one row per size and one column per seed."""
        table = np.asarray(errors, dtype=np.float64)
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or len(table) != len(n) or len(n) < 2 or not (np.isfinite(table).all() and table.min() > 0):
            raise InvalidInputError(
                "errors must be positive, one row for each of at least 2 sizes, "
                f"got {len(n)} sizes and errors of shape {table.shape}"
            )
        return cls([ErrorCurve(label, tuple(int(v) for v in n), tuple(tuple(row) for row in table.tolist()))])

    def plot(self, ax: Axes | None = None, *, reference: bool = True) -> ErrorDisplay:
        """Draw the mean over seeds (range as a band), the fitted line, and n^(-1/2) as a dotted guide."""
        if ax is None:
            crowded = len(self.curves) > _INSIDE
            _, ax = plt.subplots(figsize=(8.4 if crowded else 5.2, 3.9), layout="constrained")
        for curve in self.curves:
            _draw(ax, curve)
        if reference:
            n = np.array(sorted({size for curve in self.curves for size in curve.n}), dtype=float)
            start = 0.75 * min(curve.mean[0] for curve in self.curves)
            ax.plot(n, start * (n / n[0]) ** -0.5, ":", color="0.4", label=r"$n^{-1/2}$")
        _label_axes(ax, self.curves)
        self.ax_, self.figure_ = ax, ax.get_figure()  # type: ignore[assignment]
        return self


def _draw(ax: Axes, curve: ErrorCurve) -> None:
    n, mean = np.array(curve.n, dtype=float), np.array(curve.mean)
    (points,) = ax.plot(n, mean, "o", markersize=4, label=f"{curve.label}: slope {curve.slope:.2f}")
    middle = float(np.exp(np.log(mean).mean()))
    ax.plot(n, middle * (n / np.exp(np.log(n).mean())) ** curve.slope, "-", color=points.get_color(), linewidth=1)
    ax.fill_between(
        n, [min(row) for row in curve.errors], [max(row) for row in curve.errors], color=points.get_color(), alpha=0.15
    )


def _label_axes(ax: Axes, curves: Sequence[ErrorCurve]) -> None:
    ax.set_xscale("log")
    ax.set_yscale("log")
    sizes = sorted({size for curve in curves for size in curve.n})
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # errors often span less than a decade
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("n")
    ax.set_ylabel("relative spectral error")
    if len(curves) > _INSIDE:
        ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        ax.legend(frameon=False, fontsize="small")
