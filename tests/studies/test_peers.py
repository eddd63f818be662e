"""The table of peers: its data, its machines, and what is counted from the numbers."""

from __future__ import annotations

import numpy as np
import pytest

from studies import peers
from studies._runner import Setup


def test_fifteen_tables_that_are_the_same_every_time():
    assert len(peers.DATASETS) == 15
    for name in peers.DATASETS:
        X, y = peers.load(name)
        again = peers.load(name)
        assert len(X) == len(y) <= peers.ROWS
        assert np.array_equal(X, again[0])
        assert np.array_equal(y, again[1])


def test_every_machine_of_every_repeat_is_a_point():
    points = peers.points(Setup(quick=False))
    assert len(points) == len({p.key for p in points}) == 5 * (15 * 6 + 5)


@pytest.mark.parametrize(("dataset", "machine"), [("iris", "DEQ"), ("iris", "kernel ridge"), ("iris", "SVM")])
def test_a_class_is_found(dataset, machine):
    found = peers.measure(dataset, machine, repeat=0, rows=60, folds=2)
    assert np.mean(found["scores"]) > 0.8
    assert (found["losses"] is None) == (machine == "kernel ridge")


@pytest.mark.parametrize("machine", ["DEQ", "linear"])
def test_a_line_is_found(machine):
    """Targets are shifted back: R2 of what stands in the table, not of what a machine was fitted to."""
    found = peers.measure("sparse linear", machine, repeat=0, rows=200, folds=2)
    assert min(found["scores"]) > 0.4
    assert found["losses"] is None


def document():
    scores = {"DEQ": [0.9, 0.8], "SVM": [0.8, 0.8], "kernel ridge": [0.86, 0.85], "Gaussian process": [0.7, 0.7]}
    cells = [("iris", scores), ("wine", scores | {"DEQ": [0.5, 0.5]})]
    return {
        "points": {
            f"{data}/{name}/0": {
                "settings": {"dataset": data, "machine": name},
                "numbers": {"scores": values, "losses": None, "fit_seconds": 1.0},
            }
            for data, table in cells
            for name, values in table.items()
        }
    }


def test_ranks_and_points_behind():
    table = peers.means(document())
    assert table["iris"] == pytest.approx({"DEQ": 85.0, "SVM": 80.0, "kernel ridge": 85.5, "Gaussian process": 70.0})
    assert peers.behind(table["iris"]) == pytest.approx(0.5)
    assert peers.ranks(document()) == {"DEQ": 3.0, "SVM": 2.5, "kernel ridge": 1.0, "Gaussian process": 3.5}
    says = peers.draw(document())[""].get_suptitle()
    assert "on 1 of 2 tables" in says
