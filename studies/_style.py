"""What all figures share: words instead of code names, colours that read on white and on black, files that adapt."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

INK = "#2b333b"
"""Text and axes; in an SVG file it becomes light where the reader's system is dark."""
_LIGHT_INK = "#d6dce2"
COLOURS = {"DEQ": "#2f7fc1", "twin": "#d1495b", "plain": "#3d9a5c"}
"""Of networks."""
MARKERS = "os^vDP"
LOOKS: dict[str, dict[str, Any]] = {
    "DEQ": {"color": COLOURS["DEQ"], "marker": "o"},
    "twin": {"color": COLOURS["twin"], "marker": "s", "linestyle": "--"},
    "plain": {"color": COLOURS["plain"], "marker": "^", "linestyle": ":"},
    "one layer": {"color": COLOURS["twin"], "marker": "s"},
    "one layer, orthogonal": {"color": COLOURS["twin"], "marker": "D", "linestyle": "--", "markerfacecolor": "none"},
    "papers' twin": {"color": "#8a63b8", "marker": "v", "linestyle": ":"},
}
"""Lines of networks."""

SCHEDULES = {"n": "training points", "ridge": "ridge, relative to the mean diagonal", "times": "time of gradient flow"}
"""What learning curves run over."""
QUANTITIES = {"accuracy": ("accuracy (%)", 100.0), "mse": ("mean squared error", 1.0)}
"""What they show, and its unit."""

Document = Mapping[str, Any]
"""A stored document of a study, or a part of one."""

_WORDS = {
    "mixture": "the papers' mixture",
    "two_class": "the papers' mixture",
    "random_means": "five classes, random means",
    "full_covariances": "two classes, full covariances",
    "near_means": "the papers' mixture, near means",
    "mnist": "MNIST",
    "mnist_unit": "MNIST, rows of norm one",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10_vgg": "CIFAR-10 features",
    "digits": "digits",
    "digits_unit": "digits, rows of norm one",
    "relu": "ReLU",
    "leaky_relu": "Leaky-ReLU",
    "silu": "SiLU",
    "elu": "ELU",
    "selu": "SELU",
    "gelu": "GELU",
    "hard_tanh": "Hard-Tanh",
    "hard_swish": "Hard-Swish",
    "ck": "conjugate kernel",
    "ntk": "tangent kernel",
    "ntk_frozen": "tangent kernel, input weights frozen",
    "preprint_ck": "G* of the preprint",
    "preprint_ntk": "K* of the preprint",
    "sgd": "SGD",
    "adam": "Adam",
    "skip": "one layer of its own kind",
}


def word(name: str) -> str:
    """A code name as people say it; others stay as they are.

    >>> word("fashion_mnist"), word("tanh")
    ('Fashion-MNIST', 'tanh')
    """
    return _WORDS.get(name, name.replace("_", " "))


def phrase(key: str) -> str:
    """A key of a stored document in words.

    >>> phrase("mnist_unit/tanh")
    'MNIST, rows of norm one, tanh'
    """
    return ", ".join(word(part) for part in key.split("/"))


def panels(
    size: tuple[float, float], says: str = "", rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, Any]:
    """A figure with its message above it, beginning with a capital letter, and its axes: one, or an array of them."""
    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(rows, columns, **options)
    if says:
        figure.suptitle(says[:1].upper() + says[1:])
    return figure, axes


def against_width(names: Sequence[str], says: str) -> tuple[Figure, Sequence[Axes]]:
    """A panel for each name, over widths, which double."""
    figure, axes = panels((max(3.2 * len(names), 9.0), 4.4), says, 1, len(names), squeeze=False)
    for ax, name in zip(axes[0], names, strict=True):
        ax.set(title=word(name), xlabel="width")
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        ax.tick_params(axis="x", labelrotation=45)
    return figure, axes[0]


def ticks_at(ax: Axes, values: Sequence[int]) -> None:
    """Ticks at these sizes alone: over less than a decade the usual ones run into each other."""
    ax.set_xticks(values, [f"{value:,}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())


def by_setting(points: Iterable[Document], *names: str) -> dict[Any, list[Document]]:
    """Points of a study by one of their settings, or by several, in the order in which they come."""
    found: dict[Any, list[Document]] = {}
    for point in points:
        values = [point["settings"][name] for name in names]
        key = tuple(tuple(value) if isinstance(value, list) else value for value in values)
        found.setdefault(key if len(names) > 1 else key[0], []).append(point)
    return found


@contextmanager
def figure_style() -> Iterator[None]:
    """Draw inside this, so that :func:`vector` can tell ink from colours."""
    ink: Any = dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"), INK)
    ink |= dict.fromkeys(("xtick.color", "ytick.color", "xtick.labelcolor", "ytick.labelcolor"), INK)
    plain: Any = {"axes.facecolor": "none", "axes.spines.top": False, "axes.spines.right": False}
    plain |= {"legend.frameon": False, "lines.markersize": 5.0}
    fonts: Any = {"svg.fonttype": "none", "svg.hashsalt": "notsodeep", "font.size": 11.0}
    fonts |= dict.fromkeys(("axes.titlesize", "figure.titlesize"), "medium")
    with mpl.rc_context({**ink, **plain, **fonts}):
        yield


def vector(figure: Figure) -> str:
    """The SVG of a figure, without a background, in the ink of the text around it."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None}, facecolor="none", edgecolor="none")
    return stream.getvalue().replace(INK, "currentColor")


def adaptive_svg(figure: Figure) -> str:
    """An SVG file whose ink follows the reader's colour scheme."""
    style = f"<style>svg {{color: {INK}}} @media (prefers-color-scheme: dark) {{svg {{color: {_LIGHT_INK}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", rf"\1\n {style}", vector(figure), count=1)


def shared_legend(figure: Figure, axes: Axes, **options: Any) -> None:
    """One legend below all panels, from the entries of one of them."""
    handles, labels = axes.get_legend_handles_labels()
    unique: Mapping[str, Any] = dict(zip(labels, handles, strict=True))
    columns = options.pop("ncols", min(len(unique), 4))
    figure.legend(unique.values(), unique.keys(), loc="outside lower center", ncols=columns, **options)
