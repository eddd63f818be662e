"""The changes that CONTRIBUTING walks through apply to the code as it is, touch one file of the package, and work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def change(section: str) -> str:
    """The diff in the section of this title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    body = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
    return diff


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of sources and tests to which all diffs were applied; each changes one file of the package."""
    folder = tmp_path_factory.mktemp("changed")
    for name in ("src", "tests", "studies", "docs", "benchmarks", "examples", "results"):
        if (ROOT / name).exists():
            ignored = shutil.ignore_patterns("__pycache__", "data", "_build", "*.png", "quick*")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for file in filter(Path.is_file, ROOT.iterdir()):
        shutil.copy(file, folder)
    for section in ("Add an activation", "Add a kind of unit", "Add a family of twins", "Add a study"):
        diff = change(section)
        files = re.findall(r"^\+\+\+ b/(\S+)$", diff, flags=re.MULTILINE)
        assert sorted(file.split("/")[0] for file in files) in (["src", "tests"], ["studies", "tests"])
        subprocess.run(["git", "apply", "-"], input=diff, text=True, cwd=folder, check=True)
    return folder


def run(folder: Path, *arguments: str) -> str:
    """What Python prints in that copy."""
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_new_names_are_known(folder):
    code = (
        "import torch, notsodeep as nsd;"
        "assert nsd.activations.Softsign() == nsd.activation('softsign') == nsd.activation(torch.nn.Softsign());"
        "print(nsd.DEQ('softsign', 0.2).limit, nsd.ck(nsd.DEQ('softsign', 0.2), [[1.0, 0.0]])[0, 0] > 0);"
        "network = nsd.ENN([nsd.activation('directions', scale=2.0), 'relu']);"
        "print(nsd.ENN.from_dict(network.to_dict()) == network, 'directions' in nsd.activations.activation_names())"
    )
    # the names of activations are those of elementwise functions
    assert run(folder, "-c", code).split() == ["0.25", "True", "True", "False"]


def suite(folder: Path, wanted: str, *files: str) -> str:
    """What these tests say in that copy, where they all pass."""
    return run(
        folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{file}" for file in files), "-k", wanted
    )


def test_the_tests_of_the_changes_and_the_rules_of_the_house_pass(folder):
    """Two of each: an activation, a kind of unit, a family, a study; and what is asked of every file."""
    changes = "Softsign and mpmath or every_name_is_covered or test_directions or erf_family or rising_feedback"
    rules = "public_names or in_circles or rooms_import or private_names or explains_itself"
    files = [
        "activations/test_activations.py",
        "test_directions.py",
        "matching/test_match.py",
        "studies/test_rising_feedback.py",
    ]
    said = suite(folder, f"{changes} or {rules}", *files, "test_package.py", "test_docstrings.py")
    assert int(re.findall(r"(\d+) passed", said)[0]) >= 12


@pytest.mark.slow
def test_the_whole_suite_of_the_touched_rooms_passes(folder):
    rooms = ("activations", "gaussian", "matching", "studies", "test_codegen.py")
    suite(folder, "not contributing", *rooms, "test_package.py", "test_docstrings.py", "explore/test_server.py")
