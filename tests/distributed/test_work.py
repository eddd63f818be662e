"""Files, features, predictions and sweeps on a cluster: as in one process, and again where they were interrupted."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from clusters import EQUAL
from helpers import solved, tolerance
from notsodeep.distributed import ClusterKernel, expand, feature_sums, kernel_to_npy, kernel_to_zarr, sweep
from notsodeep.distributed.sinks import NpySink, ZarrSink
from notsodeep.errors import CheckpointError, InvalidInputError
from notsodeep.solve import FeatureSums, NetworkKernel, leave_rows_out, solve_dense, top_eigenpairs

DEQ = nsd.DEQ("relu", 0.2)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(1).normal(size=(130, 12)) / 12**0.5


@pytest.mark.parametrize(("write", "sink"), [(kernel_to_zarr, ZarrSink), (kernel_to_npy, NpySink)])
def test_a_kernel_on_the_disk_is_resumed_tile_by_tile(client, X, tmp_path, monkeypatch, write, sink):
    path, inner, lock, written = tmp_path / ("K.npy" if sink is NpySink else "K.zarr"), sink.write, threading.Lock(), []

    def full(self, tile, values):
        with lock:
            if len(written) == 5:
                raise OSError(28, "No space left on device")
            written.append(tile)
        inner(self, tile, values)

    monkeypatch.setattr(sink, "write", full)
    with pytest.raises(OSError, match="No space"):
        write(DEQ, X, path, "ntk", client=client, tile=40)
    monkeypatch.setattr(sink, "write", lambda self, tile, values: (written.append(tile), inner(self, tile, values)))
    assert not (path.exists() and sink is NpySink)
    with pytest.raises(CheckpointError, match="other data"):
        write(DEQ, 2.0 * X, path, "ntk", client=client, tile=40)
    write(DEQ, X, path, "ntk", client=client, tile=40)
    assert sorted(written) == [(i, j) for i in range(4) for j in range(i, 4)]  # each once, before or after
    K = np.load(path, mmap_mode="r") if sink is NpySink else kernel_to_zarr(DEQ, X, path, "ntk", client=client, tile=40)
    assert np.allclose(K[:], nsd.ntk(DEQ, X), rtol=0, atol=EQUAL)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    if sink is ZarrSink:
        assert (K.metadata.zarr_format, K.chunks, K.shards) == (3, (40, 40), None)


def test_features_are_summed_in_a_tree_and_predictions_in_parts(client, X):
    rows, T = torch.from_numpy(X), torch.from_numpy(np.sin(X[:, :2]))
    w = torch.linspace(0.5, 1.5, len(X), dtype=torch.float64)
    model = nsd.nn.ENN(nsd.ENN(["relu"]), 12, 32, 1, seed=3, kernel="ck", dtype=torch.float64).requires_grad_(False)
    here = FeatureSums.of(model, rows, T, w)
    there = feature_sums(client, model, rows, T, w)
    assert torch.allclose(there.gram, here.gram, rtol=0, atol=EQUAL)
    assert torch.allclose(there.cross, here.cross, rtol=0, atol=EQUAL)
    assert (there.rows, there.weight) == (130, pytest.approx(here.weight))
    kernel = NetworkKernel(DEQ, "ck")
    assert torch.allclose(expand(client, kernel, rows, T, rows[:7]), kernel(rows[:7], rows) @ T, rtol=0, atol=EQUAL)


def test_eigenvalues_and_rows_left_out_come_from_products(client, X):
    rows, kernel = torch.from_numpy(X), NetworkKernel(DEQ, "ntk")
    K, T = kernel(rows, None), torch.from_numpy(X[:, :1])
    exact = solve_dense(K, T, [1.0], loo=True)
    with ClusterKernel(client, kernel, rows) as operator:
        found = top_eigenpairs(operator, 3)
        left_out = leave_rows_out(operator, T, exact.coefficients[0], 1.0, torch.tensor([5, 129]), tol=1e-10)
    assert torch.allclose(found.values, torch.linalg.eigvalsh(K).flip(0)[:3], rtol=tolerance())
    assert torch.allclose(left_out, exact.leave_one_out[0][[5, 129]], rtol=0, atol=solved(1e-10))


def test_a_sweep_runs_functions_of_the_package_alone(client):
    found = dict(sweep(client, nsd.activation, [("relu",), ("tanh",), ("erf",), ("silu",)]))
    assert [found[k].name for k in range(4)] == ["relu", "tanh", "erf", "silu"]
    for wrong in (lambda x: x, np.negative, test_a_sweep_runs_functions_of_the_package_alone):
        with pytest.raises(InvalidInputError, match="functions of notsodeep"):
            list(sweep(client, wrong, [(1,)]))
    with pytest.raises(InvalidInputError, match="activation"):
        list(sweep(client, nsd.activation, [("nonsense",)]))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_lost_while_sums_are_merged_costs_a_repetition(fragile, X, monkeypatch):
    cluster, client = fragile
    rows, w = torch.from_numpy(X), torch.ones(len(X), dtype=torch.float64)
    model = nsd.nn.ENN(nsd.ENN(["relu"]), 12, 8, 1, seed=3, kernel="ck", dtype=torch.float64).requires_grad_(False)
    here = FeatureSums.of(model, rows, rows[:, :1], w)
    inner, seen = FeatureSums.merge, []

    def merge(*pair):
        seen.append(1)
        if len(seen) == 1:
            worker = next(iter(cluster.workers.values()))
            cluster.loop.add_callback(worker.close, executor_wait=False, nanny=False)
            time.sleep(0.5)
        return inner(*pair)

    monkeypatch.setattr(FeatureSums, "merge", merge)
    there = feature_sums(client, model, rows, rows[:, :1], w)
    assert torch.allclose(there.gram, here.gram, rtol=0, atol=EQUAL)
    assert there.rows == 130
    assert len(seen) > 2


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_all_workers_lost_at_once_cost_one_loss_each(fragile, X, tmp_path, monkeypatch):
    cluster, client = fragile
    inner, written = ZarrSink.write, []

    def write(self, tile, values):
        written.append(tile)
        if len(written) == 5:
            old = list(cluster.workers.values())
            cluster.scale(6)
            for worker in old:
                cluster.loop.add_callback(worker.close, executor_wait=False, nanny=False)
        inner(self, tile, values)
        time.sleep(0.1)

    monkeypatch.setattr(ZarrSink, "write", write)
    K = kernel_to_zarr(DEQ, X, tmp_path / "K.zarr", "ntk", client=client, tile=13)  # eight parts for each worker
    assert np.allclose(K[:], nsd.ntk(DEQ, X), rtol=0, atol=EQUAL)
    assert len(written) < 2 * 55
