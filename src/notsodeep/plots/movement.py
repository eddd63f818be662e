"""What training moved, drawn."""

from __future__ import annotations

from matplotlib.axes import Axes

from .._arguments import checked
from ..nn import LazyReport
from .spectrum import Display


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

    def __init__(self, report: LazyReport) -> None:
        self.report = report

    @checked
    def plot(self, ax: Axes | None = None) -> LazyDisplay:
        """Draw one bar for each parameter and one for the kernel; labels tell the alignments."""
        bars = {**self.report.weights, "kernel": self.report.kernel}
        ax = self._axes(ax, 5.6, 1.2 + 0.3 * len(bars))
        colours = ["#9db9d4"] * len(self.report.weights) + ["#b3262e"]
        drawn = ax.barh(list(bars), [100.0 * share for share in bars.values()], color=colours)
        ax.bar_label(drawn, fmt="%.3g", padding=3, fontsize="small")
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel("relative movement since the start (%)")
        ax.set_title(self.report.verdict.partition(",")[0].partition(";")[0], fontsize="medium")
        return self
