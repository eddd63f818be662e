"""The studies as tables: headings and rows, in words, from the documents that `python -m studies` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ._readouts import ACTIVATIONS
from ._style import Document, phrase, word
from .accuracy import MODELS, PUBLISHED, REPORTED, Reported, accuracy_curves

Table = tuple[list[str], list[list[str]]]


def accuracy_table(document: Document, reported: Reported = REPORTED) -> Table:
    """Mean test accuracies in per cent, SGD and Adam, with the published ones.

    At the largest width that is both stored and published, 4,096 or 32; where there is none, at the largest stored.
    """
    heads = ["data", "activation", "width", *MODELS, "twin - DEQ", "plain - DEQ"]
    heads += ["published (DEQ, twin, plain)", "Adam (DEQ, twin, plain)"]
    datasets = dict.fromkeys(p["settings"]["dataset"] for p in document["points"].values())
    pairs = [(name, activation) for name in datasets for activation in ACTIVATIONS]
    return heads, [_accuracy_row(document, *pair, reported.get(pair[0], {}).get(pair[1])) for pair in pairs]


def _accuracy_row(
    document: Document, dataset: str, activation: str, known: Mapping[str, Sequence[float]] | None
) -> list[str]:
    found = {method: accuracy_curves(document, dataset, activation, method) for method in ("sgd", "adam")}
    widths = found["sgd"]["DEQ"][0].tolist()
    which = max((i for i, width in enumerate(PUBLISHED) if width in widths), default=None)
    at = -1 if which is None else widths.index(PUBLISHED[which])
    means = {name: 100 * float(found["sgd"][name][1][at]) for name in MODELS}
    cells = [f"{means[name]:.2f} ± {100 * float(found['sgd'][name][2][at]):.2f}" for name in MODELS]
    gaps = [f"{means[name] - means['DEQ']:+.2f}" for name in ("twin", "plain")]
    published = "-"
    if known is not None and which is not None:
        published = ", ".join(f"{100 * known[name][which]:.1f}" for name in MODELS)
    adam = ", ".join(f"{100 * float(found['adam'][name][1][at]):.2f}" for name in MODELS)
    return [word(dataset), word(activation), f"{widths[at]:,}", *cells, *gaps, published, adam]


def one_layer_width_table(document: Document) -> Table:
    """Mean relative spectral errors of kernels."""
    points = list(document["points"].values())
    widths = points[0]["settings"]["widths"]
    rows = [
        [word(p["settings"]["data"]), word(p["settings"]["activation"]), name, *(f"{np.mean(e):.3f}" for e in errors)]
        for p in points
        for name, errors in p["numbers"]["errors"].items()
    ]
    return ["data", "activation", "network", *(f"{width:,}" for width in widths)], rows


def distances_table(document: Document) -> Table:
    """How far twins and equivalents are from exact kernels, in the papers' figures."""
    found = {key: point["numbers"]["distances"] for key, point in document["points"].items()}
    rows = [
        [phrase(key), phrase(label), *(f"{v:.3g}" for v in numbers.values())]
        for key, distances in found.items()
        for label, numbers in distances.items()
    ]
    first = next(iter(next(iter(found.values())).values()))
    return ["point", "form", *first], rows


TABLES: dict[str, Callable[[Document], Table]] = {
    "accuracy": accuracy_table,
    "eigenvalues": distances_table,
    "kernels": distances_table,
    "one_layer_width": one_layer_width_table,
    "sphere": distances_table,
}
"""The tables that the command prints, by study."""
