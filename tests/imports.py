"""What every file of the package imports, read from its syntax tree: at the top and inside functions alike."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
while not (SOURCE / "pyproject.toml").exists():  # wherever in tests/ this file lies
    SOURCE = SOURCE.parent
SOURCE = SOURCE / "src" / "notsodeep"


@dataclass(frozen=True)
class Import:
    """``from target import name``, both inside the package; modules are paths without suffix, "" the package itself."""

    file: str
    target: str
    name: str
    line: int

    @property
    def module(self) -> str:
        """The file that is loaded: the name itself where it is a module, else the one it is taken from."""
        inner = f"{self.target}/{self.name}".strip("/")
        return inner if inner in MODULES else self.target

    def __str__(self) -> str:
        return f"{self.file}.py:{self.line} imports {self.name} from {self.target or 'the package'}"


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "/".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module(path): path for path in sorted(SOURCE.rglob("*.py"))}
MODULES = set(FILES)


def room(module: str) -> str:
    """The first part of a module's path."""
    return module.split("/")[0]


@functools.cache
def trees() -> dict[str, ast.Module]:
    """The syntax tree of every file."""
    return {module: ast.parse(path.read_text()) for module, path in FILES.items()}


@functools.cache
def imports() -> list[Import]:
    """All imports between files of the package; those for type checkers alone are not run and left out."""
    return [found for module, path in FILES.items() for found in _of(module, path)]


def _of(module: str, path: Path) -> Iterator[Import]:
    package = [part for part in module.split("/") if part]
    package = package if path.name == "__init__.py" else package[:-1]
    for node in _executed(trees()[module]):
        if isinstance(node, ast.ImportFrom):
            target = _target(node, package)
            if target is not None:
                yield from (Import(module, target, alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Import):
            absolute = [alias.name for alias in node.names if alias.name.split(".")[0] == "notsodeep"]
            yield from (Import(module, "/".join(name.split(".")[1:]), "", node.lineno) for name in absolute)
        elif (late := _late(node, package)) is not None:
            yield Import(module, late, "", node.lineno)


def _late(node: ast.AST, package: list[str]) -> str | None:
    """The module that ``import_module`` loads, where its name is written out; loops over a folder are left out."""
    if not (isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module")):
        return None
    here = ".".join(["notsodeep", *package])
    text = ast.unparse(node.args[0]).strip("f'\"").replace("{__package__}", here).replace("{__name__}", here)
    text = here + text if text.startswith(".") else text
    return "/".join(text.split(".")[1:]) if text.startswith("notsodeep.") and "{" not in text else None


def _target(node: ast.ImportFrom, package: list[str]) -> str | None:
    below = node.module.split(".") if node.module else []
    if node.level:
        return "/".join([*package[: len(package) - node.level + 1], *below])
    return "/".join(below[1:]) if below[:1] == ["notsodeep"] else None


def _executed(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node except those under ``if TYPE_CHECKING:``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        yield node
        yield from _executed(node)


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Some cycle of a graph, as the nodes along it; empty where there is none."""
    done: set[str] = set()
    path: list[str] = []

    def visit(node: str) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        path.append(node)
        found = next((way for other in sorted(edges.get(node, ())) if (way := visit(other))), [])
        path.pop()
        done.add(node)
        return found

    return next((way for node in sorted(edges) if (way := visit(node))), [])


def private_reads() -> list[str]:
    """Where a file reads a private attribute of some object that no file of its own room defines."""
    defined: dict[str, set[str]] = {}
    for module, tree in trees().items():
        defined.setdefault(room(module), set()).update(_private_definitions(tree))
    return [
        f"{module}.py:{node.lineno} reads {ast.unparse(node)}"
        for module, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and _private(node.attr) and node.attr not in defined[room(module)]
    ]


def _private(name: str) -> bool:
    """Whether a name is for its own file; those that every named tuple has are public."""
    return name.startswith("_") and not name.startswith("__") and name not in ("_replace", "_asdict", "_fields")


def _private_definitions(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr
