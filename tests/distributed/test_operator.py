"""A kernel on a cluster gives the numbers of one process, whatever happens to the workers meanwhile."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import notsodeep as nsd
from clusters import EQUAL, small_cluster
from helpers import tolerance, ulps
from notsodeep.distributed import ClusterKernel, operator
from notsodeep.distributed.operator import block_starts, blocks_of, expand, shares_of
from notsodeep.errors import ClusterError, InvalidInputError
from notsodeep.solve import CG, KernelTiles, NetworkKernel, solve_operator

N = 260
rough = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.normal(size=(N, 20)) / 20**0.5)
    return NetworkKernel(nsd.DEQ("relu", 0.2), "ntk"), X, torch.from_numpy(rng.normal(size=(N, 2)))


def until(happened, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.02)


# ---- the same numbers --------------------------------------------------------------------------------------


def test_products_columns_and_entries_are_those_of_one_process(client, problem):
    kernel, X, v = problem
    K = kernel(X, None)
    with ClusterKernel(client, kernel, X) as there:
        for _ in range(2):  # computed, then stored
            assert torch.allclose(there @ v, K @ v, rtol=0, atol=EQUAL)
        assert torch.allclose(there.exact(v[:, 0]), K @ v[:, 0], rtol=0, atol=EQUAL)
        assert torch.allclose(there.columns(torch.tensor([3, 200, 3])), K[:, [3, 200, 3]], rtol=0, atol=EQUAL)
        assert torch.allclose(there.diagonal(), K.diagonal(), rtol=0, atol=EQUAL)
        assert torch.allclose(there.matrix(), K, rtol=0, atol=EQUAL)
    assert torch.allclose(expand(client, kernel, X, v, X[:7]), K[:7] @ v, rtol=0, atol=EQUAL)


def test_weights_float32_and_refinement(client, problem):
    kernel, X, v = problem
    scale = torch.linspace(0.5, 1.5, N, dtype=torch.float64)
    exact = scale[:, None] * (kernel(X, None) @ (scale[:, None] * v))
    there = ClusterKernel(client, kernel, X, scale=scale, dtype="float32")
    low = (there @ v - exact).abs().max() / exact.abs().max()
    assert ulps(0.01, torch.float32) < float(low) < tolerance(torch.float32)
    assert torch.allclose(there.exact(v), exact, rtol=0, atol=EQUAL)


def test_the_solution_is_that_of_one_process(client, problem):
    kernel, X, v = problem
    options = CG(tol=1e-11, rank=40)
    here = solve_operator(KernelTiles(kernel, X), v, [2.0, 0.5], options)
    there = solve_operator(ClusterKernel(client, kernel, X), v, [2.0, 0.5], options)
    assert abs(there.steps - here.steps) <= 1
    assert torch.allclose(there.coefficients, here.coefficients, rtol=EQUAL, atol=EQUAL)


# ---- memory ------------------------------------------------------------------------------------------------


def stored_bytes(client):
    return sum(about["metrics"]["managed_bytes"] for about in client.scheduler_info(n_workers=-1)["workers"].values())


def test_the_workers_hold_one_triangle_and_give_it_back(client, problem):
    kernel, X, v = problem
    until(lambda: stored_bytes(client) == 0)
    there = ClusterKernel(client, kernel, X)
    there @ v
    count = len(there.starts) - 1
    triangle = 8 * N * (N + N // count) / 2
    most = triangle + 3 * X.nbytes + 4 * v.nbytes + 1e5  # the rows on each worker, vectors, what Python adds
    until(lambda: triangle <= stored_bytes(client) <= most)
    del there  # nothing else refers to it
    until(lambda: stored_bytes(client) == 0)


@given(st.integers(1, 5000), st.integers(1, 60))
def test_every_tile_is_in_one_share_of_neighbours(n, count):
    starts = block_starts(n, count)
    blocks = len(starts) - 1
    shares = shares_of(blocks, count)
    assert sorted(itertools.chain(*shares)) == [(i, j) for i in range(blocks) for j in range(i, blocks)]
    assert len(shares) <= count
    assert (starts[0], starts[-1]) == (0, n)
    assert max(map(len, shares)) <= -(-blocks * (blocks + 1) // 2 // count) + 1


def test_a_share_needs_few_of_the_rows():
    shares = shares_of(49, 256)  # 100,000 rows on 64 workers
    assert sum(len(blocks_of(share)) for share in shares) / len(shares) <= 6  # of 49


# ---- what goes wrong ---------------------------------------------------------------------------------------


@rough
def test_a_lost_worker_changes_nothing(problem):
    kernel, X, v = problem
    K = kernel(X, None)
    with small_cluster() as (cluster, client):
        there = ClusterKernel(client, kernel, X)
        assert torch.allclose(there @ v, K @ v, rtol=0, atol=EQUAL)
        worker = next(iter(cluster.workers.values()))
        cluster.loop.add_callback(worker.close, executor_wait=False, nanny=False)
        until(lambda: len(client.scheduler_info(n_workers=-1)["workers"]) == 2)
        assert torch.allclose(there @ v, K @ v, rtol=0, atol=EQUAL)
        assert torch.allclose(there.columns(torch.arange(5)), K[:, :5], rtol=0, atol=EQUAL)


@rough
def test_a_cluster_without_workers_is_explained(problem, monkeypatch):
    kernel, X, v = problem
    monkeypatch.setattr(operator, "LIMITS", operator.Limits(patience=0.5))
    with small_cluster(1) as (cluster, client):
        there = ClusterKernel(client, kernel, X)
        there @ v
        cluster.scale(0)
        until(lambda: not client.scheduler_info(n_workers=-1)["workers"])
        with pytest.raises(ClusterError, match="no workers"):
            there @ v
        with pytest.raises(ClusterError, match="no workers"):
            ClusterKernel(client, kernel, X)


def test_an_error_of_the_work_itself_is_raised_at_once(client, problem, monkeypatch):
    kernel, X, v = problem
    monkeypatch.setattr(operator, "add_block", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(OSError, match="No space left"):
        ClusterKernel(client, kernel, X) @ v


def test_what_is_no_client_is_refused(problem):
    kernel, X, _ = problem
    with pytest.raises(InvalidInputError, match=r"dask\.distributed\.Client"):
        ClusterKernel("tcp://host:8786", kernel, X)
