"""Features of a kernel machine beside trained weights, at a small size."""

from __future__ import annotations

from studies._runner import QUICK, Point, run
from studies.network_features import compared


def test_training_turns_input_weights_towards_the_features_of_a_machine(tmp_path):
    settings = {"task": "product", "n": 200, "width": 32, "epochs": 40, "seed": 0}
    document = run("network_features", QUICK, tmp_path, [Point.of("product/0", settings, compared)])
    numbers = document["points"]["product/0"]["numbers"]
    assert numbers["cosines"]["DEQ"]["change"] > numbers["cosines"]["DEQ"]["before"]
    scores = numbers["scores"]
    assert scores["readout of a twin on M^(1/2) x"] > scores["readout of a twin on x"] + 0.3
    assert (tmp_path / "quick.svg").exists()
