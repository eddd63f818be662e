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


def replace_table(document: Document) -> Table:
    """What replacements promise, keep and gain: speeds over the DEQ at its tolerance, shares in per cent."""
    heads = ["DEQ", "answered by the student", "disagreement seen", "student alone", "accuracy: DEQ / student"]
    heads += ["fast(x) / predict, 1,024; 8,192", "two cores", "DEQ at 0.01, 0.1", "ladder", "decide / solver"]
    return heads, [_replaced_row(point["settings"], point["numbers"]) for point in document["points"].values()]


def _replaced_row(settings: Document, found: Document) -> list[str]:
    kept = ", contraction kept" if settings["contraction"] else ""
    name = (
        f"{word(settings['data'])}, {settings['library']}, {word(settings['activation'])}, {settings['width']:,}{kept}"
    )
    levels = [level for level in found["levels"] if level["coverage"] is not None]
    timed: Document = next((level for level in levels if "model_seconds_1024" in level), {})
    times = {size: found.get("predict", {}).get(size) for size in ("1024", "8192")}
    two = [timed.get(f"{who}_seconds_two_cores") for who in ("model", "replacement")]
    ladder, proof = found.get("ladder"), found.get("decide")
    return [
        name,
        " / ".join(f"{100 * level['coverage']:.1f}" for level in levels),
        " / ".join(f"{100 * level['fresh_disagreement']:.2f}" for level in levels),
        f"{100 * found['student']['disagreement']:.2f}" if "student" in found else "-",
        " / ".join(f"{100 * part['accuracy']:.2f}" for part in (found, found.get("student")) if part),
        "; ".join(f"{t['model'] / t['batches']:.1f} / {t['model'] / t['predict']:.1f}" for t in times.values() if t),
        f"{two[0] / two[1]:.1f}" if two[0] and two[1] else "-",
        ", ".join(_looser(one, times["1024"]) for one in found["looser"]),
        _climbed(ladder, times["8192"]) if ladder and times["8192"] else "-",
        _decided(proof) if proof else "-",
    ]


def _looser(one: Document, times: Document | None) -> str:
    ratio = times["model"] / times[f"tol {one['tol']:g}"] if times else one["ratio"]
    return f"{100 * one['disagreement']:.2f} at {ratio:.1f}"


def _climbed(ladder: Document, times: Document) -> str:
    return f"{100 * ladder['disagreement']:.2f} at {times['model'] / ladder['seconds']:.1f}"


def _decided(proof: Document) -> str:
    speed = proof["model_seconds"] / proof["decide_seconds"]
    return f"{proof['steps']:.1f} / {proof['solver_steps']:.1f} steps, {speed:.2f} times"


TABLES: dict[str, Callable[[Document], Table]] = {
    "accuracy": accuracy_table,
    "eigenvalues": distances_table,
    "kernels": distances_table,
    "one_layer_width": one_layer_width_table,
    "replace": replace_table,
    "replace_cpu": replace_table,
    "sphere": distances_table,
}
"""The tables that the command prints, by study."""
