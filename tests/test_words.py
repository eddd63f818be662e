"""What the library says of itself: tables in notebooks, and a log that is silent until it is asked."""

from __future__ import annotations

import logging
import subprocess
import sys
import xml.etree.ElementTree

import pytest
import torch

import notsodeep as nsd
from notsodeep.activations import Activation
from notsodeep.kernels import device

DEQ = nsd.DEQ("relu", 0.2)
MIXTURE = nsd.GaussianMixture.two_class(600)
SHOWN = {
    "DEQ": (lambda: nsd.DEQ("relu", 0.2, readout="pre-activation"), ["ReLU()", "0.2", "0.25", "pre-activation"]),
    "ENN": (lambda: nsd.ENN(["tanh", "relu"]), ["layer 2", "Tanh()", "ReLU()"]),
    "hostile": (lambda: nsd.DEQ(Activation.from_callable(torch.tanh, name="<script>"), 0.2), ["<script>"]),
    "mixture": (lambda: MIXTURE, ["class 1", "weight 0.5", "p = 600"]),
    "law": (lambda: nsd.spectral_law(DEQ, nsd.GaussianMixture.two_class(60), n=48), ["n = 48", "bulk", "spike"]),
    "learning": (lambda: nsd.predict_learning(DEQ, MIXTURE, n=100), ["accuracy", "training_error", "100"]),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_shows_a_table(name):
    build, words = SHOWN[name]
    table = xml.etree.ElementTree.fromstring(build()._repr_html_())  # well formed: every name is escaped
    assert (table.tag, [part.tag for part in table]) == ("table", ["caption", "tbody"])
    assert all(len(row) == 2 for row in table[1])
    text = " ".join(table.itertext())
    assert [word for word in words if word not in text] == []


def test_records_do_not_print_their_tensors():
    found = nsd.nn.DEQ(DEQ, 3, 8, 2).solve(torch.ones(5, 3))
    assert repr(found) == f"Equilibrium((5, 8), {found.steps} steps, 5 of 5 rows converged)"
    assert "tensor" not in repr(nsd.solve.solve_dense(torch.eye(2), torch.ones(2, 1), [1.0]))


def test_decisions_are_logged(caplog, monkeypatch):
    nsd.clear_caches()
    X, y = nsd.GaussianMixture.two_class(40).sample(30, seed=0)
    with caplog.at_level(logging.DEBUG, "notsodeep"):
        nsd.ck(nsd.DEQ("tanh", 0.2), torch.randn(300, 5, generator=torch.Generator().manual_seed(0)).double())
        nsd.DEQClassifier("relu", ridge=0.1).fit(X, y)
        monkeypatch.setitem(sys.modules, "notsodeep.kernels.triton_tile", None)
        assert device.program("triton_tile", "tile_kernel") is None
    said = [record.getMessage() for record in caplog.records if record.name == "notsodeep"]
    for words in ("table of ('ck',", "30 rows are solved by Cholesky", "without Triton"):
        assert any(words in line for line in said), (words, said)


def test_the_log_is_silent_by_default():
    code = "import notsodeep as nsd, numpy as np; nsd.ck(nsd.DEQ('tanh', 0.2), np.random.randn(300, 5))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("", "")
