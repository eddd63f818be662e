"""Every example runs, prints what it is there for and draws one labelled picture."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import matplotlib.pyplot as plt
import pages
import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SAYS = {
    "one_layer": r"valid +all norms, all angles",
    "units": r"Thresholds\(relu.*\nConditioned\(2 groups",
    "certificate": r"e-05 if series at complex norms have ended",
    "equal_kernels": r"twin: 98\.7 % right, deviations off by up to 1\.\de-05, evidence -0\.00",
    "layer_instead": r"(?s)DEQ, width 512: 9\d\.\d %.*twin, width 512: 9\d\.\d %",
    "replace_trained": r"on at most 1\.000%",
    "exact_kernels": r"tangent kernel \[0\.\d+",
    "predicted_spectrum": r"two largest eigenvalues",
    "predicted_learning": r"trained: \[0\.7",
    "kernel_machine": r"DEQGaussianProcess\(activation='erf'",
    "own_activation": r"its twin: 2 kinds",
    "papers_route": r"Twin of the centred DEQ .*Affine\(ReLU",
}
SLOW = ("layer_instead", "replace_trained")


def test_none_is_forgotten():
    assert {p.stem for p in EXAMPLES.glob("*.py")} == set(SAYS) == set(pages.Story.names)
    assert len(SAYS) == 12


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SAYS])
def test_example(name, capsys, monkeypatch):
    plt.close("all")
    monkeypatch.setattr(plt, "show", lambda: None)  # the figures stay open for the checks below
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert re.search(SAYS[name], capsys.readouterr().out)
    (figure,) = map(plt.figure, plt.get_fignums())
    figure.canvas.draw()  # every label can be set
    for ax in figure.axes:
        assert ax.lines or ax.patches or ax.collections
        assert ax.get_ylabel() or ax.get_xlabel() or ax.get_title()
    assert any(ax.get_title() for ax in figure.axes)
    plt.close("all")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_begins_with_its_message_and_is_short(path):
    text = path.read_text()
    title, rule = text.splitlines()[1:3]
    assert set(rule) == {"="}
    assert len(rule) == len(title)
    assert len(text.splitlines()) <= 70
    assert text.endswith("\nplt.show()\n")  # whoever runs it sees the picture
