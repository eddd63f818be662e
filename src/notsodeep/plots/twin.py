"""A DEQ beside its twin: activations, the four numbers, spectra; and networks of both, compared over seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from .._arguments import checked
from .._arrays import as_rows
from ..activations import Activation
from ..errors import InvalidInputError
from ..gaussian import moments
from ..kernels import kernels_of
from ..matching import Twin
from ..nn.compare import QUANTITIES, Comparison
from .displays import Display
from .style import COLOURS

_NUMBERS = (r"$c_1\tau_0^2$", r"$c_2\tau_0^4$", r"$c_3\tau_0^4$", "diagonal")


class TwinDisplay(Display):
    """Three panels; build with :meth:`from_twin`, draw with :meth:`plot`.

    >>> import notsodeep as nsd
    >>> display = TwinDisplay.from_twin(nsd.match(nsd.DEQ("tanh", sigma_a2=0.2), 1.0)).plot()
    >>> len(display.axes_)
    2
    """

    def __init__(self, twin: Twin, spectra: tuple[np.ndarray, np.ndarray] | None = None) -> None:
        self.twin, self.spectra = twin, spectra
        """Eigenvalues of the DEQ's kernel and of the twin's, ascending, or None if no points were given."""

    @classmethod
    @checked
    def from_twin(cls, twin: Twin, X: Any = None) -> TwinDisplay:
        """With points X, the spectra of both exact kernels on them are computed too."""
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
    def plot(self, ax: Sequence[Axes] | None = None) -> TwinDisplay:
        """Activations; target against achieved numbers (if the twin has them); spectra (if points were given)."""
        shown = 1 + (self.twin.target is not None) + (self.spectra is not None)
        first, *others = self._drawn_on_several(ax, shown, 3.9, 3.6)
        draw_activations(first, self.twin)
        if self.twin.target is not None:
            _draw_numbers(others.pop(0), self.twin)
        if self.spectra is not None:
            _draw_spectra(others.pop(0), *self.spectra)
        return self


def draw_activations(ax: Axes, twin: Twin) -> None:
    """Each function over three standard deviations of what it sees, so that the curves are comparable."""
    tau = 1.0 if twin.tau0 is None else twin.tau0
    own = tau if twin.tau0 is None else twin.deq.centred_scale(twin.tau0)
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


def _draw_numbers(ax: Axes, twin: Twin) -> None:
    wanted, got = twin.target, twin.coefficients
    assert wanted is not None and got is not None
    units = np.array([wanted.tau0**2, wanted.tau0**4, wanted.tau0**4, 1.0])
    place = np.arange(4)
    ax.bar(place - 0.19, np.array(wanted.four) * units, 0.38, color="0.25", label="DEQ")
    bars = ax.bar(place + 0.19, np.array(got.four) * units, 0.38, color="C0", label="twin")
    ax.bar_label(bars, fmt="%.4g", fontsize="x-small", padding=2)
    ax.set_xticks(place, _NUMBERS)
    ax.margins(y=0.12)
    ax.set_title(f"{wanted.kernel}: relative residual {twin.residual:.1e}", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")


def _draw_spectra(ax: Axes, deq: np.ndarray, twin: np.ndarray) -> None:
    low, high = min(deq.min(), twin.min()), max(deq.max(), twin.max())
    # eigenvalues span decades: a bulk and a few that stand apart
    bins = np.geomspace(max(low, 1e-12 * high), high * 1.001, 60).tolist()
    ax.hist(deq, bins, color="0.25", alpha=0.35, label="DEQ")
    ax.hist(twin, bins, histtype="step", color="C0", linewidth=1.4, label="twin")
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(bottom=0.7)  # a bin of one eigenvalue must show
    ax.set_xlabel("eigenvalue")
    ax.set_ylabel("count")
    gap = float(np.abs(deq - twin).max() / high)
    ax.set_title(f"spectra: gap at most {gap:.1e} of the top", fontsize="medium")
    ax.legend(frameon=False, fontsize="small")


# ---- DEQ, twin and plain network side by side, with error bars over the seeds ----------------------------------

_SHOWN = ("accuracy", "agreement", "inference_seconds", "training_seconds")


class ComparisonDisplay(Display):
    """One panel per quantity, means and standard errors over the seeds; build with :meth:`from_comparison`."""

    def __init__(self, comparison: Comparison, quantities: Sequence[str] = _SHOWN) -> None:
        unknown = [q for q in quantities if q not in QUANTITIES]
        if unknown or not quantities:
            raise InvalidInputError(f"quantities must be among {list(QUANTITIES)}, got {list(quantities)}")
        self.comparison, self.quantities = comparison, tuple(quantities)

    @classmethod
    def from_comparison(cls, comparison: Comparison, quantities: Sequence[str] = _SHOWN) -> ComparisonDisplay:
        """From what ``notsodeep.compare`` returns."""
        return cls(comparison, quantities)

    def plot(self, axes: Sequence[Axes] | None = None) -> ComparisonDisplay:
        """Draw into the given axes, one per quantity, or into a new figure."""
        chosen = self._drawn_on_several(axes, len(self.quantities), 2.4, 3.0)
        for ax, quantity in zip(chosen, self.quantities, strict=True):
            self._panel(ax, quantity)
        return self

    def _panel(self, ax: Axes, quantity: str) -> None:
        models = self.comparison.models
        title, factor = QUANTITIES[quantity]
        means, errors = np.array([self.comparison.summary(m, quantity) for m in models]).T * factor
        colours = [COLOURS.get(model, "0.6") for model in models]
        if factor == 100.0:  # percentages differ by points, which bars from zero would hide
            for i, colour in enumerate(colours):
                ax.errorbar([i], means[i : i + 1], yerr=errors[i : i + 1], fmt="o", capsize=4, color=colour)
            ax.set_xticks(range(len(models)), models)
            ax.margins(x=0.25, y=0.2)
        else:
            ax.bar(models, means, yerr=errors, capsize=4, color=colours)
        ax.set_title(title, fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
