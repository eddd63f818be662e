"""Workers as processes that are killed; slow, since every process imports torch."""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import numpy as np
import pytest
import torch

import notsodeep as nsd
from clusters import EQUAL, small_cluster
from notsodeep.distributed import ClusterKernel
from notsodeep.solve import CG, KernelTiles, NetworkKernel, solve_operator

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


def test_workers_killed_at_random_moments_change_nothing():
    rng, options = np.random.default_rng(0), CG(tol=1e-11, rank=50)
    X = torch.from_numpy(rng.normal(size=(1500, 40)) / 40**0.5)
    v = torch.from_numpy(rng.normal(size=(1500, 3)))
    kernel, luck = NetworkKernel(nsd.DEQ("relu", 0.2), "ntk"), random.Random(0)
    exact = solve_operator(KernelTiles(kernel, X), v, [1e-2], options)
    with small_cluster(3, processes=True) as (cluster, client):
        there = ClusterKernel(client, kernel, X)
        there @ v[:, :1]
        stop = threading.Event()

        def kill():
            for _ in range(2):
                if stop.wait(luck.uniform(0.0, 1.0)):
                    return
                os.kill(luck.choice([nanny.pid for nanny in cluster.workers.values() if nanny.pid]), signal.SIGKILL)

        thread = threading.Thread(target=kill)
        thread.start()
        found = solve_operator(there, v, [1e-2], options)
        stop.set()
        thread.join()
        again = there @ v  # with those that were restarted
    assert torch.allclose(found.coefficients, exact.coefficients, rtol=EQUAL, atol=EQUAL)
    assert torch.allclose(again, kernel(X, None) @ v, rtol=0, atol=EQUAL)


def kernel_to(path: str, out: str) -> None:
    nsd.ck(nsd.DEQ("tanh", 0.2), np.load(path), out=out)


def test_workers_killed_while_they_write_one_file_leave_it_whole(tmp_path):
    """Three tasks share one file; those of killed workers run again and go on where they were."""
    X = np.random.default_rng(0).normal(size=(1600, 20)) / 20**0.5
    np.save(tmp_path / "X.npy", X)
    with small_cluster(3, processes=True) as (cluster, client):
        given = str(tmp_path / "X.npy"), str(tmp_path / "K.npy")
        tasks = [client.submit(kernel_to, *given, pure=False, retries=10) for _ in range(3)]
        for k in range(2):
            while not (tmp_path / "K.npy").exists():
                time.sleep(0.01)
            time.sleep(0.2 * k)
            os.kill(next(nanny.pid for nanny in cluster.workers.values() if nanny.pid), signal.SIGKILL)
        client.gather(tasks)
    assert np.array_equal(np.load(tmp_path / "K.npy"), nsd.ck(nsd.DEQ("tanh", 0.2), X))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["K.npy", "X.npy"]


def test_an_estimator_outlives_its_workers():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1600, 20)) / 20**0.5
    y, options = X[:, 0] > 0, {"solver": CG(tol=1e-11, rank=40), "ridge": 0.1}
    here = nsd.DEQClassifier("tanh", **options).fit(X, y).decision_function(X[:50])
    with small_cluster(3, processes=True) as (cluster, client):
        for when in (0.3, 1.0):
            kill = lambda: os.kill(next(n.pid for n in cluster.workers.values() if n.pid), signal.SIGKILL)  # noqa: E731
            threading.Timer(when, kill).start()
        there = nsd.DEQClassifier("tanh", client=client, **options).fit(X, y).decision_function(X[:50])
    assert np.allclose(there, here, rtol=0, atol=EQUAL)
