"""Displays: learning curves, a DEQ beside its twin."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes

from .._arguments import checked
from .._arrays import as_rows
from ..activations import Activation
from ..errors import InvalidInputError
from ..gaussian import moments
from ..kernels import kernels_of
from ..learning import LearningCurve, LearningEstimate
from ..matching import Twin
from .base import Display
from .spectrum import SpectrumDisplay

Quantity = Literal["accuracy", "mse"]
AXES = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}


class LearningDisplay(Display):
    """Show accuracy or error along a curve. Build it with :meth:`from_curve`.

    Parameters
    ----------
    curve : LearningCurve or LearningEstimate
        What was predicted for several networks, or measured on real data.
    up_to : int, optional
        An estimate is continued to so many points; by default to four times as many as were measured.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> mix = nsd.GaussianMixture.two_class(100, mu=3.0)
    >>> curve = nsd.learning_curve({"DEQ": nsd.DEQ("relu", sigma_a2=0.2)}, mix, [50, 100, 200])
    >>> LearningDisplay.from_curve(curve).plot().ax_.get_xlabel()
    'training points'
    """

    def __init__(self, curve: LearningCurve | LearningEstimate, up_to: int | None = None) -> None:
        self.curve, self.up_to = curve, up_to

    @classmethod
    @checked
    def from_curve(cls, curve: LearningCurve | LearningEstimate, up_to: int | None = None) -> LearningDisplay:
        """Build the display from predicted curves, or from one that was measured on real data."""
        return cls(curve, up_to)

    @checked
    def plot(self, ax: Axes | None = None, *, quantity: Quantity = "accuracy") -> LearningDisplay:
        """Draw predicted lines, or measured points with error bars and the interval beyond them."""
        (ax,) = self._panels(ax, 1, 5.6, 3.9)
        label, factor = ("accuracy (%)", 100.0) if quantity == "accuracy" else ("mean squared error", 1.0)
        if isinstance(self.curve, LearningEstimate):
            self._estimated(ax, self.curve, quantity, factor)
        else:
            for name, row in zip(self.curve.names, getattr(self.curve, quantity), strict=True):
                ax.plot(self.curve.points, factor * row, label=name)
        axis = "n" if isinstance(self.curve, LearningEstimate) else self.curve.axis
        ax.set(xscale="log", xlabel=AXES[axis], ylabel=label)
        ax.legend(frameon=False, fontsize="small")
        return self

    def _estimated(self, ax: Axes, found: LearningEstimate, quantity: Quantity, factor: float) -> None:
        values, errors = getattr(found, quantity), getattr(found, f"{quantity}_error")
        points = ax.errorbar(found.sizes, factor * values, yerr=factor * errors, fmt="o", label="leave-one-out")
        if quantity == "accuracy":
            beyond = np.geomspace(found.sizes[0], self.up_to or 4 * found.sizes[-1], 60)
            best, low, high = found.predict(beyond)
            colour = points.lines[0].get_color()
            ax.plot(beyond, factor * best, color=colour, linewidth=1)
            ax.fill_between(beyond, factor * low, factor * high, color=colour, alpha=0.15, label="interval")


class TwinDisplay(Display):
    """Show a DEQ beside its twin: activations and spectra. Build it with :meth:`from_twin`.

    Parameters
    ----------
    twin : Twin
    spectra : pair of arrays of shape (n,), optional
        Ascending eigenvalues of the DEQ's kernel and of the twin's.

    Examples
    --------
    >>> import notsodeep as nsd
    >>> display = TwinDisplay.from_twin(nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0)).plot()
    >>> len(display.axes_)
    1
    """

    def __init__(self, twin: Twin, spectra: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        self.twin, self.spectra = twin, spectra

    @classmethod
    @checked
    def from_twin(cls, twin: Twin, X: Any = None) -> TwinDisplay:
        """Build the display; with points X, (n, p), also the spectra of both exact kernels on them."""
        if X is None:
            return cls(twin)
        points = as_rows(X).cpu().numpy().astype(np.float64)
        if len(points) < 2:
            raise InvalidInputError("X must have at least two rows, got one")
        own = twin.kernel_matrix(points)
        if twin.normalise:
            points = points / np.linalg.norm(points, axis=1, keepdims=True)
        deq = kernels_of(twin.deq, points, kernels=(twin.kernel,), check=False)[twin.kernel]
        return cls(twin, (np.linalg.eigvalsh(deq), np.linalg.eigvalsh(own)))

    @checked
    def plot(self, ax: Any = None) -> TwinDisplay:
        """Draw the activations, and the spectra if points were given."""
        axes = self._panels(ax, 1 if self.spectra is None else 2, 5.0, 3.8)
        _draw_activations(axes[0], self.twin)
        if self.spectra is not None:
            deq, twin = self.spectra
            SpectrumDisplay(deq, title="spectra of the kernels").plot(axes[1], beside={"twin": twin})
        return self


def _draw_activations(ax: Axes, twin: Twin) -> None:
    """Draw each activation over three standard deviations of what it sees, so that the curves are comparable."""
    tau = 1.0 if twin.tau0 is None else twin.tau0
    own = (twin.target and twin.target.tau_star) or tau
    _curve(ax, twin.deq.activations[-1], own, r"DEQ: $\varphi$", color="black", linewidth=2.2, alpha=0.75)
    for number, phi in enumerate(twin.network.activations, 1):
        _curve(ax, phi, tau, rf"twin: $\sigma_{number}$", linestyle=("--", "-.", ":")[(number - 1) % 3])
        if number < twin.depth:
            tau = math.sqrt(float(moments(phi, tau).square))
    ax.axhline(0.0, color="0.85", linewidth=0.8, zorder=0)
    ax.axvline(0.0, color="0.85", linewidth=0.8, zorder=0)
    ax.set_xlabel("pre-activation / its standard deviation")
    ax.set_title(f"{twin.family}, {twin.depth} hidden layer{'s' if twin.depth > 1 else ''}", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")


def _curve(ax: Axes, phi: Activation, scale: float, label: str, **style: Any) -> None:
    xi = np.linspace(-3.0, 3.0, 601)
    ax.plot(xi, phi.at_norm(scale * xi, scale), label=label, **style)
