"""The studies as tables: headings and rows, in words, from the documents that `python -m studies` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ._measure import standard_error
from ._readouts import ACTIVATIONS
from ._style import Document, phrase, word
from .accuracy import MODELS, PUBLISHED, REPORTED, Reported, accuracy_curves

Table = tuple[list[str], list[list[str]]]


def accuracy_table(document: Document, reported: Reported = REPORTED) -> Table:
    """Mean test accuracies in per cent, SGD and Adam, with the published ones.

    At width 4,096, for which the published ones stand; where that is not stored, at the largest width.
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
    at = widths.index(PUBLISHED[1]) if PUBLISHED[1] in widths else -1
    means = {name: 100 * float(found["sgd"][name][1][at]) for name in MODELS}
    cells = [f"{means[name]:.2f} ± {100 * float(found['sgd'][name][2][at]):.2f}" for name in MODELS]
    gaps = [f"{means[name] - means['DEQ']:+.2f}" for name in ("twin", "plain")]
    published = ", ".join(f"{100 * known[name][1]:.1f}" for name in MODELS) if known else "-"
    adam = ", ".join(f"{100 * float(found['adam'][name][1][at]):.2f}" for name in MODELS)
    return [word(dataset), word(activation), f"{widths[at]:,}", *cells, *gaps, published, adam]


def routes_table(document: Document) -> Table:
    """Headings and one row per point; accuracies in per cent, means over the seeds for networks."""
    heads = ["data", "activation", "kernel", "route", "layers", "bound", "distance (plain)", "regression: agreement"]
    heads += ["regression: DEQ, twin", "networks: DEQ, twin, plain", "networks: agreement (DEQ of another seed)"]
    return heads, [_route_row(point) for point in document["points"].values()]


def _route_row(point: Document) -> list[str]:
    settings, numbers = point["settings"], point["numbers"]
    distance, regression, networks = numbers["distance"], numbers["regression"], numbers.get("networks")
    cells = [word(settings[name]) for name in ("dataset", "activation", "kernel", "route")] + [str(numbers["depth"])]
    cells.append("" if numbers["bound"] is None else f"{numbers['bound']:.1e}")
    cells.append(f"{distance['twin']:.1e} ({distance['plain']:.1e})")
    cells.append(f"{100 * regression['agreement']['twin']:.1f} ({100 * regression['agreement']['plain']:.1f})")
    cells.append(", ".join(f"{100 * regression['accuracy'][name]:.1f}" for name in ("DEQ", "twin")))
    if networks is None:
        return [*cells, "", ""]
    cells.append(", ".join(f"{100 * np.mean(networks['accuracy'][name]):.1f}" for name in ("DEQ", "twin", "plain")))
    same = networks["agreement"]
    return [*cells, f"{100 * same['twin']:.1f} ({100 * same['DEQ of another seed']:.1f})"]


def one_layer_bounds_table(document: Document, share: float) -> Table:
    """Proven bounds at one share of the limit on sigma_a2; in brackets the largest error of random pairs."""
    points = [p for p in document["points"].values() if p["settings"]["share"] == share]
    most = max(p["settings"]["kinds"] for p in points)
    rows = []
    for point in points:
        settings = point["settings"]
        cells = [f"{row['bound']:.1e} ({row['seen']:.1e})" for row in point["numbers"]["rows"]]
        norms = "all" if settings["norms"] is None else "{:g} to {:g}".format(*settings["norms"])
        first = [word(settings["activation"]), f"{settings['sigma_a2']:.3g}", settings["kernel"].upper(), norms]
        rows.append([*first, *cells, *[""] * (most - len(cells))])
    kinds = ["1 kind", *(f"{j} kinds" for j in range(2, most + 1))]
    return ["activation", "sigma_a2", "kernel", "norms", *kinds], rows


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


def one_layer_accuracy_table(document: Document, widths: Sequence[int] | None = None, method: str = "sgd") -> Table:
    """Test accuracy of the DEQ in per cent; of the others the difference to it in points, with its standard error."""
    points = [p for p in document["points"].values() if p["settings"].get("method", "sgd") == method]
    points = [p for p in points if widths is None or p["settings"]["width"] in widths]
    points.sort(key=lambda p: p["settings"]["width"])
    names = list(next(iter(points[0]["numbers"].values())))
    rows = [
        [word(p["settings"]["dataset"]), word(phi), f"{p['settings']['width']:,}", *_accuracies(table, names)]
        for phi in points[0]["settings"]["activations"]
        for p in points
        for table in [p["numbers"][phi]]
    ]
    order = list(dict.fromkeys(row[0] for row in rows))
    rows.sort(key=lambda row: order.index(row[0]))
    return ["data", "activation", "width", *names], rows


def _accuracies(table: Document, names: Sequence[str]) -> list[str]:
    truth = 100 * np.array(table[names[0]]["accuracy"])
    cells = [f"{truth.mean():.2f}"]
    for name in names[1:]:
        gaps = 100 * np.array(table[name]["accuracy"]) - truth
        error = standard_error(gaps)
        cells.append(f"{gaps.mean():+.2f} ± {error:.2f}")
    return cells


def one_layer_lazy_table(document: Document) -> Table:
    """After the last step, means over seeds."""
    rows = []
    for point in document["points"].values():
        settings, seeds = point["settings"], point["numbers"]["seeds"]
        for name in (key for key in seeds[0] if key not in ("seed", "steps")):
            known = [quantity for quantity, values in seeds[0][name].items() if values]
            last = {q: float(np.mean([s[name][q][-1] for s in seeds])) for q in known}
            cells = [word(settings["data"]), word(settings["activation"]), f"{settings['width']:,}", name]
            cells += [f"{100 * last['accuracy']:.2f}", f"{last['loss']:.4f}"]
            same = ["", ""] if name == "DEQ" else [f"{100 * last['agreement']:.2f}", f"{last['distance']:.3f}"]
            rows.append([*cells, *same, f"{last['to_limit']:.3f}" if "to_limit" in last else ""])
    heads = ["data", "activation", "width", "network", "test accuracy, %", "test loss", "same prediction as the DEQ, %"]
    return [*heads, "distance of the outputs", "from infinite width"], rows


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
    "one_layer": lambda document: one_layer_bounds_table(document, 0.8),
    "one_layer_accuracy": one_layer_accuracy_table,
    "one_layer_lazy": one_layer_lazy_table,
    "one_layer_width": one_layer_width_table,
    "sphere": distances_table,
    "three_routes": routes_table,
}
"""The tables that the command prints, by study."""
