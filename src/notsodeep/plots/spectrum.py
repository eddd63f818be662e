"""Eigenvalues of an exact kernel against the predicted law."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullFormatter
from matplotlib.transforms import blended_transform_factory

from .._arguments import checked, positive_int
from .._arrays import as_floats, as_numbers
from ..equivalents import EquivalentKernel
from ..errors import InvalidInputError, warn
from ..spectra import SpectralLaw, Spike

LIGHT, RED, DARK = "#9db9d4", "#b3262e", "#1d3557"


class Display:
    """The base of displays. ``plot`` stores where it drew: ``ax_`` and ``figure_``."""

    ax_: Axes | None = None
    figure_: Figure | SubFigure | None = None

    def _axes(self, ax: Axes | None, width: float, height: float) -> Axes:
        """Return the given axes, or those of a new figure of this size."""
        drawn = plt.subplots(figsize=(width, height), layout="constrained")[1] if ax is None else ax
        self.ax_, self.figure_ = drawn, drawn.get_figure()
        return drawn


def label_decades(axis: Axis, low: float, high: float, unit: float = 1.0) -> None:
    """Label a logarithmic axis by few numbers, in multiples of ``unit``, that do not overlap."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 300.0 * low else (1.0,), numticks=9))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / unit:g}"))
    axis.set_minor_formatter(NullFormatter())


class SpectrumDisplay(Display):
    """Show a histogram of eigenvalues, the predicted density, and isolated eigenvalues.

    Build it with :meth:`from_kernel`; a law alone has its own ``plot``.

    Parameters
    ----------
    eigenvalues : array of shape (n,)
        If it is empty, the law alone is drawn.
    law : SpectralLaw, optional
        The law that is predicted for them.
    title : str

    Examples
    --------
    >>> display = SpectrumDisplay.from_kernel(np.diag([1.0, 2.0, 3.0]))
    >>> display.eigenvalues.tolist()
    [1.0, 2.0, 3.0]
    """

    @checked
    def __init__(self, eigenvalues: np.ndarray, law: SpectralLaw | None = None, title: str = "") -> None:
        self.eigenvalues, self.law, self.title = np.sort(as_floats(eigenvalues, "eigenvalues")), law, title
        if law is None and not len(self.eigenvalues):
            raise InvalidInputError("there is nothing to draw: give eigenvalues, or a law")

    @classmethod
    @checked
    def from_kernel(cls, kernel: Any, law: SpectralLaw | None = None, title: str = "") -> SpectrumDisplay:
        """Build the display from a matrix, (n, n); warn if the law seems to belong to another network."""
        given = kernel.matrix() if isinstance(kernel, EquivalentKernel) else kernel
        matrix: np.ndarray = as_numbers(given, "a kernel").detach().cpu().numpy()
        if matrix.ndim != 2 or not 0 < len(matrix) == matrix.shape[1] or not np.isfinite(matrix).all():
            raise InvalidInputError(f"a kernel is a finite square matrix and not empty, got shape {matrix.shape}")
        if not np.allclose(matrix, matrix.T, rtol=0.0, atol=1e-8 * float(np.abs(matrix).max(initial=0.0))):
            raise InvalidInputError("a kernel matrix must be symmetric")
        if law is not None and law.n != len(matrix):
            raise InvalidInputError(f"the law speaks of n = {law.n} points, the kernel has {len(matrix)}")
        display = cls(np.linalg.eigvalsh(matrix), law, title)
        display._warn_of_another_network()
        return display

    def _warn_of_another_network(self) -> None:
        """Warn if the kernel has the eigenvalue of order n that a mean of the activation adds, and the law lacks it."""
        if self.law is None:
            return
        predicted, largest = max([self.bulk[1], *self._spikes()]), float(self.eigenvalues[-1])
        if largest > 2.0 * predicted:
            warn(
                f"the largest eigenvalue of this kernel is {largest:.4g}, that of the law {predicted:.4g}: they "
                "speak of different networks, or one of them is centred. The law is that of law.network"
            )

    @property
    def distance(self) -> float | None:
        """The Kolmogorov distance between eigenvalues and law; None without one of them."""
        if self.law is None or not len(self.eigenvalues):
            return None
        n = len(self.eigenvalues)
        margin = 1e-12 * float(np.abs(self.eigenvalues).max())
        above = np.abs(self.law.cdf(self.eigenvalues) - np.arange(1, n + 1) / n)
        below = np.abs(self.law.cdf(self.eigenvalues - margin) - np.arange(n) / n)
        return float(max(above.max(), below.max()))

    @property
    def bulk(self) -> tuple[float, float]:
        """The ends of the bulk: predicted if there is a law, else all but the eigenvalues after the widest gap."""
        if self.law is not None and (self.law.support or self.law.atoms):
            ends = [v for interval in self.law.support for v in interval] + [a.value for a in self.law.atoms]
            return min(ends), max(ends)
        values = self.eigenvalues
        last = len(values) - 1 - min(20, len(values) // 4)
        wide = np.flatnonzero(np.diff(values[last:]) > 0.25 * max(values[last] - values[0], 1e-300))
        return float(values[0]), float(values[last + int(wide[0]) if len(wide) else -1])

    @property
    def is_logarithmic(self) -> bool:
        """Whether the axis is logarithmic: half of the eigenvalues would share a twentieth of a linear one."""
        if not len(self.eigenvalues):
            return False
        floor, middle = self._floor, float(np.median(self.eigenvalues))
        return bool(self.eigenvalues[0] > -floor and 100.0 * floor < self.bulk[1] and 20.0 * middle < self.bulk[1])

    @property
    def _floor(self) -> float:
        """Eigenvalues below this are zero up to rounding; a logarithmic axis shows them at its left end."""
        return 1e-10 * float(self.eigenvalues[-1])

    @checked
    def plot(
        self, ax: Axes | None = None, *, bins: int = 60, beside: Mapping[str, Any] | None = None
    ) -> SpectrumDisplay:
        """Draw the spectrum, and ``beside`` it others by name; far eigenvalues are shown beyond a break of the axis."""
        edges = self._edges(positive_int("bins", bins, most=10_000))
        others = {name: np.asarray(as_floats(v, f"beside[{name!r}]")) for name, v in (beside or {}).items()}
        ax = self._axes(ax, 6.4, 3.8)
        self._draw_bulk(ax, edges)
        far = [v for v in [*self.eigenvalues, *self._spikes()] if v > edges[-1]]
        if self.is_logarithmic:
            ax.set_xscale("log")
            ax.set_xlim(edges[0], 1.5 * max(far, default=edges[-1]))
        else:
            pad = 0.05 * (edges[-1] - edges[0])
            right = max(far) + 0.16 * (max(far) - edges[-1]) + pad if far else edges[-1]
            _break_axis(ax, float(edges[0]), float(edges[-1]), float(right))
        self._draw_isolated(ax, float(edges[-1]))
        for shade, (name, values) in enumerate(others.items()):
            ax.stairs(self._heights(values, edges), edges, color=f"{0.1 + 0.4 * (shade % 2)}", label=name)
        self._finish(ax)
        return self

    def _edges(self, bins: int) -> np.ndarray:
        low, high = self.bulk
        if self.is_logarithmic:
            start = max(min(low, float(self.eigenvalues[0])), self._floor)
            return np.geomspace(0.9 * start, 1.1 * high, bins + 1)
        pad = 0.05 * (high - low) or 0.05 * max(abs(low), 1.0)
        return np.linspace(min([low, *self.eigenvalues[:1]]) - pad, high + pad, bins + 1)

    def _heights(self, values: np.ndarray, edges: np.ndarray) -> np.ndarray:
        """Return the density of a histogram; on a logarithmic axis it is that of log x."""
        counts = np.histogram(np.maximum(values, edges[0]), edges)[0]
        return counts / (max(len(values), 1) * np.diff(np.log(edges) if self.is_logarithmic else edges))

    def _spikes(self) -> list[float]:
        return [] if self.law is None else [s.value for s in self.law.spikes]

    def _clear_spikes(self) -> list[Spike]:
        """Return the spikes that a histogram can tell from the bulk: at a distance of one percent of its width."""
        if self.law is None:
            return []
        low, high = self.bulk
        pieces = [*self.law.support, *((a.value, a.value) for a in self.law.atoms)]
        near = 0.01 * (high - low)
        return [s for s in self.law.spikes if all(s.value < a - near or s.value > b + near for a, b in pieces)]

    def _draw_bulk(self, ax: Axes, edges: np.ndarray) -> None:
        heights = self._heights(self.eigenvalues, edges)
        ax.bar(edges[:-1], heights, np.diff(edges), align="edge", color=LIGHT, edgecolor="white", linewidth=0.4)
        curves = [self._curve(*interval) for interval in (self.law.support if self.law else ())]
        tops = [float(np.quantile(density, 0.95)) for _, density in curves]
        top = float(heights.max()) or max(tops, default=1.0)
        ax.set_ylim(0.0, 1.1 * top)
        if self.law is None:
            return
        for x, density in curves:
            ax.plot(x, density, color=RED, linewidth=1.6, solid_capstyle="round")
            # a peak much narrower than a bar may leave the picture
            ax.set_ylim(top=max(ax.get_ylim()[1], 1.05 * min(float(density.max()), 2.0 * top)))
        for atom in self.law.atoms:
            ax.vlines(atom.value, 0.0, 1.1 * top, color=RED, linewidth=2.0)
            ax.text(atom.value, top, f" mass {atom.mass:.2f}", color=RED, fontsize="small")

    def _curve(self, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
        """Return the density of the law in an interval of its support, as the axis shows it."""
        assert self.law is not None
        x = low + (high - low) * np.sin(np.linspace(0.0, 0.5 * np.pi, 600)) ** 2
        return x, self.law.density(x) * (x if self.is_logarithmic else 1.0)

    def _draw_isolated(self, ax: Axes, end: float) -> None:
        """Draw exact outliers as dots on the axis, predicted ones as arrows with staggered labels."""
        across = blended_transform_factory(ax.transData, ax.transAxes)
        outliers = self.eigenvalues[self.eigenvalues > end]
        look: Any = {"color": LIGHT, "markeredgecolor": DARK, "markersize": 6, "transform": across}
        ax.plot(outliers, np.full(len(outliers), 0.018), "o", **look)
        arrow = {"arrowstyle": "-|>", "color": DARK, "linewidth": 1.1}
        for level, spike in enumerate(self._clear_spikes()):
            times = f" (x{spike.multiplicity})" if spike.multiplicity > 1 else ""
            ax.annotate(
                f"{spike.value:.3g}{times}",
                (spike.value, 0.05),
                xytext=(0, 42 + 17 * (level % 3)),
                xycoords=across,
                textcoords="offset points",
                ha="center",
                fontsize="small",
                color=DARK,
                arrowprops=arrow,
            )

    def _finish(self, ax: Axes) -> None:
        drawn, steps = ax.get_legend_handles_labels()
        n = len(self.eigenvalues)
        handles: list[Any] = [*([plt.Rectangle((0, 0), 1, 1, color=LIGHT)] if n else []), *drawn]
        names = [*([f"exact kernel, n = {n}"] if n else []), *steps]
        if self.law is not None:
            handles.append(plt.Line2D([], [], color=RED, linewidth=1.6))
            names.append(f"predicted law (distance {self.distance:.3f})" if n else "predicted law")
            if self._clear_spikes():
                handles.append(plt.Line2D([], [], color=DARK, marker="v", linestyle="none", markersize=5))
                names.append("predicted isolated eigenvalues")
        ax.legend(handles, names, frameon=False, fontsize="small", loc="upper right")
        ax.set_xlabel("eigenvalue")
        ax.set_ylabel("density of the logarithm" if self.is_logarithmic else "density")
        ax.set_title(self.title, fontsize="medium")
        ax.spines[["top", "right"]].set_visible(False)


def _break_axis(ax: Axes, left: float, end: float, right: float) -> None:
    """Keep the axis linear up to ``end``; compress what lies between it and ``right`` into the last quarter."""
    if right <= end + 0.3 * (end - left):
        ax.set_xlim(left, right)
        return
    shrink = 0.37 * (end - left) / (right - end)
    forward: Callable[[Any], Any] = lambda x: np.where(np.asarray(x) > end, end + shrink * (np.asarray(x) - end), x)  # noqa: E731
    inverse: Callable[[Any], Any] = lambda x: np.where(np.asarray(x) > end, end + (np.asarray(x) - end) / shrink, x)  # noqa: E731
    ax.set_xscale("function", functions=(forward, inverse))
    ax.set_xlim(left, right)
    near = [t for t in MaxNLocator(6).tick_values(left, end) if left <= t <= end]
    far = [t for t in MaxNLocator(3).tick_values(end, right) if end + 0.12 * (right - end) <= t <= right]
    ax.xaxis.set_major_locator(FixedLocator([*near, *far]))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    across = blended_transform_factory(ax.transData, ax.transAxes)
    ax.axvline(end, ymax=0.7, color="0.75", linewidth=0.8, linestyle=(0, (2, 3)))
    ax.text(end, 0.0, "//", transform=across, ha="center", va="center", fontsize=10, color="0.3", zorder=5)
