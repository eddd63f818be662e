"""Pages whose numbers come from results/*.json: nothing is copied by hand."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from study_tables import (
    accuracy_table,
    one_layer_accuracy_table,
    one_layer_bounds_table,
    one_layer_lazy_table,
    one_layer_speed_table,
    one_layer_width_table,
    routes_table,
)

import notsodeep
from studies._style import adaptive_svg, figure_style, panels, phrase, word

__all__ = ["api", "by_task", "for_sphinx", "table", "write_all"]


HERE = Path(__file__).resolve().parent


class Story:
    """The order of the gallery: what a DEQ's layer is, what one does with it, and the theory behind it."""

    names = (
        "one_layer",
        "units",
        "certificate",
        "plain_layer",
        "layer_instead",
        "replace_trained",
        "exact_kernels",
        "predicted_spectrum",
        "predicted_learning",
        "kernel_machine",
        "own_activation",
        "papers_route",
    )

    def __init__(self, folder: str) -> None:
        """One key for all folders."""

    def __call__(self, file: str) -> int:
        """The place of a file."""
        return self.names.index(Path(file).stem)


def write_all(docs: Path, results: Path) -> None:
    """Tables in docs/_generated, and one page per public name in docs/api."""
    folder = docs / "_generated"
    folder.mkdir(exist_ok=True)
    for name, text in {
        "evidence": evidence(results),
        "numbers": equivalents(results) + matching(results) + distances(results) + accuracy(results),
        "benchmarks": data_speed(results) + kernel_speed(results) + networks(results),
        "api": api(docs / "api"),
        "plain": _section(docs.parent / "README.md", "Why not simply a plain layer?").partition("\n\n")[2],
        "three_routes": three_routes(results),
        **one_layer(results),
    }.items():
        (folder / f"{name}.txt").write_text(text)


def _section(path: Path, title: str) -> str:
    return path.read_text().split(f"## {title}\n\n")[1].split("\n## ")[0]


def for_sphinx(docname: str, text: str) -> str:
    """A page with its tables; the lists of links of the index become tables of contents."""
    if docname == "results":
        return "```{include} ../results/README.md\n:relative-images:\n```\n"
    text = re.sub(r"<!-- table: (\w+) -->", lambda found: (HERE / "_generated" / f"{found[1]}.txt").read_text(), text)
    text = text.replace("../examples/README.rst", "gallery/index.rst")
    text = re.sub(r"\.\./examples/(\w+)\.py", r"gallery/\1.rst", text)
    text = re.sub(r"^\|.*$", lambda row: _unbroken(row[0]), text, flags=re.MULTILINE)
    return text + "".join(_contents(part) for part in text.split("\n## ")[1:]) if docname == "index" else text


def _unbroken(row: str) -> str:
    """A row of a table in which a number stays on one line."""
    parts = row.split("`")
    parts[::2] = [re.sub(r"(?<=\de)-(?=\d)", "\u2011", part).replace(" ± ", "\u00a0±\u00a0") for part in parts[::2]]
    return "`".join(parts)


def _contents(section: str) -> str:
    """The hidden table of contents of a section ``Title`` with a list of links to pages."""
    links = re.findall(r"^- \[([^\]]*)\]\(([\w/]+)\.\w+\)", section, flags=re.MULTILINE)
    entries = "\n".join(f"{words} <{page}>" for words, page in links)
    title = section.splitlines()[0]
    return f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n" if entries else ""


TASKS = {
    "Say which network": "DEQ ENN ConvDEQ ConvENN activation Activation network_from_dict "
    "activations.activation_names activations.LeakyReLU activations.HardTanh activations.ELU activations.Hermite "
    "activations.Quadratic activations.Linear activations.Affine",
    "Find the layer that stands for a DEQ": "match_one_layer match match_sphere match_conv Twin pytorch_code",
    "Replace a trained DEQ": "replace nn.Replacement nn.Certificate nn.ReplaceOptions nn.Decision nn.Contraction",
    "Compute exact kernels": "ck ntk kernels_of kernel_function finite_ck finite_ntk clear_caches",
    "Measure the kernel of a network as it is": "empirical_ntk empirical_ck linearise lazy nn.EmpiricalKernel "
    "nn.LinearisedModel plots.LazyReport",
    "Build, train and export networks": "nn.DEQ nn.ENN nn.ConvDEQ nn.fit nn.fit_readout nn.History nn.SolverOptions "
    "nn.Model nn.save nn.load nn.export_onnx",
    "Describe data": "GaussianMixture MixtureStatistics standardise Standardiser",
    "Predict spectra and learning": "coefficients equivalent spectral_law predict_learning learning_curve "
    "estimate_learning",
    "Fit kernel machines": "DEQClassifier DEQRegressor DEQGaussianProcess DEQFeatures DEQKernel "
    "estimators.save_estimator estimators.load_estimator",
    "Solve with kernels": "solve.CG solve.NetworkKernel solve.KernelTiles solve.solve_dense solve.solve_operator "
    "solve.Solution",
    "Draw": "plots.SpectrumDisplay plots.LearningDisplay plots.LazyDisplay",
}
ERRORS = "Errors and warnings"
FURTHER = "What the calls return, and further names"


def by_task() -> dict[str, list[str]]:
    """Public names by what one does with them, then the errors and the other names of the rooms."""
    groups = {title: names.split() for title, names in TASKS.items()}
    groups[ERRORS] = [f"errors.{name}" for name in notsodeep.errors.__all__]
    seen = {id(_named(name)) for names in groups.values() for name in names}
    rooms = [name for name in notsodeep.__all__ if inspect.ismodule(_named(name))] + ["equivalents", "spectra"]
    inside = [f"{room}.{name}" for room in rooms for name in getattr(_named(room), "__all__", ())]
    groups[FURTHER] = []
    for name in [*notsodeep.__all__, *inside]:
        thing = _named(name)
        if id(thing) not in seen and (inspect.isroutine(thing) or isinstance(thing, type)):
            seen.add(id(thing))
            groups[FURTHER].append(name)
    return groups


def _named(name: str) -> Any:
    return functools.reduce(getattr, name.split("."), notsodeep)


def api(folder: Path) -> str:
    """One page per name; the list of them by task, with what each does."""
    folder.mkdir(exist_ok=True)
    groups, text = by_task(), ""
    for path in set(folder.glob("*.rst")) - {folder / f"notsodeep.{name}.rst" for ns in groups.values() for name in ns}:
        path.unlink()  # of a name that is gone
    for title, names in groups.items():
        rows = [[f"[`nsd.{name}`](api/notsodeep.{name}.rst)", _summary(_named(name))] for name in names]
        text += f"## {title}\n\n{table(['name', 'what it does'], rows, fold=False)}"
        entries = "\n".join(f"nsd.{name} <api/notsodeep.{name}>" for name in names)
        text += f"```{{toctree}}\n:hidden:\n\n{entries}\n```\n\n"
        for name in names:
            kind = "autoclass" if isinstance(_named(name), type) else "autofunction"
            path = folder / f"notsodeep.{name}.rst"
            page = f"nsd.{name}\n{'=' * (4 + len(name))}\n\n.. {kind}:: notsodeep.{name}\n"
            if not path.exists() or path.read_text() != page:  # an unchanged page is not read again
                path.write_text(page)
    return text


def _summary(thing: Any) -> str:
    first = inspect.cleandoc(thing.__doc__ or "").split("\n")[0]
    return re.sub(r":\w+:`~?\.?([^`]+)`", r"`\1`", first).replace("``", "`").replace("|", "\\|").replace("*", "\\*")


_SHORT = 8  # rows; a longer table is folded


def table(headings: Sequence[str], rows: Sequence[Sequence[Any]], matter: str = "", fold: bool = True) -> str:
    """A Markdown table; of a long one the rows whose cells match ``matter``, with the rest to be unfolded."""
    lines = ["| " + " | ".join(map(str, row)) + " |" for row in [headings, ["---"] * len(headings), *rows]]
    whole = "\n".join(lines) + "\n\n"
    if not fold or len(rows) <= _SHORT:
        return whole
    chosen = [line for line in lines[2:] if re.search(matter, line)] if matter else []
    few = "\n".join([*lines[:2], *chosen]) + "\n\n" if chosen else ""
    return f"{few}<details>\n<summary>All {len(rows)} rows</summary>\n\n{whole}</details>\n\n"


def _read(path: Path) -> dict[str, Any] | None:
    return json.loads(path.read_text()) if path.exists() else None


def _made_by(document: dict[str, Any]) -> str:
    command = document["command"]
    if len(command) < 120:
        return f"Made by `{command}`.\n\n"
    lines = command.replace("; ", "\n")
    return f"\n\n<details>\n<summary>The commands that made it</summary>\n\n```sh\n{lines}\n```\n\n</details>\n\n"


def _mean(errors: Sequence[float] | float) -> float:
    return sum(errors) / len(errors) if isinstance(errors, list) else float(errors)


def _curves(curves: dict[str, Any], matter: str = "") -> str:
    sizes = next(iter(curves.values()))["n"]
    rows = [
        [_form(name), *(f"{_mean(e):.4f}" for e in curve["errors"]), _cell(curve["slope"])]
        for name, curve in curves.items()
    ]
    return table(["form", *(f"n = {n}" for n in sizes), "slope"], rows, matter)


def _form(name: str) -> str:
    """The kernel of a form in words."""
    kernel, comma, change = name.partition(", ")
    return f"{word(kernel)}{comma}{change}"


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
    return text + table(headings, rows, r"^\| (tanh|arctan|relu|silu|elu) \| ck \| \w+ \(auto\)")


def evidence(results: Path) -> str:
    """The rejected forms of the equivalents beside the kept ones."""
    document = _read(results / "rejected_variants" / "full.json")
    if document is None:
        return ""
    text = _made_by(document)
    for point in document["points"].values():
        shown = _curves(point["numbers"], r"squared|diagonal|kernel \||preprint \|")
        text += f"On {word(point['settings']['mixture_name'])}:\n\n{shown}"
    return text


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
    text += _picture("Two classes with full covariances", "mixtures_error/full_full_covariances.svg")
    return text + _made_by(document) + _curves(flat, "full covariances.*: conjugate")


def accuracy(results: Path) -> str:
    """Test accuracies of trained networks at the published width."""
    document = _read(results / "accuracy" / "full.json")
    if document is None:
        return ""
    text = "## Accuracy of trained networks\n\nTest accuracy in percent, mean over seeds.\n\n" + _made_by(document)
    return text + table(*accuracy_table(document))


def distances(results: Path) -> str:
    """How far twins and equivalents are from exact kernels, in the papers' figures."""
    text = ""
    for name in ("eigenvalues", "kernels", "sphere"):
        document = _read(results / name / "full.json")
        if document is None:
            continue
        rows = [
            [phrase(point), phrase(label), *(f"{v:.3g}" for v in numbers.values())]
            for point, content in document["points"].items()
            for label, numbers in content["numbers"]["distances"].items()
        ]
        first = next(iter(document["points"].values()))["numbers"]["distances"]
        text += f"## {document.get('title', name)}\n\n"
        text += _picture(document.get("title", name), _DRAWN[name]) + _made_by(document)
        text += table(["point", "form", *next(iter(first.values()))], rows, r"theorem|twin|quadratic")
    return text


_DRAWN = {
    "eigenvalues": "eigenvalues/full_mnist_tanh_ck.svg",
    "kernels": "kernels/full_mnist_relu_image.svg",
    "sphere": "sphere/full.svg",
}


def _picture(words: str, path: str) -> str:
    return f"![{words}](../results/{path})\n\n"


def three_routes(results: Path) -> str:
    """Kernels, regressions and networks by route."""
    document = _read(results / "three_routes" / "full.json")
    rows = r"^\| MNIST \|.*\| (one layer|four numbers) \|"
    return "" if document is None else _made_by(document) + table(*routes_table(document), rows)


_WIDTHS = (32, 128, 1024, 8192)  # of the accuracies in the documentation; the figures show all


def one_layer(results: Path) -> dict[str, str]:
    """One-layer twins: bounds, finite widths, accuracies, lazy training, speed."""
    made = {
        "one_layer_bounds": (
            "one_layer/full.json",
            lambda d: one_layer_bounds_table(d, 0.8),
            r"(tanh|GELU|SiLU|ELU|ReLU) .* CK \| (0.5 to 1.5|all)",
        ),
        "one_layer_width": ("one_layer_width/full.json", one_layer_width_table, r"^\| MNIST \| ReLU"),
        "one_layer_accuracy": (
            "one_layer_accuracy/full.json",
            lambda d: one_layer_accuracy_table(d, _WIDTHS),
            r"ReLU \| 1,024 ",
        ),
        "one_layer_adam": (
            "one_layer_accuracy/full.json",
            lambda d: one_layer_accuracy_table(d, None, "adam"),
            r"ReLU \| 1,024 ",
        ),
        "one_layer_lazy": ("one_layer_lazy/full.json", one_layer_lazy_table, r"^\| MNIST \| ReLU"),
        "one_layer_speed": ("speed_one_layer.json", one_layer_speed_table, r"1,024 \| (one|plain) layer \|"),
        "one_layer_speed_gpu": ("speed_one_layer_cuda.json", one_layer_speed_table, r"1,024 \| (one|plain) layer \|"),
    }
    text = {}
    for name, (path, rows, matter) in made.items():
        document = _read(results / path)
        text[name] = "" if document is None else _made_by(document) + table(*rows(document), matter)
    return text


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
        heads = ["rows", "points", "dimension", "precision", "activation", *columns.values()]
        text += table(heads, rows, r"^\| mnist \| (2000|16384) \| 784 \| float64")
    _draw_speed(results)
    figure = "![The NTK in units of the Gram product](_generated/speed.svg)\n\n"
    return f"## Exact kernels on real and on random rows\n\n{figure}{text}"


def _draw_speed(results: Path) -> None:
    """Later calls on MNIST in float64, one dot for each machine and activation."""
    with figure_style():
        figure, ax = panels((7.0, 3.4), "An exact NTK costs one to five times the product X Xᵀ")
        machines = {"cpu": "two cores, 2,000 rows", "xeon": "two busy threads, 2,000 rows", "h200": "H200, 16,384 rows"}
        for (name, label), marker in zip(machines.items(), "osD", strict=True):
            document = _read(results / f"speed_data_{name}.json") or {"rows": []}
            rows = [r for r in document["rows"] if r["data"] == "mnist" and r["dtype"] == "float64"]
            rows = [r for r in rows if r["n"] in (2000, 16384)]
            ax.plot([r["later"] for r in rows], [word(r["activation"]) for r in rows], marker, label=label)
        ax.axvline(1.0, color="0.5", lw=1)
        ax.set(xlabel="time of the NTK / time of the Gram product (MNIST, later calls)", xlim=(0, None))
        ax.legend()
        (HERE / "_generated" / "speed.svg").write_text(adaptive_svg(figure))
        plt.close(figure)


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
        text += table(
            ["activation", "torch runs", "points", "dimension", "times the Gram product", "without it"],
            rows,
            r"(tanh|ReLU) \|",
        )
        for part, heading in _OTHERS.items():
            if document.get(part):
                columns = list(document[part][0])
                text += heading + table(
                    [_COLUMNS.get(c, c) for c in columns],
                    [[_number(r.get(c)) for c in columns] for r in document[part]],
                    r"(tanh|ReLU|erf|GELU)",
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
        text += table(
            ["activation", "width", "tolerance", *(_solver(kind) for kind in kinds)], rows, r"\| 1024 \| 0.001"
        )
    return text


def _solver(kind: str) -> str:
    """A column of the times in words."""
    known = {"DEQ": "DEQ, solver chosen by itself", "fixed_point_iter": "plain iteration", "picard": "plain iteration"}
    maker, _, solver = kind.partition(" ")
    return f"{maker}, {known.get(solver, solver.capitalize())}" if solver else known.get(kind, kind)


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
