"""The study of training all weights: what trains, which setting is chosen, and what the figure counts."""

from __future__ import annotations

import pytest
import torch

from studies import training
from studies._runner import Setup

SMALL = {"dataset": "digits", "width": 16, "train": 300, "validation": 100, "test": 100, "epochs": 2, "batch_size": 64}


@pytest.mark.parametrize("network", training.NETWORKS)
def test_all_weights_train(network: str) -> None:
    model = training.build(network, 64, 16, "standard", 0)
    before = [weight.detach().clone() for weight in model.parameters()]
    assert all(weight.requires_grad for weight in model.parameters())
    X, y = torch.randn(32, 64, generator=torch.Generator().manual_seed(0)) / 8.0, torch.arange(32) % 10
    torch.nn.functional.cross_entropy(model(X), y).backward()
    torch.optim.SGD(model.parameters(), 1.0).step()
    assert all(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))


def test_the_setting_is_the_best_on_validation_rows(monkeypatch) -> None:
    monkeypatch.setitem(training.RATES, ("adam", "standard"), (1e-6, 1e-2))  # the first learns nothing
    numbers = training.measure(network="NTK twin", optimiser="adam", seeds=[0, 1], **SMALL)
    assert (numbers["parametrisation"], numbers["rate"]) == ("standard", 1e-2)
    assert numbers["validation"][0][2] < 0.4 < numbers["validation"][1][2]
    assert min(numbers["accuracy"]) > 0.4
    assert len(numbers["accuracy"]) == 2


def test_the_plain_layer_tries_both_parametrisations() -> None:
    assert {form for form, _ in training.candidates("plain layer", "sgd")} == {"ntk", "standard"}
    assert {form for form, _ in training.candidates("DEQ", "sgd")} == {"ntk"}


def test_rows_of_choice_and_of_test_are_no_training_rows() -> None:
    parts = training.prepared("digits", 300, 100, 50)
    assert [len(X) for X, _ in parts] == [300, 100, 50]
    assert float(parts[0][0].square().sum(1).mean()) == pytest.approx(1.0, abs=1e-5)  # float32 data


def test_gaps_are_those_of_equal_seeds() -> None:
    points = {
        name: {
            "settings": {"dataset": "mnist", "width": 256, "network": name, "optimiser": "adam"},
            "numbers": {"accuracy": accuracy},
        }
        for name, accuracy in (("DEQ", [0.9, 0.8]), ("NTK twin", [0.91, 0.83]))
    }
    (row,) = training.accuracies({"points": points}).values()
    assert training.gap(row, "NTK twin") == pytest.approx((2.0, 1.0))
    figure = training.draw({"points": points})[""]
    assert "+2.0 points" in figure.get_suptitle()


def test_every_network_rule_and_width_is_a_point() -> None:
    points = training.points(Setup(quick=False))
    assert len({point.key for point in points}) == len(points) == 3 * 2 * 4 * 2
