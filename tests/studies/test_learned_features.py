"""The study of learned features at a small size: it measures, and learning wins where few columns matter."""

from __future__ import annotations

import numpy as np

from studies import learned_features
from studies._runner import QUICK, Point, run


def test_learning_wins_where_two_of_five_columns_matter(tmp_path):
    names = (learned_features.LEARNED, learned_features.PLAIN)
    settings = [{"table": "product of 5", "machine": name, "split": 0, "rows": 160} for name in names]
    points = [Point.of(one["machine"], one, learned_features.measure) for one in settings]
    document = run("learned_features", QUICK, tmp_path, points)
    row = learned_features.scores(document)["product of 5"]
    assert row[names[0]] > row[names[1]] + 10.0
    assert learned_features.ranks(document) == dict(zip(names, (1.0, 2.0), strict=True))
    assert (tmp_path / "quick.svg").exists()


def test_tables_are_of_the_size_they_say():
    assert len(learned_features.TABLES) >= 20
    for name in ("iris", "two directions", "circles + 10"):
        X, y = learned_features.load(name, 120)
        assert len(X) == len(y) == 120
        assert np.isfinite(X).all()
