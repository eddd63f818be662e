"""The package as a whole: every public name exists, importing is light, the examples run."""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import inspect
import os
import re
import runpy
import subprocess
import sys
import tomllib
import types

import pytest

import imports
import notsodeep as nsd
from helpers import tolerance

ROOT = imports.SOURCE.parents[1]


def test_every_public_name_exists():
    assert [name for name in nsd.__all__ if getattr(nsd, name) is None or name not in dir(nsd)] == []


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="attribute kernel"):
        nsd.kernel  # noqa: B018


def test_the_version_is_stated_once_and_repeated_nowhere_else_differently():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" in project["project"]["dynamic"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/notsodeep/__init__.py"
    assert f"version: {nsd.__version__}" in (ROOT / "CITATION.cff").read_text().splitlines()
    assert f"## [{nsd.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_the_public_names_are_those_of_the_stub():
    tree = ast.parse((imports.SOURCE / "__init__.pyi").read_text())
    found = [alias for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names]
    assert sorted(alias.name for alias in found) == nsd.__all__
    assert all(alias.asname == alias.name for alias in found)  # a name without "as" is private to a type checker


def test_types_reach_the_user(tmp_path):
    pytest.importorskip("mypy")
    assert (imports.SOURCE / "py.typed").exists()
    snippet, config = tmp_path / "snippet.py", tmp_path / "mypy.ini"
    snippet.write_text("import notsodeep as nsd\nreveal_type(nsd.match)\nreveal_type(nsd.nn.DEQ)\nnsd.mtach\n")
    # reading these takes half a minute, and they are not ours
    others = ["torch", "numpy", "scipy", "sklearn", "matplotlib", "rich", "typer", "safetensors"]
    config.write_text(
        "[mypy]\nfollow_imports = silent\nignore_missing_imports = True\n"
        f"[mypy-{','.join(f'{name}.*' for name in others)}]\nfollow_imports = skip\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", os.devnull, snippet]
    environment = {**os.environ, "MYPYPATH": str(imports.SOURCE.parent)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path).stdout
    match, model, misspelt, *_ = said.splitlines()
    assert "deq: notsodeep.networks.dense.DEQ" in match
    assert "Any" not in match.split("->")[-1]
    assert "in_features: int" in model
    assert "no attribute" in misspelt


def test_importing_the_package_is_light():
    code = (
        "import sys, time; start = time.process_time(); import notsodeep; took = time.process_time() - start\n"
        "print('torch' in sys.modules, 'matplotlib' in sys.modules, took)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(3)]
    said = [run.stdout.split() for run in runs]
    assert all(words[:2] == ["False", "False"] for words in said)
    assert min(float(words[2]) for words in said) < 0.15  # seconds of the processor, about 0.01


def test_networks_and_estimators_load_without_the_compiler():
    """Torch's compiler takes longer to load than torch itself; whoever compiles a network loads it then."""
    code = "import sys, notsodeep.estimators; print('notsodeep.nn' in sys.modules, 'torch._dynamo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["True", "False"]


ROOMS = [
    "_words",
    "errors",
    "_arguments",
    "_files",
    "_progress",
    "_caches",
    "_arrays",
    "_fixed_point",
    "_equilibrium",
    "_maps",
    "_conjugate",
    "_chebyshev",
    "activations",
    "units",
    "gaussian",
    "networks",
    "mixtures",
    "kernels",
    "equivalents",
    "spectra",
    "matching",
    "codegen",
    "nn",
    "solve",
    "learning",
    "distributed",
    "estimators",
    "gpytorch",
    "plots",
    "demo",
    "explore",
    "cli",
    "__main__",
]
"""In the order data flows; a room imports only from those before it."""


DRAWN = ("_words", "plots")
"""A result has a method ``plot``, which loads the displays when it is called: the one way down."""


def test_every_file_lies_in_a_room():
    assert {imports.room(module) for module in imports.MODULES} - {""} <= set(ROOMS)


def test_rooms_import_only_from_rooms_above():
    between = [i for i in imports.imports() if imports.room(i.file) != imports.room(i.module) and i.module]
    assert len(between) > 100
    upward = [i for i in between if ROOMS.index(imports.room(i.module)) > ROOMS.index(imports.room(i.file))]
    assert [str(i) for i in upward if (i.file, i.module) != DRAWN] == []
    assert [i for i in between if (i.file, i.module) == ("estimators/machine", "distributed")]  # inside functions too


def test_only_what_people_see_uses_the_public_names():
    """``import notsodeep as nsd`` reaches every room, above and below; a version is no room."""
    through = {i.file for i in imports.imports() if not i.module and i.name != "__version__"}
    assert {imports.room(file) for file in through} <= {"cli", "demo", "explore"}


FACTORIES = {("activations/base", f"activations/{file}") for file in ("callables", "affine", "polynomial")}
"""A method of the base class makes one of its subclasses (Activation.from_callable, .affine), and imports it late."""


def test_no_function_shadows_a_module():
    """``import notsodeep.matching.match as match`` yields a module, before and after its room was used."""
    modules = [f"notsodeep.{module.replace('/', '.')}" for module in imports.MODULES if module not in ("", "__main__")]
    shadowed = []
    for module in modules:
        try:
            assert inspect.ismodule(importlib.import_module(module))
        except ModuleNotFoundError as error:  # a module for devices that are not here
            if error.name != "triton":
                raise
            continue
        room, _, name = module.rpartition(".")
        shadowed += [] if inspect.ismodule(getattr(sys.modules[room], name)) else [module]
    assert shadowed == []


def test_files_do_not_import_each_other_in_circles():
    edges: dict[str, set[str]] = {}
    for found in imports.imports():
        if found.module not in ("", found.file) and (found.file, found.module) not in {*FACTORIES, DRAWN}:
            edges.setdefault(found.file, set()).add(found.module)
    assert imports.cycle(edges) == []
    late = [i for i in imports.imports() if i.module == "kernels/device"]
    assert {"kernels/matrix", "kernels/convolution"} <= {i.file for i in late}  # loaded by name, inside functions
    assert imports.cycle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]  # it can fail


def test_private_names_stay_in_their_file():
    private = [i for i in imports.imports() if i.name.startswith("_") and not i.name.startswith("__")]
    assert [str(i) for i in private if i.module == i.target] == []  # a module whose name begins so is no private name
    assert imports.private_reads() == []  # nor are private attributes read from another room


def test_sections_of_the_theory_that_are_cited_exist():
    theory = (ROOT / "docs" / "theory.md").read_text()
    sections = re.findall(r"^## (\w+)\. ", theory, flags=re.MULTILINE)
    texts = {p: p.read_text() for folder in ("src", "tests", "benchmarks") for p in (ROOT / folder).rglob("*.py")}
    cited = {(p.name, n) for p, text in texts.items() for n in re.findall(r"[Tt]heory(?:\.md)?,? section (\w+)", text)}
    assert len(cited) > 10
    assert len(sections) == len(set(sections))
    assert {found for found in cited if found[1] not in sections} == set()


def pins(name: str) -> dict[str, str]:
    return dict(line.split("==") for line in (ROOT / name).read_text().splitlines() if "==" in line)


def numbers(version: str) -> list[int]:
    return [int(part) for part in version.split("+")[0].split(".")]


def test_the_range_of_versions_is_the_tested_one():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    lowest = {name: bound.split(",")[0] for name, bound in (entry.split(">=") for entry in stated)}
    oldest, newest = pins("constraints-oldest.txt"), pins("constraints.txt")
    assert {name: numbers(oldest[name])[: len(numbers(low))] for name, low in lowest.items()} == {
        name: numbers(low) for name, low in lowest.items()
    }
    for name in lowest:  # what is installed may be newer than what is pinned: `make test-newest` runs this, too
        assert numbers(oldest[name]) <= numbers(newest[name]), name
        assert numbers(oldest[name]) <= numbers(importlib.metadata.version(name)), name


def code_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_examples_of_the_contributing_guide_run():
    own, *others = code_blocks("CONTRIBUTING.md")
    names: dict = {}
    exec(own, names)
    assert names["deq"].limit == pytest.approx(0.25, rel=tolerance())
    for block in others:
        exec(block, names)


@pytest.mark.parametrize("url", ["https://example.org/notsodeep", ""])
def test_the_readme_of_the_package_page_has_no_link_that_leads_nowhere(monkeypatch, url):
    stub = types.ModuleType("hatchling.metadata.plugin.interface")
    stub.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, stub.__name__, stub)
    hook = runpy.run_path(str(ROOT / "hatch_build.py"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = hook["for_package_page"](text, url)
    links = re.findall(r"\]\(([^)\s]+)\)", shown)
    assert all(link.startswith(("https://", "#")) for link in links)
    given = [link for link in re.findall(r"\]\(([^)\s]+)\)", text) if not link.startswith(("http", "#"))]
    assert all((ROOT / link.partition("#")[0]).exists() for link in given)
    assert f"({url}/raw/main/{next(link for link in given if link.endswith(('png', 'svg')))})" in shown or not url
    assert len(links) >= len(given) or not url
