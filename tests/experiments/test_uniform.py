"""The scripts behind the shipped table, the depth study and the training comparison."""

from __future__ import annotations

import numpy as np
import pytest

import notsodeep as nsd
from notsodeep.errors import InvalidInputError
from notsodeep.experiments.lazy import Together, train_together
from notsodeep.experiments.uniform import homogeneous_rows, odd_lower_bound, uniform_table
from notsodeep.matching.uniform import load


def test_the_table_can_be_made_again() -> None:
    """A coarse table holds the optima that the shipped one interpolates."""
    document = uniform_table(count=6, depths=(1, 2), kernels=("ck",), report=lambda _: None)
    for row in document["branches"]:
        shipped = load()[row["kernel"], row["depth"]]
        for i, feedback in enumerate(document["feedback"][:4]):  # the last nodes lie where bends reach their limit
            assert row["error"][i] == pytest.approx(shipped.at(feedback).error, rel=0.05)
            # six nodes instead of dozens
            np.testing.assert_allclose(np.array(row["bends"])[:, i], shipped.at(feedback).bends, rtol=0, atol=2e-2)


def test_study_rows_are_certified() -> None:
    rows = list(homogeneous_rows("leaky_relu", 0.1, "ck", depths=2))
    assert [row["depth"] for row in rows] == [1, 2]
    assert all(row["sampled"] <= row["bound"] <= 1.06 * row["sampled"] for row in rows)
    assert rows[1]["bound"] < 0.02 * rows[0]["bound"]


def test_no_odd_network_beats_the_lower_bound() -> None:
    deq = nsd.DEQ("tanh", sigma_a2=0.2)
    floor = odd_lower_bound(deq, (0.8, 1.2))
    assert 1e-4 < floor < _best_scaled_layer(deq)  # as the study says: no odd network is exact on a box
    # units that see the norm are not bound by it
    assert nsd.match_uniform(deq, norms=(0.8, 1.2), tol=1e-5).bound < 0.1 * floor
    with pytest.raises(InvalidInputError, match="odd"):
        odd_lower_bound(nsd.DEQ("relu", sigma_a2=0.2), (0.8, 1.2))


def _best_scaled_layer(deq: nsd.DEQ) -> float:
    """The error of the best layer tanh(s x), times its best factor, over pairs of norms 0.8 and 1.2."""
    cosine = np.cos(np.linspace(0.0, np.pi, 41))
    rows = np.concatenate([r * np.stack([cosine, np.sqrt(1.0 - cosine**2)], axis=1) for r in (0.8, 1.2)])
    exact = nsd.ck(deq, rows)
    size = np.sqrt(np.outer(exact.diagonal(), exact.diagonal()))
    errors = []
    for scale in np.linspace(0.8, 1.1, 13):
        own = nsd.ck(nsd.ENN([nsd.activation("tanh").affine(scale=scale)]), rows)
        ratio = (exact * own / size**2).sum() / (own**2 / size**2).sum()
        errors.append(np.abs((ratio * own - exact) / size).max())
    return min(errors)


def test_deq_and_twin_train_alike() -> None:
    """Digits, narrow: the twin is about as far from a DEQ as a DEQ with other weights is."""
    document = train_together(Together(data="digits", width=256, epochs=2, seeds=(0,), train=600))
    first, last = document["rows"]
    assert last["deq"] > 0.7
    assert last["twin"] > 0.7
    assert last["distance"] < 2.0 * last["deq_distance"]
    assert last["agreement"] > 0.85
    assert first["epoch"] == 1
