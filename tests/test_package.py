"""The package as a whole: every public name exists, importing is light, the examples run."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import notsodeep as nsd

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


def code_blocks(name):
    return re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), flags=re.DOTALL)


def test_the_example_of_the_readme_runs(capsys):
    (example,) = code_blocks("README.md")
    small = example.replace("p=1000", "p=200").replace("800", "160")
    assert small != example
    names: dict = {}
    exec(small, names)
    assert names["K"].shape == (160, 160)
    assert names["twin"].depth == 2
    printed = capsys.readouterr().out
    assert printed.count("LeakyReLU") == 2
    assert names["twin"].verify(names["X"]).gain > 100


def test_the_examples_of_the_contributing_guide_run():
    own, built_in, family = code_blocks("CONTRIBUTING.md")
    names: dict = {}
    exec(own, names)
    assert names["deq"].limit == pytest.approx(0.25, rel=1e-6)
    header = (
        "from dataclasses import dataclass\nfrom typing import ClassVar\nfrom torch import Tensor\n"
        "from notsodeep.activations import Activation, Parity\n_register = lambda cls: cls\n"
    )
    exec(header + built_in, names)
    x = np.linspace(-3, 3, 7)
    assert np.allclose(names["Softsign"]()(x), names["softsign"](x))
    assert np.allclose(names["Softsign"]().derivative(x + 0.1), names["softsign"].derivative(x + 0.1), atol=1e-9)
    exec(family, names)
    assert names["twin"].residual < 1e-9
