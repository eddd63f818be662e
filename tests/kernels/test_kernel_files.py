"""Kernel matrices in files: killed, interrupted, shared by processes, and files that hold something else."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from helpers import tolerance
from notsodeep.errors import CheckpointError, InvalidInputError, NotSoDeepWarning
from notsodeep.kernels import files

NETWORKS = {
    "images": nsd.ConvDEQ("relu", 0.2, image=(1, 4, 3), pool=2),
    "layers of images": nsd.ConvENN(["relu", "tanh"], 0.5, (0.8, 0.3), image=(1, 4, 3)),
    "rows": nsd.DEQ("tanh", 0.2, sigma_c2=0.1),
}
X = np.random.default_rng(0).standard_normal((50, 12))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch, request):
    """Blocks of 20 rows."""
    network = NETWORKS[request.getfixturevalue("kind") if "kind" in request.fixturenames else "images"]
    pairs = network.positions * len(network.averages.shifts) if network.image else 1
    monkeypatch.setattr(files, "LIMITS", dataclasses.replace(files.LIMITS, file_block=20 * 20 * pairs))


class Break(KeyboardInterrupt):
    """Ctrl-C, when a test says."""


def interrupt(monkeypatch, after):
    """Let the block after so many others be interrupted."""
    count, open_blocks = iter(range(10**6)), files.announced

    def announced(*arguments):
        for block in open_blocks(*arguments):
            if next(count) == after:
                raise Break
            yield block

    monkeypatch.setattr(files, "announced", announced)


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("other", [None, X[:30] + 0.1])
def test_an_interrupted_matrix_goes_on_and_has_the_same_bits(kind, dtype, other, tmp_path, monkeypatch):
    network, rows = NETWORKS[kind], X.astype(dtype)
    other = None if other is None else other.astype(dtype)
    whole = nsd.ntk(network, rows, other, out=tmp_path / "whole.npy")
    plain = nsd.ntk(network, rows, other)
    assert whole.dtype == plain.dtype == np.dtype(dtype)
    np.testing.assert_allclose(whole, plain, rtol=0, atol=tolerance(getattr(torch, dtype)) * plain.max())
    path = tmp_path / "parts.npy"
    for after in (1, 2, 0):
        with monkeypatch.context() as patch:
            interrupt(patch, after)
            with pytest.raises(Break):
                nsd.ntk(network, rows, other, out=path)
        found = np.load(path)
        done = ~np.isnan(found)
        assert np.array_equal(found[done], whole[done])
        assert 0 < done.sum() < done.size
    again = nsd.ntk(network, rows, other, out=str(path))
    assert np.array_equal(again, whole)
    assert np.array_equal(np.load(path), whole)
    if other is None:
        assert np.array_equal(again, again.T)


def test_blocks_that_are_there_are_not_computed_again(tmp_path, monkeypatch):
    network, path = NETWORKS["images"], tmp_path / "K.npy"
    whole, calls = nsd.ck(network, X, out=path).copy(), []
    K = np.load(path, mmap_mode="r+")
    K[3, 40] = K[40, 3] = np.nan
    monkeypatch.setattr(files, "announced", lambda *given: calls.append(given[2]) or given[1])
    assert np.array_equal(nsd.ck(network, X, out=path), whole)
    assert calls == [1]


def test_several_kernels_and_tensors(tmp_path):
    network, rows = NETWORKS["images"], torch.from_numpy(X)
    paths = {"ck": tmp_path / "G.npy", "ntk": tmp_path / "K.npy"}
    found = nsd.kernels_of(network, rows, kernels=("ck", "ntk"), out=paths)
    assert torch.equal(found["ck"], torch.from_numpy(np.load(paths["ck"])))
    torch.testing.assert_close(found["ntk"], nsd.ntk(network, rows), rtol=0, atol=tolerance())
    function = nsd.kernel_function(nsd.DEQ("relu", 0.2), "ck", norms=X)
    values = function(X, X[:7], out=tmp_path / "k.npy")
    np.testing.assert_allclose(values, function(X, X[:7]), rtol=0, atol=tolerance())
    np.save(tmp_path / "half.npy", np.full((50, 50), np.nan, np.float32))  # the file says how numbers are stored
    half = nsd.ck(network, X, out=tmp_path / "half.npy")
    assert half.dtype == np.float32
    np.testing.assert_allclose(half, found["ck"], rtol=tolerance(torch.float32), atol=0)


WORK = """
import dataclasses, sys
import numpy as np
import notsodeep as nsd
from notsodeep.kernels import files
files.LIMITS = dataclasses.replace(files.LIMITS, file_block=16 * 9 * 100)
X = np.random.default_rng(1).standard_normal((80, 16))
nsd.ntk(nsd.ConvDEQ("relu", 0.2, image=(1, 4, 4), pool=2), X, out=sys.argv[1], progress=False)
"""


def test_two_processes_share_the_work_and_one_is_killed(tmp_path):
    path = tmp_path / "K.npy"
    command = [sys.executable, "-c", WORK, str(path)]
    first, second = (subprocess.Popen(command) for _ in range(2))  # both make the file
    patience = time.monotonic() + 60.0
    while first.poll() is None and time.monotonic() < patience:
        if path.exists() and np.isfinite(np.load(path, mmap_mode="r")).any():
            break
        time.sleep(0.02)
    first.kill()
    first.wait()
    there = np.load(path)
    done = ~np.isnan(there)
    assert 0 < done.sum() < done.size
    assert second.wait() == 0
    K, names = np.load(path), {}
    exec(WORK.replace("sys.argv[1]", repr(str(tmp_path / "new.npy"))), names)
    assert np.array_equal(there[done], K[done])
    assert np.array_equal(K, np.load(tmp_path / "new.npy"))
    assert np.array_equal(K, K.T)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["K.npy", "new.npy"]


def test_files_of_something_else_are_refused(tmp_path):
    network, path = NETWORKS["images"], tmp_path / "K.npy"
    K = nsd.ck(network, X, out=path).copy()
    for other, rows in ((network, X[::-1]), (network, X + 0.01), (nsd.ConvDEQ("relu", 0.19, image=(1, 4, 3)), X)):
        with pytest.raises(CheckpointError, match="something else"):
            nsd.ck(other, rows, out=path)
    with pytest.raises(CheckpointError, match="something else than the ntk"):
        nsd.ntk(network, X, out=path)
    assert np.array_equal(np.load(path), K)
    np.save(tmp_path / "zeros.npy", np.zeros((50, 50)))
    with pytest.raises(CheckpointError, match="something else"):
        nsd.ck(network, X, out=tmp_path / "zeros.npy")
    np.save(tmp_path / "whole.npy", np.zeros((50, 50), int))
    (tmp_path / "text.npy").write_text("text")
    for rows, name in ((X[:9], "K.npy"), (X, "whole.npy"), (X, "text.npy"), (X, "."), (X, "text.npy/K.npy")):
        with pytest.raises(CheckpointError):
            nsd.ck(network, rows, out=tmp_path / name)
    for out in ({"ck": path, "ntk": path}, {"ck": path}, {"ck": path, "ntk": K}):
        with pytest.raises(InvalidInputError, match="out="):
            nsd.kernels_of(network, X, kernels=("ck", "ntk"), out=out)


def test_long_work_is_announced(tmp_path, monkeypatch):
    seconds = iter(range(0, 10**6, 20))
    monkeypatch.setattr("notsodeep.kernels.convolution.time.perf_counter", lambda: next(seconds))
    with pytest.warns(NotSoDeepWarning, match="minutes on this machine"):
        nsd.ck(NETWORKS["images"], X, out=tmp_path / "K.npy")
    nsd.ck(NETWORKS["images"], X, out=tmp_path / "quiet.npy", progress=False)
