"""Names and paths in the prose of the documentation exist: examples run elsewhere, sentences are read here."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import notsodeep as nsd

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PLACES = ("src", "tests", "studies", "benchmarks", "docs", "examples", "results")
FILES = [f"/{path.relative_to(ROOT).as_posix()}" for place in PLACES for path in (ROOT / place).rglob("*.*")]


def quoted(text: str) -> Iterator[str]:
    """What stands in single backticks, outside blocks of code."""
    prose = re.sub(r"^ *(```|~~~).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"(?<!`)`([^`\n]+)`(?!`)", prose)


def names(text: str) -> list[str]:
    """Dotted names of the package; NAME and ROOM stand for any."""
    found = [name for part in quoted(text) for name in re.findall(r"\b(?:nsd|notsodeep)((?:\.\w+)+)", part)]
    return [name.lstrip(".") for name in found if not {"NAME", "ROOM"} & set(name.split("."))]


def paths(text: str) -> list[str]:
    """Source files by any end of their path, and whatever is said to be in a folder of the repository."""
    whole = [part for part in quoted(text) if re.fullmatch(r"[\w./-]+", part)]
    return [part for part in whole if part.endswith((".py", ".pyi")) or part.startswith(tuple(f"{p}/" for p in PLACES))]


def exists(name: str) -> bool:
    thing: Any = nsd
    for i, part in enumerate(name.split("."), start=1):
        try:
            thing = getattr(thing, part)
        except AttributeError:
            try:
                thing = importlib.import_module(f"notsodeep.{'.'.join(name.split('.')[:i])}")
            except ImportError:
                return False
    return True


def is_there(path: str) -> bool:
    return (ROOT / path).exists() or any(file.endswith(f"/{path}") for file in FILES)


def test_names_and_paths_of_a_page_exist():
    texts = {page.name: page.read_text() for page in PAGES}
    gone = [(page, name) for page, text in texts.items() for name in names(text) if not exists(name)]
    gone += [(page, path) for page, text in texts.items() for path in paths(text) if not is_there(path)]
    assert gone == []


def test_commands_name_modules_and_studies_that_exist():
    for page in [*PAGES, ROOT / "results" / "README.md"]:
        text = page.read_text()
        for module in re.findall(r"python -m ((?:studies|benchmarks)[\w.]*)", text):
            assert importlib.util.find_spec(module.rstrip(".")), (page.name, module)
        for study in re.findall(r"python -m studies ([a-z]\w*)", text):
            assert study == "all" or (ROOT / "studies" / f"{study}.py").exists(), (page.name, study)


def test_names_and_paths_are_seen():
    text = "As `nsd.none(x)` of `notsodeep.kernels` and `kernels/none.py`, `results/` or `x.json`:\n```\n`nsd.b`\n```\n"
    assert names(text) == ["none", "kernels"]
    assert [exists(name) for name in names(text)] == [False, True]
    assert paths(text) == ["kernels/none.py", "results/"]
    assert [is_there(path) for path in paths(text)] == [False, True]
    found = [[each for page in PAGES for each in read(page.read_text())] for read in (names, paths)]
    assert min(map(len, found)) > 40  # the pages are read
