"""What a replacement promises, and what other promises would have cost."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes

from .._arguments import checked
from ..nn import Certificate, Replacement
from .spectrum import Display, label_decades


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

    def __init__(self, certificate: Certificate) -> None:
        self.certificate = certificate

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
        ax.plot(promises, shares, "o-", color="#9db9d4", drawstyle="steps-post", markersize=4, label="other promises")
        ax.plot(promise, covered, "o", color="#b3262e", label=f"promised: at most {promise:g} %")
        ax.annotate(f"{covered:.0f} %", (promise, covered), (8, -14), textcoords="offset points", color="#b3262e")
        ax.set(xscale="log", ylim=(-4, 104), ylabel="inputs answered without the model (%)")
        what = "more errors than the model's" if known.labels else "disagreement with the model"
        ax.set_xlabel(f"{what}, promised at confidence {known.confidence:g} (%)")
        label_decades(ax.xaxis, *ax.get_xlim())
        ax.legend(frameon=False, fontsize="small", loc="lower right")
        return self
