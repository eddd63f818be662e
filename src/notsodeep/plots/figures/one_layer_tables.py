"""The studies of one-layer twins as tables: headings and rows, in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..style import word

__all__ = [
    "one_layer_accuracy_table",
    "one_layer_bounds_table",
    "one_layer_lazy_table",
    "one_layer_speed_table",
    "one_layer_width_table",
]

Document = Mapping[str, Any]
Table = tuple[list[str], list[list[str]]]


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
        error = np.std(gaps, ddof=1) / len(gaps) ** 0.5 if len(gaps) > 1 else 0.0
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


def one_layer_speed_table(document: Document) -> Table:
    """How many times longer a DEQ takes, by our solver and by the fastest of torchdeq's."""
    cells = {key: value for key, value in document.items() if isinstance(value, Mapping) and "forward_ms" in value}
    rows = []
    for key, cell in cells.items():
        name, width = key.split(", width ")
        for twin in (k for k in cell["forward_ms"] if k.startswith("one layer")):
            ratios = [
                cell.get(f"{kind}: {whom} / {twin}")
                for kind in ("forward", "training")
                for whom in ("fastest torchdeq", "DEQ")
            ]
            first = [word(name), f"{int(width):,}", twin, f"{cell['forward_ms'][twin]:.3g}"]
            rows.append([*first, *("" if ratio is None else f"{ratio:.1f}" for ratio in ratios)])
    heads = ["activation", "width", "twin", "its forward pass, ms", "torchdeq, forward", "our DEQ, forward"]
    return [*heads, "torchdeq, training step", "our DEQ, training step"], rows
