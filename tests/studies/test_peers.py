"""The table of peers: its data, its machines, and what is counted from the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.kernel_ridge import KernelRidge
from sklearn.metrics.pairwise import rbf_kernel

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
    assert len(points) == len({p.key for p in points}) == 2 * (15 * 9 + 5)


@pytest.mark.parametrize(
    ("dataset", "machine"),
    [("iris", name) for name in ("DEQ", "ReLU NTK", "RBF, leave-one-out", "kernel ridge", "SVM")],
)
def test_a_class_is_found(dataset, machine):
    found = peers.measure(dataset, machine, repeat=0, rows=60, folds=2)
    assert np.mean(found["scores"]) > 0.8
    assert (found["losses"] is None) == (machine in ("kernel ridge", "RBF, leave-one-out"))


@pytest.mark.parametrize("machine", ["DEQ", "ReLU NNGP", "RBF, leave-one-out", "linear"])
def test_a_line_is_found(machine):
    """Targets are shifted back: R2 of what stands in the table, not of what a machine was fitted to."""
    found = peers.measure("sparse linear", machine, repeat=0, rows=200, folds=2)
    assert min(found["scores"]) > 0.4
    assert found["losses"] is None


def test_width_and_ridge_have_the_least_error_of_rows_left_out():
    """Against systems without the row, which share no formula with it."""
    X, y = peers.load("Friedman 1", 30)
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    model = peers.LeaveOneOutRidge(np.array([0.02, 0.5])).fit(X, y)

    def left_out(gamma, ridge):
        K, errors = rbf_kernel(X, gamma=gamma) + ridge * np.eye(len(X)), []
        for row in range(len(X)):
            kept = np.arange(len(X)) != row
            errors.append(K[row, kept] @ np.linalg.solve(K[np.ix_(kept, kept)], y[kept]) - y[row])
        return np.mean(np.square(errors))

    ridges = 10.0 ** np.linspace(-8.0, 1.0, 37)
    _, gamma, ridge = min((left_out(gamma, ridge), gamma, ridge) for gamma in (0.02, 0.5) for ridge in ridges)
    peer = KernelRidge(kernel="rbf", gamma=gamma, alpha=ridge).fit(X, y)
    np.testing.assert_allclose(model.predict(X), peer.predict(X), atol=1e-6)  # ridges down to 1e-8


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
