"""The documentation builds without a warning, its examples run, and it forgets nothing public."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pages
import pytest
from docutils.utils.math import MathError
from sphinx.ext.napoleon import NumpyDocstring
from typer.main import get_command

import notsodeep as nsd
import surface
from notsodeep.cli import app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md") if "_build" not in p.parts)


def blocks(page: str) -> list[str]:
    found = re.findall(r"^( *)```python\n(.*?)^ *```", (DOCS / page).read_text(), flags=re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", code, flags=re.MULTILINE) for indent, code in found]


@pytest.mark.parametrize("page", [p for p in PAGES if p != "tour.md" and blocks(p)])
def test_the_examples_of_a_page_run_in_order(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # where they may leave files
    if page == "howto/large.md":
        pytest.importorskip("distributed.client")
    if page == "howto/torchdeq.md":
        pytest.importorskip("torchdeq")
    names: dict = {}
    for code in blocks(page):
        exec(compile(code, page, "exec"), names)


SMALLER = {
    "epochs=20": "epochs=3",
    "confidence=0.95": "confidence=0.95, options=nsd.nn.ReplaceOptions(steps=60)",
    "disagreement=0.02": "disagreement=0.1",
    "p=1000": "p=200",
    "n=800": "n=160",
    "sample(800": "sample(160",
    "width=512": "width=64",
    "n_features=30": "n_features=6",
    "[:300]": "[:60]",
}


def test_the_examples_of_the_readme_run_in_order(capsys):
    text = (ROOT / "README.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    assert len(examples) == 5
    code = "\n".join(examples)
    assert max(len(re.findall(r"^\S", example, flags=re.MULTILINE)) for example in examples) <= 11  # ten lines or so
    for long, short in SMALLER.items():
        assert long in code
        code = code.replace(long, short)
    names: dict = {}
    exec(code, names)
    printed, twin = capsys.readouterr().out, names["twin"]
    assert (twin.deq, twin.depth) == (names["deq"], 1)
    assert f"bound     {twin.bound:.3g}" in printed
    assert f"bound {twin.bound:.3g} for every pair" in text  # what the comment says
    assert np.abs(twin.kernel_matrix(names["rows"]) - names["K"]).max() < twin.bound * names["K"].max()
    score = names["trained"].score(*names["mixture"].sample(4000, seed=2))
    assert abs(names["predicted"].accuracy - score) < 0.04  # 160 rows of one draw


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
    entries = re.findall(
        r"^[^<\n]* <(\S+)>$", pages.for_sphinx("index", (DOCS / "index.md").read_text()), flags=re.MULTILINE
    )
    assert [p for p in PAGES if p != "index.md" and p.removesuffix(".md") not in entries] == []
    assert "gallery/index" in entries


MARKDOWN = [ROOT / "README.md", *(DOCS / page for page in PAGES)]


@pytest.mark.parametrize("page", MARKDOWN, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_page_reads_on_a_code_host(page):
    """No directive or role of Sphinx, and links to files that exist."""
    text = page.read_text()
    assert re.findall(r"\{[a-z-]+\}`|^ *(?:```|:::)\{", text, flags=re.MULTILINE) == []
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    targets = [t.split("#")[0] for t in re.findall(r"\]\(([^)\s]+)\)", prose) if not t.startswith(("http", "#"))]
    assert [t for t in targets if not (page.parent / t).exists()] == []
    shown = re.sub(r"<details>.*?</details>", "", prose, flags=re.DOTALL)
    assert max((len(rows.splitlines()) for rows in re.findall(r"(?:^\|.*\n)+", shown, re.MULTILINE)), default=0) <= 20
    assert pages.filled(text) == text, "python docs/pages.py writes its tables anew"


BOUNDS = re.findall(
    r"^\| (\w+) \| ([\d.]+) \| (\S+) \((\d)\) \| (?:(\S+) \((\d)\)|refused) \|",
    (DOCS / "one_layer.md").read_text(),
    re.M,
)
QUICK = ("relu", "tanh", "softplus")


@pytest.mark.parametrize(
    "row", [pytest.param(r, marks=() if r[0] in QUICK else pytest.mark.slow, id=r[0]) for r in BOUNDS]
)
def test_the_table_of_bounds_is_what_the_designs_have(row):
    name, shown, *cells = row
    sigma_a2 = 0.8 * nsd.DEQ(name, 0.01).limit
    deq = nsd.DEQ(name, sigma_a2, 1 - sigma_a2)
    assert f"{round(sigma_a2, 4):g}" == shown
    for kernel, bound, kinds in zip(("ck", "ntk"), cells[::2], cells[1::2], strict=True):
        if bound:
            twin = nsd.match_one_layer(deq, kernel=kernel)
            assert (f"{twin.bound:.1e}", str(twin.kinds)) == (bound, kinds)
        else:
            with pytest.raises(nsd.errors.NotSoDeepError, match=r"within 0\.0001"):
                nsd.match_one_layer(deq, kernel=kernel)


def test_the_table_of_bounds_is_read():
    assert len(BOUNDS) == 14


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages as they are built, but for the runs of the gallery, which tests/test_examples.py makes."""
    pytest.importorskip("furo")
    pytest.importorskip("sphinx_gallery")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "-D", "plot_gallery=0"]
    # furo lays out the contents anew for every page, which takes a third of the time
    command += ["-D", "html_theme=basic", "-D", "explorer=start"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    built = subprocess.run([*command, str(DOCS), str(folder)], capture_output=True, text=True, env=environment)
    assert built.returncode == 0, built.stderr[-3000:]
    return folder


def test_the_documentation_builds_without_warnings(site):
    theory = (site / "theory.html").read_text()
    assert "<math" in theory  # drawn by the browser itself
    assert not re.search(r'<script[^>]*src="http', theory)
    # the evidence is there: the right form falls, a rejected one stalls
    assert "alpha4 not squared" in theory
    assert "The notsodeep developers" in theory  # the footer
    assert len(list((site / "gallery").glob("*.html"))) >= 13


def test_every_public_name_has_a_page_with_its_sections(site):
    names = surface.public_names()
    listed = (site / "api.html").read_text()
    for name, thing in names.items():
        page = (site / "api" / f"notsodeep.{name}.html").read_text()
        assert f'href="api/notsodeep.{name}.html"' in listed, name
        assert f'id="notsodeep.{name}"' in page, name
        sections = set(re.findall(r"(Parameters|Attributes|Returns|Yields|Raises|Examples)(?:<span|</p>)", page))
        wanted = set() if name.startswith("errors.") else {"Examples"}
        if inspect.isfunction(thing):
            hints = thing.__annotations__
            wanted |= {"Parameters"} if surface.parameters(thing) else set()
            wanted |= {"Returns"} if hints.get("return") not in (None, "None") else set()
            typed = re.search(r'class="sig-param">.*?</span></span><span class="p"><span class="pre">:', page)
            assert typed or not surface.parameters(thing), f"{name}: types are shown"
        assert wanted <= sections, (name, wanted - sections)


def test_no_attribute_gets_a_type_from_a_colon():
    lines, site_conf = ["What the bound holds for: all norms."], conf()
    site_conf.hide_colons(None, "attribute", "", None, None, lines)
    lines = str(NumpyDocstring(lines, what="attribute", name="x")).splitlines()
    site_conf.show_colons(None, "attribute", "", None, None, lines)
    assert "\n".join(lines).strip() == "What the bound holds for: all norms."


def conf():
    spec = importlib.util.spec_from_file_location("site_conf", DOCS / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("tex", [r"\big(x\big)", r"\frac12", r"\unknown{x}"])
def test_math_that_cannot_be_set_is_found(tex):
    with pytest.raises(MathError):
        conf().mathml(tex, block=False)


def test_a_long_table_is_folded():
    rows = [[f"row {i}", i] for i in range(30)]
    text = pages.table(["name", "number"], rows, r"row [012] ")
    before, _, folded = text.partition("<details>")
    assert before.count("row") == 3
    assert folded.count("row ") == 30
    assert "All 30 rows" in folded
    assert "<details>" not in pages.table(["name", "number"], rows[:5])


@pytest.mark.parametrize("tex", [r"\bar k_{ab}", r"\hat Q_{-i}", r"\bar\Delta_a^2"])
def test_the_subscript_of_an_accented_letter_stands_beside_it(tex):
    made = conf().mathml(tex, block=False)
    assert 'accent="true"' in made
    assert "munder" not in made
