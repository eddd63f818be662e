"""The kernel of a twin on that of its DEQ."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from .._arguments import checked
from ..errors import InvalidInputError
from ..kernels import kernels_of
from ..matching import Twin
from .spectrum import Display


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

    def __init__(
        self,
        degrees: NDArray[Any],
        deq: NDArray[Any],
        twin: NDArray[Any],
        plain: NDArray[Any],
        bound: float | None = None,
        title: str = "DEQ",
    ) -> None:
        self.degrees, self.deq, self.twin, self.plain, self.bound, self.title = degrees, deq, twin, plain, bound, title

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
        ax.plot(self.degrees, self.deq, color="#9db9d4", linewidth=6.0, label=self.title)
        ax.plot(self.degrees, self.twin, color="#b3262e", linewidth=1.4, label="its twin")
        ax.set(xlim=(0, 180), xticks=range(0, 181, 45), xlabel="angle between two inputs (degrees)")
        ax.set_ylabel("kernel / diagonal")
        ax.legend(frameon=False, fontsize="small", loc="lower left")
        self._draw_errors(ax.inset_axes((0.6, 0.56, 0.39, 0.36)))
        return self

    def _draw_errors(self, corner: Axes) -> None:
        errors = [np.maximum(np.abs(kernel - self.deq), 1e-17) for kernel in (self.twin, self.plain)]
        corner.plot(self.degrees, errors[0], color="#b3262e", linewidth=1.0)
        corner.plot(self.degrees, errors[1], "--", color="0.55", linewidth=1.0)
        corner.set(yscale="log", xlim=(0, 180), xticks=(0, 90, 180))
        corner.set_ylim(1e-3 * errors[0].max(), 5.0 * max(error.max() for error in errors))
        if self.bound is not None:
            corner.axhline(self.bound, color="0.2", linestyle=":", linewidth=1.2)
            where: Any = {"textcoords": "offset points", "ha": "center", "fontsize": "small"}
            corner.annotate(f"bound {self.bound:.0e}", (90, self.bound), (0, 2), **where)
        corner.tick_params(labelsize="small")
        corner.set_title("error / diagonal", fontsize="small", pad=3)
