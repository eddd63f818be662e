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
    for name in ("src", "tests", "studies", "docs"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "data", "_build"))
    shutil.copy(ROOT / "pyproject.toml", folder)
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


def test_the_tests_of_the_changes_pass(folder):
    """Two of each: an activation, a kind of unit, a family, a study."""
    files = ["activations/test_activations.py", "activations/test_directions.py", "matching/test_match.py", "studies"]
    wanted = "Softsign and mpmath or every_name_is_covered or test_directions or erf_family"
    wanted += " or rising_feedback or public_names"
    tests = [*(f"tests/{file}" for file in files), "-k", wanted]
    assert "8 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
