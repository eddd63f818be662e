"""``notsodeep learn``: the same numbers as the functions, ranges, and refusals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

import notsodeep as nsd
from notsodeep.cli import app


def run(*arguments: object, code: int = 0) -> str:
    found = CliRunner().invoke(app, ["learn", *(str(a) for a in arguments)])
    assert found.exit_code == code, found.output
    return found.output


def test_a_range_of_sizes_gives_the_curve() -> None:
    document = json.loads(run("relu", "-p", 100, "-n", "50:200:3", "--means", 3, "--json"))
    assert document["points"] == [50.0, 100.0, 200.0]
    mix = nsd.GaussianMixture.two_class(100, mu=3.0, cov=4.0)
    expected = nsd.predict_learning(nsd.DEQ("relu", 0.2), mix, 100, ridge=1e-3).accuracy
    assert document["networks"]["relu"]["accuracy"][1] == expected


def test_flow_beside_twin_and_plain_network(tmp_path) -> None:
    target = tmp_path / "curve.png"
    text = run("relu", "-p", 60, "-n", 80, "--times", "0.1:10:4", "--compare", "--plot", target)
    assert "twin" in text
    assert target.read_bytes().startswith(b"\x89PNG")


def test_data_is_estimated_by_leave_one_out(tmp_path) -> None:
    X, y = nsd.GaussianMixture.two_class(30, mu=3.0).sample(160, seed=0)
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    text = run("relu", "-d", tmp_path / "X.npy", "-y", tmp_path / "y.npy", "--ridge", 0.1, "--plot", tmp_path / "c.svg")
    assert "held out" in text
    assert (tmp_path / "c.svg").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("relu", "-n", "5000:200"), "low:high"),
        (("relu", "-n", "20:40", "--ridge", "0.1:1"), "one thing"),
        (("relu", "-n", "many"), "takes a number"),
        (("--layers", "relu", "--compare", "-p", 60), "not --layers"),
        (("relu", "-d", "X.npy"), "needs --labels"),
    ],
)
def test_refusals(arguments: tuple, message: str) -> None:
    assert message in " ".join(run(*arguments, code=2).split())
