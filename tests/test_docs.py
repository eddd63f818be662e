"""The documentation builds without a warning, its examples run, and it forgets nothing public."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

import surface
from notsodeep.cli import app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md") if "_build" not in p.parts)


def blocks(page: str) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


@pytest.mark.parametrize("page", [p for p in PAGES if p not in ("uniform.md", "tour.md") and blocks(p)])
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they may leave files
    if page == "howto/cluster.md":
        pytest.importorskip("distributed.client")
    names: dict = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


@pytest.fixture(scope="module")
def tour():
    """The module that makes the tour's outputs, and its steps as they run now."""
    spec = importlib.util.spec_from_file_location("tour", DOCS / "tour.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["tour"] = module
    spec.loader.exec_module(module)
    return module, list(module.steps((DOCS / "tour.md").read_text()))


def test_the_tour_prints_what_it_shows(tour):
    """Words exactly; numbers to a percent, and what is rounding error stays that small. ``docs/tour.py`` renews it."""
    _, found = tour
    for step in found:
        assert NUMBER.sub("#", step.printed) == NUMBER.sub("#", step.written), step.code
        shown, now = ([float(v) for v in NUMBER.findall(text)] for text in (step.written, step.printed))
        assert now == pytest.approx(shown, rel=0.01, abs=1e-7)  # as said above
    assert sum(bool(step.written) for step in found) >= 6
    assert [bool(step.vector) for step in found].count(True) == len(list(DOCS.glob("tour_*.svg"))) == 1


def test_the_notebook_is_the_tour_with_its_outputs(tour):
    module, found = tour
    stored = json.loads((ROOT / "examples" / "tour.ipynb").read_text())
    assert stored["nbformat"] == 4
    fresh = module.notebook(found)
    assert [c["source"] for c in stored["cells"]] == [c["source"] for c in fresh["cells"]]
    outputs = [[o["output_type"] for o in c.get("outputs", [])] for c in stored["cells"]]
    assert outputs == [[o["output_type"] for o in c.get("outputs", [])] for c in fresh["cells"]]
    assert ["stream", "display_data"] in outputs


def test_command_lines_name_commands_and_options_that_exist():
    commands = get_command(app).commands
    for text in [(DOCS / page).read_text() for page in PAGES] + [(ROOT / "README.md").read_text()]:
        for name, rest in re.findall(r"(?:^|[`|] ?)notsodeep ([a-z]+)([^`|>#\n]*)", text, flags=re.MULTILINE):
            known = {option for parameter in commands[name].params for option in parameter.opts} | {"--help"}
            assert set(re.findall(r"(?<=\s)--[a-z0-9-]+", rest)) <= known, (name, rest)


def test_every_page_is_in_the_contents():
    index = (DOCS / "index.md").read_text().split()
    assert [p for p in PAGES if p != "index.md" and p.removesuffix(".md") not in index] == []


SOURCE = ROOT / "src" / "notsodeep"


def test_the_tour_of_the_source_names_what_exists():
    page = (DOCS / "how_it_is_built.md").read_text()
    sections = page.split("\n## ")[1:]
    assert [s.split("`")[1] for s in sections] == [
        "nsd.ntk",
        "nsd.match_one_layer",
        "nsd.DEQClassifier.fit",
        "nsd.nn.DEQ",
    ]
    for section in sections:
        assert 3 < len(re.findall(r"^\d+\. `", section, flags=re.MULTILINE)) <= 6
    named = re.findall(r"`([\w/]+\.py)`(?:, `(\w+)`)?", page)
    assert len(named) > 25
    for file, name in named:
        source = (SOURCE / file).read_text()
        assert not name or re.search(rf"^\s*(?:def|class) {name}\b", source, flags=re.MULTILINE), (file, name)


COUNT = """
import sys, numpy as np, notsodeep as nsd
X, deq, files = np.random.default_rng(0).standard_normal((60, 20)) / 20**0.5, nsd.DEQ("tanh", sigma_a2=0.2), set()
nsd.ntk  # imported before anything is counted
sys.setprofile(lambda frame, event, argument: files.add(frame.f_code.co_filename))
nsd.ntk(deq, X)
sys.setprofile(None)
print(*sorted(file for file in files if file.startswith(nsd.__file__.removesuffix("__init__.py"))))
"""


def test_a_kernel_of_sixty_rows_passes_few_files():
    run = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert len(run.stdout.split()) <= 14, run.stdout


def test_the_documentation_builds_without_warnings(tmp_path):
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert built.returncode == 0, built.stderr[-3000:]
    reference = (tmp_path / "api.html").read_text()
    assert [name for name in surface.public_names() if f'id="notsodeep.{name}"' not in reference] == []
    assert re.search(r"<strong>sigma_a2</strong>", reference)  # a name with its description
    theory = (tmp_path / "theory.html").read_text()
    assert "<math" in theory  # drawn by the browser itself
    assert not re.search(r'<script[^>]*src="http', theory)
    # the evidence is there: the right form falls, a rejected one stalls
    assert "alpha4 not squared" in theory
