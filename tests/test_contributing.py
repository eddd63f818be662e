"""The changes that CONTRIBUTING walks through apply to the code as it is, touch one file of the package, and work."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def change(section: str) -> str:
    """The diff in the section of this title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    body = text.split(f"## {section}\n", 1)[1].split("\n## ", 1)[0]
    (diff,) = re.findall(r"^```diff\n(.*?)^```$", body, flags=re.MULTILINE | re.DOTALL)
    return diff


def applied(section: str, folder: Path) -> Path:
    """A copy of sources and tests to which the diff of a section was applied; it changes one file of the package."""
    diff = change(section)
    for name in ("src", "tests", "studies", "docs"):
        if (ROOT / name).exists():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "data", "_build"))
    shutil.copy(ROOT / "pyproject.toml", folder)
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


def test_a_new_activation(tmp_path):
    folder = applied("Add an activation", tmp_path)
    code = (
        "import torch, notsodeep as nsd;"
        "assert nsd.activations.Softsign() == nsd.activation('softsign') == nsd.activation(torch.nn.Softsign());"
        "print(nsd.DEQ('softsign', 0.2).limit, nsd.ck(nsd.DEQ('softsign', 0.2), [[1.0, 0.0]])[0, 0] > 0)"
    )
    assert run(folder, "-c", code).split() == ["0.25", "True"]
    tests = ["tests/activations/test_activations.py", "-k", "Softsign and mpmath or covered"]
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_new_kind_of_unit(tmp_path):
    folder = applied("Add a kind of unit", tmp_path)
    code = (
        "import notsodeep as nsd;"
        "network = nsd.ENN([nsd.activation('directions', scale=2.0), 'relu']);"
        "print(nsd.ENN.from_dict(network.to_dict()) == network, 'directions' in nsd.activations.activation_names())"
    )
    assert run(folder, "-c", code).split() == ["True", "False"]  # the names are those of elementwise functions
    tests = ["tests/activations/test_directions.py"]
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_new_family(tmp_path):
    folder = applied("Add a family of twins", tmp_path)
    tests = ["tests/matching/test_match.py", "-k", "erf_family"]
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)


def test_a_new_study(tmp_path):
    folder = applied("Add a study", tmp_path)
    tests = ["tests/studies", "-k", "rising_feedback or public_names"]
    assert "2 passed" in run(folder, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests)
