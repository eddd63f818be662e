"""Displays of results: learning curves, twins, replacements, what training moved, learned features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from .._arguments import checked, positive_int
from .._arrays import Array
from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..learning import LearningCurve, LearningEstimate
from ..matching import Twin
from ..nn import Certificate, LazyReport, Replacement
from .spectrum import LIGHT, RED, Display, label_decades

Quantity = Literal["accuracy", "mse"]
AXES = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}


@dataclass(eq=False, repr=False)
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

    curve: LearningCurve | LearningEstimate

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


@dataclass(eq=False, repr=False)
class TwinDisplay(Display):
    """Show the kernels of a DEQ, its twin and a plain network against the angle. Build it with :meth:`from_twin`.

    Parameters
    ----------
    degrees : array of shape (n,)
        Angles between two inputs of the same norm.
    deq, twin, plain : array of shape (n,)
        The kernels, divided by the diagonal of the DEQ's.
    bound : float, optional
        On the error of the twin, relative to that diagonal.
    title : str
        The name of the DEQ.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> display = TwinDisplay.from_twin(nsd.match_one_layer(nsd.DEQ("relu", sigma_a2=0.2)))
    >>> bool((abs(display.twin - display.deq) <= display.bound).all())
    True
    """

    degrees: Array
    deq: Array
    twin: Array
    plain: Array
    bound: float | None = None
    title: str = "DEQ"

    @classmethod
    @checked
    def from_twin(cls, twin: Twin, norm: float | None = None) -> TwinDisplay:
        """Build the display from a twin, for inputs of one norm; by default one of which its certificate speaks."""
        low, high = twin.norms or (1.0, 1.0)
        size = norm or twin.tau0 or min(max(1.0, low), high)
        if norm == 0.0 or not 0.0 < size < np.inf:
            raise InvalidInputError(f"norm must be a positive finite number, got {norm!r}")
        degrees = np.linspace(0.0, 180.0, 361)
        angles = np.deg2rad(degrees)
        X = size * np.stack([np.cos(angles), np.sin(angles)], 1)
        exact, plain = (
            kernels_of(one, X[:1], X, kernels=(twin.kernel,))[twin.kernel] for one in (twin.deq, twin.plain)
        )
        scale = float(exact[0, 0])
        if not scale > 0.0:
            raise InvalidInputError(f"the kernel of {twin.deq!r} vanishes for inputs of norm {size:.3g}; give another")
        bound = twin.bound
        if bound is not None and twin.certificate.kind == "sphere":  # its bound is absolute
            bound /= scale
        deq, matched, other = (kernel[0] / scale for kernel in (exact, twin.kernel_matrix(X[:1], X), plain))
        return cls(degrees, deq, matched, other, bound, twin.deq.title)

    @property
    def error(self) -> float:
        """The largest error of the twin, relative to the diagonal."""
        return float(np.abs(self.twin - self.deq).max())

    @checked
    def plot(self, ax: Axes | None = None) -> TwinDisplay:
        """Draw the kernels, and in the free corner the error of the twin below its bound."""
        ax = self._axes(ax, 5.6, 4.0)
        ax.plot(self.degrees, self.plain, "--", color="0.55", linewidth=1.3, label="plain layer")
        ax.plot(self.degrees, self.deq, color=LIGHT, linewidth=6.0, label=self.title)
        ax.plot(self.degrees, self.twin, color=RED, linewidth=1.4, label="its twin")
        ax.set(xlim=(0, 180), xticks=range(0, 181, 45), xlabel="angle between two inputs (degrees)")
        ax.set_ylabel("kernel / diagonal")
        ax.legend(frameon=False, fontsize="small", loc="lower left")
        self._draw_errors(ax.inset_axes((0.6, 0.56, 0.39, 0.36)))
        return self

    def _draw_errors(self, corner: Axes) -> None:
        errors = [np.maximum(np.abs(kernel - self.deq), 1e-17) for kernel in (self.twin, self.plain)]
        corner.plot(self.degrees, errors[0], color=RED, linewidth=1.0)
        corner.plot(self.degrees, errors[1], "--", color="0.55", linewidth=1.0)
        corner.set(yscale="log", xlim=(0, 180), xticks=(0, 90, 180))
        corner.set_ylim(1e-3 * errors[0].max(), 5.0 * max(error.max() for error in errors))
        if self.bound is not None:
            corner.axhline(self.bound, color="0.2", linestyle=":", linewidth=1.2)
            where: Any = {"textcoords": "offset points", "ha": "center", "fontsize": "small"}
            corner.annotate(f"bound {self.bound:.1e}", (90, self.bound), (0, 2), **where)
        corner.tick_params(labelsize="small")
        corner.set_title("error / diagonal", fontsize="small", pad=3)


@dataclass(eq=False, repr=False)
class ReplacementDisplay(Display):
    """Show the share of inputs that the student answers against the promise. Build it with :meth:`from_replacement`.

    Parameters
    ----------
    certificate : Certificate

    Examples
    --------
    >>> from notsodeep.nn import Certificate
    >>> curve = [(0.001, 0.0), (0.01, 0.9), (0.1, 1.0)]
    >>> known = Certificate(0.01, 0.95, 0.9, 600, 150, 500, 1, 0.03, [("margin", 2.5, 0.9)], "bets", curve=curve)
    >>> ReplacementDisplay(known).plot().ax_.get_ylabel()
    'inputs answered without the model (%)'
    """

    certificate: Certificate

    @classmethod
    @checked
    def from_replacement(cls, replacement: Replacement) -> ReplacementDisplay:
        """Build the display from what ``nsd.replace`` returned."""
        return cls(replacement.certificate)

    @checked
    def plot(self, ax: Axes | None = None) -> ReplacementDisplay:
        """Draw the coverage of the promise that was made, and of other promises, each on its own."""
        ax, known = self._axes(ax, 5.2, 3.6), self.certificate
        promise, covered = 100.0 * known.disagreement, 100.0 * known.coverage
        promises, shares = 100.0 * np.array(known.curve or [(known.disagreement, known.coverage)]).T
        ax.plot(promises, shares, "o-", color=LIGHT, drawstyle="steps-post", markersize=4, label="other promises")
        ax.plot(promise, covered, "o", color=RED, label=f"promised: at most {promise:g} %")
        ax.annotate(f"{covered:.0f} %", (promise, covered), (8, -14), textcoords="offset points", color=RED)
        ax.set(xscale="log", ylim=(-4, 104), ylabel="inputs answered without the model (%)")
        what = "more errors than the model's" if known.labels else "disagreement with the model"
        ax.set_xlabel(f"{what}, promised at confidence {known.confidence:g} (%)")
        label_decades(ax.xaxis, *ax.get_xlim())
        ax.legend(frameon=False, fontsize="small", loc="lower right")
        return self


@dataclass(eq=False, repr=False)
class LazyDisplay(Display):
    """Show how far weights and kernel moved.

    Parameters
    ----------
    report : LazyReport

    Examples
    --------
    >>> from notsodeep.nn import LazyReport
    >>> report = LazyReport({"w": 0.01}, kernel=0.04, alignment=0.99, labels=None, infinite=None, rows=50)
    >>> LazyDisplay(report).plot().ax_.get_xlabel()
    'relative movement since the start (%)'
    """

    report: LazyReport

    @checked
    def plot(self, ax: Axes | None = None) -> LazyDisplay:
        """Draw one bar for each parameter and one for the kernel; labels tell the alignments."""
        bars = {**self.report.weights, "kernel": self.report.kernel}
        ax = self._axes(ax, 5.6, 1.2 + 0.3 * len(bars))
        colours = [LIGHT] * len(self.report.weights) + [RED]
        drawn = ax.barh(list(bars), [100.0 * share for share in bars.values()], color=colours)
        ax.bar_label(drawn, fmt="%.3g", padding=3, fontsize="small")
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel("relative movement since the start (%)")
        ax.set_title(self.report.verdict.partition(",")[0].partition(";")[0], fontsize="medium")
        return self


@dataclass(eq=False, repr=False)
class FeaturesDisplay(Display):
    """Show learned features. Build it with :meth:`from_estimator`.

    Parameters
    ----------
    matrix : array of shape (p, p)
        M, the mean outer product of gradients.
    names : sequence of str
        Of the p columns.

    Examples
    --------
    >>> import numpy as np, notsodeep as nsd
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> model = nsd.DEQRegressor("relu", features="diagonal").fit(X, X[:, 1] ** 2)
    >>> nsd.plots.FeaturesDisplay.from_estimator(model).plot().ax_.get_yticklabels()[-1].get_text()
    'column 1'
    """

    matrix: Array
    names: Sequence[str]

    @classmethod
    def from_estimator(cls, estimator: Any) -> FeaturesDisplay:
        """Build the display from a fitted machine or process that has learned features."""
        M = getattr(estimator, "features_", None)
        if M is None:
            raise InvalidInputError("there are no learned features: fit with features='diagonal' or features='full'")
        names = getattr(estimator, "feature_names_in_", [f"column {i}" for i in range(len(M))])
        return cls(M, [str(name) for name in names])

    @checked
    def plot(self, ax: Axes | None = None, *, top: int = 20, image: Sequence[int] | None = None) -> FeaturesDisplay:
        """Draw the largest diagonal entries as bars, the first on top; with the shape of an ``image``, main directions.

        For rows that are images of this shape, the main directions of M stand side by side.
        """
        positive_int("top", top)
        if image is not None:
            return self._directions(self._axes(ax, 8.0, 2.4), tuple(image), min(top, 6))
        ax = self._axes(ax, 5.0, 0.9 + 0.22 * min(top, len(self.names)))
        shares = np.diag(self.matrix) / np.trace(self.matrix)
        order = np.argsort(shares)[-top:]
        ax.barh([self.names[i] for i in order], 100.0 * shares[order], color=RED)
        ax.set(xlabel="share of the mean squared gradient (%)")
        return self

    def _directions(self, ax: Axes, image: tuple[int, ...], count: int) -> FeaturesDisplay:
        if len(image) != 2 or image[0] * image[1] != len(self.names):
            raise InvalidInputError(f"image must be the (height, width) of {len(self.names)} columns, got {image}")
        vectors = np.linalg.eigh(self.matrix)[1][:, ::-1][:, :count]
        gap = np.full((image[0], 1), np.nan)
        parts = [part for v in vectors.T for part in (v.reshape(image) / np.abs(v).max(), gap)][:-1]
        ax.imshow(np.hstack(parts), cmap="RdBu_r", vmin=-1.0, vmax=1.0)
        ax.set(xticks=[], yticks=[], xlabel="main directions of M, the first on the left")
        return self
