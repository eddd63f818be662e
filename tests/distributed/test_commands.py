"""``--scheduler`` and ``--workers``: the commands give what they give without."""

from __future__ import annotations

import json

import numpy as np
import pytest
import zarr
from typer.testing import CliRunner

import notsodeep as nsd
from clusters import EQUAL
from notsodeep.cli.app import app
from notsodeep.errors import ClusterError


def run(*args, code=0):
    found = CliRunner().invoke(app, [str(a) for a in args])
    assert found.exit_code == code, (found.output, found.exception)
    return found


def rounded(numbers):
    return json.loads(json.dumps(numbers), parse_float=lambda text: float(f"{float(text):.7g}"))


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setattr("notsodeep.estimators.cluster._WORTH", 0)
    X = np.random.default_rng(3).normal(size=(90, 8))
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", (X[:, 0] > 0).astype(int))
    return tmp_path


def test_kernels_are_written_by_the_workers(client, files):
    address = client.cluster.scheduler_address
    X = np.load(files / "X.npy")
    for name in ("K.npy", "K.zarr"):
        run("kernel", files / "X.npy", "relu", "--as-is", "-k", "ntk", "-o", files / name, "--scheduler", address)
    exact = nsd.ntk(nsd.DEQ("relu", 0.2), X)
    assert np.allclose(np.load(files / "K.npy"), exact, rtol=EQUAL)
    assert np.allclose(zarr.open_group(files / "K.zarr", mode="r")["kernel"][:], exact, rtol=EQUAL)
    for wrong in (["-o", files / "K.csv"], ["--equivalent", "-o", files / "new.npy"]):
        run("kernel", files / "X.npy", "relu", "--as-is", *wrong, "--scheduler", address, code=2)


def test_a_machine_is_fitted_by_the_workers(client, files):
    address = client.cluster.scheduler_address
    common = ("fit", files / "X.npy", "relu", "--labels", files / "y.npy", "--json")
    here = json.loads(run(*common, "-o", files / "here.safetensors").stdout)
    there = json.loads(run(*common, "-o", files / "there.safetensors", "--scheduler", address).stdout)
    assert there == pytest.approx(here) or there == here
    predictions = [run("predict", files / f"{name}.safetensors", files / "X.npy").stdout for name in ("here", "there")]
    assert predictions[0] == predictions[1]


@pytest.mark.slow
def test_a_study_is_computed_by_the_workers(client, tmp_path):
    address = client.cluster.scheduler_address
    here = nsd.experiments.reproduce("sphere", folder=tmp_path / "here")
    run("reproduce", "sphere", "--quick", "-o", tmp_path / "there", "--scheduler", address)
    there = json.loads((tmp_path / "there" / "sphere" / "quick.json").read_text())
    assert list(there["points"]) == list(here["points"])
    for key, point in here["points"].items():
        assert rounded(there["points"][key]["numbers"]) == rounded(point["numbers"])


def test_wrong_addresses_are_explained(files, monkeypatch):
    monkeypatch.setattr("notsodeep.cli.options._PATIENCE", 0.5)
    common = ("kernel", files / "X.npy", "relu", "--as-is", "-o", files / "K.npy")
    found = run(*common, "--scheduler", "tcp://127.0.0.1:9", code=1)
    assert isinstance(found.exception, ClusterError) or "no scheduler answers" in found.output
    run(*common, "--scheduler", "tcp://127.0.0.1:9", "--workers", 2, code=2)
    assert not (files / "K.npy").exists()


@pytest.mark.slow
def test_processes_of_this_machine(files):
    run("kernel", files / "X.npy", "relu", "--as-is", "-o", files / "K.zarr", "--workers", 2)
    exact = nsd.ck(nsd.DEQ("relu", 0.2), np.load(files / "X.npy"))
    assert np.allclose(zarr.open_group(files / "K.zarr", mode="r")["kernel"][:], exact, rtol=EQUAL)
