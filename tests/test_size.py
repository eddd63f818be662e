"""The package stays small enough to be read: its lines, files, functions, names, numbers and caches are counted."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import statistics
from collections.abc import Iterator

import imports
import notsodeep as nsd
import surface


def test_lines_and_files():
    lines = sum(len(path.read_text().splitlines()) for path in imports.FILES.values())
    assert (lines <= 25_200, len(imports.FILES) <= 140) == (True, True), (lines, len(imports.FILES))


def functions() -> Iterator[tuple[str, int, int]]:
    """Where a function stands, its lines, and its lines without the docstring."""
    for module, tree in imports.trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                text = node.body[0] if ast.get_docstring(node) is not None else None
                said = (text.end_lineno or text.lineno) - text.lineno + 1 if text else 0
                yield f"{module}.py:{node.lineno} {node.name}", lines, lines - said


def test_functions_are_short():
    found = list(functions())
    assert statistics.median(lines for _, lines, _ in found) <= 6
    assert [(where, code) for where, _, code in found if code > 60] == []


def test_public_names():
    assert len(nsd.__all__) <= 45, len(nsd.__all__)


def test_parameters():
    """Of functions, methods and classes that a user calls; records, which hold results, may have many fields."""
    names = {name: thing for name, thing in surface.public_names().items() if not dataclasses.is_dataclass(thing)}
    methods = {
        f"{n}.{m}": f for n, c in names.items() if inspect.isclass(c) for m, f in surface.public_methods(c).items()
    }
    taken = {name: len(surface.parameters(thing)) for name, thing in (names | methods).items()}
    most = {name: 14 if is_estimator(names.get(name)) else 10 for name in taken}
    assert {name: number for name, number in taken.items() if number > most[name]} == {}


def is_estimator(thing: object) -> bool:
    return inspect.isclass(thing) and thing.__module__.startswith("notsodeep.estimators")


NUMERIC = (ast.Constant, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop, ast.Tuple, ast.List, ast.Dict, ast.Set)


def is_numeric(value: ast.expr | None) -> bool:
    """Numbers, sums and powers of them, and lists of them; also with names in between, as ``2 * EPS`` has."""
    if value is None:
        return False
    nodes = list(ast.walk(value))
    numbers = [n for n in nodes if isinstance(n, ast.Constant) and type(n.value) in (int, float)]
    return bool(numbers) and all(isinstance(n, (*NUMERIC, ast.Name, ast.Attribute, ast.expr_context)) for n in nodes)


def tuning_numbers() -> Iterator[str]:
    """Numeric constants of modules, and the fields of the records of limits."""
    for module, tree in imports.trees().items():
        for node in tree.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and is_numeric(node.value):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield f"{module}.{ast.unparse(target)}"
            if isinstance(node, ast.ClassDef) and node.name.endswith("Limits"):
                fields = [field for field in node.body if isinstance(field, ast.AnnAssign)]
                yield from (f"{module}.{node.name}.{ast.unparse(field.target)}" for field in fields)


def test_tuning_numbers():
    found = list(tuning_numbers())
    assert len(found) < 120, (len(found), found)


def test_caches():
    decorators = [d for node in everywhere() for d in getattr(node, "decorator_list", [])]
    uses = [d for d in decorators if isinstance(d, ast.Call) and ast.unparse(d.func).split(".")[-1] == "cached"]
    assert len(uses) < 20, len(uses)


def test_no_other_cache():
    other = ("lru_cache", "functools.cache")
    found = [m for m, path in imports.FILES.items() for name in other if name + "(" in _code(path.read_text(), name)]
    assert [module for module in found if module != "_caches"] == []


def _code(text: str, name: str) -> str:
    """Uses of a name as a decorator or a call, with or without arguments."""
    return text.replace(f"@{name}\n", f"{name}(").replace("cached_property", "")


def everywhere() -> Iterator[ast.AST]:
    for tree in imports.trees().values():
        yield from ast.walk(tree)
