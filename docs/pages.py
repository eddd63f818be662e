"""Pages whose numbers come from results/*.json: nothing is copied by hand."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from study_tables import (
    accuracy_table,
    distilled_table,
    one_layer_accuracy_table,
    one_layer_bounds_table,
    one_layer_lazy_table,
    one_layer_speed_table,
    one_layer_width_table,
    routes_table,
)

import notsodeep
from studies._style import phrase, word

__all__ = ["api", "table", "write_all"]


def write_all(docs: Path, results: Path) -> None:
    """Tables and the list of public names, in docs/_generated."""
    folder = docs / "_generated"
    folder.mkdir(exist_ok=True)
    for name, text in {
        "evidence": evidence(results),
        "numbers": equivalents(results) + matching(results) + distances(results) + accuracy(results),
        "benchmarks": data_speed(results) + kernel_speed(results) + networks(results),
        "api": api(),
        "three_routes": three_routes(results),
        "distilled": distilled(results),
        **one_layer(results),
    }.items():
        (folder / f"{name}.txt").write_text(text)


_TITLES = {"gaussian": "Gaussian expectations", "nn": "Finite networks", "solve": "Solvers", "distributed": "Clusters"}


def api() -> str:
    """Every public name: those of the top level first, then what the public rooms hold beside them."""
    names = {name: getattr(notsodeep, name) for name in notsodeep.__all__}
    rooms = {name: thing for name, thing in names.items() if inspect.ismodule(thing)}
    text = _section("The top level", {f"notsodeep.{name}": thing for name, thing in names.items() if name not in rooms})
    seen = {id(thing) for thing in names.values()}
    for room, module in rooms.items():
        inside = {f"notsodeep.{room}.{name}": getattr(module, name) for name in getattr(module, "__all__", ())}
        text += _section(_TITLES.get(room, room.capitalize()), {n: t for n, t in inside.items() if id(t) not in seen})
        seen |= {id(thing) for thing in inside.values()}
    return text


def _section(title: str, names: dict[str, Any]) -> str:
    kinds = {name: "autoclass" if isinstance(thing, type) else "autofunction" for name, thing in names.items()}
    described = [f".. {kinds[name]}:: {name}" for name, thing in names.items() if callable(thing)]
    entries = "\n".join(described)
    return f"## {title}\n\n```{{eval-rst}}\n{entries}\n```\n\n"


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [headings, ["---"] * len(headings), *rows]]
    return "\n".join(lines) + "\n\n"


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _made_by(document: dict[str, Any]) -> str:
    return f"Made by `{document['command']}`.\n\n"


def _mean(errors: Sequence[float] | float) -> float:
    return sum(errors) / len(errors) if isinstance(errors, list) else float(errors)


def _curves(curves: dict[str, Any]) -> str:
    sizes = next(iter(curves.values()))["n"]
    rows = [
        [name, *(f"{_mean(e):.4f}" for e in curve["errors"]), _cell(curve["slope"])] for name, curve in curves.items()
    ]
    return table(["form", *(f"n = {n}" for n in sizes), "slope"], rows)


def matching(results: Path) -> str:
    """Distances of twins and plain networks to their DEQs."""
    document = _read(results / "matching.json")
    if document is None:
        return ""
    s = document["settings"]
    text = f"## Twins on the papers' mixture\n\np = {s['p']}, n = {s['n']}, sigma_a2 = {s['sigma_a2']}: relative "
    text += "distance, in spectral norm, to the DEQ's exact kernel.\n\n" + _made_by(document)
    rows = [
        [
            r["activation"],
            r["kernel"],
            f"{r['family']}{' (auto)' if r['asked'] == 'auto' else ''}",
            r["depth"],
            "yes" if r["rates"] else "",
            f"{r['distance']:.1e}",
            f"{r['plain']:.1e}",
            f"{r['plain_scaled']:.1e}",
            f"{r['gain_scaled']:,.2g}" if r["gain_scaled"] < 10 else f"{r['gain_scaled']:,.0f}",
            f"{r['match_ms']:.0f}",
        ]
        for r in document["matches"]
    ]
    headings = ["activation", "kernel", "family", "layers", "rates", "twin", "plain", "plain times its best scalar"]
    headings += ["times closer than that", "ms to match"]
    return text + table(headings, rows)


def evidence(results: Path) -> str:
    """The rejected forms of the equivalents beside the kept ones."""
    document = _read(results / "rejected_variants" / "full.json")
    if document is None:
        return ""
    (point,) = document["points"].values()
    return _made_by(document) + _curves(point["numbers"])


def equivalents(results: Path) -> str:
    """How the error of the equivalents falls."""
    document = _read(results / "mixtures_error" / "full.json")
    if document is None:
        return ""
    text = "## Equivalents against exact kernels\n\nRelative error in spectral norm; theory says a slope of -1/2.\n\n"
    flat = {
        f"{phrase(case)}: {word(kernel)}": curve
        for case, point in document["points"].items()
        for kernel, curve in point["numbers"].items()
    }
    return text + _made_by(document) + _curves(flat)


def accuracy(results: Path) -> str:
    """Test accuracies of trained networks at the published width."""
    document = _read(results / "accuracy" / "full.json") or _read(results / "accuracy" / "quick.json")
    if document is None:
        return ""
    text = "## Accuracy of trained networks\n\nTest accuracy in percent, mean over seeds.\n\n" + _made_by(document)
    return text + table(*accuracy_table(document))


def distances(results: Path) -> str:
    """How far twins and equivalents are from exact kernels, in the papers' figures."""
    text = ""
    for name in ("eigenvalues", "sphere"):
        document = _read(results / name / "full.json") or _read(results / name / "quick.json")
        if document is None:
            continue
        rows = [
            [phrase(point), label, *(f"{v:.3g}" for v in numbers.values())]
            for point, content in document["points"].items()
            for label, numbers in content["numbers"]["distances"].items()
        ]
        first = next(iter(document["points"].values()))["numbers"]["distances"]
        text += f"## {document.get('title', name)}\n\n" + _made_by(document)
        text += table(["point", "form", *next(iter(first.values()))], rows)
    return text


def three_routes(results: Path) -> str:
    """Kernels, regressions and networks by route."""
    document = _read(results / "three_routes" / "full.json")
    return "" if document is None else _made_by(document) + table(*routes_table(document))


_WIDTHS = (32, 128, 1024, 8192)  # of the accuracies in the documentation; the figures show all


def one_layer(results: Path) -> dict[str, str]:
    """One-layer twins: bounds, finite widths, accuracies, lazy training, speed."""
    made = {
        "one_layer_bounds": ("one_layer/full.json", lambda d: one_layer_bounds_table(d, 0.8)),
        "one_layer_width": ("one_layer_width/full.json", one_layer_width_table),
        "one_layer_accuracy": ("one_layer_accuracy/full.json", lambda d: one_layer_accuracy_table(d, _WIDTHS)),
        "one_layer_adam": ("one_layer_accuracy/full.json", lambda d: one_layer_accuracy_table(d, None, "adam")),
        "one_layer_lazy": ("one_layer_lazy/full.json", one_layer_lazy_table),
        "one_layer_speed": ("speed_one_layer.json", one_layer_speed_table),
        "one_layer_speed_gpu": ("speed_one_layer_cuda.json", one_layer_speed_table),
    }
    text = {}
    for name, (path, rows) in made.items():
        document = _read(results / path)
        text[name] = "" if document is None else _made_by(document) + table(*rows(document))
    return text


def distilled(results: Path) -> str:
    """Students of trained DEQs."""
    document = _read(results / "distil" / "full.json")
    return "" if document is None else _made_by(document) + table(*distilled_table(document))


def data_speed(results: Path) -> str:
    """The NTK on real and on random rows, side by side."""
    text = "The NTK in units of the product X Xᵀ of the same rows. First call: the table of the network is built; "
    text += "later calls find it again. Three kernels: CK and both "
    text += "NTKs at once. The cross kernel is in units of its own, smaller product.\n\n"
    for name in ("cpu", "xeon", "h200"):
        document = _read(results / f"speed_data_{name}.json")
        if document is None:
            continue
        note = document["note"]
        text += f"{note[:1].upper()}{note[1:]}; torch {document['versions']['torch']}. {_made_by(document)}"
        columns = {c: title for c, title in _DATA_COLUMNS.items() if any(c in row for row in document["rows"])}
        rows = [
            [r["data"], r["n"], r["p"], r["dtype"], word(r["activation"]), *(_measured(c, r.get(c)) for c in columns)]
            for r in document["rows"]
        ]
        text += table(["rows", "points", "dimension", "precision", "activation", *columns.values()], rows)
    return f"## Exact kernels on real and on random rows\n\n{text}"


_DATA_COLUMNS = {
    "first": "first",
    "later": "later",
    "three": "three kernels",
    "cross": "128 rows against the others",
    "first_s": "first, ms",
    "later_s": "later, ms",
    "extra_mb": "extra memory, MB",
}


def _measured(column: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.0f}" if column == "extra_mb" else f"{1e3 * value:.3g}" if column.endswith("_s") else f"{value:.2f}"


def kernel_speed(results: Path) -> str:
    """CK and NTK of many points against the Gram product and against other ways to the same kernel."""
    text = "## Exact kernels\n\n"
    for name, machine in (("cpu", "two cores"), ("h200", "an H200")):
        document = _read(results / f"speed_kernels_{name}.json")
        if document is None:
            continue
        text += f"CK and NTK together on {machine}, float64, in units of the product X Xᵀ of the same data. The last "
        text += "column leaves out the one triangle of X Xᵀ that is computed inside. "
        text += f"torch {document['versions']['torch']}. {_made_by(document)}"
        rows = [
            [word(r["activation"]), r["mode"], r["n"], r["p"], f"{r['ratio']:.2f}", f"{r['beyond_gram']:.2f}"]
            for r in document["gram"]
        ]
        text += table(["activation", "torch runs", "points", "dimension", "times the Gram product", "without it"], rows)
        for part, heading in _OTHERS.items():
            if document.get(part):
                columns = list(document[part][0])
                text += heading + table(
                    [_COLUMNS.get(c, c) for c in columns],
                    [[_number(r.get(c)) for c in columns] for r in document[part]],
                )
    return text


_COLUMNS = {
    "n": "points",
    "p": "dimension",
    "mode": "torch runs",
    "seconds": "seconds",
    "ns_per_entry": "nanoseconds per entry",
    "peak_gib": "memory at most, GiB",
    "draws_timed": "networks timed",
    "draws_needed": "networks needed",
    "monte_carlo_s": "networks, seconds",
    "exact_s": "exact kernel, seconds",
    "ratio": "times faster",
    "monte_carlo_error": "error of the networks",
    "neural_tangents_s": "neural-tangents, seconds",
    "ours_s": "notsodeep, seconds",
    "their_error": "error of neural-tangents",
}

_OTHERS = {
    "growth": "The NTK of tanh in float32, tile by tile:\n\n",
    "monte_carlo": "Against a mean over p²/1000 random networks (width 1000, 25 iterations; two timed, scaled up):\n\n",
    "neural_tangents": "Against neural-tangents 0.6.5, NTK of the input-injected untied network with 11 layers:\n\n",
}


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else word(str(value))


def networks(results: Path) -> str:
    """Inference times of twin, DEQ and torchdeq."""
    text = ""
    for name in ("networks_cpu", "networks_h200"):
        document = _read(results / f"{name}.json")
        if document is None:
            continue
        machine = document["machine"]
        text += f"## Inference on {machine['device']}\n\nMilliseconds for one batch; torch {machine['torch']}. "
        text += _made_by(document)
        kinds = list(dict.fromkeys(k for row in document["inference"] for k in row["milliseconds"]))
        rows = [
            [word(row["phi"]), row["width"], f"{row['tol']:g}", *(_cell(row["milliseconds"].get(k)) for k in kinds)]
            for row in document["inference"]
        ]
        text += table(["activation", "width", "tolerance", *(_solver(kind) for kind in kinds)], rows)
    return text


def _solver(kind: str) -> str:
    """A column of the times in words."""
    known = {"DEQ": "DEQ, solver chosen by itself", "fixed_point_iter": "plain iteration", "picard": "plain iteration"}
    maker, _, solver = kind.partition(" ")
    return f"{maker}, {known.get(solver, solver.capitalize())}" if solver else known.get(kind, kind)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
