"""Tables of the pages that come from results/ or from the package; ``python docs/pages.py`` writes them anew."""

from __future__ import annotations

import functools
import inspect
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import notsodeep
from studies import learned_features, peers, training
from studies._measure import standard_error
from studies._style import word

__all__ = ["api", "by_task", "filled", "for_sphinx", "reference", "table"]


HERE = Path(__file__).resolve().parent


class Story:
    """The order of the gallery: what a DEQ's layer is, what one does with it, and the theory behind it."""

    names = (
        "one_layer",
        "units",
        "certificate",
        "equal_kernels",
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


def filled(text: str) -> str:
    """A page whose tables are those that results/ and the package have now."""
    results = HERE.parent / "results"
    made = {
        "evidence": lambda: evidence(results),
        "api": api,
        "training": lambda: trained(results),
        "peers": lambda: scores(results),
        "learned": lambda: learned(results),
        "losses": lambda: losses(results),
    }
    return re.sub(
        r"(<!-- table: (\w+) -->\n\n).*?(<!-- end of table -->)",
        lambda found: f"{found[1]}{made[found[2]]().strip()}\n\n{found[3]}",
        text,
        flags=re.DOTALL,
    )


def for_sphinx(docname: str, text: str) -> str:
    """A page for the site: names lead to their pages, and the lists of links of the index become contents."""
    if docname == "api":
        text = text.partition("<!-- table")[0] + reference(HERE / "api")
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
    "nn.LinearisedModel nn.LazyReport",
    "Build, train and export networks": "nn.DEQ nn.ENN nn.ConvDEQ nn.fit nn.fit_readout nn.History nn.SolverOptions "
    "nn.Model nn.save nn.load nn.export_onnx",
    "Describe data": "GaussianMixture MixtureStatistics standardise Standardiser",
    "Predict spectra and learning": "coefficients equivalent spectral_law predict_learning learning_curve "
    "estimate_learning",
    "Fit kernel machines": "DEQClassifier DEQRegressor DEQGaussianProcess DEQFeatures DEQKernel",
    "Solve with kernels": "solve.CG solve.NetworkKernel solve.KernelTiles solve.solve_dense solve.solve_operator "
    "solve.Solution",
    "Draw": "plots.SpectrumDisplay plots.LearningDisplay plots.TwinDisplay plots.ReplacementDisplay "
    "plots.FeaturesDisplay plots.LazyDisplay",
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


def api() -> str:
    """The public names by task, with what each does."""
    return "".join(
        f"## {title}\n\n{table(['name', 'what it does'], [[f'`nsd.{n}`', _summary(_named(n))] for n in names])}"
        for title, names in by_task().items()
    )


def reference(folder: Path) -> str:
    """One page per name in a folder; the list of them by task, with links and contents."""
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


def _mean(errors: Sequence[float] | float) -> float:
    return sum(errors) / len(errors) if isinstance(errors, list) else float(errors)


def _curves(curves: dict[str, Any], matter: str = "") -> str:
    sizes = next(iter(curves.values()))["n"]
    rows = [
        [
            _form(name),
            *(f"{_mean(e):.4f}" for e in curve["errors"]),
            "" if curve["slope"] is None else f"{curve['slope']:.3g}",
        ]
        for name, curve in curves.items()
    ]
    return table(["form", *(f"n = {n}" for n in sizes), "slope"], rows, matter)


def _form(name: str) -> str:
    """The kernel of a form in words."""
    kernel, comma, change = name.partition(", ")
    return f"{word(kernel)}{comma}{change}"


def _document(results: Path, study: str) -> Any:
    return json.loads((results / study / "full.json").read_text())


def trained(results: Path) -> str:
    """Test accuracies of networks whose weights all train."""
    found = training.accuracies(_document(results, "training"))
    rows = [
        [word(data), f"{width:,}", word(optimiser), *(_percent(row[name]["accuracy"]) for name in training.NETWORKS)]
        for (data, optimiser, width), row in found.items()
    ]
    return table(["data", "width", "optimiser", *training.NETWORKS], rows, fold=False)


def _percent(shares: Sequence[float]) -> str:
    return f"{100 * _mean(shares):.1f} ± {100 * standard_error(shares):.1f}"


def scores(results: Path) -> str:
    """Scores of machines by table, what the DEQ lacks to the best RBF machine, and mean ranks."""
    document = _document(results, "peers")
    means, ranks = peers.means(document), peers.ranks(document)
    rows = [
        [
            name,
            *(f"{row[m]:.1f}" if m in row else "" for m in peers.MACHINES),
            f"{round(peers.behind(row), 1) + 0.0:+.1f}",
        ]
        for name, row in means.items()
    ]
    rows.append(["**mean rank**", *(f"**{ranks[m]:.2f}**" if m in ranks else "" for m in peers.MACHINES), ""])
    return table(["data", *peers.MACHINES, "best RBF - DEQ"], rows, fold=False)


def learned(results: Path) -> str:
    """Learned features beside other machines, on the tables that all of them have measured."""
    document = _document(results, "learned_features")
    means, ranks = learned_features.scores(document), learned_features.ranks(document)
    first = {p["settings"]["table"]: p for p in reversed(document["points"].values()) if "features" in p["numbers"]}
    rows = [
        [
            name,
            f"{first[name]['settings']['rows']:,}",
            *(f"{row[m]:.1f}" for m in ranks),
            first[name]["numbers"]["features"] or "no",
        ]
        for name, row in means.items()
        if ranks.keys() <= row.keys()
    ]
    rows.append(["**mean rank**", "", *(f"**{rank:.2f}**" for rank in ranks.values()), ""])
    return table(["data", "rows", *ranks, "learned"], rows, fold=False)


def losses(results: Path) -> str:
    """Log-losses of the machines that have probabilities."""
    found = peers.means(_document(results, "peers"), "losses")
    machines = [name for name in peers.MACHINES if all(name in row for row in found.values())]
    rows = [[data, *(f"{row[name]:.3f}" for name in machines)] for data, row in found.items()]
    return table(["data", *machines], rows, fold=False)


def evidence(results: Path) -> str:
    """The rejected forms of the equivalents beside the kept ones."""
    document = _document(results, "rejected_variants")
    text = f"Made by `{document['command']}`.\n\n"
    for point in document["points"].values():
        shown = _curves(point["numbers"], r"squared|diagonal|kernel \||preprint \|")
        text += f"On {word(point['settings']['mixture_name'])}:\n\n{shown}"
    return text


if __name__ == "__main__":
    for path in HERE.rglob("*.md"):
        path.write_text(filled(path.read_text()))
