"""What a maintainer would ask of the house: lines per room, long functions, many parameters, kinds asked.

Run it with ``python -m benchmarks.house``. It reports and judges nothing.
"""

from __future__ import annotations

import ast
import statistics
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

import notsodeep as nsd

SOURCE = Path(nsd.__file__).parent
KINDS = {"DEQ", "ENN", "ConvDEQ", "ConvENN", "Convolutional", "Network", "Dense", "Specification"}
PAGE = (".js", ".html", ".css")


class Function(NamedTuple):
    """One function: where it stands, its lines without the docstring, and how many parameters it takes."""

    where: str
    lines: int
    parameters: int


def files(*endings: str) -> dict[str, str]:
    """The text of the files with these endings, by their path inside the package."""
    found = sorted(path for path in SOURCE.rglob("*.*") if path.suffix in endings)
    return {path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8") for path in found}


def passed() -> list[tuple[int, int]]:
    """How many files and functions of the package a first and a later ``nsd.ntk`` of sixty rows pass."""
    X, deq, counts = np.random.default_rng(0).standard_normal((60, 20)) / 20**0.5, nsd.DEQ("tanh", 0.2), []
    nsd.clear_caches()
    nsd.ntk  # imported before anything is counted  # noqa: B018
    for _ in range(2):
        seen: set[tuple[str, str]] = set()
        sys.setprofile(lambda frame, *_, seen=seen: seen.add((frame.f_code.co_filename, frame.f_code.co_qualname)))
        nsd.ntk(deq, X)
        sys.setprofile(None)
        ours = [(file, name) for file, name in seen if file.startswith(str(SOURCE))]
        counts.append((len({file for file, _ in ours}), len(ours)))
    return counts


def room(file: str) -> str:
    """The folder of the package, or the file itself where it lies in none."""
    return file.split("/")[0].removesuffix(".py")


def functions(file: str, text: str) -> Iterator[Function]:
    """The functions of a file, nested ones too."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            said = node.body[0] if ast.get_docstring(node) is not None else None
            lines = node.end_lineno - node.lineno + 1 - (said.end_lineno - said.lineno + 1 if said else 0)
            taken = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            named = [one for one in taken if one.arg not in ("self", "cls")]
            yield Function(f"{file}:{node.lineno} {node.name}", lines, len(named))


def kinds_asked(text: str) -> list[int]:
    """The lines that ask which kind of network they have: ``isinstance(x, DEQ)`` and the like; modules are none."""
    tree = list(ast.walk(ast.parse(text)))
    calls = [node for node in tree if isinstance(node, ast.Call)]
    kinds = KINDS - {node.name for node in tree if isinstance(node, ast.ClassDef)}
    asked = [node for node in calls if ast.unparse(node.func) == "isinstance" and len(node.args) == 2]
    named = [
        (node.lineno, {part.rpartition(".")[2] for part in ast.unparse(node.args[1]).strip("()").split(" | ")})
        for node in asked
    ]
    return sorted(line for line, names in named if {n for name in names for n in name.split(", ")} & kinds)


def report() -> str:
    """The whole report as text."""
    python, page = files(".py"), files(*PAGE)
    rooms: Counter[str] = Counter()
    for file, text in python.items():
        rooms[room(file)] += text.count("\n")
    found = [one for file, text in python.items() for one in functions(file, text)]
    asked = {file: lines for file, text in python.items() if room(file) != "networks" and (lines := kinds_asked(text))}
    longest = sorted(found, key=lambda one: -one.lines)[:10]
    widest = sorted(found, key=lambda one: -one.parameters)[:10]
    return "\n".join(
        [
            f"Python: {sum(rooms.values()):,} lines in {len(python)} files",
            *(f"  {lines:6,}  {name}" for name, lines in rooms.most_common()),
            f"JavaScript, HTML and CSS: {sum(text.count(chr(10)) for text in page.values()):,} lines",
            *(f"  {text.count(chr(10)):6,}  {file}" for file, text in page.items()),
            f"Functions: {len(found):,}, of {statistics.median(one.lines for one in found):g} lines in the median",
            *(f"  {one.lines:6}  {one.where}" for one in longest),
            f"Parameters: {sum(one.parameters > 10 for one in found)} functions take more than ten",
            *(f"  {one.parameters:6}  {one.where}" for one in widest),
            f"The kind of a network is asked {sum(map(len, asked.values()))} times outside networks",
            *(f"  {len(lines):6}  {file}: lines {', '.join(map(str, lines))}" for file, lines in asked.items()),
            "ntk of sixty rows passes {} files and {} functions, later {} and {}".format(*sum(passed(), ())),
            f"Public names: {len(nsd.__all__)}",
        ]
    )


if __name__ == "__main__":
    print(report())
