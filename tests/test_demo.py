"""The demo tells the truth: what it prints and draws is what it measured."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

import notsodeep as nsd
from helpers import tolerance
from notsodeep import demo


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """The demo, small: what it returned, what it printed, where the figure lies."""
    folder = tmp_path_factory.mktemp("demo")
    console = Console(record=True, width=80, file=io.StringIO())
    return demo.main(folder, console, quick=True), console.export_text(), folder / "demo.png"


def test_twins_are_one_layer_and_nearer_than_plain_ones(shown):
    cases, _, _ = shown
    names = [(case.data, case.activation) for case in cases]
    assert names == [("mixture", "tanh"), ("mixture", "relu"), ("digits", "tanh"), ("digits", "relu")]
    for case in cases:
        deq, twin, plain = case.rows
        assert case.twin.deq == nsd.DEQ(case.activation, sigma_a2=0.2)  # the DEQ as it is
        assert (case.twin.depth, twin.network) == (1, "twin")
        assert 10 * twin.distance < plain.distance
        assert twin.scaled < plain.scaled
        assert deq.same == 1.0
        assert twin.same > 0.99  # kernels that agree to four digits decide alike
        assert abs(twin.machine - deq.machine) < 0.01
        assert min(row.accuracy for row in case.rows) > 0.5  # well above chance even at this size
        assert all(row.seconds > 0.0 for row in case.rows)


def test_eigenvalues_are_those_of_both_kernels(shown):
    case = shown[0][0]
    X = nsd.GaussianMixture.two_class(200, mu=3.0, cov=4.0).sample(150, seed=0)[0]
    assert case.eigenvalues["DEQ"] == pytest.approx(np.linalg.eigvalsh(nsd.ck(case.twin.deq, X)))
    gap = case.rows[1].distance * case.eigenvalues["DEQ"][-1]  # Weyl: no eigenvalue moves further
    assert np.abs(case.eigenvalues["twin"] - case.eigenvalues["DEQ"]).max() <= gap + tolerance()
    assert case.law is not None
    assert case.law.n == 150
    assert shown[0][1].law is None  # ReLU is not centred: the law would speak of another network


def test_one_table_of_eighty_columns_and_one_figure(shown):
    cases, text, path = shown
    assert max(len(line) for line in text.splitlines()) <= 80
    assert "…" not in text
    assert [line[:6] for line in text.splitlines()[:4]] == ["1 of 4", "2 of 4", "3 of 4", "4 of 4"]
    for case in cases[:2]:
        how = "if its assumption holds" if case.twin.certificate.assumes else "proven"
        assert f"{case.twin.bound:.0e} of the diagonal, {how}" in " ".join(text.split())
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["demo.png"]


def test_the_legend_names_the_twin_and_bins_are_shared(shown):
    figure = demo.draw(shown[0])
    for ax in figure.axes:
        names = [text.get_text() for text in ax.get_legend().get_texts()]
        assert any("twin" in name for name in names)
        bars = [bar.get_x() for bar in ax.patches[:60]]
        (steps,) = [patch for patch in ax.patches if hasattr(patch, "get_data")]
        np.testing.assert_allclose(steps.get_data().edges[:60], bars)
