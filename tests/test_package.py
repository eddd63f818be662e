"""The package as a whole: every public name exists, importing is light, the demo tells the truth."""

from __future__ import annotations

import importlib.metadata
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import notsodeep as nsd
from notsodeep import demo

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", nsd.__all__)
def test_every_public_name_exists(name):
    assert getattr(nsd, name) is not None
    assert name in dir(nsd)


def test_unknown_names_are_refused():
    with pytest.raises(AttributeError, match="no attribute 'kernel'"):
        nsd.kernel  # noqa: B018


def test_version_is_that_of_the_distribution():
    assert importlib.metadata.version("notsodeep") == nsd.__version__
    assert f"version: {nsd.__version__}" in (ROOT / "CITATION.cff").read_text()


def test_importing_the_package_does_not_import_torch():
    code = "import sys, notsodeep; print('torch' in sys.modules, 'matplotlib' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


def test_rooms_import_only_from_rooms_above():
    order = [
        "errors", "_quadrature", "activations", "gaussian", "networks", "mixtures", "kernels", "equivalents", "spectra",
        "matching", "nn",
    ]  # fmt: skip
    pattern = re.compile(r"^\s*from (\.+)(\w*)[\w.]* import", re.MULTILINE)
    source = ROOT / "src" / "notsodeep"
    for rank, room in enumerate(order):
        files = [source / f"{room}.py"] if (source / f"{room}.py").exists() else sorted((source / room).rglob("*.py"))
        assert files, room
        for file in files:
            depth = len(file.relative_to(source).parts)
            above = [m[2] for m in pattern.finditer(file.read_text()) if len(m[1]) == depth and m[2] in order]
            assert all(order.index(other) < rank for other in above if other != room), (file.name, above)


def test_the_pinned_torch_is_the_one_in_use():
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    assert pins["torch"] == "2.13.0"
    assert importlib.metadata.version("torch").split("+")[0] == pins["torch"]


def test_demo(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "DIMENSION", 300)
    monkeypatch.setattr(demo, "POINTS", 240)
    monkeypatch.setattr(demo, "WIDTHS", (32, 128))
    console = Console(record=True, width=120, file=io.StringIO())
    results = demo.main(tmp_path, console)
    assert [(r.name, r.kernel) for r in results] == [("tanh", "ck"), ("tanh", "ntk"), ("relu", "ck"), ("relu", "ntk")]
    for result in results:
        assert result.twin.residual < 1e-9
        assert result.distances["twin"] < 0.5 * result.distances["plain"]
        assert np.all(np.diff(result.eigenvalues["DEQ"]) >= 0)
    text = console.export_text()
    assert "clip(x" in text
    assert "theory -0.5" in text
    assert {path.name for path in tmp_path.glob("*.png")} == {"spectra.png", "finite_width.png"}
