"""The study of replaced DEQs: what is kept between its parts, and what that must not change."""

from __future__ import annotations

from pathlib import Path

import torch

from studies import replace
from studies._runner import QUICK, Setup

RUN = replace.ReplacedRun("digits", width=8, trained=64, fresh=397, epochs=1, batch_size=32)


def test_a_network_is_trained_once(tmp_path: Path, monkeypatch) -> None:
    X, y, *_ = replace.some_rows(RUN, QUICK)
    first = replace.train(RUN, X, y, tmp_path)
    monkeypatch.setattr(replace.nsd.nn, "fit", None)
    again = replace.train(RUN, X, y, tmp_path)
    assert torch.equal(first(X), again(X))
    assert not first.training
    assert not again.training


def test_only_points_with_a_folder_are_trained_before(tmp_path: Path) -> None:
    assert replace.point(RUN, QUICK).prepare is None
    assert replace.point(RUN, Setup(networks=tmp_path)).prepare is not None


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.append(len(x))
        return x.cumsum(0)


def test_kept_answers_are_those_of_the_model() -> None:
    model, x = Counting(), torch.arange(6.0).reshape(3, 2)
    with replace.answers_kept(model, {}):
        answers = [model(x), model(x), model(x.flip(0))]  # the last batch has the same sum
    assert model.seen == [3, 3]
    for found, rows in zip(answers, (x, x, x.flip(0)), strict=True):
        assert torch.equal(found, model(rows))
