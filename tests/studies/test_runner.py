"""The runner's promises: nothing is computed twice, files are whole, figures come from the numbers alone."""

from __future__ import annotations

import ast
import functools
import json
import tomllib
from pathlib import Path

import pytest
import torch
from matplotlib.figure import Figure

import notsodeep as nsd
from notsodeep.errors import DataError
from studies import __main__ as command
from studies import _runner
from studies._runner import Point, Setup, Study, draw, read_document, run
from studies._style import INK
from studies._tables import TABLES

HERE = Path(_runner.__file__).parent


class Counting:
    """A study of squares that counts what it computes."""

    def __init__(self, scale: int = 1, fail_at: int | None = None) -> None:
        self.calls: list[int] = []
        self.scale, self.fail_at = scale, fail_at
        self.study = Study("squares", "1 s", "1 s", lambda setup: [self.point(i) for i in range(4)], plot)

    def point(self, i: int) -> Point:
        def compute() -> dict[str, int]:
            self.calls.append(i)
            if i == self.fail_at:
                raise KeyboardInterrupt
            return {"square": self.scale * i * i}

        return Point(f"p{i}", {"i": i, "scale": self.scale, "pair": (i, i)}, compute)

    def run(self, folder: Path, setup: Setup = _runner.QUICK) -> dict:
        return run("squares", setup, folder, given=self.study)


def plot(document: dict) -> dict[str, Figure]:
    figure = Figure()
    figure.subplots().plot([p["numbers"]["square"] for p in document["points"].values()])
    return {"": figure}


def test_an_interrupted_run_resumes(tmp_path):
    first, second = Counting(fail_at=2), Counting()
    with pytest.raises(KeyboardInterrupt):
        first.run(tmp_path)
    assert list(read_document(tmp_path / "quick.json")["points"]) == ["p0", "p1"]
    document = second.run(tmp_path)
    assert second.calls == [2, 3]
    assert [p["numbers"]["square"] for p in document["points"].values()] == [0, 1, 4, 9]
    assert document == read_document(tmp_path / "quick.json")


def test_other_settings_are_computed_anew(tmp_path):
    Counting().run(tmp_path)
    changed = Counting(scale=3)
    document = changed.run(tmp_path)
    assert changed.calls == [0, 1, 2, 3]
    assert document["points"]["p3"]["numbers"] == {"square": 27}


def square(i: int) -> dict[str, int]:
    return {"square": i * i}


@pytest.mark.slow
def test_several_processes_give_the_same_document(tmp_path):
    points = [Point.of(f"p{i}", {"i": i}, square) for i in range(4)]
    for jobs in (1, 2):
        run("squares", Setup(jobs=jobs), tmp_path / str(jobs), points=points, given=Counting().study)
    one, two = (read_document(tmp_path / str(jobs) / "quick.json")["points"] for jobs in (1, 2))
    assert list(one) == list(two) == ["p0", "p1", "p2", "p3"]
    assert [p["numbers"] for p in one.values()] == [p["numbers"] for p in two.values()]
    assert two["p0"]["made_with"]["device"] == "1 CPU threads"


def prepared(folder: Path, i: int) -> None:
    (folder / f"{i}").touch()


def read(folder: Path, i: int) -> dict[str, int]:
    return {"square": sum(1 for _ in folder.iterdir())}


@pytest.mark.slow
def test_several_processes_prepare_what_one_computes(tmp_path):
    given = tmp_path / "prepared"
    given.mkdir()
    points = [
        Point(f"p{i}", {"i": i}, functools.partial(read, given, i), functools.partial(prepared, given, i))
        for i in range(3)
    ]
    document = run("squares", Setup(jobs=2), tmp_path, points=points, given=Counting().study)
    assert [point["numbers"]["square"] for point in document["points"].values()] == [3, 3, 3]


def test_points_can_be_left_out(tmp_path):
    counting = Counting()
    counting.run(tmp_path, Setup(only="p[12]"))
    assert counting.calls == [1, 2]
    counting.run(tmp_path)
    assert sorted(counting.calls) == [0, 1, 2, 3]


def test_quick_and_full_are_kept_apart(tmp_path):
    Counting().run(tmp_path)
    document = Counting().run(tmp_path, Setup(quick=False))
    assert document["command"] == "python -m studies squares"
    names = {f"{size}.{kind}" for size in ("quick", "full") for kind in ("json", "png", "svg")}
    assert {f.name for f in tmp_path.iterdir()} == names


def test_figures_are_drawn_from_the_document_alone_and_follow_the_colour_scheme(tmp_path):
    counting = Counting()
    counting.run(tmp_path)
    (tmp_path / "quick.svg").unlink()
    counting.calls.clear()
    draw(counting.study, tmp_path / "quick.json")
    text = (tmp_path / "quick.svg").read_text()
    assert counting.calls == []
    assert "prefers-color-scheme: dark" in text
    assert INK not in text.split("</style>")[1]
    (tmp_path / "quick.png").unlink()
    counting.run(tmp_path)  # a figure is missing
    assert (tmp_path / "quick.png").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"points": []}', '{"points": [], "experiment": "a"}'])
def test_damaged_documents_are_named(tmp_path, text):
    (tmp_path / "quick.json").write_text(text)
    with pytest.raises(DataError, match=r"quick\.json.*move it away"):
        Counting().run(tmp_path)
    assert (tmp_path / "quick.json").read_text() == text


def test_nan_never_reaches_the_disk_and_a_failed_write_leaves_nothing(tmp_path):
    bad = [Point("nan", {}, lambda: {"square": float("nan")})]
    with pytest.raises(ValueError, match="JSON"):
        run("squares", _runner.QUICK, tmp_path, points=bad, given=Counting().study)
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError, match="taken"):
        _runner.write(tmp_path / "taken", b"content")
    assert [f.name for f in tmp_path.iterdir()] == ["taken"]


def test_every_point_says_what_made_it(tmp_path):
    made = Counting().run(tmp_path)["points"]["p0"]["made_with"]
    assert made["torch"] == torch.__version__
    assert {"notsodeep", "python", "numpy", "scipy", "device"} <= set(made)


def test_the_command_lists_and_runs_the_studies(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # no cell of the table is folded
    assert command.main([]) == 0
    said = capsys.readouterr().out
    for name in _runner.names():
        assert name in said
        assert _runner.study(name).shows in said
    assert command.main(["sphere", "--quick", "--output", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "2 points" in said
    assert "quadratic" in said  # the table


def test_a_study_without_its_data_says_so(tmp_path, capsys):
    with pytest.raises(SystemExit):
        command.main(["accuracy", "--output", str(tmp_path), "--data", str(tmp_path / "nowhere")])
    assert "there is no folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        command.main(["figure 9"])


def test_studies_use_public_names_alone():
    """Everything by ``nsd.``, whose rooms are public, and what the rooms of errors and kernels export."""
    public = {*nsd.__all__, "equivalents", "gaussian"}  # two rooms for experts are not in the list
    for file in HERE.glob("*.py"):
        tree = ast.parse(file.read_text())
        froms = [str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
        assert {m for m in froms if m.startswith("notsodeep")} <= {"notsodeep.errors", "notsodeep.kernels"}, file.name
        parts = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
        used = {n.attr for n in parts if n.value.id == "nsd"}
        assert used <= public, (file.name, used - public)


def test_stored_documents_belong_to_studies():
    results = HERE.parent / "results"
    stored = {path.parent.name: read_document(path) for path in results.glob("*/full.json")}
    assert set(stored) <= set(_runner.names())
    for name, document in stored.items():
        assert document["experiment"] == name
        assert document["command"].startswith(f"python -m studies {name}")


def test_the_wheel_has_nothing_of_the_studies():
    targets = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert targets["wheel"] == {"packages": ["src/notsodeep"]}
    assert "studies" in targets["sdist"]["include"]


@pytest.mark.parametrize("name", TABLES)
def test_the_table_that_a_study_prints_has_a_cell_for_every_heading(name):
    document = json.loads((Path(__file__).parents[2] / "results" / name / "full.json").read_text())
    heads, rows = TABLES[name](document)
    assert rows
    assert {len(row) for row in rows} == {len(heads)}
