"""Display objects of one drawing: built with ``from_...``, drawn with ``.plot(ax=None)``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FormatStrFormatter, LogLocator

from .._arguments import checked, shown
from .._arrays import as_labels, as_numbers
from ..equivalents import EquivalentKernel
from ..equivalents.distance import ErrorCurve
from ..errors import InvalidInputError
from ..learning import LearningCurve, LearningEstimate
from .style import QUANTITIES, SCHEDULES, ticks_at


class Display:
    """Where it was drawn last, by ``plot``: ``ax_`` (``axes_`` of several panels) and ``figure_``."""

    ax_: Axes | None = None
    axes_: Sequence[Axes] = ()
    figure_: Figure | None = None

    def _drawn_on(self, ax: Axes | None, width: float, height: float) -> Axes:
        """The given axes, or those of a new figure of this size."""
        found: Axes = plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax
        self.ax_, self.figure_ = found, found.get_figure()  # type: ignore[assignment]
        return found

    def _drawn_on_several(self, axes: Sequence[Axes] | None, count: int, width: float, height: float) -> Sequence[Axes]:
        """The given axes, or as many panels of this size beside each other."""
        if axes is None:
            size = (width * count, height)
            axes = list(plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)[1][0])
        if len(axes) != count:
            raise InvalidInputError(f"this display has {count} panels, got {len(axes)} axes")
        self.axes_, self.figure_ = tuple(axes), axes[0].get_figure()  # type: ignore[assignment]
        return axes


# ---- errors against the number of points -----------------------------------------------------------------------

_INSIDE = 4  # more curves than this have their legend beside the axes


class ErrorDisplay(Display):
    """Log-log curves with their fitted slopes; build with :meth:`from_curves` or :meth:`from_errors`.

    >>> display = ErrorDisplay.from_errors([100, 400, 1600], [0.2, 0.1, 0.05], label="ck").plot()
    >>> round(display.curves[0].slope, 6)
    -0.5
    """

    def __init__(self, curves: Sequence[ErrorCurve]) -> None:
        if not isinstance(curves, Sequence) or not curves or not all(isinstance(one, ErrorCurve) for one in curves):
            raise InvalidInputError("ErrorDisplay needs at least one ErrorCurve, and nothing else")
        self.curves = tuple(curves)

    @classmethod
    def from_curves(cls, curves: Mapping[str, ErrorCurve] | Iterable[ErrorCurve]) -> ErrorDisplay:
        """From what ``experiments.equivalents_error.error_against_n`` returns, or any of its curves."""
        given = curves.values() if isinstance(curves, Mapping) else curves
        return cls(list(given) if isinstance(given, Iterable) and getattr(given, "ndim", None) != 0 else [])

    @classmethod
    @checked
    def from_errors(cls, n: Sequence[int], errors: Any, label: str = "error") -> ErrorDisplay:
        """From sizes and errors: one per size, or one row per size and one column per seed."""
        table = as_numbers(errors, "errors").detach().cpu().numpy().astype(np.float64)
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or len(table) != len(n) or len(n) < 2 or not (np.isfinite(table).all() and table.min() > 0):
            raise InvalidInputError(
                "errors must be positive, one row for each of at least 2 sizes, "
                f"got {len(n)} sizes and errors of shape {table.shape}"
            )
        if min(n) < 1 or len(set(n)) < 2:
            raise InvalidInputError(f"sizes must be positive, and not all the same, got {shown(n)}")
        return cls([ErrorCurve(label, tuple(n), tuple(tuple(row) for row in table.tolist()))])

    @checked
    def plot(self, ax: Axes | None = None, *, reference: bool = True) -> ErrorDisplay:
        """Draw the mean over seeds (range as a band), the fitted line, and n^(-1/2) as a dotted guide."""
        ax = self._drawn_on(ax, 8.4 if len(self.curves) > _INSIDE else 5.2, 3.9)
        for curve in self.curves:
            _draw_curve(ax, curve)
        if reference:
            n = np.array(sorted({size for curve in self.curves for size in curve.n}), dtype=float)
            start = 0.75 * min(curve.mean[0] for curve in self.curves)
            ax.plot(n, start * (n / n[0]) ** -0.5, ":", color="0.4", label=r"$n^{-1/2}$")
        _label_axes(ax, self.curves)
        return self


def _draw_curve(ax: Axes, curve: ErrorCurve) -> None:
    n, mean = np.array(curve.n, dtype=float), np.array(curve.mean)
    (points,) = ax.plot(n, mean, "o", markersize=4, label=f"{curve.label}: slope {curve.slope:.2f}")
    middle = float(np.exp(np.log(mean).mean()))
    ax.plot(n, middle * (n / np.exp(np.log(n).mean())) ** curve.slope, "-", color=points.get_color(), linewidth=1)
    ax.fill_between(
        n, [min(row) for row in curve.errors], [max(row) for row in curve.errors], color=points.get_color(), alpha=0.15
    )


def _label_axes(ax: Axes, curves: Sequence[ErrorCurve]) -> None:
    ax.set(xscale="log", yscale="log", xlabel="n", ylabel="relative spectral error")
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))  # errors often span less than a decade
    ax.yaxis.set_major_formatter(FormatStrFormatter("%g"))
    ticks_at(ax, sorted({size for curve in curves for size in curve.n}))
    if len(curves) > _INSIDE:
        ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    else:
        ax.legend(frameon=False, fontsize="small")


# ---- a kernel as an image, points ordered by class -------------------------------------------------------------


class KernelDisplay(Display):
    """Image of a kernel; build with :meth:`from_kernel`, draw with :meth:`plot`.

    >>> display = KernelDisplay.from_kernel(np.eye(3), y=[1, 0, 1]).plot()
    >>> display.order.tolist()
    [1, 0, 2]
    """

    def __init__(self, kernel: np.ndarray, order: np.ndarray, labels: np.ndarray | None, title: str = "") -> None:
        self.kernel, self.order, self.labels, self.title = kernel, order, labels, title

    @classmethod
    @checked
    def from_kernel(cls, kernel: Any, y: Any = None, title: str = "") -> KernelDisplay:
        """From an array, a tensor or an equivalent; rows and columns are sorted by ``y`` if it is given."""
        matrix = square_matrix(kernel)
        if y is None:
            return cls(matrix, np.arange(len(matrix)), None, title)
        labels = as_labels(y, len(matrix))
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

    @checked
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
        ax = self._drawn_on(ax, 5.2, 4.4)
        low, high = self.limits if limits is None else limits
        if cmap is not None and cmap not in colormaps:
            raise InvalidInputError(f"cmap must be a name that matplotlib knows, got {cmap!r}")
        signed = low < 0 < high
        image = ax.imshow(
            self.kernel, vmin=low, vmax=high, cmap=cmap or ("RdBu_r" if signed else "viridis"), interpolation="nearest"
        )
        if self.labels is not None:
            _mark_classes(ax, self.labels)
        ax.set_title(self.title)
        if colorbar and self.figure_ is not None:
            self.figure_.colorbar(image, ax=ax, shrink=0.9, extend="both")
        return self


def square_matrix(kernel: Any) -> np.ndarray:
    """The entries of an array, a tensor or an equivalent; what is no kernel is refused."""
    given = kernel.matrix() if isinstance(kernel, EquivalentKernel) else kernel
    matrix: np.ndarray = as_numbers(given, "a kernel").detach().cpu().numpy()
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


# ---- learning curves: predicted lines, measured points, the interval of an extrapolation -----------------------

Quantity = Literal["accuracy", "mse"]


class LearningDisplay(Display):
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

    @classmethod
    @checked
    def from_curve(
        cls, curve: LearningCurve, measured: Mapping[str, tuple[Any, Any, Any]] | None = None
    ) -> LearningDisplay:
        """Predicted curves; ``measured`` holds, by name of a network, points, values and their errors."""
        return cls(curve, measured)

    @classmethod
    @checked
    def from_estimate(cls, estimate: LearningEstimate, up_to: int | None = None) -> LearningDisplay:
        """The measured curve of real data, continued to ``up_to`` points (by default four times as many)."""
        return cls(estimate=estimate, up_to=up_to)

    @checked
    def plot(self, ax: Axes | None = None, *, quantity: Quantity = "accuracy") -> LearningDisplay:
        """Draw lines, points with error bars, and the interval beyond the data."""
        ax = self._drawn_on(ax, 5.6, 3.9)
        label, factor = QUANTITIES[quantity]
        if self.curve is not None:
            self._predicted(ax, self.curve, quantity, factor)
        if self.estimate is not None:
            self._estimated(ax, self.estimate, quantity, factor)
        axis = "n" if self.curve is None else self.curve.axis
        ax.set(xscale="log", xlabel=SCHEDULES[axis], ylabel=label)
        ax.legend(frameon=False, fontsize="small")
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
