"""What training moved, drawn."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from matplotlib.axes import Axes
from torch import nn

from .._arguments import checked
from ..nn.movement import Movement, measure_movement
from .spectrum import Display


class LazyReport(Movement):
    """Hold what :func:`notsodeep.lazy` found; it prints itself, and :meth:`plot` draws it.

    Attributes
    ----------
    weights, kernel, alignment, labels, infinite, rows
        See :func:`notsodeep.lazy`.

    Examples
    --------
    >>> LazyReport({"w": 0.01}, kernel=0.04, alignment=0.99, labels=None, infinite=None, rows=50).verdict
    'the kernel moved by 4 %: training was lazy, and what the twin and predict_learning say of gradient descent ...'
    """

    def plot(self, ax: Axes | None = None) -> LazyDisplay:
        """Draw the movements of weights and kernel as bars."""
        return LazyDisplay(self).plot(ax)


class LazyDisplay(Display):
    """Show how far weights and kernel moved.

    Parameters
    ----------
    report : LazyReport

    Examples
    --------
    >>> report = LazyReport({"w": 0.01}, kernel=0.04, alignment=0.99, labels=None, infinite=None, rows=50)
    >>> LazyDisplay(report).plot().ax_.get_xlabel()
    'relative movement since the start (%)'
    """

    def __init__(self, report: Movement) -> None:
        self.report = report

    @checked
    def plot(self, ax: Axes | None = None) -> LazyDisplay:
        """Draw one bar for each parameter and one for the kernel; labels tell the alignments."""
        bars = {**self.report.weights, "kernel": self.report.kernel}
        ax = self._own(ax, 5.6, 1.2 + 0.3 * len(bars))
        colours = ["#9db9d4"] * len(self.report.weights) + ["#b3262e"]
        drawn = ax.barh(list(bars), [100.0 * share for share in bars.values()], color=colours)
        ax.bar_label(drawn, fmt="%.3g", padding=3, fontsize="small")
        ax.invert_yaxis()
        ax.margins(x=0.12)
        ax.set_xlabel("relative movement since the start (%)")
        ax.set_title(self.report.verdict.partition(",")[0].partition(";")[0], fontsize="medium")
        return self


@checked
def lazy(
    model: nn.Module, X: Any, *, start: Any, y: Any = None, parameters: Any = None, progress: bool | None = None
) -> LazyReport:
    """Measure how far training moved a network and its kernel, and say whether a fixed kernel describes it.

    Theory that speaks of a kernel, such as a twin or :func:`notsodeep.predict_learning`, holds as long as training is
    lazy: the weights move little, and the empirical NTK stays what it was.

    Parameters
    ----------
    model : nn.Module
        The trained network, of any kind that :func:`notsodeep.empirical_ntk` takes.
    X : array of shape (n, ...)
        Rows to measure on; a few hundred are enough.
    start : nn.Module or dict
        A copy of the network before training (``copy.deepcopy``), or a copy of its ``state_dict``.
    y : array of shape (n,), optional
        Classes or targets, for the alignment of the kernel with them.
    parameters : str, sequence of str, or callable, optional
        See :func:`notsodeep.empirical_ntk`.
    progress : bool, optional
        Whether to show progress bars; by default on a terminal.

    Returns
    -------
    LazyReport
        ``weights``: the relative movement of every parameter; ``kernel``: that of the empirical NTK, in the spectral
        norm; ``alignment``: the cosine of the centred kernels; ``labels``: their cosines with the kernel of the labels,
        before and after; ``infinite``: for networks of ``nsd.nn``, the relative distances from the exact kernel of the
        specification, before and after; ``verdict``: one sentence.

    Examples
    --------
    >>> import copy, notsodeep as nsd, torch
    >>> X = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    >>> model = nsd.nn.DEQ(nsd.DEQ("relu", sigma_a2=0.2), in_features=5, width=128, out_features=1)
    >>> start = copy.deepcopy(model)
    >>> history = nsd.nn.fit(model, (X, X[:, :1]), lr=0.1, epochs=1)
    >>> report = nsd.lazy(model, X, start=start, y=X[:, 0])
    >>> 0 < report.kernel < 0.5, 0.9 < report.alignment <= 1
    (True, True)
    """
    return LazyReport(**asdict(measure_movement(model, X, start, y, parameters, progress)))
