"""The demo tells the truth: what it prints and draws is what it measured."""

from __future__ import annotations

import io

import numpy as np
import pytest
import torch
from rich.console import Console

import notsodeep as nsd
from notsodeep import demo


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The demo, small: what it returned, what it printed, where the figure lies."""
    folder = tmp_path_factory.mktemp("demo")
    console = Console(record=True, width=80, file=io.StringIO())
    return demo.main(folder, console, quick=True), console.export_text(), folder / "demo.png"


def test_the_replacement_keeps_its_promise_and_proven_classes_are_those_of_the_solver(found):
    trained = found[0]
    model, fresh = trained.replacement.model, torch.from_numpy(demo.digits()[0][1400:]).float()
    with torch.no_grad():
        truth = model(fresh).argmax(1)
        student, score = trained.replacement.scored(fresh)
    sure = score >= trained.replacement.certificate.threshold
    assert trained.answered == pytest.approx(float(sure.double().mean()))
    assert trained.differs == pytest.approx(float((student.argmax(1) != truth)[sure].sum()) / len(fresh))
    # three standard deviations of a share of so many rows above the promise
    allowed = trained.replacement.certificate.disagreement
    assert trained.differs <= allowed + 3.0 * (allowed / len(fresh)) ** 0.5
    assert trained.same == 1.0
    assert bool(trained.proof.proven.all())
    assert demo.mean_of(trained.proof.steps) < demo.mean_of(trained.solver_steps)
    assert trained.accuracy > 0.8


def test_the_twin_is_one_layer_within_its_bound_and_features_find_the_columns(found):
    shown = found[0]
    assert shown.twin.depth == 1
    assert 100 * shown.distances.distance < shown.distances.plain_distance
    assert shown.learned > shown.plain + 0.05
    assert set(np.argsort(np.diag(shown.features))[-5:]) == set(range(5))


def test_one_sentence_for_each_panel(found):
    shown, text, path = found
    assert max(len(line) for line in text.splitlines()) <= 80
    assert [line[:6] for line in text.splitlines()[:3]] == ["1 of 3", "2 of 3", "3 of 3"]
    said = " ".join(text.split())
    assert all(f"{message}: {numbers}." in said for message, numbers in shown.messages().items())
    assert f"{shown.twin.bound:.1e} of the diagonal, proven" in said
    assert path.read_bytes().startswith(b"\x89PNG")
    assert [p.name for p in path.parent.iterdir()] == ["demo.png"]


def test_the_figure_draws_what_was_measured(found):
    shown = found[0]
    promise, proof, kernel, table = (ax for ax in demo.draw(shown).axes)
    known = shown.replacement.certificate
    np.testing.assert_allclose(promise.lines[0].get_xydata(), 100 * np.array(known.curve))
    assert sum(bar.get_height() for bar in proof.patches) == pytest.approx(200.0)  # both kinds of steps, of all rows
    twin = nsd.plots.TwinDisplay.from_twin(shown.twin)
    np.testing.assert_array_equal(kernel.lines[-1].get_ydata(), twin.twin)
    assert sum(bar.get_width() for bar in table.patches) == pytest.approx(100.0)
    assert table.get_yticklabels()[-1].get_text().startswith("column")
