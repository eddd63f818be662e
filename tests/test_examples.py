"""Every example runs and prints what it is there for; the notebook is held by tests/test_docs.py."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "match_and_verify": [r"Twin of DEQ\(Tanh", r"Twin of the centred DEQ .*Affine\(ReLU", r"plain network 0\.6"],
    "own_activation": [r"a unique equilibrium", r"ntk_frozen  c1 = 0\.\d+", r"its twin"],
    "predicted_spectrum": [r"bulk    \[", r"spike", r"two largest eigenvalues"],
    "train_twin": [r"DEQ: 9\d\.\d %", r"twin: 9\d\.\d %"],
    "picture": [],
}


def test_none_is_forgotten():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(SAYS)


@pytest.mark.parametrize("name", SAYS)
def test_example(name, capsys, tmp_path, monkeypatch):
    picture = tmp_path / "picture.png"
    monkeypatch.setattr(sys, "argv", ["example", str(picture)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    for pattern in SAYS[name]:
        assert re.search(pattern, printed), printed
    if name == "picture":
        assert picture.read_bytes().startswith(b"\x89PNG")
    plt.close("all")
